"""Targets of an autoscaler on days not used to choose them: service and cost, beside guesses and a fixed fleet."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from kvplan.simulation.experiments.runner import Progress, at_once
from kvplan.simulation.fleet.scaling import Control, HorizontalPodAutoscaler, LatencyRule, Metric, Watch
from kvplan.simulation.policies.protocol import Scenario
from kvplan.study.fleet_day import DayRun, FleetDay
from kvplan.study.operations import Operations

SEEDS = range(200, 205)  # none that a headroom was chosen by


class Way(NamedTuple):
    """A way to scale, over some days."""

    name: str
    control: str  # what it goes by
    within: float  # share of the requests of all days within the objectives
    worst: float  # of a day
    gpu_hours: float  # of a day, in the mean


class _Setting(NamedTuple):
    name: str
    by: str
    control: Callable[[], Control]
    first: int  # replicas


def _settings(operations: Operations) -> Iterator[_Setting]:
    """Yield the settings to compare: the derived first, a fixed fleet for the peak last."""
    least, most, _ = operations.replicas
    first, down_s, scrape_s = operations.first, operations.scale_down_s, operations.scrape_s
    by = f"{operations.arrivals_rps:.3g} requests/s, {operations.in_flight:.3g} in flight"
    yield _Setting("derived", by, operations.control, first)
    for usage, queue in ((0.80, 5), (0.60, 30)):
        triggers = {Metric.KV_USAGE: usage, Metric.WAITING: float(queue)}
        control = partial(HorizontalPodAutoscaler, triggers, least, most, down_s, scrape_s)
        yield _Setting(
            f"{usage:.2f}/{queue}", f"KV usage {usage:.0%} (Value), {queue} waiting", control, first
        )
    rule = partial(LatencyRule, operations.limits, least, most, scrape_s)
    if rule().limits:
        by = f"P90 of latency over its limit: more above {LatencyRule.UP:.2f}, fewer below {LatencyRule.DOWN:.2f}"
        yield _Setting("latency", by, rule, first)
    fixed = operations.replicas.fallback
    yield _Setting("fixed", f"{fixed} replicas", Watch, fixed)


def verify(service: FleetDay, operations: Operations, progress: Progress | None = None) -> tuple[Way, ...]:
    """Simulate days with derived targets, with guesses that are deployed, and with a fixed fleet for the peak.

    All have the same requests, begin with the same replicas and keep the same bounds. Raises UsageError where a day is
    not simulated.
    """
    scenarios, settings = at_once(service.scenario, SEEDS), list(_settings(operations))
    requests = [scenario.requests.arrival_s.size for scenario in scenarios]
    ways = []
    for setting in settings:
        days = at_once(partial(_day, service, operations, setting), scenarios)
        good = sum(day.within * size for day, size in zip(days, requests, strict=True))
        hours = sum(day.gpu_hours for day in days) / len(days)
        worst = min(day.within for day in days)
        ways.append(Way(setting.name, setting.by, good / sum(requests), worst, hours))
        if progress is not None:
            progress(len(ways) / len(settings))
    return tuple(ways)


def _day(service: FleetDay, operations: Operations, setting: _Setting, scenario: Scenario) -> DayRun:
    most = max(operations.replicas.most, setting.first)
    return service.run(scenario, setting.control(), setting.first, most, operations.load_s)
