"""The state of a run, as arrays: requests, lists they stand in, groups that move together, counters.

A *group* is a set of requests that always run together: each of its executed iterations, a tick, moves every member
by a stage. So a member's stage follows from the tick at which it would have begun, the group's memory grows by what
its size says, and only arrivals, admissions, evictions and completions touch single requests. Groups keep their
members in order of admission, and in a ring of lists by the tick at which they are due to leave.
"""

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from threading import Lock
from typing import NamedTuple

import numpy as np

from kvplan.errors import UsageError
from kvplan.model import FloatArray, IntArray, Prefill, Replica, Timing
from kvplan.model.offload import Offload
from kvplan.model.weights import first_tokens, stage_count
from kvplan.simulation.kernels import kernel
from kvplan.simulation.prefixes import strangers
from kvplan.simulation.requests import Requests

NOBODY = -1
_NO_END = 1 << 60  # tokens
_MOST_LOOKED_UP = 1 << 23  # tokens
_LOOKED_UP_BY = 1 << 12  # at a time, so that runs whose longest request is another one share a table
_MOST_NODES = 10**7  # of a radix tree; 800 MB, of which only those in use are touched
RECORDS = 4096  # of the series; when it is full, every second one goes
_BINS = 1 << 14
_AT_ONCE = 4096  # rows
GAPS = 20_800  # bins of `State.histogram` for times between tokens, behind those of KV tokens
GAPS_IN_E = 500  # bins in which a time grows by a factor e: each is 0.2 % wide
SHORTEST_GAP_S = 1e-9  # what is shorter counts as this; the longest is 1e9 times a second

# Places a request can be in besides the queues and groups, which are numbered from 0.
OUTSIDE, PARTIAL, GIVEN_UP = -1, -2, -3

# The integer counters of a run, positions in `State.counter`.
(
    RELEASED,  # requests that have arrived, or whose arrival is fixed
    JOINED,  # of these, those that have joined a queue
    RESIDENT,
    COMPLETED,
    EVICTED,
    OVERFLOWS,
    ITERATIONS,
    SEQUENCE,
    HELD,  # blocks
    PROMPTS,  # tokens of this batch's prefill
    MORE_TOKENS,  # of this batch, beside whole groups
    MORE_REQUESTS,
    MORE_SILENT,  # of these, those that emit nothing
    RECOMPUTED,
    COMPUTED,
    PEAK,
    QUEUE_PEAK,
    PROMPTS_PEAK,
    BATCH_PEAK,
    WAITING,
    STUCK,  # why nothing can ever complete, where that is known: NEVER_FITS or AGAIN
    LAST_COMPLETION,  # iteration
    RECORDED,
    STRIDE,
    PARTLY,  # the request whose prompt is computed in part, or NOBODY
    PROMISED,  # sum of what residents are promised
    LACKING,  # tick at which memory would have lacked for a request that was not admitted
    ROWLESS,  # requests that come after those that have a row of their own
    SHED,
    GONE,  # these, and those that therefore never come
    FREE,  # blocks in the queue of free ones; this and what follows: of a prefix cache
    BLANK,  # of these, those that hold nothing known
    OLDEST,  # ends of the queue
    NEWEST,
    LOOKED_UP,  # tokens of the sequences of first admissions
    LOOKED_UP_AGAIN,  # of further ones
    ROWS,  # of a radix tree: those of its nodes that have been used
    SPARE,  # one that is free again
    WINDOWED,  # blocks of the pool of windows
    HOSTED,  # blocks in the queue of the host tier; this and what follows: of that
    HOST_OLDEST,  # its ends
    HOST_NEWEST,
    OUTSTANDING,  # requests before the last iteration ended: waiting, resident or handed over
    HELD_BEFORE,  # blocks, before the last iteration ended
    ON_LINKS,  # requests handed over whose KV has not gone yet
    SPAN,  # the row of `State.span` that counts now
    _COUNTERS,
) = range(47)

NEVER_FITS, AGAIN = 1, 2  # a request does not fit even alone; the same ones overflow again and again

# Positions in `State.clock`; from LAST_RUN on when each group last ran.
(
    NOW,
    HORIZON,
    BUSY,
    KV_SUM,
    OVERHEAD,
    CACHED_SUM,
    SHED_AFTER,
    GAP_SUM,
    VERIFY,
    LOAD,
    LOADING,
    LINK_FREE,
    LINK_BUSY,
    PAUSE,  # no iteration begins from then on; this and what follows: of a replica of a fleet
    CALM,  # until then nobody can be done, if nobody arrives
    SECONDS_PER_TOKEN,  # of KV that comes from another replica
    SPAN_END,  # of the span that counts now
    SPAN_WIDTH,
    LAST_RUN,
) = range(19)

# In `State.fixed`.
(
    CAPACITY,
    BLOCK,
    SILENT,
    READY_MADE,
    CLIENTS,
    BIN,
    QUEUES,
    MORE_LATER,
    SEATS,
    TURNS,
    CACHES,
    KV_BINS,
    SLOTS,  # that a request holds beyond its tokens in an iteration with drafts
    DRAFTS,  # of an iteration
    COASTS,
    ALL,  # requests
    WINDOW,  # tokens; this and what follows: of `Pools`
    WINDOWS,
    FULL_BYTES,
    WINDOW_BYTES,
    POOL_BYTES,
    HOST_CAPACITY,  # blocks; this and what follows: of a host tier
    INCLUSIVE,
    OVERLAPS,
    COUNTS_QUEUES,
    SITE_NUMBER,  # of the replica in its fleet
    HANDED_OVER,  # requests of a fleet that computes prompts apart: rows from here on are theirs for decode replicas
    MOST_WAITING,  # beyond so many nobody joins a queue
) = range(28)

NO_CACHE, BLOCKS, RADIX_TREE = range(3)  # what `CACHES` can be

MAX_TOKENS = 0  # the first of the knobs, where prompts are computed in parts: the budget of an iteration

ARRIVAL, FIRST_TOKEN, FINISH, THINK, COMING_S, READY_S = range(6)  # columns of `State.time`

# Columns of `State.request`.
(
    FIRST_WEIGHT,  # KV tokens at stage 0
    STAGES,
    PROMPT,  # tokens
    QUEUE,  # that it joins
    EVICTIONS,
    PLACE,  # list that it stands in: queues first, groups after them, lists of parked requests last
    START,  # tick of its group at which a member would have been at stage 0
    ENTERED_AT,  # tick at which it came into its group
    ENTERED_IN,  # and iteration, the one being formed counted
    STAGE,  # of a request outside groups: where it goes on
    PARKED,  # KV tokens held by a request that is resident outside a group
    ADMISSION,  # number in the order of admissions
    BEFORE,  # neighbours in the list it stands in
    AFTER,
    DUE_BEFORE,  # neighbours among those due at the same tick
    DUE_AFTER,
    PROMISE,  # while it is resident: blocks or tokens, as the policy counts
    _PLAIN_REQUEST_COLUMNS,
) = range(18)

# Further columns, of policies that look ahead or rank.
(
    EXPECTED,  # stages that the policy expects of it
    BELOW,  # neighbours in the pile of a rank
    ABOVE,
    _REQUEST_COLUMNS,
) = range(_PLAIN_REQUEST_COLUMNS, _PLAIN_REQUEST_COLUMNS + 4)

HOLDS = EXPECTED  # where layers keep KV of several kinds, or with drafts: blocks of it
HOLDS_WINDOWS = ABOVE  # and of the pool of windows
PATH = BELOW  # with drafts: where it begins in `State.emitted`

# Further columns, of runs in which requests follow each other or are cached.
(
    FOLLOWING,  # as `kvplan.simulation.prefixes.Turns` has it
    INSTEAD,
    COMING,  # who stands at this place of the heap of those to come; no matter of this request
    LEAF,  # stream that it ends in
    COPY,  # stream that stands for a copy which it may make, or NOBODY
    COPIED,  # the stream that this is a copy of now, or NOBODY
    HIT,  # tokens found at the first admission
    RECOVERED,  # at further ones
    NODE,  # of a radix tree, down to which it holds all, or NOBODY
    ENTERED,  # whether its prompt is in the tree
    LOADED,  # of the tokens found at the first admission, those that a host tier had
    LOADS_FROM,  # blocks that the GPU had when its load began
    _ALL_REQUEST_COLUMNS,
) = range(_REQUEST_COLUMNS, _REQUEST_COLUMNS + 13)

# Columns of `State.stream`, counts in blocks.
(
    PARENT,
    BEGIN,  # before it
    REST,  # in it, once whole
    HOLDERS,  # requests
    CACHED,  # in the queue
    IN_FRONT,  # neighbours there
    BEHIND,
    FIRST,  # copy that is found, if there is one; else the stream itself
    NEXT_COPY,  # found after this one
    ORIGINAL,  # that this is a copy of; itself, if it is none
    _STREAM_COLUMNS,
) = range(11)

# Further columns, with a host tier.
(
    HOST,  # blocks in its queue
    HOST_IN_FRONT,  # neighbours there
    HOST_BEHIND,
    LOADERS,  # requests that wait for a load of some of it
    _HOSTED_STREAM_COLUMNS,
) = range(_STREAM_COLUMNS, _STREAM_COLUMNS + 5)

# Where they are otherwise those of a radix tree: of its nodes, which stand behind the streams ...
END, OF = BEGIN, FIRST  # blocks down to its end, stream that this is in
TIP = FIRST  # ... and of a stream: the last node that holds a block of it, or NOBODY

SITE = -1  # the last column in a fleet: the replica that a request is at, or is meant for; else NOBODY

HEAD, TAIL, LENGTH = range(3)  # columns of `State.list`

FILLED, PASSED = range(2)  # columns of `State.blocks`

COUNT, TOP = range(2)  # columns of `State.rank`

# Columns of `State.span`, sums over the iterations that began in it.
(
    KV_S,  # tokens held, times seconds; this and the next two: integrals over busy time
    RUNNING_S,
    WAITING_S,
    SPAN_BUSY_S,
    STEPS,
    CONTEXT,  # this and what follows: the amounts that the law of iteration times is made of
    PREFILLED,
    SEQUENCES,
    ROOTS,  # of the sequences of each iteration
    BEYOND_KNEE,
    LEAST_WAITING,  # no sum: the least of any iteration; infinite where there was none
    _SPAN_COLUMNS,
) = range(12)
KNEE = 6  # in `State.timing`

# Columns of `State.group`.
(
    TICK,  # executed iterations, the one being formed included
    WEIGHT,  # KV tokens of its members in that iteration
    RUNS,  # whether it is in the batch; STANDS_BY: only those who enter it now
    UNTIL,  # stage before which members leave, done or not
    RING_START,  # of its part of `State.ring`
    RING_SIZE,
    _GROUP_COLUMNS,
) = range(7)


STANDS_BY = 2

# Columns of `State.fleet`, in its first row ...
(
    TO_COME,  # requests whose arrival another one has fixed
    UNASKED,  # who comes next of the others, and who comes no more
    UNASKED_END,
    NEXT_OF_CLIENTS,  # in a closed loop, who comes when somebody is done
    RULE,
    BRINGS,  # whether a completion may bring somebody
    FURTHER,  # requests that have no row yet
    _FLEET_COLUMNS,
) = range(8)
# ... and in those of the replicas.
(
    ROLE,
    IDLES,
    ENDS,  # an iteration in which somebody is done: the router does not know yet
    ASKED,  # what it does where nobody comes any more
    CLOSED,  # to requests that come: not yet there, or on its way out
) = range(5)
BLIND, BY_REQUESTS, BY_KV = range(3)  # rules: each request has its SITE, or the router looks
WHOLE, PREFILL, DECODE = range(3)  # roles

ACTS, SEEN, SEEN_DECODING, TRANSFERS_UNTIL, WHOSE = range(5)  # of `State.link`


class State(NamedTuple):
    """Everything a run reads and writes. Arrays with named columns.

    Attributes
    ----------
    timing : ndarray of float64
        Constants of the iteration time, as `kvplan.model.iteration_time` takes them.
    fixed : ndarray of int64
        Other constants of the run: CAPACITY (blocks) ... SEATS (most residents).
    knobs : ndarray of float64
        Parameters of the policy.
    clock : ndarray of float64
        NOW, HORIZON and BUSY, the time of all iterations (seconds), KV_SUM (tokens), OVERHEAD: what a request takes
        outside the engine (seconds), CACHED_SUM (tokens), SHED_AFTER: who has waited longer is given up (seconds),
        GAP_SUM: all times between two tokens of a request (seconds), VERIFY: what drafts of a sequence cost (seconds).
        Of a host tier LOAD: what the link takes for a block, LOADING: what loads add to this iteration, LINK_FREE: when
        all loads so far are done, LINK_BUSY: what they have taken (seconds). LAST_RUN: the clock when each group last
        ran.
    counter : ndarray of int64
        Counters.
    time : ndarray, shape (n_rows, 3, 5 or 6), seconds
        ARRIVAL, FIRST_TOKEN, FINISH; NaN for what has not happened. While a request that has emitted tokens is out of
        its group, FINISH is minus the time of its last token. Where requests follow each other, THINK, and COMING_S of
        the one that stands at this place of the heap of those to come. With a host tier READY_S, when a load is done.
    request : ndarray of int64, shape (n_rows, n_columns)
        A row for each request, or for those under way and some that come next, see `kvplan.simulation.rows`.
    list : ndarray of int64, shape (n_lists, 3)
        HEAD, TAIL, LENGTH of queues, groups and lists of parked requests.
    group : ndarray of int64, shape (n_groups, n_columns)
    phase : ndarray of int64, shape (n_groups, block)
        Members by (first weight - start) modulo the block: who needs a block at a tick.
    ring : ndarray of int64
        First of those due to leave at each tick, a ring for each group.
    future : ndarray of int64
        Blocks that residents are expected to hold at each later tick, a ring; see `kvplan.simulation.forecast`.
    rank : ndarray of int64, shape (2 n_leaves, 2)
        How many are below each node of a binary tree, and the last of each leaf's pile; see `kvplan.simulation.ranks`.
    histogram : ndarray of int64, shape (KV_BINS + n_spans·GAPS,)
        Iterations by KV tokens held; then, span after span, times between two tokens by their logarithms.
    span : ndarray, shape (n_spans, n_columns)
        Sums kept apart by time: before the first edge, between any two, and after the last. One row where there are
        no edges.
    record : ndarray, shape (RECORDS, 8), or fewer in a fleet
        The clock and the time of all iterations, seconds; then counts: KV tokens, waiting, resident, evictions,
        completions, cached tokens that nobody holds. In one array, as each array costs time wherever it is passed.
    stream : ndarray of int64, shape (n_streams, n_columns)
        Of a radix tree its nodes too.
    blocks : ndarray of int64, shape (n_tokens, 2)
        Where layers keep KV of several kinds: FILLED once there are slots for so many tokens, and PASSED once so many
        are computed; the difference is held. With two pools of windows alone, of the other FILLED is held.
    context : ndarray of float64, shape (n_tokens,)
        There, what a request of so many tokens reads.
    emitted : ndarray of int64
        With drafts: tokens of a request before each of its iterations, from its PATH on.
    fleet : ndarray of int64, shape (1 + n_replicas, n_columns)
        Shared by all replicas of a fleet; without one a row.
    link : ndarray, shape (2 n_leaves, n_columns)
        Likewise, see `kvplan.simulation.fleet.trees`: ACTS, when a replica next begins or ends something, seconds;
        SEEN, what the router sees of it, and SEEN_DECODING, of decode replicas; TRANSFERS_UNTIL, until when it sends
        or receives KV, seconds; and as many columns that say whose they are. In the first row, which is no node, SEEN
        is when it next sees others than now.
    """

    timing: FloatArray
    fixed: IntArray
    knobs: FloatArray
    clock: FloatArray
    counter: IntArray
    time: FloatArray
    request: IntArray
    list: IntArray
    group: IntArray
    phase: IntArray
    ring: IntArray
    future: IntArray
    rank: IntArray
    histogram: IntArray
    span: FloatArray
    record: FloatArray
    stream: IntArray
    blocks: IntArray
    context: FloatArray
    emitted: IntArray
    fleet: IntArray
    link: FloatArray


class Extended(State):
    """The state of a run with a prefix cache, or with requests that others bring.

    A type of its own, for which the loop is compiled apart: other runs do not pay for what they do not have.
    """


def extended(s: State) -> bool:
    """Whether requests may be cached, follow each other or be given up; known when the loop is compiled."""
    return isinstance(s, Extended)


class Hosted(Extended):
    """The same with a tier of host memory behind the prefix cache."""


def hosted(s: State) -> bool:
    """Whether the host keeps what the GPU throws away; known when the loop is compiled."""
    return isinstance(s, Hosted)


class Layered(State):
    """The state of a run with layers that keep KV of several kinds, or with drafts; a type of its own as well."""


def layered(s: State) -> bool:
    """Whether what requests hold and read is looked up; known when the loop is compiled."""
    return isinstance(s, Layered)


class Pooled(Layered):
    """The same with windows in a pool of their own."""


def pooled(s: State) -> bool:
    """Whether there are two pools; known when the loop is compiled."""
    return isinstance(s, Pooled)


@kernel
def in_fleet(s: State) -> bool:
    """Whether this is a replica of several, whose router says who comes."""
    return bool(s.link.shape[0] > 0)


class Pools(NamedTuple):
    """Two pools of pages with a token in every layer: of those with full attention, and of those with a window.

    Memory that is held is told in tokens of the profile's pool, by its bytes.

    Attributes
    ----------
    window
        Tokens.
    blocks, windows
        Pages of the pool of full attention, and of windows.
    full_bytes, window_bytes
        Of a page in each.
    pool_bytes
        Of a token of the profile's pool.
    """

    window: int
    blocks: int
    windows: int
    full_bytes: int
    window_bytes: int
    pool_bytes: int


class Setup(NamedTuple):
    """What a policy needs of the engine.

    Attributes
    ----------
    queue_of : ndarray of int64, shape (n_requests,)
        Queue that each request joins, numbered from 0.
    until : ndarray of int64, shape (n_groups,)
        Stage before which members leave each group; at least every request's stages, but for all groups but the
        last of a policy that hands requests on.
    knobs : ndarray of float64
        Parameters, for the policy's own eyes.
    capacity_blocks
        Blocks that it may use; None: all that fit in memory.
    seats
        Most requests that may be resident at once; None: as many as fit.
    first_weight, stages : ndarray of int64 or None, shape (n_requests,)
        Where the policy counts memory as its engine does; None: the profile's prefill convention.
    promise : ndarray of int64 or None, shape (n_requests,)
        Blocks or tokens that an admission promises until the request leaves; None: nothing is promised.
    expected : ndarray of int64 or None, shape (n_requests,)
        Stages that the policy expects of each request; None: it looks at no later tick.
    ranks
        How many ranks there are, numbered from 0; 0: the policy has none.
    prefix_cache
        What those who have left leave behind until its room is needed: NO_CACHE, BLOCKS or RADIX_TREE.
    shed_after_s
        Whoever has waited longer in the first queue and has never run is given up, seconds.
    coasts
        One group, and the policy only lets it run where nobody waits, or where in the iteration before nobody was
        admitted, evicted or done: who did not fit then does not fit now. Nor is anybody admitted beside a prompt that
        goes on. See `kvplan.simulation.coasting`.
    pools
        Where windows have a pool of their own.
    host
        The tier of host memory behind a prefix cache of blocks.
    counts_queues
        The ranks are those of queues, by who waits in each.
    """

    queue_of: IntArray
    queues: int
    until: IntArray
    knobs: FloatArray
    capacity_blocks: int | None = None
    seats: int | None = None
    first_weight: IntArray | None = None
    stages: IntArray | None = None
    promise: IntArray | None = None
    expected: IntArray | None = None
    ranks: int = 0
    prefix_cache: int = NO_CACHE
    shed_after_s: float = math.inf
    coasts: bool = False
    pools: Pools | None = None
    host: Offload | None = None
    counts_queues: bool = False


def stage_weights(requests: Requests, prefill: Prefill) -> tuple[IntArray, IntArray]:
    """KV tokens at stage 0 and number of stages of each request (theory §1).

    Examples
    --------
    >>> one = Requests(np.zeros(1), np.array([10]), np.array([3]), np.zeros(1, dtype=np.int64))
    >>> [a.tolist() for a in stage_weights(one, Prefill.INLINE)]
    [[10], [4]]
    """
    return first_tokens(prefill, requests.input_tokens), stage_count(prefill, requests.decode_tokens)


def row_columns(requests: Requests, setup: Setup, replica: Replica) -> tuple[int, int]:
    """Of `State.time` and `State.request`."""
    columns = _PLAIN_REQUEST_COLUMNS
    looked_up = replica.layout is not None or requests.drafted is not None
    if setup.expected is not None or setup.ranks or looked_up:
        columns = _REQUEST_COLUMNS
    if setup.prefix_cache != NO_CACHE or requests.turns is not None:
        columns = _ALL_REQUEST_COLUMNS
    times = 3 if requests.turns is None else 5
    return times if setup.host is None else 6, columns


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

    Raises
    ------
    NotBegunError
        Where `watch`, asked before all rows but the first thousands, answers False.
    """
    for some in _near(time.shape[0]):
        if watch is not None and some.start and not watch(0):
            raise NotBegunError
        _begin(time[some], request[some], requests, setup, prefill, start + some.start)


def _near(rows: int) -> Iterator[slice]:
    """Rows by the thousand, to be written column by column while they are in the processor's cache."""
    return (slice(low, low + _AT_ONCE) for low in range(0, rows, _AT_ONCE))


def _begin(
    time: FloatArray, request: IntArray, requests: Requests, setup: Setup, prefill: Prefill, start: int
) -> None:
    mine = slice(start, start + time.shape[0])
    time[:], request[:] = math.nan, 0
    time[:, ARRIVAL] = requests.arrival_s[mine]
    request[:, FIRST_WEIGHT] = (
        first_tokens(prefill, requests.input_tokens[mine])
        if setup.first_weight is None
        else setup.first_weight[mine]
    )
    request[:, STAGES] = (
        stage_count(prefill, requests.iterations(mine)) if setup.stages is None else setup.stages[mine]
    )
    request[:, PROMPT], request[:, QUEUE] = requests.input_tokens[mine], setup.queue_of[mine]
    if requests.drafted is not None:
        request[:, PATH] = requests.drafted.begin[start : start + time.shape[0]]
    request[:, PLACE] = OUTSIDE
    if setup.promise is not None:
        request[:, PROMISE] = setup.promise[mine]
    if setup.expected is not None:
        request[:, EXPECTED] = setup.expected[mine]
    if requests.turns is not None:
        turns = requests.turns
        request[:, FOLLOWING], request[:, INSTEAD] = turns.following[mine], turns.instead[mine]
        time[:, THINK] = turns.think_s[mine]


def most_stages(requests: Requests, setup: Setup, prefill: Prefill) -> int:
    """Of any request; 1 where there is none."""
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
    """The state before anything has arrived, with rows for all requests or for so many at first.

    `unseen` are the most stages and the most tokens of requests that are not given yet. Raises as `begin_rows` does.
    """
    size, block = requests.arrival_s.size, replica.block_tokens
    rows = size if rows is None else rows
    groups = setup.until.size
    longest, most = max(unseen[0], most_stages(requests, setup, replica.prefill)), unseen[1]
    ring_size = np.minimum(setup.until, longest) + 1
    bin_tokens = replica.memory_tokens // _BINS + 1
    columns = row_columns(requests, setup, replica)
    time = np.empty((rows, columns[0]))
    request = np.empty((rows, columns[1]), dtype=np.int64)
    begin_rows(time, request, requests, setup, replica.prefill, 0, watch)
    count = np.zeros(_COUNTERS, dtype=np.int64)
    count[STRIDE], count[PARTLY] = 1, NOBODY
    count[OLDEST] = count[NEWEST] = count[SPARE] = count[HOST_OLDEST] = count[HOST_NEWEST] = NOBODY
    if requests.clients is None:
        count[RELEASED] = np.count_nonzero(~np.isnan(requests.arrival_s[:rows]))
    else:
        count[RELEASED] = min(size, requests.clients)
        time[count[RELEASED] :, ARRIVAL] = math.nan
    count[ROWLESS] = size - rows
    ahead = longest if setup.expected is None else max(longest, int(setup.expected.max(initial=0)))
    leaves = 1 << (setup.ranks - 1).bit_length() if setup.ranks else 0
    rank = np.zeros((2 * leaves, 2), dtype=np.int64)
    rank[:, TOP] = NOBODY
    group = np.zeros((groups, _GROUP_COLUMNS), dtype=np.int64)
    group[:, UNTIL], group[:, RING_SIZE] = setup.until, ring_size
    group[:, RING_START] = np.cumsum(ring_size) - ring_size
    horizon, drafted = math.inf if horizon_s is None else horizon_s, requests.drafted
    own_convention = setup.stages is not None
    fixed = (
        replica.memory_tokens // block if setup.capacity_blocks is None else setup.capacity_blocks,
        block,
        replica.prefill is Prefill.INLINE and not own_convention,
        replica.prefill is Prefill.DISAGGREGATED and not own_convention,
        requests.clients is not None,
        bin_tokens,
        setup.queues,
        requests.more_later,
        max(size, 1) if setup.seats is None else setup.seats,
        requests.turns is not None,
        setup.prefix_cache,
        replica.memory_tokens // bin_tokens + 1,
        0 if drafted is None else drafted.drafts.slots,
        0 if drafted is None else drafted.drafts.tokens,
        setup.coasts and replica.layout is None and drafted is None,
        size,
        *_of_pools(setup.pools),
        *((0, 0, 0) if setup.host is None else _of_host(setup.host, block)),
        setup.counts_queues,
        0,
        0,
        size + 1 if requests.most_waiting is None else requests.most_waiting,
    )
    span = np.zeros((1 if spans is None else spans.number + 2, _SPAN_COLUMNS))
    span[:, LEAST_WAITING] = math.inf
    stream = np.zeros((0, _STREAM_COLUMNS), dtype=np.int64)
    if setup.prefix_cache == BLOCKS:
        count[FREE] = count[BLANK] = fixed[CAPACITY]
        some = requests if rows == size else requests.part(0, rows)
        leaf, copy, stream = block_streams(some, block)
        for near in _near(rows):
            request[near, LEAF], request[near, COPY], request[near, COPIED] = leaf[near], copy[near], NOBODY
        if setup.host is not None:
            stream = np.pad(stream, ((0, 0), (0, _HOSTED_STREAM_COLUMNS - _STREAM_COLUMNS)))
    elif setup.prefix_cache == RADIX_TREE:
        request[:, LEAF], stream, count[ROWS] = radix_streams(requests, block, fixed[CAPACITY])
        request[:, NODE] = NOBODY
    further = setup.prefix_cache != NO_CACHE or requests.turns is not None
    kind = Extended if further or setup.shed_after_s < math.inf else State
    kind = kind if setup.host is None else Hosted
    blocks, context = np.zeros((0, 2), dtype=np.int64), np.zeros(0)
    verify_s = 0.0 if drafted is None else drafted.drafts.tokens * drafted.drafts.verify_s
    if replica.layout is not None or drafted is not None:
        kind = Layered
        most = max(
            most, int(requests.input_tokens.max(initial=0)) + int(requests.decode_tokens.max(initial=1))
        )
        if most > _MOST_LOOKED_UP:
            raise UsageError(
                f"requests of up to {most:,} tokens; beside drafts or layers of several kinds {_MOST_LOOKED_UP:,} is "
                "the most in a simulation"
            )
        longest = -(-(most + int(fixed[SLOTS]) + 2) // _LOOKED_UP_BY) * _LOOKED_UP_BY
        # runs in other threads wait for this one's table: it may take as much memory as they do
        with _looking_up:
            blocks, context = _lookup(replica, longest)
    if setup.pools is not None:
        kind, tokens = Pooled, np.arange(context.size)
        filled, passed = tokens + block - 1, np.maximum(tokens - setup.pools.window + 1, 0)
        blocks = np.stack([filled, passed], axis=1) // block
    return kind(
        timing=np.array(timing.constants, dtype=np.float64),
        fixed=np.array(fixed, dtype=np.int64),
        knobs=np.asarray(setup.knobs, dtype=np.float64),  # of whole numbers too: one compiled loop
        clock=np.array(
            [
                0.0,
                horizon,
                0.0,
                0.0,
                request_overhead_s,
                0.0,
                setup.shed_after_s,
                0.0,
                verify_s,
                0.0 if setup.host is None else setup.host.load_s * block,
                *[0.0] * (PAUSE - LOADING),
                math.inf,
                0.0,
                0.0,
                *((math.inf, 0.0) if spans is None else (spans.begin_s, spans.width_s)),
                *[0.0] * groups,
            ]
        ),
        counter=count,
        time=time,
        request=request,
        list=np.array([[NOBODY, NOBODY, 0]] * (setup.queues + 2 * groups)),
        group=group,
        phase=np.zeros((groups, block), dtype=np.int64),
        ring=np.full(int(ring_size.sum()), NOBODY),
        future=np.zeros(0 if setup.expected is None else ahead, dtype=np.int64),
        rank=rank,
        histogram=np.zeros(fixed[KV_BINS] + span.shape[0] * GAPS, dtype=np.int64),
        span=span,
        record=np.zeros((RECORDS, 8)),
        stream=stream,
        blocks=blocks,
        context=context,
        emitted=np.zeros(0, dtype=np.int64) if drafted is None else drafted.emitted,
        fleet=np.zeros((1, _FLEET_COLUMNS), dtype=np.int64),
        link=np.zeros((0, 2 * WHOSE)),
    )


def _of_pools(pools: Pools | None) -> tuple[int, ...]:
    """`State.fixed` from WINDOW on."""
    if pools is None:
        return (0,) * 5
    return pools.window, pools.windows, pools.full_bytes, pools.window_bytes, pools.pool_bytes


def _of_host(host: Offload, block: int) -> tuple[int, int, int]:
    """`State.fixed` from HOST_CAPACITY on."""
    return host.memory_tokens // block, host.inclusive, host.overlap


_looking_up = Lock()


@lru_cache(1)
def _lookup(replica: Replica, longest: int) -> tuple[IntArray, FloatArray]:
    """`State.blocks` and `State.context` for requests of up to so many tokens; those of many runs are the same."""
    tokens, nothing = np.arange(longest + 1), np.zeros(longest + 1, dtype=np.int64)
    layout = replica.layout
    if layout is None:
        filled = -(-tokens // replica.block_tokens)
        return np.stack([filled, nothing], axis=1), tokens.astype(np.float64)
    filled = layout.pool_tokens(nothing, tokens) // layout.block_tokens
    most = np.full(longest + 1, longest)
    passed = (layout.pool_tokens(nothing, most) - layout.pool_tokens(tokens, most)) // layout.block_tokens
    return np.stack([filled, passed], axis=1), layout.read_tokens(tokens.astype(np.float64))


def block_streams(requests: Requests, block: int) -> tuple[IntArray, IntArray, IntArray]:
    """Of each request LEAF and COPY; and the streams in blocks, the array `State.stream`.

    Streams without a block of their own are passed over. Where a prompt ends with a stream, the last block of that
    is made a stream of its own, and the prompt gets a copy of it to compute.

    Examples
    --------
    A prompt of two blocks, with which another one of three begins.

    >>> from kvplan.simulation.prefixes import Prefixes
    >>> shared = Prefixes(np.array([1, 2]), np.array([-1, 0, 0]), np.array([20, 0, 0]))
    >>> two = Requests(np.zeros(2), np.array([20, 30]), np.ones(2, dtype=np.int64), np.zeros(2), prefixes=shared)
    >>> leaf, copy, stream = block_streams(two, 10)
    >>> stream[:4, BEGIN].tolist(), stream[:4, PARENT].tolist(), copy.tolist()
    ([0, 2, 2, 1], [-1, 3, 3, 0], [4, -1])
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
    stream = np.full((size, _STREAM_COLUMNS), NOBODY)
    stream[:, [HOLDERS, CACHED]] = 0
    stream[: parent.size, PARENT], stream[: parent.size, BEGIN] = parent, begin
    stream[: parent.size, REST] = end - begin
    stream[:, FIRST] = stream[:, ORIGINAL] = np.arange(size)
    stream[parent.size :, ORIGINAL] = parent[leaf[whole]]
    copy = np.full(leaf.size, NOBODY)
    copy[whole] = np.arange(parent.size, size)
    return leaf, copy, stream


def radix_streams(requests: Requests, block: int, capacity: int) -> tuple[IntArray, IntArray, int]:
    """Of each request LEAF; the streams in blocks, with room behind them for the nodes of a radix tree; how many.

    A node has a block of its own, so there are never more of them than blocks, of memory or of all sequences.

    Raises
    ------
    UsageError
        That is more than there is room for.
    """
    leaf, parent, begin, end = _in_blocks(requests, block)
    ever = int((-(-(requests.input_tokens + requests.decode_tokens) // block)).sum())
    most = parent.size + min(ever, capacity) + 1
    if most > _MOST_NODES:
        raise UsageError(
            f"a radix tree of up to {most:,} blocks, of which {_MOST_NODES:,} have room; fewer requests, or larger "
            "block_tokens"
        )
    stream = np.zeros((most, _STREAM_COLUMNS), dtype=np.int64)
    streams = stream[: parent.size]
    streams[:, PARENT], streams[:, BEGIN], streams[:, REST] = parent, begin, end - begin
    streams[:, TIP] = NOBODY
    return leaf, stream, parent.size


def _in_blocks(requests: Requests, block: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """LEAF of each request; of each stream the one before that has a block of its own, and blocks to begin and end."""
    known = strangers(requests.arrival_s.size) if requests.prefixes is None else requests.prefixes
    leaf, parent = known.stream, known.parent.copy()
    begin, end = known.begin_tokens // block, known.end_tokens // block
    end[leaf] = _NO_END
    inner = np.flatnonzero(parent >= 0)
    while (empty := inner[end[parent[inner]] == begin[parent[inner]]]).size:
        parent[empty] = parent[parent[empty]]
        inner = inner[parent[inner] >= 0]
    return leaf, parent, begin, end
