"""What a policy is: what it needs of the engine, and how it forms the batch of an iteration.

A further policy is a module with a function marked `kernel` that forms batches from the actions of
`kvplan.simulation.actions`, a function that prepares a run, and a `POLICY` made of both; and its line in `POLICIES`.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from kvplan.errors import UsageError
from kvplan.model import Plan, ServingModel
from kvplan.simulation.requests import Requests
from kvplan.simulation.state import Setup, State

LARGEST = 10**12  # of a parameter, as of the memory: what is counted with it stays within 64 bits
_NEVER = 1 << 40  # stages; a group with this end keeps its members until they are done


class Scenario(NamedTuple):
    """What is to be run, before a policy is chosen.

    Attributes
    ----------
    model : ServingModel
    plan : Plan
    requests : Requests
    names : tuple of str
        Classes that the requests belong to; of a trace there is one.
    """

    model: ServingModel
    plan: Plan
    requests: Requests
    names: tuple[str, ...]


class Settings(NamedTuple):
    """Parameters as they were set for one policy; those it has not asked for are mistakes."""

    policy: str
    given: Mapping[str, tuple[float, ...]]

    def numbers(self, name: str) -> tuple[float, ...] | None:
        """A list of numbers; None where it is not set."""
        return self.given.get(name)

    def number(self, name: str, default: float) -> float:
        """A single number; one that is set is `LARGEST` at most.

        Examples
        --------
        >>> Settings("rate-limited", {"beta": (0.5,)}).number("beta", 1.0)
        0.5
        """
        values = self.given.get(name)
        if values is None:
            return default
        if len(values) != 1:
            raise UsageError(f"{self.policy}.{name} = {_written(values)}: one number is wanted")
        self._refuse_beyond(name, values, LARGEST)
        return values[0]

    def counts(self, name: str, size: int, what: str, most: int = LARGEST) -> tuple[int, ...] | None:
        """A list of whole numbers from 1 to `most`, `size` of them; None where it is not set."""
        values = self.given.get(name)
        if values is None:
            return None
        self._refuse_beyond(name, values, most)
        if len(values) != size or any(v < 1 or v != int(v) for v in values):
            raise UsageError(
                f"{self.policy}.{name} = {_written(values)}: {size} whole numbers above 0 are wanted, {what}"
            )
        return tuple(map(int, values))

    def _refuse_beyond(self, name: str, values: tuple[float, ...], most: int) -> None:
        if any(math.isnan(v) or v > most for v in values):
            raise UsageError(f"{self.policy}.{name} = {_written(values)}: at most {most:,}")


def _written(values: tuple[float, ...]) -> str:
    return ",".join(f"{v:g}" for v in values)


class Policy(NamedTuple):
    """A way to serve.

    Attributes
    ----------
    summary : str
        What it does, in a line.
    parameters : mapping of str to str
        What can be set, with a line about each.
    prepare : function
        From a scenario and settings to what the engine needs, and the parameters as they will be run.
    form_batch : function
        Marked `kernel`: advances groups, evicts and admits.
    words : mapping of str to tuple of str
        Parameters that are set by a word, and the words; in settings a word stands as its position.
    """

    summary: str
    parameters: Mapping[str, str]
    prepare: Callable[[Scenario, Settings], tuple[Setup, dict[str, object]]]
    form_batch: Callable[[State], None]
    words: Mapping[str, tuple[str, ...]] = {}


def one_queue(requests: Requests) -> Setup:
    """One queue and one group, which nobody leaves before the end."""
    return Setup(
        queue_of=np.zeros(requests.arrival_s.size, dtype=np.int64),
        queues=1,
        until=np.array([_NEVER]),
        knobs=np.zeros(0),
    )
