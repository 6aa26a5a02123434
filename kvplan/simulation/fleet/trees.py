"""The least of what stands for each replica, and whose it is: binary trees in the columns of `State.link`.

The last half of the rows are the replicas, the children of row i are 2i and 2i + 1, the root is row 1, and each node
has the lesser of its children. What changes is told in steps that grow with the logarithm of the number of replicas.
"""

import math

from kvplan.simulation.kernels import kernel
from kvplan.simulation.state import State


@kernel
def told(s: State, column: int, replica: int) -> float:
    """What stands for a replica."""
    return float(s.link[s.link.shape[0] // 2 + replica, column])


@kernel
def tell(s: State, column: int, replica: int, value: float) -> None:
    """Put something else there."""
    node = s.link.shape[0] // 2 + replica
    s.link[node, column] = value
    node //= 2
    while node > 0:
        least = min(s.link[2 * node, column], s.link[2 * node + 1, column])
        if s.link[node, column] == least:
            return
        s.link[node, column] = least
        node //= 2


@kernel
def least_of(s: State, column: int) -> int:
    """The replica with the least; of several, the first."""
    node, leaves = 1, s.link.shape[0] // 2
    while node < leaves:
        node *= 2
        if s.link[node, column] > s.link[node + 1, column]:
            node += 1
    return int(node - leaves)


@kernel
def least_of_others(s: State, column: int, replica: int) -> float:
    """The least of all but one."""
    node, least = s.link.shape[0] // 2 + replica, math.inf
    while node > 1:
        beside = node + 1 if node % 2 == 0 else node - 1
        least = min(least, s.link[beside, column])
        node //= 2
    return least
