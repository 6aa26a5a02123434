"""Loops with a policy in them: plain Python for short runs, compiled for long ones, kept on disk between processes.

A compiled loop is one function for each policy, made from the same code, so policies cost each other nothing.
"""

import os
import sys
from collections import defaultdict
from collections.abc import Callable
from threading import Lock
from time import perf_counter
from typing import Any, NamedTuple

from kvplan import compiling
from kvplan.model import iteration_time
from kvplan.simulation.kernels import KERNELS
from kvplan.simulation.outcome import Ending
from kvplan.simulation.state import KNOWN_WHEN_COMPILED, Features, State

# Of plain Python: what has not ended by then goes on compiled, if the loop is on disk, and if it is not.
_PLAIN_SECONDS, _PLAIN_SECONDS_BEFORE_COMPILING = 0.1, 0.5

FormBatch = Callable[[State], None]
Loop = Callable[..., int]  # of a state, or of several, and of whole numbers


class Program(NamedTuple):
    """A loop into which a policy can be put.

    Attributes
    ----------
    name
        Of its files.
    bound
        It with a policy in it, as plain Python.
    parts
        The functions that it is made of beside kernels.
    """

    name: str
    bound: Callable[[FormBatch], Loop]
    parts: tuple[Callable[..., Any], ...]

    def file(self, policy: FormBatch, features: Features) -> str | None:
        """Where it is kept compiled: by the texts of all modules that can go into it."""
        key = (self.name, policy, features)
        if key not in _files:
            used: list[Any] = [f for f in KERNELS if _is_of_one_replica(f.__module__)]
            modules = {sys.modules[f.__module__] for f in (*used, *self.parts, policy, State, iteration_time)}
            kind = "".join(f"-{name}" for name, given in features._asdict().items() if given)
            which = f"{policy.__module__}.{policy.__qualname__} {kind}"
            _files[key] = compiling.file(self.name + kind, modules, which)
        return _files[key]

    def compiled(
        self, policy: FormBatch, features: Features, goes_on: Callable[[], bool] = lambda: True
    ) -> Loop | None:
        """It with a policy in it, compiled by this process, or by an earlier one; None if it is not to go on."""
        key = (self.name, policy, features)
        with _locks[key]:
            if key not in _loops:
                file = self.file(policy, features)
                known = dict(zip(KNOWN_WHEN_COMPILED, features, strict=True))
                made = compiling.compiled(self.bound(policy), State, file, known, goes_on)
                if made is None:
                    return None
                _loops[key] = made
            return _loops[key]

    def at_hand(self, policy: FormBatch, features: Features) -> bool:
        """Whether it is there compiled: in this process, or left on disk by an earlier one."""
        if (self.name, policy, features) in _loops:
            return True
        file = self.file(policy, features)
        return file is not None and os.path.isfile(file)

    def is_worth_it(self, policy: FormBatch, features: Features, seconds: float) -> bool:
        """Whether to go on compiled after so many seconds of plain Python; at once where a run has loaded it."""
        if (self.name, policy, features) in _loops:
            return True
        if seconds <= _PLAIN_SECONDS:
            return False
        return seconds > _PLAIN_SECONDS_BEFORE_COMPILING or self.at_hand(policy, features)


def _is_of_one_replica(module: str) -> bool:
    """Whether a module of kernels is for every loop: what is loaded for fleets must not change others' files."""
    return module.startswith(__package__) and not module.startswith(f"{__package__}.fleet")


_Key = tuple[str, FormBatch, Features]
_files: dict[_Key, str | None] = {}
_loops: dict[_Key, Loop] = {}  # of this process
_locks: defaultdict[_Key, Lock] = defaultdict(Lock)


def until_it_ends(
    program: Program,
    policy: FormBatch,
    features: Features,
    step: Callable[[Loop, bool], Ending | None],
    goes_on: Callable[[], bool],
    compile: bool | None,
    announce: Callable[[bool], None] | None,
) -> Ending:
    """Make steps with a loop, told whether it is compiled, until one says how the run has ended.

    `compile` and `announce` are as for `kvplan.simulation.engine.run`.
    """
    started = perf_counter()
    while True:
        fast = compile or (
            compile is None and program.is_worth_it(policy, features, perf_counter() - started)
        )
        if fast and announce is not None and not program.at_hand(policy, features):
            announce(compiling.lasts())
            announce = None
        loop = program.compiled(policy, features, goes_on) if fast else program.bound(policy)
        if loop is None:
            return Ending.INTERRUPTED
        ending = step(loop, bool(fast))
        if ending is not None:
            return ending
        if not goes_on():
            return Ending.INTERRUPTED
