"""Ratios of two pieces of work, measured side by side in one run."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable


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


# A process counts what its parent held when it was started, so a small one stands between.
_PEAK = """import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"""


def peak_mib(command: list[str]) -> float:
    """The most memory that a command, or any process that it starts, holds; MiB."""
    done = subprocess.run([sys.executable, "-c", _PEAK, *command], check=True, capture_output=True, text=True)
    return int(done.stdout) / 1024
