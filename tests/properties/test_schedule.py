"""Rates that vary over time against slow sums: integrals, worst windows, thresholds, and what is drawn from them."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st
from strategies import mix_model

from kvplan.analysis.nested import nested_wait
from kvplan.analysis.wait import class_means, wait
from kvplan.analysis.worst_window import class_windows, peak
from kvplan.model import Plan, ServingModel, Timing
from kvplan.model.schedule import Sinusoid, Steps
from kvplan.simulation.experiments.load import Arrivals, Load, generate
from kvplan.simulation.experiments.options import chosen
from kvplan.simulation.experiments.study import study
from kvplan.simulation.requests import poisson

SIGMAS = 6.0


@st.composite
def schedules(draw: st.DrawFn, classes: int = 1, period: int = 12, idle: bool = True) -> Steps:
    """Steps that begin at whole times, with factors of quarters; no class is idle all the time."""
    starts = sorted(draw(st.sets(st.integers(1, period - 1), max_size=4)) | {0})
    quarters = st.integers(0 if idle else 1, 8).map(lambda n: n / 4)
    rows = [[draw(quarters) for _ in range(classes)] for _ in starts]
    for c in range(classes):
        if not any(row[c] for row in rows):
            rows[0][c] = 1.0
    return Steps(float(period), tuple(map(float, starts)), tuple(map(tuple, rows)))


def factor_at(steps: Steps, weights: list[int], time: Fraction) -> Fraction:
    """Weighted mean factor at a time, exactly."""
    inside = time % int(steps.period_s)
    row = [f for s, f in zip(steps.starts_s, steps.factors, strict=True) if s <= inside][-1]
    return sum((w * Fraction(f) for w, f in zip(weights, row, strict=True)), Fraction(0)) / sum(weights)


def integral(steps: Steps, weights: list[int], begin: Fraction, end: Fraction) -> Fraction:
    """Between two times, step by step, exactly."""
    period = int(steps.period_s)
    first, last = begin // period, end // period
    cuts = {n * period + int(s) for n in range(first, last + 1) for s in steps.starts_s}
    times = sorted({begin, end} | {Fraction(t) for t in cuts if begin < t < end})
    return sum(((b - a) * factor_at(steps, weights, a) for a, b in pairwise(times)), Fraction(0))


def worst(steps: Steps, weights: list[int], length: Fraction) -> Fraction:
    """Largest integral over windows that begin or end at a step, or at any of many other times."""
    period = int(steps.period_s)
    starts = {Fraction(s) for s in steps.starts_s}
    starts |= {(s - length) % period for s in starts} | {Fraction(i * period, 31) for i in range(31)}
    return max(integral(steps, weights, s, s + length) for s in starts)


@given(
    schedules(classes=2),
    st.tuples(st.integers(1, 3), st.integers(0, 3)),
    st.fractions(0, 40, max_denominator=7),
)
def test_integrals_of_steps_are_sums_over_them(
    steps: Steps, weights: tuple[int, int], time: Fraction
) -> None:
    course, exact = steps.course(weights), list(weights)
    total = integral(steps, exact, Fraction(0), time)
    assert float(course.integral(float(time))) == pytest.approx(float(total), abs=1e-12)
    assert course.mean * 12 == pytest.approx(float(integral(steps, exact, Fraction(0), Fraction(12))))
    if course.mean > 0:
        back = course.inverse(np.array([float(total)]))
        assert float(course.integral(back)[0]) == pytest.approx(float(total), abs=1e-9)


@given(schedules(classes=2), st.fractions(Fraction(1, 9), 40, max_denominator=9))
def test_no_window_of_steps_holds_more_than_the_worst_and_one_holds_as_much(
    steps: Steps, length: Fraction
) -> None:
    found = float(steps.course([1, 2]).most_in(float(length)))
    exact = worst(steps, [1, 2], length)
    assert found >= float(exact) * (1 - 1e-15)
    assert found == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("amplitude", [0.0, 0.3, 1.0])
def test_a_sinusoid_against_a_fine_grid(amplitude: float) -> None:
    course = Sinusoid(10.0, amplitude, 7.0)
    size = 100_000
    middles = (np.arange(2 * size) + 0.5) * 10 / size
    sums = np.append(0.0, np.cumsum(1 + amplitude * np.cos(2 * np.pi * (middles - 7.0) / 10))) * 10 / size
    times = np.arange(2 * size + 1) * 10 / size
    assert np.abs(course.integral(times) - sums).max() < 1e-7
    for cells in (1, 13_000, 50_000, 90_000):
        length = cells * 10 / size
        windows = sums[cells:] - sums[:-cells]
        assert float(course.most_in(length)) == pytest.approx(windows.max(), abs=1e-7)
        assert float(course.most_in(length + 30)) == pytest.approx(windows.max() + 30, abs=1e-7)
        factor, lasts = course.ramp
        assert length > lasts or factor * length <= float(course.most_in(length))
    amounts = np.linspace(0, 30, 5001)
    assert np.abs(course.integral(course.inverse(amounts)) - amounts).max() < 1e-9
    above = np.count_nonzero(1 + amplitude * np.cos(2 * np.pi * middles[:size] / 10) > 1.2) * 10 / size
    assert course.time_above(1.2) == pytest.approx(above, abs=1e-3)


def scheduled(rows: list[tuple[int, int, float]], steps: Steps | Sinusoid, d1: float = 0.002) -> ServingModel:
    """Classes of (input, decode, rate) on a replica whose iterations are about as long as its steps."""
    return replace(mix_model(*rows, timing=Timing(1.0, d1=d1)), schedule=steps)


def window_arrivals(model: ServingModel, index: int, time: Fraction) -> Fraction:
    """Most arrivals of a class in a window, exactly."""
    assert isinstance(model.schedule, Steps)
    weights = [int(i == index) for i in range(len(model.classes))]
    return Fraction(repr(model.classes[index].rate_rps)) * worst(model.schedule, weights, time)


def slow_thresholds(model: ServingModel) -> list[int]:
    """From 0 up in exact fractions: n_i becomes ⌊W_i(ΔT(n))⌋ + 1."""
    costs = [Fraction(c).limit_denominator(10**9) for c in class_means(model).work_s.tolist()]
    thresholds = [0] * len(costs)
    while True:
        time = 1 + sum((n * c for n, c in zip(thresholds, costs, strict=True)), Fraction(0))
        raised = [math.floor(window_arrivals(model, i, time)) + 1 for i in range(len(costs))]
        if raised == thresholds:
            return thresholds
        thresholds = raised


@given(schedules(classes=2), st.integers(1, 6), st.integers(1, 6))
def test_wait_thresholds_are_the_least_for_the_worst_window(steps: Steps, first: int, second: int) -> None:
    model = scheduled([(10, 4, first / 2), (3, 9, second / 4)], steps)
    windows = class_windows(model)
    found = wait(model)
    load = float(windows.mean_rps @ class_means(model).work_s)
    assert found.feasible is (load < 1)
    assert found.worst_window is windows.vary
    if found.thresholds is not None and load < 0.9:
        assert list(found.thresholds) == slow_thresholds(model)
        assert found.smallest


@given(schedules(classes=2, idle=False), st.integers(1, 3))
def test_nested_thresholds_keep_up_with_every_window_and_every_mix(steps: Steps, segments: int) -> None:
    """Against slow sums: all requests in a window, and the shares that outlive a segment, at any time."""
    model = scheduled([(10, 4, 1.0), (3, 9, 0.5)], steps)
    model = replace(
        model,
        classes=(
            replace(model.classes[0], decode_tokens=(4, 6), decode_weights=(1.0, 1.0)),
            model.classes[1],
        ),
    )
    found = nested_wait(model, delta=0.01, horizon_s=1000.0, segments=segments)
    if not found.feasible:
        return
    assert found.iteration_time_s is not None
    time = Fraction(found.iteration_time_s)
    assert Fraction(3, 2) * worst(steps, [2, 1], time) < found.segments[0].threshold
    reach = {
        0: (Fraction(1), Fraction(1, 2)),
        4: (Fraction(1, 2), Fraction(1, 2)),
        6: (Fraction(0), Fraction(1, 2)),
    }
    ends = [0, *(s.upto_decode for s in found.segments[:-1])]
    for before, here, (lower, segment) in zip(
        ends, ends[1:], zip(found.segments, found.segments[1:], strict=False), strict=False
    ):
        shares = []
        for row in steps.factors:
            there, going = (
                sum(Fraction(f) * part for f, part in zip(row, reach[at], strict=True))
                for at in (before, here)
            )
            shares.append(going / there)
        assert segment.continue_probability == pytest.approx(float(max(shares)), rel=1e-12)
        assert segment.threshold > max(shares) * lower.threshold or segment.threshold == lower.threshold


def test_the_peak_is_where_the_load_is_heaviest_for_its_mix() -> None:
    """Few long requests weigh more than many short ones."""
    model = mix_model((0, 2, 10.0), (0, 200, 1.0), memory=1000, timing=Timing(1.0))
    steps = Steps(24.0, (0.0, 8.0, 9.0), ((1.0, 0.0), (2.0, 0.0), (0.1, 0.5)))
    found = peak(replace(model, schedule=steps))
    # d tokens in all are held d(d + 1)/2 token-iterations: 3 or 20,100, of 1,000 tokens an iteration
    assert (found.offered_rps, found.most_rps) == (1.5, 20.0)
    assert found.sustainable_rps == pytest.approx(1000 / ((3 * 1.0 + 20_100 * 0.5) / 1.5))
    assert found.overloaded_s == 15.0
    assert found.mean_rps == pytest.approx((8 * 10 + 20 + 15 * 1.5) / 24)


DAY = Steps(10.0, (0.0, 3.0, 4.0, 8.0), ((1.0, 1.0), (4.0, 0.0), (0.0, 0.0), (0.5, 3.0)))
TWO = mix_model((10, [3, 5], 3.0), (20, 7, 1.0))
VARYING = replace(TWO, schedule=DAY)


def assert_counts(seen: np.ndarray, expected: np.ndarray, clump: float = 1.0) -> None:
    """Pearson's chi-square within six standard deviations of its mean."""
    assert (seen[expected == 0] == 0).all()
    seen, expected = seen[expected > 0], expected[expected > 0]
    statistic = ((seen - expected) ** 2 / expected / clump).sum()
    assert statistic < seen.size + SIGMAS * math.sqrt(2 * seen.size)


def cells(arrival: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """Arrivals by class and half second of the period, shape (2, 20)."""
    seen = [np.histogram(arrival[kind == c] % 10.0, 20, (0.0, 10.0))[0] for c in range(2)]
    return np.array(seen)


def expected_cells(periods: int) -> np.ndarray:
    by_step = np.array(DAY.factors) * [3.0, 1.0] * 0.5 * periods
    return np.repeat(by_step, [6, 2, 8, 4], axis=0).T


@pytest.mark.parametrize("seed", [1, 2])
def test_poisson_arrivals_have_the_rates_of_each_step_and_class(seed: int) -> None:
    some = poisson(VARYING, np.random.default_rng(seed), requests=None, horizon_s=20_000.0)
    assert_counts(cells(some.arrival_s, some.class_index).ravel(), expected_cells(2000).ravel())
    # from one period to the next, as chance wants it
    by_period = np.histogram(some.arrival_s, 2000, (0.0, 20_000.0))[0]
    mean = 3 * 4 + 12 + 2 * 4.5
    assert by_period.var() == pytest.approx(mean, rel=SIGMAS * math.sqrt(2 / 2000))
    assert (np.diff(some.arrival_s) >= 0).all()
    assert some.arrival_s[-1] < 20_000.0


@every("kind", [Arrivals.POISSON, Arrivals.GAMMA, Arrivals.BURST])
@every("schedule", [Steps(7.0, (0.0, 3.0), ((1.0, 1.0), (1.0, 1.0))), Sinusoid(7.0, 0.0, 2.0)])
def test_a_schedule_that_does_not_vary_brings_the_same_requests(
    kind: Arrivals, schedule: Steps | Sinusoid
) -> None:
    same = replace(TWO, schedule=schedule)
    for load in (Load(kind, 2000), Load(kind, None, 400.0)):
        plain, found = (generate(model, load, 7) for model in (TWO, same))
        assert found.arrival_s == pytest.approx(plain.arrival_s, rel=1e-12, abs=1e-12)
        assert found.class_index.tolist() == plain.class_index.tolist()
        assert found.decode_tokens.tolist() == plain.decode_tokens.tolist()
        assert found.more_later == plain.more_later


def test_simulated_waits_stay_within_the_bounds_of_the_worst_window() -> None:
    """WAIT through short peaks: with its thresholds the queue and the memory stay small, with others they do not."""
    plain = mix_model((10, 10, 40.0), (10, 20, 40.0), prefill="inline", timing=Timing(0.0625, d1=2.5e-5))
    model = replace(plain, schedule=Steps(40.0, (0.0, 10.0, 20.0), ((0.5, 0.5), (1.6, 1.4), (0.3, 0.9))))
    bounds, constant = wait(model), wait(plain)
    assert bounds.thresholds is not None
    assert constant.thresholds is not None
    assert bounds.kv_tokens is not None
    usual = ",".join(map(str, constant.thresholds))
    load, seeds = Load(requests=None, horizon_s=80.0), (0, 1)
    found, other = (
        study(model, Plan(), load, chosen(["wait"], settings), seeds).results[0]
        for settings in ([], [f"wait.thresholds={usual}"])
    )
    assert found.figures["kv_tokens.peak"] <= bounds.kv_tokens
    assert 2 * found.figures["queue.peak"] < other.figures["queue.peak"]
    for one, bound in zip(found.classes, bounds.classes, strict=True):
        # the wait is until the first iteration begins; inline, the first token comes with the second
        assert one.figures["ttft_s.mean"] - 2 * bounds.iteration_time_s < bound.mean_wait_bound_s
        assert one.figures["e2e_s.mean"] < bound.latency_s
