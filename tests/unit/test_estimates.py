"""Ratios of sums from batches, their errors, and what a queue is judged to do."""

import math
from fractions import Fraction

import numpy as np
import pytest

from kvplan.model import FloatArray
from kvplan.simulation.estimates import Trend, ratio, t_quantile, trend


def arrays(*values: list[float]) -> list[FloatArray]:
    return [np.array(v, dtype=float) for v in values]


def test_a_small_ratio_in_fractions() -> None:
    """Residuals of (1, 4), (3, 2) on sizes of one around 5/2: neighbours -9/4 + -1/4 of 5, and 1/4 is added."""
    found = ratio(arrays([1, 4], [3, 2]), arrays([1, 1], [1, 1]))
    residuals = [Fraction(-3, 2), Fraction(3, 2), Fraction(1, 2), Fraction(-1, 2)]
    power = sum(r * r for r in residuals)
    neighbours = residuals[0] * residuals[1] + residuals[2] * residuals[3]  # none across runs
    assert neighbours / power + Fraction(1, 4) < 0  # so nothing widens the error
    assert found.value == 2.5
    assert found.standard_error == pytest.approx(math.sqrt(Fraction(4, 3) * power) / 4)
    assert found.degrees == 3


def test_what_neighbours_have_in_common_widens_the_error() -> None:
    """Residuals ±(1, 1, -1, -1) of one run: φ = 1/4 + 1/4, hence √3 times as wide."""
    found = ratio(arrays([2, 2, 0, 0]), arrays([1, 1, 1, 1]))
    assert found.standard_error == pytest.approx(math.sqrt(4 / 3 * 4 * 3) / 4)
    apart = ratio(arrays([2, 2], [0, 0]), arrays([1, 1], [1, 1]))  # φ = 2/4 + 1/4
    assert apart.standard_error == pytest.approx(math.sqrt(4 / 3 * 4 * 7) / 4)


def test_the_error_of_independent_batches_is_that_of_a_bootstrap() -> None:
    rng = np.random.default_rng(3)
    sizes = rng.gamma(4.0, size=60)
    amounts = 2 * sizes + rng.normal(size=60)
    drawn = rng.integers(0, 60, (4000, 60))
    known = (amounts[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)).std()
    found = ratio([amounts[:30], amounts[30:]], [sizes[:30], sizes[30:]])
    assert found.value == pytest.approx(amounts.sum() / sizes.sum())
    # the bootstrap knows of no correlation: what was estimated of it here is taken out
    residuals = amounts - found.value * sizes
    neighbours = residuals[:29] @ residuals[1:30] + residuals[30:59] @ residuals[31:]
    phi = max(neighbours / (residuals @ residuals) + 1 / 60, 0)
    assert found.standard_error / math.sqrt((1 + phi) / (1 - phi)) == pytest.approx(known, rel=0.05)


@pytest.mark.parametrize(("phi", "least"), [(0.0, 0.94), (0.5, 0.91)])
def test_intervals_hold_the_truth_as_often_as_they_say(phi: float, least: float) -> None:
    """Of runs of 16 batches, independent and AR(1); 1,000 of them, so that a per cent is a standard error."""
    rng, hits = np.random.default_rng(5), 0
    for _ in range(1000):
        runs = []
        for _ in range(2):
            noise, x = rng.normal(size=16), rng.normal() / math.sqrt(1 - phi**2)
            values = []
            for e in noise:
                x = phi * x + e
                values.append(10 + x)
            runs.append(np.array(values))
        found = ratio(runs, [np.ones(16)] * 2)
        hits += abs(found.value - 10) <= t_quantile(found.degrees) * found.standard_error
    assert least <= hits / 1000 <= 0.99


# ------------------------------------------------------------------------------------------------- the queue


def test_a_queue_that_comes_back_is_steady_and_one_that_rises_grows() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        wander = rng.integers(0, 40, 16).astype(float)
        wander[rng.integers(0, 8)] = wander[rng.integers(8, 12)] = wander[rng.integers(12, 16)] = 0
        assert trend(wander, 100.0) is Trend.STEADY
        rising = 30.0 * np.arange(16) + rng.normal(0, 20, 16)
        assert trend(rising, 100.0) is Trend.GROWING
        assert trend(rising, 100.0, may_grow=False) is Trend.UNDECIDED


def test_the_slack_is_two_requests_or_a_fiftieth_of_a_batch() -> None:
    """A ramp of r per batch: the second half is 8r above the first's least, and the last quarter 12r - 3.5r."""
    ramp = np.arange(16.0)
    for arrivals, most in ((10.0, 2.0), (1000.0, 20.0)):
        r = most / 8.5
        assert trend(0.999 * r * ramp, arrivals) is Trend.STEADY
        assert trend(1.001 * r * ramp, arrivals) is Trend.GROWING


def test_what_rises_once_and_stays_is_open_where_chance_explains_the_line() -> None:
    """One batch far up in the end of a queue that never returned: no line through that is steep."""
    queue = np.array([0.0, 30, 5, 60, 10, 50, 0, 40, 9, 70, 8, 65, 60, 45, 55, 48])
    assert trend(queue, 10.0) is Trend.UNDECIDED
