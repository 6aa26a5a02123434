"""Placements of classes on replicas, against enumerations and formulas written another way."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

from kvplan.analysis import diversification as diversification_module
from kvplan.analysis import mixing
from kvplan.analysis.diversification import diversification
from kvplan.analysis.mixing import Search, compare, place
from kvplan.analysis.placement import Group, Placement, Score, give_replicas, score
from kvplan.analysis.pool import Pool, pool, subset
from kvplan.analysis.worst_cycle import CycleKind
from kvplan.model import Prefill, Replica, RequestClass, ServingModel, Timing


def a_model(*classes: tuple[int, int, float], memory: int = 20_000, d1: float = 0.0) -> ServingModel:
    """Classes of (input, decode, rate)."""
    made = (RequestClass(f"c{i}", s, (d,), (1.0,), rate) for i, (s, d, rate) in enumerate(classes))
    return ServingModel(tuple(made), Timing(0.01, d1), Replica(memory, prefill=Prefill.DISAGGREGATED))


def a_pool(offered: float, sustainable: float, worst: float) -> Pool:
    return Pool(
        gcd=1,
        spectral_radius=1.1,
        stable=False,
        certified=True,
        kind=CycleKind.SIMULATED,
        settled=True,
        worst_rps=worst,
        sustainable_rps=sustainable,
        offered_rps=offered,
        decode_tokens=1.0,
    )


def made_up(seed: int, count: int) -> Callable[[int], Pool]:
    """A pool for each set of classes, by chance; few different values, so that ties come about."""
    rng = np.random.default_rng(seed)
    rates = rng.integers(1, 5, count).astype(float)

    @cache
    def pool_of(mask: int) -> Pool:
        mine = np.random.default_rng([seed, mask])
        rate = math.fsum(rates[i] for i in range(count) if mask >> i & 1)
        sustainable = float(mine.integers(2, 12))
        return a_pool(rate, sustainable, sustainable * float(mine.integers(2, 5)) / 4)

    return pool_of


def in_fractions(pools: Sequence[Pool], way: Sequence[int]) -> tuple[Fraction, Fraction, Fraction]:
    """Unserved, not served in the worst state, and headroom, exactly; smaller is better."""
    parts = [
        (Fraction(p.offered_rps), r * Fraction(p.sustainable_rps), r * Fraction(p.worst_rps))
        for p, r in zip(pools, way, strict=True)
    ]
    total = sum(offered for offered, _, _ in parts)
    return (
        sum(max(Fraction(0), offered - most) for offered, most, _ in parts) / total,
        -sum(min(offered, worst) for offered, _, worst in parts) / total,
        1 - min(most / offered for offered, most, _ in parts),
    )


def ways_to_give(groups: int, replicas: int) -> Iterator[tuple[int, ...]]:
    return (way for way in itertools.product(range(1, replicas + 1), repeat=groups) if sum(way) == replicas)


def all_scores(
    count: int, replicas: int, pool_of: Callable[[int], Pool]
) -> list[tuple[Fraction, Fraction, Fraction]]:
    """Of every way to give classes to numbered groups, and replicas to groups, one by one."""
    found = []
    for home in itertools.product(range(min(count, replicas)), repeat=count):
        masks = {sum(1 << i for i in range(count) if home[i] == g) for g in set(home)}
        pools = [pool_of(mask) for mask in masks]
        found += [in_fractions(pools, way) for way in ways_to_give(len(pools), replicas)]
    return found


def floats(score: tuple[Fraction, Fraction, Fraction]) -> Any:
    return pytest.approx(tuple(map(float, score)), abs=2e-9)


@given(seed=st.integers(0, 10**6), count=st.integers(1, 4), replicas=st.integers(1, 4))
def test_exact_search_finds_what_an_enumeration_of_assignments_and_allotments_finds(
    seed: int, count: int, replicas: int
) -> None:
    pool_of = made_up(seed, count)
    scores, compared = mixing.exact_search(count, replicas, pool_of)
    best = place(mixing.near_best(scores)[0], replicas, pool_of)
    assert best.score.key == floats(min(all_scores(count, replicas, pool_of)))
    everything = {
        groups: place(groups, replicas, pool_of).score
        for groups in mixing.partitions(count, min(count, replicas))
    }
    assert mixing.near_best(scores) == mixing.near_best(everything)
    assert sorted(i for g in best.groups for i in g.classes) == list(range(count))
    assert sum(g.replicas for g in best.groups) == replicas
    # Stirling numbers of the second kind, by inclusion and exclusion
    stirling = [
        sum((-1) ** (k - j) * math.comb(k, j) * j**count for j in range(k + 1)) // math.factorial(k)
        for k in range(1, min(count, replicas) + 1)
    ]
    assert compared == sum(stirling)


@examples(8)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 9), st.sampled_from([1.0, 2.0, 3.0])),
        min_size=2,
        max_size=4,
    ),
    replicas=st.integers(2, 4),
    load=st.sampled_from([0.3, 0.9, 1.0, 1.3, 4.0]),  # of what the replicas sustain together, mixed
)
def test_on_traffic_the_best_is_that_of_an_enumeration(
    rows: list[tuple[int, int, float]], replicas: int, load: float
) -> None:
    unscaled = a_model(*rows)
    scale = load * replicas / pool(unscaled).need
    model = replace(
        unscaled, classes=tuple(replace(c, rate_rps=c.rate_rps * scale) for c in unscaled.classes)
    )
    count = len(rows)

    @cache
    def pool_of(mask: int) -> Pool:
        return pool(subset(model, [i for i in range(count) if mask >> i & 1]))

    found = compare(model, replicas)
    assert found.search is Search.EXACT
    assert found.best.score.key == floats(min(all_scores(count, replicas, pool_of)))
    for other in (found.segregated, found.mixed):
        assert found.best.score.key <= other.score.key


@given(
    pools=st.lists(
        st.tuples(st.integers(1, 90), st.integers(1, 30), st.sampled_from([0.5, 0.8, 1.0])),
        min_size=1,
        max_size=4,
    ),
    spare=st.integers(0, 6),
)
def test_no_other_way_to_give_out_replicas_is_better(pools: list[tuple[int, int, float]], spare: int) -> None:
    groups = [a_pool(float(offered), float(rps), rps * share) for offered, rps, share in pools]
    given_out = give_replicas(groups, len(groups) + spare)
    assert sum(given_out) == len(groups) + spare
    best = min(in_fractions(groups, way) for way in ways_to_give(len(groups), len(groups) + spare))
    assert score(groups, given_out).key == floats(best)


def test_of_many_replicas_the_busiest_gets_its_part_at_once() -> None:
    groups = [a_pool(rate, 1.0, 1.0) for rate in (1.0, 3.0, 4.0)]
    assert give_replicas(groups, 800_000) == (100_000, 300_000, 400_000)
    # the second keeps the 150,000 that serve it in its worst state, though its need is small
    few = [a_pool(1e5, 1.0, 1.0), a_pool(1e5, 4.0, 2 / 3)]
    assert give_replicas(few, 260_000) == (110_000, 150_000)


def test_a_group_that_serves_nothing_in_its_worst_state_still_gets_what_serves_it_otherwise() -> None:
    groups = [a_pool(4.0, 1.0, 0.0), a_pool(1.0, 1.0, 1.0)]
    assert give_replicas(groups, 5) == (4, 1)


def test_in_overload_replicas_go_where_they_serve_most_requests() -> None:
    """Short requests need 1.37 replicas, 9.5 long ones a second 2.49: of three, two are for the short."""
    short = RequestClass("short", 100, (10,), (1.0,), 13_000.0)
    long = RequestClass("long", 5000, (500,), (1.0,), 9.5)
    model = ServingModel((short, long), Timing(0.01), Replica(100_000, prefill=Prefill.FUSED))
    best = compare(model, 3).best
    assert [(g.classes, g.replicas) for g in best.groups] == [((0,), 2), ((1,), 1)]
    left = 9.5 - 100_000 / (5000 * 500 + 500 * 501 / 2) / 0.01
    assert best.score.unserved == pytest.approx(left / 13_009.5)


def test_near_are_those_worse_by_at_most_a_hundredth_in_everything() -> None:
    best = Score(0.1, 0.8, 0.5)
    near = [Score(0.109, 0.8, 0.5), Score(0.1, 0.793, 0.9), Score(0.1, 0.8, 0.486)]
    far = [Score(0.111, 0.9, 0.9), Score(0.1, 0.791, 0.9), Score(0.1, 0.8, 0.484)]
    scores = {(at,): one for at, one in enumerate([*far, *near, best])}
    assert [scores[groups] for groups in mixing.near_best(scores)] == [best, near[2], near[1], near[0]]


@every("seed", range(8))
def test_local_search_is_never_worse_than_where_it_starts_and_gives_the_same_again(seed: int) -> None:
    pool_of, count, replicas = made_up(seed, 12), 12, 4
    mixed = ((1 << count) - 1,)
    apart = tuple(0b111 << 3 * i for i in range(4))
    scores, complete = mixing.local_search(
        count, replicas, pool_of, [apart, mixed], seed=seed, max_pools=10**6
    )
    assert complete
    masks = mixing.near_best(scores)[0]
    key = scores[masks].key
    for start in (apart, mixed):
        assert key <= place(start, replicas, pool_of).score.key
    again, _ = mixing.local_search(count, replicas, pool_of, [apart, mixed], seed=seed, max_pools=10**6)
    assert again == scores
    assert sum(masks) == mixed[0]
    # a local optimum: no class gains by moving
    for i, to in itertools.product(range(count), range(len(masks))):
        moved = [(m & ~(1 << i)) | ((1 << i) if at == to else 0) for at, m in enumerate(masks)]
        kept = tuple(sorted((m for m in moved if m), key=lambda m: m & -m))
        assert place(kept, replicas, pool_of).score.key >= key


def test_a_local_search_ends_when_its_budget_is_spent() -> None:
    pool_of = made_up(1, 12)
    mixed = ((1 << 12) - 1,)
    scores, complete = mixing.local_search(12, 4, pool_of, [mixed], seed=0, max_pools=10)
    assert not complete
    assert min(one.key for one in scores.values()) <= place(mixed, 4, pool_of).score.key


def test_twelve_classes_are_searched_locally_and_no_worse_than_segregated_or_mixed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mixing, "local_search", partial(mixing.local_search, max_pools=120))
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


def test_few_pools_are_analysed_where_each_takes_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neighbours are parted, all forty prefixes and suffixes are compared, by their rates alone."""
    analysed: list[int] = []

    def counted(model: ServingModel, max_steps: int, *, radius: bool) -> Pool:
        analysed.append(len(model.classes))
        return a_pool(model.total_rate_rps, 2.0, 1.0)

    monkeypatch.setattr(mixing, "pool", counted)
    rows = [(50, 1 + i, 1.0) for i in range(39)]
    compare(a_model(*rows, (50, 113_905, 1e-6), memory=200_000), 2)
    assert len(analysed) <= 10


def test_of_long_outputs_the_changes_of_most_requests_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four changes to limits of 20 tokens, where there is time for 80 and for 50."""
    for most, tried, untried in ((80, {0, 1}, 0), (50, {1}, 2)):
        monkeypatch.setattr(diversification_module, "_MOST_LENGTH", most)
        model = a_model((0, 20, 1.0), (0, 20, 2.0))
        together = Placement((Group((0, 1), 1, a_pool(1.0, 2.0, 1.0)),), Score(0.0, 0.0, 0.0))
        found = diversification(model, together)
        assert {c.class_index for c in found.changes} == tried
        assert found.untried == untried


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
    found = diversification(model, placement).changes
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
    assert [round(c.pool.loss, 9) for c in found] == sorted(round(c.pool.loss, 9) for c in found)


def test_limits_that_cannot_be_moved_are_left_alone() -> None:
    spread = RequestClass("s", 10, (2, 4), (1.0, 1.0), 1.0)
    full = RequestClass("f", 16, (4,), (1.0,), 1.0)
    model = ServingModel((spread, full), Timing(0.01), Replica(20, prefill=Prefill.DISAGGREGATED))
    placement: Placement = compare(model, 2).segregated
    found: Any = diversification(model, placement).changes
    assert {(c.class_index, c.new_decode) for c in found} == {(1, 3)}
