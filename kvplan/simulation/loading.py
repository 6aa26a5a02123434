"""Loads from the host tier over a link, one transfer at a time, in the order in which they were asked for.

Overlapping, a request holds what is loaded for it and waits in a list of its own while others run. Whoever has anything
in common with it that is not on the GPU yet waits too, at the head of the queue, and finds it there later.
"""

from kvplan.simulation.actions import append, parked_list
from kvplan.simulation.kernels import kernel
from kvplan.simulation.prefix_cache import sequence
from kvplan.simulation.state import (
    BEGIN,
    BLOCK,
    CACHED,
    EVICTIONS,
    FIRST,
    HEAD,
    HELD,
    HOLDERS,
    HOST,
    INCLUSIVE,
    LEAF,
    LINK_BUSY,
    LINK_FREE,
    LOAD,
    LOADED,
    LOADERS,
    LOADING,
    LOADS_FROM,
    NOBODY,
    NOW,
    OVERLAPS,
    PARENT,
    READY_S,
    REST,
    State,
)


@kernel
def hits_of_tiers(s: State, request: int) -> int:
    """Leading blocks of a waiting request that the GPU or the host has; one token at least is left to compute."""
    most = (sequence(s, request) - 1) // s.fixed[BLOCK]
    stream = s.request[request, LEAF]
    while stream != NOBODY:
        copy = s.stream[stream, FIRST]
        there = s.stream[stream, REST]
        if s.stream[copy, HOLDERS] == 0:
            here, host = s.stream[copy, CACHED], s.stream[stream, HOST]
            there = max(here, host) if s.fixed[INCLUSIVE] else min(here + host, there)
        if there > 0:
            return int(min(s.stream[stream, BEGIN] + there, most))
        stream = s.stream[stream, PARENT]
    return 0


@kernel
def is_being_loaded(s: State, request: int) -> bool:
    """Whether a waiting request could find more once a load is done."""
    most = (sequence(s, request) - 1) // s.fixed[BLOCK]
    stream = s.request[request, LEAF]
    while stream != NOBODY:
        if s.stream[stream, LOADERS] > 0 and s.stream[stream, BEGIN] < most:
            return True
        stream = s.stream[stream, PARENT]
    return False


@kernel
def load(s: State, request: int, begin: int, end: int) -> bool:
    """Load blocks from `begin` to `end` for a request that holds what is found; whether it waits for them."""
    seconds = (end - begin) * s.clock[LOAD]
    s.counter[HELD] += end - begin
    s.clock[LINK_BUSY] += seconds
    if s.request[request, EVICTIONS] == 0:
        s.request[request, LOADED] = (end - begin) * s.fixed[BLOCK]
    if not s.fixed[OVERLAPS]:
        s.clock[LOADING] += seconds
        return False
    s.clock[LINK_FREE] = max(s.clock[LINK_FREE], s.clock[NOW]) + seconds
    s.time[request, READY_S] = s.clock[LINK_FREE]
    append(s, parked_list(s, 0), request)
    s.request[request, LOADS_FROM] = begin
    mark(s, request, 1)
    return True


@kernel
def mark(s: State, request: int, change: int) -> None:
    """Note that a request loads what the GPU did not have of it, or has done so."""
    stream, begin = s.request[request, LEAF], s.request[request, LOADS_FROM]
    while stream != NOBODY and s.stream[stream, BEGIN] + s.stream[stream, REST] > begin:
        s.stream[stream, LOADERS] += change
        stream = s.stream[stream, PARENT]


@kernel
def first_loaded(s: State) -> int:
    """Who has waited longest and whose load is done, and waits no more; NOBODY if there is none."""
    request = s.list[parked_list(s, 0), HEAD]
    if request == NOBODY or s.time[request, READY_S] > s.clock[NOW]:
        return NOBODY
    return int(request)
