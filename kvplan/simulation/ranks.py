"""Whoever has the lowest rank, in steps that grow with the logarithm of the number of ranks.

`State.rank` is a binary tree of counts; its root is row 1, the children of row i are 2i and 2i + 1, the last half of
the rows are the ranks. On each rank requests can be piled, the last one on top.
"""

from kvplan.simulation.kernels import kernel
from kvplan.simulation.state import NOBODY, Rank, Ranked, State


@kernel
def count(s: State, rank: int, change: int) -> None:
    """So many more, or fewer, have a rank."""
    node = s.rank.shape[0] // 2 + rank
    while node > 0:
        s.rank[node, Rank.COUNT] += change
        node //= 2


@kernel
def lowest(s: State) -> int:
    """The lowest rank that somebody has; NOBODY if nobody has one."""
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
    """The request on top of a rank's pile."""
    return int(s.rank[s.rank.shape[0] // 2 + rank, Rank.TOP])


@kernel
def pile(s: State, rank: int, request: int) -> None:
    """Put a request on top of a rank's pile, and count it."""
    leaf = s.rank.shape[0] // 2 + rank
    below = s.rank[leaf, Rank.TOP]
    s.request[request, Ranked.BELOW], s.request[request, Ranked.ABOVE] = below, NOBODY
    if below != NOBODY:
        s.request[below, Ranked.ABOVE] = request
    s.rank[leaf, Rank.TOP] = request
    count(s, rank, 1)


@kernel
def unpile(s: State, rank: int, request: int) -> None:
    """Take a request out of a rank's pile."""
    below, above = s.request[request, Ranked.BELOW], s.request[request, Ranked.ABOVE]
    if above == NOBODY:
        s.rank[s.rank.shape[0] // 2 + rank, Rank.TOP] = below
    else:
        s.request[above, Ranked.BELOW] = below
    if below != NOBODY:
        s.request[below, Ranked.ABOVE] = above
    count(s, rank, -1)
