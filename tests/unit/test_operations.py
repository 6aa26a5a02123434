"""What a service is operated by: Little's law, the arithmetic of targets and replicas, and days known beforehand."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from shipped import profile

from kvplan.errors import UsageError
from kvplan.model import ArrivalProcess, Plan, Prompt, Replica, RequestClass, ServingModel, Timing
from kvplan.model.fleet import Fleet, Routing
from kvplan.model.gaps import Exponential
from kvplan.model.lengths import Lengths
from kvplan.model.schedule import Steps
from kvplan.model.sessions import Sessions
from kvplan.model.slo import parse_slo
from kvplan.simulation.fleet.scaling import Watch
from kvplan.study.fleet_day import FleetDay, course_of, with_day
from kvplan.study.operations import Operations, derive, service_of
from kvplan.study.verification import verify

CHAT = RequestClass("chat", 90, (10, 30), (0.5, 0.5), 2.0)
DAY = Steps(7200.0, (0.0, 1800.0, 3600.0, 5400.0), ((0.5,), (1.0,), (2.0,), (1.0,)))
MODEL = ServingModel((CHAT,), Timing(0.2, 0.0, 1e-3), Replica(3000, block_tokens=16, gpus=2), DAY)
PLAN = Plan(slos=(parse_slo("ttft-p95=2s"),))
PLANNED = 3  # replicas
FLEET = replace(MODEL, fleet=Fleet(replicas=PLANNED))


@cache
def operations() -> Operations:
    derived = derive(service_of(FLEET, PLAN), headroom=0.25, load_s=400.0)
    assert derived is not None
    return derived


def test_in_flight_is_what_arrives_times_how_long_it_stays() -> None:
    """Little's law, of means over time and over requests of one run."""
    found = operations()
    assert found.planned.in_flight == pytest.approx(found.good_rps * found.planned.stay_s, rel=0.03)


@pytest.mark.usefixtures("days")
def test_the_goodput_is_a_rate_that_hours_keep() -> None:
    """Runs that look for it hold at a rate at which a queue grows late, and then stays."""
    day = service_of(profile("tool-calls-h100").model, Plan(slos=(parse_slo("ttft-p95=3s"),)))
    found = derive(day, headroom=0.0)
    assert found is not None
    planned = found.planned
    assert planned.waiting_p99 / found.good_rps < 3.0
    assert planned.in_flight_p99 < 2 * planned.in_flight
    assert found.peak_replicas == found.replicas.fallback


def test_requests_of_hours_are_refused() -> None:
    slow = replace(MODEL, timing=Timing(10_000.0), schedule=None)
    with pytest.raises(UsageError, match="requests take longer than the 240 min"):
        derive(service_of(slow, Plan(slos=(parse_slo("ttft-p95=100h"),))), headroom=0.0)


def test_targets_are_those_at_the_goodput_without_the_headroom() -> None:
    found = operations()
    assert found.arrivals_rps * 1.25 == pytest.approx(found.good_rps)
    assert found.in_flight * 1.25 == pytest.approx(found.planned.in_flight)
    peak, trough = 4.0 / found.arrivals_rps, 1.0 / found.arrivals_rps
    assert found.peak_replicas == math.ceil(peak / 1.25) <= PLANNED  # without the headroom
    assert found.replicas == (math.ceil(trough), math.ceil(1.25 * PLANNED), PLANNED)
    assert (found.scale_down_s, found.load_s) == (400.0, 400.0)


def test_a_router_holds_no_more_than_waits_and_runs() -> None:
    found = operations()
    assert found.router_cap == math.ceil(1.5 * found.planned.running_p99)
    assert found.wait_s == 2.0
    queued = (2.0 * found.good_rps + found.router_cap) * found.replicas.most
    assert found.most_queued == round(queued)


def test_what_is_planned_is_in_order() -> None:
    planned = operations().planned
    assert planned.in_flight < planned.in_flight_p99
    assert planned.waiting_p99 <= planned.queue_p99
    assert planned.kv_usage < planned.kv_usage_p99 <= 1
    assert planned.stay_s < operations().grace_s
    assert planned.hit_rate is None


def test_memory_holds_what_is_planned() -> None:
    """Of 3000 tokens, requests that run hold between their prompts and all their tokens."""
    planned, found = operations().planned, operations()
    running = found.arrivals_rps * planned.stay_s
    assert 0.7 * running * 90 < planned.kv_usage * 3000 < running * 120


def test_what_no_rate_meets_has_nothing_to_be_operated_by() -> None:
    """An iteration takes 200 ms."""
    assert derive(service_of(MODEL, Plan(slos=(parse_slo("ttft-p95=150ms"),))), headroom=0.0) is None


def test_what_cannot_be_scaled_so_is_refused() -> None:
    sessions = Sessions(*[Lengths.of({20: 1.0})] * 4, Exponential(5.0), users=10)
    users = replace(CHAT, sessions=sessions, prompts=(Prompt(20, 1.0),))
    cases = {
        "objective on a percentile": (MODEL, Plan(slos=(parse_slo("ttft-mean=2s"),))),
        "prefill and decode": (replace(MODEL, fleet=Fleet(1, 1)), PLAN),
        "has a schedule": (MODEL, PLAN),
        "population": (replace(MODEL, classes=(users,), schedule=None), PLAN),
    }
    for words, (model, plan) in cases.items():
        with pytest.raises(UsageError, match=words):
            service_of(model, plan, day_mean=words == "has a schedule")


def test_a_day_reaches_the_rate_of_the_profile_at_its_top() -> None:
    """At noon, .7 + .3. A burst on the .85 of eight may not pass it, one on the .55 of twelve hours later cannot."""
    course = course_of(with_day(replace(MODEL, schedule=None)))
    assert (course.peak, course.least) == (1.0, pytest.approx(0.4, abs=1e-3))
    at = [float(course.integral(s + 60) - course.integral(s)) / 60 for s in (8 * 3600, 9 * 3600, 20 * 3600)]
    assert at == pytest.approx([1.0, 0.7 + 0.3 * math.sin(math.pi / 4), 1.5 * 0.55], rel=0.02)


def test_a_day_swings_about_a_mean() -> None:
    """Four bursts of ten minutes half as high again, one of them at the peak; a trace comes at random."""
    plain = replace(MODEL, schedule=None, arrivals=ArrivalProcess(cv=2.0))
    course = course_of(with_day(plain, mean=True))
    assert (course.period_s, course.peak) == (86_400.0, pytest.approx(1.6 * 1.5, rel=1e-3))
    assert course.least == pytest.approx(0.4, rel=1e-3)
    steps = np.diff(course.integral(np.arange(0.0, 86_401.0, 600.0))) / 600
    middle = np.arange(300.0, 86_400.0, 600.0) / 3600
    high = np.flatnonzero(steps > 1.25 * (1 - 0.6 * np.cos(2 * np.pi * middle / 24)))
    assert (high * 10 / 60).tolist() == [8, 12, 15, 20]
    assert with_day(MODEL) is MODEL


def test_a_fixed_fleet_is_paid_for_all_the_time_and_nobody_waits_in_it() -> None:
    """At 0.3 % of its rate each request meets nobody: its TTFT is an iteration and its prompt's 90 ms."""
    quiet = replace(MODEL, classes=(replace(CHAT, rate_rps=0.006),))
    for limit, within in ((0.2901, 1.0), (0.2899, 0.0)):
        day = FleetDay(quiet, PLAN, Routing.LEAST_REQUESTS, {"ttft_s": limit})
        run = day.run(day.scenario(1), Watch(), 3, 3, 60.0)
        assert run.within == pytest.approx(within, abs=0.1)
        assert run.gpu_hours == pytest.approx(3 * 2 * 2)


def test_turns_come_on_the_schedule_of_their_sessions() -> None:
    """First turns are spread as the schedule says, further ones follow."""
    sessions = Sessions(
        Lengths.of({20: 1.0}),
        Lengths.of({5: 1.0}),
        Lengths.of({10: 1.0}),
        Lengths.of({3: 1.0}),
        Exponential(5.0),
    )
    turns = replace(
        CHAT, rate_rps=6.0, sessions=sessions, prompts=tuple(Prompt(20 + 15 * i, 1.0) for i in range(3))
    )
    model = replace(MODEL, classes=(turns,), replica=Replica(3000, block_tokens=16))
    day = service_of(model, PLAN)
    assert day.routing is Routing.SESSION
    arrival_s = day.scenario(3).requests.arrival_s
    first = arrival_s[~np.isnan(arrival_s)]
    counts = np.histogram(first, [0, 1800, 3600, 5400, 7200])[0]
    assert counts / (2.0 * 1800) == pytest.approx([0.5, 1.0, 2.0, 1.0], rel=0.15)


def test_ways_to_scale_stand_beside_each_other_at_the_same_bounds() -> None:
    found = verify(service_of(MODEL, PLAN), operations()._replace(load_s=30.0, scale_down_s=60.0))
    ways = {way.name: way for way in found}
    assert list(ways) == ["derived", "0.80/5", "0.60/30", "latency", "fixed"]
    assert ways["fixed"].gpu_hours == pytest.approx(operations().replicas.fallback * 2 * 2)
    for way in found:
        assert way.worst <= way.within <= 1
        assert operations().replicas.least * 4 <= way.gpu_hours
    assert ways["derived"].within > 0.95
