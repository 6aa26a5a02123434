"""The least of what stands for each replica, and whose it is: binary trees in the columns of `State.link`.

The last half of the rows are the replicas, the children of row i are 2i and 2i + 1, the root is row 1, and each node
has the lesser of its children, and, WHOSE columns further, the replica that has it. What changes is told in steps that
grow with the logarithm of the number of replicas.
"""

import math

from kvplan.simulation.kernels import kernel
from kvplan.simulation.state import Link, State


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
        # a sum, for nobody can foretell which: a branch here would mostly be a wrong guess of the processor
        lesser = 2 * node + (s.link[2 * node + 1, column] < s.link[2 * node, column])
        least, whose = s.link[lesser, column], s.link[lesser, column + Link.WHOSE]
        if s.link[node, column] == least and s.link[node, column + Link.WHOSE] == whose:
            return
        s.link[node, column], s.link[node, column + Link.WHOSE] = least, whose
        node //= 2


@kernel
def least_of(s: State, column: int) -> int:
    """The replica with the least; of several, the first."""
    return int(s.link[1, column + Link.WHOSE])


@kernel
def least_of_others(s: State, column: int, replica: int) -> float:
    """The least of all but one."""
    node, least = s.link.shape[0] // 2 + replica, math.inf
    while node > 1:
        beside = node + 1 if node % 2 == 0 else node - 1
        least = min(least, s.link[beside, column])
        node //= 2
    return least
