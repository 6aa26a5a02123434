"""Operations of a fleet: targets of its autoscaler, bounds of its router, thresholds of its alerts.

All figures are of one replica unless they say otherwise, means over time, at the goodput of a fleet behind its router.
Quantiles are over minutes, each of a replica at a time.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from kvplan.analysis.cache_states import cached_replica
from kvplan.analysis.equilibrium import sustainable_rate, time_alone
from kvplan.analysis.fleet import steady_replica
from kvplan.analysis.prefix_cache import prefix_cache
from kvplan.errors import UsageError
from kvplan.model import FloatArray, Plan, ServingModel
from kvplan.model.fleet import Fleet, Routing
from kvplan.model.slo import of_requests
from kvplan.simulation.experiments.load import Load, generate
from kvplan.simulation.experiments.runner import Job, Progress, at_once
from kvplan.simulation.fleet.scaling import SCRAPE_S, HorizontalPodAutoscaler, Metric, Pods, Watch
from kvplan.simulation.policies import engine_settings
from kvplan.simulation.policies.protocol import SHED_AFTER, Scenario
from kvplan.study.fleet_day import LOOK_S, DayRun, FleetDay, course_of, with_day
from kvplan.study.goodput import goodput
from kvplan.study.replicas import most_simulated, scaled, stand_in
from kvplan.study.warm_cache import protection
from kvplan.study.windows import warm_up_s

LOAD_S = 120.0  # from the start of a replica until it serves, where nobody says
HEADROOMS = tuple(thousandths / 1000 for thousandths in range(-300, 525, 25))
_BELOW_IDLE = (
    0.005  # the share of a day's requests within the objectives, in the worst of the days of `SEEDS`
)
SEEDS = range(100, 105)  # of the days that the headroom is chosen by
_MINUTES, _REQUESTS = (5, 240), 300_000  # of the run at the goodput: least and most; most beyond the least
_LOOKS_A_MINUTE = round(60 / LOOK_S)
_SPARE, _ROLLOUT = 1.5, 1.25  # times the running requests of a replica, and the replicas of the plan
_STABILIZATION_S = 180.0  # at least, before a replica goes
_OF_SEPARATRIX = 0.75
_ALIKE = 1.5  # times as many replicas pool little better
_FIRST = 0.2  # of the work: the goodput
_AT_ONCE = 2  # days, before one that falls short ends a search


class Replicas(NamedTuple):
    """Bounds on an autoscaler's replicas, and the number it falls back to where it sees no metrics."""

    least: int  # for the trough of the period at the target
    most: int  # those of the plan and a quarter more, for rollouts
    fallback: int  # those of the plan, which its peak needs


class Planned(NamedTuple):
    """Gauges and counters of a replica at the goodput, quantiles over minutes; None where it has none."""

    running_p99: float  # requests
    waiting_p99: float
    in_flight: float  # mean of running and waiting requests
    in_flight_p99: float
    stay_s: float  # mean time of a request from its arrival to its end
    preemptions_per_s: float
    kv_usage: float  # share of the memory, mean at the target
    kv_usage_p99: float  # largest in a minute
    queue_at_target: float  # waiting requests, mean at the target
    queue_p99: float  # largest in a minute
    hit_rate: float | None  # of the prefix cache


class Operations(NamedTuple):
    """Targets, bounds and thresholds, and their basis."""

    good_rps: float  # λ*
    peak_replicas: int  # of the fleet that λ* was found with
    headroom: float  # h
    arrivals_rps: float  # target: λ*/(1 + h)
    in_flight: float  # target: requests running and waiting at λ*, over 1 + h
    replicas: Replicas
    scale_down_s: float  # how long fewer must be wanted before one goes
    grace_s: float  # 99.9th percentile of the time of a request, end to end
    router_cap: int  # most requests in flight at a replica
    cap_why: str  # what the cap is derived from
    wait_s: float | None  # how long a request may wait; None where nothing says
    wait_why: str
    load_s: float  # from the start of a replica until it serves
    planned: Planned
    limits: Mapping[str, float]  # of a request's own times, seconds
    routing: Routing  # of the router that all this holds for
    scrape_s: float  # between two looks of Prometheus
    aim: float  # share of the requests of a day within the objectives: what an idle fleet reaches, less half a point
    first: int = 1  # replicas at the beginning of a simulated day
    # the least share of the requests of a simulated day within the objectives; None where the headroom was given
    worst_within: float | None = None

    @property
    def most_queued(self) -> int | None:
        """Requests that a router may hold: those that wait at most `wait_s`, and what replicas have in flight."""
        if self.wait_s is None:
            return None
        return round((self.wait_s * self.good_rps + self.router_cap) * self.replicas.most)

    def control(self) -> HorizontalPodAutoscaler:
        """Return the autoscaler that keeps these targets."""
        triggers = {Metric.ARRIVALS: self.arrivals_rps, Metric.IN_FLIGHT: self.in_flight}
        return HorizontalPodAutoscaler(
            triggers, self.replicas.least, self.replicas.most, self.scale_down_s, self.scrape_s
        )


def derive(
    service: FleetDay,
    *,
    headroom: float | None = None,
    load_s: float = LOAD_S,
    scrape_s: float = SCRAPE_S,
    progress: Progress | None = None,
) -> Operations | None:
    """Derive a service's operations from its day and objectives; None where no rate meets these.

    Without a `headroom` it is found by simulated days, in the worst of which enough requests are within the objectives;
    the largest of `HEADROOMS` where none is enough.

    Raises
    ------
    UsageError
        Requests take hours.
    """
    if time_alone(service.model) > 60 * _MINUTES[1]:
        raise _too_long(_MINUTES[1])
    point = _goodput_of(service)
    if point is None:
        return None
    if progress is not None:
        progress(_FIRST)
    seen = _seen(service, *point)
    operations, worst = _operations(service, point, seen, load_s, scrape_s), None
    if headroom is None:
        headroom, worst, _ = _searched(service, operations, progress)
    operations = _with_headroom(operations, service, headroom)._replace(worst_within=worst)
    if headroom > 0:
        seen = _seen(service, operations.arrivals_rps, point.replicas)
    at_target = {"kv_usage": float(seen.kv_usage.mean()), "queue_at_target": float(seen.waiting.mean())}
    return operations._replace(planned=operations.planned._replace(**at_target))


class _Days(NamedTuple):
    """Simulated days at a headroom."""

    headroom: float
    worst: float  # share of the requests of a day within the objectives
    gpu_hours: float  # of the first day


def _searched(service: FleetDay, operations: Operations, progress: Progress | None) -> _Days:
    """Find the smallest headroom that is enough; of those that were tried and are, the one that costs least.

    Far below it autoscalers wait for queues, and then overshoot. The largest, where none is enough.
    """
    scenarios = at_once(service.scenario, SEEDS)
    tried: list[_Days] = []

    def enough(headroom: float) -> bool:
        settings, runs = _with_headroom(operations, service, headroom), []
        for j in range(0, len(scenarios), _AT_ONCE):
            runs += at_once(partial(_day, service, settings), scenarios[j : j + _AT_ONCE])
            if min(run.within for run in runs) < operations.aim:
                break
        tried.append(_Days(headroom, min(run.within for run in runs), runs[0].gpu_hours))
        if progress is not None:
            progress(_FIRST + (1 - _FIRST) * len(tried) / len(HEADROOMS).bit_length())
        return tried[-1].worst >= operations.aim

    bisect_left(HEADROOMS[:-1], True, key=enough)
    if all(days.worst < operations.aim for days in tried):
        enough(HEADROOMS[-1])
        return tried[-1]
    return min((days for days in tried if days.worst >= operations.aim), key=lambda days: days.gpu_hours)


def _day(service: FleetDay, settings: Operations, scenario: Scenario) -> DayRun:
    return service.run(scenario, settings.control(), settings.first, settings.replicas.most, settings.load_s)


def service_of(
    model: ServingModel, plan: Plan, *, router: Routing | None = None, day_mean: bool = False
) -> FleetDay:
    """Return the day of the whole service on replicas of a kind, behind a router, or that of its fleet.

    Without either requests go where fewest are. Turns go to the replica of the turn before.

    Raises
    ------
    UsageError
        There is no objective on a percentile, prefill and decode are apart, users are a closed population, or the mean
        of a day is that of a schedule.
    """
    if day_mean and model.schedule is not None:
        raise UsageError("--day-mean: the profile has a schedule, whose day it is")
    if model.fleet is not None and model.fleet.is_split:
        raise UsageError("prefill and decode apart are not scaled by one target; give [fleet] replicas")
    if any(c.sessions is not None and c.sessions.users is not None for c in model.classes):
        raise UsageError("a closed population of users has no arrivals to scale by")
    limits = of_requests(slo for slo in plan.of_all if not slo.key.endswith(".mean"))
    if not limits:
        raise UsageError("an objective on a percentile is wanted, such as --slo ttft-p95=2s")
    follows = any(c.sessions is not None or c.reuse is not None for c in model.classes)
    if follows:
        router = Routing.SESSION
    elif router is None:
        router = Routing.LEAST_REQUESTS if model.fleet is None else model.fleet.routing
    planned = 1 if model.fleet is None else model.fleet.replicas
    return FleetDay(with_day(replace(model, fleet=None), mean=day_mean), plan, router, limits, planned)


class _Point(NamedTuple):
    """Goodput of a replica in its fleet, and the replicas of the peak."""

    good_rps: float
    replicas: int


def _goodput_of(service: FleetDay) -> _Point | None:
    """Find the goodput of a replica in a fleet for the peak; again, if that takes many more than thought."""
    model, settings = replace(service.model, schedule=None), engine_settings(service.model)
    peak_rps = model.total_rate_rps * course_of(service.model).peak
    replicas, simulated = math.ceil(peak_rps / sustainable_rate(model)[1]), 0
    while (now := min(replicas, most_simulated(model))) > _ALIKE * simulated:
        simulated = now
        fleet = stand_in(model, model.total_rate_rps, simulated, service.routing)
        best = goodput(fleet, service.plan, settings, service.plan.slos)
        if best is None or best.rate_rps == 0:
            return None
        rate = best.rate_rps / simulated
        replicas = math.ceil(peak_rps / rate)
    return _Point(rate, replicas)


@dataclass(frozen=True)
class _Seen:
    """Looks at a fleet in a run of some hours; arrays of shape (n_looks, n_replicas)."""

    in_flight: FloatArray
    waiting: FloatArray
    kv_usage: FloatArray
    e2e_s: FloatArray  # of the requests that were done
    preemptions_per_s: float
    hit_rate: float | None

    def minutes_p99(self, values: FloatArray, of: Callable[..., FloatArray] = np.mean) -> float:
        """Return the 99th percentile over minutes, each by its mean or largest value."""
        whole = values[: len(values) // _LOOKS_A_MINUTE * _LOOKS_A_MINUTE]
        minutes = of(whole.reshape(-1, _LOOKS_A_MINUTE, values.shape[1]), axis=1)
        return float(np.quantile(minutes, 0.99))


def _too_long(minutes: int) -> UsageError:
    return UsageError(f"requests take longer than the {minutes} min that are simulated")


def _seen(service: FleetDay, rate_rps: float, replicas: int) -> _Seen:
    """Run replicas of a fleet at a rate each."""
    steady = replace(service.model, schedule=None)
    model = stand_in(steady, rate_rps * replicas, replicas, service.routing)
    size = 1 if model.fleet is None else model.fleet.size
    warm_s = math.ceil(warm_up_s(scaled(steady, rate_rps)) / LOOK_S) * LOOK_S
    least, most = _MINUTES
    minutes = max(math.ceil(min(most, _REQUESTS / (60 * model.total_rate_rps))), least)
    end_s = warm_s + 60.0 * minutes
    watch = Watch()
    requests = generate(model, Load(requests=None, horizon_s=end_s), SEEDS[0])
    fleet = replace(model, fleet=Fleet(replicas=size, routing=service.routing))
    scenario = Scenario(fleet, service.plan, requests, tuple(c.name for c in model.classes), SEEDS[0])
    pods = Pods(watch, size, size, 0.0, LOOK_S)
    run = Job(engine_settings(fleet), scenario, horizon_s=end_s, pods=pods).run()
    after = run.arrival_s >= warm_s
    looks = [gauges for gauges in watch.seen if gauges.time_s > warm_s]
    hits = None
    if run.found is not None and model.finds_prefixes:
        hits = float(run.found.hit_tokens[after].sum() / max(requests.input_tokens[after].sum(), 1))
    done = after & ~np.isnan(run.finish_s)
    if not done.any():
        raise _too_long(minutes)
    return _Seen(
        in_flight=np.array([g.in_flight for g in looks], float),
        waiting=np.array([g.waiting for g in looks], float),
        kv_usage=np.array([g.kv_usage for g in looks]),
        e2e_s=run.e2e_s[done],
        preemptions_per_s=float(run.evictions[after].sum()) / (60 * minutes * size),
        hit_rate=hits,
    )


def _operations(service: FleetDay, point: _Point, seen: _Seen, load_s: float, scrape_s: float) -> Operations:
    """Put together targets, bounds and thresholds, without headroom."""
    running_p99 = seen.minutes_p99(seen.in_flight - seen.waiting)
    cap, cap_why = _cap(service, point.good_rps, running_p99)
    wait_s, wait_why = _wait(service, point.good_rps)
    return Operations(
        good_rps=point.good_rps,
        peak_replicas=point.replicas,
        headroom=0.0,
        arrivals_rps=point.good_rps,
        in_flight=float(seen.in_flight.mean()),
        replicas=_replicas(service, point.good_rps, max(service.planned, point.replicas)),
        scale_down_s=max(_STABILIZATION_S, load_s),
        grace_s=float(np.quantile(seen.e2e_s, 0.999)),
        router_cap=cap,
        cap_why=cap_why,
        wait_s=wait_s,
        wait_why=wait_why,
        load_s=load_s,
        planned=Planned(
            running_p99=running_p99,
            waiting_p99=seen.minutes_p99(seen.waiting),
            in_flight=float(seen.in_flight.mean()),
            in_flight_p99=seen.minutes_p99(seen.in_flight),
            stay_s=float(seen.e2e_s.mean()),
            preemptions_per_s=seen.preemptions_per_s,
            kv_usage=float(seen.kv_usage.mean()),
            kv_usage_p99=seen.minutes_p99(seen.kv_usage, np.max),
            queue_at_target=float(seen.waiting.mean()),
            queue_p99=seen.minutes_p99(seen.waiting, np.max),
            hit_rate=seen.hit_rate,
        ),
        limits=service.limits,
        routing=service.routing,
        scrape_s=scrape_s,
        aim=service.idle(SEEDS[0]) - _BELOW_IDLE,
        first=_at_target(service, float(course_of(service.model).integral(LOOK_S)) / LOOK_S, point.good_rps),
    )


def _with_headroom(operations: Operations, service: FleetDay, headroom: float) -> Operations:
    """Return targets that are lower by a headroom, and the replicas for them."""
    target_rps = operations.good_rps / (1 + headroom)
    factor = float(course_of(service.model).integral(LOOK_S)) / LOOK_S
    return operations._replace(
        first=min(_at_target(service, factor, target_rps), operations.replicas.most),
        headroom=headroom,
        arrivals_rps=target_rps,
        in_flight=operations.planned.in_flight / (1 + headroom),
        replicas=_replicas(service, target_rps, operations.replicas.fallback),
    )


def _replicas(service: FleetDay, target_rps: float, planned: int) -> Replicas:
    least = _at_target(service, course_of(service.model).least, target_rps)
    most = max(math.ceil(_ROLLOUT * planned), planned + service.plan.spare)
    return Replicas(min(least, planned), most, planned)


def _at_target(service: FleetDay, factor: float, target_rps: float) -> int:
    """Return the replicas for so many times the rate of the profile, at least one."""
    return max(math.ceil(factor * service.model.total_rate_rps / target_rps), 1)


def _cap(service: FleetDay, rate_rps: float, running_p99: float) -> tuple[int, str]:
    """Return the most in flight on a replica: far from where its prefix cache is lost, if it can be."""
    alone = scaled(steady_replica(service.model), rate_rps)
    if alone.finds_prefixes and alone.drafts is None and not alone.hit_curve:
        lost = prefix_cache(cached_replica(alone)).separatrix_in_flight
        if lost is not None:
            return max(
                int(_OF_SEPARATRIX * lost), 1
            ), f"3/4 of the {lost:.3g} beyond which the prefix cache is lost"
    return math.ceil(
        _SPARE * running_p99
    ), f"1.5 times the 99th percentile of running at the goodput, {running_p99:.3g}"


def _wait(service: FleetDay, rate_rps: float) -> tuple[float | None, str]:
    """Return the longest wait of a request: at most its limit on the first token."""
    if "ttft_s" in service.limits:
        return service.limits["ttft_s"], "the objective on TTFT"
    ends = protection(scaled(steady_replica(service.model), rate_rps), service.plan)
    for setting in () if ends is None else ends.settings:
        if setting.name == SHED_AFTER:
            return setting.value, "the longest wait at which a collapsed prefix cache was seen to come back"
    return None, "no objective on TTFT, and no prefix cache that can be lost"
