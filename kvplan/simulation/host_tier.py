"""Host memory behind the prefix cache of blocks: what it keeps, in order of release (theory §13).

Of a stream the host has blocks in a row: inclusive, its leading ones, as many as were there when they were last
released on the GPU; exclusive, those that follow what the GPU has, since the GPU throws away the last ones first. Those
that nobody holds queue by streams as on the GPU, least recently released first, and go from their ends.

Inclusive, the host has a copy of every full block on the GPU: it reserves room for all blocks that requests hold, and
the rest of it keeps what they have left. Exclusive, only what the GPU throws away comes in. Either way what a request
finds leaves the queue: it is held, and will be released again.
"""

from kvplan.simulation.kernels import kernel
from kvplan.simulation.state import NOBODY, Copy, Counter, Fixed, Hosted, State, Stream


@kernel
def host_puts(s: State, stream: int, blocks: int) -> None:
    """Blocks of a stream go last in the queue, beside those of it that are there."""
    c, last = s.counter, s.counter[Counter.HOST_NEWEST]
    s.stream[stream, Hosted.HOST] = blocks
    s.stream[stream, Hosted.HOST_IN_FRONT], s.stream[stream, Hosted.HOST_BEHIND] = last, NOBODY
    if last == NOBODY:
        c[Counter.HOST_OLDEST] = stream
    else:
        s.stream[last, Hosted.HOST_BEHIND] = stream
    c[Counter.HOST_NEWEST] = stream
    c[Counter.HOSTED] += blocks


@kernel
def host_drops(s: State, stream: int) -> None:
    """Whatever the queue has of a stream leaves it."""
    if s.stream[stream, Hosted.HOST] == 0:
        return
    c, left, right = s.counter, s.stream[stream, Hosted.HOST_IN_FRONT], s.stream[stream, Hosted.HOST_BEHIND]
    if left == NOBODY:
        c[Counter.HOST_OLDEST] = right
    else:
        s.stream[left, Hosted.HOST_BEHIND] = right
    if right == NOBODY:
        c[Counter.HOST_NEWEST] = left
    else:
        s.stream[right, Hosted.HOST_IN_FRONT] = left
    c[Counter.HOSTED] -= s.stream[stream, Hosted.HOST]
    s.stream[stream, Hosted.HOST] = 0


@kernel
def host_keeps_released(s: State, copy: int, blocks: int) -> None:
    """Blocks that nobody holds any more, inclusive: they were written as they were computed."""
    if s.fixed[Fixed.INCLUSIVE]:
        stream = s.stream[copy, Copy.ORIGINAL]
        host_drops(s, stream)
        host_puts(s, stream, blocks)


@kernel
def host_keeps_victims(s: State, copy: int, blocks: int) -> None:
    """Blocks that the GPU throws away, exclusive: the last ones of a stream, or a copy of what is there."""
    if not s.fixed[Fixed.INCLUSIVE]:
        stream = s.stream[copy, Copy.ORIGINAL]
        there = min(
            s.stream[stream, Hosted.HOST] + blocks, s.stream[stream, Stream.REST]
        )  # a copy is not there twice
        host_drops(s, stream)
        host_puts(s, stream, there)


@kernel
def host_settles(s: State) -> None:
    """What the host has no room for goes; the queue of the GPU is settled."""
    c, room = s.counter, s.fixed[Fixed.HOST_CAPACITY]
    if s.fixed[Fixed.INCLUSIVE]:
        room = max(room - (s.fixed[Fixed.CAPACITY] - c[Counter.FREE]), 0)
    while c[Counter.HOSTED] > room:
        stream = c[Counter.HOST_OLDEST]
        some = min(c[Counter.HOSTED] - room, s.stream[stream, Hosted.HOST])
        if some == s.stream[stream, Hosted.HOST]:
            host_drops(s, stream)
        else:
            s.stream[stream, Hosted.HOST] -= some
            c[Counter.HOSTED] -= some
