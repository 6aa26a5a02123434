"""The KV capacity of an engine, and the limits that come with it, from its log.

A log may hold several services, of which one is chosen, and several starts: the last one counts, and is an error where
it failed. Within a start every rank may state a capacity: the smallest counts, since a request needs its KV on all of
them. Data-parallel engines are replicas of their own; of them too the smallest is the careful choice. A limit counts
only where it belongs to the same start as the capacity.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.engines import LOGS, Setting, Telling, service_of, telling
from kvplan.ingest.kv_pool import Pool, find_grown, find_pools, most_blocks, settled
from kvplan.ingest.log_starts import Concurrency, Starts, StartUp, Statement
from kvplan.ingest.observed import ObservedDrafts
from kvplan.ingest.results.vllm_bench import PRINTED
from kvplan.ingest.text_file import lines_of
from kvplan.model import Replica
from kvplan.model.kv_layout import KvLayout, least_block_tokens
from kvplan.model.parallelism import ALONE, Parallelism
from kvplan.ranges import MAX_MEMORY_TOKENS
from kvplan.units import format_number, format_percent, format_tokens

_TRUTH = {"True": True, "False": False}
_OFF = 0.02  # of the capacity: rounding and half-filled blocks explain less
_KEPT = 16_000_000  # characters of lines that tell, so that a log without end takes no more memory
_LISTED = 8  # earlier statements in a note


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """KV capacity and other settings of one engine; None for what its start does not log.

    `notes` tell what was assumed, what else was logged, and what does not fit. `layout` is of layers of several kinds,
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


@dataclass(slots=True)
class ReadLog:
    """A log that was read once: its starts by service, and lines that `telling` yields for other readers."""

    source: str
    readers: dict[str, "Starts"] = field(default_factory=dict)
    told: list[Telling] = field(default_factory=list)  # none where they are too many to keep
    sha256: str = ""
    notes: tuple[str, ...] = ()

    def add(self, lines: Iterable[str]) -> "ReadLog":
        """Sort lines into services and starts."""
        kept = _KEPT
        for line in telling(_numbered(lines), PRINTED):
            number, text, ran = line
            if (reader := self.readers.get(whose := service_of(text))) is None:
                reader = self.readers[whose] = Starts()
            if ran is None:
                reader.line(number, text)
            else:
                reader.ran(number, text)
            if kept > 0 and (kept := kept - len(text)) > 0:
                self.told.append(line)
            elif self.told:
                self.told.clear()
        return self

    def limits(self, base: Replica | None = None, service: str | None = None) -> EngineLimits:
        """Return the last KV capacity stated.

        Layers of several kinds are those of `base`, without which blocks of a pool cannot be told from what the log
        says. Of several services in one log, each with a prefix of its own, `service` is the one to read.

        Raises
        ------
        NoCapacityError, UsageError
            No capacity is stated; or there are several services.
        ProfileError
            The last start failed; or its capacity is absurd, or contradicts the maximum concurrency; with its line.
        """
        stating = {name: reader for name, reader in self.readers.items() if reader.starts or reader.failure}
        if len(stating) > 1 and service not in stating:
            names = ", ".join(repr(name) if name else "lines without a prefix" for name in stating)
            raise UsageError(
                f"{self.source}: lines of {len(stating)} services; choose one with --group: {names}"
            )
        if not stating:
            forms = ", ".join(f"{log.engine}'s {log.looked_for}" for log in LOGS)
            raise NoCapacityError(f"{self.source}: states no KV capacity; looked for {forms}")
        name = service if service in stating else next(iter(stating))
        stating[name].refuse_failure(self.source)
        limits = _limits(stating[name], self.source, base)
        return replace(limits, service=name, sha256=self.sha256, notes=(*limits.notes, *self.notes))


def read_log(path: Path) -> ReadLog:
    """Read a log, which may be compressed; bytes that are not UTF-8 do no harm."""
    with lines_of(path, errors="replace") as lines:
        log = ReadLog(lines.source).add(lines)
    log.sha256, log.notes = lines.sha256, lines.notes
    return log


def _numbered(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    number = 1
    for line in lines:
        yield number, line
        number += not line.endswith("\r")  # of a progress bar: it ends no line of an editor


def _limits(reader: Starts, source: str, base: Replica | None) -> EngineLimits:
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


def _pools(start: StartUp, used: Statement, source: str, base: Replica | None) -> list[Pool]:
    """Find the pools that layers of several kinds can share; none where there is one kind, or blocks are not alike."""
    if base is None or (told := base.layout) is None:
        return []
    if Setting.UNIFIED in start.stated:
        try:
            told = replace(told, hybrid=False)
        except ValueError:
            return []
    if start.log.concurrency is None:
        message = f"{start.log.engine} has no pool that layers of several kinds share, as [[gpu.kv]] of the base has"
        raise ProfileError(source, f"{message}: {used.text}", line=used.line)
    cached = base.prefix_caching and told.has_states
    block = max(start.limit(Setting.BLOCK) or told.block_tokens, least_block_tokens(told.layers))
    layout = replace(told, block_tokens=block)
    if layout.held != layout.layers and not used.kind.in_blocks:
        every = "every layer holds every token, of windows and chunks too"
        return [Pool(used.amount // block, layout, f"{format_tokens(used.amount)} tokens, for {every}")]
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


def _notes(reader: Starts, used: Statement, pools: Sequence[Pool]) -> Iterator[str]:
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


def _notes_on_blocks(start: StartUp, used: Statement) -> Iterator[str]:
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


def _off_concurrency(said: Concurrency, memory: int) -> Iterator[str]:
    makes = said.tokens * said.requests
    # The factor is rounded to two digits, which matters where it is small.
    if abs(makes - memory) > _OFF * memory + 0.005 * said.tokens:
        yield (
            f"the log's maximum concurrency, {format_number(said.requests, 6)} times {format_tokens(said.tokens)} "
            f"tokens, makes {format_tokens(makes)} tokens, {format_percent(makes / memory - 1, signed=True)}"
            " of the capacity; some layers may hold less than the whole context, or blocks another size: --model "
            "and --gpu, or a --base with [[gpu.kv]], tell"
        )
