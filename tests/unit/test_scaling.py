"""Replicas that come and go: the autoscaler by its rules, and the times of replicas."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

from kvplan.simulation.fleet.scaling import Autoscaler, lifetimes

MINUTES = st.lists(st.integers(0, 90), min_size=3, max_size=30)  # arrivals in each minute


def arrivals(of_minutes: Sequence[int]) -> np.ndarray:
    """So many in each minute, evenly, none of them where anybody looks."""
    return np.array([60 * i + 60 * (j + 0.37) / n for i, n in enumerate(of_minutes) for j in range(n)])


def by_the_rules(
    scaler: Autoscaler, arrival_s: np.ndarray, first: int, end_s: float
) -> list[tuple[float, int]]:
    """One replica after the other, as the table of thresholds says, in exact numbers."""
    add, remove = Fraction(scaler.add_rps), Fraction(scaler.remove_rps)
    count, steps, time_s = first, [(0.0, first)], scaler.window_s
    while time_s <= end_s:
        came = sum(time_s - scaler.window_s < a <= time_s for a in arrival_s.tolist())
        rate = Fraction(came) / Fraction(scaler.window_s)
        while rate > add * count and count < scaler.most:
            count += 1
        while count > 1 and rate < remove * (count - 1):
            count -= 1
        if count != steps[-1][1]:
            steps.append((time_s, count))
        time_s += scaler.every_s
    return steps


@examples(40)
@given(MINUTES, st.integers(1, 4), st.sampled_from([0.25, 0.125]), st.sampled_from([15.0, 60.0, 120.0]))
def test_the_autoscaler_keeps_the_rules(counts: list[int], first: int, add: float, window_s: float) -> None:
    scaler = Autoscaler(add, 0.75 * add, 6, window_s, 15.0)
    arrival_s, end_s = arrivals(counts), 60.0 * len(counts)
    assert list(scaler.steps(arrival_s, first, end_s)) == by_the_rules(scaler, arrival_s, first, end_s)


@examples(40)
@given(MINUTES, st.integers(1, 4))
def test_with_hysteresis_fewer_replicas_come_and_go(counts: list[int], first: int) -> None:
    """Doing nothing between two thresholds is the least that can be done to stay within them."""
    arrival_s, end_s = arrivals(counts), 60.0 * len(counts)

    def changes(remove: float) -> int:
        steps = Autoscaler(0.25, remove, 9, 60.0, 15.0).steps(arrival_s, first, end_s)
        return sum(abs(a - b) for (_, a), (_, b) in pairwise(steps))

    assert changes(0.2) <= changes(0.25)


WANTED = st.lists(st.tuples(st.integers(1, 200), st.integers(1, 5)), max_size=12).map(
    lambda rows: [(0.0, 2), *((float(t), n) for t, n in sorted(dict(rows).items()))]
)
TIMES = np.arange(0.5, 260)  # at which nothing changes


def at(steps: Sequence[tuple[float, int]], time_s: float) -> int:
    return [count for begin_s, count in steps if begin_s <= time_s][-1]


@examples(40)
@given(WANTED, st.integers(0, 40))
def test_an_autoscaler_pays_for_what_it_wants_and_has_it_later(
    steps: list[tuple[float, int]], load_s: int
) -> None:
    lives = lifetimes(steps, float(load_s), planned=False)
    for time_s in TIMES:
        paid = [one for one in lives if one.starts_s <= time_s < one.closes_s]
        assert len(paid) == at(steps, time_s)
        assert 1 <= sum(one.opens_s <= time_s for one in paid) <= len(paid)
    assert all(one.opens_s - one.starts_s == (load_s if one.starts_s else 0) for one in lives)
    for one, later in pairwise(lives):
        assert one.starts_s <= later.starts_s, "first come"
    for one in lives:  # the last to come goes first
        for later in lives[lives.index(one) + 1 :]:
            assert later.starts_s >= one.closes_s or later.closes_s <= one.closes_s


@examples(40)
@given(WANTED, st.integers(0, 40))
def test_a_schedule_has_what_is_wanted_in_time_and_no_longer_than_a_start_takes(
    steps: list[tuple[float, int]], load_s: int
) -> None:
    lives = lifetimes(steps, float(load_s), planned=True)
    for time_s in TIMES:
        here = sum(one.opens_s <= time_s < one.closes_s for one in lives)
        soon = max(at(steps, t) for t in np.arange(time_s, time_s + load_s + 1))
        assert at(steps, time_s) <= here <= soon
        assert sum(one.starts_s <= time_s < one.closes_s for one in lives) <= soon
    assert all(one.starts_s == max(one.opens_s - load_s, 0) for one in lives)
