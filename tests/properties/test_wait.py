"""Laws of the WAIT thresholds, checked on exactly representable numbers, and the queues against simulation."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from every import every
from hypothesis import assume, given
from hypothesis import strategies as st

from kvplan.analysis import wait as wait_module
from kvplan.analysis.dispersion import batch_wait_s
from kvplan.analysis.equilibrium import iteration_time, load
from kvplan.analysis.wait import (
    GUARD,
    ClassMeans,
    Overload,
    mean_wait,
    queue_at_start,
    smallest_thresholds,
    wait,
)
from kvplan.model import Prefill, Replica, RequestClass, ServingModel, Timing


def finite(result: Any) -> bool:
    """Whether every number in a tree of results is finite."""
    if isinstance(result, tuple):
        return all(map(finite, result))
    return not isinstance(result, float) or math.isfinite(result)


dyadic_system = st.lists(st.tuples(st.integers(1, 64), st.integers(1, 40)), min_size=1, max_size=3).flatmap(
    lambda rows: st.integers(1, 32).map(lambda d0: (rows, d0))
)


def exact(rows: list[tuple[int, int]], d0: int) -> tuple[list[Fraction], list[Fraction], Fraction]:
    """Rates in sixteenths, work in 1024ths and d0 in 64ths: floats hold them and their products exactly."""
    return [Fraction(r, 16) for r, _ in rows], [Fraction(c, 1024) for _, c in rows], Fraction(d0, 64)


def means_of(rate: Any, work: Any, d0: float) -> ClassMeans:
    """Classes of which only rate and work count."""
    nothing = np.zeros(len(rate))
    return ClassMeans(np.array(rate, float), np.array(work, float), nothing, nothing, nothing, Timing(d0))


def keeps_up(n: tuple[int, ...], rate: list[Fraction], work: list[Fraction], d0: Fraction) -> bool:
    time = d0 + sum(k * c for k, c in zip(n, work, strict=True))
    return all(r * time < k for k, r in zip(n, rate, strict=True))


@given(dyadic_system)
def test_smallest_thresholds_keep_up_and_nothing_below_them_does(system: tuple[Any, int]) -> None:
    rate, work, d0 = exact(*system)
    found = smallest_thresholds(means_of(rate, work, float(d0)))
    assert found[1]
    n = tuple(int(k) for k in found[0])
    assert keeps_up(n, rate, work, d0)
    if math.prod(n) <= 5_000:
        below = itertools.product(*(range(1, k + 1) for k in n))
        assert [m for m in below if keeps_up(m, rate, work, d0)] == [n]


@every("gap", [1e-1, 1e-3, 1e-5, 1e-8])
@every("classes", [1, 2, 7, 40])
def test_thresholds_keep_up_exactly_however_near_the_limit(gap: float, classes: int) -> None:
    rng = np.random.default_rng(classes)
    rate = rng.uniform(0.1, 1000.0, classes)
    work = rng.dirichlet(np.ones(classes)) * (1 - gap) / rate
    found = smallest_thresholds(means_of(rate, work, 0.01))
    n = tuple(int(k) for k in found[0])
    assert keeps_up(n, [Fraction(r) for r in rate], [Fraction(c) for c in work], Fraction(0.01))


models = st.builds(
    lambda *parts: _model(*parts),
    st.lists(
        st.tuples(st.integers(1, 500), st.lists(st.integers(1, 300), min_size=1, max_size=4, unique=True),
                  st.floats(0.01, 500)),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(Prefill),
    st.floats(0.01, 1.3),
    st.integers(1_000, 10**9),
    st.sampled_from([1, 16]),
)  # fmt: skip


def _model(
    rows: list[tuple[int, list[int], float]], prefill: Prefill, work_rate: float, memory: int, block: int
) -> ServingModel:
    """A model of the given work rate, a third each from d1, d2 and d3."""
    classes = tuple(
        RequestClass(f"{i}", s, tuple(sorted(d)), (1.0,) * len(d), rate)
        for i, (s, d, rate) in enumerate(rows)
    )
    replica = Replica(memory, block_tokens=block, prefill=prefill)
    mix = ServingModel(classes, Timing(0.01), replica).mix
    parts = [mix.rate_rps @ x for x in (mix.read.footprint, mix.input_tokens, mix.stages)]
    return ServingModel(classes, Timing(0.01, *(work_rate / 3 / float(x) for x in parts)), replica)


@given(models)
def test_results_are_finite_and_thresholds_keep_up_and_fit(model: ServingModel) -> None:
    assume(abs(load(model).work_rate - 1) > 1e-11)  # nearer than that, rounding decides
    result = wait(model)
    assert finite(result)
    assert result.feasible == (iteration_time(model) is not None)
    if not result.feasible:
        assert (result.thresholds, result.max_thresholds, result.kv_tokens) == (None, None, None)
        return
    assert result.thresholds is not None
    assert result.kv_tokens is not None
    tau = iteration_time(model)
    assert result.iteration_time_s > tau * (1 - 1e-9)
    for row, c in zip(result.classes, model.classes, strict=True):
        assert c.rate_rps * result.iteration_time_s < row.threshold
        assert row.latency_s >= row.mean_wait_bound_s + result.iteration_time_s
    assert (result.max_thresholds is not None) == result.fits
    if result.max_thresholds is not None:
        means = wait_module.class_means(model)
        largest = np.array(result.max_thresholds)
        assert (largest >= np.array(result.thresholds)).all()
        assert largest @ means.held <= model.replica.capacity_tokens
        time = model.timing.d0 + largest @ means.work_s
        assert (means.rate_rps * time < largest).all()
        if largest @ means.held > 3 * result.kv_tokens:  # one more of whatever comes next no longer fits
            following = np.floor(means.rate_rps * ((largest / means.rate_rps).min() * GUARD)) + 1
            assert following @ means.held > model.replica.capacity_tokens


@given(models)
def test_where_no_whole_thresholds_fit_the_largest_fill_memory_and_serve_what_it_sustains(
    model: ServingModel,
) -> None:
    found = wait(model)
    if found.fits:
        assert found.overload == Overload()
        return
    held, rates = wait_module.class_means(model).held, model.class_rates_rps
    n = np.array(found.overload.thresholds)
    assert n / n.sum() == pytest.approx(rates / rates.sum())
    assert n @ held == pytest.approx(model.replica.capacity_tokens)
    assert found.overload.running == pytest.approx(n @ wait_module.class_means(model).iterations)
    assert found.overload.throughput_rps == pytest.approx(sustainable_rates_of_memory(model))


def sustainable_rates_of_memory(model: ServingModel) -> float:
    unlimited = replace(model.replica, max_num_seqs=None, max_num_batched_tokens=None)
    return load(replace(model, replica=unlimited)).sustainable_rps


@given(models)
def test_the_dial_begins_where_arrivals_and_service_are_even(model: ServingModel) -> None:
    rows = wait(model).dial
    assert [row.zero_drift for row in rows] == [row.interval_s == iteration_time(model) for row in rows]
    if rows:
        assert rows[0].throughput_rps == pytest.approx(model.total_rate_rps)
        assert all(row.throughput_rps > model.total_rate_rps * (1 - 1e-9) for row in rows)
        assert rows[-1].kv_tokens == pytest.approx(model.replica.capacity_tokens)


def stationary_queue(arrivals: float, threshold: int) -> float:
    """Mean of W at the start of an iteration, from the transition matrix cut off far out."""
    size = 60 * threshold + 200
    pmf = np.exp([-arrivals + k * math.log(arrivals) - math.lgamma(k + 1) for k in range(size)])
    law = np.zeros(size)
    law[0] = 1.0  # the excess over the threshold
    for _ in range(4_000):
        sums = np.convolve(law, pmf)[: size + threshold]
        law = sums[threshold : threshold + size].copy()
        law = np.pad(law, (0, size - law.size))
        law[0] += sums[:threshold].sum()
    return threshold + float(law @ np.arange(size))


@pytest.mark.parametrize(("arrivals", "threshold"), [(0.5, 1), (0.9, 1), (2.2, 3), (3.9, 5), (8.0, 10)])
def test_the_queue_of_one_class_is_that_of_its_markov_chain(arrivals: float, threshold: int) -> None:
    found = queue_at_start(arrivals, threshold, alone=True)
    assert found == pytest.approx(stationary_queue(arrivals, threshold), rel=1e-6)
    assert found <= threshold + arrivals / (2 * (threshold - arrivals))


def simulated_waits(
    rates: tuple[float, ...],
    thresholds: tuple[int, ...],
    d0: float,
    each: tuple[float, ...],
    seed: int,
    cv: float = 1.0,
) -> tuple[float, float]:
    """Mean wait of the first class and its standard error (32 batches), from arrivals and the rule itself.

    A class takes part when its threshold is waiting; an iteration lasts d0 plus what each taking part adds. Gaps
    between all arrivals are gamma, and each takes its class at random.
    """
    rng = np.random.default_rng(seed)
    total, count = sum(rates), 60_000 * len(rates)
    every = np.cumsum(rng.gamma(1 / cv**2, cv**2 / total, count))
    kind = rng.choice(len(rates), count, p=[r / total for r in rates])
    arrivals = [every[kind == i] for i in range(len(rates))]
    taken = [0] * len(rates)
    waits: list[float] = []
    now = 0.0
    while all(t + n < a.size for t, n, a in zip(taken, thresholds, arrivals, strict=True)):
        ready = [a[t + n - 1] for t, n, a in zip(taken, thresholds, arrivals, strict=True)]
        now = max(now, min(ready))
        aboard = [i for i, r in enumerate(ready) if r <= now]
        if 0 in aboard:
            waits.extend(now - arrivals[0][taken[0] : taken[0] + thresholds[0]])
        for i in aboard:
            taken[i] += thresholds[i]
        now += d0 + sum(each[i] for i in aboard)
    batches = [float(part.mean()) for part in np.array_split(np.array(waits), 32)]
    return float(np.mean(batches)), float(np.std(batches) / math.sqrt(31))


@pytest.mark.parametrize("rates", [(2.0, 2.0), (2.6, 0.4), (0.5, 2.5)])
def test_the_wait_of_several_classes_is_within_its_bound(rates: tuple[float, float]) -> None:
    thresholds, each = (3, 3), (0.4, 0.4)
    found, error = simulated_waits(rates, thresholds, 0.2, each, seed=7)
    assert found - 4.5 * error < mean_wait(rates[0], 1.0, 3, alone=False)


@pytest.mark.parametrize("cv", [0.4, 1.5, 3.0])
@pytest.mark.parametrize(("rate", "threshold"), [(0.7, 1), (2.4, 3), (5.0, 8)])
def test_the_wait_of_one_class_with_gamma_gaps_is_what_it_takes_in_simulation(
    rate: float, threshold: int, cv: float
) -> None:
    found, error = simulated_waits((rate,), (threshold,), 1.0, (0.0,), seed=threshold, cv=cv)
    exact = mean_wait(rate, 1.0, threshold, alone=True, dispersion=cv**2)
    assert abs(found - exact) < 4.5 * error
    assert (
        abs(found - mean_wait(rate, 1.0, threshold, alone=True)) > 4.5 * error
    )  # Poisson arrivals wait otherwise


@pytest.mark.parametrize("rates", [(2.0, 2.0), (2.6, 0.4), (0.5, 2.5)])
@pytest.mark.parametrize("cv", [2.0, 5.0])
def test_the_bound_for_several_classes_is_scaled_by_the_dispersion_of_each(
    rates: tuple[float, float], cv: float
) -> None:
    """A class that takes a share p of arrivals has a dispersion of 1 + p(cv² - 1) in long times."""
    found, error = simulated_waits(rates, (3, 3), 0.2, (0.4, 0.4), seed=7, cv=cv)
    dispersion = 1 + rates[0] / sum(rates) * (cv**2 - 1)
    assert found - 4.5 * error < mean_wait(rates[0], 1.0, 3, alone=False, dispersion=dispersion)


@given(st.floats(0.05, 0.999), st.integers(1, 60), st.floats(1e-6, 1e6))
def test_batches_of_poisson_arrivals_wait_for_what_is_left_over(
    utilisation: float, threshold: int, rate: float
) -> None:
    """(Q + Poisson(a) - n)⁺ are left, and by Little's law the wait is their number over the rate."""
    service = utilisation * threshold / rate
    left = queue_at_start(rate * service, threshold, alone=True) - threshold
    assert batch_wait_s(rate, 1.0, threshold, service) * rate == pytest.approx(left, rel=1e-4, abs=1e-9)
