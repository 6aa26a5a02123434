"""Placements of classes on replicas, against enumerations and formulas written another way."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

from kvplan.analysis import mixing
from kvplan.analysis.mixing import Placement, Pool, Search, compare, diversifications, place, pool, subset
from kvplan.analysis.worst_cycle import CycleKind
from kvplan.model import Prefill, Replica, RequestClass, ServingModel, Timing


def a_model(*classes: tuple[int, int, float], memory: int = 20_000, d1: float = 0.0) -> ServingModel:
    """Classes of (input, decode, rate)."""
    made = (RequestClass(f"c{i}", s, (d,), (1.0,), rate) for i, (s, d, rate) in enumerate(classes))
    return ServingModel(tuple(made), Timing(0.01, d1), Replica(memory, prefill=Prefill.DISAGGREGATED))


def made_up(seed: int, count: int) -> Callable[[int], Pool]:
    """A pool for each set of classes, by chance; few different values, so that ties come about."""
    rng = np.random.default_rng(seed)
    rates = rng.integers(1, 5, count).astype(float)

    @cache
    def pool_of(mask: int) -> Pool:
        mine = np.random.default_rng([seed, mask])
        rate = math.fsum(rates[i] for i in range(count) if mask >> i & 1)
        return Pool(
            gcd=1,
            spectral_radius=float(mine.integers(8, 12)) / 10,
            stable=False,
            certified=True,
            kind=CycleKind.SIMULATED,
            loss=float(mine.integers(0, 3)) / 4,
            settled=True,
            worst_rps=1.0,
            sustainable_rps=float(mine.integers(2, 12)),
            offered_rps=rate,
            decode_tokens=1.0,
        )

    return pool_of


def by_brute_force(count: int, replicas: int, pool_of: Callable[[int], Pool]) -> tuple[float, ...]:
    """The best key: every way to give classes to numbered groups, and replicas to groups, one by one."""
    best: tuple[float, ...] | None = None
    for home in itertools.product(range(min(count, replicas)), repeat=count):
        masks = sorted(
            {sum(1 << i for i in range(count) if home[i] == g) for g in set(home)}, key=lambda m: m & -m
        )
        pools = [pool_of(mask) for mask in masks]
        needs = [p.offered_rps / p.sustainable_rps for p in pools]
        total = sum(p.offered_rps for p in pools)
        ways = [
            way
            for way in itertools.product(range(1, replicas + 1), repeat=len(masks))
            if sum(way) == replicas
        ]
        least = min(max(n / r for n, r in zip(needs, way, strict=True)) for way in ways)
        balanced = [
            w for w in ways if max(n / r for n, r in zip(needs, w, strict=True)) <= least * (1 + 1e-12)
        ]
        chosen = mixing.give_replicas(needs, replicas)
        assert chosen in balanced
        unserved = sum(
            max(0.0, p.offered_rps - r * p.sustainable_rps) for p, r in zip(pools, chosen, strict=True)
        )
        headroom = min(r * p.sustainable_rps / p.offered_rps for p, r in zip(pools, chosen, strict=True)) - 1
        key = (
            round(unserved / total, 9),
            round(sum(p.loss * p.offered_rps for p in pools) / total, 4),
            round(max(p.spectral_radius for p in pools), 3),
            round(-headroom, 9),
        )
        best = key if best is None else min(best, key)
    assert best is not None
    return best


@given(seed=st.integers(0, 10**6), count=st.integers(1, 5), replicas=st.integers(1, 4))
def test_exact_search_finds_what_an_enumeration_of_assignments_finds(
    seed: int, count: int, replicas: int
) -> None:
    pool_of = made_up(seed, count)
    best, compared = mixing.exact_search(count, replicas, pool_of)
    assert best.score.key == pytest.approx(by_brute_force(count, replicas, pool_of))
    assert sorted(i for g in best.groups for i in g.classes) == list(range(count))
    assert sum(g.replicas for g in best.groups) == replicas
    # Stirling numbers of the second kind, by inclusion and exclusion
    stirling = [
        sum((-1) ** (k - j) * math.comb(k, j) * j**count for j in range(k + 1)) // math.factorial(k)
        for k in range(1, min(count, replicas) + 1)
    ]
    assert compared == sum(stirling)


@examples(4)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 9), st.sampled_from([1.0, 2.0, 3.0])),
        min_size=2,
        max_size=4,
    ),
    replicas=st.integers(1, 3),
)
def test_on_traffic_the_best_is_that_of_an_enumeration(
    rows: list[tuple[int, int, float]], replicas: int
) -> None:
    model = a_model(*rows)
    count = len(rows)

    @cache
    def pool_of(mask: int) -> Pool:
        return pool(subset(model, [i for i in range(count) if mask >> i & 1]))

    found = compare(model, replicas)
    assert found.search is Search.EXACT
    assert found.best.score.key == pytest.approx(by_brute_force(count, replicas, pool_of))
    for other in (found.segregated, found.mixed):
        assert found.best.score.key <= other.score.key


@given(
    needs=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=4),
    spare=st.integers(0, 5),
)
def test_replicas_are_given_out_so_that_the_busiest_is_least_busy(needs: list[float], spare: int) -> None:
    replicas = len(needs) + spare
    given_out = mixing.give_replicas(needs, replicas)
    assert sum(given_out) == replicas
    assert min(given_out) >= 1

    def busiest(way: tuple[int, ...]) -> float:
        return max(need / count for need, count in zip(needs, way, strict=True))

    ways = itertools.product(range(1, replicas + 1), repeat=len(needs))
    assert busiest(given_out) == min(busiest(way) for way in ways if sum(way) == replicas)


def test_many_replicas_are_given_out_at_once() -> None:
    assert mixing.give_replicas([1.0, 3.0, 4.0], 800_000) == (100_000, 300_000, 400_000)


@pytest.mark.parametrize("seed", range(8))
def test_local_search_is_never_worse_than_where_it_starts_and_gives_the_same_again(seed: int) -> None:
    pool_of, count, replicas = made_up(seed, 12), 12, 4
    mixed = ((1 << count) - 1,)
    apart = tuple(0b111 << 3 * i for i in range(4))
    found, _, complete = mixing.local_search(
        count, replicas, pool_of, [apart, mixed], seed=seed, max_pools=10**6
    )
    assert complete
    for start in (apart, mixed):
        assert found.score.key <= place(start, replicas, pool_of).score.key
    again, _, _ = mixing.local_search(count, replicas, pool_of, [apart, mixed], seed=seed, max_pools=10**6)
    assert again == found
    assert sorted(i for g in found.groups for i in g.classes) == list(range(count))
    # a local optimum: no class gains by moving
    masks = [sum(1 << i for i in g.classes) for g in found.groups]
    for i, to in itertools.product(range(count), range(len(masks))):
        moved = [(m & ~(1 << i)) | ((1 << i) if at == to else 0) for at, m in enumerate(masks)]
        kept = tuple(sorted((m for m in moved if m), key=lambda m: m & -m))
        assert place(kept, replicas, pool_of).score.key >= found.score.key


def test_a_local_search_ends_when_its_budget_is_spent() -> None:
    pool_of = made_up(1, 12)
    mixed = ((1 << 12) - 1,)
    found, _, complete = mixing.local_search(12, 4, pool_of, [mixed], seed=0, max_pools=10)
    assert not complete
    assert found.score.key <= place(mixed, 4, pool_of).score.key


def test_twelve_classes_are_searched_locally_and_no_worse_than_segregated_or_mixed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mixing, "MAX_POOLS", 120)
    rows = [(200 + 10 * i, 4 + 2 * (i % 6), 1.0 + i % 3) for i in range(12)]
    found = compare(a_model(*rows, memory=200_000), 2)
    assert found.search is Search.LOCAL
    assert found.best.score.key <= min(found.segregated.score.key, found.mixed.score.key)


def test_a_pool_has_the_radius_of_numpy_and_the_closed_form_loss() -> None:
    one = pool(a_model((50, 12, 3.0)))
    weights = np.array([50 + k + 1 for k in range(12)], dtype=float)
    assert one.spectral_radius == pytest.approx(np.abs(np.roots(weights)).max(), rel=1e-9)
    assert (one.gcd, one.stable, one.kind) == (12, False, CycleKind.HOMOGENEOUS)
    assert one.loss == pytest.approx(11 / (2 * 62))
    assert one.sustainable_rps == pytest.approx(20_000 / (50 * 12 + 78) / 0.01)
    assert one.worst_rps == pytest.approx(20_000 / (12 * 62) / 0.01)
    two = pool(a_model((100, 4, 1.0), (100, 6, 1.0)))
    # pulses of period 2: x = M/Σp(s·d + d(d + 2)/2)
    assert (two.gcd, two.kind) == (2, CycleKind.PULSE)
    assert two.loss == pytest.approx(1 - (500 + (4 * 5 + 6 * 7) / 4) / (500 + (4 * 6 + 6 * 8) / 4))


def test_shares_decide_what_a_group_loses_not_its_number_of_replicas() -> None:
    model = a_model((100, 4, 1.0), (100, 6, 3.0))
    whole, part = pool(model), pool(subset(model, (0, 1), 7))
    assert part.offered_rps == pytest.approx(whole.offered_rps / 7)
    assert part.spectral_radius == pytest.approx(whole.spectral_radius, rel=1e-12)
    assert part.loss == pytest.approx(whole.loss, rel=1e-9)


def test_with_too_few_replicas_segregated_puts_neighbours_in_decode_length_together() -> None:
    """Four equal demands on two replicas: the two short ones, and the two long ones, whatever their order."""
    lengths = [50, 10, 40, 20]
    rows = [(0, d, 1000.0 / (d * (d + 1))) for d in lengths]
    found = compare(a_model(*rows), 2)
    assert [g.classes for g in found.segregated.groups] == [(0, 2), (1, 3)]
    alone = compare(a_model(*rows), 4)
    assert [g.classes for g in alone.segregated.groups] == [(0,), (1,), (2,), (3,)]
    one = compare(a_model(*rows), 1)
    assert one.segregated == one.mixed == one.best


def test_demand_that_cannot_be_served_counts_before_any_loss() -> None:
    """Apart the two lose less, but the replica of the second is overloaded; together both keep up."""
    small, large = (100, 2, 40.0), (100, 2, 160.0)
    # n* = 1000/(2·100 + 3) an iteration, 100 iterations a second
    model = a_model(small, large, memory=400)
    sustainable = 400 / 203 * 100
    found = compare(model, 2)
    assert found.mixed.score.unserved == 0.0
    assert found.segregated.score.unserved == pytest.approx(max(0.0, 160 - sustainable) / 200)
    overloaded = compare(a_model(small, (100, 2, 240.0), memory=400), 2)
    assert overloaded.segregated.score.unserved == pytest.approx((240 - sustainable) / 280)
    assert overloaded.best.score.unserved == 0.0


def changed(model: ServingModel, index: int, decode: int) -> ServingModel:
    limited = replace(model.classes[index], decode_tokens=(decode,))
    return replace(model, classes=(*model.classes[:index], limited, *model.classes[index + 1 :]))


def test_mild_diversification_is_priced_by_analysing_the_changed_profile() -> None:
    model = a_model((100, 4, 2.0), (100, 6, 1.0), (100, 1, 3.0), d1=1e-6)
    placement = compare(model, 3).segregated
    found = diversifications(model, placement)
    assert [(c.class_index, c.old_decode, c.new_decode) for c in sorted(found)] == [
        (0, 4, 3),
        (0, 4, 5),
        (1, 6, 5),
        (1, 6, 7),  # the class of a single stage loses nothing: nothing to mend
    ]
    for c in found:
        after = changed(model, c.class_index, c.new_decode)
        alone = replace(after, classes=(after.classes[c.class_index],))
        assert c.pool == pool(alone)
        s, d, d0 = 100, c.new_decode, c.old_decode
        assert c.pool.loss == pytest.approx((d - 1) / (2 * (s + d)))
        assert c.offered_tokens_per_s == (d - d0) * model.classes[c.class_index].rate_rps
        # worst cycle M/(d(s+d)) requests of d tokens each, an iteration as long as before: M is full
        assert c.collapsed_tokens == pytest.approx((s + d0) / (s + d) - 1)
        losses = {0: 3 / 208, 1: 5 / 212} | {c.class_index: c.pool.loss}
        assert c.expected_loss == pytest.approx((2 * losses[0] + losses[1]) / 6)
    assert [round(c.expected_loss, 9) for c in found] == sorted(round(c.expected_loss, 9) for c in found)


def test_limits_that_cannot_be_moved_are_left_alone() -> None:
    spread = RequestClass("s", 10, (2, 4), (1.0, 1.0), 1.0)
    full = RequestClass("f", 16, (4,), (1.0,), 1.0)
    model = ServingModel((spread, full), Timing(0.01), Replica(20, prefill=Prefill.DISAGGREGATED))
    placement: Placement = compare(model, 2).segregated
    found: Any = diversifications(model, placement)
    assert {(c.class_index, c.new_decode) for c in found} == {(1, 3)}


def test_a_radius_that_is_hardly_smaller_is_not_worth_headroom() -> None:
    """Together the radius is larger by 0.0004, apart a replica is nearly full."""
    together = made_up(0, 2)(0b11)._replace(
        loss=0.0, spectral_radius=0.9904, sustainable_rps=4.0, offered_rps=4.0
    )
    parts = {
        0b11: together,
        0b01: together._replace(spectral_radius=0.99, offered_rps=3.9),
        0b10: together._replace(spectral_radius=0.99, offered_rps=0.1),
    }
    best, _ = mixing.exact_search(2, 2, parts.__getitem__)
    assert [g.classes for g in best.groups] == [(0, 1)]
    parts[0b11] = together._replace(spectral_radius=0.992)
    best, _ = mixing.exact_search(2, 2, parts.__getitem__)
    assert [g.classes for g in best.groups] == [(0,), (1,)]
