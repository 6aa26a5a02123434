"""Points of a sweep: the profile with other values, checked as a profile is, and the figures that are wanted."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import tomli

from kvplan.analysis import equilibrium
from kvplan.analysis.cached_equilibrium import with_cold_cache
from kvplan.analysis.fleet import one_replica
from kvplan.analysis.stability import stability
from kvplan.axes import Axis, Number
from kvplan.errors import UsageError
from kvplan.model import Plan, Replica, ServingModel, Timing, as_written
from kvplan.profile import schema
from kvplan.profile.positions import KeyPath, written
from kvplan.profile.reading import model_of, plan_of, with_values
from kvplan.profile.relations import Problem
from kvplan.ranges import MAX_MEMORY_TOKENS
from kvplan.report.assembly import Analyses, ProfileIdentity
from kvplan.simulation.metrics import PolicyResult
from kvplan.study.drain import Drain
from kvplan.study.recovery import Recovery
from kvplan.sweeps.definition import Sweep
from kvplan.sweeps.vary import as_in_profile, stretch
from kvplan.version import __version__

Value = int | float | str | bool | None


class Point(NamedTuple):
    """Model and plan of a point."""

    model: ServingModel
    plan: Plan


def rows(sweep: Sweep, start: int, stop: int) -> Iterator[list[Value]]:
    """Yield rows of the points from `start` up to `stop`: number, values, figures, and why there are none, if so."""
    if sweep.version != __version__:
        raise UsageError(
            f"a worker has kvplan {__version__}, and this is {sweep.version}; they must be the same"
        )
    tables = _tables(sweep.text)
    values = list(stretch(sweep.axes, sweep.sample, start, stop))
    points = [_point(tables, sweep.axes, mine) for mine in values]
    good = [point for point in points if isinstance(point, Point)]
    report = any(column.block != "simulation" for column in sweep.columns)
    models = (one_replica(point.model) for point in good) if report else ()
    # those with the same classes are computed together
    alike = groupby(models, key=lambda model: [c.name for c in model.classes])
    shared = (blocks for _, several in alike for blocks in equilibrium.blocks(list(several)))
    for index, mine, point in zip(range(start, stop), values, points, strict=True):
        if isinstance(point, Point):
            known = next(shared)._asdict() if report else {}
            figures, error = _figures(sweep, index, point, known)
        else:
            figures, error = [None] * len(sweep.columns), point
        yield [index, *mine, *figures, error]


_tables = lru_cache(maxsize=4)(tomli.loads)


def _point(tables: Mapping[str, Any], axes: Sequence[Axis], values: Sequence[Number]) -> Point | str:
    """Make a point, or say why not."""
    varied = {axis.path: value for axis, value in zip(axes, values, strict=True)}
    changes = {path: as_in_profile(path, value) for path, value in varied.items()}
    if ("gpu", "memory_tokens") in changes:  # takes the place of what says the same
        changes |= {("gpu", "memory"): None, ("gpu", "kv_bytes_per_token"): None}
    try:
        changes |= _other_shares(tables, varied)
        document = schema.check(with_values(tables, changes))
    except schema.SchemaError as error:
        path, message, _ = error.problems[0]
        return f"{written(path)}: {message}"
    return Point(model_of(document), plan_of(document))


def _other_shares(tables: Mapping[str, Any], changes: Mapping[KeyPath, Number]) -> dict[KeyPath, object]:
    """Divide the rest among shares that are not varied, in proportion."""
    varied = {int(path[1]): as_written(value) for path, value in changes.items() if path[-1] == "share"}
    shares = {i: c["share"] for i, c in enumerate(tables.get("classes", ())) if "share" in c}
    others = {i: as_written(share) for i, share in shares.items() if share and i not in varied}
    if not varied or not others:
        return {}
    left = (1 - sum(varied.values())) / sum(others.values(), Fraction(0))
    if left <= 0:
        first = ("classes", min(varied), "share")
        raise schema.SchemaError([Problem(first, "the varied shares leave nothing to the other classes")])
    return {("classes", i, "share"): float(share * left) for i, share in others.items()}


def _figures(sweep: Sweep, index: int, point: Point, known: dict[str, Any]) -> tuple[list[Value], str | None]:
    """Compute figures of a point, and why some are missing."""
    known["profile"] = ProfileIdentity(sweep.name, sweep.sha256)
    if _shares_stability(sweep):
        cold = with_cold_cache(one_replica(point.model))
        known["stability"] = _stability(_with_room(cold))
    if not _rests_on_recovery(sweep):
        known["recovery"] = Recovery(None, reason="no column asks for it")
    if not any(column.block == "verdict" and column.path[0] == "drain" for column in sweep.columns):
        known["drain"] = Drain(None, None, None, None, "no column asks for it")
    analyses = Analyses(point.model, point.plan, known)
    results: dict[str, PolicyResult] = {}
    error = None
    if sweep.runs is not None:
        try:
            results = _simulated(sweep, index, point)
        except UsageError as refused:
            error = " ".join(str(refused).split())
    figures: list[Value] = []
    for column in sweep.columns:
        if column.block == "simulation":
            figures.append(column.of(results.get(column.policy)))
        else:
            figures.append(column.of(getattr(analyses, column.block)))
    return figures, error


# ``stability.advice`` apart, memory, timing and limits have no part in stability, which takes longest of all
_ON_STABILITY = frozenset({"stability", "verdict", "worst_cycle", "sources", "notes"})
_ANY_TIMING = Timing(1.0)
_stability = lru_cache(maxsize=256)(stability)


@lru_cache(maxsize=8)
def _shares_stability(sweep: Sweep) -> bool:
    names = {column.name for column in sweep.columns}
    return "stability.advice" not in names and any(c.block in _ON_STABILITY for c in sweep.columns)


@lru_cache(maxsize=8)
def _rests_on_recovery(sweep: Sweep) -> bool:
    """Tell whether a column needs the rate of a saturated replica, which takes runs."""
    return any(
        (c.block in ("verdict", "notes") and c.path != ("binding",)) or "danger_zone_rps" in c.path
        for c in sweep.columns
    )


def _with_room(model: ServingModel) -> ServingModel:
    """Return a model that is equal for all of equal stability."""
    replica, drafts = model.replica, model.drafts
    room = Replica(MAX_MEMORY_TOKENS, replica.block_tokens, replica.prefill, layout=replica.layout)
    timing = _ANY_TIMING if drafts is None else drafts.slowed(_ANY_TIMING)
    return replace(model, timing=timing, request_overhead_s=0.0, replica=room)


def _simulated(sweep: Sweep, index: int, point: Point) -> dict[str, PolicyResult]:
    from kvplan.simulation.experiments.load import Load
    from kvplan.simulation.experiments.options import chosen
    from kvplan.simulation.experiments.study import study

    runs = sweep.runs
    assert runs is not None
    first = sweep.seed + index * runs.seeds
    made = study(
        point.model,
        point.plan,
        Load(requests=runs.requests),
        chosen(runs.policies, []),
        range(first, first + runs.seeds),
        compile=True if sweep.compiled else None,
        threads=1,
        details=any("classes" in column.path for column in sweep.columns),
    )
    if made.interrupted:
        raise KeyboardInterrupt
    return {result.policy: result for result in made.results}
