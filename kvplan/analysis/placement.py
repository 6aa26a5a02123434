"""Which classes share a replica: placements, what they are worth, and a search that measures few groups (SIC 5.2).

A *placement* puts every class into one group and gives every group some of N equal replicas, at least one, which share
its traffic evenly. The search is new.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

Group = tuple[int, ...]  # classes by their place, ascending
Rate = Callable[[Group], float]  # requests/s of a group, or of one replica of it

NEAR = 0.01  # what is worth so much more is better


class Search(NamedTuple):
    """The best of `ways` partitions; `complete` unless something unmeasured could have been better."""

    best: tuple[Group, ...]
    ways: int
    measured: int
    complete: bool


def partitions(count: int, most: int) -> Iterator[tuple[Group, ...]]:
    """Yield all ways to put so many things into at most `most` groups.

    >>> list(partitions(2, 2))
    [((0, 1),), ((0,), (1,))]
    """

    def extend(groups: tuple[Group, ...], thing: int) -> Iterator[tuple[Group, ...]]:
        if thing == count:
            yield groups
            return
        for at, group in enumerate(groups):
            yield from extend((*groups[:at], (*group, thing), *groups[at + 1 :]), thing + 1)
        if len(groups) < most:
            yield from extend((*groups, (thing,)), thing + 1)

    return extend((), 0)


def give_replicas(offered: Sequence[float], served: Sequence[float], replicas: int) -> tuple[int, ...]:
    """Give out replicas, at least one a group, so that the placement is worth most.

    `offered` and `served` are requests/s offered to each group, and served by one replica of it. In overload the next
    replica goes where it adds most, which is ever less; else to the group that needs most for what it has (Adams'
    method): nobody has more than the quota rounded up, so nobody lacks more than there are groups.

    Examples
    --------
    >>> give_replicas([30.0, 30.0, 90.0], [3.0, 20.0, 20.0], 7)  # too few
    (1, 2, 4)
    """
    needs = [o / s for o, s in zip(offered, served, strict=True)]
    enough, quota = [math.ceil(need) for need in needs], replicas / math.fsum(needs)
    if sum(enough) <= replicas:
        given = [max(e, math.floor(quota * n) - len(needs)) for e, n in zip(enough, needs, strict=True)]
        for _ in range(replicas - sum(given)):
            given[max(range(len(needs)), key=lambda i: needs[i] / given[i])] += 1
        return tuple(given)
    given, left = [1] * len(needs), replicas - len(needs)
    gains = [(s, i, math.floor(need) - 1) for i, (s, need) in enumerate(zip(served, needs, strict=True))]
    gains += [(offered[i] - (room + 1) * rate, i, 1) for rate, i, room in gains if room >= 0]
    for _, at, room in sorted(gains, key=lambda gain: -gain[0]):
        more = min(max(room, 0), left)
        given[at], left = given[at] + more, left - more
    return tuple(given)


def worth(offered: Sequence[float], served: Sequence[float], given: Sequence[int]) -> float:
    """Measure a placement: the share of the requests that is served; where that is all, by what factor rates may grow.

    >>> worth([1.0, 3.0], [2.0, 2.0], [1, 2]), worth([1.0, 3.0], [2.0, 2.0], [1, 1])
    (1.3333333333333333, 0.75)
    """
    capacities = [r * s for r, s in zip(given, served, strict=True)]
    factor = min(c / o for c, o in zip(capacities, offered, strict=True))
    return factor if factor >= 1 else math.fsum(map(min, offered, capacities)) / math.fsum(offered)


def search(
    ways: Sequence[tuple[Group, ...]],
    replicas: int,
    offered: Rate,
    bound: Rate,
    measure: Rate,
    known: dict[Group, float],
    may_measure: Callable[[Sequence[Group]], bool],
) -> Search:
    """Look for the partition that is worth most, measuring only groups of such as could be better than what is known.

    Of those that are worth about as much (`NEAR`), the one of the fewest groups is best. `bound` is the most that
    `measure` can say, `known` what it said, of all groups of some partition at least, and `may_measure` tells whether
    there is time for more.
    """

    def worth_of(groups: tuple[Group, ...]) -> float:
        rates, served = [offered(g) for g in groups], [known[g] if g in known else bound(g) for g in groups]
        return worth(rates, served, give_replicas(rates, served, replicas))

    def of_known() -> dict[tuple[Group, ...], float]:
        return {groups: worth_of(groups) for groups in ways if known.keys() >= set(groups)}

    heap = [(-worth_of(way), at) for at, way in enumerate(ways)]
    most, complete = max(of_known().values()), True
    heapq.heapify(heap)
    while heap and -heap[0][0] > (1 + NEAR) * most:
        upper, at = heap[0]
        now, unknown = worth_of(ways[at]), [g for g in ways[at] if g not in known]
        if now < -upper:  # a group of it has been measured meanwhile
            heapq.heapreplace(heap, (-now, at))
        elif not unknown:
            most = now
        elif not (complete := may_measure(unknown)):
            break
        else:
            known |= {g: measure(g) for g in unknown}
    worths = of_known()
    near = [groups for groups in worths if (1 + NEAR) * worths[groups] >= max(worths.values())]
    best = min(near, key=lambda groups: (len(groups), -worths[groups]))
    return Search(best, len(ways), len(known), complete)
