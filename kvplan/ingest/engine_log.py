"""What an engine says about itself as it starts: its KV capacity, and the limits that come with it.

A log may hold several services, of which one is chosen, and several starts: the last one counts, and is an error where
it failed. Within a start every rank may state a capacity: the smallest counts, since a request needs its KV on all of
them. Data-parallel engines are replicas of their own; of them too the smallest is the careful choice. A limit counts
only where it belongs to the same start as the capacity.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.engines import (
    LOGS,
    WORDS,
    Capacity,
    EngineLog,
    Ranks,
    Setting,
    ranks_of,
    running,
    service_of,
    settled_block,
    telling,
    whole,
)
from kvplan.ingest.kv_pool import Pool, find_grown, find_pools, most_blocks, settled
from kvplan.ingest.observed import ObservedDrafts, of_prefix_cache
from kvplan.ingest.text_file import lines_of
from kvplan.model import Replica
from kvplan.model.kv_layout import KvLayout, least_block_tokens
from kvplan.model.parallelism import ALONE, Parallelism
from kvplan.ranges import MAX_MEMORY_TOKENS
from kvplan.units import format_number, format_percent, format_tokens

_START = re.compile("|".join(log.start for log in LOGS if log.start))
_FAILURE = re.compile("|".join(log.failures for log in LOGS if log.failures))
_ENDED = re.compile("|".join(log.ended for log in LOGS if log.ended))
_ERROR = re.compile(r"(?:\w+\.)*\w+(?:Error|Exception): \S")
_TRUTH = {"True": True, "False": False}
_MOST_STATED = 256  # statements of a start: more than engines have ranks
_AFTER = 10  # lines after a capacity that may still tell about it
_OFF = 0.02  # of the capacity: rounding and half-filled blocks explain less
_SHOWN, _REASON = 160, 400  # characters of a statement, and of why a start failed
_BEFORE_MATCH = 60  # of them before what matters, where a line is longer
_LISTED = 8  # earlier statements in a note

_CLOCK = re.compile(r"\d\d:\d\d:\d\d")
_FRACTION = re.compile(r"(?<=:\d\d)[.,]\d+")


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """KV capacity of one engine, and what else its log says; None for what this start does not say.

    `notes` are what was assumed, what else the log says, and what does not fit. `layout` is of layers of several kinds,
    in blocks as this start has them.
    """

    source: str
    engine: str
    memory_tokens: int  # of a pool that layers of several kinds share, pool tokens
    block_tokens: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    line: int  # of the statement used, counted from 1
    stated_in: str  # that line, shortened
    sha256: str  # of the file; empty for lines from elsewhere
    drafts: ObservedDrafts | None
    notes: tuple[str, ...]
    layout: KvLayout | None = None
    prefix_caching: bool | None = None
    parallelism: Parallelism | None = None  # of a replica
    max_model_len: int | None = None
    # in words, by name; "auto" for an engine's default
    settings: Mapping[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()  # keys of [gpu] that are the engine's defaults
    service: str = ""

    @property
    def ranks(self) -> Parallelism | None:
        """How GPUs share the model, by what is stated or left to the engine."""
        return self.parallelism or (ALONE if "gpus" in self.absent else None)


class NoCapacityError(UsageError):
    """A log states no KV capacity, or in blocks of unknown size."""


def read_engine_log(path: Path, base: Replica | None = None, service: str | None = None) -> EngineLimits:
    """Read the last KV capacity that a log states, which may be compressed; bytes that are not UTF-8 do no harm.

    Layers of several kinds are those of `base`, without which blocks of a pool cannot be told from what the log says.
    Of several services in one log, each with a prefix of its own, `service` is the one to read.

    Raises
    ------
    NoCapacityError, UsageError
        The file states no capacity; or cannot be read, or has several services.
    ProfileError
        The last start failed; or its capacity is absurd, or contradicts the maximum concurrency; with its line.
    """
    with lines_of(path, errors="replace") as lines:
        limits = parse_engine_log(lines, lines.source, base, service)
    notes = (*limits.notes, *lines.notes)
    return replace(limits, sha256=lines.sha256, notes=notes)


def parse_engine_log(
    lines: Iterable[str], source: str, base: Replica | None = None, service: str | None = None
) -> EngineLimits:
    """Read the last KV capacity in some lines, which messages call `source`; see `read_engine_log`."""
    readers: dict[str, _Reader] = {}
    for number, line in telling(_numbered(lines), WORDS):
        readers.setdefault(service_of(line), _Reader()).line(number, line)
    stating = {name: reader for name, reader in readers.items() if reader.starts or reader.failure}
    if len(stating) > 1 and service not in stating:
        names = ", ".join(repr(name) if name else "lines without a prefix" for name in stating)
        raise UsageError(f"{source}: lines of {len(stating)} services; choose one with --group: {names}")
    if not stating:
        forms = ", ".join(f"{log.engine}'s {log.looked_for}" for log in LOGS)
        raise NoCapacityError(f"{source}: states no KV capacity; looked for {forms}")
    name = service if service in stating else next(iter(stating))
    stating[name].refuse_failure(source)
    return replace(_limits(stating[name], source, base), service=name)


def _numbered(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    number = 1
    for line in lines:
        yield number, line
        number += not line.endswith("\r")  # of a progress bar: it ends no line of an editor


# -- statements, sorted into starts -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Concurrency:
    tokens: int
    requests: float
    line: int
    text: str


@dataclass(slots=True)
class _Statement:
    """One statement of a capacity; `prefix` is what stands before it, to the second."""

    kind: Capacity
    amount: int
    ranks: Ranks
    prefix: str
    line: int
    text: str
    cut_off: bool = False  # the file ends with its number
    concurrency: _Concurrency | None = None

    @property
    def replica(self) -> Ranks:
        """Which data-parallel engine says it; empty where there is one."""
        return tuple(rank for rank in self.ranks if rank[0] in ("DP", "Engine"))


@dataclass(slots=True)
class _StartUp:
    log: EngineLog
    statements: list[_Statement] = field(default_factory=list)
    stated: dict[str, str] = field(default_factory=dict)
    hit_rate: tuple[float, int] | None = None  # the last one, percent, and its line
    computed: int = 0  # prompt tokens
    cached: int = 0
    drafted: int = 0  # tokens
    accepted: tuple[float, ...] = ()  # of them by position, times drafted tokens
    remarks: dict[str, str] = field(default_factory=dict)  # by their text without numbers: the last counts

    def includes(self, new: _Statement) -> bool:
        """Tell whether a statement is of another rank or another pool of this start, and not of a later start."""
        if len(self.statements) >= _MOST_STATED:  # each is compared with all before it
            return True
        if new.kind.of_pool:  # one for each rank and model; the total comes after all of them
            return all(s.kind.of_pool or s.replica != new.replica for s in self.statements)
        others = [s for s in self.statements if not s.kind.of_pool]
        same = [s for s in others if s.ranks == new.ranks]
        # Workers that do not say who they are state it one after the other, in one second.
        repeated = not same or (same[-1].prefix == new.prefix and _CLOCK.search(new.prefix) is not None)
        return repeated and all(s.kind is new.kind for s in others)

    def limit(self, name: str) -> int | None:
        """Read a number, unless it is beyond all that a profile may say and so limits nothing."""
        number = whole(self.stated.get(name, "0"))
        return number if 0 < number <= MAX_MEMORY_TOKENS else None

    @property
    def settings(self) -> dict[str, str]:
        """What is stated in words; "auto" for what all arguments leave to the engine."""
        default = dict.fromkeys(Setting.OF_TIMES, "auto") if Setting.ARGUMENTS in self.stated else {}
        names = (*Setting.OF_TIMES, Setting.VERSION)
        return default | {name: self.stated[name] for name in names if name in self.stated}

    @property
    def parallelism(self) -> Parallelism | None:
        """How GPUs share the model; None where nothing says it.

        Where attention has ranks of its own, they are of the GPUs that share the rest: all, if none says how many.
        """
        if not any(name in self.stated for name in Setting.RANKS):
            return None
        tensor, data, expert, pipeline, context = (self.limit(name) or 1 for name in Setting.RANKS)
        if (attention := self.stated.get(Setting.ATTENTION)) is not None:
            data = (self.limit(Setting.DP) or tensor) if attention == "True" else 1
            tensor = max(tensor // data, 1)
        if self.stated.get(Setting.ALL_EXPERTS) == "True":
            expert = tensor * data
        return Parallelism(tensor, data, expert, pipeline, context)

    @property
    def absent(self) -> tuple[str, ...]:
        if Setting.ARGUMENTS not in self.stated:
            return ()
        limits = (name for name in (Setting.SEQS, Setting.BATCHED) if name not in self.stated)
        return (*limits, *(["gpus"] if self.parallelism is None else []))

    @property
    def settled_block(self) -> int | None:
        """The size of blocks by how many requests fit, where no line states it."""
        if Setting.BLOCK in self.stated:
            return None
        said = ((s.amount, s.concurrency) for s in self.statements if s.kind.in_blocks and s.concurrency)
        sizes = (settled_block(amount, some.tokens, some.requests) for amount, some in said)
        return next(filter(None, sizes), None)

    def block_tokens(self, statement: _Statement) -> int:
        """Tell the size of its blocks, stated, settled or the engine's default; 0 where there is none of these."""
        known = self.limit(Setting.BLOCK) or self.settled_block
        return known or (0 if statement.kind.of_any_size else self.log.block_tokens)

    def whole_block(self, memory: int) -> int | None:
        """Tell the size of blocks that is stated beside a capacity; None where that is no multiple of it."""
        block = self.limit(Setting.BLOCK)
        return None if block and self.log.whole_blocks and memory % block else block

    def tokens(self, statement: _Statement) -> int:
        return statement.amount * (self.block_tokens(statement) if statement.kind.in_blocks else 1)

    def telling(self) -> list[_Statement]:
        """Choose the statements that count: totals before pools, and of the pools the last of each rank."""
        if self.log.largest_pool:
            return [max(self.statements, key=self.tokens)]
        totals = [s for s in self.statements if not s.kind.of_pool]
        return totals or list({s.ranks: s for s in self.statements}.values())

    def chosen(self) -> _Statement:
        return min(reversed(self.telling()), key=self.tokens)

    def count(self, number: int, text: str) -> None:
        log = self.log
        for form, remark in log.remarks:
            if said := form.search(text):
                self.remarks[remark] = remark.format(*(f"{whole(amount):,}" for amount in said.groups()))
        if log.hit_rate and (rate := log.hit_rate.search(text)):
            self.hit_rate = float(rate[1]), number
        if log.computed_and_found and (batch := log.computed_and_found.search(text)):
            self.computed += whole(batch[1])
            self.cached += whole(batch[2])
        if log.accepted and (drafts := log.accepted.search(text)):
            drafted, shares = whole(drafts[1]), [float(share) for share in drafts[2].split(", ")]
            # of another number of drafts: what came before does not count
            if len(shares) != len(self.accepted):
                self.drafted, self.accepted = 0, (0.0,) * len(shares)
            self.drafted += drafted
            self.accepted = tuple(a + drafted * b for a, b in zip(self.accepted, shares, strict=True))

    @property
    def hits(self) -> Iterator[str]:
        if self.hit_rate is not None:
            percent, line = self.hit_rate
            yield of_prefix_cache(percent / 100, f"stated last in line {line:,}")
        elif total := self.computed + self.cached:
            counted = f"{format_tokens(self.cached)} of {format_tokens(total)}"
            yield of_prefix_cache(self.cached / total, f"{counted}, by its lines of prefill batches")

    @property
    def drafts(self) -> ObservedDrafts | None:
        if not self.drafted:
            return None
        stated = f"{format_tokens(self.drafted)} tokens drafted, by its lines of metrics"
        return ObservedDrafts.of_shares([share / self.drafted for share in self.accepted], stated)


class _Reader:
    """Sorts statements and settings of one service into starts."""

    def __init__(self) -> None:
        self.starts: list[_StartUp] = []
        # how telling a line is, its number, and why a start ended
        self.failure: tuple[int, int, str] | None = None
        self.begun = 0  # the line of a start, after the last capacity
        self._start = 0  # that of the last start
        self._serves = False
        self._text, self._repeats = "", 0  # the line before, and how often it came again
        self._waiting: dict[tuple[str, str], str] = {}  # settings of the start that comes, by engine and name

    def line(self, number: int, text: str) -> None:
        if running(text):
            if self.starts and not self.begun:
                self.starts[-1].count(number, text)
                self._serves = True
            return
        self._repeats = self._repeats + 1 if text == self._text else 0
        self._text = text
        if self._repeats > _MOST_STATED:
            return
        if _START.search(text):
            if not self.begun or self._waiting or self.failure:  # else it is another line of the same start
                self.begun = self._start = number
            self._anew()
            self._waiting.clear()
        settings = _settings(number, text)
        statement = _statement(number, text)
        last = self._stated_before(number)
        self._waiting.update(settings)
        if statement is not None:
            self._state(*statement)
        elif last and last.log.limits_follow:
            self._give(last, settings)
        if self.starts and not self.begun:
            self.starts[-1].count(number, text)
        if not self._serves:
            self._fail(number, text)
        last = self._stated_before(number)
        if last and last.log.concurrency and (match := last.log.concurrency.search(text)):
            ranks, shown = ranks_of(text[: match.start()]), _shortened(text, match.start())
            for stated in last.statements:  # engines start side by side, and so do their lines
                if stated.ranks == ranks:
                    stated.concurrency = _Concurrency(whole(match[1]), float(match[2]), number, shown)

    def refuse_failure(self, source: str) -> None:
        """Refuse a log whose last start failed: no engine serves as an earlier one did."""
        if self.failure is None:
            return
        _, line, reason = self.failure
        before = self.starts if self.begun else self.starts[:-1]
        begun = f", from line {self._start:,} on," if self._start else ""
        message = f"the last start{begun} failed, so that nothing serves: {reason}"
        if before and self._start:
            used = before[-1].chosen()
            message += (
                f"; the start before it states {format_tokens(before[-1].tokens(used))} tokens in line {used.line:,}: "
                f"to read that, head -n {self._start - 1} {source} | kvplan import -"
            )
        raise ProfileError(source, message, line=line)

    def _anew(self) -> None:
        self.failure, self._serves = None, False

    def _fail(self, number: int, text: str) -> None:
        match, telling = _FAILURE.search(text), 3
        if match is None:
            match, telling = _ENDED.search(text), 1
        if match is None and self.failure:
            match, telling = _ERROR.search(text), 2
        if match is not None and telling > (self.failure or (0,))[0]:
            self.failure = telling, number, _shortened(text[match.start() :], 0, _REASON)

    def _stated_before(self, number: int) -> _StartUp | None:
        """Return the start that stated a capacity in this line or right before it."""
        if self.begun or not self.starts:
            return None
        last = self.starts[-1]
        return last if number - last.statements[-1].line <= _AFTER else None

    def _state(self, log: EngineLog, statement: _Statement) -> None:
        last = self.starts[-1] if self.starts and not self.begun else None
        if last is None or last.log is not log or not last.includes(statement):
            self.starts.append(_StartUp(log))
            self._anew()
            self._start = self._start if self.begun else 0
        self.begun = 0
        statements = self.starts[-1].statements
        del statements[_MOST_STATED - 1 :]
        statements.append(statement)
        self._give(self.starts[-1], self._waiting)
        if not log.limits_follow:  # else of a start in two phases the second has them too
            self._waiting = {key: value for key, value in self._waiting.items() if key[0] != log.engine}

    @staticmethod
    def _give(start: _StartUp, settings: dict[tuple[str, str], str]) -> None:
        start.stated.update({name: value for (of, name), value in settings.items() if of == start.log.engine})


def _settings(number: int, text: str) -> dict[tuple[str, str], str]:
    settings = {
        (log.engine, name): match[1]
        for log in LOGS
        for name, form in log.limits
        if (match := form.search(text))
    }
    for log in LOGS:
        for name, said in ((Setting.UNIFIED, log.unified), (Setting.ARGUMENTS, log.arguments)):
            if said and said.search(text):
                settings[log.engine, name] = str(number)
    return settings


def _statement(number: int, text: str) -> tuple[EngineLog, _Statement] | None:
    """Read the capacity that a line states, and whose; that of a draft model is another model's."""
    if "Draft model" in text:
        return None
    for log in LOGS:
        for kind in log.capacities:
            if match := kind.form.search(text):
                before, shown = text[: match.start()], _shortened(text, match.start())
                prefix = _FRACTION.sub("", before)
                amount = math.prod(map(whole, match.groups()))
                cut_off = match.end() == len(text) and text[-1].isdigit()
                return log, _Statement(kind, amount, ranks_of(before), prefix, number, shown, cut_off)
    return None


def _shortened(text: str, place: int, most: int = _SHOWN) -> str:
    """Keep of a line the part about what matters, without what cannot be printed."""
    start = 0 if len(text) <= most else max(0, place - _BEFORE_MATCH)
    part = text[start : start + most]
    plain = " ".join("".join(c if c.isprintable() else " " for c in part).split())
    return f"{'…' if start else ''}{plain}{'…' if len(text.rstrip()) > start + most else ''}"


# -- what the last start says -----------------------------------------------------------------------------------------


def _limits(reader: _Reader, source: str, base: Replica | None) -> EngineLimits:
    start = reader.starts[-1]
    used = start.chosen()
    memory = start.tokens(used)
    if used.kind.in_blocks and used.amount > 0 and not memory:
        raise NoCapacityError(
            f"{source}:{used.line}: blocks of unknown size: neither block_size before nor the maximum concurrency "
            f"behind tells it; keep these lines, or give --capacity: {used.text}"
        )
    if not 0 < memory <= MAX_MEMORY_TOKENS:
        seen = f"a KV capacity of {format_tokens(memory)} tokens" if memory <= 0 else "an absurd KV capacity"
        message = f"{seen}; must be at least 1 and at most {format_tokens(MAX_MEMORY_TOKENS)}: {used.text}"
        raise ProfileError(source, message, line=used.line)
    pools = _pools(start, used, source, base)
    pool = pools[0] if pools else None
    block = start.block_tokens(used) if used.kind.in_blocks else start.whole_block(memory)
    caching = _TRUTH.get(start.stated.get(Setting.CACHING, ""))
    return EngineLimits(
        source=source,
        engine=start.log.engine,
        memory_tokens=pool.blocks * pool.layout.block_tokens if pool else memory,
        block_tokens=pool.layout.block_tokens if pool else block,
        max_num_seqs=start.limit(Setting.SEQS),
        max_num_batched_tokens=start.limit(Setting.BATCHED),
        line=used.line,
        stated_in=used.text,
        sha256="",
        drafts=start.drafts,
        notes=tuple(_notes(reader, used, pools)),
        layout=pool.layout if pool else None,
        prefix_caching=caching if pool is None or pool.caches_states is None else pool.caches_states,
        parallelism=start.parallelism,
        max_model_len=start.limit(Setting.LENGTH) or (used.concurrency.tokens if used.concurrency else None),
        settings=start.settings,
        absent=start.absent,
    )


def _pools(start: _StartUp, used: _Statement, source: str, base: Replica | None) -> list[Pool]:
    """Find the pools that layers of several kinds can share; none where there is one kind, or all are kept like it."""
    if base is None or base.layout is None or Setting.UNIFIED in start.stated:
        return []
    if start.log.concurrency is None:
        message = f"{start.log.engine} has no pool that layers of several kinds share, as [[gpu.kv]] of the base has"
        raise ProfileError(source, f"{message}: {used.text}", line=used.line)
    cached = base.prefix_caching and base.layout.has_states
    layout = replace(
        base.layout,
        block_tokens=max(
            start.limit(Setting.BLOCK) or base.layout.block_tokens, least_block_tokens(base.layout.layers)
        ),
    )
    drafts = start.limit(Setting.DRAFTS) or 0
    if drafts or Setting.ARGUMENTS in start.stated:
        layout = replace(layout, state_blocks=1 + cached + drafts)
    if used.kind.in_blocks:
        return [Pool(used.amount, layout, f"{format_tokens(used.amount)} blocks are those of the pool")]
    said = used.concurrency
    if said is None:
        raise ProfileError(
            source,
            "no maximum concurrency after it, without which blocks of several kinds of layers cannot be told: "
            f"{used.text}",
            line=used.line,
        )
    batched = start.limit(Setting.BATCHED) or base.max_num_batched_tokens or said.tokens
    stated = used.amount, said.tokens, said.requests, batched
    pools = find_pools(layout, *stated, caches_states=cached)
    if not pools and layout.has_states:
        pools = find_grown(layout, *stated, drafts=drafts, caches_states=cached)
    if pools:
        memory, caching = start.stated.get(Setting.MEMORY), _TRUTH.get(start.stated.get(Setting.CACHING, ""))
        return settled(pools, None if memory is None else float(memory), caching)
    most = most_blocks(layout, said.tokens, batched)
    groups = sum(group.copies for group in layout.groups)
    raise ProfileError(
        source,
        f"contradicts line {said.line}, with {groups} groups of layers in blocks of {layout.block_tokens} as in the "
        f"base, and {format_tokens(most)} blocks a request of {format_tokens(said.tokens)} tokens with "
        f"{format_tokens(batched)} batched: {used.text} | {said.text}",
        line=used.line,
    )


def _notes(reader: _Reader, used: _Statement, pools: Sequence[Pool]) -> Iterator[str]:
    starts = reader.starts
    start, pool = starts[-1], pools[0] if pools else None
    if reader.begun:
        yield f"a later start, from line {reader.begun:,} on, states no KV capacity"
    if pool is not None:
        yield f"{format_tokens(pool.blocks)} blocks: {pool.meaning}"
        if pool.caches_states is not None:
            cached = "on" if pool.caches_states else "off"
            yield f"prefix caching of states is {cached}, by the blocks that a request takes"
    elif Setting.UNIFIED in start.stated:
        line = int(start.stated[Setting.UNIFIED])
        every = "every layer keeps every token, windows and chunks too"
        yield f"the hybrid KV cache manager is disabled (line {line:,}): {every}"
    if len(pools) > 1:
        others = "; ".join(
            f"{format_tokens(other.blocks)} blocks, {other.meaning}, prefix caching "
            f"{'on' if other.caches_states else 'off'}"
            for other in pools[1:]
        )
        yield (
            f"{len(pools)} readings fit the two lines, the other: {others}; a line with enable_prefix_caching or the "
            "available KV cache memory would settle it"
        )
    yield from _notes_on_blocks(start, used)
    yield from start.remarks.values()
    if len(starts) > 1:
        before = [(start.tokens(s), s.line) for start in starts[:-1] for s in [start.chosen()]]
        listed = [f"{format_tokens(tokens)} tokens in line {line:,}" for tokens, line in before[-_LISTED:]]
        more = ["…"] if len(before) > _LISTED else []
        yield (
            f"{len(starts)} KV capacities are stated one after the other; the last, in line {used.line:,}, counts; "
            f"before it: {', '.join(more + listed)}"
        )
    telling = start.telling()
    least, most = min(map(start.tokens, telling)), max(map(start.tokens, telling))
    if least != most:
        amounts = f"from {format_tokens(least)} to {format_tokens(most)} tokens"
        yield f"{len(telling)} ranks of this start state {amounts}; the smallest counts"
    if used.kind.of_pool and len(start.statements) > len(telling):
        yield "a rank states several KV pools; its last one counts"
    replicas = {s.replica for s in telling}
    if len(replicas) > 1:
        stated = start.parallelism.data if start.parallelism else 1
        yield f"{max(stated, len(replicas))} data-parallel engines; this is the capacity of one"
    yield from start.hits
    if start.drafts is not None:
        yield start.drafts.text
    if used.concurrency is not None and pool is None:
        yield from _off_concurrency(used.concurrency, start.tokens(used))


def _notes_on_blocks(start: _StartUp, used: _Statement) -> Iterator[str]:
    if used.cut_off:
        yield f"line {used.line:,}, the last, has no end: its number may be cut off"
    stated, memory = start.limit(Setting.BLOCK), start.tokens(used)
    if not used.kind.in_blocks:
        if stated and not start.whole_block(memory):
            made = f"{format_tokens(memory)} tokens are no multiple of that"
            yield f"blocks of {stated} tokens, as stated, are left out: {made}"
    elif not stated:
        if start.settled_block:
            yield f"blocks have {start.settled_block} tokens, by the maximum concurrency that the log states"
        else:
            size = f"{start.log.engine}'s default of {start.block_tokens(used)} tokens"
            yield f"the log states no block size; {size} is assumed"


def _off_concurrency(said: _Concurrency, memory: int) -> Iterator[str]:
    makes = said.tokens * said.requests
    # The factor is rounded to two digits, which matters where it is small.
    if abs(makes - memory) > _OFF * memory + 0.005 * said.tokens:
        yield (
            f"the log's maximum concurrency, {format_number(said.requests, 6)} times {format_tokens(said.tokens)} "
            f"tokens, makes {format_tokens(makes)} tokens, {format_percent(makes / memory - 1, signed=True)}"
            " of the capacity; some layers may hold less than the whole context, or blocks another size: --model "
            "and --gpu, or a --base with [[gpu.kv]], tell"
        )
