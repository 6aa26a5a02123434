"""Lists that requests stand in, the queue of cached streams, and ranks.

A list is doubly linked: `State.list` has its ends, `Request.BEFORE` and `AFTER` the neighbours of each member. Streams
queue likewise. `State.rank` is a binary tree of counts: the root is row 1, the children of row i are 2i and 2i + 1, the
last half of the rows are the ranks. On each rank requests can be piled, the last one on top.
"""

from kvplan.simulation.state import NOBODY, List, Place, Rank, Request, State, kernel


@kernel
def append(s: State, where: int, request: int) -> None:
    """Put a request at the end of a list."""
    last = s.list[where, List.TAIL]
    s.request[request, Request.BEFORE], s.request[request, Request.AFTER] = last, NOBODY
    if last == NOBODY:
        s.list[where, List.HEAD] = request
    else:
        s.request[last, Request.AFTER] = request
    s.list[where, List.TAIL] = request
    s.list[where, List.LENGTH] += 1
    s.request[request, Request.PLACE] = where


@kernel
def put_first(s: State, where: int, request: int) -> None:
    """Put a request at the beginning of a list."""
    first = s.list[where, List.HEAD]
    s.request[request, Request.BEFORE], s.request[request, Request.AFTER] = NOBODY, first
    if first == NOBODY:
        s.list[where, List.TAIL] = request
    else:
        s.request[first, Request.BEFORE] = request
    s.list[where, List.HEAD] = request
    s.list[where, List.LENGTH] += 1
    s.request[request, Request.PLACE] = where


@kernel
def take_out(s: State, request: int) -> None:
    """Remove a request from the list in which it stands."""
    where, left = s.request[request, Request.PLACE], s.request[request, Request.BEFORE]
    right = s.request[request, Request.AFTER]
    if left == NOBODY:
        s.list[where, List.HEAD] = right
    else:
        s.request[left, Request.AFTER] = right
    if right == NOBODY:
        s.list[where, List.TAIL] = left
    else:
        s.request[right, Request.BEFORE] = left
    s.list[where, List.LENGTH] -= 1
    s.request[request, Request.PLACE] = Place.OUTSIDE


@kernel
def stream_joins(s: State, stream: int, ends: int, beside: int) -> None:
    """Put a stream last in a queue with these first counter of its ends and first column of neighbours."""
    c, last = s.counter, s.counter[ends + 1]
    s.stream[stream, beside], s.stream[stream, beside + 1] = last, NOBODY
    if last == NOBODY:
        c[ends] = stream
    else:
        s.stream[last, beside + 1] = stream
    c[ends + 1] = stream


@kernel
def stream_leaves(s: State, stream: int, ends: int, beside: int) -> None:
    """Take a stream out of a queue, wherever it stands."""
    c, left, right = s.counter, s.stream[stream, beside], s.stream[stream, beside + 1]
    if left == NOBODY:
        c[ends] = right
    else:
        s.stream[left, beside + 1] = right
    if right == NOBODY:
        c[ends + 1] = left
    else:
        s.stream[right, beside] = left


@kernel
def count(s: State, rank: int, change: int) -> None:
    """Count so many more, or fewer, on a rank."""
    node = s.rank.shape[0] // 2 + rank
    while node > 0:
        s.rank[node, Rank.COUNT] += change
        node //= 2


@kernel
def lowest(s: State) -> int:
    """Find the lowest rank that a request has; NOBODY if none has one."""
    if s.rank[1, Rank.COUNT] == 0:
        return NOBODY
    node, leaves = 1, s.rank.shape[0] // 2
    while node < leaves:
        node *= 2
        if s.rank[node, Rank.COUNT] == 0:
            node += 1
    return int(node - leaves)


@kernel
def last_of(s: State, rank: int) -> int:
    """Return the request on top of a rank's pile."""
    return int(s.rank[s.rank.shape[0] // 2 + rank, Rank.TOP])


@kernel
def pile(s: State, rank: int, request: int) -> None:
    """Put a request on top of a rank's pile, and count it."""
    leaf = s.rank.shape[0] // 2 + rank
    below = s.rank[leaf, Rank.TOP]
    s.request[request, Request.BELOW], s.request[request, Request.ABOVE] = below, NOBODY
    if below != NOBODY:
        s.request[below, Request.ABOVE] = request
    s.rank[leaf, Rank.TOP] = request
    count(s, rank, 1)


@kernel
def unpile(s: State, rank: int, request: int) -> None:
    """Take a request out of a rank's pile."""
    below, above = s.request[request, Request.BELOW], s.request[request, Request.ABOVE]
    if above == NOBODY:
        s.rank[s.rank.shape[0] // 2 + rank, Rank.TOP] = below
    else:
        s.request[above, Request.BELOW] = below
    if below != NOBODY:
        s.request[below, Request.ABOVE] = above
    count(s, rank, -1)
