"""Loads from the host tier over a link, one transfer at a time, in the order in which they were asked for.

Overlapping, a request holds what is loaded for it and waits in a list of its own while others run. Whoever has anything
in common with it that is not on the GPU yet waits too, at the head of the queue, and finds it there later.
"""

from kvplan.simulation.actions import append, parked_list
from kvplan.simulation.kernels import kernel
from kvplan.simulation.prefix_cache import sequence
from kvplan.simulation.state import (
    NOBODY,
    Cached,
    Clock,
    Copy,
    Counter,
    Fixed,
    Hosted,
    List,
    Request,
    State,
    Stream,
    Time,
)


@kernel
def hits_of_tiers(s: State, request: int) -> int:
    """Leading blocks of a waiting request that the GPU or the host has; one token at least is left to compute."""
    most = (sequence(s, request) - 1) // s.fixed[Fixed.BLOCK]
    stream = s.request[request, Cached.LEAF]
    while stream != NOBODY:
        copy = s.stream[stream, Copy.FIRST]
        there = s.stream[stream, Stream.REST]
        if s.stream[copy, Stream.HOLDERS] == 0:
            here, host = s.stream[copy, Stream.CACHED], s.stream[stream, Hosted.HOST]
            there = max(here, host) if s.fixed[Fixed.INCLUSIVE] else min(here + host, there)
        if there > 0:
            return int(min(s.stream[stream, Stream.BEGIN] + there, most))
        stream = s.stream[stream, Stream.PARENT]
    return 0


@kernel
def is_being_loaded(s: State, request: int) -> bool:
    """Whether a waiting request could find more once a load is done."""
    most = (sequence(s, request) - 1) // s.fixed[Fixed.BLOCK]
    stream = s.request[request, Cached.LEAF]
    while stream != NOBODY:
        if s.stream[stream, Hosted.LOADERS] > 0 and s.stream[stream, Stream.BEGIN] < most:
            return True
        stream = s.stream[stream, Stream.PARENT]
    return False


@kernel
def load(s: State, request: int, begin: int, end: int) -> bool:
    """Load blocks from `begin` to `end` for a request that holds what is found; whether it waits for them."""
    seconds = (end - begin) * s.clock[Clock.LOAD]
    s.counter[Counter.HELD] += end - begin
    s.clock[Clock.LINK_BUSY] += seconds
    if s.request[request, Request.EVICTIONS] == 0:
        s.request[request, Cached.LOADED] = (end - begin) * s.fixed[Fixed.BLOCK]
    if not s.fixed[Fixed.OVERLAPS]:
        s.clock[Clock.LOADING] += seconds
        return False
    s.clock[Clock.LINK_FREE] = max(s.clock[Clock.LINK_FREE], s.clock[Clock.NOW]) + seconds
    s.time[request, Time.READY] = s.clock[Clock.LINK_FREE]
    append(s, parked_list(s, 0), request)
    s.request[request, Cached.LOADS_FROM] = begin
    mark(s, request, 1)
    return True


@kernel
def mark(s: State, request: int, change: int) -> None:
    """Note that a request loads what the GPU did not have of it, or has done so."""
    stream, begin = s.request[request, Cached.LEAF], s.request[request, Cached.LOADS_FROM]
    while stream != NOBODY and s.stream[stream, Stream.BEGIN] + s.stream[stream, Stream.REST] > begin:
        s.stream[stream, Hosted.LOADERS] += change
        stream = s.stream[stream, Stream.PARENT]


@kernel
def first_loaded(s: State) -> int:
    """Who has waited longest and whose load is done, and waits no more; NOBODY if there is none."""
    request = s.list[parked_list(s, 0), List.HEAD]
    if request == NOBODY or s.time[request, Time.READY] > s.clock[Clock.NOW]:
        return NOBODY
    return int(request)
