"""Autoscalers that look at replicas: the rules by a slow reading, and pods against runs whose times are given."""

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

from kvplan.model import IntArray, Plan, Prompt, Replica, RequestClass, ServingModel, Timing
from kvplan.model.fleet import Fleet, Routing
from kvplan.model.gaps import Exponential
from kvplan.model.lengths import Lengths
from kvplan.model.sessions import Sessions
from kvplan.simulation.experiments.load import Load, generate
from kvplan.simulation.experiments.runner import Job
from kvplan.simulation.fleet.scaling import (
    Gauges,
    HorizontalPodAutoscaler,
    Latencies,
    LatencyRule,
    Metric,
    Pods,
    Watch,
)
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Requests

LOADS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), min_size=2, max_size=60)


def gauges(loads: Sequence[tuple[int, int]]) -> list[Gauges]:
    """Looks every 15 s at one replica: so many have come since the last, and so many are in flight."""
    arrived = np.cumsum([came for came, _ in loads]).tolist()
    return [
        Gauges(
            15.0 * (i + 1), arrived[i], np.array([held]), np.array([0]), np.array([held / 40]), np.array([0])
        )
        for i, (_, held) in enumerate(loads)
    ]


def by_the_rules(loads: Sequence[tuple[int, int]], rate: Fraction, held: Fraction, down: int) -> list[int]:
    """Replicas after each look, in exact numbers; `down` is a number of looks. From 2 on, of 1 to 9."""
    there, wishes, went, result = 2, [], -99, []
    for i in range(len(loads)):
        back = min(i, 4)
        came = sum(loads[j][0] for j in range(i - back + 1, i + 1))
        seconds = max(15 * back, 30)
        flight = [loads[j][1] for j in range(max(i - 3, 0), i + 1)]
        wanted = []
        for total, target in ((Fraction(came, seconds), rate), (Fraction(sum(flight), len(flight)), held)):
            ratio = total / (target * there)
            wanted.append(there if abs(ratio - 1) <= Fraction(1, 10) else math.ceil(total / target))
        wishes.append(min(max(*wanted, 1), 9))
        if wishes[-1] > there:
            there = wishes[-1]
        elif max(wishes[-down - 1 :]) < there and i - went >= 4:
            there, went = there - 1, i
        result.append(there)
    return result


@examples(60)
@given(LOADS, st.sampled_from([5, 7, 9]), st.sampled_from([7, 11]), st.sampled_from([4, 20]))
def test_the_autoscaler_keeps_the_rules_of_kubernetes(
    loads: list[tuple[int, int]], rate: int, held: int, down: int
) -> None:
    """Targets of odd numbers over 8: no ratio is within rounding of a limit without being it."""
    targets = {Metric.ARRIVALS: rate / 8, Metric.IN_FLIGHT: float(held)}
    scaler, there, found = HorizontalPodAutoscaler(targets, 1, 9, 15.0 * down), 2, []
    for seen in gauges(loads):
        there = scaler.wanted(seen, there, there)
        found.append(there)
    assert found == by_the_rules(loads, Fraction(rate, 8), Fraction(held), down)


def test_a_mean_is_shared_by_those_that_are_loaded() -> None:
    """Of 4 there, 2 are loaded and twice as full as they should be: 4 are wanted, not 8."""
    scaler = HorizontalPodAutoscaler({Metric.KV_USAGE: 0.4}, 1, 9, 300.0)
    full = Gauges(15.0, 0, np.array([9, 9]), np.array([0, 0]), np.array([0.9, 0.7]), np.array([0, 1]))
    assert scaler.wanted(full, 4, 2) == 4
    assert scaler.wanted(full._replace(time_s=30.0), 4, 4) == 8


def test_latency_over_its_limit_is_kept_between_two_thresholds() -> None:
    """By hand: s = 1 asks 3 replicas for ceil(3 (1/.55 - 1)) = 3 more, and 6 of which 4 are loaded for 2 more."""
    rule = LatencyRule({"ttft_s": 2.0, "e2e_s": 9.0}, 3, 8)
    shown = {"ttft_s": 0.0}

    def looks(start_s: int, end_s: int, ttft_s: float, there: int, ready: int) -> list[int]:
        found = []
        for now in range(start_s, end_s + 1, 15):
            shown["ttft_s"] = ttft_s
            seen = gauges([(0, 0)])[0]._replace(
                time_s=float(now), latencies=lambda: Latencies(np.full(20, shown["ttft_s"]))
            )
            there = rule.wanted(seen, there, ready)
            found.append(there)
        return found

    assert looks(15, 60, 1.0, 3, 3) == [3, 3, 3, 3]  # .5: nothing
    assert looks(135, 150, 2.0, 3, 3) == [6, 6]
    assert looks(165, 180, 2.0, 6, 4) == [6, 7]  # 8 are wanted for 30 s, four more than a minute ago may be
    assert looks(300, 300, 90.0, 3, 3) == [
        7
    ]  # clamped at 2: 11, of which 8 may be, and four more in a minute
    assert looks(600, 810, 0.4, 8, 8) == [7, *[7] * 7, *[6] * 7]  # one in two minutes


def test_who_waits_counts_as_predicted() -> None:
    """30 wait where 15 were done in a minute: a request that comes now waits two minutes."""
    rule = LatencyRule({"ttft_s": 240.0}, 1, 9)
    seen = gauges([(0, 0)])[0]._replace(
        waiting=np.array([30]), latencies=lambda: Latencies(np.full(15, 1.0), np.full(15, 0.1))
    )
    rule.wanted(seen, 1, 1)
    assert rule._ratio() == pytest.approx(120 / 240)


class Script:
    """Wants so many from some looks on, whatever it sees."""

    def __init__(self, wanted: dict[float, int]) -> None:
        self._wanted = wanted

    def wanted(self, seen: Gauges, there: int, ready: int) -> int:
        return self._wanted.get(seen.time_s, there)


CHAT = RequestClass("chat", 90, (10, 30), (0.5, 0.5), 60.0)
TALK = Sessions(
    Lengths.of({90: 1.0}),
    Lengths.of({20: 1.0}),
    Lengths.of({30: 1.0}),
    Lengths.of({6: 1.0}),
    Exponential(5.0),
)
TURNS = RequestClass(
    "talk",
    215,
    (30,),
    (1.0,),
    12.0,
    sessions=TALK,
    prompts=tuple(Prompt(90 + 50 * i, 1.0) for i in range(6)),
)


def ran(kind: RequestClass, routing: Routing, **given: Any) -> tuple[Outcome, Requests]:
    """Run two minutes of arrivals at replicas that remember all that was said."""
    replica = Replica(60_000, block_tokens=16)
    model = ServingModel((kind,), Timing(0.02, 1e-6, 1e-4), replica, fleet=Fleet(replicas=2, routing=routing))
    requests = generate(model, Load(requests=None, horizon_s=120.0), 7)
    scenario = Scenario(model, Plan(), replace(requests, more_later=False), ("chat",), 7)
    return Job(Settings("vllm", {}), scenario, **given).run(), requests


@pytest.mark.parametrize("kind", [CHAT, TURNS], ids=["requests", "turns"])
def test_pods_that_obey_a_script_are_replicas_that_open_and_close_then(kind: RequestClass) -> None:
    """The second stops at 30 s and is done by 60 s; the one that is wanted then loads for 20 s, with an empty cache."""
    pods = Pods(Script({30.0: 1, 60.0: 2}), 2, 2, load_s=20.0, every_s=15.0)
    run, _ = ran(kind, Routing.LEAST_REQUESTS, pods=pods)
    times = ((0.0, math.inf), (0.0, 30.0), (80.0, math.inf))
    wanted, _ = ran(kind, Routing.LEAST_REQUESTS, open_s=times)
    assert np.array_equal(run.finish_s, wanted.finish_s, equal_nan=True)
    assert run.found is not None
    assert wanted.found is not None
    assert np.array_equal(run.found.hit_tokens, wanted.found.hit_tokens)
    assert run.replica_end_s is not None
    assert wanted.replica_end_s is not None
    left_s = float(wanted.replica_end_s[1])
    assert 30 < left_s < 60
    paid_s = pods.paid_s(run.replica_end_s, 120.0)
    assert paid_s == pytest.approx(120 + left_s + (120 - 60))


@pytest.mark.parametrize("routing", [Routing.LEAST_REQUESTS, Routing.ROUND_ROBIN])
def test_nobody_is_sent_to_a_pod_that_is_not_open(routing: Routing) -> None:
    """While one of two is open, it holds all that is in flight beyond what the other had."""
    watch = Watch()

    class Watched(Script):
        def wanted(self, seen: Gauges, there: int, ready: int) -> int:
            watch.wanted(seen, there, ready)
            return super().wanted(seen, there, ready)

    ran(CHAT, routing, pods=Pods(Watched({30.0: 1, 60.0: 2}), 2, 2, load_s=20.0, every_s=5.0))
    serving = {seen.time_s: seen.in_flight.size for seen in watch.seen if 60 <= seen.time_s <= 100}
    assert serving == {t: 1 if t < 80 else 2 for t in np.arange(60.0, 105.0, 5.0)}
    arrived = [seen.arrived for seen in watch.seen]
    assert np.mean(np.diff(arrived)) == pytest.approx(5 * 60, rel=0.1)


def test_turns_stay_with_the_replica_that_knows_them_until_it_leaves() -> None:
    """A turn finds the whole blocks of all that was said before; strangers to a replica find nothing."""

    def lacking(control: Any, routing: Routing) -> IntArray:
        run, requests = ran(TURNS, routing, pods=Pods(control, 2, 2, load_s=20.0, every_s=15.0))
        assert run.found is not None
        known = (requests.input_tokens - 20 - 1) // 16 * 16
        return np.asarray((known - run.found.hit_tokens)[requests.input_tokens > 90])

    assert (lacking(Watch(), Routing.SESSION) == 0).all()
    assert (lacking(Watch(), Routing.LEAST_REQUESTS) > 0).any()
    assert 0 < (lacking(Script({60.0: 1}), Routing.SESSION) > 0).mean() < 0.2
