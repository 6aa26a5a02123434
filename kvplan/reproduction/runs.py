"""Runs of an experiment: a report, a simulation, the fluid map or a cycle, each as one document of figures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from kvplan.errors import UsageError
from kvplan.model import Plan, ServingModel
from kvplan.reproduction.experiment import Experiment, Run

if TYPE_CHECKING:
    from kvplan.simulation.requests import Requests

Document = Mapping[str, Any]
Announce = Callable[[str, bool], None]


class LivelockError(UsageError):
    """A policy came to a standstill, so that a run has no figures."""


def run_all(experiment: Experiment, announce: Announce | None = None) -> dict[str, Document]:
    """Make all runs of an experiment; return documents by name, for a simulation one for each of its `seeds`."""
    from kvplan.profile.reading import from_tables

    given = {name: from_tables(name, tables) for name, tables in experiment.workloads.items()}
    return {run.name: document(run, *given[run.workload], announce) for run in experiment.runs}


def document(run: Run, model: ServingModel, plan: Plan, announce: Announce | None = None) -> Document:
    """The figures of one run."""
    if run.gaps is not None:
        return _gaps(run, model)
    if run.fluid is not None:
        return _fluid(run, model)
    if run.policy is None:
        return _Reported(model, plan)
    if run.grid:
        return _best(run, partial(_simulated, model=model, plan=plan, announce=announce))
    return _simulated(run, model=model, plan=plan, announce=announce)


class _Reported(Mapping[str, Any]):
    """The blocks of a report, each computed when a figure asks for it."""

    def __init__(self, model: ServingModel, plan: Plan) -> None:
        from kvplan.report.assembly import Analyses

        self._analyses = Analyses(model, plan)

    def __getitem__(self, block: str) -> Any:
        from kvplan.report.assembly import Report, plain

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
    """The fluid map from given masses; rates are those of its last third, whole longest stays."""
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


def _best(run: Run, simulated: Callable[[Run], Document]) -> Document:
    """The run with the best values of its grid."""
    from kvplan.reproduction.judge import measured

    assert run.grid is not None
    sign, key = (-1, run.best[1:]) if run.best.startswith("-") else (1, run.best)
    found, hung = [], []
    for values in product(*run.grid.values()):
        settings = tuple(f"{name}={value:g}" for name, value in zip(run.grid, values, strict=True))
        try:
            one = simulated(replace(run, set=(*run.set, *settings), grid=None))
            found.append({**one, "chosen": ", ".join(settings)})
        except LivelockError:
            hung.append(", ".join(settings))
    if not found:
        raise LivelockError(f"run {run.name}: a livelock at all values of its grid, so there are no figures")
    best = max(found, key=lambda one: sign * measured([(one, key)]).value)
    return {**best, "livelock": hung}


def _simulated(run: Run, *, model: ServingModel, plan: Plan, announce: Announce | None) -> Document:
    """A simulation of each seed for itself, so that runs can be compared seed by seed."""
    return {"seeds": [_of_seed(run, seed, model, plan, announce) for seed in range(run.seeds)]}


def _of_seed(run: Run, seed: int, model: ServingModel, plan: Plan, announce: Announce | None) -> Document:
    from kvplan.options import Arrivals, RunOptions
    from kvplan.simulation.experiments import options, study

    assert run.policy is not None
    asked = RunOptions(
        arrivals=None if run.arrive or run.arrivals is None else Arrivals(run.arrivals),
        cv=run.cv,
        concurrency=run.concurrency,
        burst=run.burst,
        burst_sessions=run.burst_sessions,
        requests=run.requests,
        horizon=run.horizon,
    )
    load = options.load(asked, None if run.arrive is None else partial(_requests, run.arrive, model))
    found = study.study(model, plan, load, options.chosen([run.policy], run.set), [seed], announce=announce)
    if found.interrupted:
        raise KeyboardInterrupt
    result = study.plain(found.results[0])
    if result["status"] == "livelock":
        raise LivelockError(f"run {run.name}: a livelock, so there are no figures")
    if run.arrive is None:
        return dict(result)
    series = found.first[0].series
    return {
        **result,
        "series": {
            "kv_tokens": series.kv_tokens.tolist(),
            "completions": series.completions.tolist(),
            "evictions": series.evictions.tolist(),
        },
    }


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
