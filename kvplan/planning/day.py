"""Period of a schedule: replicas hour by hour, when to add and remove one, and the period simulated."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.analysis.worst_window import PARTS, load_of, parts
from kvplan.errors import UsageError
from kvplan.model import FloatArray, Plan, ServingModel
from kvplan.model.fleet import Fleet, Routing
from kvplan.model.slo import of_requests
from kvplan.planning.search import Setting
from kvplan.report.keys import SCREENS
from kvplan.simulation.experiments.load import Load
from kvplan.simulation.experiments.runner import Job, at_once, scenarios
from kvplan.simulation.fleet.scaling import Autoscaler, Lifetime, lifetimes
from kvplan.simulation.metrics import policy_result
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.policies import engine_settings
from kvplan.simulation.policies.protocol import Scenario
from kvplan.solve import boundary
from kvplan.study.objectives import State
from kvplan.study.trial import Task

LOAD_S = 120.0  # from the start of a replica until it serves, where nobody says
WINDOW_S, LOOK_S = 120.0, 15.0  # of the rate that an autoscaler looks at, and between two looks
# of the rate above which a replica is added: all that the others may carry once one is removed
HYSTERESIS = 0.8
_PRECISE = 0.01  # of the rate that a replica serves
_LESS = 0.98  # times that rate, where long runs do not confirm it
_MOST_REQUESTS, _MOST_STARTS = 5_000_000, 10_000  # of a period that is simulated
_ROUNDING = 1e-9


class Hour(NamedTuple):
    """A 24th part of the period, its mean rate without headroom, and the replicas that it needs."""

    begin_s: float
    end_s: float
    demand_rps: float
    replicas: int


class Way(NamedTuple):
    """A simulated period with replicas that come and go in some way, or all stay.

    Attributes
    ----------
    replicas, gpu_hours
        Paid for: the mean, and of all.
    busy_gpu_hours
        Of those, in which something is computed.
    within
        Share of the requests whose own times are within the objectives; None without any.
    waiting
        The most requests at once without a first token.
    """

    replicas: float
    gpu_hours: float
    busy_gpu_hours: float
    within: float | None
    ttft_p95_s: float | None
    waiting: int


class Day(NamedTuple):
    """A period.

    Attributes
    ----------
    served_rps
        What a replica serves within the objectives.
    add_rps, remove_rps
        Of a replica: above the one an autoscaler adds one; it removes one that leaves the others below the other.
    gpus
        Of a replica.
    ways
        "autoscaled" by those rates, "scheduled" as the hours say, "fixed"; empty for a `reason`.
    """

    period_s: float
    load_s: float
    served_rps: float
    add_rps: float
    remove_rps: float
    gpus: int
    hours: tuple[Hour, ...]
    ways: Mapping[str, Way]
    reason: str = ""

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of the period, if replicas came and went by the hour."""
        return self.gpus * math.fsum(h.replicas * (h.end_s - h.begin_s) for h in self.hours) / 3600

    @property
    def fixed_gpu_hours(self) -> float:
        """GPU-hours of the period, with the replicas of its heaviest hour all the time."""
        return self.gpus * max(h.replicas for h in self.hours) * self.period_s / 3600


def schedule_of(arrival_s: FloatArray) -> dict[str, Any]:
    """Return the [workload] table of a trace: how its rate varies over 24 parts from the first arrival to the last."""
    period = float(arrival_s[-1] - arrival_s[0])
    if period <= 0:
        raise UsageError("--schedule: all requests of the trace arrive at one time")
    counts, edges = np.histogram(arrival_s - arrival_s[0], PARTS, (0.0, period))
    factors = np.round(counts * PARTS / counts.sum(), 6).tolist()
    steps = [
        {"at": f"{at:.6g} s", "factor": factor} for at, factor in zip(edges.tolist(), factors, strict=False)
    ]
    return {"period": f"{period:.6g} s", "schedule": steps}


def served_rps(task: Task, setting: Setting, *, long: bool = True) -> float:
    """Return the rate, requests/s, that a replica serves within the objectives.

    Short runs look no higher than the replicas of the setting, which keep them; `long` ones confirm.
    """

    def keeping(rate: float) -> Task:
        return replace(task, headroom=rate / task.model.total_rate_rps - 1)

    low = task.rate_rps
    high = max(setting.replicas * task.sustainable_rps(setting.batched_tokens), low)
    low, _ = boundary(
        lambda rate: not keeping(rate).quick(*setting).passes, low, high, close=_PRECISE, geometric=True
    )
    while long and low > task.rate_rps and keeping(low).judge(*setting).state is not State.HOLDS:
        low = max(_LESS * low, task.rate_rps)
    return low / setting.replicas


def day(model: ServingModel, plan: Plan, task: Task, setting: Setting, load_s: float) -> Day:
    """Plan the period of a schedule with replicas that come and go.

    `model` is a replica with its schedule and the rates of the whole service; `task` and `setting` are the heaviest
    part of the period, and what keeps the objectives in it.
    """
    schedule = model.schedule
    assert schedule is not None
    served = served_rps(task, setting)
    full = served / sustainable_rate(replace(task.model, fleet=None))[1]
    every, width = parts(model), schedule.period_s / PARTS
    hours = tuple(
        Hour(i * width, (i + 1) * width, *_needs(part, full / (1 + task.headroom), setting.replicas))
        for i, part in enumerate(every)
    )
    add = served / (1 + task.headroom)
    scaler = Autoscaler(add, HYSTERESIS * add, setting.replicas, WINDOW_S, LOOK_S)
    ways: Mapping[str, Way] = {}
    reason = _why_not(model, load_s)
    if not reason:
        replica = model.replica.with_budget(setting.batched_tokens)
        fleet = Fleet(replicas=setting.replicas, routing=task.router or Routing.RANDOM)
        ways, reason = _simulated(replace(model, replica=replica, fleet=fleet), plan, hours, scaler, load_s)
    return Day(
        schedule.period_s, load_s, served, add, HYSTERESIS * add, model.replica.gpus, hours, ways, reason
    )


def _needs(part: ServingModel | None, full: float, most: int) -> tuple[float, int]:
    """Return demand and replicas of a part; each may carry `full` of the sustainable rate of its mix."""
    if part is None:
        return 0.0, 0
    return part.total_rate_rps, min(math.ceil(load_of(part) / full * (1 - _ROUNDING)), most)


def _why_not(model: ServingModel, load_s: float) -> str:
    """Say why a period is not simulated; empty if it is."""
    assert model.schedule is not None
    period = model.schedule.period_s
    mean = model.schedule.course([c.rate_rps for c in model.classes]).mean
    requests = period * model.total_rate_rps * mean
    if any(c.reuse is not None or c.sessions is not None for c in model.classes):
        return "not simulated where requests follow from answers"
    if requests > _MOST_REQUESTS:
        return f"not simulated: {requests:.3g} requests; {_MOST_REQUESTS:,} is the most"
    if period <= WINDOW_S + load_s:
        return "not simulated: the period is shorter than the start of a replica"
    return ""


def _simulated(
    model: ServingModel, plan: Plan, hours: Sequence[Hour], scaler: Autoscaler, load_s: float
) -> tuple[dict[str, Way], str]:
    """Simulate the same requests with each way to keep replicas."""
    end_s = hours[-1].end_s
    load = Load(requests=None).on(model)._replace(horizon_s=end_s)
    [scenario] = scenarios(model, plan, load, [0])
    requests = replace(scenario.requests, more_later=False)
    if not requests.arrival_s.size:
        return {}, "not simulated: nobody arrives"
    planned = [(hour.begin_s, max(hour.replicas, 1)) for hour in hours]
    wanted = list(scaler.steps(requests.arrival_s, planned[0][1], end_s))
    lives = {
        "autoscaled": lifetimes(wanted, load_s, planned=False),
        "scheduled": lifetimes(planned, load_s, planned=True),
        "fixed": [Lifetime(0.0, 0.0)] * scaler.most,
    }
    if (starts := max(map(len, lives.values()))) > _MOST_STARTS:
        return {}, f"not simulated: {starts:,} starts of replicas; {_MOST_STARTS:,} is the most"
    periods = [_Period(scenario._replace(requests=requests), some, end_s) for some in lives.values()]
    return dict(zip(lives, at_once(_Period.way, periods), strict=True)), ""


@dataclass(frozen=True)
class _Period:
    """A run of the period."""

    scenario: Scenario
    lives: Sequence[Lifetime]
    end_s: float

    def way(self) -> Way:
        model, requests = self.scenario.model, self.scenario.requests
        settings = engine_settings(model)
        open_s = tuple((life.opens_s, life.closes_s) for life in self.lives if life.opens)
        changes = any(times != (0.0, math.inf) for times in open_s)
        run = Job(settings, self.scenario, open_s=open_s if changes else ()).run(compile=None)
        limits = of_requests(self.scenario.plan.of_all, drafts=model.drafts is not None)
        result = policy_result(
            settings.policy, {}, [(requests, run)], (), horizon_s=self.end_s, saturated=False, by_chance=False,
            limits=limits,
        )  # fmt: skip
        paid_s = self.paid_s(run)
        goodput, wait_s = (result.figures[key] for key in SCREENS["day"].split())
        return Way(
            paid_s / self.end_s,
            model.replica.gpus * paid_s / 3600,
            model.replica.gpus * run.busy_s / 3600,
            None if goodput is None else goodput * self.end_s / requests.arrival_s.size,
            wait_s,
            most_waiting(run),
        )

    def paid_s(self, run: Outcome) -> float:
        """Sum seconds of all replicas; one that is removed counts until it is empty."""
        assert run.replica_end_s is not None
        done_s = iter(run.replica_end_s.tolist())
        return math.fsum(life.paid_s(next(done_s) if life.opens else 0.0, self.end_s) for life in self.lives)


def most_waiting(run: Outcome) -> int:
    """Return the most requests at once without a first token; only an arrival can be the maximum."""
    come = np.arange(1, run.arrival_s.size + 1)
    return int((come - np.searchsorted(np.sort(run.first_token_s), run.arrival_s, side="right")).max())
