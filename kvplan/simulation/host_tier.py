"""Host memory behind the prefix cache of blocks: its blocks in order of release, and loads from it (theory §13).

Of a stream the host has blocks in a row: inclusive, its leading ones, as many as were there when they were last
released on the GPU; exclusive, those that follow what the GPU has, since the GPU throws away the last ones first. Those
that nobody holds queue by streams as on the GPU, least recently released first, and go from their ends.

Inclusive, the host has a copy of every full block on the GPU: it reserves room for all blocks that requests hold, and
the rest of it keeps released ones. Exclusive, only blocks that the GPU throws away come in. Either way blocks that a
request finds leave the queue: they are held, and will be released again.

Loads go over a link, one transfer at a time, in the order in which they were asked for. Overlapping, a request holds
the blocks loaded for it and waits in a list of its own while others run. A request that shares blocks with it that are
not on the GPU yet waits too, at the head of the queue, and finds them there later.
"""

from kvplan.simulation.queues import append, stream_joins, stream_leaves
from kvplan.simulation.state import (
    NOBODY,
    Clock,
    Counter,
    Fixed,
    List,
    Request,
    State,
    Stream,
    Time,
    kernel,
    parked_list,
    sequence,
)


@kernel
def host_puts(s: State, stream: int, blocks: int) -> None:
    """Put blocks of a stream last in the queue, beside those of it that are there."""
    stream_joins(s, stream, Counter.HOST_OLDEST, Stream.HOST_IN_FRONT)
    s.stream[stream, Stream.HOST] = blocks
    s.counter[Counter.HOSTED] += blocks


@kernel
def host_drops(s: State, stream: int) -> None:
    """Remove all blocks of a stream from the queue."""
    if s.stream[stream, Stream.HOST] > 0:
        stream_leaves(s, stream, Counter.HOST_OLDEST, Stream.HOST_IN_FRONT)
        s.counter[Counter.HOSTED] -= s.stream[stream, Stream.HOST]
        s.stream[stream, Stream.HOST] = 0


@kernel
def host_keeps_released(s: State, copy: int, blocks: int) -> None:
    """Keep blocks that nobody holds any more, inclusive: they were written as they were computed."""
    if s.fixed[Fixed.INCLUSIVE]:
        stream = s.stream[copy, Stream.ORIGINAL]
        host_drops(s, stream)
        host_puts(s, stream, blocks)


@kernel
def host_keeps_victims(s: State, copy: int, blocks: int) -> None:
    """Keep blocks that the GPU throws away, exclusive: the last ones of a stream, or a copy of what is there."""
    if not s.fixed[Fixed.INCLUSIVE]:
        stream = s.stream[copy, Stream.ORIGINAL]
        # a copy is not there twice
        there = min(s.stream[stream, Stream.HOST] + blocks, s.stream[stream, Stream.REST])
        host_drops(s, stream)
        host_puts(s, stream, there)


@kernel
def host_settles(s: State) -> None:
    """Drop blocks without room on the host; the queue of the GPU is settled."""
    c, room = s.counter, s.fixed[Fixed.HOST_CAPACITY]
    if s.fixed[Fixed.INCLUSIVE]:
        room = max(room - (s.fixed[Fixed.CAPACITY] - c[Counter.FREE]), 0)
    while c[Counter.HOSTED] > room:
        stream = c[Counter.HOST_OLDEST]
        some = min(c[Counter.HOSTED] - room, s.stream[stream, Stream.HOST])
        if some == s.stream[stream, Stream.HOST]:
            host_drops(s, stream)
        else:
            s.stream[stream, Stream.HOST] -= some
            c[Counter.HOSTED] -= some


# ------------------------------------------------------------------------------------------------------------- loads


@kernel
def hits_of_tiers(s: State, request: int) -> int:
    """Count leading blocks of a waiting request that the GPU or the host has; one token is left to compute."""
    most = (sequence(s, request) - 1) // s.fixed[Fixed.BLOCK]
    stream = s.request[request, Request.LEAF]
    while stream != NOBODY:
        copy = s.stream[stream, Stream.FIRST]
        there = s.stream[stream, Stream.REST]
        if s.stream[copy, Stream.HOLDERS] == 0:
            here, host = s.stream[copy, Stream.CACHED], s.stream[stream, Stream.HOST]
            there = max(here, host) if s.fixed[Fixed.INCLUSIVE] else min(here + host, there)
        if there > 0:
            return int(min(s.stream[stream, Stream.BEGIN] + there, most))
        stream = s.stream[stream, Stream.PARENT]
    return 0


@kernel
def is_being_loaded(s: State, request: int) -> bool:
    """Tell whether a waiting request could find more once a load is done."""
    most = (sequence(s, request) - 1) // s.fixed[Fixed.BLOCK]
    stream = s.request[request, Request.LEAF]
    while stream != NOBODY:
        if s.stream[stream, Stream.LOADERS] > 0 and s.stream[stream, Stream.BEGIN] < most:
            return True
        stream = s.stream[stream, Stream.PARENT]
    return False


@kernel
def load(s: State, request: int, begin: int, end: int) -> bool:
    """Load blocks from `begin` to `end` for a request that holds its hits; return whether it waits."""
    seconds = (end - begin) * s.clock[Clock.LOAD]
    s.counter[Counter.HELD] += end - begin
    s.clock[Clock.LINK_BUSY] += seconds
    if s.request[request, Request.EVICTIONS] == 0:
        s.request[request, Request.LOADED] = (end - begin) * s.fixed[Fixed.BLOCK]
    if not s.fixed[Fixed.OVERLAPS]:
        s.clock[Clock.LOADING] += seconds
        return False
    s.clock[Clock.LINK_FREE] = max(s.clock[Clock.LINK_FREE], s.clock[Clock.NOW]) + seconds
    s.time[request, Time.READY] = s.clock[Clock.LINK_FREE]
    append(s, parked_list(s, 0), request)
    s.request[request, Request.LOADS_FROM] = begin
    mark(s, request, 1)
    return True


@kernel
def mark(s: State, request: int, change: int) -> None:
    """Note that a request loads blocks missing on the GPU, or has done so."""
    stream, begin = s.request[request, Request.LEAF], s.request[request, Request.LOADS_FROM]
    while stream != NOBODY and s.stream[stream, Stream.BEGIN] + s.stream[stream, Stream.REST] > begin:
        s.stream[stream, Stream.LOADERS] += change
        stream = s.stream[stream, Stream.PARENT]


@kernel
def first_loaded(s: State) -> int:
    """Return the request waiting longest, if its load is done; NOBODY if there is none."""
    request = s.list[parked_list(s, 0), List.HEAD]
    if request == NOBODY or s.time[request, Time.READY] > s.clock[Clock.NOW]:
        return NOBODY
    return int(request)
