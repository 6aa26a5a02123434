"""What a policy asks of the engine, and the state in which a run of it begins."""

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from threading import Lock
from typing import NamedTuple

import numpy as np

from kvplan.errors import UsageError
from kvplan.model import FloatArray, IntArray, Prefill, Replica, Timing
from kvplan.model.kv_layout import Attention
from kvplan.model.replica import Offload
from kvplan.model.weights import first_tokens, stage_count
from kvplan.simulation.requests import Requests, strangers
from kvplan.simulation.state import (
    AHEAD,
    GAPS,
    NOBODY,
    Ahead,
    Block,
    Blocks,
    Cache,
    Clock,
    Counter,
    Fixed,
    Group,
    Kept,
    Link,
    Place,
    Rank,
    Record,
    Request,
    Router,
    Span,
    State,
    Stream,
    Time,
)

_NO_END = 1 << 60  # tokens
_BENDS = 1e-6  # tokens, more than rounding
_MOST_LOOKED_UP = 1 << 23  # tokens
_MOST_PLACES = 1 << 24  # of all groups: an iteration of the longest request each, and a place in a page
_LOOKED_UP_BY = 1 << 12  # at a time, so that runs whose longest request is another one share a table
_MOST_NODES = 10**7  # of a radix tree; 800 MB, of which only those in use are touched
RECORDS = 4096  # of the series; when it is full, every second one goes
_MOST_TABLES = 1 << 27  # places, of a cache in groups; 1 GB, of which only those in use are touched
_BINS = 1 << 14
_AT_ONCE = 4096  # rows


class Pools(NamedTuple):
    """Two pools of pages with a token in every layer: of those with full attention, and of those with a window.

    Memory that is held is told in tokens of the profile's pool, by its bytes.
    """

    window: int  # tokens
    blocks: int  # pages of the pool of full attention
    windows: int  # pages of the pool of windows
    full_bytes: int  # of a page in the one
    window_bytes: int  # and in the other
    pool_bytes: int  # of a token of the profile's pool


class Setup(NamedTuple):
    """What a policy needs of the engine."""

    queue_of: IntArray  # shape (n_requests,): queue that each request joins, numbered from 0
    queues: int
    # shape (n_groups,): stage before which members leave each group; at least every request's stages, but for all
    # groups but the last of a policy that hands requests on
    until: IntArray
    knobs: FloatArray  # parameters, for the policy's own eyes
    capacity_blocks: int | None = None  # blocks that it may use; None: all that fit in memory
    seats: int | None = None  # most requests that may be resident at once; None: as many as fit
    # shape (n_requests,): where the policy counts memory as its engine does; None: the profile's prefill
    # convention
    first_weight: IntArray | None = None
    stages: IntArray | None = None
    # shape (n_requests,): blocks or tokens that an admission promises until the request leaves; None: nothing is
    # promised
    promise: IntArray | None = None
    # shape (n_requests,): stages that the policy expects of each request; None: it looks at no later tick
    expected: IntArray | None = None
    ranks: int = 0  # how many ranks there are, numbered from 0; 0: the policy has none
    # what those who have left leave behind until its room is needed: NO_CACHE, BLOCKS or RADIX_TREE
    prefix_cache: int = Cache.NONE
    # whoever has waited longer in the first queue and has never run is given up, seconds
    shed_after_s: float = math.inf
    # one group, and the policy only lets it run where nobody waits, or where in the iteration before nobody was
    # admitted, evicted or done: who did not fit then does not fit now. Nor is anybody admitted beside a prompt
    # that goes on. See `kvplan.simulation.fast_forward`.
    coasts: bool = False
    pools: Pools | None = None  # where windows have a pool of their own
    host: Offload | None = None  # the tier of host memory behind a prefix cache of blocks
    counts_queues: bool = False  # the ranks are those of queues, by who waits in each
    balance_iterations: int = 0  # that prompts wait at most until every data-parallel rank has one
    # where a data-parallel rank is chosen, a request that waits weighs as much as so many that run; 0: one rank after
    # the other
    waiting_weighs: int = 1


def stage_weights(requests: Requests, prefill: Prefill) -> tuple[IntArray, IntArray]:
    """Return the KV tokens at stage 0 and the number of stages of each request (theory §1)."""
    return first_tokens(prefill, requests.input_tokens), stage_count(prefill, requests.decode_tokens)


def row_columns(requests: Requests, setup: Setup, replica: Replica) -> tuple[int, int]:
    """Count the columns that `State.time` and `State.request` need."""
    times = Time.THINK if requests.turns is None else Time.READY
    columns = Request.HOLDS
    if setup.prefix_cache != Cache.NONE:
        columns = Request.WIDTH
    elif requests.turns is not None:
        columns = Request.LEAF
    elif setup.expected is not None or setup.ranks:
        columns = Request.FOLLOWING
    elif replica.layout is not None or requests.drafted is not None:
        columns = Request.EXPECTED
    return times if setup.host is None else Time.WIDTH, columns


class Spans(NamedTuple):
    """Equal spans of time, in which sums are kept apart."""

    begin_s: float
    width_s: float
    number: int


class NotBegunError(Exception):
    """Somebody stopped a run whose requests had not been set up."""


def begin_rows(
    time: FloatArray,
    request: IntArray,
    requests: Requests,
    setup: Setup,
    prefill: Prefill,
    start: int,
    watch: Callable[[int], bool] | None = None,
) -> None:
    """Write into rows of `State.time` and `State.request` what is known of the requests from `start` on.

    Raises NotBegunError where `watch`, asked before all rows but the first thousands, answers False.
    """
    for some in _near(time.shape[0]):
        if watch is not None and some.start and not watch(0):
            raise NotBegunError
        _begin(time[some], request[some], requests, setup, prefill, start + some.start)


def _near(rows: int) -> Iterator[slice]:
    """Yield rows by the thousand, to be written column by column while they are in the processor's cache."""
    return (slice(low, low + _AT_ONCE) for low in range(0, rows, _AT_ONCE))


def _begin(
    time: FloatArray, request: IntArray, requests: Requests, setup: Setup, prefill: Prefill, start: int
) -> None:
    mine = slice(start, start + time.shape[0])
    time[:], request[:] = math.nan, 0
    time[:, Time.ARRIVAL] = requests.arrival_s[mine]
    if setup.first_weight is None:
        request[:, Request.FIRST_WEIGHT] = first_tokens(prefill, requests.input_tokens[mine])
    else:
        request[:, Request.FIRST_WEIGHT] = setup.first_weight[mine]
    if setup.stages is None:
        request[:, Request.STAGES] = stage_count(prefill, requests.iterations(mine))
    else:
        request[:, Request.STAGES] = setup.stages[mine]
    request[:, Request.PROMPT], request[:, Request.QUEUE] = requests.input_tokens[mine], setup.queue_of[mine]
    if requests.drafted is not None:
        request[:, Request.PATH] = requests.drafted.begin[start : start + time.shape[0]]
    request[:, Request.PLACE] = Place.OUTSIDE
    if setup.promise is not None:
        request[:, Request.PROMISE] = setup.promise[mine]
    if setup.expected is not None:
        request[:, Request.EXPECTED] = setup.expected[mine]
    if requests.turns is not None:
        turns = requests.turns
        request[:, Request.FOLLOWING] = turns.following[mine]
        request[:, Request.INSTEAD] = turns.instead[mine]
        if turns.beside is not None:
            request[:, Request.BESIDE] = turns.beside[mine]
            request[:, Request.AWAITED] = turns.awaited[mine]
        time[:, Time.THINK] = turns.think_s[mine]


def most_stages(requests: Requests, setup: Setup, prefill: Prefill) -> int:
    """Return the most stages of any request; 1 where there is none."""
    if setup.stages is not None:
        return int(setup.stages.max(initial=1))
    return int(stage_count(prefill, requests.iterations().max(initial=1, keepdims=True))[0])


def new_state(
    requests: Requests,
    timing: Timing,
    replica: Replica,
    setup: Setup,
    horizon_s: float | None,
    request_overhead_s: float = 0.0,
    rows: int | None = None,
    watch: Callable[[int], bool] | None = None,
    spans: Spans | None = None,
    unseen: tuple[int, int] = (0, 0),
) -> State:
    """Make the state before anything has arrived, with rows for all requests or for so many at first.

    `unseen` are the most stages and the most tokens of requests that are not given yet. Raises as `begin_rows` does.
    """
    size, block = requests.arrival_s.size, replica.block_tokens
    rows = size if rows is None else rows
    groups, drafted = setup.until.size, requests.drafted
    longest = max(unseen[0], most_stages(requests, setup, replica.prefill))
    columns = row_columns(requests, setup, replica)
    time = np.empty((rows, columns[0]))
    request = np.empty((rows, columns[1]), dtype=np.int64)
    begin_rows(time, request, requests, setup, replica.prefill, 0, watch)
    fixed = _fixed(requests, replica, setup)
    count = np.zeros(Counter.WIDTH, dtype=np.int64)
    count[Counter.STRIDE] = 1
    count[[Counter.PARTLY, Counter.SPARE, Counter.NOTED]] = NOBODY
    count[[Counter.OLDEST, Counter.NEWEST, Counter.HOST_OLDEST, Counter.HOST_NEWEST]] = NOBODY
    if requests.clients is None:
        count[Counter.RELEASED] = np.count_nonzero(~np.isnan(requests.arrival_s[:rows]))
    else:
        count[Counter.RELEASED] = min(size, requests.clients)
        time[count[Counter.RELEASED] :, Time.ARRIVAL] = math.nan
    count[Counter.ROWLESS] = size - rows
    clock = np.zeros(Clock.LAST_RUN + groups)
    clock[Clock.HORIZON] = math.inf if horizon_s is None else horizon_s
    clock[Clock.OVERHEAD], clock[Clock.SHED_AFTER] = request_overhead_s, setup.shed_after_s
    clock[Clock.VERIFY] = 0.0 if drafted is None else drafted.drafts.tokens * drafted.drafts.verify_s
    clock[Clock.LOAD] = 0.0 if setup.host is None else setup.host.load_s * block
    clock[Clock.PAUSE] = clock[Clock.SPAN_END] = math.inf
    clock[Clock.ENDED] = -1.0
    if spans is not None:
        clock[Clock.SPAN_END], clock[Clock.SPAN_WIDTH] = spans.begin_s, spans.width_s
    ring_size = np.minimum(setup.until, longest) + 1
    if int(ring_size.sum()) + groups * block > _MOST_PLACES:
        raise UsageError(
            f"{groups:,} groups of requests of up to {longest:,} iterations, in blocks of {block:,} tokens, are more "
            "than a simulation has room for"
        )
    group = np.zeros((groups, Group.WIDTH), dtype=np.int64)
    group[:, Group.UNTIL], group[:, Group.RING_SIZE] = setup.until, ring_size
    group[:, Group.RING_START] = np.cumsum(ring_size) - ring_size
    ahead = 0 if setup.expected is None else max(longest, int(setup.expected.max(initial=0)))
    leaves = 1 << (setup.ranks - 1).bit_length() if setup.ranks else 0
    rank = np.zeros((2 * leaves, Rank.WIDTH), dtype=np.int64)
    rank[:, Rank.TOP] = NOBODY
    span = np.zeros((1 if spans is None else spans.number + 2, Span.WIDTH))
    span[:, Span.LEAST_WAITING] = math.inf
    stream = np.zeros((0, Stream.WIDTH), dtype=np.int64)
    if setup.prefix_cache == Cache.BLOCKS:
        count[[Counter.FREE, Counter.BLANK]] = fixed[Fixed.CAPACITY]
        some = requests if rows == size else requests.part(0, rows)
        leaf, copy, stream = block_streams(some, block)
        for near in _near(rows):
            request[near, Request.LEAF], request[near, Request.COPY] = leaf[near], copy[near]
            request[near, Request.COPIED] = NOBODY
        if setup.host is not None:
            stream = np.pad(stream, ((0, 0), (0, Stream.WIDTH - Stream.HOST)))
    elif setup.prefix_cache == Cache.RADIX_TREE:
        leaf, stream, count[Counter.ROWS] = radix_streams(requests, block, int(fixed[Fixed.CAPACITY]))
        request[:, Request.LEAF], request[:, Request.NODE] = leaf, NOBODY
    elif setup.prefix_cache == Cache.GROUPS:
        count[Counter.BLANK] = fixed[Fixed.CAPACITY]
        request[:, Request.LEAF], request[:, Request.ROWS], stream = group_streams(requests, replica)
    pool, table, kept = _groups(requests, replica, setup, fixed)
    blocks, context = _looked_up(requests, replica, setup, unseen[1])
    return State(
        timing=np.array([*timing.constants, timing.all_ranks, timing.d5_all_ranks], dtype=np.float64),
        fixed=fixed,
        knobs=np.asarray(setup.knobs, dtype=np.float64),  # of whole numbers too: one compiled loop
        clock=clock,
        counter=count,
        time=time,
        request=request,
        list=np.array([[NOBODY, NOBODY, 0]] * (setup.queues + 2 * groups)),
        group=group,
        phase=np.zeros((groups, block), dtype=np.int64),
        ring=np.full(int(ring_size.sum()), NOBODY),
        future=np.zeros(ahead, dtype=np.int64),
        rank=rank,
        histogram=np.zeros(fixed[Fixed.KV_BINS] + span.shape[0] * GAPS, dtype=np.int64),
        span=span,
        record=np.zeros((RECORDS, Record.WIDTH)),
        stream=stream,
        pool=pool,
        table=table,
        kept=kept,
        blocks=blocks,
        context=context,
        ahead=np.zeros(Ahead.WIDTH if fixed[Fixed.LAYERED] else 0),
        turn=np.full(AHEAD if fixed[Fixed.LAYERED] else 0, NOBODY),
        emitted=np.zeros(0, dtype=np.int64) if drafted is None else drafted.emitted,
        fleet=np.zeros((1, Router.WIDTH), dtype=np.int64),
        link=np.zeros((0, 2 * Link.WHOSE)),
    )


def common_arrays(requests: Requests, setup: Setup) -> set[str]:
    """Name the arrays of `State` that replicas, or data-parallel ranks, have in common."""
    # they count in one histogram, which so stays in the processor's cache
    common = {"time", "request", "fleet", "link", "histogram", "timing", "blocks", "context", "emitted"}
    if setup.prefix_cache == Cache.GROUPS or (
        requests.prefixes is None and setup.prefix_cache != Cache.RADIX_TREE
    ):
        common.add("stream")  # a stranger leaves its blocks where it has been, and nobody else's
    return common


def like(first: State, common: set[str], records: int) -> State:
    """Make a state as another one that has not begun, with arrays in common and so many records."""
    # of large pages little is ever written: a copy of them takes memory, zeros do not before they are written
    not_copied = {*common, "record", "phase", "table"}
    own = {name: array.copy() for name, array in first._asdict().items() if name not in not_copied}
    own["phase"], own["table"] = np.zeros_like(first.phase), np.zeros_like(first.table)
    own["record"] = np.zeros((records, first.record.shape[1]))
    return first._replace(**own)


def with_ranks(replicas: tuple[State, ...], requests: Requests, setup: Setup) -> tuple[State, ...]:
    """Put the states of data-parallel ranks behind those of their replicas, where they have some."""
    common = common_arrays(requests, setup)
    ranks = [like(s, common, 0) for s in replicas for _ in range(s.fixed[Fixed.PARALLEL])]
    for s in ranks:
        s.fixed[Fixed.CLIENTS] *= s.link.shape[0] > 0  # those of a replica alone are served by it
    return (*replicas, *ranks)


def _fixed(requests: Requests, replica: Replica, setup: Setup) -> IntArray:
    """Fill `State.fixed`."""
    size, block = requests.arrival_s.size, replica.block_tokens
    bin_tokens = replica.memory_tokens // _BINS + 1
    own_convention, drafted = setup.stages is not None, requests.drafted
    looked_up = replica.layout is not None or drafted is not None
    fixed = np.zeros(Fixed.WIDTH, dtype=np.int64)
    fixed[Fixed.CAPACITY] = (
        replica.memory_tokens // replica.ranks // block
        if setup.capacity_blocks is None
        else setup.capacity_blocks
    )
    fixed[Fixed.BLOCK] = block
    fixed[Fixed.SILENT] = replica.prefill is Prefill.INLINE and not own_convention
    fixed[Fixed.READY_MADE] = replica.prefill is Prefill.DISAGGREGATED and not own_convention
    fixed[Fixed.CLIENTS] = requests.clients is not None
    fixed[Fixed.LAGS] = requests.clients is not None and not requests.at_once
    fixed[Fixed.BIN], fixed[Fixed.KV_BINS] = bin_tokens, replica.memory_tokens // bin_tokens + 1
    fixed[Fixed.QUEUES], fixed[Fixed.COUNTS_QUEUES] = setup.queues, setup.counts_queues
    fixed[Fixed.MORE_LATER], fixed[Fixed.ALL] = requests.more_later, size
    fixed[Fixed.SEATS] = max(size, 1) if setup.seats is None else setup.seats
    fixed[Fixed.CACHES] = setup.prefix_cache
    if requests.turns is not None:
        fixed[Fixed.TURNS] = 1 if requests.turns.beside is None else 2
    fixed[Fixed.COASTS] = setup.coasts and drafted is None and setup.pools is None and replica.ranks == 1
    fixed[Fixed.MOST_WAITING] = size + 1 if requests.most_waiting is None else requests.most_waiting
    if drafted is not None:
        fixed[Fixed.SLOTS], fixed[Fixed.DRAFTS] = drafted.drafts.slots, drafted.drafts.tokens
    if setup.pools is not None:
        pools = setup.pools
        fixed[Fixed.WINDOW], fixed[Fixed.WINDOWS] = pools.window, pools.windows
        fixed[Fixed.FULL_BYTES], fixed[Fixed.WINDOW_BYTES] = pools.full_bytes, pools.window_bytes
        fixed[Fixed.POOL_BYTES] = pools.pool_bytes
    if setup.host is not None:
        fixed[Fixed.HOST_CAPACITY] = setup.host.memory_tokens // block
        fixed[Fixed.INCLUSIVE], fixed[Fixed.OVERLAPS] = setup.host.inclusive, setup.host.overlap
    fixed[Fixed.EXTENDED] = requests.turns is not None or (
        not looked_up and (setup.prefix_cache != Cache.NONE or setup.shed_after_s < math.inf)
    )
    fixed[Fixed.HOSTED] = setup.host is not None and not looked_up
    fixed[Fixed.LAYERED], fixed[Fixed.POOLED] = looked_up, setup.pools is not None
    fixed[Fixed.GROUPED] = setup.prefix_cache == Cache.GROUPS
    if replica.ranks > 1:
        fixed[Fixed.PARALLEL], fixed[Fixed.BALANCE] = replica.ranks, setup.balance_iterations
        fixed[Fixed.WAITING_WEIGHS] = setup.waiting_weighs
        fixed[Fixed.TURNS_STAY] = replica.turns_stay and requests.turns is not None
    return fixed


def _looked_up(
    requests: Requests, replica: Replica, setup: Setup, most_unseen: int
) -> tuple[IntArray, FloatArray]:
    """Fill `State.blocks` and `State.context`: nothing, where blocks follow from tokens by a division."""
    drafted = requests.drafted
    if replica.layout is None and drafted is None:
        return np.zeros((0, Blocks.WIDTH), dtype=np.int64), np.zeros(0)
    most = int(requests.input_tokens.max(initial=0)) + int(requests.decode_tokens.max(initial=1))
    most = max(most_unseen, most)
    if most > _MOST_LOOKED_UP:
        raise UsageError(
            f"requests of up to {most:,} tokens; beside drafts or layers of several kinds {_MOST_LOOKED_UP:,} is "
            "the most in a simulation"
        )
    slots = 0 if drafted is None else drafted.drafts.slots
    longest = -(-(most + slots + 2) // _LOOKED_UP_BY) * _LOOKED_UP_BY
    # runs in other threads wait for this one's table: it may take as much memory as they do
    with _looking_up:
        blocks, context = _lookup(replica, longest, setup.prefix_cache == Cache.GROUPS)
    if setup.pools is not None:
        tokens, block = np.arange(context.size), replica.block_tokens
        filled, passed = tokens + block - 1, np.maximum(tokens - setup.pools.window + 1, 0)
        blocks = np.stack([filled, passed, np.zeros_like(filled)], axis=1) // block  # no stretches
    return blocks, context


_looking_up = Lock()


@lru_cache(1)
def _lookup(replica: Replica, longest: int, grouped: bool) -> tuple[IntArray, FloatArray]:
    """Tabulate `State.blocks` and `State.context` up to so many tokens; those of many runs are the same."""
    tokens, nothing = np.arange(longest + 1), np.zeros(longest + 1, dtype=np.int64)
    layout = replica.layout
    if layout is None:
        filled = -(-tokens // replica.block_tokens)
        return np.stack([filled, nothing, nothing], axis=1), tokens.astype(np.float64)
    filled = layout.pool_tokens(nothing, tokens) // layout.block_tokens
    most = np.full(longest + 1, longest)
    passed = (layout.pool_tokens(nothing, most) - layout.pool_tokens(tokens, most)) // layout.block_tokens
    context = layout.read_tokens(tokens.astype(np.float64))
    before = np.concatenate([[0], passed[:-1]])
    bends = np.abs(np.diff(context, 2, prepend=[0.0, 0.0])) > _BENDS
    changes = bends | (np.diff(filled - before, prepend=0) != 0)
    if grouped:  # which blocks are held, and which of them are known
        changes = np.diff(filled + before, prepend=0) != 0
        changes |= tokens % layout.block_tokens == 0
    turns = np.where(changes, tokens, _NO_END)
    later = np.append(np.minimum.accumulate(turns[:0:-1])[::-1], _NO_END)
    return np.stack([filled, passed, later], axis=1), context


def block_streams(requests: Requests, block: int) -> tuple[IntArray, IntArray, IntArray]:
    """Return LEAF and COPY of each request; and the streams in blocks, the array `State.stream`.

    Streams without a block of their own are passed over. Where a prompt ends with a stream, the last block of that
    is made a stream of its own, and the prompt gets a copy of it to compute.
    """
    leaf, parent, begin, end = _in_blocks(requests, block)
    whole = (requests.input_tokens == begin[leaf] * block) & (parent[leaf] >= 0)
    ends = np.unique(parent[leaf[whole]])
    long = ends[end[ends] - begin[ends] > 1]
    last = np.full(parent.size, NOBODY)  # of a stream, where it is one of its own
    last[long] = parent.size + np.arange(long.size)
    parent = np.where((parent >= 0) & (last[parent] >= 0), last[parent], parent)
    parent, begin, end = (
        np.concatenate(pair) for pair in ((parent, long), (begin, end[long] - 1), (end, end[long]))
    )
    end[long] -= 1
    size = parent.size + np.count_nonzero(whole)
    stream = np.full((size, Stream.HOST), NOBODY)
    stream[:, [Stream.HOLDERS, Stream.CACHED]] = 0
    stream[: parent.size, Stream.PARENT], stream[: parent.size, Stream.BEGIN] = parent, begin
    stream[: parent.size, Stream.REST] = end - begin
    stream[:, Stream.FIRST] = stream[:, Stream.ORIGINAL] = np.arange(size)
    stream[parent.size :, Stream.ORIGINAL] = parent[leaf[whole]]
    copy = np.full(leaf.size, NOBODY)
    copy[whole] = np.arange(parent.size, size)
    return leaf, copy, stream


def group_streams(requests: Requests, replica: Replica) -> tuple[IntArray, IntArray, IntArray]:
    """Return LEAF and ROWS of each request; and the streams, of which blocks in groups know where they begin.

    All blocks have rows where some of any prompt is found though nothing is known: no group needs the last of it.
    """
    leaf, parent, begin, _ = _in_blocks(requests, replica.block_tokens)
    groups = () if replica.layout is None else replica.layout.groups
    others = np.bincount(leaf)[leaf] > 1
    others |= all(group.kind is Attention.CHUNK or group.window == 1 for group in groups)
    return leaf, np.where(others, _NO_END, begin[leaf]), np.stack([parent, begin], axis=1)


def _groups(
    requests: Requests, replica: Replica, setup: Setup, fixed: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Fill `State.pool`, `State.table` and `State.kept`: nothing without a cache in groups."""
    kept = np.zeros((0, Kept.WIDTH), dtype=np.int64)
    if setup.prefix_cache != Cache.GROUPS or replica.layout is None:
        return np.zeros((0, Block.WIDTH), dtype=np.int64), np.zeros((0, 1), dtype=np.int64), kept
    for group in replica.layout.groups:
        column = Kept.CHUNK if group.kind is Attention.CHUNK else Kept.WINDOW
        row = np.bincount([column], [group.window or 0], Kept.WIDTH).astype(np.int64)
        row[Kept.STATE] = group.kind is Attention.STATE
        kept = np.vstack([kept, *[row] * group.copies])
    blocks, size = int(fixed[Fixed.CAPACITY]), requests.arrival_s.size
    longest = int((requests.input_tokens + requests.decode_tokens).max(initial=1))
    residents = min(int(fixed[Fixed.SEATS]), size, blocks // len(kept) + 1)
    places = -(-(longest + 1) // replica.block_tokens)
    if residents * len(kept) * places > _MOST_TABLES:
        raise UsageError(
            f"{residents:,} requests of up to {longest:,} tokens in {len(kept)} groups of layers: more than a "
            "prefix cache beside windows has room for in a simulation; give [gpu] max_num_seqs"
        )
    pool = np.full((blocks + 1, Block.WIDTH), NOBODY)
    pool[:, [Block.HOLDERS, Block.AHEAD]] = 0
    pool[blocks, [Block.IN_FRONT, Block.BEHIND]] = blocks
    pool[:, Block.NEXT] = np.roll(np.arange(blocks + 1), -1)
    return pool, np.zeros((residents + 1, 1 + len(kept) * places), dtype=np.int64), kept


def radix_streams(requests: Requests, block: int, capacity: int) -> tuple[IntArray, IntArray, int]:
    """Return LEAF of each request; the streams in blocks, with room behind them for nodes; how many streams.

    A node has a block of its own, so there are never more of them than blocks, of memory or of all sequences.
    """
    leaf, parent, begin, end = _in_blocks(requests, block)
    ever = int((-(-(requests.input_tokens + requests.decode_tokens) // block)).sum())
    most = parent.size + min(ever, capacity) + 1
    if most > _MOST_NODES:
        raise UsageError(
            f"a radix tree of up to {most:,} blocks, of which {_MOST_NODES:,} have room; fewer requests, or larger "
            "block_tokens"
        )
    stream = np.zeros((most, Stream.FIRST), dtype=np.int64)
    streams = stream[: parent.size]
    streams[:, Stream.PARENT], streams[:, Stream.BEGIN], streams[:, Stream.REST] = parent, begin, end - begin
    streams[:, Stream.TIP] = NOBODY
    return leaf, stream, parent.size


def _in_blocks(requests: Requests, block: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return LEAF of each request; of each stream the last one before it with a block, and begin and end in blocks."""
    known = strangers(requests.arrival_s.size) if requests.prefixes is None else requests.prefixes
    leaf, parent = known.stream, known.parent.copy()
    begin, end = known.begin_tokens // block, known.end_tokens // block
    end[leaf] = _NO_END
    inner = np.flatnonzero(parent >= 0)
    while (empty := inner[end[parent[inner]] == begin[parent[inner]]]).size:
        parent[empty] = parent[parent[empty]]
        inner = inner[parent[inner] >= 0]
    return leaf, parent, begin, end
