"""Cases one after the other, in several processes, for a given time."""

import shlex
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from campaign import faults, files, invariants, profiles
from campaign.calls import broken, prepare

# What a case does in a folder of its own, and what it finds broken
Judge = Callable[[np.random.Generator, Path], tuple[str, list[str]]]


def _profile(rng: np.random.Generator, folder: Path) -> tuple[str, list[str]]:
    call = profiles.case(rng, folder)
    return shlex.join(("kvplan", *call.arguments)), broken(call)


def _file(rng: np.random.Generator, folder: Path) -> tuple[str, list[str]]:
    call = files.case(rng, folder)
    return shlex.join(("kvplan", *call.arguments)), broken(call)


KINDS: Mapping[str, Judge] = {
    "profiles": _profile,
    "files": _file,
    "invariants": invariants.judge,
    "faults": faults.judge,
}
SHARES = {"profiles": 0.5, "files": 0.25, "invariants": 0.15, "faults": 0.1}  # of the time


class Case(NamedTuple):
    """One of its kind, which follows from seed and number."""

    kind: str
    seed: int
    number: int

    def __str__(self) -> str:
        return f"{self.kind}/{self.seed}/{self.number}"


class Failure(NamedTuple):
    """A case that broke promises: what it called, and which."""

    case: Case
    call: str
    promises: list[str]


@dataclass
class Counts:
    """Cases by kind, and those that failed."""

    cases: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)


def judged(case: Case, folder: Path) -> Failure | None:
    """Run a case in a folder; None where nothing broke."""
    rng = np.random.default_rng([*case.kind.encode(), case.seed, case.number])
    call, promises = KINDS[case.kind](rng, folder)
    return Failure(case, call, promises) if promises else None


def _timed(case: Case) -> tuple[Failure | None, float]:
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        failure = judged(case, Path(folder))
    return failure, time.perf_counter() - start


def campaign(seconds: float, seed: int, processes: int, kinds: tuple[str, ...]) -> Iterator[Counts]:
    """Run cases until time is up; the counts after each."""
    counts, numbers = Counts(), Counter[str]()
    end = time.monotonic() + seconds

    def following() -> Case:
        kind = min(kinds, key=lambda name: counts.seconds[name] / SHARES[name])
        numbers[kind] += 1
        return Case(kind, seed, numbers[kind])

    pool = ProcessPoolExecutor(processes, initializer=prepare)
    running: dict[Future[tuple[Failure | None, float]], Case] = {}
    while running or time.monotonic() < end:
        while len(running) < 2 * processes and time.monotonic() < end:
            case = following()
            running[pool.submit(_timed, case)] = case
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            case = running.pop(future)
            counts.cases[case.kind] += 1
            try:
                failure, took = future.result()
            except BrokenProcessPool:
                failure, took = Failure(case, "", ["its process died, or that of a case beside it"]), 0.0
                pool = ProcessPoolExecutor(processes, initializer=prepare)
            counts.seconds[case.kind] += took
            if failure:
                counts.failures.append(failure)
        yield counts
    pool.shutdown()
