"""An engine's names for the settings of a profile.

A further engine is a module with its record, `ENGINE`, and its name in `kvplan.engine.EngineName`.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from kvplan.engine import numbers
from kvplan.ingest.model.hardware import tables
from kvplan.model import Engine as Served
from kvplan.model import Parallelism, Replica, ServingModel
from kvplan.model.kv_layout import KvLayout
from kvplan.model.replica import Offload

_tables = cache(partial(tables, Path(__file__).with_name("flags.toml")))


class Flag(NamedTuple):
    """A setting to write; a value of None where the flag is all."""

    flag: str
    value: str | None
    why: str

    @property
    def words(self) -> str:
        """Arguments of a command."""
        return self.flag if self.value is None else f"{self.flag} {self.value}"


class Known(NamedTuple):
    """A flag of flags.toml; `section` is that of the configuration file it belongs to, if any."""

    takes: str | Mapping[str, str]
    since: str = ""
    source: str = ""
    after: str = ""
    section: str = ""
    streams: str = ""
    default: str = ""

    def is_in(self, version: str) -> bool:
        """Tell whether a version has the flag; one without a name does."""
        return not (version and self.since) or numbers(version) >= numbers(self.since)

    def is_default_in(self, version: str) -> bool:
        """Tell whether a version does so without the flag."""
        return not version or numbers(version) >= numbers(self.default)


def version_of(engine: "Engine", model: ServingModel) -> str:
    """Return the version of an engine; empty where it is not known, or the model's is another engine."""
    return model.engine.version if model.engine is not None and model.engine.name == engine.name else ""


def parallel_flags(shared: Mapping[str, int]) -> Iterator[Flag]:
    """Set numbers of GPUs and ranks by flag, where there are several."""
    for flag, number in shared.items():
        if number > 1:
            yield Flag(flag, str(number), "the profile's GPUs and ranks")


class Queue(NamedTuple):
    """A bound on requests that wait; `counts_running`: those that run count, too."""

    flag: str
    counts_running: bool


class Engine(NamedTuple):
    """An engine that settings can be written for.

    Attributes
    ----------
    spellings
        Flags by parameter of the engine's policies, and by key of `[model]` of a profile.
    starts
        Begins its command; `{}` is the model.
    cache_off, cache_on
        Switch the prefix cache off, and on where it is not by default.
    first_chunk
        Makes the engine admit by the first chunk; None where it has a rule of its own.
    queue
        None where the engine has no bound on its queue.
    finds_prefixes
        True where its policies have a prefix cache.
    layers
        Says what layers hold where that is no default of the engine; versions without such a flag do so.
    host_tier
        Sets the host tier of a replica; None where it is not known how.
    drafts
        Sets the number of drafts in an iteration; None where its policies have none.
    batch_wait
        Has prompts wait for others; None where the engine does not.
    by_priority
        Have classes go first by their priority; empty where it does not.
    priority_step
        Difference of clients' priorities from class to class.
    parallel
        Sets how GPUs share the model.
    limits_all_ranks
        True where limits are of all data-parallel ranks together, not of each.
    assigns
        Between a flag and its value.
    note
        Assumption of its simulation.
    """

    name: str
    title: str
    starts: str
    spellings: Mapping[str, str]
    cache_off: Flag
    cache_on: Flag | None = None
    first_chunk: Flag | None = None
    queue: Queue | None = None
    finds_prefixes: bool = True
    layers: Callable[[KvLayout], Iterator[Flag]] = lambda _: iter(())
    host_tier: Callable[[Offload, Replica], Iterator[Flag]] | None = None
    drafts: Callable[[int], Flag] | None = None
    batch_wait: Callable[[Served, Replica], Iterator[Flag]] | None = None
    by_priority: tuple[Flag, ...] = ()
    priority_step: int = 1
    parallel: Callable[[Parallelism], Iterator[Flag]] = lambda _: iter(())
    limits_all_ranks: bool = False
    assigns: str = " "
    note: str = ""

    @property
    def flags(self) -> Mapping[str, Known]:
        """All flags that kvplan may write for it."""
        return {flag: Known(**table) for flag, table in _tables()[self.name].items()}

    def since(self, flag: str) -> str:
        """Say which versions have a flag, and notes on it."""
        known = self.flags[flag]
        source = f": {known.source}" if known.source else ""
        versions = f"{self.title} {known.since} and later{source}." if known.since else ""
        return f"{versions} {known.after}".strip()
