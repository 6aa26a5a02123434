"""Engines: what each logs when it starts and as it runs, and what it calls its metrics; a module each.

A module has a record `LOG`, and `METRICS` where kvplan reads them. Nothing else need know of it.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kvplan.ingest.reader import collected

if TYPE_CHECKING:
    from kvplan.ingest.metrics import Snapshot
    from kvplan.ingest.timing.collector import Collector

BLOCK, SEQS, BATCHED = "block_tokens", "max_num_seqs", "max_num_batched_tokens"
TP, PP = "tensor_parallel", "pipeline_parallel"
NUMBER = r"(-?\d[\d,]*)"


class Capacity(NamedTuple):
    """A statement of a KV capacity; the first group of `form` is the number, of tokens unless `in_blocks`.

    `of_pool` is that of one pool, of which a rank can have several; a total counts before it.
    """

    form: re.Pattern[str]
    in_blocks: bool = False
    of_pool: bool = False


class StatisticsReader(Protocol):
    """Adds samples of iterations to a collector, line by line, and what is left at the end of the log."""

    def line(self, number: int, text: str) -> None: ...
    def end(self) -> None: ...


class EngineLog(NamedTuple):
    """What one engine logs.

    Attributes
    ----------
    looked_for
        Its statements of a capacity, as a message lists them.
    words
        A line without any of these says nothing; looking for them is far cheaper than the expressions.
    limits : tuple of (str, pattern)
        Limits by name, the number being the first group; of two in a line the later one in this list counts.
    start
        An expression for the line that begins a start; empty where there is none.
    limits_follow
        Limits come after the capacity too.
    hit_rate : pattern or None
        Percent of the prompt tokens that the prefix cache found, stated time and again.
    computed_and_found : pattern or None
        Prompt tokens of a batch, those computed and those found.
    concurrency : pattern or None
        A length in tokens and how many requests of it fit, said right after the capacity.
    accepted : pattern or None
        Tokens drafted since the last such line, and the share of drafts accepted at each position.
    unified : pattern or None
        Layers of several kinds are all given the memory of full attention.
    block_tokens
        Of a block, where the log does not say.
    running : tuple of str
        Words of the lines that it logs as it runs, which `statistics` reads.
    """

    engine: str
    looked_for: str
    words: tuple[str, ...]
    capacities: tuple[Capacity, ...]
    limits: tuple[tuple[str, re.Pattern[str]], ...] = ()
    start: str = ""
    limits_follow: bool = False
    hit_rate: re.Pattern[str] | None = None
    computed_and_found: re.Pattern[str] | None = None
    concurrency: re.Pattern[str] | None = None
    accepted: re.Pattern[str] | None = None
    unified: re.Pattern[str] | None = None
    block_tokens: int = 1
    running: tuple[str, ...] = ()
    statistics: "Callable[[Collector], StatisticsReader] | None" = None

    def says(self, line: str) -> bool:
        """Tell whether a line states a capacity, or what ran."""
        return any(word in line for word in self.running) or any(
            kind.form.search(line) for kind in self.capacities
        )


class KvCapacity(NamedTuple):
    """Of one engine, tokens; None where the size of blocks is not exported."""

    memory_tokens: int
    block_tokens: int | None


class EngineMetrics(NamedTuple):
    """What an engine calls its metrics, after a common prefix and a colon; the first that is there counts.

    `hits` are counters of prompt tokens that the prefix cache found and of those looked up, `hit_rates` gauges of what
    it finds; `drafts` are counters of iterations with drafts and of those accepted at each position. `capacity` names
    the metric, and `capacities` reads it for each engine, with notes; `without_histograms` says why a server may not
    export lengths.
    """

    engine: str
    prefix: str
    prompt: str
    generation: str
    requests: tuple[str, ...]
    preemptions: tuple[str, ...]
    hits: tuple[tuple[str, str], ...]
    hit_rates: tuple[str, ...]
    drafts: tuple[str, str] | None
    capacity: str
    capacities: "Callable[[Snapshot], tuple[list[KvCapacity], list[str]]]"
    without_histograms: str


def argument(name: str) -> re.Pattern[str]:
    """Match ``name=1``, ``'name': 1``, ``--name 1``; not as the end of a longer name.

    Examples
    --------
    >>> [bool(argument("block_size").search(text)) for text in ("--block-size 32", "mamba_block_size=64")]
    [True, False]
    """
    return re.compile(rf"(?<![\w-])(?:--)?{name.replace('_', '[_-]')}['\"]?\s?[:= ]\s?['\"]?(\d+)")


def whole(digits: str) -> int:
    """Read a number with thousands separators; one too long to be meant is only known to be large."""
    plain = digits.replace(",", "")
    return int(plain) if len(plain) <= 18 else 10**18


def whole_label(text: str | None) -> int | None:
    """Read a positive whole number of a label; None for "None" and whatever else."""
    return int(text) if text and re.fullmatch(r"[1-9]\d{0,17}", text) else None


def numbers(match: re.Match[str] | None) -> list[float] | None:
    """Read the numbers of a line; None where one of them cannot be, or the line has another form.

    Examples
    --------
    >>> numbers(re.search("([0-9]+) of ([0-9.]+)", "3 of 1.5")), numbers(None)
    ([3.0, 1.5], None)
    >>> numbers(re.search("([0-9]+)", "9" * 400))
    """
    try:
        values = [float(text) for text in match.groups()] if match else []
    except ValueError:
        return None
    return values if values and max(values) <= 1e12 else None


LOGS: tuple[EngineLog, ...] = collected(__name__, __path__, "LOG")
METRICS: tuple[EngineMetrics, ...] = collected(__name__, __path__, "METRICS")
