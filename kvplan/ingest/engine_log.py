"""What an engine says about itself as it starts: its KV capacity, and the limits that come with it.

A log may hold several starts: the last one counts. Within a start every rank may state a capacity: the smallest counts,
since a request needs its KV on all of them. Data-parallel engines are replicas of their own; of them too the smallest
is the careful choice. A limit counts only where it belongs to the same start as the capacity.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.engines import (
    BATCHED,
    BLOCK,
    LOGS,
    PP,
    SEQS,
    TP,
    Capacity,
    EngineLog,
    settled_block,
    whole,
)
from kvplan.ingest.kv_pool import Pool, find_pool, most_blocks
from kvplan.ingest.observed import ObservedDrafts, ObservedHits
from kvplan.ingest.profile_text import Part, kv_tables, replica_part
from kvplan.ingest.text_file import lines_of
from kvplan.model import Knowledge, Origin, Replica
from kvplan.model.kv_layout import KvLayout, least_block_tokens
from kvplan.profile.reading import Profile
from kvplan.ranges import MAX_MEMORY_TOKENS
from kvplan.units import format_number, format_percent, format_tokens
from kvplan.version import __version__

_WORDS = tuple(dict.fromkeys(word for log in LOGS for word in log.words))
_SHORTEST = min(map(len, _WORDS))  # what is shorter says nothing, and there can be millions
_START = re.compile("|".join(log.start for log in LOGS if log.start))
_UNIFIED = "unified"  # among the limits: the line that says so
_AFTER = 10  # lines after a capacity that may still tell about it
_OFF = 0.02  # of the capacity: rounding and half-filled blocks explain less
_SHOWN = 160  # characters of a statement
_BEFORE_MATCH = 60  # of them before what matters, where a line is longer
_LISTED = 8  # earlier statements in a note

_RANK = re.compile(
    r"(?:(?<![A-Za-z])(DP|TP|PP|EP|rank)[ :=]?|(Engine)(?:Core)?[ _](?=\d)|\[\d+,(?=\d+\]<std))(\d+)"
)
_CLOCK = re.compile(r"\d\d:\d\d:\d\d")
_FRACTION = re.compile(r"(?<=:\d\d)[.,]\d+")

_Ranks = tuple[tuple[str, str], ...]  # who writes a line: (("DP", "0"), ("TP", "1"))


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
    hits: ObservedHits | None
    drafts: ObservedDrafts | None
    notes: tuple[str, ...]
    layout: KvLayout | None = None
    prefix_caching: bool | None = None  # of states
    gpus: int | None = None  # that share the model


class NoCapacityError(UsageError):
    """A log states no KV capacity, or in blocks of unknown size."""


def read_engine_log(path: Path, base: Replica | None = None) -> EngineLimits:
    """Read the last KV capacity that a log states, which may be compressed; bytes that are not UTF-8 do no harm.

    Layers of several kinds are those of `base`, without which blocks of a pool cannot be told from what the log says.

    Raises
    ------
    NoCapacityError, UsageError
        The file states no capacity; or cannot be read.
    ProfileError
        The capacity is none at all, or absurd, or contradicts the maximum concurrency; with its line.
    """
    with lines_of(path, errors="replace") as lines:
        limits = parse_engine_log(lines, lines.source, base)
    notes = (*limits.notes, *lines.notes)
    return replace(limits, sha256=lines.sha256, notes=notes)


def parse_engine_log(lines: Iterable[str], source: str, base: Replica | None = None) -> EngineLimits:
    """Read the last KV capacity in some lines, which messages call `source`; see `read_engine_log`."""
    reader, number = _Reader(), 1
    for line in lines:
        if len(line) > _SHORTEST and any(word in line for word in _WORDS):
            reader.line(number, line)
        number += not line.endswith(
            "\r"
        )  # a lone carriage return, of a progress bar, ends no line of an editor
    if not reader.starts:
        forms = ", ".join(f"{log.engine}'s {log.looked_for}" for log in LOGS)
        raise NoCapacityError(f"{source}: states no KV capacity; looked for {forms}")
    return _limits(reader.starts, source, base)


def log_part(limits: EngineLimits, base: Profile | None, defaults: Mapping[str, int] | None = None) -> Part:
    """Write the table [gpu] with what a log states, and `defaults` of the engine where it says nothing."""
    stated: dict[str, Any] = {"memory_tokens": limits.memory_tokens, "block_tokens": limits.block_tokens}
    if (layout := limits.layout) is not None:
        stated = {
            "kv_blocks": limits.memory_tokens // layout.block_tokens,
            "block_tokens": layout.block_tokens,
            "kv": kv_tables(layout),
        }
    for name in ("prefix_caching", "max_num_seqs", "max_num_batched_tokens", "gpus"):
        stated[name] = getattr(limits, name)
    values = {key: value for key, value in stated.items() if value is not None}
    keys = ", ".join(key for key in values if key != "kv")
    where = f"{limits.engine} in {limits.source}, line {limits.line}, as read by kvplan {__version__}."
    about = [f"{keys}: stated by {where}", f'"{limits.stated_in}"']
    about += [f"sha256 {limits.sha256}"] if limits.sha256 else []
    about += [f"Note: {note}." for note in limits.notes]
    known = values.keys() | (base.tables.get("gpu", {}).keys() if base is not None else set())
    if taken := {key: value for key, value in (defaults or {}).items() if key not in known}:
        about.append(f"{', '.join(taken)}: defaults of {limits.engine}.")
    origin = Origin(Knowledge.MEASURED, PurePath(limits.source).name)
    return replica_part(base, values | taken, about, origin)


# -- statements, sorted into starts -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Concurrency:
    """So many requests of a length fit, says a line."""

    tokens: int
    requests: float
    line: int
    text: str


@dataclass(slots=True)
class _Statement:
    """One statement of a capacity; `prefix` is what stands before it, to the second."""

    kind: Capacity
    amount: int
    ranks: _Ranks
    prefix: str
    line: int
    text: str
    concurrency: _Concurrency | None = None

    @property
    def replica(self) -> _Ranks:
        """Which data-parallel engine says it; empty where there is one."""
        return tuple(rank for rank in self.ranks if rank[0] in ("DP", "Engine"))


@dataclass(slots=True)
class _StartUp:
    """What one start of an engine states."""

    log: EngineLog
    statements: list[_Statement] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)
    hit_rate: tuple[float, int] | None = None  # the last one, percent, and its line
    computed: int = 0  # prompt tokens
    cached: int = 0
    drafted: int = 0  # tokens
    accepted: tuple[float, ...] = ()  # of them by position, times drafted tokens
    remarks: dict[str, str] = field(default_factory=dict)  # by their text without numbers: the last counts

    def includes(self, new: _Statement) -> bool:
        """Tell whether a statement is of another rank or another pool of this start, and not of a later start."""
        if new.kind.of_pool:  # one for each rank and model; the total comes after all of them
            return all(s.kind.of_pool or s.replica != new.replica for s in self.statements)
        others = [s for s in self.statements if not s.kind.of_pool]
        same = [s for s in others if s.ranks == new.ranks]
        # Workers that do not say who they are state it one after the other, in one second.
        repeated = not same or (same[-1].prefix == new.prefix and _CLOCK.search(new.prefix) is not None)
        return repeated and all(s.kind is new.kind for s in others)

    @property
    def settled_block(self) -> int | None:
        """The size of blocks by how many requests fit, where no line states it."""
        if BLOCK in self.limits:
            return None
        said = ((s.amount, s.concurrency) for s in self.statements if s.kind.in_blocks and s.concurrency)
        sizes = (settled_block(amount, some.tokens, some.requests) for amount, some in said)
        return next(filter(None, sizes), None)

    def block_tokens(self, statement: _Statement) -> int:
        """Tell the size of its blocks, stated, settled or the engine's default; 0 where there is none of these."""
        known = self.limits.get(BLOCK) or self.settled_block
        return known or (0 if statement.kind.of_any_size else self.log.block_tokens)

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
        """Keep what a line says of the prefix cache, of drafts and of other things."""
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
            if len(shares) != len(
                self.accepted
            ):  # of another number of drafts, what came before does not count
                self.drafted, self.accepted = 0, (0.0,) * len(shares)
            self.drafted += drafted
            self.accepted = tuple(a + drafted * b for a, b in zip(self.accepted, shares, strict=True))

    @property
    def hits(self) -> ObservedHits | None:
        """What the prefix cache found of the prompt tokens."""
        if self.hit_rate is not None:
            percent, line = self.hit_rate
            return ObservedHits(min(percent / 100, 1.0), f"stated last in line {line:,}")
        if total := self.computed + self.cached:
            counted = f"{format_tokens(self.cached)} of {format_tokens(total)}"
            return ObservedHits(self.cached / total, f"{counted}, by its lines of prefill batches")
        return None

    @property
    def drafts(self) -> ObservedDrafts | None:
        """What was accepted of drafts, over the whole run."""
        if not self.drafted:
            return None
        stated = f"{format_tokens(self.drafted)} tokens drafted, by its lines of metrics"
        return ObservedDrafts.of_shares([share / self.drafted for share in self.accepted], stated)


class _Reader:
    """Sorts statements and limits into starts."""

    def __init__(self) -> None:
        self.starts: list[_StartUp] = []
        self._waiting: dict[tuple[str, str], int] = {}  # limits of the start that comes, by engine and name
        self._begun = False  # a start, after the last capacity

    def line(self, number: int, text: str) -> None:
        if _START.search(text):
            self._begun = True
            self._waiting.clear()
        limits = _stated_limits(number, text)
        statement = _statement(number, text)
        last = self._stated_before(number)
        if statement is not None:
            self._waiting.update(limits)
            self._state(*statement)
        elif last and last.log.limits_follow and any(engine == last.log.engine for engine, _ in limits):
            self._give(last, limits)
        else:
            self._waiting.update(limits)
        if self.starts and not self._begun:
            self.starts[-1].count(number, text)
        last = self._stated_before(number)
        if last and last.log.concurrency and (match := last.log.concurrency.search(text)):
            ranks, shown = _ranks(text[: match.start()]), _shortened(text, match.start())
            for stated in last.statements:  # engines start side by side, and so do their lines
                if stated.ranks == ranks:
                    stated.concurrency = _Concurrency(whole(match[1]), float(match[2]), number, shown)

    def _stated_before(self, number: int) -> _StartUp | None:
        """Return the start that stated a capacity in this line or right before it."""
        if self._begun or not self.starts:
            return None
        last = self.starts[-1]
        return last if number - last.statements[-1].line <= _AFTER else None

    def _state(self, log: EngineLog, statement: _Statement) -> None:
        last = self.starts[-1] if self.starts and not self._begun else None
        if last is None or last.log is not log or not last.includes(statement):
            self.starts.append(_StartUp(log))
        self._begun = False
        self.starts[-1].statements.append(statement)
        self._give(self.starts[-1], self._waiting)
        self._waiting = {key: value for key, value in self._waiting.items() if key[0] != log.engine}

    @staticmethod
    def _give(start: _StartUp, limits: dict[tuple[str, str], int]) -> None:
        own = {name: value for (of, name), value in limits.items() if of == start.log.engine and value}
        start.limits.update(own)


def _stated_limits(number: int, text: str) -> dict[tuple[str, str], int]:
    """Read the limits that a line states, by engine and name."""
    limits = {
        (log.engine, name): limit
        for log in LOGS
        for name, form in log.limits
        # one beyond all that a profile may say limits nothing
        if (match := form.search(text)) and (limit := whole(match[1])) <= MAX_MEMORY_TOKENS
    }
    return limits | {
        (log.engine, _UNIFIED): number for log in LOGS if log.unified and log.unified.search(text)
    }


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
                return log, _Statement(kind, amount, _ranks(before), prefix, number, shown)
    return None


def _ranks(prefix: str) -> _Ranks:
    """Tell who writes a line: ``(EngineCore_DP0 pid=7)`` is (("DP", "0"),)."""
    return tuple((m[1] or m[2] or "rank", m[3]) for m in _RANK.finditer(prefix))


def _shortened(text: str, place: int) -> str:
    """Keep of a line the part about what matters, without what cannot be printed."""
    start = 0 if len(text) <= _SHOWN else max(0, place - _BEFORE_MATCH)
    part = text[start : start + _SHOWN]
    plain = " ".join("".join(c if c.isprintable() else " " for c in part).split())
    return f"{'…' if start else ''}{plain}{'…' if len(text.rstrip()) > start + _SHOWN else ''}"


# -- what the last start says -----------------------------------------------------------------------------------------


def _limits(starts: list[_StartUp], source: str, base: Replica | None) -> EngineLimits:
    start = starts[-1]
    used, limits = start.chosen(), start.limits
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
    pool = _pool(start, used, source, base)
    block = start.block_tokens(used) if used.kind.in_blocks else limits.get(BLOCK)
    return EngineLimits(
        source=source,
        engine=start.log.engine,
        memory_tokens=pool.blocks * pool.layout.block_tokens if pool else memory,
        block_tokens=pool.layout.block_tokens if pool else block,
        max_num_seqs=limits.get(SEQS),
        max_num_batched_tokens=limits.get(BATCHED),
        line=used.line,
        stated_in=used.text,
        sha256="",
        hits=start.hits,
        drafts=start.drafts,
        notes=tuple(_notes(starts, used, pool)),
        layout=pool.layout if pool else None,
        prefix_caching=pool.caches_states if pool else None,
        gpus=limits[TP] * limits.get(PP, 1) if TP in limits else None,
    )


def _pool(start: _StartUp, used: _Statement, source: str, base: Replica | None) -> Pool | None:
    """Find the pool that layers of several kinds share; None where there is one kind, or all are kept like it."""
    if base is None or base.layout is None or _UNIFIED in start.limits:
        return None
    if start.log.concurrency is None:
        message = f"{start.log.engine} has no pool that layers of several kinds share, as [[gpu.kv]] of the base has"
        raise ProfileError(source, f"{message}: {used.text}", line=used.line)
    least = least_block_tokens(base.layout.layers)
    layout = replace(base.layout, block_tokens=max(start.limits.get(BLOCK, base.layout.block_tokens), least))
    if used.kind.in_blocks:
        return Pool(used.amount, layout, f"{format_tokens(used.amount)} blocks are those of the pool")
    said = used.concurrency
    if said is None:
        raise ProfileError(
            source,
            "no maximum concurrency after it, without which blocks of several kinds of layers cannot be told: "
            f"{used.text}",
            line=used.line,
        )
    batched = start.limits.get(BATCHED) or base.max_num_batched_tokens or said.tokens
    cached = base.prefix_caching and layout.has_states
    pool = find_pool(layout, used.amount, said.tokens, said.requests, batched, caches_states=cached)
    if pool is not None:
        return pool
    most = most_blocks(layout, said.tokens, batched)
    groups = sum(group.copies for group in layout.groups)
    raise ProfileError(
        source,
        f"contradicts line {said.line}, with {groups} groups of layers in blocks of {layout.block_tokens} as in the "
        f"base, and {format_tokens(most)} blocks a request of {format_tokens(said.tokens)} tokens with "
        f"{format_tokens(batched)} batched: {used.text} | {said.text}",
        line=used.line,
    )


def _notes(starts: list[_StartUp], used: _Statement, pool: Pool | None) -> Iterator[str]:
    start = starts[-1]
    if pool is not None:
        yield f"{format_tokens(pool.blocks)} blocks: {pool.meaning}"
        if pool.caches_states is not None:
            cached = "on" if pool.caches_states else "off"
            yield f"prefix caching of states is {cached}, by the blocks that a request takes"
    elif _UNIFIED in start.limits:
        yield (
            f"the hybrid KV cache manager is disabled (line {start.limits[_UNIFIED]:,}): every layer keeps every "
            "token, windows and chunks too"
        )
    if used.kind.in_blocks and BLOCK not in start.limits:
        if start.settled_block:
            yield f"blocks have {start.settled_block} tokens, by the maximum concurrency that the log states"
        else:
            size = f"{start.log.engine}'s default of {start.block_tokens(used)} tokens"
            yield f"the log states no block size; {size} is assumed"
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
        yield f"{len(replicas)} data-parallel engines; this is the capacity of one"
    for observed in (start.hits, start.drafts):
        if observed is not None:
            yield observed.text
    if used.concurrency is not None and pool is None:
        yield from _off_concurrency(used.concurrency, start.tokens(used))


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
