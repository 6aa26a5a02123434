"""What befalls a process: it is killed, a disk is full, a pipe closed, a folder read-only.

The command runs as a process of its own; what it leaves is whole, or what was there before.
"""

import ctypes
import os
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import numpy as np
from command import ENVIRONMENT, Done, process, run

Fault = Callable[[np.random.Generator, Path], tuple[str, list[str]]]

_TIMEOUT = 120.0
_NO_BYTECODE = {"PYTHONDONTWRITEBYTECODE": "1"}  # Python itself does not notice when it is cut off
_CLOSED_PIPE = 141
_MESSAGES = ("error: ", "note: ", "warning: ")
_SWEEPS = (
    ("--vary", "gpu.memory_tokens=2k:900k:400", "--columns", "rate_cap.*"),
    ("--vary", "timing.d0=1ms:90ms:9", "--vary", "classes[0].rate=1:60:40"),
    ("--vary", "gpu.max_num_seqs=5:900:50", "--simulate", "--policy", "greedy,vllm", "--requests", "60"),
    ("--vary", "gpu.memory_tokens=9k:900k:45", "--simulate", "--policy", "vllm", "--requests", "600"),
)
_RESULTS = (
    ("analyze", "tool-calls-h100", "--format", "json"),
    ("analyze", "agents-collapse", "--format", "markdown"),
    ("simulate", "tool-calls-h100", "--policy", "greedy", "--requests", "200", "--format", "csv"),
    ("explain", "worst_cycle.loss", "tool-calls-h100"),
    ("profiles", "tool-calls-h100"),
    ("schema",),
)
_COMPILED = ("simulate", "tool-calls-h100", "--policy", "greedy", "--requests", "60000", "--format", "csv")


def judge(rng: np.random.Generator, folder: Path) -> tuple[str, list[str]]:
    """A fault, and what it breaks."""
    name = str(rng.choice(list(FAULTS)))
    said, broken = FAULTS[name](rng, folder)
    return f"{name}: {said}", broken


def killed_sweep(rng: np.random.Generator, folder: Path) -> tuple[str, list[str]]:
    """A few times, with all its processes or alone; gone on with, it comes to the bytes of one left alone."""
    out, arguments, whole = _a_sweep(rng, folder)
    arguments += ("--workers", str(rng.choice([1, 2])), "--resume")
    broken = []
    for _ in range(int(rng.integers(1, 4))):
        child = _begun(arguments)
        _wait_for(child, out, int(rng.choice([0, 1]) * rng.random() * len(whole)))
        time.sleep(rng.uniform(0, rng.choice([0.02, 0.7])))
        if rng.random() < 0.5:
            os.killpg(child.pid, signal.SIGKILL)
        child.kill()
        child.communicate()
        broken += _no_beginning(out, whole)
    done = process(*arguments, timeout=_TIMEOUT)
    return _said(arguments), [*broken, *_broken(done, 0), *_other(out, whole)]


def killed_worker(rng: np.random.Generator, folder: Path) -> tuple[str, list[str]]:
    """One of those who do the work; another one does it."""
    out, arguments, whole = _a_sweep(rng, folder)
    arguments += ("--executor", "cores", "--workers", "2")
    child = _begun(arguments)
    _wait_for(child, out, int(rng.random() * len(whole) / 2))
    time.sleep(rng.uniform(0, 0.02))
    if workers := _workers(child.pid):
        with suppress(ProcessLookupError):
            os.kill(workers[rng.integers(len(workers))], signal.SIGKILL)
    said, messages = child.communicate(timeout=_TIMEOUT)
    done = Done(arguments, child.returncode, said.decode(), messages.decode())
    return _said(arguments), [*_broken(done, 0), *_other(out, whole)]


def killed_while_compiling(rng: np.random.Generator, folder: Path) -> tuple[str, list[str]]:
    """Whoever comes next finds nothing of it."""
    env = {"KVPLAN_CACHE_DIR": str(folder)}
    child = _begun(_COMPILED, env)
    time.sleep(rng.uniform(0, 1.5))
    child.kill()
    child.communicate()
    done = process(*_COMPILED, env=env, timeout=_TIMEOUT)
    broken = _broken(done, 0) + [f"messages: {done.stderr}"] * bool(done.stderr)
    return _said(_COMPILED), broken + ["other bytes"] * (done.stdout.encode() != _expected(_COMPILED))


def full_disk(rng: np.random.Generator, folder: Path) -> tuple[str, list[str]]:
    """Files grow to some size and no further: the result is there whole, or what was there is."""
    arguments, whole = _a_result(rng)
    if rng.random() < 0.2:
        with open("/dev/full", "w") as full:
            done = process(
                *arguments, capture_output=False, stdout=full, stderr=subprocess.PIPE, timeout=_TIMEOUT
            )
        return f"{_said(arguments)} > /dev/full", _broken(done, 2)
    out, before = _a_file(rng, folder)
    most = int(rng.integers(2 * len(whole)))
    done = process(
        *arguments, "-o", out, env=_NO_BYTECODE, preexec_fn=partial(_bound, most), timeout=_TIMEOUT
    )
    fits = most >= len(whole)
    return f"{_said(arguments)} -o {out.name}, up to {most} bytes", [
        *_broken(done, 0 if fits else 2),
        *_other(out, whole if fits else before),
        *_left_over(folder, out),
    ]


def full_while_sweeping(rng: np.random.Generator, folder: Path) -> tuple[str, list[str]]:
    """What is there are whole lines, and room is all that it takes to go on."""
    out, arguments, whole = _a_sweep(rng, folder)
    arguments += ("--workers", str(rng.choice([1, 2])), "--resume")
    most = int(rng.integers(len(whole)))
    done = process(*arguments, env=_NO_BYTECODE, preexec_fn=partial(_bound, most), timeout=_TIMEOUT)
    broken = [*_broken(done, 2), *_no_beginning(out, whole)]
    if not out.read_bytes().endswith((b"\n", b"")[not out.read_bytes()]):
        broken.append("the last line is cut off")
    done = process(*arguments, timeout=_TIMEOUT)
    said = f"{_said(arguments)}, up to {most} bytes"
    return said, [*broken, *_broken(done, 0), *_other(out, whole), *_left_over(folder, out)]


def closed_pipe(rng: np.random.Generator, folder: Path) -> tuple[str, list[str]]:
    """Whoever reads the result stops after some bytes, which is nothing to talk about."""
    arguments, whole = _a_result(rng)
    most = int(rng.choice([0, 1, 4096, len(whole) // 2]))
    child = _begun(arguments)
    read = os.read(child.stdout.fileno(), most) if most else b""
    child.stdout.close()
    said = child.stderr.read().decode()
    child.stderr.close()
    broken = _broken(Done(arguments, child.wait(_TIMEOUT), "", said), 0, _CLOSED_PIPE)
    broken += [f"messages: {said}"] * bool(said) + ["other bytes"] * (not whole.startswith(read))
    return f"{_said(arguments)} | head -c {most}", broken


def read_only_folder(rng: np.random.Generator, folder: Path) -> tuple[str, list[str]]:
    """The result is refused, and compiled code not kept; nothing there changes."""
    place = folder / "read-only"
    place.mkdir()
    out, before = _a_file(rng, place)
    place.chmod(0o500)
    arguments, whole = (_COMPILED, _expected(_COMPILED)) if rng.random() < 0.5 else _a_result(rng)
    to_file = () if arguments == _COMPILED else ("-o", out)
    env = {"KVPLAN_CACHE_DIR": str(place)}
    done = process(*arguments, *to_file, env=env, preexec_fn=_obey, timeout=_TIMEOUT)
    broken = [*_broken(done, 2 if to_file else 0), *_other(out, before), *_left_over(place, out)]
    if not to_file and done.stdout.encode() != whole:
        broken.append("other bytes")
    place.chmod(0o700)
    return f"{_said(arguments)} {'-o read-only' if to_file else ''}", broken


FAULTS: Mapping[str, Fault] = {
    function.__name__.replace("_", " "): function
    for function in (
        *(killed_sweep, killed_worker, killed_while_compiling, full_disk),
        *(full_while_sweeping, closed_pipe, read_only_folder),
    )
}


def _said(arguments: tuple[str, ...]) -> str:
    return shlex.join(("kvplan", *arguments))


@cache
def _expected(arguments: tuple[str, ...]) -> bytes:
    """What a command prints where nothing befalls it."""
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.encode()


def _a_result(rng: np.random.Generator) -> tuple[tuple[str, ...], bytes]:
    arguments = _RESULTS[rng.integers(len(_RESULTS))]
    return arguments, _expected(arguments)


def _a_file(rng: np.random.Generator, folder: Path) -> tuple[Path, bytes | None]:
    """A name for a result, and what the file contains if there is one."""
    out = folder / "result"
    if rng.random() < 0.5:
        return out, None
    out.write_bytes(b"as before")
    return out, b"as before"


def _a_sweep(rng: np.random.Generator, folder: Path) -> tuple[Path, tuple[str, ...], bytes]:
    """The file of a sweep, its arguments, and what it comes to if left alone."""
    of, suffix = ("tool-calls-h100", *_SWEEPS[rng.integers(len(_SWEEPS))]), str(rng.choice(["csv", "jsonl"]))
    out = folder / f"result.{suffix}"
    return out, ("sweep", *of, "-o", str(out)), _swept(of, suffix)


@cache
def _swept(of: tuple[str, ...], suffix: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, f"result.{suffix}")
        done = run("sweep", *of, "--executor", "serial", "-o", out)
        assert done.returncode == 0, done.stderr
        return out.read_bytes()


def _begun(arguments: tuple[str, ...], env: Mapping[str, str] = {}) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "kvplan", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT | dict(env),
        start_new_session=True,
    )


def _wait_for(child: subprocess.Popen[bytes], out: Path, size: int) -> None:
    """Until a file has so many bytes, or nobody adds any more."""
    end = time.monotonic() + _TIMEOUT
    while child.poll() is None and time.monotonic() < end:
        if (out.stat().st_size if out.exists() else 0) >= size:
            return
        time.sleep(0.002)


def _workers(pid: int) -> list[int]:
    """Processes that do the work of one, however far down."""
    found = []
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):  # it has ended
            for child in (thread / "children").read_text().split():
                if b"resource_tracker" not in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
                found += _workers(int(child))
    return found


def _bound(most: int) -> None:
    """Files of this process may only grow so far, which fails in the middle of a write as a full disk does."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def _obey() -> None:
    """Let permissions bind root too."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None)
        for override in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            if libc.prctl(24, override, 0, 0, 0):  # PR_CAPBSET_DROP
                raise OSError("root may write anything here")


def _broken(done: Done, *allowed: int) -> list[str]:
    """What an exit code and messages must not be."""
    broken = []
    if done.returncode not in allowed:
        broken.append(f"exit code {done.returncode}: {done.stderr[-1500:]}")
    lines = done.stderr.splitlines()
    broken += [f"message: {line}" for line in lines if not line.startswith(_MESSAGES)][:3]
    if done.returncode == 2 and sum(line.startswith("error: ") for line in lines) != 1:
        broken.append(f"not one error: {done.stderr[:500]!r}")
    return broken


def _other(path: Path, wanted: bytes | None) -> list[str]:
    found = path.read_bytes() if path.exists() else None
    return [] if found == wanted else [f"{path.name} has other bytes"]


def _no_beginning(path: Path, whole: bytes) -> list[str]:
    is_one = not path.exists() or whole.startswith(path.read_bytes())
    return [] if is_one else [f"{path.name} is no beginning of the whole"]


def _left_over(folder: Path, out: Path) -> list[str]:
    return [f"{path.name} is left over" for path in sorted(folder.iterdir()) if path != out]
