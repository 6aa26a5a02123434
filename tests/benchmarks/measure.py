"""Ratios of two pieces of work, measured side by side in one run."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def ratio(ours: Callable[[], object], theirs: Callable[[], object], pairs: int, label: str) -> float:
    """Median of ours/theirs over interleaved pairs, printed with both medians."""
    timed = [(seconds(ours), seconds(theirs)) for _ in range(pairs)]
    mine, other = (statistics.median(column) for column in zip(*timed, strict=True))
    middle = statistics.median(a / b for a, b in timed)
    print(
        f"\n{label}: {mine * 1e3:.3g} ms against {other * 1e3:.3g} ms, ratio {middle:.3g} (1/{1 / middle:.3g})"
    )
    return middle


class Used(NamedTuple):
    """What a command, and all that it started, took and said."""

    code: int
    seconds: float  # of processors
    mib: float  # the most that one process held
    out: str
    err: str


# A process counts what its parent held when it was started, so a small one stands between.
_WATCH = """import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:])
_, status, used = os.wait4(child.pid, 0)
print(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, file=sys.stderr)"""


def used(command: Sequence[str], **more: Any) -> Used:
    """Run a command, as `subprocess.run` would with the rest."""
    started = [sys.executable, "-c", _WATCH, *command]
    more = {"stdout": subprocess.PIPE, **more}
    done = subprocess.run(started, check=True, stderr=subprocess.PIPE, text=True, **more)
    *said, last = done.stderr.splitlines(keepends=True)
    code, seconds, mib = last.split()
    return Used(int(code), float(seconds), float(mib), done.stdout, "".join(said))


def peak_mib(command: Sequence[str]) -> float:
    """The most memory that a command, or any process that it starts, holds; MiB."""
    found = used(command)
    assert found.code == 0, found.err
    return found.mib
