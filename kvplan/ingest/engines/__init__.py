"""Engines: what each logs when it starts and as it runs, and what it calls its metrics; a module each.

A module has a record `LOG`, and `METRICS` where kvplan reads them. Nothing else need know of it.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kvplan.errors import ProfileError
from kvplan.ingest.reader import collected
from kvplan.model import Parallelism

if TYPE_CHECKING:
    from kvplan.ingest.timing.collector import Collector

NUMBER = r"(-?\d[\d,]*)"
DRAFTED = re.compile(
    r"Drafted: (\d+) tokens, Per-position acceptance rate: ((?:[01]\.\d{1,9}, )*[01]\.\d{1,9})"
)
WITH_DRAFTS = "with drafts"  # begins the note on times that include them
_AT_ONCE = 1 << 18  # characters of lines
_REQUEST = ' HTTP/1.1"'  # in lines of web servers, which are most of many logs and say nothing
_LONGEST, _BEFORE = 200_000, 1_000  # of a line, and of these before its first word
_LARGEST_BLOCK = 1 << 13  # tokens
_MOST = 1e18  # of what is counted, tokens or seconds
_TELLING = 0.05  # requests, of which rounding leaves a tenth open
# tell engines apart which serve requests of their own; the last ones are Ray's
_REPLICA = ("engine", "dp_rank", "instance", "pod", "replica", "ReplicaId", "WorkerId")
_RANK = ("tp_rank", "pp_rank", "moe_ep_rank", "ep_rank", "pid")  # parts of one engine, which all say the same

_PARALLEL = re.compile(
    r"(?:(?<![A-Za-z])(DP|TP|PP|EP|rank)[ :=]?|(Engine)(?:Core)?[ _](?=\d)|\[\d+,(?=\d+\]<std))(\d+)"
)
_SERVICE = re.compile(  # docker compose, kubectl --prefix, stern, journald
    r"(?:\x1b\[[\d;]*m)*(?:([A-Za-z0-9][\w.-]*) *\| |\[(pod/[^\]\s]+)\] "
    r"|([a-z0-9][a-z0-9.-]* [a-z0-9][a-z0-9-]*) "
    r"(?=\(\w+ pid=|(?:INFO|WARNING|ERROR) \d|\[(?:\d|TM\]|TensorRT-LLM\])|\d{4}-\d\d-\d\d[ T])"
    r"|(?:[A-Z][a-z]{2} +\d+ [\d:]{8}|\d{4}-\d\d-\d\dT\S+) \S+ ([\w.@-]+)\[\d+\]: )"
)


class Setting:
    """Names of settings that a start logs; iteration times depend on those in `OF_TIMES`."""

    BLOCK, SEQS, BATCHED = "block_tokens", "max_num_seqs", "max_num_batched_tokens"
    RANKS = TP, DP, EP, PP, DCP = tuple(f"{field.name}_parallel" for field in fields(Parallelism))
    # whether experts are on all GPUs; whether attention has ranks of its own, which share the GPUs that TP counts
    ALL_EXPERTS, ATTENTION = "enable_expert_parallel", "attention_dp"
    VERSION = "version"
    LENGTH, DRAFTS, CACHING = "max_model_len", "num_speculative_tokens", "enable_prefix_caching"
    MEMORY = "memory"  # for KV cache, GiB
    ARGUMENTS, UNIFIED = "arguments", "unified"  # the lines that say so
    OF_TIMES = MODEL, KV_DTYPE, QUANTIZATION = "model", "kv_cache_dtype", "quantization"


Labels = Mapping[str, str]
Ranks = tuple[tuple[str, str], ...]  # who writes a line: (("DP", "0"), ("TP", "1"))
Key = tuple[tuple[str, str], ...]


class Capacity(NamedTuple):
    """A statement of a KV capacity; the product of the groups of `form` is the number, of tokens unless `in_blocks`.

    `of_pool` is that of one pool, of which a rank can have several; a total counts before it. Blocks `of_any_size` have
    no default: where no line states or settles their size, they say nothing.
    """

    form: re.Pattern[str]
    in_blocks: bool = False
    of_pool: bool = False
    of_any_size: bool = False


class StatisticsReader(Protocol):
    """Adds samples of iterations to a collector, line by line, and what is left at the end of the log."""

    def line(self, number: int, text: str) -> None: ...
    def end(self) -> None: ...


class EngineLog(NamedTuple):
    """Expressions for what one engine logs; None where it logs no such thing."""

    engine: str
    looked_for: str  # its statements of a capacity, as a message lists them
    # a line without any says nothing; looking for them is far cheaper than the expressions
    words: tuple[str, ...]
    capacities: tuple[Capacity, ...]
    # by name, and what else it says; of two in a line the later in this list counts
    limits: tuple[tuple[str, re.Pattern[str]], ...] = ()
    start: str = ""  # an expression for the line that begins a start
    arguments: re.Pattern[str] | None = None  # all that are not the engine's defaults
    failures: str = ""  # an expression for why a start ended, and
    ended: str = ""  # for that it did, where nothing says why
    limits_follow: bool = False  # the capacity too
    largest_pool: bool = False  # of one start counts, and not the last
    # what else a line says, with the numbers of its groups filled in
    remarks: tuple[tuple[re.Pattern[str], str], ...] = ()
    # percent of prompt tokens that the prefix cache found, time and again
    hit_rate: re.Pattern[str] | None = None
    computed_and_found: re.Pattern[str] | None = None  # prompt tokens of a batch
    # a length and how many requests of it fit, right after the capacity
    concurrency: re.Pattern[str] | None = None
    accepted: re.Pattern[str] | None = None  # tokens drafted since the last, and shares of drafts by position
    unified: re.Pattern[str] | None = None  # layers of several kinds all get the memory of full attention
    block_tokens: int = 1  # of a block, where the log does not say
    whole_blocks: bool = True  # a capacity is a multiple of them
    running: tuple[str, ...] = ()  # words of the lines that it logs as it runs, which `statistics` reads
    statistics: "Callable[[Collector], StatisticsReader] | None" = None

    def settings_of_times(self, line: str) -> dict[str, str] | None:
        """Read the arguments that iteration times depend on; None where a line does not list all of them."""
        if self.arguments is None or not self.arguments.search(line):
            return None
        ranks = (*Setting.RANKS, Setting.ALL_EXPERTS, Setting.ATTENTION)
        names = (*ranks, Setting.DRAFTS, *Setting.OF_TIMES)
        return {
            name: match[1] for name, form in self.limits if name in names and (match := form.search(line))
        }

    def says(self, line: str) -> bool:
        """Tell whether a line states a capacity, or that or why a start begins or fails."""
        forms = [kind.form.pattern for kind in self.capacities]
        return any(form and re.search(form, line) for form in (*forms, self.start, self.failures))


class Telling(NamedTuple):
    """A line that says something, and whose it is of those that engines log as they run; None of others."""

    number: int
    text: str
    log: EngineLog | None


def telling(numbered: Iterable[tuple[int, str]], words: Iterable[str] = ()) -> Iterator[Telling]:
    """Yield the lines with a word of any engine or one of `words`; many lines are searched at once.

    >>> lines = [(1, "one"), (2, "two"), (3, "Avg prompt throughput: 3")]
    >>> [(number, log and log.engine) for number, _, log in telling(lines, ["on"])]
    [(1, None), (3, 'vLLM')]
    """
    known = dict.fromkeys((*_WORDS, *words))
    several: list[tuple[int, str]] = []
    length = 0
    for each in numbered:
        several.append(each)
        length += len(each[1])
        if length > _AT_ONCE:
            yield from _with_words(several, known)
            several, length = [], 0
    yield from _with_words(several, known)


def _with_words(numbered: Sequence[tuple[int, str]], words: Collection[str]) -> Iterator[Telling]:
    """Search first for lines of running engines, which can be nearly all: few are left for other words."""
    numbered = [each for each in numbered if _REQUEST not in each[1]]
    running = _places([line for _, line in numbered], _RUNNING)
    rest = [index for index in range(len(numbered)) if index not in running]
    others = _places([numbered[index][1] for index in rest], words)
    for index in sorted((*running, *(rest[place] for place in others))):
        number, line = numbered[index]
        if len(line) > _LONGEST:  # nobody writes more than that
            at = min(place for word in (*_RUNNING, *words) if (place := line.find(word)) >= 0)
            line = line[max(0, at - _BEFORE) :][:_LONGEST]
        yield Telling(number, line, _RUNNING.get(running.get(index, "")))


def _places(lines: Sequence[str], words: Iterable[str]) -> dict[int, str]:
    """Tell which lines have one of these words, and the first of them."""
    text = "\n".join(lines)
    ends = list(accumulate(len(line) + 1 for line in lines))
    word_by_line: dict[int, str] = {}
    for word in words:
        place = text.find(word)
        while place >= 0:
            index = bisect_right(ends, place)
            word_by_line.setdefault(index, word)
            place = text.find(word, ends[index])
    return word_by_line


class KvCapacity(NamedTuple):
    """Of one engine, tokens; None where the size of blocks is not exported."""

    memory_tokens: int
    block_tokens: int | None


class EngineMetrics(NamedTuple):
    """Names of an engine's metrics, after a prefix and a colon; of several the first present one counts."""

    engine: str
    prefix: str
    prompt: str  # histograms of lengths
    generation: str
    without_histograms: str  # why a server may not export lengths
    requests: tuple[str, ...] = ()
    preemptions: tuple[str, ...] = ()
    # counters of prompt tokens that the prefix cache found, and of those looked up
    hits: tuple[tuple[str, str], ...] = ()
    hit_rates: tuple[str, ...] = ()  # gauges of what it finds
    # counters of prompt tokens that a KV connector loaded, and of those that it was asked for
    loaded: tuple[str, str] | None = None
    # counters of iterations with drafts, and of those accepted at each position
    drafts: tuple[str, str] | None = None
    itl: tuple[str, ...] = ()  # histograms of times between two tokens of a request
    itl_of_tokens: bool = False  # with drafts too; else they are between two iterations
    capacity: str = ""
    capacities: "Callable[[Snapshot], tuple[list[KvCapacity], list[str]]]" = lambda _: ([], [])  # with notes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Samples by name, of one model; time by their timestamps, and the start of the server, seconds since 1970."""

    source: str
    sha256: str
    names: EngineMetrics
    models: tuple[str, ...]
    samples: Mapping[str, list[tuple[Labels, float]]]
    time_s: float | None
    modified_s: float
    started_s: float | None = None
    notes: tuple[str, ...] = ()

    def series(self, name: str) -> dict[Key, float]:
        """Return values by their labels; those that differ only in the reporting rank are one."""
        series: dict[Key, float] = {}
        read: dict[Key, float] = {}
        for labels, value in self.samples.get(name, ()):
            if not 0 <= value < math.inf:
                raise ProfileError(self.source, f"{value:g}; must be a number, at least 0", key=name)
            if value > _MOST:
                raise ProfileError(self.source, f"{value:g} cannot be", key=name)
            if read.setdefault(tuple(sorted(labels.items())), value) != value:
                several = (
                    "two values for the same labels; a label such as instance tells several servers apart"
                )
                raise ProfileError(self.source, several, key=name)
            key = tuple(sorted((k, v) for k, v in labels.items() if k not in _RANK))
            series[key] = max(series.get(key, 0.0), value)
        return series

    def first(self, names: Iterable[str]) -> str | None:
        """Return the first name that has samples."""
        return next((name for name in names if name in self.samples), None)

    def engines(self) -> int:
        """Count the engines with requests of their own, at least 1."""
        of = self.names
        names = (f"{of.prompt}_count", f"{of.generation}_count", *of.requests, of.capacity)

        def replicas(name: str) -> int:
            every = (labels for labels, _ in self.samples.get(name, ()))
            return len({tuple((key, labels[key]) for key in _REPLICA if key in labels) for labels in every})

        return max(1, *map(replicas, names))


def blocks_of(snapshot: "Snapshot", blocks: str, tokens_per_block: str) -> list[KvCapacity]:
    """Multiply blocks by the tokens of one, both exported as numbers."""
    size = int(
        max((value for _, value in snapshot.samples.get(tokens_per_block, ()) if value < 1e9), default=0)
    )
    counts = (value for _, value in snapshot.samples.get(blocks, ()))
    return [KvCapacity(int(count) * size, size) for count in counts if size > 0 and 1 <= count < 1e12]


def argument(name: str) -> re.Pattern[str]:
    """Match ``name=1``, ``'name': 1``, ``--name 1``; not as the end of a longer name.

    Examples
    --------
    >>> [bool(argument("block_size").search(text)) for text in ("--block-size 32", "mamba_block_size=64")]
    [True, False]
    """
    return re.compile(rf"(?<![\w-])(?:--)?{name.replace('_', '[_-]')}['\"]?\s?[:= ]\s?['\"]?(\d+)")


def settled_block(blocks: int, tokens: int, requests: float) -> int | None:
    """Tell the size of blocks from how many requests of so many tokens fit, rounded to two digits; None if open.

    It is the only power of two that fits, or else the only multiple of eight.

    Examples
    --------
    >>> settled_block(2634, 4096, 82.31), settled_block(9362, 32_768, 4.57), settled_block(3, 100_000, 0.01)
    (128, 16, None)
    """
    if blocks < 1 or requests < _TELLING:
        return None
    low, high = ((requests + half) * tokens / blocks for half in (-0.005, 0.005))
    sizes = [size for size in range(8, _LARGEST_BLOCK + 1, 8) if low <= size <= high]
    powers = [size for size in sizes if size.bit_count() == 1]
    return next((few[0] for few in (powers, sizes) if len(few) == 1), None)


def setting(name: str) -> re.Pattern[str]:
    """Match ``name=text`` and ``'name': 'text'``, unless that is None or auto."""
    return re.compile(rf"(?<![\w-]){name}['\"]?\s?[:=]\s?['\"]?(?!None\b|auto\b)([^\s,'\")}}]+)")


@lru_cache(64)  # of lines of one second
def ranks_of(prefix: str) -> Ranks:
    """Tell who writes a line: ``(EngineCore_DP0 pid=7)`` is (("DP", "0"),)."""
    return tuple((m[1] or m[2] or "rank", m[3]) for m in _PARALLEL.finditer(prefix))


def service_of(line: str) -> str:
    """Tell whose line it is in a log of several services, by what stands before it; empty where nothing does.

    Examples
    --------
    >>> [service_of(f"{name}INFO 10-02") for name in ("chat-1  | ", "[pod/a-0/vllm] ", "a-0 vllm ", "")]
    ['chat-1', 'pod/a-0/vllm', 'a-0 vllm', '']
    """
    match = _SERVICE.match(line)
    return next(filter(None, match.groups()), "") if match else ""


def version_of(text: str) -> tuple[int, int]:
    """Read the first two numbers of a version."""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


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
_RUNNING = {word: log for log in LOGS for word in log.running}
_WORDS = tuple(word for log in LOGS for word in log.words)  # of lines that say something else
METRICS: tuple[EngineMetrics, ...] = collected(__name__, __path__, "METRICS")
