"""Rate cap, integer budgets and mean waits against stationary queues, brute force and capped runs (theory §4)."""

import math
from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st
from oracles import SlowMap, stage_weights, stationary_mean_queue
from strategies import mix_model

from kvplan.analysis.admission import integer_budgets, mean_queue, rate_cap


@given(st.integers(1, 12), st.floats(0.05, 0.93))
def test_the_mean_queue_is_that_of_the_stationary_distribution(budget: int, load: float) -> None:
    """Q' = (Q + Poisson - b)⁺, solved as a Markov chain."""
    expected = stationary_mean_queue(load * budget, budget, size=260)
    assert mean_queue(load * budget, budget) == pytest.approx(expected, rel=1e-6, abs=1e-10)


@every(("arrivals", "budget"), [(1.0, 1), (3.5, 3), (math.inf, 3), (math.nan, 3)])
def test_an_overwhelmed_budget_is_refused(arrivals: float, budget: int) -> None:
    with pytest.raises(ValueError, match="overwhelm"):
        mean_queue(arrivals, budget)


@cache
def reference_queue(arrivals: float, budget: int) -> float:
    return stationary_mean_queue(arrivals, budget, size=160)


@given(
    st.lists(
        st.tuples(st.sampled_from([0.2, 0.7, 1.3, 1.8, 2.5]), st.integers(1, 30)), min_size=1, max_size=3
    ),
    st.integers(10, 260),
)
def test_the_budgets_chosen_are_the_best_of_all_feasible_ones(
    rows: list[tuple[float, int]], memory: int
) -> None:
    """Every b with b_i > λ_i and Σ b_i S_i < M, waits from the stationary distribution."""
    arrivals, footprint = (np.array(x, dtype=float) for x in zip(*rows, strict=True))
    most = [min(int(memory / s), math.floor(a) + 12) for a, s in rows]
    feasible = [
        b
        for b in product(*(range(math.floor(a) + 1, m + 1) for (a, _), m in zip(rows, most, strict=True)))
        if sum(n * s for n, (_, s) in zip(b, rows, strict=True)) < memory
    ]
    found = integer_budgets(arrivals, footprint, float(memory))
    if not feasible:
        assert found is None
        return

    def total(b: tuple[int, ...]) -> float:
        return sum(reference_queue(a, n) for (a, _), n in zip(rows, b, strict=True))

    assert found.optimal
    assert all(n > a for (a, _), n in zip(rows, found.admissions, strict=True))
    assert sum(n * s for n, (_, s) in zip(found.admissions, rows, strict=True)) < memory
    assert sum(found.mean_queue) == pytest.approx(min(map(total, feasible)), abs=1e-6)
    assert sum(found.mean_queue) == pytest.approx(total(found.admissions), abs=1e-6)


def test_budgets_too_many_to_search_are_near_the_continuous_optimum() -> None:
    """A hundred classes: marked as not proved, feasible, and no single exchange of one request improves them."""
    size = 100
    arrivals = 0.5 + np.arange(size) % 7
    footprint = 50.0 + np.arange(size) % 13
    memory = 1.25 * float((np.floor(arrivals) + 1) @ footprint)
    found = integer_budgets(arrivals, footprint, memory)
    b = np.array(found.admissions)
    assert (b > arrivals).all()
    assert float(b @ footprint) < memory
    if not found.optimal:
        spare = memory - float(b @ footprint)
        gains = [
            (mean_queue(a, n) - mean_queue(a, n + 1), s)
            for a, n, s in zip(arrivals.tolist(), b.tolist(), footprint.tolist(), strict=True)
        ]
        assert all(gain < 1e-8 or s >= spare for gain, s in gains)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), min_size=1, max_size=3),
    st.lists(st.integers(0, 5), min_size=8, max_size=8),
)
def test_capped_at_n_star_evictions_of_one_length_end_after_it(
    rows: list[tuple[int, int]], start: list[int]
) -> None:
    """SIC 5.1 in exact fractions, from any state: none after L - 1 iterations, and n* is completed in the end."""
    model = mix_model(*((s, 8, float(parts)) for s, parts in rows), memory=1000)
    weights = [[Fraction(w) for w in stage_weights("disaggregated", s, 8)] for s, _ in rows]
    shares = [Fraction(parts, sum(parts for _, parts in rows)) for _, parts in rows]
    cap = Fraction(1000) / sum(p * sum(w) for p, w in zip(shares, weights, strict=True))
    assert rate_cap(model).per_iteration == pytest.approx(float(cap), rel=1e-12)
    slow = SlowMap.of_cohorts(weights, shares, Fraction(1000), [Fraction(40 * n) for n in start])
    slow.cap = cap
    for t in range(24):
        step = slow.step()
        assert t < 8 or not any(step.evicted)
        assert sum(step.admitted) <= cap
    step = slow.step()
    assert (sum(step.completed), sum(step.evicted)) == (cap, 0)


def test_a_cap_on_requests_does_not_end_the_evictions_of_every_mix() -> None:
    """What is evicted rejoins in front and is longer than the traffic: n* requests of it an iteration are too many.

    Decode lengths 1 and 20 in the proportion 20 to 3, no prompt: capped at n*, or a twentieth below, the map stays
    where greedy admission leaves it.
    """
    weights = [[float(w) for w in stage_weights("disaggregated", 0, d)] for d in (1, 20)]
    n_star = 1000 / (20 / 23 * 1 + 3 / 23 * 210)
    for cap in (n_star, 0.95 * n_star):
        slow = SlowMap.of_cohorts(weights, [20 / 23, 3 / 23], 1000.0, [1000.0] + 19 * [0.0], nothing=1e-9)
        slow.cap = cap
        steps = [slow.step() for _ in range(1000)][500:]
        assert sum(sum(step.evicted) for step in steps) / 500 > 0.05 * n_star
        assert sum(step.completed[1] for step in steps) / 500 < 0.6 * 3 / 23 * n_star


@given(
    st.lists(
        st.tuples(
            st.integers(0, 30), st.integers(1, 12), st.fractions(Fraction(1, 9), 5, max_denominator=12)
        ),
        min_size=1,
        max_size=3,
    )
)
def test_whole_admissions_realise_a_fractional_cap_within_one_request_of_each_class(
    rows: list[tuple[int, int, Fraction]],
) -> None:
    """b_t = ⌊(t+1)β⌋ - ⌊tβ⌋: peak memory below Σβ_i S_i + Σ(s_i + d_i) over a whole period of the pattern."""
    period = math.lcm(*(beta.denominator for *_, beta in rows))
    longest = max(d for _, d, _ in rows)
    weights = [stage_weights("disaggregated", s, d) for s, d, _ in rows]

    def admitted(beta: Fraction, t: int) -> int:
        return math.floor((t + 1) * beta) - math.floor(t * beta)

    peak = max(
        sum(
            w * admitted(beta, t - k)
            for (*_, beta), ws in zip(rows, weights, strict=True)
            for k, w in enumerate(ws)
        )
        for t in range(longest, longest + period)
    )
    mean = sum(beta * sum(ws) for (*_, beta), ws in zip(rows, weights, strict=True))
    assert peak < mean + sum(s + d for s, d, _ in rows)
