"""Whoever has the lowest rank, in steps that grow with the logarithm of the number of ranks.

`State.rank` is a binary tree of counts; its root is row 1, the children of row i are 2i and 2i + 1, the last half of
the rows are the ranks.
"""

from kvplan.simulation.actions import kernel
from kvplan.simulation.state import COUNT, NOBODY, State


@kernel
def count(s: State, rank: int, change: int) -> None:
    """So many more, or fewer, have a rank."""
    node = s.rank.shape[0] // 2 + rank
    while node > 0:
        s.rank[node, COUNT] += change
        node //= 2


@kernel
def lowest(s: State) -> int:
    """The lowest rank that somebody has; NOBODY if nobody has one."""
    if s.rank[1, COUNT] == 0:
        return NOBODY
    node, leaves = 1, s.rank.shape[0] // 2
    while node < leaves:
        node *= 2
        if s.rank[node, COUNT] == 0:
            node += 1
    return int(node - leaves)
