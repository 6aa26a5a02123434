"""A study: policies side by side on the same arrivals, some seeds each, and their sums."""

from collections.abc import Callable, Container, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

import numpy as np

from kvplan.errors import UsageError
from kvplan.model import MeasuredRange, Plan, ServingModel
from kvplan.model.fleet import Fleet
from kvplan.model.slo import Slo, of_requests, promises
from kvplan.simulation.experiments.load import Load
from kvplan.simulation.experiments.runner import Announce, Job, Progress, at_once, run_rows, scenarios
from kvplan.simulation.metrics import Figures, PolicyResult, policy_result
from kvplan.simulation.outcome import Ending, Outcome
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.parameters import LIMITS
from kvplan.simulation.policies.protocol import Policy, Settings
from kvplan.simulation.requests import Requests
from kvplan.units import format_seconds

_Given = TypeVar("_Given")


class Study(NamedTuple):
    """Runs of a study, and their figures."""

    load: Load
    requests: int  # in a run of the first seed
    seeds: tuple[int, ...]  # those that the figures are of: all of them unless interrupted
    results: tuple[PolicyResult, ...]
    runs: tuple[tuple[tuple[Requests, Outcome], ...], ...]  # one of each seed, for each policy
    missing: tuple[str, ...]  # policies that had not begun when the study was interrupted
    interrupted: bool
    scheduled: bool | None = None  # whether arrivals follow the profile's schedule; None where it has none
    limits: Mapping[str, int] = {}  # of `[gpu]`, by name
    measured: MeasuredRange = MeasuredRange()  # in what range the timing was
    finds_prefixes: bool = False  # whether requests have prefixes in common, and the replica caches them
    by_priority: bool = False  # whether the profile's engine goes by the priorities of classes
    objectives: Mapping[str, float] = {}  # of a request's own times, seconds: who keeps them is goodput
    promised: tuple[Slo, ...] = ()  # to classes, where that differs
    rates_rps: tuple[float, ...] = ()  # of classes
    fleet: Fleet | None = None  # that the requests are shared among
    by_chance: bool = True  # whether other requests could have come; if not, no figure has an interval
    settings: Mapping[
        str, Settings
    ] = {}  # by the name of the result: the policy's, or that of a variant of a grid
    by_seed: tuple[Sequence[Figures], ...] = ()  # figures of each run, for each policy

    @property
    def first(self) -> tuple[Outcome, ...]:
        """Run of the first seed of each policy."""
        return tuple(mine[0][1] for mine in self.runs)

    @property
    def is_grid(self) -> bool:
        """Tell whether parameters of a policy are varied."""
        return any(each.varied for each in self.settings.values())

    @property
    def policies(self) -> tuple[Policy, ...]:
        """Policy of each result."""
        return tuple(POLICIES[self.settings[result.policy].policy] for result in self.results)

    def only(self, names: Container[str]) -> "Study":
        """Return the study of some of its results alone."""
        kept = [index for index, result in enumerate(self.results) if result.policy in names]
        return self._replace(
            results=tuple(self.results[index] for index in kept),
            runs=tuple(self.runs[index] for index in kept),
            by_seed=tuple(self.by_seed[index] for index in kept),
        )

    @property
    def cut_short(self) -> tuple[str, ...]:
        """Policies whose figures are of a run that was not ended."""
        pairs = zip(self.results, self.first, strict=True)
        return tuple(result.policy for result, run in pairs if run.ending is Ending.INTERRUPTED)


def study(
    model: ServingModel,
    plan: Plan,
    load: Load,
    policies: Mapping[str, Settings],
    seeds: Sequence[int],
    *,
    progress: Progress | None = None,
    announce: Announce | None = None,
    compile: bool | None = None,
    threads: int | None = None,
    details: bool = True,
) -> Study:
    """Run every policy on every seed, on all cores, and sum up; after Ctrl-C, the runs done until then.

    A load without chance in it is run once, with the first of the seeds. `compile` is as for
    `kvplan.simulation.engine.run`, `threads` how many runs go on at once; without
    `details` there are no intervals and no figures of classes.
    """
    load = load.on(model)
    seeds = tuple(seeds if load.is_drawn(model) else seeds[:1])
    by_chance = load.trace is not None or load.is_drawn(model)  # what is recorded was chance once
    drafts = model.drafts is not None
    objectives = of_requests(plan.of_all, drafts=drafts)
    drawn = scenarios(model, plan, load, seeds, threads=threads)
    if drawn[0].requests.arrival_s.size == 0:
        end = "" if load.horizon_s is None else f", {format_seconds(load.horizon_s)}"
        raise UsageError(f"no request arrives before the horizon{end}; a longer one is wanted")
    of_classes = [
        of_requests([slo for slo in plan.slos if slo.which == i], drafts=drafts)
        for i in range(len(drawn[0].names))
    ]
    jobs = {
        name: [Job(settings, scenario, load.horizon_s) for scenario in drawn]
        for name, settings in policies.items()
    }
    parameters = {name: row[0].parameters() for name, row in jobs.items()}  # refuses before anything is run
    rows, interrupted = run_rows(list(jobs.values()), progress, announce, compile=compile, threads=threads)
    kept = _comparable(rows) if interrupted else list(range(len(seeds)))
    shown = {
        name: tuple((drawn[i].requests, run) for i in kept if (run := mine[i]) is not None)
        for name, mine in zip(jobs, rows, strict=True)
    }
    shown = {name: mine for name, mine in shown.items() if mine}
    if not shown:
        raise KeyboardInterrupt
    by_seed: list[list[Figures]] = []

    def each(work: Callable[[_Given], Figures], of: Sequence[_Given]) -> list[Figures]:
        by_seed.append(at_once(work, of, threads))
        return by_seed[-1]

    results = tuple(
        policy_result(
            name,
            parameters[name],
            mine,
            drawn[0].names if details else (),
            horizon_s=load.horizon_s,
            saturated=load.is_saturated,
            by_chance=by_chance and details,
            limits=objectives,
            of_classes=of_classes,
            each=each,
        )
        for name, mine in shown.items()
    )
    return Study(
        load=load,
        requests=_arrived(shown[next(iter(shown))][0]),
        seeds=tuple(seeds[i] for i in kept),
        results=results,
        runs=tuple(shown.values()),
        missing=tuple(name for name in policies if name not in shown),
        interrupted=interrupted,
        scheduled=None if model.schedule is None else load.follows_rates,
        limits={name: limit for name in LIMITS if (limit := getattr(model.replica, name)) is not None},
        measured=model.measured,
        finds_prefixes=model.finds_prefixes,
        by_priority=model.by_priority,
        objectives=objectives,
        promised=promises({c.name: c.priority for c in model.classes}, plan.slos)
        if details and load.trace is None
        else (),
        rates_rps=tuple(c.rate_rps for c in model.classes),
        fleet=model.fleet,
        by_chance=by_chance,
        settings=policies,
        by_seed=tuple(by_seed),
    )


def _arrived(of: tuple[Requests, Outcome]) -> int:
    """Count requests that came; of turns as many as a run brought, up to its end."""
    requests, run = of
    if requests.turns is None:
        return requests.arrival_s.size
    return int(np.count_nonzero(run.arrival_s <= run.end_s))


def _comparable(rows: Sequence[Sequence[Outcome | None]]) -> list[int]:
    """List the seeds that every policy has run to the end, else the first as far as it went."""
    whole = [
        index
        for index, of_seed in enumerate(zip(*rows, strict=True))
        if all(run is not None and run.ending is not Ending.INTERRUPTED for run in of_seed)
    ]
    return whole or [0]


def record(result: PolicyResult) -> dict[str, Any]:
    """Return a result as the contract has it, dots of names nested."""
    classes = [{"name": each.name, **_nested(each.figures)} for each in result.classes]
    about = {"policy": result.policy, "parameters": result.parameters, "status": result.status}
    return {**about, **_nested(result.figures), "ci95": result.ci95, "classes": classes}


def _nested(figures: Figures) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in figures.items():
        group, _, name = key.rpartition(".")
        (nested.setdefault(group, {}) if group else nested)[name] = value
    return nested


def plain(value: Any) -> Any:
    """Convert results as JSON has them: whole counts whole."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return str(value) if isinstance(value, StrEnum) else value
