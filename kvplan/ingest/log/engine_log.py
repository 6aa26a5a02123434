"""What an engine says about itself as it starts: its KV capacity, and the limits that come with it.

A log may hold several starts: the last one counts. Within a start every rank may state a capacity: the smallest counts,
since a request needs its KV on all of them. Data-parallel engines are replicas of their own; of them too the smallest
is the careful choice. A limit counts only where it belongs to the same start as the capacity.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.drafts import ObservedDrafts, drafts_text, observed
from kvplan.ingest.hits import ObservedHits, hits_text
from kvplan.ingest.log import sglang, tensorrt_llm, tgi, vllm
from kvplan.ingest.log.forms import BATCHED, BLOCK, PP, SEQS, TP, UNIFIED, Capacity, EngineLog, whole
from kvplan.ingest.log.pool import Pool, find_pool, most_blocks
from kvplan.ingest.text_file import lines_of
from kvplan.model import Replica
from kvplan.model.kv_layout import KvLayout, least_block_tokens
from kvplan.ranges import MAX_MEMORY_TOKENS
from kvplan.units import format_number, format_percent, format_tokens

LOGS = (vllm.LOG, sglang.LOG, tensorrt_llm.LOG, tgi.LOG)
_WORDS = tuple(dict.fromkeys(word for log in LOGS for word in log.words))
_SHORTEST = min(map(len, _WORDS))  # what is shorter says nothing, and there can be millions
_START = re.compile("|".join(log.start for log in LOGS if log.start))
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
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """KV capacity of one engine, and what else its log limits.

    Attributes
    ----------
    memory_tokens
        KV capacity, tokens; of a pool that layers of several kinds share, pool tokens.
    block_tokens
        Tokens in a block. None: the log does not say.
    max_num_seqs, max_num_batched_tokens
        Requests that run at once; tokens computed in an iteration. None: this start does not say.
    line
        Of the statement used, counted from 1.
    stated_in
        That line, shortened.
    sha256
        Of the file; empty for lines from elsewhere.
    hits
        Of the prefix cache. None: this start states none.
    drafts
        Accepted ones. None: this start states none.
    notes
        What was assumed, what else the log says, and what does not fit.
    layout
        Layers of several kinds, in blocks as this start has them; None where the memory is for one kind.
    prefix_caching
        Whether states are cached. None: this start does not say.
    gpus
        That share the model. None: this start does not say.
    """

    source: str
    engine: str
    memory_tokens: int
    block_tokens: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    line: int
    stated_in: str
    sha256: str
    hits: ObservedHits | None
    drafts: ObservedDrafts | None
    notes: tuple[str, ...]
    layout: KvLayout | None = None
    prefix_caching: bool | None = None
    gpus: int | None = None


class NoCapacityError(UsageError):
    """A log states no KV capacity."""


def read_engine_log(path: Path, base: Replica | None = None) -> EngineLimits:
    """The last KV capacity that a log states, which may be compressed; bytes that are not UTF-8 do no harm.

    Layers of several kinds are those of `base`, without which blocks of a pool cannot be told from what the log says.

    Raises
    ------
    NoCapacityError, UsageError
        The file states no capacity; or cannot be read.
    ProfileError
        The capacity is none at all, or absurd, or contradicts the maximum concurrency; with its line.
    """
    with lines_of(path, errors="replace") as lines:
        found = parse_engine_log(lines, lines.source, base)
    return replace(found, sha256=lines.sha256)


def parse_engine_log(lines: Iterable[str], source: str, base: Replica | None = None) -> EngineLimits:
    """The last KV capacity in some lines, which messages call `source`.

    Raises
    ------
    NoCapacityError, ProfileError
        As `read_engine_log`.

    Examples
    --------
    >>> found = parse_engine_log(["INFO 01-30 03:19:14 kv_cache_utils.py:395] # GPU blocks: 1381"], "serve.log")
    >>> found.engine, found.memory_tokens, found.block_tokens, found.notes
    ('vLLM', 22096, 16, ("the log states no block size; vLLM's default of 16 tokens is assumed",))
    """
    reader = _Reader()
    for number, line in _numbered(lines):
        if len(line) > _SHORTEST and any(word in line for word in _WORDS):
            reader.line(number, _ESCAPE.sub("", line) if "\x1b" in line else line)
    if not reader.starts:
        forms = ", ".join(f"{log.engine}'s {log.looked_for}" for log in LOGS)
        raise NoCapacityError(f"{source}: states no KV capacity; looked for {forms}")
    return _limits(reader.starts, source, base)


def _numbered(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Lines as editors count them: a lone carriage return, of a progress bar, ends none."""
    number = 1
    for line in lines:
        yield number, line
        number += not line.endswith("\r")


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
    ranks: tuple[tuple[str, str], ...]
    prefix: str
    line: int
    text: str
    concurrency: _Concurrency | None = None

    @property
    def replica(self) -> tuple[tuple[str, str], ...]:
        """Which data-parallel engine says it; empty where there is one."""
        return tuple(rank for rank in self.ranks if rank[0] in ("DP", "Engine"))


@dataclass(slots=True)
class _StartUp:
    """What one start of an engine states."""

    log: EngineLog
    statements: list[_Statement] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)
    hit_rate: tuple[float, int] | None = None  # the last one, percent, and its line
    computed: int = 0
    found: int = 0
    drafted: int = 0  # tokens
    accepted: tuple[float, ...] = ()  # of them by position, times drafted tokens

    def includes(self, new: _Statement) -> bool:
        """Whether a statement is of another rank or another pool of this start, and not of a later start."""
        if new.kind.of_pool:  # one for each rank and model; the total comes after all of them
            return all(s.kind.of_pool or s.replica != new.replica for s in self.statements)
        others = [s for s in self.statements if not s.kind.of_pool]
        same = [s for s in others if s.ranks == new.ranks]
        # Workers that do not say who they are state it one after the other, in one second.
        repeated = not same or (same[-1].prefix == new.prefix and _CLOCK.search(new.prefix) is not None)
        return repeated and all(s.kind is new.kind for s in others)

    @property
    def block_tokens(self) -> int:
        return self.limits.get(BLOCK, self.log.block_tokens)

    @property
    def gpus(self) -> int | None:
        tensor = self.limits.get(TP)
        return None if tensor is None else tensor * self.limits.get(PP, 1)

    def tokens(self, statement: _Statement) -> int:
        return statement.amount * (self.block_tokens if statement.kind.in_blocks else 1)

    def telling(self) -> list[_Statement]:
        """The statements that count: totals before pools, and of the pools the last of each rank."""
        totals = [s for s in self.statements if not s.kind.of_pool]
        return totals or list({s.ranks: s for s in self.statements}.values())

    @property
    def hits(self) -> ObservedHits | None:
        """What the prefix cache found of the prompt tokens."""
        if self.hit_rate is not None:
            percent, line = self.hit_rate
            return ObservedHits(min(percent / 100, 1.0), f"stated last in line {line:,}")
        if total := self.computed + self.found:
            counted = (
                f"{format_tokens(self.found)} of {format_tokens(total)}, by its lines of prefill batches"
            )
            return ObservedHits(self.found / total, counted)
        return None

    @property
    def drafts(self) -> ObservedDrafts | None:
        """What was accepted of drafts, over the whole run."""
        if not self.drafted:
            return None
        stated = f"{format_tokens(self.drafted)} tokens drafted, by its lines of metrics"
        return observed([share / self.drafted for share in self.accepted], stated)

    def count_drafts(self, drafted: int, accepted: list[float]) -> None:
        """Of another number of drafts than before, what came before does not count."""
        if len(accepted) != len(self.accepted):
            self.drafted, self.accepted = 0, (0.0,) * len(accepted)
        self.drafted += drafted
        self.accepted = tuple(a + drafted * b for a, b in zip(self.accepted, accepted, strict=True))

    def chosen(self) -> _Statement:
        return min(reversed(self.telling()), key=self.tokens)


class _Reader:
    """Sorts statements and limits into starts."""

    def __init__(self) -> None:
        self.starts: list[_StartUp] = []
        self._waiting: dict[tuple[str, str], int] = {}  # limits of the start that comes
        self._begun = False  # a start, after the last capacity

    def line(self, number: int, text: str) -> None:
        if _START.search(text):
            self._begun = True
            self._waiting.clear()
        limits = {
            (log.engine, name): limit
            for log in LOGS
            for name, form in log.limits
            # one beyond all that a profile may say limits nothing
            if (found := form.search(text)) and (limit := whole(found[1])) <= MAX_MEMORY_TOKENS
        }
        limits |= {(log.engine, UNIFIED): number for log in LOGS if log.unified and log.unified.search(text)}
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
            self._count(self.starts[-1], number, text)
        last = self._stated_before(number)
        if last and last.log.concurrency and (found := last.log.concurrency.search(text)):
            ranks = _ranks(text[: found.start()])
            for stated in last.statements:  # engines start side by side, and so do their lines
                if stated.ranks == ranks:
                    stated.concurrency = _Concurrency(
                        whole(found[1]), float(found[2]), number, _shortened(text, found.start())
                    )

    @staticmethod
    def _count(start: _StartUp, number: int, text: str) -> None:
        log = start.log
        if log.hit_rate and (found := log.hit_rate.search(text)):
            start.hit_rate = float(found[1]), number
        if log.computed_and_found and (found := log.computed_and_found.search(text)):
            start.computed += whole(found[1])
            start.found += whole(found[2])
        if log.accepted and (found := log.accepted.search(text)):
            start.count_drafts(whole(found[1]), [float(share) for share in found[2].split(", ")])

    def _stated_before(self, number: int) -> _StartUp | None:
        """The start that stated a capacity in this line or right before it."""
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
        start.limits.update(
            {name: value for (of, name), value in limits.items() if of == start.log.engine and value}
        )


def _statement(number: int, text: str) -> tuple[EngineLog, _Statement] | None:
    """The capacity that a line states, and whose; that of a draft model is another model's."""
    if "Draft model" in text:
        return None
    for log in LOGS:
        for kind in log.capacities:
            if found := kind.form.search(text):
                before = text[: found.start()]
                shown = _shortened(text, found.start())
                prefix = _FRACTION.sub("", before)
                return log, _Statement(kind, whole(found[1]), _ranks(before), prefix, number, shown)
    return None


def _ranks(prefix: str) -> tuple[tuple[str, str], ...]:
    """Who writes a line: ``(EngineCore_DP0 pid=7)`` is (("DP", "0"),)."""
    return tuple((m[1] or m[2] or "rank", m[3]) for m in _RANK.finditer(prefix))


def _shortened(text: str, place: int) -> str:
    """A line without what cannot be printed, about the part that matters."""
    start = 0 if len(text) <= _SHOWN else max(0, place - _BEFORE_MATCH)
    part = text[start : start + _SHOWN]
    plain = " ".join("".join(c if c.isprintable() else " " for c in part).split())
    return f"{'…' if start else ''}{plain}{'…' if len(text.rstrip()) > start + _SHOWN else ''}"


def _limits(starts: list[_StartUp], source: str, base: Replica | None) -> EngineLimits:
    start = starts[-1]
    used = start.chosen()
    memory = start.tokens(used)
    if not 0 < memory <= MAX_MEMORY_TOKENS:
        seen = f"a KV capacity of {format_tokens(memory)} tokens" if memory <= 0 else "an absurd KV capacity"
        message = f"{seen}; must be at least 1 and at most {format_tokens(MAX_MEMORY_TOKENS)}: {used.text}"
        raise ProfileError(source, message, line=used.line)
    pool = _pool(start, used, source, base)
    block = start.block_tokens if used.kind.in_blocks else start.limits.get(BLOCK)
    return EngineLimits(
        source=source,
        engine=start.log.engine,
        memory_tokens=pool.blocks * pool.layout.block_tokens if pool else memory,
        block_tokens=pool.layout.block_tokens if pool else block,
        max_num_seqs=start.limits.get(SEQS),
        max_num_batched_tokens=start.limits.get(BATCHED),
        line=used.line,
        stated_in=used.text,
        sha256="",
        hits=start.hits,
        drafts=start.drafts,
        notes=tuple(_notes(starts, used, pool)),
        layout=pool.layout if pool else None,
        prefix_caching=pool.caches_states if pool else None,
        gpus=start.gpus,
    )


def _pool(start: _StartUp, used: _Statement, source: str, base: Replica | None) -> Pool | None:
    """The pool that layers of several kinds share; None where there is one kind, or all are kept like it."""
    if base is None or base.layout is None or UNIFIED in start.limits:
        return None
    if start.log is not vllm.LOG:
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
    found = find_pool(layout, used.amount, said.tokens, said.requests, batched, caches_states=cached)
    if found is not None:
        return found
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
    elif UNIFIED in start.limits:
        yield (
            f"the hybrid KV cache manager is disabled (line {start.limits[UNIFIED]:,}): every layer keeps every token, "
            "windows and chunks too"
        )
    if used.kind.in_blocks and BLOCK not in start.limits:
        yield (
            f"the log states no block size; {start.log.engine}'s default of {start.block_tokens} tokens is assumed"
        )
    if len(starts) > 1:
        yield _earlier(starts, used)
    telling = start.telling()
    amounts = sorted(start.tokens(s) for s in telling)
    if amounts[0] != amounts[-1]:
        yield (
            f"{len(telling)} ranks of this start state from {format_tokens(amounts[0])} to "
            f"{format_tokens(amounts[-1])} tokens; the smallest counts"
        )
    if used.kind.of_pool and len(start.statements) > len(telling):
        yield "a rank states several KV pools; its last one counts"
    replicas = {s.replica for s in telling}
    if len(replicas) > 1:
        yield f"{len(replicas)} data-parallel engines; this is the capacity of one"
    if start.hits is not None:
        yield hits_text(start.hits)
    if start.drafts is not None:
        yield drafts_text(start.drafts)
    if used.concurrency is not None and pool is None:
        length, times = used.concurrency.tokens, used.concurrency.requests
        memory = start.tokens(used)
        # The factor is rounded to two digits, which matters where it is small.
        if abs(length * times - memory) > _OFF * memory + 0.005 * length:
            yield (
                f"the log's maximum concurrency, {format_number(times, 6)} times {format_tokens(length)} tokens, makes "
                f"{format_tokens(length * times)} tokens, {format_percent(length * times / memory - 1, signed=True)}"
                " of the capacity; some layers may hold less than the whole context, or blocks another size: --model "
                "and --gpu, or a --base with [[gpu.kv]], tell"
            )


def _earlier(starts: list[_StartUp], used: _Statement) -> str:
    """That a file states several capacities, and which."""
    before = [(start.tokens(s), s.line) for start in starts[:-1] for s in [start.chosen()]]
    listed = [f"{format_tokens(tokens)} tokens in line {line:,}" for tokens, line in before[-_LISTED:]]
    if len(before) > _LISTED:
        listed.insert(0, "…")
    return (
        f"{len(starts)} KV capacities are stated one after the other; the last, in line {used.line:,}, counts; "
        f"before it: {', '.join(listed)}"
    )
