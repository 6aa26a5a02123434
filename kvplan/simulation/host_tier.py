"""Host memory behind the prefix cache of blocks: what it keeps, in order of release (theory §13).

Of a stream the host has blocks in a row: inclusive, its leading ones, as many as were there when they were last
released on the GPU; exclusive, those that follow what the GPU has, since the GPU throws away the last ones first. Those
that nobody holds queue by streams as on the GPU, least recently released first, and go from their ends.

Inclusive, the host has a copy of every full block on the GPU: it reserves room for all blocks that requests hold, and
the rest of it keeps what they have left. Exclusive, only what the GPU throws away comes in. Either way what a request
finds leaves the queue: it is held, and will be released again.
"""

from kvplan.simulation.kernels import kernel
from kvplan.simulation.state import (
    CAPACITY,
    FREE,
    HOST,
    HOST_BEHIND,
    HOST_CAPACITY,
    HOST_IN_FRONT,
    HOST_NEWEST,
    HOST_OLDEST,
    HOSTED,
    INCLUSIVE,
    NOBODY,
    ORIGINAL,
    REST,
    State,
)


@kernel
def host_puts(s: State, stream: int, blocks: int) -> None:
    """Blocks of a stream go last in the queue, beside those of it that are there."""
    c, last = s.counter, s.counter[HOST_NEWEST]
    s.stream[stream, HOST] = blocks
    s.stream[stream, HOST_IN_FRONT], s.stream[stream, HOST_BEHIND] = last, NOBODY
    if last == NOBODY:
        c[HOST_OLDEST] = stream
    else:
        s.stream[last, HOST_BEHIND] = stream
    c[HOST_NEWEST] = stream
    c[HOSTED] += blocks


@kernel
def host_drops(s: State, stream: int) -> None:
    """Whatever the queue has of a stream leaves it."""
    if s.stream[stream, HOST] == 0:
        return
    c, left, right = s.counter, s.stream[stream, HOST_IN_FRONT], s.stream[stream, HOST_BEHIND]
    if left == NOBODY:
        c[HOST_OLDEST] = right
    else:
        s.stream[left, HOST_BEHIND] = right
    if right == NOBODY:
        c[HOST_NEWEST] = left
    else:
        s.stream[right, HOST_IN_FRONT] = left
    c[HOSTED] -= s.stream[stream, HOST]
    s.stream[stream, HOST] = 0


@kernel
def host_keeps_released(s: State, copy: int, blocks: int) -> None:
    """Blocks that nobody holds any more, inclusive: they were written as they were computed."""
    if s.fixed[INCLUSIVE]:
        stream = s.stream[copy, ORIGINAL]
        host_drops(s, stream)
        host_puts(s, stream, blocks)


@kernel
def host_keeps_victims(s: State, copy: int, blocks: int) -> None:
    """Blocks that the GPU throws away, exclusive: the last ones of a stream, or a copy of what is there."""
    if not s.fixed[INCLUSIVE]:
        stream = s.stream[copy, ORIGINAL]
        there = min(s.stream[stream, HOST] + blocks, s.stream[stream, REST])  # a copy is not there twice
        host_drops(s, stream)
        host_puts(s, stream, there)


@kernel
def host_settles(s: State) -> None:
    """What the host has no room for goes; the queue of the GPU is settled."""
    c, room = s.counter, s.fixed[HOST_CAPACITY]
    if s.fixed[INCLUSIVE]:
        room = max(room - (s.fixed[CAPACITY] - c[FREE]), 0)
    while c[HOSTED] > room:
        stream = c[HOST_OLDEST]
        some = min(c[HOSTED] - room, s.stream[stream, HOST])
        if some == s.stream[stream, HOST]:
            host_drops(s, stream)
        else:
            s.stream[stream, HOST] -= some
            c[HOSTED] -= some
