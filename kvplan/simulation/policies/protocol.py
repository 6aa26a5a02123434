"""Contract of a policy: its setup of the engine, and its batch of an iteration.

A further policy is a module of this package with a function marked `kernel` that forms batches from the actions of
`kvplan.simulation.actions`, a function that prepares a run, and its record, `POLICY`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kvplan.errors import UsageError
from kvplan.model import Plan, ServingModel
from kvplan.simulation.initial_state import Setup
from kvplan.simulation.requests import Requests
from kvplan.simulation.state import State

LARGEST = 10**12  # of a parameter, as of the memory: what is counted with it stays within 64 bits
SEQUENCES, TOKENS = "max_num_seqs", "max_num_batched_tokens"
SEATS = (SEQUENCES, "max_running_requests")  # what policies call the most requests that run
LIMITS_OF = {**dict.fromkeys(SEATS, SEQUENCES), TOKENS: TOKENS}  # of `[gpu]`, by parameter
RESOLVE, SHED_AFTER = TIMES = ("resolve", "shed_after")  # parameters in seconds
_NEVER = 1 << 40  # stages; a group with this end keeps its members until they are done


class Scenario(NamedTuple):
    """Model and requests to run, before a policy is chosen."""

    model: ServingModel
    plan: Plan
    requests: Requests
    names: tuple[str, ...]  # of the classes that the requests belong to; of a trace there is one
    seed: int = 0  # of the requests, and of routing at random

    @property
    def looks_up(self) -> bool:
        """True if blocks of requests are looked up: layers of several kinds, or drafts."""
        return self.model.replica.layout is not None or self.requests.drafted is not None


class Settings(NamedTuple):
    """Parameters set for one policy; those it has not asked for are mistakes."""

    policy: str
    given: Mapping[str, tuple[float, ...]]
    varied: tuple[str, ...] = ()  # those of `given` that a grid varies

    def numbers(self, name: str) -> tuple[float, ...] | None:
        """Return a list of numbers; None where it is not set."""
        return self.given.get(name)

    def number(self, name: str, default: float) -> float:
        """Return a single number; one that is set is `LARGEST` at most."""
        values = self.given.get(name)
        if values is None:
            return default
        if len(values) != 1:
            raise UsageError(f"{self.policy}.{name} = {_written(values)}: one number is wanted")
        self._refuse_beyond(name, values, LARGEST)
        return values[0]

    def counts(self, name: str, size: int, what: str, most: int = LARGEST) -> tuple[int, ...] | None:
        """Return a list of whole numbers from 1 to `most`, `size` of them; None where it is not set."""
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
    """A way to serve, and its properties."""

    name: str
    summary: str  # what it does, in a line
    # from a scenario and settings to what the engine needs, and the parameters as they will be run
    prepare: Callable[[Scenario, Settings], tuple[Setup, dict[str, object]]]
    form_batch: Callable[[State], None]  # marked `kernel`: advances groups, evicts and admits
    parameters: Mapping[str, str] = {}  # what can be set, with a line about each
    # parameters that are set by a word, and the words; in settings a word stands as its position
    words: Mapping[str, tuple[str, ...]] = {}
    # models the scheduler of an engine: KV is counted as engines do, tokens computed so far, whatever the profile
    # says about prefill. Others count it by stages.
    engine: bool = False
    # reads decode lengths before they are reached, unless a parameter tells it not to
    knows_lengths: bool = False
    gathers: bool = False  # has requests wait for others, so that fewer of them can wait longer
    # may evict; if not, whoever is admitted stays to the end, as far as the lengths that it goes by are true
    evicts: bool = True
    layers: bool = False  # counts what layers of several kinds hold; others count every token of a request
    drafts: bool = False  # counts what drafts hold and cost
    fetches: bool = False  # admits requests whose prompt another replica has computed
    host_tier: bool = False  # has a tier of host memory behind its prefix cache, where the profile has one
    one_engine: bool = (
        False  # counts what several replicas, or data-parallel ranks, would each count for themselves
    )
    may_livelock: bool = False  # can come to a standstill though every request fits when alone

    @property
    def limits(self) -> frozenset[str]:
        """Limits of `[gpu]` that it keeps; the others change nothing."""
        return frozenset(LIMITS_OF[name] for name in self.parameters if name in LIMITS_OF)

    def lacks(self, model: ServingModel) -> str | None:
        """Name a part of a model that it cannot serve; None: none."""
        if model.replica.layout is not None and not self.layers:
            return "layers of several kinds"
        if model.fleet is not None and model.fleet.is_split and not self.fetches:
            return "prefill and decode apart"
        if self.one_engine and (model.fleet is not None or model.replica.ranks > 1):
            return "several replicas or data-parallel ranks"
        if model.replica.ranks > 1 and not self.engine:
            return "data-parallel ranks"
        return "drafts" if model.drafts is not None and not self.drafts else None

    def set_up(self, scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
        """Prepare a run at one replica, or at each of its ranks; return setup and parameters."""
        model, replica = scenario.model, scenario.model.replica
        if replica.ranks > 1:
            if replica.offload is not None:
                raise UsageError("data-parallel ranks are not simulated beside a host tier")
            scenario = scenario._replace(model=replace(model, replica=replica.of_rank()))
        return self.prepare(scenario, settings)


def one_queue(requests: Requests) -> Setup:
    """Set up one queue and one group, which nobody leaves before the end."""
    return Setup(
        queue_of=np.zeros(requests.arrival_s.size, dtype=np.int64),
        queues=1,
        until=np.array([_NEVER]),
        knobs=np.zeros(0),
    )


def as_engines_count(requests: Requests) -> Setup:
    """Set up one queue and one group; a request holds the tokens computed so far, a prompt of one at least."""
    return one_queue(requests)._replace(
        first_weight=np.maximum(requests.input_tokens, 1), stages=requests.iterations()
    )
