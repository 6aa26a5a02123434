"""The state of a run, as arrays: requests, lists they stand in, groups that move together, counters.

A *group* is a set of requests that always run together: each of its executed iterations, a tick, moves every member
by a stage. So a member's stage follows from the tick at which it would have begun, the group's memory grows by what
its size says, and only arrivals, admissions, evictions and completions touch single requests. Groups keep their
members in order of admission, and in a ring of lists by the tick at which they are due to leave.
"""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar

from kvplan.model import FloatArray, IntArray

NOBODY = -1
ANEW = -2  # a value of `Counter.NOTED`: whoever waits is looked up
UNLISTED = -2  # a value of `Block.NEXT`
STANDS_BY = 2  # a value of `Group.RUNS`
KNEE, CHOSEN, PER_PAIR, ALL_RANKS, D5_ALL_RANKS = 6, 8, 9, 10, 11  # in `State.timing`
GAPS = 20_800  # bins of `State.histogram` for times between tokens, behind those of KV tokens
GAPS_IN_E = 500  # bins in which a time grows by a factor e: each is 0.2 % wide
SHORTEST_GAP_S = 1e-9  # what is shorter counts as this; the longest is 1e9 times a second
AHEAD = 32  # size of `State.turn`, a power of two
MAX_TOKENS = 0  # the first of the knobs, where prompts are computed in parts: the budget of an iteration

_Function = TypeVar("_Function", bound=Callable[..., Any])
KERNELS: list[Callable[..., Any]] = []


def kernel(function: _Function) -> _Function:
    """Mark a function that goes into compiled loops; it stays as it is for all others."""
    KERNELS.append(function)
    return function


class Columns:
    """Names of columns: positions in the order in which a class writes them down, after those of its base.

    Examples
    --------
    >>> class Point(Columns):
    ...     X: int
    ...     Y: int
    >>> Point.X, Point.Y, Point.WIDTH
    (0, 1, 2)
    """

    WIDTH: ClassVar[int] = 0

    def __init_subclass__(cls) -> None:
        names = inspect.get_annotations(cls)
        for position, name in enumerate(names, cls.WIDTH):
            setattr(cls, name, position)
        cls.WIDTH += len(names)


class Counter(Columns):
    """Of `State.counter`."""

    RELEASED: int  # requests that have arrived, or whose arrival is fixed
    JOINED: int  # of these, those that have joined a queue
    RESIDENT: int  # this and what follows to `LOOKED_UP_AGAIN`: of data-parallel ranks the sum
    COMPLETED: int
    EVICTED: int
    SEQUENCE: int
    HELD: int  # blocks
    WINDOWED: int  # blocks of the pool of windows
    PROMPTS: int  # tokens of this batch's prefill
    PAIRS: int  # of these with their context
    RECOMPUTED: int
    COMPUTED: int
    WAITING: int
    SHED: int
    GONE: int  # these, and those that therefore never come
    LOOKED_UP: int  # tokens of the sequences of first admissions, with a prefix cache
    LOOKED_UP_AGAIN: int  # of further ones
    OVERFLOWS: int
    ITERATIONS: int
    MORE_TOKENS: int  # of this batch, beside whole groups
    MORE_REQUESTS: int
    MORE_SILENT: int  # of these, those that emit nothing
    PEAK: int
    QUEUE_PEAK: int
    PROMPTS_PEAK: int
    BATCH_PEAK: int
    STUCK: int  # why nothing can ever complete, where that is known: see `Stuck`
    LAST_COMPLETION: int  # iteration
    RECORDED: int
    STRIDE: int
    PARTLY: int  # the request whose prompt is computed in part, or NOBODY
    PROMISED: int  # sum of what residents are promised
    LACKING: int  # tick at which memory would have lacked for a request that was not admitted
    ROWLESS: int  # requests that come after those that have a row of their own
    FREE: int  # blocks in the queue of free ones; this and what follows: of a prefix cache
    BLANK: int  # of these, those that hold nothing known; of a cache in groups, beside these
    OLDEST: int  # ends of the queue
    NEWEST: int
    ROWS: int  # of a radix tree, those of its nodes that have been used; of groups, those of `State.table`
    SPARE: int  # one that is free again
    NOTED: int  # of groups: the stream from which those branch off who find FOUND blocks of each; or ANEW
    FOUND: int
    HOSTED: int  # blocks in the queue of the host tier; this and what follows: of that
    HOST_OLDEST: int  # its ends
    HOST_NEWEST: int
    OUTSTANDING: int  # requests before the last iteration ended: waiting, resident or handed over
    HELD_BEFORE: int  # blocks, before the last iteration ended
    ON_LINKS: int  # requests handed over whose KV has not gone yet
    SPAN: int  # the row of `State.span` that counts now
    SESSIONS: int  # that have begun and not ended, where a policy holds back those that begin
    TURN: int  # what data-parallel ranks form now, see `Turn`; this and the next two: of those
    READY: int  # tokens of prompts that this iteration could compute
    LEFT: int  # of the budget
    OWED: int  # iterations of decodes before prompts are computed again


class Stuck:
    """Why nothing can complete: a request does not fit even alone; the same ones overflow again and again."""

    NEVER_FITS, AGAIN = 1, 2


class Turn:
    """What a policy forms of a batch, in `Counter.TURN`: all, decodes alone, or the prompts beside these."""

    ALL, DECODES, PROMPTS = range(3)


class Clock(Columns):
    """Of `State.clock`: seconds, unless said otherwise."""

    NOW: int
    HORIZON: int
    BUSY: int  # time of all iterations
    OVERHEAD: int  # what a request takes outside the engine
    CACHED_S: int  # tokens that nobody holds, times seconds
    SHED_AFTER: int  # who has waited longer is given up
    GAP_SUM: int  # all times between two tokens of a request
    VERIFY: int  # what drafts of a sequence cost
    LOAD: int  # what the link to the host takes for a block; this and the next three: of a host tier
    LOADING: int  # what loads add to this iteration
    LINK_FREE: int  # when all loads so far are done
    LINK_BUSY: int  # what they have taken
    PAUSE: int  # no iteration begins from then on; this and the next two: of a replica of a fleet
    CALM: int  # until then nobody can be done, if nobody arrives
    SECONDS_PER_TOKEN: int  # of KV that comes from another replica
    SPAN_END: int  # of the span that counts now
    SPAN_WIDTH: int
    ENDED: int  # when the last iteration did, and the next begins; below 0 where nothing runs
    LAST_RUN: int  # from here on: when each group last ran


class Fixed(Columns):
    """Of `State.fixed`."""

    CAPACITY: int  # blocks
    BLOCK: int  # tokens
    SILENT: int  # iterations of a request before its first token
    READY_MADE: int  # whether prompts arrive computed
    CLIENTS: int  # whether a completion brings the next request
    LAGS: int  # and whether that comes after the next iteration has begun
    BIN: int  # tokens of a bin of memory held
    QUEUES: int
    MORE_LATER: int  # whether others arrive beyond the horizon
    SEATS: int  # most residents
    TURNS: int  # whether requests follow each other; 2: and some are sent out by others
    CACHES: int  # see `Cache`
    KV_BINS: int
    SLOTS: int  # that a request holds beyond its tokens in an iteration with drafts
    DRAFTS: int  # of an iteration
    COASTS: int
    ALL: int  # requests
    WINDOW: int  # tokens; this and the next four: of `Pools`
    WINDOWS: int
    FULL_BYTES: int
    WINDOW_BYTES: int
    POOL_BYTES: int
    HOST_CAPACITY: int  # blocks; this and the next two: of a host tier
    INCLUSIVE: int
    OVERLAPS: int
    COUNTS_QUEUES: int
    SITE_NUMBER: int  # of the replica in its fleet
    # requests of a fleet that computes prompts apart; behind them, their rows for decode replicas
    HANDED_OVER: int
    MOST_WAITING: int  # beyond so many nobody joins a queue
    BALANCE: int  # iterations that prompts wait at most until every rank has one
    WAITING_WEIGHS: int  # as much as so many that run, where a rank is chosen; 0: one rank after the other
    TURNS_STAY: int  # whether a turn goes to the rank of the one before it
    EXTENDED: int  # this and what follows: `Features`
    HOSTED: int
    LAYERED: int
    POOLED: int
    GROUPED: int
    PARALLEL: int  # ranks; 0: one engine alone


class Cache:
    """What those who have left leave behind, in `Fixed.CACHES`."""

    NONE, BLOCKS, RADIX_TREE, GROUPS = range(4)


class Time(Columns):
    """Of `State.time`, seconds; NaN for what has not happened.

    While a request that has emitted tokens is out of its group, FINISH is minus the time of its last token.
    """

    ARRIVAL: int
    FIRST_TOKEN: int
    FINISH: int
    THINK: int  # this and the next: where requests follow each other
    COMING: int  # arrival of the one that stands at this place of the heap of those to come
    READY: int  # when a load from the host is done


class Request(Columns):
    """Of `State.request`; a run has those of the first part, and no more of the others than it needs."""

    FIRST_WEIGHT: int  # KV tokens at stage 0
    STAGES: int
    PROMPT: int  # tokens
    QUEUE: int  # that it joins
    EVICTIONS: int
    PLACE: int  # list that it stands in: queues first, groups after them, lists of parked requests last; or `Place`
    START: int  # tick of its group at which a member would have been at stage 0
    ENTERED_AT: int  # tick at which it came into its group
    ENTERED_IN: int  # and iteration, the one being formed counted
    STAGE: int  # of a request outside groups: where it goes on
    PARKED: int  # KV tokens held by a request that is resident outside a group
    ADMISSION: int  # number in the order of admissions
    BEFORE: int  # neighbours in the list it stands in
    AFTER: int
    DUE_BEFORE: int  # neighbours among those due at the same tick
    DUE_AFTER: int
    PROMISE: int  # while it is resident: blocks or tokens, as the policy counts

    HOLDS: int  # blocks; this and the next five: where layers keep KV of several kinds, or with drafts
    HOLDS_WINDOWS: int  # of the pool of windows
    PATH: int  # with drafts: where it begins in `State.emitted`
    TURN: int  # tick at which it is looked up next
    TURN_BEFORE: int  # neighbours among those of that tick
    TURN_AFTER: int

    EXPECTED: int  # stages that the policy expects of it; this and the next two: of policies that look ahead or rank
    BELOW: int  # neighbours in the pile of a rank
    ABOVE: int

    FOLLOWING: int  # this and the next: as `kvplan.simulation.requests.Turns` has it
    INSTEAD: int
    COMING: int  # who stands at this place of the heap of those to come; no matter of this request
    RANK: int  # that its session is at, where turns stay, numbered from 1; 0: any
    BESIDE: int  # as `Turns` has it
    AWAITED: int  # completions that it still waits for

    LEAF: int  # stream that it ends in; this and what follows: with a prefix cache
    COPY: int  # stream that stands for a copy which it may make, or NOBODY
    COPIED: int  # the stream that this is a copy of now, or NOBODY
    HIT: int  # tokens found at the first admission
    RECOVERED: int  # at further ones
    NODE: int  # of a radix tree, down to which it holds all, or NOBODY
    ENTERED: int  # whether its prompt is in the tree
    LOADED: int  # of the tokens found at the first admission, those that a host tier had
    LOADS_FROM: int  # blocks that the GPU had when its load began
    TABLE: int  # its row of `State.table`; this and what follows: with a cache in groups
    TAKEN: int  # places of each group that have got their blocks
    FULL: int  # of these, those whose blocks are known
    ROWS: int  # of all, those whose blocks have rows of `State.pool`; those beyond are its own, and only counted
    PASSED: int  # tokens that were computed when it last let blocks pass

    SITE = -1  # the last column in a fleet: the replica that a request is at, or is meant for; else NOBODY


class Place:
    """Where a request can be besides the queues and groups, which are numbered from 0."""

    OUTSIDE, PARTIAL, GIVEN_UP = -1, -2, -3


class Stream(Columns):
    """Of `State.stream`, counts in blocks; of a radix tree its nodes too, which stand behind the streams."""

    PARENT: int
    BEGIN: int  # before it
    REST: int  # in it, once whole
    HOLDERS: int  # requests
    CACHED: int  # in the queue; in a node of a tree
    IN_FRONT: int  # neighbours there
    BEHIND: int

    TIP: int  # of a stream in a radix tree: the last node that holds a block of it, or NOBODY
    END: int  # of a node: blocks down to its end
    OF: int  # of a node: the stream that this is in

    FIRST: int  # in a cache of blocks, copy that is found, if there is one; else the stream itself
    NEXT_COPY: int  # found after this one
    ORIGINAL: int  # that this is a copy of; itself, if it is none

    HOST: int  # blocks in the queue of a host tier
    HOST_IN_FRONT: int  # neighbours there
    HOST_BEHIND: int
    LOADERS: int  # requests that wait for a load of some of it


class Block(Columns):
    """Of `State.pool`."""

    HOLDERS: int  # requests
    KNOWN: int  # the key of what is known of it, a stream and a column of `State.table`; NOBODY: nothing
    AHEAD: int  # blocks that nobody looks for, in the queue of free ones behind the one in front of this
    IN_FRONT: int  # neighbours there
    BEHIND: int
    NEXT: int  # in the list that this one stands in, or UNLISTED; of rows to spare the next one
    SINCE: int  # iteration since which it is known
    FIRST: int  # of the list that this row heads


class Kept(Columns):
    """Of `State.kept`: the tokens of a window or of a chunk; neither: full attention."""

    WINDOW: int
    CHUNK: int
    STATE: int  # whether it has states


class List(Columns):
    """Of `State.list`."""

    HEAD: int
    TAIL: int
    LENGTH: int


class Blocks(Columns):
    """Of `State.blocks`."""

    FILLED: int
    PASSED: int
    TURNS: int  # the next number of tokens at which the blocks held change, or what each token more adds to the context


class Ahead(Columns):
    """Of `State.ahead`."""

    READS: int  # context of all members, in tokens of the layers that keep all
    STEP: int  # by which that grew in the last tick, and does in the next one but for whose turn it is
    NEXT_STEP: int  # with these; this and what follows: of the tick that was looked at last
    MORE: int  # blocks that are held then, more than before
    TAKES: int  # by those who need more, before others free theirs


class Rank(Columns):
    """Of `State.rank`."""

    COUNT: int
    TOP: int


class Span(Columns):
    """Of `State.span`: sums over the iterations that began in it."""

    KV_S: int  # tokens held, times seconds; this and the next two: integrals over busy time
    RUNNING_S: int
    WAITING_S: int
    BUSY_S: int
    STEPS: int
    CONTEXT: int  # this and the next six: the amounts that the law of iteration times is made of
    PREFILLED: int
    PAIRS: int
    SEQUENCES: int
    ROOTS: int  # of the sequences of each iteration
    BEYOND_KNEE: int
    WOKEN: int  # share of the experts
    LEAST_WAITING: int  # no sum: the least of any iteration; infinite where there was none


class Record(Columns):
    """Of `State.record`: seconds, then counts."""

    NOW: int
    BUSY: int  # time of all iterations
    HELD: int  # KV tokens
    WAITING: int
    RESIDENT: int
    EVICTED: int
    COMPLETED: int
    KV_S: int  # this and the next two: as in `Span`, since its span began
    RUNNING_S: int
    WAITING_S: int
    CACHED: int  # tokens that nobody holds


class Group(Columns):
    """Of `State.group`."""

    TICK: int  # executed iterations, the one being formed included
    WEIGHT: int  # KV tokens of its members in that iteration
    RUNS: int  # whether it is in the batch; STANDS_BY: only those who enter it now
    UNTIL: int  # stage before which members leave, done or not
    RING_START: int  # of its part of `State.ring`
    RING_SIZE: int


class Router(Columns):
    """Of the first row of `State.fleet`."""

    TO_COME: int  # requests whose arrival another one has fixed
    UNASKED: int  # who comes next of the others, and who comes no more
    UNASKED_END: int
    NEXT_OF_CLIENTS: int  # in a closed loop, who comes when somebody is done
    RULE: int  # see `Rule`
    BRINGS: int  # whether a completion may bring somebody
    FURTHER: int  # requests that have no row yet
    SENT: int  # requests so far


class Site(Columns):
    """Of the rows of `State.fleet` that are replicas."""

    ROLE: int  # see `Role`
    IDLES: int
    ENDS: int  # an iteration in which somebody is done: the router does not know yet
    ASKED: int  # what it does where nobody comes any more
    CLOSED: int  # to requests that come: not yet there, or on its way out


class Rule:
    """Each request has its `Request.SITE`, or the router looks at requests or at blocks held.

    BY_SESSION: a turn goes where the one before it went, if that replica still takes requests; else by requests.
    """

    BLIND, BY_REQUESTS, BY_KV, BY_SESSION = range(4)


class Role:
    """What a replica of a fleet computes."""

    WHOLE, PREFILL, DECODE = range(3)


class Link(Columns):
    """Of `State.link`."""

    ACTS: int  # when a replica next begins or ends something, seconds
    SEEN: int  # what the router sees of it; in the first row, which is no node, when somebody next looks or changes it
    SEEN_DECODING: int  # of decode replicas
    TRANSFERS_UNTIL: int  # until when it sends or receives KV, seconds
    WHOSE: int  # from here on: as many columns that say whose they are


class Features(NamedTuple):
    """What a run has that others do not pay for: known when the loop is compiled, apart for each combination."""

    extended: bool = False  # requests may be cached, follow each other or be given up
    hosted: bool = False  # the host keeps what the prefix cache of the GPU throws away
    # what requests hold and read is looked up: layers keep KV of several kinds, or there are drafts
    layered: bool = False
    pooled: bool = False  # windows have a pool of their own
    grouped: bool = False  # and a prefix cache has blocks of each kind, see `kvplan.simulation.grouped_cache`
    parallel: bool = False  # data-parallel ranks step together, see `kvplan.simulation.data_parallel`


def features(s: "State") -> Features:
    """Return the features of a run."""
    return Features(*map(bool, s.fixed[Fixed.EXTENDED : Fixed.PARALLEL + 1]))


def extended(s: "State") -> bool:
    return bool(s.fixed[Fixed.EXTENDED])


def hosted(s: "State") -> bool:
    return bool(s.fixed[Fixed.HOSTED])


def layered(s: "State") -> bool:
    return bool(s.fixed[Fixed.LAYERED])


def pooled(s: "State") -> bool:
    return bool(s.fixed[Fixed.POOLED])


def grouped(s: "State") -> bool:
    return bool(s.fixed[Fixed.GROUPED])


def parallel(s: "State") -> bool:
    return bool(s.fixed[Fixed.PARALLEL])


KNOWN_WHEN_COMPILED = (extended, hosted, layered, pooled, grouped, parallel)  # in the order of `Features`


class State(NamedTuple):
    """Everything a run reads and writes. Arrays with named columns."""

    # constants of the iteration time, as `kvplan.model.iteration_time` takes them, and `Timing.all_ranks`
    timing: FloatArray
    fixed: IntArray  # shape (Fixed.WIDTH,): other constants of the run
    knobs: FloatArray  # parameters of the policy, for its own eyes
    clock: FloatArray  # shape (Clock.LAST_RUN + n_groups,)
    counter: IntArray  # shape (Counter.WIDTH,)
    time: FloatArray  # shape (n_rows, n_columns): `Time`
    # shape (n_rows, n_columns): `Request` or what is built on it: a row for each request, or for those under way
    # and some that come next, see `kvplan.simulation.row_pool`
    request: IntArray
    list: IntArray  # shape (n_lists, 3): queues, groups and lists of parked requests
    group: IntArray  # shape (n_groups, n_columns)
    # shape (n_groups, block): members by (first weight - start) modulo the block: who needs a block at a tick
    phase: IntArray
    ring: IntArray  # first of those due to leave at each tick, a ring for each group
    # blocks that residents are expected to hold at each later tick, a ring; see `kvplan.simulation.forecast`
    future: IntArray
    # shape (2 n_leaves, 2): how many are below each node of a binary tree, and the last of each leaf's pile; see
    # `kvplan.simulation.queues`
    rank: IntArray
    # shape (Fixed.KV_BINS + n_spans·GAPS,): nanoseconds of iterations by KV tokens held; then, span after span,
    # times between two tokens by their logarithms
    histogram: IntArray
    # shape (n_spans, n_columns): sums kept apart by time: before the first edge, between any two, and after the
    # last. One row where there are no edges.
    span: FloatArray
    # shape (RECORDS, n_columns), or fewer in a fleet: In one array, as each array costs time wherever it is
    # passed
    record: FloatArray
    stream: IntArray  # shape (n_streams, n_columns): `Copy`, `Hosted` or `Tree`
    pool: IntArray  # shape (1 + n_blocks, n_columns): with a cache in groups, its blocks; the last row ends their queue
    table: IntArray  # shape (n_residents, 1 + n_groups·n_places): there, blocks of each, group by group
    kept: IntArray  # shape (n_groups, n_columns): there, what each keeps
    # shape (n_tokens, 3): where layers keep KV of several kinds: FILLED once there are slots for so many tokens,
    # and PASSED once so many are computed; the difference is held. With two pools of windows alone, of the other
    # FILLED is held.
    blocks: IntArray
    context: FloatArray  # shape (n_tokens,): there, what a request of so many tokens reads
    ahead: FloatArray  # shape (Ahead.WIDTH,): there, what the members of the one group read, and hold next
    turn: IntArray  # shape (AHEAD,): there, first of those at each tick whose `Blocks.TURNS` it is, a ring
    emitted: IntArray  # with drafts: tokens of a request before each of its iterations, from its PATH on
    # shape (1 + n_replicas, n_columns): `Router`, then a `Site` a row. Shared by all replicas of a fleet; without
    # one a row.
    fleet: IntArray
    link: FloatArray  # shape (2 n_leaves, n_columns): likewise, see `kvplan.simulation.fleet.loop`


@kernel
def in_fleet(s: State) -> bool:
    """Tell whether this is a replica of several, whose router says who comes."""
    return bool(s.link.shape[0] > 0)


@kernel
def takes_turns(s: State) -> bool:
    """Tell whether members of the one group are looked up when what they hold or add to the context changes."""
    return bool(layered(s) and s.fixed[Fixed.COASTS])


@kernel
def group_list(s: State, group: int) -> int:
    """Return the list of a group's members, in order of admission."""
    return int(s.fixed[Fixed.QUEUES] + group)


@kernel
def parked_list(s: State, group: int) -> int:
    """Return the list of those who wait, KV kept, behind a group."""
    return int(s.fixed[Fixed.QUEUES] + s.group.shape[0] + group)


@kernel
def sequence(s: State, request: int) -> int:
    """Return the tokens of a waiting request: its prompt, and what it had generated."""
    return int(s.request[request, Request.FIRST_WEIGHT] + s.request[request, Request.STAGE])
