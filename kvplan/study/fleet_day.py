"""A simulated day of a fleet whose replicas come and go: the share served within the objectives, and the cost."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.errors import UsageError
from kvplan.model import ArrivalProcess, Plan, ServingModel
from kvplan.model.fleet import Fleet, Routing
from kvplan.model.schedule import Course, Steps
from kvplan.simulation.experiments.load import Load, generate
from kvplan.simulation.experiments.runner import Job
from kvplan.simulation.fleet.scaling import Control, Pods
from kvplan.simulation.metrics import within
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.policies import engine_settings
from kvplan.simulation.policies.protocol import Scenario
from kvplan.study.goodput import at_rate

LOOK_S = 15.0  # between two looks of an autoscaler
_DAY_S, _STEP_S = 86_400.0, 600.0
_TROUGH = 0.4  # of the peak at noon, or of the mean
_BURSTS, _BURST = (8, 12, 15, 20), 1.5  # hours at which steps have so many times the rate
_MOST_REQUESTS = 5_000_000
_IDLE, _ALONE, _MOST_STAGES = 0.01, 20_000, 1e7  # of what is sustainable; requests, and their tokens in all
_LEAVING = 8  # replicas that may be on their way out while all others are there


def with_day(model: ServingModel, *, mean: bool = False) -> ServingModel:
    """Return the service at random on its schedule, or 24 hours with four bursts of ten minutes, half as much again.

    The rate of the profile is the peak of b(.7 - .3 cos), which no burst exceeds; where it is the `mean` of a day, that
    is b(1 - .6 cos) and bursts stand on top.
    """
    if model.arrivals.trace is not None:
        model = replace(model, arrivals=ArrivalProcess())
    if model.schedule is not None:
        return model
    starts_s = np.arange(0.0, _DAY_S, _STEP_S)
    middle = 1.0 if mean else (1 + _TROUGH) / 2
    factors = middle - (middle - _TROUGH) * np.cos(2 * math.pi * (starts_s + _STEP_S / 2) / _DAY_S)
    factors[np.searchsorted(starts_s, np.array(_BURSTS) * 3600.0)] *= _BURST
    if not mean:
        factors = np.minimum(factors, 1.0)
    rows = tuple((factor,) * len(model.classes) for factor in factors.tolist())
    return replace(model, schedule=Steps(_DAY_S, tuple(starts_s.tolist()), rows))


def course_of(model: ServingModel) -> Course:
    """Return the factor of all rates over the day."""
    assert model.schedule is not None
    return model.schedule.course([c.rate_rps for c in model.classes])


class DayRun(NamedTuple):
    """Outcome of a day."""

    within: float  # share of the requests whose own times are within the limits
    gpu_hours: float  # paid for, loading and draining included


@dataclass(frozen=True)
class FleetDay:
    """A day whose requests are the same for every way to scale."""

    model: ServingModel  # of one replica, with the rates of the whole service and its schedule
    plan: Plan
    routing: Routing
    limits: Mapping[str, float]  # of a request's own times, seconds
    planned: int = 1  # replicas of the plan

    def scenario(self, seed: int) -> Scenario:
        """Draw the requests of a day.

        Raises
        ------
        UsageError
            They are too many, or users of a closed population.
        """
        model, course = self.model, course_of(self.model)
        end_s = course.period_s
        expected = model.total_rate_rps * end_s * course.mean
        if expected > _MOST_REQUESTS:
            raise UsageError(
                f"a day of {expected:.3g} requests; {_MOST_REQUESTS:,} is the most that is simulated: give --headroom"
            )
        if any(c.sessions is not None and c.sessions.users is not None for c in model.classes):
            raise UsageError("the day of a closed population of users is not simulated; give --headroom")
        if any(c.sessions is not None for c in model.classes):
            steady = replace(model, schedule=None)
            requests = generate(steady, Load(requests=None, horizon_s=float(course.integral(end_s))), seed)
            requests = replace(requests, arrival_s=course.inverse(requests.arrival_s))
        else:
            requests = generate(model, Load(requests=None, horizon_s=end_s), seed)
        names = tuple(c.name for c in model.classes)
        return Scenario(model, self.plan, replace(requests, more_later=False), names, seed)

    def idle(self, seed: int) -> float:
        """Return the share of requests within the limits when hardly any come: no fleet keeps more."""
        model = replace(self.model, schedule=None, arrivals=ArrivalProcess())
        model = at_rate(model, _IDLE * sustainable_rate(model)[1])
        size = math.ceil(min(_ALONE, _MOST_STAGES / model.mix.mean(model.mix.stages)))
        requests = generate(model, Load(requests=size), seed)
        scenario = Scenario(model, self.plan, requests, tuple(c.name for c in model.classes), seed)
        return float(within(requests, Job(engine_settings(model), scenario).run(), self.limits).mean())

    def run(self, scenario: Scenario, control: Control, first: int, most: int, load_s: float) -> DayRun:
        """Simulate it, beginning with `first` replicas, never more than `most` beside those that leave."""
        pods = Pods(control, first, most + _LEAVING, load_s, LOOK_S)
        model = replace(self.model, fleet=Fleet(replicas=pods.sites, routing=self.routing))
        run = Job(engine_settings(model), scenario._replace(model=model), pods=pods).run()
        paid_s = self._paid_s(pods, run)
        good = within(scenario.requests, run, self.limits) & ~np.isnan(run.finish_s)
        return DayRun(float(good.mean()), model.replica.gpus * paid_s / 3600)

    def _paid_s(self, pods: Pods, run: Outcome) -> float:
        assert run.replica_end_s is not None
        return pods.paid_s(run.replica_end_s, course_of(self.model).period_s)
