"""Profiles measured at their own rates: exact cases, every kind of arrivals, growth, days and traces."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from every import every
from strategies import one_class

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.model import ArrivalProcess, Plan, Prompt, Replica, RequestClass, ServingModel, Timing
from kvplan.model.arrivals import Recorded
from kvplan.model.drafts import Drafts
from kvplan.model.fleet import Fleet
from kvplan.model.gaps import Exponential
from kvplan.model.kv_layout import Attention, KvLayout, Layers
from kvplan.model.lengths import Lengths
from kvplan.model.schedule import Steps
from kvplan.model.sessions import Sessions
from kvplan.study.drain import drain
from kvplan.study.operating_point import Latency, OperatingPoint, Status, WorstPart, operating_point
from kvplan.study.windows import LATENCIES

FIGURES = ("mean", "p50", "p90", "p95", "p99")
CHAT = ServingModel((one_class(100, (5, 20), 40.0),), Timing(0.01, 1e-7, 1e-5, 1e-5), Replica(20_000, 16))


def holds(point: OperatingPoint, key: str, known: float, *, slack: float = 0.0) -> bool:
    """Whether an interval, half as wide again, has a known value."""
    low, high = point.latency.ci95[key]
    middle, half = (low + high) / 2, 0.75 * (high - low) + slack
    return middle - half <= known <= middle + half


def test_requests_one_at_a_time_are_an_m_d_1_queue() -> None:
    """Of one iteration each: W = ρτ/(2(1 - ρ)), whose queue an iteration sees as it begins.

    Of the law of the wait (Erlang): P(W = 0) = 1 - ρ, P(W <= τ) = (1 - ρ)·e^ρ.
    """
    tau, rho = 0.1, 0.5
    one = RequestClass("a", 10, (1,), (1.0,), rho / tau)
    point = operating_point(ServingModel((one,), Timing(tau), Replica(1000, max_num_seqs=1)), Plan())
    found, wait = point.latency, rho * tau / (2 * (1 - rho))
    assert found.status is Status.STEADY
    assert holds(point, "ttft_s.mean", wait + tau)
    assert holds(point, "e2e_s.mean", wait + tau)
    assert holds(point, "running", rho)
    assert holds(point, "waiting", rho * (rho / tau) * wait)
    assert holds(point, "kv_tokens_mean", 10 * rho)
    assert found.ttft_s.p50 == pytest.approx(tau + wait_quantile(0.5, tau, rho), rel=0.02)
    assert holds(point, "ttft_s.p90", tau + wait_quantile(0.9, tau, rho))
    assert holds(point, "ttft_s.p99", tau + wait_quantile(0.99, tau, rho))
    assert (found.itl_s.mean, found.tpot_s.mean, found.preemptions_per_request) == (None, None, 0.0)
    assert point.served.low <= rho / tau <= point.served.high
    assert point.iteration_s.value == pytest.approx(tau)
    assert point.busy == pytest.approx(rho, rel=0.03)
    three = replace(one, rate_rps=3 * one.rate_rps)
    fleet = ServingModel((three,), Timing(tau), Replica(1000, max_num_seqs=1), fleet=Fleet(replicas=3))
    assert operating_point(fleet, Plan(), 0.01).busy == pytest.approx(rho, rel=0.06)


def wait_quantile(share: float, tau: float, rho: float) -> float:
    """Of an M/D/1 queue by Erlang's sum, halved into place."""

    def below(t: float) -> float:
        terms = (
            (rho * (k - t)) ** k / math.factorial(k) * math.exp(-rho * (k - t)) for k in range(int(t) + 1)
        )
        return (1 - rho) * sum(terms)

    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < share else (low, middle)
    return tau * low


def sessions(users: int | None = None) -> RequestClass:
    law = Sessions(
        Lengths.of({50: 1.0}),
        Lengths.of({20: 1.0}),
        Lengths.of({10: 1.0}),
        Lengths.of({3: 1.0}),
        Exponential(0.5),
        users=users,
    )
    prompts = tuple(Prompt(50 + 30 * i, 1.0) for i in range(3))
    return RequestClass("turns", 80, (10,), (1.0,), 30.0, sessions=law, prompts=prompts)


WINDOW = KvLayout((Layers(Attention.WINDOW, 5, 64, 64), Layers(Attention.FULL, 1, 64)), 16)
KINDS = {
    "poisson": CHAT,
    "bursts": replace(CHAT, arrivals=ArrivalProcess(cv=3.0)),
    "sessions": replace(CHAT, classes=(sessions(),)),
    "users": replace(CHAT, classes=(sessions(40),)),
    "drafts": replace(CHAT, drafts=Drafts(2, (0.7, 0.5))),
    "layers": replace(CHAT, replica=Replica(60_000, WINDOW.block_tokens, layout=WINDOW)),
    "fleet": replace(CHAT, fleet=Fleet(replicas=2)),
    "split": replace(CHAT, fleet=Fleet(1, 1)),
    "two classes": replace(CHAT, classes=(one_class(100, 20, 10.0), one_class(10, 5, 30.0, name="b"))),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_arrivals_has_all_figures_with_their_intervals(kind: str) -> None:
    model = KINDS[kind]
    point = operating_point(model, Plan())
    found = point.latency
    assert found.status in (Status.STEADY, Status.UNSETTLED)
    assert (found.reason, found.worst_part) == (None, None)
    for time, figure in product(LATENCIES, FIGURES):
        value = getattr(getattr(found, time), figure)
        low, high = found.ci95[f"{time}.{figure}"]
        assert 0 < value < math.inf
        assert low <= value * (1 + 1e-12)
        assert high is None or value <= high * (1 + 1e-12)
    for key in ("running", "waiting", "kv_tokens_mean", "preemptions_per_request"):
        assert getattr(found, key) is not None
    assert [c.name for c in found.classes] == [c.name for c in model.classes]
    # Little: who runs is in the engine from the first iteration on, which an idle replica begins at once
    in_flight = point.served.value * found.e2e_s.mean
    assert 0.5 * in_flight <= found.running <= 1.01 * in_flight


def nothing(found: Latency) -> bool:
    times = (getattr(getattr(found, time), figure) for time, figure in product(LATENCIES, FIGURES))
    return all(value is None for value in times) and not found.ci95 and found.kv_tokens_mean is None


def test_above_what_is_sustainable_the_queue_grows_and_there_are_no_latencies() -> None:
    small = replace(CHAT, replica=Replica(2000, 16))
    most = sustainable_rate(small)[1]
    point = operating_point(replace(small, classes=(one_class(100, (5, 20), 1.3 * most),)), Plan())
    assert point.latency.status is Status.GROWING
    assert nothing(point.latency)
    assert "the queue grows" in str(point.latency.reason)
    assert 0.8 * most < point.served.value <= 1.02 * most


def test_a_request_that_does_not_fit_ends_everything() -> None:
    """Alone it needs 10 blocks more than there are."""
    point = operating_point(ServingModel((one_class(10, (5, 60), 10.0),), Timing(0.01), Replica(50)), Plan())
    assert point.latency.status is Status.GROWING
    assert point.latency.reason == "nothing can complete any more"


def test_a_day_is_simulated_whole_and_its_worst_part_is_where_the_peak_is() -> None:
    """A day of a hundred seconds, two of its 24 parts at 1.2 of what fits, the others at .5."""
    small = replace(CHAT, replica=Replica(2000, 16))
    most = sustainable_rate(small)[1]
    day = Steps(100.0, (0.0, 50.0, 58.0), ((0.5,), (1.2,), (0.5,)))
    point = operating_point(replace(small, classes=(one_class(100, (5, 20), most),), schedule=day), Plan())
    found = point.latency
    assert found.status is not Status.GROWING
    worst = found.worst_part
    assert isinstance(worst, WorstPart)
    assert worst.end_s - worst.begin_s == pytest.approx(100 / 24)
    assert 50 <= worst.begin_s <= 62
    assert worst.ttft_s.mean > 3 * found.ttft_s.mean
    assert found.ci95.keys() >= {"ttft_s.p95", "itl_s.mean"}


def test_a_trace_is_replayed_once_and_has_no_intervals() -> None:
    """All requests alone and alike, but for a crowd in one of the 24 parts."""
    steps = np.arange(0.0, 240.0, 0.5)
    crowd = np.full(300, 100.5)
    at = np.sort(np.concatenate([steps, crowd]))
    trace = Recorded(at, np.full(at.size, 100), np.full(at.size, 10))
    rate = trace.rate_rps
    assert rate is not None
    model = replace(CHAT, classes=(one_class(100, 10, rate),), arrivals=ArrivalProcess(trace=trace))
    point = operating_point(model, Plan())
    found = point.latency
    assert (found.ci95, found.unsettled, point.runs) == ({}, (), 1)
    alone = 0.01 + 1e-5 * 100 + 1e-5 + 1e-7 * 100
    assert found.ttft_s.p50 == pytest.approx(alone, rel=0.01)
    worst = found.worst_part
    assert worst.begin_s <= 100.5 < worst.end_s + 1
    assert worst.ttft_s.mean > 5 * alone


def test_a_measured_hit_curve_makes_prompts_shorter_by_what_hits_at_capacity() -> None:
    """No run knows who hits: latencies are those of the same requests with a part of d2."""
    one = RequestClass("a", 1000, (50,), (1.0,), 10.0)
    timing = Timing(0.01, d2=5e-5)
    curve = ServingModel((one,), timing, Replica(100_000), hit_curve=((50_000, 0.4), (100_000, 0.6)))
    plain = replace(curve, hit_curve=(), timing=replace(timing, d2=0.4 * timing.d2))
    assert operating_point(curve, Plan()).latency.ttft_s == operating_point(plain, Plan()).latency.ttft_s
    found, same = drain(curve, Plan()), drain(plain, Plan())
    assert (found.seconds, found.low, found.high) == (same.seconds, same.low, same.high)


@every("rate", [1e-9, 1e-6])
def test_a_replica_that_hardly_anybody_asks_has_the_latency_of_one_request(rate: float) -> None:
    """However far the clock of a run goes; only how many run, in the mean, goes with the rate."""
    alone = ServingModel(
        (RequestClass("a", 100, (50,), (1.0,), rate),), Timing(1e-3, 1e-7, 1e-5), Replica(10_000)
    )
    steps = [1e-3 + 1e-7 * (100 + k) + 1e-5 * 100 * (k == 0) for k in range(50)]
    point = operating_point(alone, Plan())
    found = point.latency
    assert found.ttft_s.p99 == pytest.approx(steps[0], rel=1e-3)
    assert found.itl_s.mean == pytest.approx(sum(steps[1:]) / 49, rel=1e-3)
    assert found.e2e_s.mean == pytest.approx(sum(steps), rel=1e-3)
    assert found.running == pytest.approx(rate * sum(steps), rel=0.05)
    assert point.served.value == pytest.approx(rate, rel=0.05)
