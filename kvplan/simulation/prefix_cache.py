"""A prefix cache of blocks, as vLLM's: blocks of those who have left stay until their room is needed.

It mirrors `BlockPool` of `vllm/v1/core/block_pool.py` and `KVCacheManager.get_computed_blocks` of
`vllm/v1/core/kv_cache_manager.py`, vLLM 0.19.

A tree of streams (`kvplan.simulation.requests`) tells which tokens are the same; the blocks of a stream are those that
end in it. A request holds the leading blocks of every stream on its way, and free blocks go last block first, so only
a leading part of a stream is cached, and if there is one, all streams before it are cached. So free blocks queue by
streams, not one by one; a stream stands there once, and loses its last block first. Blocks without a hash stand in
front of all, and are only counted.

A prompt that ends with a stream, at the end of a block, never finds this block, because a token must be left to
compute: it computes a copy. Such blocks are streams of their own, so that copies can queue; see `block_streams`.
Requests find the first of the copies there. One that holds the block without a copy of its own holds the first one: it
stays the first as long as it is held.

Blocks that running requests have taken since the last settlement are counted only, and leave the queue when next
anything is put into it or looked for.
"""

from kvplan.simulation.host_tier import host_drops, host_keeps_released, host_keeps_victims, host_settles
from kvplan.simulation.queues import stream_joins, stream_leaves
from kvplan.simulation.state import (
    NOBODY,
    Cache,
    Counter,
    Fixed,
    Request,
    State,
    Stream,
    extended,
    grouped,
    hosted,
    kernel,
    sequence,
)


@kernel
def caches(s: State) -> bool:
    """Tell whether this run has a prefix cache, and not one in groups."""
    return bool(extended(s) and not grouped(s) and s.fixed[Fixed.CACHES] != Cache.NONE)


# ------------------------------------------------------------------------------------------- the queue of free blocks


@kernel
def settle(s: State) -> None:
    """Let taken blocks leave the queue."""
    c = s.counter
    taken = min(c[Counter.FREE] - s.fixed[Fixed.CAPACITY] + c[Counter.HELD], c[Counter.FREE])
    c[Counter.FREE] -= taken
    blank = min(taken, c[Counter.BLANK])
    c[Counter.BLANK] -= blank
    taken -= blank
    while taken > 0:
        stream = c[Counter.OLDEST]
        some = min(taken, s.stream[stream, Stream.CACHED])
        s.stream[stream, Stream.CACHED] -= some
        taken -= some
        if hosted(s):
            host_keeps_victims(s, stream, some)
        if s.stream[stream, Stream.CACHED] == 0:
            leave_queue(s, stream)
            forget(s, stream)
    if hosted(s):
        host_settles(s)


@kernel
def join_queue(s: State, stream: int, blocks: int) -> None:
    """Put blocks with a hash that nobody holds any more at the end of the queue."""
    stream_joins(s, stream, Counter.OLDEST, Stream.IN_FRONT)
    s.stream[stream, Stream.CACHED] = blocks
    s.counter[Counter.FREE] += blocks


@kernel
def leave_queue(s: State, stream: int) -> None:
    """Take a stream out of the queue, wherever it stands; its blocks still count as free."""
    stream_leaves(s, stream, Counter.OLDEST, Stream.IN_FRONT)


@kernel
def cached_tokens(s: State) -> int:
    """Count cached tokens that nobody holds."""
    if grouped(s):
        return int(s.counter[Counter.FREE] * s.fixed[Fixed.BLOCK])
    if not caches(s):
        return 0
    c = s.counter
    taken = c[Counter.FREE] - s.fixed[Fixed.CAPACITY] + c[Counter.HELD]
    blocks = c[Counter.FREE] - c[Counter.BLANK] - max(taken - c[Counter.BLANK], 0)
    return int(blocks * s.fixed[Fixed.BLOCK])


# ------------------------------------------------------------------------------------------------------------- copies


@kernel
def held_by(s: State, request: int, stream: int) -> int:
    """Return the copy of a stream that a request holds: its own, or the first one."""
    return int(
        s.request[request, Request.COPY]
        if s.request[request, Request.COPIED] == stream
        else s.stream[stream, Stream.FIRST]
    )


@kernel
def add_copy(s: State, stream: int, copy: int) -> None:
    """Add a copy that is found when all before it are gone."""
    last = s.stream[stream, Stream.FIRST]
    while s.stream[last, Stream.NEXT_COPY] != NOBODY:
        last = s.stream[last, Stream.NEXT_COPY]
    s.stream[last, Stream.NEXT_COPY] = copy


@kernel
def forget(s: State, copy: int) -> None:
    """Remove a copy of which nothing is left; where it was the only one, the stream itself is the next."""
    original, following = s.stream[copy, Stream.ORIGINAL], s.stream[copy, Stream.NEXT_COPY]
    s.stream[copy, Stream.NEXT_COPY] = NOBODY
    if s.stream[original, Stream.FIRST] == copy:
        s.stream[original, Stream.FIRST] = original if following == NOBODY else following
        return
    before = s.stream[original, Stream.FIRST]
    while s.stream[before, Stream.NEXT_COPY] != copy:
        before = s.stream[before, Stream.NEXT_COPY]
    s.stream[before, Stream.NEXT_COPY] = following


# ------------------------------------------------------------------------------------------------ look-up and release


@kernel
def hits(s: State, request: int) -> int:
    """Count cached leading blocks of a waiting request; one token at least is left to compute."""
    most = (sequence(s, request) - 1) // s.fixed[Fixed.BLOCK]
    stream = s.request[request, Request.LEAF]
    while stream != NOBODY:
        copy = s.stream[stream, Stream.FIRST]
        there = s.stream[stream, Stream.REST]
        if s.stream[copy, Stream.HOLDERS] == 0:
            there = s.stream[copy, Stream.CACHED]
        if there > 0:
            return int(min(s.stream[stream, Stream.BEGIN] + there, most))
        stream = s.stream[stream, Stream.PARENT]
    return 0


@kernel
def hits_in_queue(s: State, request: int, blocks: int) -> int:
    """Count, of the leading `blocks`, those that nobody holds."""
    idle, stream = 0, s.request[request, Request.LEAF]
    while stream != NOBODY:
        copy = s.stream[stream, Stream.FIRST]
        if s.stream[copy, Stream.HOLDERS] == 0 and s.stream[stream, Stream.BEGIN] < blocks:
            idle += s.stream[copy, Stream.CACHED]
        stream = s.stream[stream, Stream.PARENT]
    return idle


@kernel
def hold(s: State, request: int, blocks: int) -> int:
    """Hold these leading blocks; return their tokens."""
    c = s.counter
    stream = s.request[request, Request.LEAF]
    while stream != NOBODY:
        copy = s.stream[stream, Stream.FIRST]
        if s.stream[copy, Stream.HOLDERS] > 0 or s.stream[copy, Stream.CACHED] > 0:
            if s.stream[stream, Stream.BEGIN] >= blocks:  # it is there, and may not be taken
                s.request[request, Request.COPIED] = stream
                add_copy(s, stream, s.request[request, Request.COPY])
                copy = s.request[request, Request.COPY]
            elif s.stream[copy, Stream.HOLDERS] == 0:
                leave_queue(s, copy)
                c[Counter.FREE] -= s.stream[copy, Stream.CACHED]
                c[Counter.HELD] += s.stream[copy, Stream.CACHED]
                s.stream[copy, Stream.CACHED] = 0
        s.stream[copy, Stream.HOLDERS] += 1
        if hosted(s) and s.stream[stream, Stream.BEGIN] < blocks:
            host_drops(s, stream)
        stream = s.stream[stream, Stream.PARENT]
    return count_hits(s, request, blocks)


@kernel
def count_hits(s: State, request: int, blocks: int) -> int:
    """Note that so many blocks were found; return their tokens."""
    c, tokens = s.counter, blocks * s.fixed[Fixed.BLOCK]
    if s.request[request, Request.EVICTIONS] == 0:
        s.request[request, Request.HIT] = tokens
        c[Counter.LOOKED_UP] += sequence(s, request)
    else:
        s.request[request, Request.RECOVERED] += tokens
        c[Counter.LOOKED_UP_AGAIN] += sequence(s, request)
    return int(tokens)


@kernel
def let_go(s: State, request: int, blocks: int, computed: int) -> None:
    """Let a request leave: blocks that nobody else holds are free, and those that are full remain known."""
    c = s.counter
    settle(s)
    full = computed // s.fixed[Fixed.BLOCK]
    blank = (computed + s.fixed[Fixed.BLOCK] - 1) // s.fixed[Fixed.BLOCK] - full
    c[Counter.HELD] -= blocks
    c[Counter.BLANK] += blank
    c[Counter.FREE] += blank
    stream = s.request[request, Request.LEAF]
    while stream != NOBODY:
        copy, mine = held_by(s, request, stream), full - s.stream[stream, Stream.BEGIN]
        s.stream[copy, Stream.HOLDERS] -= 1
        if s.stream[copy, Stream.HOLDERS] > 0:
            c[Counter.HELD] += max(mine, 0)
        elif mine > 0:
            join_queue(s, copy, mine)
            if hosted(s):
                host_keeps_released(s, copy, mine)
        else:
            forget(s, copy)
        full = min(full, s.stream[stream, Stream.BEGIN])
        stream = s.stream[stream, Stream.PARENT]
    s.request[request, Request.COPIED] = NOBODY
