"""Which classes share a replica? (SIC 5.2)

Three placements (`kvplan.analysis.placement`) are compared:

============  ========================================================================================
`segregated`  each class alone; with more classes than replicas, neighbours in decode length together, as
              many groups as replicas, cut where the busiest is least busy
`mixed`       one group of everything: every replica serves all classes
`best`        the best found: of all partitions into at most N groups for up to 10 classes (exact), by
              moves and swaps from those two and from random partitions beyond (local search)
============  ========================================================================================

Sources: gcd, spectral radius and closed-form cycles are computed; where a group has no closed form the fluid map is
iterated, within its budget (simulated); that traffic can be split so evenly, and that no class is split between
groups, is assumed. The comparison is new; that mixing coprime lengths removes losses is SIC Theorem 3.
"""

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import cache
from typing import NamedTuple

import numpy as np

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.analysis.fluid_map import MAX_STEPS
from kvplan.analysis.placement import NEAR, ROUNDING, Group, Placement, Score, give_replicas, score
from kvplan.analysis.pool import Pool, pool, subset
from kvplan.analysis.stability import model_spectrum
from kvplan.model import ServingModel

MAX_EXACT = 10  # classes; 115,975 partitions
MAX_REPLICAS = 1_000_000
MAX_NEAR = 4  # placements that the formulas do not tell apart for sure and that are worth a simulation
MAX_POOLS = 1_100  # sets of classes that may be analysed ...
_LEAST_POOLS, _MOST_WORK, _MOST_LENGTH = 8, 2 * 10**7, 4 * 10**5  # ... fewer where lengths are many and long
_RANDOM_STARTS = 4

Partition = tuple[int, ...]  # groups of classes as bit masks, in the order of their lowest bits
PoolOf = Callable[[int], Pool]


class Search(StrEnum):
    """How the best placement was looked for."""

    EXACT = "exact"
    LOCAL = "local_search"


class Mixing(NamedTuple):
    """Placements compared.

    Attributes
    ----------
    near
        The best and those that are worse than it by at most 1 % in everything; the best few of them, best first.
    near_count
        How many of those there are.
    partitions
        How many were compared.
    complete
        Whether the search ended by itself: an exact one always, a local one unless its budget was spent.
    """

    segregated: Placement
    mixed: Placement
    near: tuple[Placement, ...]
    near_count: int
    search: Search
    partitions: int
    complete: bool

    @property
    def best(self) -> Placement:
        """The best by the formulas."""
        return self.near[0]


def partitions(count: int, most: int) -> Iterator[Partition]:
    """All partitions of `count` things into at most `most` groups, as bit masks in the order of their lowest bits.

    Examples
    --------
    >>> [[bin(mask) for mask in groups] for groups in partitions(2, 2)]
    [['0b11'], ['0b1', '0b10']]
    >>> [sum(1 for _ in partitions(n, n)) for n in range(1, 6)]  # Bell numbers
    [1, 2, 5, 15, 52]
    """
    groups: list[int] = []

    def extend(thing: int) -> Iterator[tuple[int, ...]]:
        if thing == count:
            yield tuple(groups)
            return
        bit = 1 << thing
        for at in range(len(groups)):
            groups[at] |= bit
            yield from extend(thing + 1)
            groups[at] ^= bit
        if len(groups) < most:
            groups.append(bit)
            yield from extend(thing + 1)
            groups.pop()

    return extend(0)


def place(groups: Partition, replicas: int, pool_of: PoolOf) -> Placement:
    """Give replicas to groups of classes, and judge the outcome."""
    pools = [pool_of(mask) for mask in groups]
    given = give_replicas(pools, replicas)
    placed = (Group(tuple(_members(mask)), r, p) for mask, r, p in zip(groups, given, pools, strict=True))
    return Placement(tuple(placed), score(pools, given))


def _members(mask: int) -> Iterator[int]:
    return (i for i in range(mask.bit_length()) if mask >> i & 1)


def compare(model: ServingModel, replicas: int, *, progress: Callable[[float], None] | None = None) -> Mixing:
    """Segregated, mixed, and the best placements found.

    Parameters
    ----------
    model
        Traffic of all replicas together.
    replicas
        At least 1.
    progress
        Told now and then what part is done, about.

    References
    ----------
    SIC 5.2; the search is new.

    Examples
    --------
    Limits of 20, 40 and 21 on two replicas: 21 makes any group it is in coprime.

    >>> from kvplan.model import Prefill, Replica, RequestClass, Timing
    >>> three = tuple(RequestClass(str(d), 2000, (d,), (1.0,), 1.0) for d in (20, 40, 21))
    >>> model = ServingModel(three, Timing(0.01), Replica(1_000_000, prefill=Prefill.DISAGGREGATED))
    >>> found = compare(model, 2)
    >>> [[g.classes for g in p.groups] for p in (found.segregated, found.best)]
    [[(0, 2), (1,)], [(0, 1, 2)]]
    """
    count = len(model.classes)
    analysed = 0
    stages = model.mix.stages
    longest = int(stages.max())
    max_pools = min(_MOST_WORK // (stages.size * longest), _MOST_LENGTH // longest, MAX_POOLS)
    max_pools = max(max_pools, _LEAST_POOLS)
    exact = count <= MAX_EXACT and (replicas == 1 or 2**count - 1 <= max_pools)
    most = 2**count - 1 if exact and replicas > 1 else max_pools

    @cache
    def pool_of(mask: int) -> Pool:
        nonlocal analysed
        analysed += 1
        if progress is not None:
            progress(min(analysed / most, 1.0))
        part = subset(model, tuple(_members(mask)))
        return pool(part, MAX_STEPS // most, radius=False)  # steps for all together

    @cache
    def shown(mask: int) -> Pool:
        known = pool_of(mask)
        if not math.isnan(known.spectral_radius):
            return known
        return known._replace(spectral_radius=model_spectrum(subset(model, tuple(_members(mask)))).radius)

    apart, together = _segregated(model, replicas), ((1 << count) - 1,)
    if exact:
        search, complete = Search.EXACT, True
        scores, compared = exact_search(count, replicas, pool_of)
    else:
        search = Search.LOCAL
        scores, complete = local_search(
            count, replicas, pool_of, [apart, together], seed=0, max_pools=max_pools
        )
        compared = len(scores)
    near = near_best(scores)
    return Mixing(
        segregated=place(apart, replicas, shown),
        mixed=place(together, replicas, shown),
        near=tuple(place(groups, replicas, shown) for groups in near[:MAX_NEAR]),
        near_count=len(near),
        search=search,
        partitions=compared,
        complete=complete,
    )


def near_best(scores: dict[Partition, Score]) -> list[Partition]:
    """The best partition, and by their scores those that are worse than it by at most 1 % in everything."""
    best = min(scores.values(), key=lambda one: one.key)
    near = [groups for groups, one in scores.items() if one.is_near(best)]
    return sorted(near, key=lambda groups: scores[groups].key)


def _segregated(model: ServingModel, replicas: int) -> Partition:
    """Each class alone, or neighbours in decode length together where replicas are too few."""
    count = len(model.classes)
    if count <= replicas:
        return tuple(1 << i for i in range(count))
    lengths = [float(np.average(c.decode_tokens, weights=c.decode_weights)) for c in model.classes]
    order = sorted(range(count), key=lambda i: lengths[i])

    def joined(first: int, stop: int) -> int:
        return sum(1 << i for i in order[first:stop])

    @cache
    def need(first: int, stop: int) -> float:  # what `Pool.need` says, without all else of a pool
        part = subset(model, order[first:stop])
        return part.total_rate_rps / sustainable_rate(part)[1]

    # way[stop]: the first `stop` classes cut into so many groups, the largest need of them and where they begin
    way: dict[int, tuple[float, tuple[int, ...]]]
    way = {stop: (need(0, stop), (0,)) for stop in range(1, count + 1)}
    for size in range(2, replicas + 1):
        way = {
            stop: min(
                (max(way[first][0], need(first, stop)), (*way[first][1], first))
                for first in range(size - 1, stop)
            )
            for stop in (range(size, count + 1) if size < replicas else [count])
        }
    cuts = (*way[count][1], count)
    return _in_order([joined(first, stop) for first, stop in itertools.pairwise(cuts)])


def _in_order(groups: Sequence[int]) -> Partition:
    return tuple(sorted((mask for mask in groups if mask), key=lambda mask: mask & -mask))


def exact_search(count: int, replicas: int, pool_of: PoolOf) -> tuple[dict[Partition, Score], int]:
    """Score the partitions into at most `replicas` groups that can be near the best, and count all there are."""
    scores: dict[Partition, Score] = {}
    least = 0.0  # headroom and 1 that a placement near the best has, as far as is known
    compared = 0
    for groups in partitions(count, min(count, replicas)):
        compared += 1
        pools = [pool_of(mask) for mask in groups]
        if sum(math.ceil(p.need * least) for p in pools) > replicas:
            continue
        scores[groups] = found = score(pools, give_replicas(pools, replicas))
        if found.serves_all:
            least = max(least, (1 - NEAR) * (1 + found.headroom) * (1 - ROUNDING))
    return scores, compared


def local_search(
    count: int,
    replicas: int,
    pool_of: PoolOf,
    starts: Sequence[Partition],
    *,
    seed: int,
    max_pools: int = MAX_POOLS,
) -> tuple[dict[Partition, Score], bool]:
    """Move classes between groups and swap them as long as that helps, from some starts and from random ones.

    Parameters
    ----------
    count
        Classes.
    pool_of
        The pool of a set of classes, a bit mask.
    starts
        Partitions.
    max_pools
        Sets of classes that may be looked at before the search is ended.

    Returns
    -------
    dict of Partition to Score
        All that were looked at, the starts among them.
    bool
        Whether the search ended by itself.
    """
    rng = random.Random(seed)
    most = min(count, replicas)
    looked_at: set[int] = set()
    scores: dict[Partition, Score] = {}

    def judge(groups: Partition) -> Score:
        if groups not in scores:
            looked_at.update(groups)
            pools = [pool_of(mask) for mask in groups]
            scores[groups] = score(pools, give_replicas(pools, replicas))
        return scores[groups]

    for start in starts:
        judge(start)
    drawn = [_random_partition(count, most, rng) for _ in range(_RANDOM_STARTS)]
    for groups in (*starts, *drawn):
        current = judge(groups)
        improved = True
        while improved:
            improved = False
            for neighbour in _neighbours(groups, count, most, rng):
                if len(looked_at) >= max_pools:
                    return scores, False
                if judge(neighbour).key < current.key:
                    current, groups, improved = scores[neighbour], neighbour, True
                    break
    return scores, True


def _random_partition(count: int, most: int, rng: random.Random) -> Partition:
    groups = [0] * most
    for i in range(count):
        groups[rng.randrange(most)] |= 1 << i
    return _in_order(groups)


def _neighbours(groups: Partition, count: int, most: int, rng: random.Random) -> Iterator[Partition]:
    """Partitions one move or swap away, in an order drawn anew."""
    home = {i: at for at, mask in enumerate(groups) for i in _members(mask)}
    places = len(groups) + (len(groups) < most)
    steps = [(i, -1, at) for i in range(count) for at in range(places) if at != home[i]]
    steps += [(i, j, home[j]) for i in range(count) for j in range(i) if home[i] != home[j]]
    rng.shuffle(steps)
    for i, j, to in steps:
        changed = [*groups, 0]
        changed[home[i]] ^= 1 << i
        changed[to] ^= 1 << i
        if j >= 0:
            changed[to] ^= 1 << j
            changed[home[i]] ^= 1 << j
        yield _in_order(changed)
