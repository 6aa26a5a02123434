"""Which classes share a replica? (SIC 5.2, theory §3)

A *placement* puts every class into one group and gives every group some of N equal replicas, at least one. A group's
replicas share its traffic evenly, so each of them sees all of the group's classes, in the group's proportions.
Proportions alone decide stability, so what a group loses does not depend on its number of replicas; whether it keeps
up does. Replicas are given out so that the busiest group is the least busy (utilisation: offered over sustainable
rate), which settles a placement once its groups are known.

Three placements are compared:

============  ========================================================================================
`segregated`  each class alone; with more classes than replicas, neighbours in decode length together, as
              many groups as replicas, cut where the busiest is least busy
`mixed`       one group of everything: every replica serves all classes
`best`        the best found: of all partitions into at most N groups for up to 10 classes (exact), by
              moves and swaps from those two and from random partitions beyond (local search)
============  ========================================================================================

Better is, in this order: less demand that no policy could serve (overloaded groups), then less *expected loss*, then
a smaller spectral radius of the worst group, then more headroom of the tightest. Losses that differ by less than
0.01 % and radii that differ by less than 0.001 count as equal, by rounding. The expected loss is the share of
completions lost in the worst cycle of each group, weighted by the group's share of the requests: 0 where the
equilibrium is proved stable or nothing can be evicted. It is what greedy admission stands to lose once it collapses,
not what it loses every day.

Sources: gcd, spectral radius and closed-form cycles are computed; where a group has no closed form the fluid map is
iterated, within 20,000 iterations (simulated); that traffic can be split so evenly, and that no class is split
between groups, is assumed. The comparison by loss is new; that mixing coprime lengths removes it is SIC Theorem 3.
"""

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import cache
from typing import NamedTuple

import numpy as np

from kvplan.analysis.equilibrium import per_request, saturation, sustainable_rate
from kvplan.analysis.stability import exact_survival_weights, rounding_error, spectrum
from kvplan.analysis.worst_cycle import CycleKind, cycle_throughput_rps, mixed_cycle
from kvplan.model import ServingModel

MAX_EXACT = 10  # classes; 115,975 partitions
MAX_REPLICAS = 1_000_000
CYCLE_ITERATIONS = 20_000
MAX_POOLS = 2_000  # sets of classes that a local search may analyse
_RANDOM_STARTS = 4
_COMPILED_CLASSES = 5  # so many classes have so many subsets that compiling the fluid map pays off
# what placements are told apart by, in decimals: iterated cycles are no more exact, and radii so near recover alike
_LOSS_DIGITS, _RADIUS_DIGITS, _DIGITS = 4, 3, 9


class Pool(NamedTuple):
    """A set of classes on one replica that serves nothing else.

    Attributes
    ----------
    gcd
        Of the iteration counts.
    stable, certified
        As in the report.
    kind
        How the worst cycle is known.
    loss
        Share of completions per iteration lost in it, 0 <= loss < 1.
    settled
        Whether the fluid map came to rest; None where it was not needed.
    worst_rps, sustainable_rps
        Requests/s of one replica in the worst cycle, and at most.
    offered_rps
        Requests/s of all the classes together.
    decode_tokens
        Mean decode length of a request.
    """

    gcd: int
    spectral_radius: float
    stable: bool
    certified: bool
    kind: CycleKind
    loss: float
    settled: bool | None
    worst_rps: float
    sustainable_rps: float
    offered_rps: float
    decode_tokens: float

    @property
    def need(self) -> float:
        """Replicas that would just do, not rounded."""
        return self.offered_rps / self.sustainable_rps


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
    spectral_radius
        Of the worst group.
    headroom
        Of the tightest group.
    """

    unserved: float
    expected_loss: float
    spectral_radius: float
    headroom: float

    @property
    def key(self) -> tuple[float, ...]:
        """Smaller is better; rounded, so that what means nothing decides nothing."""
        return (
            round(self.unserved, _DIGITS),
            round(self.expected_loss, _LOSS_DIGITS),
            round(self.spectral_radius, _RADIUS_DIGITS),
            round(-self.headroom, _DIGITS),
        )


class Placement(NamedTuple):
    """Classes in groups, replicas given out, and how good that is; groups in the order of their first classes."""

    groups: tuple[Group, ...]
    score: Score


class Search(StrEnum):
    """How the best placement was looked for."""

    EXACT = "exact"
    LOCAL = "local_search"


class Mixing(NamedTuple):
    """Three placements.

    `partitions` counts those that were compared, `complete` says whether the search ended by itself: for an exact
    one always, for a local one unless its budget was spent.
    """

    segregated: Placement
    mixed: Placement
    best: Placement
    search: Search
    partitions: int
    complete: bool


class Change(NamedTuple):
    """One class of a group with a decode limit one longer or shorter.

    Attributes
    ----------
    old_decode, new_decode
        Tokens.
    pool
        Of the group as it becomes.
    expected_loss
        Of the whole placement as it becomes.
    offered_tokens_per_s
        Decode tokens/s asked for, as they change.
    collapsed_tokens
        Decode tokens/s that the group serves in its worst cycle, relative change.
    """

    class_index: int
    group_index: int
    old_decode: int
    new_decode: int
    pool: Pool
    expected_loss: float
    offered_tokens_per_s: float
    collapsed_tokens: float


PoolOf = Callable[[int], Pool]


def pool(model: ServingModel, *, compiled: bool = False) -> Pool:
    """Stability and worst cycle of a model's classes together on one of its replicas.

    `compiled` runs the fluid map compiled where it is needed, which pays off for many pools.

    References
    ----------
    SIC eq. 9, 10; worst cycles as in `kvplan.analysis.worst_cycle`.

    Examples
    --------
    SIC 5.2: lengths 20 and 21 are stable together, and neither is alone.

    >>> from kvplan.model import Prefill, Replica, RequestClass, Timing
    >>> two = tuple(RequestClass(str(d), 2000, (d,), (1.0,), 1.0) for d in (20, 21))
    >>> model = ServingModel(two, Timing(0.01), Replica(1_000_000, prefill=Prefill.DISAGGREGATED))
    >>> alone = [pool(replace(model, classes=(c,))) for c in two]
    >>> [(p.gcd, p.stable, round(p.loss, 6)) for p in (*alone, pool(model))]
    [(20, False, 0.004703), (21, False, 0.004948), (1, True, 0.0)]
    """
    mix = model.mix
    weights = mix.held.survival(mix.share)
    found = spectrum(
        weights, lambda: exact_survival_weights(model), relative_error=rounding_error(mix.stages)
    )
    kind, cycle, attractor = mixed_cycle(
        model,
        stable=found.stable and found.certified,
        max_iterations=CYCLE_ITERATIONS,
        compile_above=0 if compiled else None,
    )
    full = saturation(model)
    per_iteration = full.admissions_per_iteration if cycle is None else cycle.throughput
    return Pool(
        gcd=int(np.gcd.reduce(mix.stages)),
        spectral_radius=found.radius,
        stable=found.stable,
        certified=found.certified,
        kind=kind,
        loss=max(0.0, 1 - per_iteration / full.admissions_per_iteration),
        settled=None if attractor is None else attractor.settled,
        worst_rps=full.throughput_rps if cycle is None else cycle_throughput_rps(model, cycle),
        sustainable_rps=sustainable_rate(model)[1],
        offered_rps=model.total_rate_rps,
        decode_tokens=per_request(model).decode_tokens,
    )


def subset(model: ServingModel, classes: Sequence[int], replicas: int = 1) -> ServingModel:
    """What one of so many replicas sees that serve these classes alone."""
    kept = (model.classes[i] for i in classes)
    if replicas == 1:
        return replace(model, classes=tuple(kept))
    return replace(model, classes=tuple(replace(c, rate_rps=c.rate_rps / replicas) for c in kept))


def give_replicas(needs: Sequence[float], replicas: int) -> tuple[int, ...]:
    """Give out replicas, at least one each, so that the largest need over replicas is the least; ties to the first.

    Parameters
    ----------
    needs
        Above 0, one for each group.
    replicas
        At least as many as groups.

    References
    ----------
    New: each next one to the group with the largest need for what it has is optimal. The start, a share of all but
    one for each group, is a state on that way.

    Examples
    --------
    >>> give_replicas([1.0, 5.0, 0.1], 8)
    (2, 5, 1)
    """
    spare, total = replicas - len(needs), math.fsum(needs)
    given = [max(1, math.ceil(need / total * spare)) for need in needs]
    while sum(given) > replicas:  # rounding alone
        given[given.index(max(given))] -= 1
    for _ in range(replicas - sum(given)):
        busiest = max(range(len(needs)), key=lambda i: needs[i] / given[i])
        given[busiest] += 1
    return tuple(given)


def partitions(count: int, most: int) -> Iterator[tuple[int, ...]]:
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


def place(groups: Sequence[int], replicas: int, pool_of: PoolOf) -> Placement:
    """Give replicas to groups of classes, bit masks, and judge the outcome."""
    pools = [pool_of(mask) for mask in groups]
    given = give_replicas([p.need for p in pools], replicas)
    placed = tuple(
        Group(tuple(_members(mask)), count, p) for mask, count, p in zip(groups, given, pools, strict=True)
    )
    return Placement(placed, _score(placed))


def _score(groups: Sequence[Group]) -> Score:
    total = math.fsum(g.pool.offered_rps for g in groups)
    beyond = (max(0.0, g.pool.offered_rps - g.replicas * g.pool.sustainable_rps) for g in groups)
    return Score(
        unserved=math.fsum(beyond) / total,
        expected_loss=math.fsum(g.pool.offered_rps * g.pool.loss for g in groups) / total,
        spectral_radius=max(g.pool.spectral_radius for g in groups),
        headroom=min(g.headroom for g in groups),
    )


def _members(mask: int) -> Iterator[int]:
    return (i for i in range(mask.bit_length()) if mask >> i & 1)


def compare(
    model: ServingModel, replicas: int, *, seed: int = 0, progress: Callable[[float], None] | None = None
) -> Mixing:
    """Segregated, mixed, and the best placement found.

    Parameters
    ----------
    model
        Traffic of all replicas together.
    replicas
        At least 1.
    seed
        Of the local search, which is as deterministic as the exact one.
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
    most = 2**count - 1 if count <= MAX_EXACT and replicas > 1 else MAX_POOLS

    @cache
    def pool_of(mask: int) -> Pool:
        nonlocal analysed
        analysed += 1
        if progress is not None:
            progress(min(analysed / most, 1.0))
        return pool(subset(model, tuple(_members(mask))), compiled=count >= _COMPILED_CLASSES)

    everything = ((1 << count) - 1,)
    apart = place(_segregated(model, replicas, pool_of), replicas, pool_of)
    together = place(everything, replicas, pool_of)
    if count <= MAX_EXACT:
        best, compared = exact_search(count, replicas, pool_of)
        return Mixing(apart, together, best, Search.EXACT, compared, complete=True)
    starts = [tuple(sum(1 << i for i in g.classes) for g in p.groups) for p in (apart, together)]
    best, compared, complete = local_search(count, replicas, pool_of, starts, seed=seed, max_pools=MAX_POOLS)
    return Mixing(apart, together, best, Search.LOCAL, compared, complete)


def _segregated(model: ServingModel, replicas: int, pool_of: PoolOf) -> tuple[int, ...]:
    """Each class alone, or neighbours in decode length together where replicas are too few."""
    count = len(model.classes)
    if count <= replicas:
        return tuple(1 << i for i in range(count))
    lengths = [float(np.average(c.decode_tokens, weights=c.decode_weights)) for c in model.classes]
    order = sorted(range(count), key=lambda i: lengths[i])

    def joined(first: int, stop: int) -> int:
        return sum(1 << i for i in order[first:stop])

    # way[stop]: the first `stop` classes cut into so many groups, the largest need of them and where they begin
    way: dict[int, tuple[float, tuple[int, ...]]]
    way = {stop: (pool_of(joined(0, stop)).need, (0,)) for stop in range(1, count + 1)}
    for size in range(2, replicas + 1):
        way = {
            stop: min(
                (max(way[first][0], pool_of(joined(first, stop)).need), (*way[first][1], first))
                for first in range(size - 1, stop)
            )
            for stop in range(size, count + 1)
        }
    cuts = (*way[count][1], count)
    return _in_order([joined(first, stop) for first, stop in itertools.pairwise(cuts)])


def _in_order(groups: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted((mask for mask in groups if mask), key=lambda mask: mask & -mask))


def exact_search(count: int, replicas: int, pool_of: PoolOf) -> tuple[Placement, int]:
    """The best of all partitions into at most `replicas` groups, the first of equals, and how many there are."""
    best: Placement | None = None
    compared = 0
    weighted = cache(lambda mask: pool_of(mask).offered_rps * pool_of(mask).loss)
    total = pool_of((1 << count) - 1).offered_rps
    for groups in partitions(count, min(count, replicas)):
        compared += 1
        if best is not None and best.score.unserved == 0:
            # nothing that loses more can be better: no need to give replicas out
            loss = math.fsum(map(weighted, groups)) / total
            if round(loss, _LOSS_DIGITS) > best.score.key[1]:
                continue
        found = place(groups, replicas, pool_of)
        if best is None or found.score.key < best.score.key:
            best = found
    assert best is not None
    return best, compared


def local_search(
    count: int,
    replicas: int,
    pool_of: PoolOf,
    starts: Sequence[tuple[int, ...]],
    *,
    seed: int,
    max_pools: int,
) -> tuple[Placement, int, bool]:
    """Move classes between groups and swap them as long as that helps, from some starts and from random ones.

    Parameters
    ----------
    count
        Classes.
    pool_of
        The pool of a set of classes, a bit mask.
    starts
        Partitions; what comes out is never worse than any of them.
    max_pools
        Sets of classes that may be looked at before the search is ended.

    Returns
    -------
    Placement
    int
        Partitions that were compared.
    bool
        Whether the search ended by itself.
    """
    rng = random.Random(seed)
    most = min(count, replicas)
    seen: set[int] = set()
    compared = 0

    def judge(groups: tuple[int, ...]) -> Placement:
        nonlocal compared
        compared += 1
        seen.update(groups)
        return place(groups, replicas, pool_of)

    best = min((judge(_in_order(start)) for start in starts), key=lambda p: p.score.key)
    drawn = [_random_partition(count, most, rng) for _ in range(_RANDOM_STARTS)]
    for start in (*starts, *drawn):
        groups = _in_order(start)
        current = judge(groups)
        improved = True
        while improved:
            improved = False
            for neighbour in _neighbours(groups, count, most, rng):
                if len(seen) >= max_pools:
                    return min(best, current, key=lambda p: p.score.key), compared, False
                found = judge(neighbour)
                if found.score.key < current.score.key:
                    current, groups, improved = found, neighbour, True
                    break
        best = min(best, current, key=lambda p: p.score.key)
    return best, compared, True


def _random_partition(count: int, most: int, rng: random.Random) -> tuple[int, ...]:
    groups = [0] * most
    for i in range(count):
        groups[rng.randrange(most)] |= 1 << i
    return _in_order(groups)


def _neighbours(
    groups: tuple[int, ...], count: int, most: int, rng: random.Random
) -> Iterator[tuple[int, ...]]:
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


def diversifications(model: ServingModel, placement: Placement) -> tuple[Change, ...]:
    """Every change by one of one decode limit in the groups that lose something, the most helpful first.

    Only classes of one decode length have a limit that could be moved. Rates are kept.

    References
    ----------
    SIC 5.3, "Engineering stability through mild diversification"; its price is new.

    Examples
    --------
    >>> from kvplan.model import Prefill, Replica, RequestClass, Timing
    >>> two = tuple(RequestClass(str(d), 100, (d,), (1.0,), 1.0) for d in (4, 6))
    >>> model = ServingModel(two, Timing(0.01), Replica(100_000, prefill=Prefill.DISAGGREGATED))
    >>> first = diversifications(model, compare(model, 1).mixed)[0]
    >>> (first.old_decode, first.new_decode), first.pool.stable, first.expected_loss, first.offered_tokens_per_s
    ((6, 5), True, 0.0, -1.0)
    """
    total = math.fsum(g.pool.offered_rps for g in placement.groups)
    compiled = len(model.classes) >= _COMPILED_CLASSES
    found = []
    for at, group in enumerate(placement.groups):
        if group.pool.loss == 0:
            continue
        for i in group.classes:
            for step in (-1, 1):
                changed = _with_limit(model, i, step)
                if changed is None:
                    continue
                after, before = pool(subset(changed, group.classes), compiled=compiled), group.pool
                found.append(
                    Change(
                        class_index=i,
                        group_index=at,
                        old_decode=model.classes[i].decode_tokens[0],
                        new_decode=changed.classes[i].decode_tokens[0],
                        pool=after,
                        expected_loss=placement.score.expected_loss
                        + (after.loss - before.loss) * before.offered_rps / total,
                        offered_tokens_per_s=step * model.classes[i].rate_rps,
                        collapsed_tokens=after.worst_rps
                        * after.decode_tokens
                        / (before.worst_rps * before.decode_tokens)
                        - 1,
                    )
                )
    return tuple(sorted(found, key=lambda c: (round(c.expected_loss, _DIGITS), c.pool.spectral_radius)))


def _with_limit(model: ServingModel, index: int, step: int) -> ServingModel | None:
    one = model.classes[index]
    decode = one.decode_tokens[0] + step
    if len(one.decode_tokens) > 1 or decode < 1 or one.input_tokens + decode > model.replica.memory_tokens:
        return None
    limited = replace(one, decode_tokens=(decode,))
    return replace(model, classes=(*model.classes[:index], limited, *model.classes[index + 1 :]))
