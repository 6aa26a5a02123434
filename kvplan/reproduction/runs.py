"""Runs of an experiment: a report, a simulation, the fluid map or a cycle, each as one document of figures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvplan.errors import UsageError
from kvplan.model import Plan, ServingModel
from kvplan.reproduction.experiment import Experiment, Run, load_experiment
from kvplan.reproduction.judge import Reproduction, reproduction

if TYPE_CHECKING:
    from kvplan.simulation.experiments.load import Load
    from kvplan.simulation.experiments.study import Study
    from kvplan.simulation.requests import Requests

Document = Mapping[str, Any]
Announce = Callable[[str, bool], None]


class LivelockError(UsageError):
    """A policy came to a standstill, so that a run has no figures."""


def reproduced(name: str, announce: Announce | None = None) -> Reproduction:
    """Run a shipped experiment and judge it."""
    experiment = load_experiment(name)
    return reproduction(experiment, run_all(experiment, announce))


def run_all(experiment: Experiment, announce: Announce | None = None) -> dict[str, Document]:
    """Make all runs of an experiment; return documents by name, for a simulation one for each of its `seeds`."""
    from kvplan.profile.reading import from_tables

    given = {
        name: from_tables({"schema": 1, "name": name, **tables}, name)
        for name, tables in experiment.workloads.items()
    }
    return {
        run.name: document(run, given[run.workload].model, given[run.workload].plan, announce)
        for run in experiment.runs
    }


def document(run: Run, model: ServingModel, plan: Plan, announce: Announce | None = None) -> Document:
    """Make figures of a run."""
    if run.gaps is not None:
        return _gaps(run, model)
    if run.fluid is not None:
        return _fluid(run, model)
    if run.hindsight:
        return _hindsight(run, model)
    if run.policy is None:
        return _Reported(model, plan)
    return _simulated(run, model, plan, announce)


class _Reported(Mapping[str, Any]):
    """The blocks of a report, each computed when a figure asks for it."""

    def __init__(self, model: ServingModel, plan: Plan) -> None:
        from kvplan.report.assembly import Analyses

        self._analyses = Analyses(model, plan)

    def __getitem__(self, block: str) -> Any:
        from kvplan.report.assembly import Report
        from kvplan.report.ledger import plain

        if block not in Report._fields:
            raise KeyError(block)
        return plain(getattr(self._analyses, block), block)

    def __iter__(self) -> Iterator[str]:
        from kvplan.report.assembly import Report

        return iter(Report._fields)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _gaps(run: Run, model: ServingModel) -> Document:
    from kvplan.analysis.worst_cycle import gap_cycle_throughput

    (stages,), (weight,) = model.mix.stages, model.mix.read.at_start
    x = gap_cycle_throughput(int(stages), float(weight), model.replica.capacity_tokens, run.gaps or ())
    return {"throughput_per_iteration": x}


def _fluid(run: Run, model: ServingModel) -> Document:
    """Run the fluid map; rates are those of its last third, in whole longest stays."""
    from kvplan.analysis.fluid_map import fluid_map
    from kvplan.analysis.fluid_map import run as iterate

    mix = model.mix
    prompt = mix.input_tokens.astype(np.float64)
    system = fluid_map(mix.held, mix.share, prompt, float(model.replica.capacity_tokens))
    masses = np.zeros(system.size)
    masses[: len(run.fluid or ())] = run.fluid
    history = iterate(system, masses, run.iterations)
    late = max(run.iterations // 3 // masses.size, 1) * masses.size
    evicting = np.flatnonzero(history.evicted > 0)
    return {
        "throughput_per_iteration": float(history.completed[-late:].mean()),
        "evictions_per_iteration": float(history.evicted[-late:].mean()),
        "evictions": float(history.evicted.sum()),
        "first_eviction": int(evicting[0]) + 1 if evicting.size else None,
        "completed": history.completed.tolist(),
        "evicted": history.evicted.tolist(),
    }


def _simulated(run: Run, model: ServingModel, plan: Plan, announce: Announce | None) -> Document:
    """Make a document of each seed, to compare runs seed by seed; the best of a grid."""
    if run.horizons:
        shorter = [replace(run, horizon=horizon, horizons=()) for horizon in run.horizons]
        return _slopes([_simulated(each, model, plan, announce) for each in shorter])
    from kvplan.simulation.experiments.grid import search

    study = _study(run, model, plan, announce)
    best = search(study, run.best)
    if best.best is None:
        at = " at all values of its grid" if run.grid else ""
        raise LivelockError(f"run {run.name}: a livelock{at}, so there are no figures")
    chosen = study.only([best.best])
    (result,), (figures,), (pairs,) = chosen.results, chosen.by_seed, chosen.runs
    known = {"parameters": result.parameters, "status": result.status, "horizon_s": study.load.horizon_s}
    if len(pairs) == 1:
        known["ci95"] = result.ci95
    seeds = [
        {**known, **each, "series": outcome.series} for each, (_, outcome) in zip(figures, pairs, strict=True)
    ]
    return {"seeds": seeds, "chosen": best.best, "livelock": best.livelocks}


def _study(run: Run, model: ServingModel, plan: Plan, announce: Announce | None) -> "Study":
    """Run a policy, and the variants of its grid, on all seeds side by side."""
    from kvplan.simulation.experiments import options, study

    assert run.policy is not None
    grid = [f"{key}={','.join(map(str, values))}" for key, values in (run.grid or {}).items()]
    policies = options.chosen([run.policy], run.set, grid)
    answer = study.study(model, plan, _load(run, model), policies, range(run.seeds), announce=announce)
    if answer.interrupted:
        raise KeyboardInterrupt
    return answer


def _load(run: Run, model: ServingModel) -> "Load":
    """Draw requests of a run as options of `kvplan simulate` describe them."""
    from kvplan.options import SimulateOptions
    from kvplan.simulation.experiments import options

    asked = SimulateOptions(
        arrivals=None if run.arrive else run.arrivals,
        cv=run.cv,
        concurrency=run.concurrency,
        burst=run.burst,
        burst_sessions=run.burst_sessions,
        requests=run.requests,
        horizon=run.horizon,
    )
    return options.load(asked, None if run.arrive is None else partial(_requests, run.arrive, model))


def _hindsight(run: Run, model: ServingModel) -> Document:
    """Bounds on mean latency, or with a horizon on rates, of each seed."""
    from kvplan.simulation.experiments.hindsight_bound import study_bounds

    seeds = [study_bounds(model, _load(run, model), ["mc"], [seed]) for seed in range(run.seeds)]
    return {"seeds": [{bound.figure: bound.bound for bound in bounds} for bounds in seeds]}


def _slopes(by_horizon: Sequence[Document]) -> Document:
    """Slopes of figures over the horizon, both on logarithmic scales, of each seed."""
    documents = []
    for each in zip(*(document["seeds"] for document in by_horizon), strict=True):
        horizon = np.log([seed["horizon_s"] for seed in each])
        figures = {
            "unserved_rps": [(seed["unfinished"] + 1) / seed["horizon_s"] for seed in each],
            "throughput_rps": [seed["throughput_rps"] for seed in each],
            "e2e_s": [seed["e2e_s.mean"] for seed in each],
            "ttft_s": [seed["ttft_s.mean"] for seed in each],
        }
        slopes = {name: float(np.polyfit(horizon, np.log(values), 1)[0]) for name, values in figures.items()}
        documents.append({"slope": slopes})
    return {"seeds": documents, "livelock": []}


def _requests(arrive: Sequence[float], model: ServingModel) -> "Requests":
    from kvplan.simulation.requests import Requests

    (lone,) = model.classes
    size = len(arrive)
    return Requests(
        np.array(arrive, dtype=np.float64),
        np.full(size, lone.input_tokens),
        np.full(size, lone.decode_tokens[0]),
        np.zeros(size, dtype=np.int64),
    )
