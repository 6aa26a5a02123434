"""A prefix cache that is a radix tree, as SGLang's: leaves that nobody holds go, least recently touched first.

It mirrors `RadixCache` of `python/sglang/srt/mem_cache/radix_cache.py`, SGLang 0.5.

A node holds blocks that follow those of the node above it. It begins and ends where something was put into the tree,
looked up or branched off, within a stream or across several (`kvplan.simulation.requests`), and goes as a whole. The
nodes on a request's way follow from its streams: each knows the last node that holds a block of it.

Touching a node touches all above it afterwards. So nodes that nobody holds stand in a queue in the order in which they
are to go: the first one is always a leaf. The queue has nothing else.
"""

from kvplan.simulation.prefix_cache import count_hits, join_queue, leave_queue
from kvplan.simulation.state import NOBODY, Counter, Fixed, Request, State, Stream, kernel, sequence

# ------------------------------------------------------------------------------------------------------------- nodes


@kernel
def end_of(s: State, node: int) -> int:
    """Count the blocks down to the end of a node; none of NOBODY."""
    return 0 if node == NOBODY else int(s.stream[node, Stream.END])


@kernel
def new_node(s: State, above: int, end: int, stream: int) -> int:
    """Make a node that ends after so many blocks, in a stream; it stands in no queue."""
    c = s.counter
    node = c[Counter.SPARE]
    if node == NOBODY:
        node = c[Counter.ROWS]
        c[Counter.ROWS] += 1
    else:
        c[Counter.SPARE] = s.stream[node, Stream.PARENT]
    s.stream[node, Stream.PARENT], s.stream[node, Stream.END], s.stream[node, Stream.OF] = above, end, stream
    s.stream[node, Stream.CACHED] = end - end_of(s, above)
    s.stream[node, Stream.HOLDERS] = 0
    return int(node)


@kernel
def touch(s: State, node: int) -> None:
    """Put a node that has been used last, behind all below it."""
    c = s.counter
    if s.stream[node, Stream.HOLDERS] == 0:
        leave_queue(s, node)
        c[Counter.FREE] -= s.stream[node, Stream.CACHED]
        join_queue(s, node, s.stream[node, Stream.CACHED])


@kernel
def touch_all(s: State, node: int) -> None:
    """Touch a node and all above it; nodes that are held, and those above them, stand in no queue."""
    while node != NOBODY and s.stream[node, Stream.HOLDERS] == 0:
        touch(s, node)
        node = s.stream[node, Stream.PARENT]


@kernel
def split(s: State, node: int, end: int, stream: int) -> int:
    """Split a node after so many blocks, in a stream; return the upper one."""
    c = s.counter
    touch(s, node)
    upper = new_node(s, s.stream[node, Stream.PARENT], end, stream)
    s.stream[upper, Stream.HOLDERS] = s.stream[node, Stream.HOLDERS]
    s.stream[node, Stream.PARENT] = upper
    s.stream[node, Stream.CACHED] -= s.stream[upper, Stream.CACHED]
    if s.stream[upper, Stream.HOLDERS] == 0:
        c[Counter.FREE] -= s.stream[upper, Stream.CACHED]
        join_queue(s, upper, s.stream[upper, Stream.CACHED])
    while stream != NOBODY:
        if (
            s.stream[stream, Stream.TIP] == node
            and s.stream[stream, Stream.BEGIN] + s.stream[stream, Stream.REST] <= end
        ):
            s.stream[stream, Stream.TIP] = upper
        stream = s.stream[stream, Stream.PARENT]
    return upper


@kernel
def drop_oldest(s: State) -> None:
    """Drop the leaf that was touched longest ago."""
    c = s.counter
    node = c[Counter.OLDEST]
    leave_queue(s, node)
    c[Counter.FREE] -= s.stream[node, Stream.CACHED]
    above, stream = s.stream[node, Stream.PARENT], s.stream[node, Stream.OF]
    while True:
        begin = s.stream[stream, Stream.BEGIN]
        s.stream[stream, Stream.TIP] = above if end_of(s, above) > begin else NOBODY
        if begin <= end_of(s, above):
            break
        stream = s.stream[stream, Stream.PARENT]
    s.stream[node, Stream.PARENT] = c[Counter.SPARE]
    c[Counter.SPARE] = node


@kernel
def make_room(s: State, tokens: int) -> None:
    """Drop leaves until so many tokens fit beside what is held, or there is nothing left to drop."""
    c = s.counter
    while (
        c[Counter.OLDEST] != NOBODY
        and (s.fixed[Fixed.CAPACITY] - c[Counter.HELD] - c[Counter.FREE]) * s.fixed[Fixed.BLOCK] < tokens
    ):
        drop_oldest(s)


# -------------------------------------------------------------------------------------------------- ways and locks


@kernel
def found(s: State, request: int, most: int) -> int:
    """Find the node where the cached leading blocks of a request end, at most so many; split it if need be.

    Touches the nodes found.
    """
    stream = s.request[request, Request.LEAF]
    while stream != NOBODY and (
        s.stream[stream, Stream.TIP] == NOBODY or s.stream[stream, Stream.BEGIN] >= most
    ):
        stream = s.stream[stream, Stream.PARENT]
    if stream == NOBODY:
        return NOBODY
    node = s.stream[stream, Stream.TIP]
    end = min(
        s.stream[node, Stream.END], s.stream[stream, Stream.BEGIN] + s.stream[stream, Stream.REST], most
    )
    while end_of(s, s.stream[node, Stream.PARENT]) >= end:
        node = s.stream[node, Stream.PARENT]
    if s.stream[node, Stream.END] > end:
        node = split(s, node, end, stream)
    touch_all(s, node)
    return int(node)


@kernel
def put(s: State, request: int, blocks: int) -> int:
    """Put so many leading blocks of a request into the tree; return the node in which they end."""
    above = found(s, request, blocks)
    if end_of(s, above) == blocks:
        return above
    stream = s.request[request, Request.LEAF]
    while s.stream[stream, Stream.BEGIN] >= blocks:
        stream = s.stream[stream, Stream.PARENT]
    node = new_node(s, above, blocks, stream)
    join_queue(s, node, s.stream[node, Stream.CACHED])
    touch_all(s, node)
    s.stream[stream, Stream.TIP] = node
    while s.stream[stream, Stream.BEGIN] > end_of(s, above):
        stream = s.stream[stream, Stream.PARENT]
        s.stream[stream, Stream.TIP] = node
    return node


@kernel
def lock(s: State, node: int, held: int) -> None:
    """Hold a node, and all above it, down from a node that the same one holds already."""
    c = s.counter
    while node != held:
        if s.stream[node, Stream.HOLDERS] == 0:
            leave_queue(s, node)
            c[Counter.FREE] -= s.stream[node, Stream.CACHED]
            c[Counter.HELD] += s.stream[node, Stream.CACHED]
        s.stream[node, Stream.HOLDERS] += 1
        node = s.stream[node, Stream.PARENT]


@kernel
def unlock(s: State, node: int) -> None:
    """Release a node, and those above it; nodes that nobody holds any more go last.

    So they should: a request that is done has just touched them, one retracted finds the queue empty, as it is last.
    """
    while node != NOBODY:
        s.stream[node, Stream.HOLDERS] -= 1
        if s.stream[node, Stream.HOLDERS] == 0:
            s.counter[Counter.HELD] -= s.stream[node, Stream.CACHED]
            join_queue(s, node, s.stream[node, Stream.CACHED])
        node = s.stream[node, Stream.PARENT]


# -------------------------------------------------------------------------------------------------------- requests


@kernel
def look_up(s: State, request: int) -> int:
    """Count cached leading blocks of a waiting request; one token at least is left to compute."""
    s.request[request, Request.NODE] = found(s, request, (sequence(s, request) - 1) // s.fixed[Fixed.BLOCK])
    return end_of(s, s.request[request, Request.NODE])


@kernel
def held_by_nobody(s: State, request: int) -> int:
    """Count, of the blocks that were found, those that nobody holds."""
    idle, node = 0, s.request[request, Request.NODE]
    while node != NOBODY and s.stream[node, Stream.HOLDERS] == 0:
        idle += s.stream[node, Stream.CACHED]
        node = s.stream[node, Stream.PARENT]
    return idle


@kernel
def hold_found(s: State, request: int) -> int:
    """Hold the hits; return their tokens."""
    lock(s, s.request[request, Request.NODE], NOBODY)
    return count_hits(s, request, end_of(s, s.request[request, Request.NODE]))


@kernel
def enter_tree(s: State, request: int, computed: int) -> None:
    """Put full blocks computed by a running request into the tree; those that were there are held twice."""
    before, full = s.request[request, Request.NODE], computed // s.fixed[Fixed.BLOCK]
    s.counter[Counter.HELD] -= full - end_of(s, before)
    s.request[request, Request.NODE] = put(s, request, full)
    lock(s, s.request[request, Request.NODE], before)


@kernel
def leave_tree(s: State, request: int, blocks: int, computed: int) -> None:
    """Let a request leave: if done, all its blocks remain; else those in the tree."""
    node = s.request[request, Request.NODE]
    s.counter[Counter.HELD] -= blocks - end_of(s, node)
    if computed == s.request[request, Request.FIRST_WEIGHT] + s.request[request, Request.STAGES] - 1:
        put(s, request, computed // s.fixed[Fixed.BLOCK])
    unlock(s, node)
    s.request[request, Request.NODE], s.request[request, Request.ENTERED] = NOBODY, False
