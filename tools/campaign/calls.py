"""kvplan called under limits, and what breaks its promises."""

import json
import math
import os
import re
import resource
import signal
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NoReturn

import typer
from command import run

SECONDS, SECONDS_UNDER_LOAD = 10.0, 20.0  # of processor time, which is worth less while all cores are busy
MEGABYTES = 800  # beside the libraries, which hold up to 200
_GIVEN_UP = 30.0
_ADDRESS_SPACE = 1 << 33  # bytes: enough for every library, and not enough to harm the machine
_MOST_PROBLEMS = 20  # of a profile that are named, and a line that says how many more there are
_LONGEST_MESSAGE = 3000
GITHUB = {"GITHUB_ACTIONS": "true"}
_OWN = re.compile(r"::error (file=[^:]*,line=\d+,)?title=kvplan[^:]*::")
_COMMAND = re.compile(r"^\s*::|##\[")


@dataclass(frozen=True)
class Call:
    """Arguments of kvplan, beside the files that they name."""

    arguments: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    input: str = ""
    twice: bool = False
    refused: bool = False  # something in it is out of range

    @property
    def wanted(self) -> str:
        """The value of --format."""
        words = self.arguments
        return words[words.index("--format") + 1] if "--format" in words else "text"


@dataclass(frozen=True)
class Answer:
    """What kvplan said, and what that took."""

    code: int
    out: str
    err: str
    seconds: float
    megabytes: float  # beside what was held before


class TooLongError(BaseException):
    """Raised inside a call that would not end."""


def prepare() -> None:
    """Bound the memory of this process, and put the commands together once, which takes longer than most cases."""
    typer.main.get_command = cache(typer.main.get_command)
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))


def answer(call: Call) -> Answer:
    """Call kvplan in this process; a warning is an error."""
    with _stopped_after(_GIVEN_UP), warnings.catch_warnings():
        warnings.simplefilter("error")
        _forget_peak()
        held, start = _memory("VmRSS"), time.process_time()
        done = run(*call.arguments, env={**call.env, "KVPLAN_DEBUG": "1"}, input=call.input)
        seconds = time.process_time() - start
    return Answer(done.returncode, done.stdout, done.stderr, seconds, _memory("VmHWM") - held)


def broken(call: Call) -> list[str]:
    """The promises that a call breaks, each in a line."""
    try:
        first = answer(call)
    except TooLongError as stop:
        return [f"no answer in {_GIVEN_UP:g} s, at {stop}"]
    found = list(broken_by(call, first))
    if call.twice and not found:
        second = answer(call)
        if (first.code, first.out, first.err) != (second.code, second.out, second.err):
            found.append("other bytes when called again")
    return found


def broken_by(call: Call, said: Answer) -> Iterator[str]:
    """The promises that an answer breaks."""
    allowed = (0, 1, 2) if call.arguments[0] == "check" else (0, 2)
    if said.code not in allowed:
        yield f"exit code {said.code}: {said.err.strip()[-1500:]}"
        return
    if call.refused and said.code != 2:
        yield "what is out of range was taken"
    if "Traceback" in said.err + said.out:
        yield f"a traceback: {said.err.strip()[-1500:]}"
    if said.seconds > (SECONDS_UNDER_LOAD if os.getloadavg()[0] >= len(os.sched_getaffinity(0)) else SECONDS):
        yield f"{said.seconds:.1f} s of processor time"
    if said.megabytes > MEGABYTES:
        yield f"{said.megabytes:.0f} MB"
    if said.code == 2:
        yield from _broken_refusal(call, said)
    for stream, text in (("output", said.out), ("messages", said.err)):
        if strange := [c for c in set(text) - {"\n"} if not c.isprintable() and c != "\u200b"]:
            yield f"{strange[0]!r} in the {stream}"
        if "GITHUB_ACTIONS" in call.env:
            commands = [line for line in text.splitlines() if _COMMAND.search(line)]
            own = stream == "messages" and call.arguments[0] == "check"
            yield from (
                f"a command to GitHub in the {stream}: {line[:80]!r}"
                for line in commands[:3]
                if not (own and _OWN.match(line))
            )
    if said.code < 2 and call.wanted == "json":
        try:
            json.loads(said.out, parse_constant=_refused, parse_float=_finite)
        except ValueError as error:
            yield f"not JSON: {error}"


def _broken_refusal(call: Call, said: Answer) -> Iterator[str]:
    errors = [line for line in said.err.splitlines() if line.startswith("error: ")]
    if not 1 <= len(errors) <= _MOST_PROBLEMS + 1 and call.arguments[0] != "check":
        yield f"{len(errors)} lines of error: {said.err[:500]!r}"
    if any(len(line) > _LONGEST_MESSAGE for line in said.err.splitlines()):
        yield f"a message of {len(max(said.err.splitlines(), key=len)):,} characters"


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refused(text)


@contextmanager
def _stopped_after(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> NoReturn:
        places = []
        while frame is not None and len(places) < 6:
            if "kvplan" in frame.f_code.co_filename:
                places.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
            frame = frame.f_back
        raise TooLongError(" < ".join(places))

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _memory(which: str) -> float:
    """What this process holds ("VmRSS"), or held at most ("VmHWM"), MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{which}:")[1].split()[0]) / 1e3
