"""What an engine is: what can be set, which policy simulates it, and what else there is to say.

A further engine is a module with its record, `ENGINE`, and a line in `kvplan.engines.EngineName`.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import NamedTuple

from kvplan.model import Plan, Replica, ServingModel
from kvplan.model.offload import Offload
from kvplan.report.assembly import Report


class Kind(StrEnum):
    """What a setting limits; its name in the JSON."""

    RUNNING = "running_requests"
    WATERMARK = "watermark"
    TOKENS = "batched_tokens"
    SCHEDULER = "scheduler"
    CONSERVATIVENESS = "conservativeness"


LIMITS = {Kind.RUNNING: "max_num_seqs", Kind.TOKENS: "max_num_batched_tokens"}  # in `[gpu]` of a profile


class Value(NamedTuple):
    """A value that might gain."""

    text: str  # as the engine wants it
    block: str  # key of the report that it follows from
    why: str
    number: float | None = None  # of the policy's parameter; None where another policy stands for the value


def _always(model: ServingModel) -> bool:
    return True


class Setting(NamedTuple):
    """Something that can be set.

    Attributes
    ----------
    since
        Since when it exists, as far as that was verified.
    values
        Those that follow from a report.
    parameter
        Of the policy.
    policy
        Simulated in place of the engine's, where no parameter does it.
    applies
        Whether it is the one to set for a model, where an engine has several of a kind.
    section
        Of the configuration file, if it is inside one.
    earlier
        What does it in earlier versions, with its value in the place of {}.
    """

    kind: Kind
    flag: str
    since: str
    values: Callable[[Report, ServingModel], Iterator[Value]]
    parameter: str = ""
    policy: str = ""
    applies: Callable[[ServingModel], bool] = _always
    section: str = ""
    earlier: str = ""


class Mention(NamedTuple):
    """A setting that is not simulated, with a value where one follows from the plan; `version` is since when."""

    flag: str
    value: str | None
    why: str
    version: str


class Planned(NamedTuple):
    """A setting that follows from the plan without being tried; value None where the flag is all.

    It prevents what does not happen in runs from an empty replica, or makes the engine what the profile says it is.
    """

    flag: str
    value: str | None
    why: str
    version: str
    section: str = ""


class Queue(NamedTuple):
    """A bound on requests that wait; `counts_running`: those that run count, too."""

    flag: str
    counts_running: bool
    version: str


def _no_mentions(report: Report, model: ServingModel, plan: Plan, cap: float) -> tuple[Mention, ...]:
    return ()


class Engine(NamedTuple):
    """An engine that settings can be written for.

    Attributes
    ----------
    policy
        Simulates it with its defaults.
    note
        What its simulation takes for granted.
    mentions
        Settings that are not simulated; from report, model, plan and most running requests, infinite without a cap.
    assigns
        Between a setting and its value.
    cache_off
        Switches the prefix cache off.
    queue
        None where the engine has no bound on its queue.
    finds_prefixes
        Whether its policy has a prefix cache.
    host_tier
        Sets the host tier of a replica; None where it is not known how.
    drafts
        Sets how many drafts the profile has in an iteration, of a number; None where the policy knows of none.
    """

    name: str
    title: str
    policy: str
    settings: tuple[Setting, ...]
    cache_off: Planned
    queue: Queue | None = None
    finds_prefixes: bool = True
    note: str = ""
    mentions: Callable[[Report, ServingModel, Plan, float], tuple[Mention, ...]] = _no_mentions
    assigns: str = " "
    drafts: Callable[[int], Planned] | None = None
    host_tier: Callable[[Offload, Replica], Iterator[Planned]] | None = None

    def settings_for(self, model: ServingModel) -> tuple[Setting, ...]:
        """What can be set, one of a kind."""
        return tuple(setting for setting in self.settings if setting.applies(model))
