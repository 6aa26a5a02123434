"""Placements of classes on replicas, compared: by the formulas, and by simulation if that is wanted."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from kvplan.analysis.mixing import Change, Mixing, Placement, compare, diversifications, subset
from kvplan.model import Plan, ServingModel
from kvplan.simulation.experiments.pools import Loads, Pooled, measure, spread, together

POLICY = "greedy"  # what is simulated


class Simulated(NamedTuple):
    """Figures of a placement: of each group, and of all of it; None where a run could not be ended."""

    groups: tuple[Loads | None, ...]
    whole: Loads | None


class Comparison(NamedTuple):
    """All there is to say.

    Attributes
    ----------
    names
        Of the classes.
    changes
        To the best placement.
    requests
        Of the simulated workload.
    simulated
        Segregated, mixed, best; empty where nothing was simulated.
    scheduled
        Whether the profile has a schedule, which all this leaves out.
    """

    names: tuple[str, ...]
    replicas: int
    mixing: Mixing
    changes: tuple[Change, ...]
    policy: str
    requests: int
    seeds: tuple[int, ...]
    simulated: tuple[Simulated, ...]
    scheduled: bool = False

    @property
    def placements(self) -> tuple[Placement, ...]:
        """In the order of their names."""
        return _placements(self.mixing)


def _placements(mixing: Mixing) -> tuple[Placement, ...]:
    return mixing.segregated, mixing.mixed, mixing.best


def placements_compared(
    model: ServingModel,
    plan: Plan,
    replicas: int,
    *,
    requests: int,
    seeds: Sequence[int],
    simulate: bool = True,
    progress: Callable[[float], None] | None = None,
    announce: Callable[[str, bool], None] | None = None,
) -> Comparison:
    """The three placements of a model's classes on so many replicas; at constant rates, whatever its schedule.

    Parameters
    ----------
    requests
        Of the simulated workload, over all replicas.
    progress
        Told the share that is done.
    announce
        As for `kvplan.simulation.experiments.study.study`.
    """
    constant = replace(model, schedule=None)
    found = compare(constant, replicas, progress=_part(progress, 0.0, 0.5))
    simulated: tuple[Simulated, ...] = ()
    if simulate:
        told = _part(progress, 0.5, 1.0)
        simulated = _simulated(constant, plan, found, requests, seeds, told, announce)
    return Comparison(
        names=tuple(c.name for c in model.classes),
        replicas=replicas,
        mixing=found,
        changes=diversifications(constant, found.best),
        policy=POLICY,
        requests=requests,
        seeds=tuple(seeds),
        simulated=simulated,
        scheduled=model.schedule is not None,
    )


def _part(
    progress: Callable[[float], None] | None, first: float, last: float
) -> Callable[[float], None] | None:
    return None if progress is None else lambda done: progress(first + (last - first) * done)


def _simulated(
    model: ServingModel,
    plan: Plan,
    found: Mixing,
    requests: int,
    seeds: Sequence[int],
    progress: Callable[[float], None] | None,
    announce: Callable[[str, bool], None] | None,
) -> tuple[Simulated, ...]:
    """Every group once, though several placements may have it."""
    placements = _placements(found)
    groups = list(dict.fromkeys(g for p in placements for g in p.groups))
    total = model.total_rate_rps
    pooled = [
        Pooled(
            subset(model, g.classes, g.replicas),
            g.replicas,
            spread(requests, g.pool.offered_rps / total, g.replicas),
        )
        for g in groups
    ]
    measured = measure(pooled, plan, seeds=seeds, policy=POLICY, progress=progress, announce=announce)
    by_group = dict(zip(groups, measured, strict=True))
    simulated = []
    for placement in placements:
        parts = tuple(by_group[g] for g in placement.groups)
        ended = [part for part in parts if part is not None]
        whole = None
        if len(ended) == len(parts):
            whole = Loads(together([p.saturated for p in ended]), together([p.offered for p in ended]))
        simulated.append(Simulated(parts, whole))
    return tuple(simulated)
