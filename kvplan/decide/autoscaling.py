"""A period of a schedule, simulated with replicas that come and go, against as many as its heaviest part needs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvplan.decide.fixed_runs import Estimate, figures_of
from kvplan.decide.fleet import Fleet as Needed
from kvplan.errors import UsageError
from kvplan.model import Plan, ServingModel
from kvplan.model.fleet import Fleet, Routing
from kvplan.model.slo import of_requests
from kvplan.units import format_seconds

if TYPE_CHECKING:
    from kvplan.simulation.experiments.runner import Announce, Job, Progress
    from kvplan.simulation.fleet.scaling import Lifetime
    from kvplan.simulation.outcome import Outcome
    from kvplan.simulation.policies.protocol import Policy, Scenario

LOAD_S = 120.0  # assumed
WINDOW_S = 120.0  # of the rate that the autoscaler looks at: assumed
LOOK_S = 15.0  # between two looks: assumed
MOST_REQUESTS = 5 * 10**6  # of a period: as many take 1 GB
_IN_ALL = 10**7  # of all seeds, where these are more than the least
_MOST_STARTS = 10_000  # of replicas, each of which has a state of its own
_LONGEST_S = 1e8
_LEAST_SEEDS = 2

AUTOSCALED, AT_ONCE, SCHEDULED, FIXED = "autoscaled", "loaded_at_once", "scheduled", "fixed"

Figures = Mapping[str, Estimate]


class Day(NamedTuple):
    """What a period came to, with each way to keep replicas.

    Attributes
    ----------
    period_s
        Of the schedule; of a trace up to its last arrival.
    load_s
        From the start of a replica until it takes requests.
    replicas
        Of the fixed fleet: the most of any.
    gpus, price
        Of a replica; of an hour of one.
    requests
        Of a period, in the mean over the seeds.
    ways
        By their names, figures: those of `kvplan.model.slo.KEYS`; `goodput_rps` and `within`, the share of the requests
        that met every objective (neither without objectives on requests); `waiting`, the most requests at once without
        a first token; `replicas`, paid for in the mean; `gpu_hours`; `added` and `removed` replicas.
        AUTOSCALED acts on the arrival rate; AT_ONCE would if loading took no time; SCHEDULED has the replicas of each
        part of the schedule, started as long before it as they load (not of a trace); FIXED as many as the heaviest
        part needs, all the time.
    lost_to_loading
        Share of the requests that AT_ONCE serves within the objectives and AUTOSCALED does not, in balance.
    """

    period_s: float
    load_s: float
    replicas: int
    gpus: int
    price: float | None
    requests: float
    seeds: int
    routing: Routing
    ways: Mapping[str, Figures]
    lost_to_loading: Estimate | None

    def cost(self, figures: Figures) -> float | None:
        """Of a period."""
        return None if self.price is None else self.price / self.gpus * figures["gpu_hours"].mean


def period(model: ServingModel, load_s: float) -> tuple[float, float]:
    """What would be simulated: how long, seconds, and how many requests are expected.

    Raises
    ------
    UsageError
        Rates do not vary; they follow from answers; the period is too long or too short; too many requests.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> from kvplan.model.schedule import Sinusoid
    >>> one = RequestClass("a", 5, (1,), (1.0,), 2.0)
    >>> period(ServingModel((one,), Timing(1.0), Replica(60), Sinusoid(86_400.0, 0.5, 0.0)), 60.0)
    (86400.0, 172800.0)
    """
    from kvplan.simulation.experiments.load import Load

    if any(c.reuse is not None or c.sessions is not None for c in model.classes):
        raise UsageError("--schedule: not simulated where requests follow from answers")
    trace = Load().on(model).trace
    if trace is not None:
        period_s, expected = float(trace.arrival_s[-1]), float(trace.arrival_s.size)
    elif model.schedule is not None:
        period_s = model.schedule.period_s
        mean = model.schedule.course([c.rate_rps for c in model.classes]).mean
        expected = period_s * model.total_rate_rps * mean
    else:
        raise UsageError("--schedule: the profile has neither a [[workload.schedule]] nor a trace")
    shown = format_seconds(period_s)
    if expected > MOST_REQUESTS:
        raise UsageError(
            f"--schedule: some {expected:,.0f} requests in {shown}; {MOST_REQUESTS:,} is the most"
        )
    if not WINDOW_S + load_s < period_s < _LONGEST_S:
        least = (
            f"{format_seconds(WINDOW_S)} in which rates are measured and {format_seconds(load_s)} of loading"
        )
        raise UsageError(f"--schedule: a period of {shown}; longer than {least}, and less than 3 years")
    return period_s, expected


def day(
    model: ServingModel,
    plan: Plan,
    needed: Needed,
    policy: str,
    *,
    seeds: Sequence[int],
    load_s: float = LOAD_S,
    routing: Routing = Routing.RANDOM,
    price: float | None = None,
    progress: "Progress | None" = None,
    announce: "Announce | None" = None,
) -> Day | None:
    """Simulate a period of the schedule, or the trace, of a model whose rates are those of all replicas.

    Thresholds are those of the heaviest part. All ways serve the same requests. None: no number of replicas is enough.

    Raises
    ------
    UsageError
        As `period` does; nobody arrives; too many starts of replicas.
    """
    from kvplan.simulation.experiments.load import Load
    from kvplan.simulation.experiments.runner import run_to_the_end, scenarios
    from kvplan.simulation.fleet.scaling import Autoscaler, Lifetime, reactive, scheduled

    period_s, expected = period(model, load_s)
    most, thresholds = needed.heaviest.replicas, needed.heaviest.thresholds
    if most is None or thresholds is None:
        return None
    load = Load(requests=None).on(model)
    if load.trace is None:
        load = load._replace(horizon_s=period_s)
        seeds = seeds[: max(_LEAST_SEEDS, int(_IN_ALL / max(expected, 1.0)))]
    else:
        seeds = seeds[:1]
    steps = [(hour.start_s, max(hour.replicas or 0, 1)) for hour in needed.hours]
    scaler = Autoscaler(thresholds.rate_rps, thresholds.down_rate_rps, most, WINDOW_S, LOOK_S)
    fleet = replace(model, fleet=Fleet(replicas=most, routing=routing))
    limits = of_requests(plan.slos, drafts=model.drafts is not None)
    rows: list[list[_Period]] = []
    drawn = scenarios(fleet, plan, load, seeds)
    if not all(scenario.requests.arrival_s.size for scenario in drawn):
        raise UsageError(f"--schedule: nobody arrives in {format_seconds(period_s)}")
    for scenario in drawn:
        alone = scenario._replace(requests=replace(scenario.requests, more_later=False))
        wanted = list(scaler.steps(alone.requests.arrival_s, steps[0][1] if steps else most, period_s))
        ways = {AUTOSCALED: reactive(wanted, load_s), AT_ONCE: reactive(wanted, 0.0)}
        if steps:
            ways[SCHEDULED] = scheduled(steps, load_s)
        ways[FIXED] = [Lifetime(0.0, 0.0)] * most
        if (starts := max(map(len, ways.values()))) > _MOST_STARTS:
            raise UsageError(f"--schedule: {starts:,} starts of replicas; {_MOST_STARTS:,} is the most")
        rows.append([_Period.of(alone, policy, lives, limits, period_s) for lives in ways.values()])
    runs = dict(zip(ways, zip(*run_to_the_end(rows, progress, announce), strict=True), strict=True))
    pairs = zip(runs[AUTOSCALED], runs[AT_ONCE], strict=True)
    return Day(
        period_s,
        load_s,
        most,
        model.replica.gpus,
        price,
        float(np.mean([scenario.requests.arrival_s.size for scenario in drawn])),
        len(seeds),
        routing,
        {name: _over_seeds(mine) for name, mine in runs.items()},
        _estimate([ideal["within"] - real["within"] for real, ideal in pairs]) if limits else None,
    )


class _Period(NamedTuple):
    """A run, of which only figures are kept."""

    job: "Job"
    lives: "Sequence[Lifetime]"
    limits: Mapping[str, float]
    end_s: float

    @classmethod
    def of(
        cls,
        scenario: "Scenario",
        policy: str,
        lives: "Sequence[Lifetime]",
        limits: Mapping[str, float],
        end_s: float,
    ) -> "_Period":
        from kvplan.simulation.experiments.options import chosen
        from kvplan.simulation.experiments.runner import Job

        open_s = tuple((life.opens_s, life.closes_s) for life in lives if life.opens)
        changes = any(times != (0.0, math.inf) for times in open_s)
        [settings] = chosen([policy], []).values()
        return cls(Job(settings, scenario, open_s=open_s if changes else ()), lives, limits, end_s)

    @property
    def scenario(self) -> "Scenario":
        return self.job.scenario

    @property
    def policy(self) -> "Policy":
        return self.job.policy

    def run(
        self,
        watch: Callable[[int], bool],
        announce: Callable[[bool], None] | None,
        compile: bool | None = None,
    ) -> dict[str, float]:
        return self.figures(self.job.run(watch, announce, compile))

    def figures(self, run: "Outcome") -> dict[str, float]:
        """As `Day` has them."""
        from kvplan.simulation.metrics import policy_result

        requests, end_s = self.scenario.requests, self.end_s
        result = policy_result(
            self.policy.name,
            {},
            [(requests, run)],
            (),
            horizon_s=end_s,
            saturated=False,
            by_chance=False,
            limits=self.limits,
        )
        found = {key: figure.mean for key, figure in figures_of(result).items()}
        if result.goodput_rps is not None:
            found["goodput_rps"] = result.goodput_rps
            found["within"] = result.goodput_rps * end_s / requests.arrival_s.size
        paid_s = self.paid_s(run)
        return {
            **found,
            "waiting": float(most_waiting(run)),
            "replicas": paid_s / end_s,
            "gpu_hours": self.scenario.model.replica.gpus * paid_s / 3600,
            "added": sum(life.opens_s > 0 for life in self.lives),
            "removed": sum(life.closes_s < math.inf for life in self.lives),
        }

    def paid_s(self, run: "Outcome") -> float:
        """Of all replicas, seconds; those that stay to the end of the period, others until nobody is left."""
        assert run.replica_end_s is not None
        done_s = iter(run.replica_end_s.tolist())
        return math.fsum(life.paid_s(next(done_s) if life.opens else 0.0, self.end_s) for life in self.lives)


def most_waiting(run: "Outcome") -> int:
    """The most requests at once that have come and have no first token yet.

    That is when somebody comes.
    """
    come = np.arange(1, run.arrival_s.size + 1)
    return int((come - np.searchsorted(np.sort(run.first_token_s), run.arrival_s, side="right")).max())


def _over_seeds(runs: Sequence[Mapping[str, float]]) -> Figures:
    """Figures that every run has; no share is more than all."""
    found = {key: _estimate([run[key] for run in runs]) for key in runs[0] if all(key in run for run in runs)}
    if (share := found.get("within")) is not None:
        found["within"] = share._replace(high=min(share.high, 1.0))
    return found


def _estimate(values: Sequence[float]) -> Estimate:
    from kvplan.simulation.intervals import over_runs

    mean = math.fsum(values) / len(values)
    low, high = over_runs(values) or (mean, mean)
    return Estimate(mean, low, high)
