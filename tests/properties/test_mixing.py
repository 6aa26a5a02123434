"""Placements of classes on replicas, against enumerations in fractions, bounds by hand, and laws of what runs say."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.analysis import placement as placing
from kvplan.analysis.placement import Group, Search, partitions, search
from kvplan.model import Plan, Prefill, Replica, RequestClass, ServingModel, Timing
from kvplan.planning.mixing import Comparison, Placement, placements_compared, subset


class Table:
    """What replicas serve of each group, by chance and at most a bound; few values, so that ties come about."""

    def __init__(self, seed: int, count: int, load: int = 4) -> None:
        self.count, self._seed = count, seed
        self.rates = [int(rate) for rate in np.random.default_rng(seed).integers(1, 1 + load, count)]
        self.measured: list[Group] = []

    def by_chance(self, group: Group, *ends: int) -> int:
        return int(np.random.default_rng([self._seed, *ends, *group]).integers(*ends))

    def offered(self, group: Group) -> float:
        return float(sum(self.rates[i] for i in group))

    def bound(self, group: Group) -> float:
        return float(self.by_chance(group, 2, 12))

    def serves(self, group: Group) -> float:
        return self.bound(group) * self.by_chance(group, 2, 5) / 4

    def measure(self, group: Group) -> float:
        self.measured.append(group)
        return self.serves(group)

    def search(
        self, replicas: int, may_measure: Callable[[Sequence[Group]], bool] = lambda _: True
    ) -> Search:
        ways, everything = list(partitions(self.count, replicas)), tuple(range(self.count))
        known = {everything: self.serves(everything)}
        return search(ways, replicas, self.offered, self.bound, self.measure, known, may_measure)

    def worth(self, groups: Sequence[Group], replicas: int) -> Fraction:
        """The most, over every way to give out the replicas."""
        rates, served = [self.offered(g) for g in groups], [self.serves(g) for g in groups]
        return max(in_fractions(rates, served, way) for way in ways_to_give(len(groups), replicas))


def in_fractions(offered: Sequence[float], served: Sequence[float], way: Sequence[int]) -> Fraction:
    """Share served, or if all are, the factor up to which the tightest group serves all."""
    rates, most = [Fraction(o) for o in offered], [r * Fraction(s) for r, s in zip(way, served, strict=True)]
    factor = min(m / o for m, o in zip(most, rates, strict=True))
    return factor if factor >= 1 else sum(map(min, rates, most), Fraction(0)) / sum(rates)


def ways_to_give(groups: int, replicas: int) -> Iterator[tuple[int, ...]]:
    return (way for way in itertools.product(range(1, replicas + 1), repeat=groups) if sum(way) == replicas)


def every_placement(count: int, replicas: int) -> set[tuple[Group, ...]]:
    """Of every way to give classes to numbered groups, one by one."""
    homes = itertools.product(range(replicas), repeat=count)
    return {
        tuple(sorted(tuple(i for i in range(count) if home[i] == g) for g in set(home))) for home in homes
    }


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 4), st.sampled_from([2, 4, 9]))
def test_the_search_finds_what_an_enumeration_of_placements_and_allotments_finds(
    seed: int, count: int, replicas: int, load: int
) -> None:
    table = Table(seed, count, load)
    worths = {groups: table.worth(groups, replicas) for groups in every_placement(count, replicas)}
    found = table.search(replicas)
    assert found.complete
    assert float(max(worths.values())) <= float(worths[found.best]) * (1 + placing.NEAR) ** 2 * (1 + 1e-9)
    assert len(table.measured) == len(set(table.measured)) == found.measured - 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placing, "NEAR", 0.0)
        assert float(worths[table.search(replicas).best]) == pytest.approx(float(max(worths.values())))


def test_a_search_without_time_keeps_to_what_is_known() -> None:
    found = Table(1, 4, load=9).search(4, lambda _: False)
    assert (found.best, found.measured, found.complete) == (((0, 1, 2, 3),), 1, False)


def a_model(
    *classes: tuple[int, int, float], memory: int = 4_000, prefill: Prefill = Prefill.DISAGGREGATED
) -> ServingModel:
    """Classes of (input, decode, rate), named by the letters."""
    made = (RequestClass("abcdefghijkl"[i], s, (d,), (1.0,), rate) for i, (s, d, rate) in enumerate(classes))
    return ServingModel(tuple(made), Timing(0.01), Replica(memory, prefill=prefill))


def groups(placement: Placement) -> list[str]:
    return sorted("".join(sorted(pool.classes)) for pool in placement.groups)


@cache
def compared(model: ServingModel, replicas: int) -> Comparison:
    return placements_compared(model, Plan(), replicas)


def test_the_best_is_that_of_runs_of_every_group() -> None:
    """One class alone loses (d - 1)/(2(s + d)) in its worst cycle (SIC); groups are measured one by one."""
    rows = ((50, 12, 30.0), (400, 3, 300.0), (100, 2, 1500.0))
    model = a_model(*rows, memory=40_000)
    sets = [kept for size in (1, 2, 3) for kept in itertools.combinations(range(3), size)]
    alone = {kept: compared(subset(model, kept), 1).placements["mixed"].groups[0] for kept in sets}
    for i, (s, d, _) in enumerate(rows):  # M/(d(s + d)) an iteration
        assert alone[(i,)].served_rps == pytest.approx(40_000 / (d * (s + d)) / 0.01, rel=0.03)

    def value(placed: tuple[Group, ...]) -> Fraction:
        offered, served = zip(*((alone[g].offered_rps, alone[g].served_rps) for g in placed), strict=True)
        return max(in_fractions(offered, served, way) for way in ways_to_give(len(placed), 3))

    best = compared(model, 3).placements["best"]
    placed = tuple(sorted(tuple("abc".index(name) for name in pool.classes) for pool in best.groups))
    assert float(value(placed)) >= float(max(map(value, every_placement(3, 3)))) / (1 + placing.NEAR) ** 2
    assert best.headroom.value == pytest.approx(float(value(placed)) - 1, abs=0.02)


def test_beyond_capacity_is_what_a_bound_by_hand_leaves() -> None:
    """A replica of 400 tokens sustains M/(2·100 + 3) requests an iteration, 100 iterations a second."""
    sustainable = 400 / 203 * 100
    found = compared(a_model((100, 2, 40.0), (100, 2, 240.0), memory=400), 2).placements
    assert found["segregated"].beyond_rps == pytest.approx(240 - sustainable)
    assert found["mixed"].beyond_rps == 0
    assert groups(found["best"]) == ["ab"]
    assert found["segregated"].groups[1].latency.reason is not None
    assert found["segregated"].e2e_s is None


def test_in_overload_replicas_go_where_they_serve_most_requests_whatever_the_order() -> None:
    """Short requests need 1.37 replicas, long ones 2.46: of three, two are for the short."""
    model = a_model((100, 10, 1300.0), (1000, 50, 48.0), memory=10_000, prefill=Prefill.FUSED)
    for one in (model, replace(model, classes=model.classes[::-1])):
        best = compared(one, 3).placements["best"]
        assert {(pool.classes, pool.replicas) for pool in best.groups} == {(("a",), 2), (("b",), 1)}
