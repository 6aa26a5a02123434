"""How good a placement is, and how many replicas each of its groups should have (new).

A *placement* puts every class into one group and gives every group some of N equal replicas, at least one. A group's
replicas share its traffic evenly, so each of them sees all of the group's classes, in the group's proportions.

Better is, in this order: less demand that no policy could serve (beyond the sustainable rates of the groups), more of
the demand served while every group is in its worst cycle, by the clock, and more headroom of the tightest group.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from kvplan.analysis.pool import Pool

NEAR = 0.01  # what the formulas do not tell apart for sure
_DIGITS = 9  # beyond which a difference is rounding
ROUNDING = 1e-9  # relative
_ONE_BY_ONE = 64  # so few replicas are given out singly


class Group(NamedTuple):
    """Classes, by their place in the profile, and how many replicas serve them."""

    classes: tuple[int, ...]
    replicas: int
    pool: Pool

    @property
    def headroom(self) -> float:
        """Sustainable over offered rate, less 1."""
        return self.replicas / self.pool.need - 1


class Score(NamedTuple):
    """What placements are compared by, the first first.

    Attributes
    ----------
    unserved
        Share of the requests beyond the sustainable rates of their groups.
    worst_served
        Share of the requests that is served while every group is in its worst cycle.
    headroom
        Of the tightest group.
    """

    unserved: float
    worst_served: float
    headroom: float

    @property
    def key(self) -> tuple[float, ...]:
        """Smaller is better; rounded, so that what means nothing decides nothing."""
        return (
            round(self.unserved, _DIGITS),
            round(-self.worst_served, _DIGITS),
            round(-self.headroom, _DIGITS),
        )

    @property
    def serves_all(self) -> bool:
        """Whether nothing is left unserved even in the worst cycles."""
        return self.key[1] <= -1

    def is_near(self, best: "Score") -> bool:
        """Whether in nothing it is worse by more than 1 %."""
        return (
            self.unserved <= best.unserved + NEAR
            and self.worst_served >= (1 - NEAR) * best.worst_served
            and self.headroom + 1 >= (1 - NEAR) * (best.headroom + 1)
        )


class Placement(NamedTuple):
    """Classes in groups, replicas given out, and how good that is; groups in the order of their first classes."""

    groups: tuple[Group, ...]
    score: Score

    @property
    def worst_headroom(self) -> float:
        """What the group with the least to spare serves in its worst cycle, over what is offered to it, less 1."""
        return min(g.replicas * g.pool.worst_rps / g.pool.offered_rps for g in self.groups) - 1


def score(pools: Sequence[Pool], given: Sequence[int]) -> Score:
    """How good it is to give each pool so many replicas."""
    total = math.fsum(p.offered_rps for p in pools)
    beyond = (max(0.0, p.offered_rps - r * p.sustainable_rps) for p, r in zip(pools, given, strict=True))
    served = (min(p.offered_rps, r * p.worst_rps) for p, r in zip(pools, given, strict=True))
    return Score(
        unserved=math.fsum(beyond) / total,
        worst_served=math.fsum(served) / total,
        headroom=min(r / p.need for p, r in zip(pools, given, strict=True)) - 1,
    )


def give_replicas(pools: Sequence[Pool], replicas: int) -> tuple[int, ...]:
    """Give out replicas, at least one each, so that the score is the best.

    Parameters
    ----------
    pools
        One for each group.
    replicas
        At least as many as groups.

    References
    ----------
    New. What a group serves grows ever less with each replica, and so does what it serves in its worst cycle: to give
    the next one where it adds most to the first, then to the second, then to the group with the largest need for what
    it has, is optimal for the three in that order (theory of separable concave allocation).

    Examples
    --------
    Seven replicas are too few: one of the first class serves 3 requests/s, one of the others 20 until it has nothing
    left to do.

    >>> from kvplan.analysis.worst_cycle import CycleKind
    >>> def pool(offered, rps):
    ...     return Pool(1, 1.0, False, True, CycleKind.NONE, None, rps, rps, offered, 1.0)
    >>> give_replicas([pool(30.0, 3.0), pool(30.0, 20.0), pool(90.0, 20.0)], 7)
    (1, 2, 4)
    """
    given, left = [1] * len(pools), replicas - len(pools)
    blocks = sorted(
        ((gain, at, count) for at, p in enumerate(pools) for gain, count in _gains(p, replicas)),
        key=lambda block: block[0],
        reverse=True,
    )
    for _, equals in groupby(blocks, key=lambda block: block[0]):
        room: dict[int, int] = {}
        for _, at, count in equals:
            room[at] = room.get(at, 0) + count
        if sum(room.values()) > left:
            _give_to_the_busiest(given, room, [p.need for p in pools], left)
            break
        for at, count in room.items():
            given[at] += count
            left -= count
    return tuple(given)


@lru_cache(maxsize=4096)  # a search asks again and again
def _gains(one: Pool, most: int) -> tuple[tuple[tuple[float, float], int], ...]:
    """What each replica after the first adds in requests/s, served at most and in the worst cycle; runs of equals."""
    rates = one.sustainable_rps, one.worst_rps
    full = [
        int(min(one.offered_rps / rate + ROUNDING, most)) if rate > 0 else most for rate in rates
    ]  # kept busy
    have, runs = 1, []
    for until in sorted({min(max(full[0], 1), most), min(full[0] + 1, most)} | {full[1], full[1] + 1, most}):
        if have < until <= most:
            gains = [
                rate if have < busy else max(one.offered_rps - busy * rate, 0.0) if have == busy else 0.0
                for rate, busy in zip(rates, full, strict=True)
            ]
            runs.append(((gains[0], gains[1]), until - have))
            have = until
    return tuple(runs)


def _give_to_the_busiest(given: list[int], room: dict[int, int], needs: Sequence[float], left: int) -> None:
    """Give what is left, each to whoever has the largest need for what it has, within the room of each."""
    start = {at: given[at] for at in room}
    low, high = 0.0, max(needs[at] / start[at] for at in room)
    # to all whose need for what they have is above a level, as low as can be afforded; ties are left
    while left > _ONE_BY_ONE and low < (level := (low + high) / 2) < high:
        wanted = {at: min(max(math.ceil(needs[at] / level), start[at]), start[at] + room[at]) for at in room}
        more = sum(wanted[at] - given[at] for at in room)
        if more > left:
            low = level
        else:
            high, left = level, left - more
            for at in room:
                given[at] = wanted[at]
    for _ in range(left):
        open_ = (at for at in room if given[at] < start[at] + room[at])
        given[max(open_, key=lambda at: needs[at] / given[at])] += 1
