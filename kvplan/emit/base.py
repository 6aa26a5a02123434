"""Names that an engine has for what a profile says.

A further engine is a module with its record, `ENGINE`, and its name in `kvplan.engine.EngineName`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from kvplan.model import Engine as Served
from kvplan.model import Parallelism, Replica
from kvplan.model.replica import Offload


class Spelling(NamedTuple):
    """Name that an engine has for a parameter of its policy; `since` is the version that has it, if that is known."""

    flag: str
    since: str = ""


class Flag(NamedTuple):
    """A setting to write, in a `section` of the configuration file if it is inside one; None where the flag is all."""

    flag: str
    value: str | None
    why: str
    since: str = ""
    section: str = ""


def parallel_flags(numbers: Mapping[str, int], since: str = "") -> Iterator[Flag]:
    """Set numbers of GPUs and ranks by flag, where there are several."""
    for flag, number in numbers.items():
        if number > 1:
            yield Flag(flag, str(number), "the profile's GPUs and ranks", since)


class Queue(NamedTuple):
    """A bound on requests that wait; `counts_running`: those that run count, too."""

    flag: str
    counts_running: bool
    since: str


class Engine(NamedTuple):
    """An engine that settings can be written for.

    Attributes
    ----------
    spellings
        By parameter of the engine's policies.
    cache_off
        Switches the prefix cache off.
    first_chunk
        Makes the engine admit by the first chunk; None where it has a rule of its own.
    queue
        None where the engine has no bound on its queue.
    finds_prefixes
        Whether its policies have a prefix cache.
    host_tier
        Sets the host tier of a replica; None where it is not known how.
    drafts
        Sets the number of drafts in an iteration; None where its policies have none.
    batch_wait
        Has prompts wait for others; None where the engine does not.
    parallel
        Sets how GPUs share the model.
    limits_all_ranks
        Whether its limits are of all data-parallel ranks together, and not of each.
    assigns
        Between a flag and its value.
    note
        What its simulation takes for granted.
    """

    name: str
    title: str
    spellings: Mapping[str, Spelling]
    cache_off: Flag
    first_chunk: Flag | None = None
    queue: Queue | None = None
    finds_prefixes: bool = True
    host_tier: Callable[[Offload, Replica], Iterator[Flag]] | None = None
    drafts: Callable[[int], Flag] | None = None
    batch_wait: Callable[[Served, Replica], Iterator[Flag]] | None = None
    parallel: Callable[[Parallelism], Iterator[Flag]] = lambda _: iter(())
    limits_all_ranks: bool = False
    assigns: str = " "
    note: str = ""
