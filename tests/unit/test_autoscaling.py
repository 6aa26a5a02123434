"""Replicas that come and go: the autoscaler by its rules, the times of replicas, and what a day comes to."""

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kept import kept
from tiers import examples

from kvplan.decide import autoscaling
from kvplan.decide.autoscaling import AT_ONCE, AUTOSCALED, FIXED, SCHEDULED, day, most_waiting, period
from kvplan.decide.fixed_runs import Estimate
from kvplan.decide.fleet import Fleet as Needed
from kvplan.decide.fleet import fleet
from kvplan.errors import UsageError
from kvplan.model import Plan, Replica, RequestClass, ServingModel, Timing
from kvplan.model.fleet import Routing
from kvplan.model.schedule import Steps
from kvplan.model.slo import parse_slo
from kvplan.simulation.fleet.scaling import Autoscaler, Lifetime, reactive, scheduled
from kvplan.study.replicas import Kept

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


def test_a_rate_that_wavers_between_the_thresholds_changes_nothing() -> None:
    """13 to 15 a minute and replica, of which 15 is one more and 12 one less."""
    counts = [28, 29, 27, 29, 26, 30, 28, 27] * 4
    steps = Autoscaler(0.25, 0.2, 9, 60.0, 60.0).steps(arrivals(counts), 1, 60.0 * len(counts))
    assert list(steps) == [(0.0, 1), (60.0, 2)]
    without = Autoscaler(14 / 60, 14 / 60, 9, 60.0, 60.0).steps(arrivals(counts), 1, 60.0 * len(counts))
    assert len(list(without)) > 10


# ------------------------------------------------------------------------------------------- the times of replicas

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
    lives = reactive(steps, float(load_s))
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
    lives = scheduled(steps, float(load_s))
    for time_s in TIMES:
        here = sum(one.opens_s <= time_s < one.closes_s for one in lives)
        soon = max(at(steps, t) for t in np.arange(time_s, time_s + load_s + 1))
        assert at(steps, time_s) <= here <= soon
        assert sum(one.starts_s <= time_s < one.closes_s for one in lives) <= soon
    assert all(one.starts_s == max(one.opens_s - load_s, 0) for one in lives)


def test_what_is_paid_for() -> None:
    """From 10:00 to the end; until it is empty; until it was taken away, having never opened."""
    assert Lifetime(600.0, 700.0).paid_s(850.0, 1000.0) == 400
    assert Lifetime(0.0, 0.0, 800.0).paid_s(850.0, 1000.0) == 850
    assert Lifetime(0.0, 0.0, 800.0).paid_s(300.0, 1000.0) == 800
    early = Lifetime(600.0, 700.0, 650.0)
    assert not early.opens
    assert early.paid_s(0.0, 1000.0) == 50


# ------------------------------------------------------------------------------------------------------- a day

CHAT = RequestClass("chat", 90, (10, 30), (0.5, 0.5), 1.0)
WAVE = Steps(3600.0, (0.0, 900.0, 1800.0, 2700.0), ((0.5,), (2.0,), (0.5,), (1.0,)))
MODEL = ServingModel((CHAT,), Timing(0.02, 0.0, 1e-4), Replica(3000, block_tokens=16, gpus=2), WAVE)
PLAN = Plan(slos=(parse_slo("ttft_s.p95 <= 300 ms"),))


def never(model: ServingModel) -> Kept:
    """Where replicas are known to do what the formulas say."""
    return kept(True, {"ttft_s.mean": 0.0})


def needs(model: ServingModel, add: float) -> Needed:
    """What `size` finds, with another threshold."""
    found = fleet(model, rate_rps=None, headroom=0.0, slos=[], measure=never)
    assert found.heaviest.thresholds is not None
    changed = found.heaviest.thresholds._replace(rate_rps=add, down_rate_rps=0.8 * add)
    return found._replace(heaviest=found.heaviest._replace(replicas=4, thresholds=changed))


def test_a_fleet_that_is_never_let_go_does_what_a_fixed_one_does() -> None:
    """Thresholds that always ask for all, from the first look on; whoever came before is too few to matter."""
    always = replace(MODEL, schedule=Steps(600.0, (0.0,), ((1.0,),)))
    needed = needs(always, 1e-9)
    hours = tuple(hour._replace(size=hour.size._replace(replicas=4)) for hour in needed.hours if hour.size)
    for routing in (Routing.RANDOM, Routing.LEAST_REQUESTS):
        found = day(always, PLAN, needed._replace(hours=hours), "vllm", seeds=[0, 1], routing=routing)
        assert found is not None
        assert found.ways[AUTOSCALED] == found.ways[AT_ONCE] == found.ways[SCHEDULED] == found.ways[FIXED]
        assert found.ways[FIXED]["gpu_hours"] == Estimate(*[4 * 2 * 600 / 3600] * 3)
        assert found.lost_to_loading == Estimate(0.0, 0.0, 0.0)


def test_nobody_is_lost_and_gpu_hours_lie_between_what_is_wanted_and_what_is_fixed() -> None:
    """2/s in the heaviest part at half a request/s and replica: 1, 4, 1 and 2 replicas, within what is random."""
    easy = Plan(slos=(parse_slo("e2e_s.p95 <= 1 h"),))
    needed = needs(MODEL, 0.6)
    sizes = [hour.size for hour in needed.hours]
    hours = tuple(
        hour._replace(size=size and size._replace(replicas=count))
        for hour, size, count in zip(needed.hours, sizes, (1, 4, 1, 2), strict=True)
    )
    needed = needed._replace(hours=hours)
    found = day(MODEL, easy, needed, "vllm", seeds=[0, 1, 2], load_s=100.0, price=3.0)
    assert found is not None
    assert found.requests == pytest.approx(3600, rel=0.1)
    for figures in found.ways.values():
        assert figures["within"] == Estimate(1.0, 1.0, 1.0)
        assert figures["goodput_rps"].mean == pytest.approx(found.requests / 3600)
    scaled, fixed = found.ways[AUTOSCALED], found.ways[FIXED]
    assert fixed["gpu_hours"].mean == 8
    assert fixed["added"].mean == fixed["removed"].mean == 0
    # four starts take 100 s of two GPUs each, and those three that go are soon done with what they have
    planned = found.ways[SCHEDULED]
    assert 2 * (1 + 4 + 1 + 2) / 4 + 4 * 2 * 100 / 3600 < planned["gpu_hours"].mean < 4.24
    assert (planned["added"].mean, planned["removed"].mean) == (4, 3)
    assert 2 * (1 + 4 + 1 + 2) / 4 < scaled["gpu_hours"].mean < 8
    assert scaled["added"].mean >= 4
    assert scaled["removed"].mean >= 2
    assert found.cost(fixed) == 4 * 3.0
    assert scaled["gpu_hours"].mean == pytest.approx(found.ways[AT_ONCE]["gpu_hours"].mean, rel=0.01)
    assert scaled["waiting"].mean >= found.ways[AT_ONCE]["waiting"].mean


def test_the_longer_it_takes_to_load_the_more_is_lost() -> None:
    """Prompts take 0.18 s: two a second, on a replica alone while others load, seldom have their token in 0.3 s."""
    slow = replace(MODEL, timing=Timing(0.02, 0.0, 2e-3))
    lost = []
    for load_s in (1.0, 120.0, 400.0):
        found = day(slow, PLAN, needs(slow, 0.6), "vllm", seeds=[0, 1], load_s=load_s)
        assert found is not None
        assert found.lost_to_loading is not None
        lost.append(found.lost_to_loading.mean)
    assert lost[0] < lost[1] < lost[2]
    assert lost[2] > 0.05


def test_what_cannot_be_simulated_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="neither"):
        period(replace(MODEL, schedule=None), 60.0)
    with pytest.raises(UsageError, match=r"1 h; longer than 2 min .* 58\.3 min of loading"):
        period(MODEL, 3500.0)
    monkeypatch.setattr(autoscaling, "MOST_REQUESTS", 3000)
    with pytest.raises(UsageError, match="3,600 requests in 1 h"):
        period(MODEL, 60.0)
    needed = needs(replace(MODEL), 1.0)
    none = needed._replace(heaviest=needed.heaviest._replace(replicas=None))
    monkeypatch.undo()
    monkeypatch.setattr(autoscaling, "_MOST_STARTS", 3)
    with pytest.raises(UsageError, match=r"starts of replicas; 3 is the most"):
        day(MODEL, PLAN, needed, "vllm", seeds=[0, 1])
    assert day(MODEL, PLAN, none, "vllm", seeds=[0, 1]) is None


def test_most_waiting_is_counted_when_somebody_comes() -> None:
    class Run:
        arrival_s = np.array([0.0, 1.0, 2.0, 5.0])
        first_token_s = np.array([1.5, 4.0, 3.0, math.nan])

    assert most_waiting(Run()) == 2  # type: ignore[arg-type]


def test_a_share_is_never_more_than_all() -> None:
    share = autoscaling._over_seeds([{"within": 1.0}, {"within": 0.9}, {"within": 1.0}])["within"]
    assert share.mean == pytest.approx(29 / 30)
    assert (0.8 < share.low < 0.9, share.high) == (True, 1.0)
