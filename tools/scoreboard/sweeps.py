"""Concurrency sweeps foretold: high loads from low ones, and one shape of request from the others."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from sampled import read_samples

from kvplan.engine import EngineName
from kvplan.ingest.model.config import read_model
from kvplan.ingest.timing.equations import Kind
from kvplan.ingest.timing.fit import fit_measured, of_deployment
from kvplan.ingest.timing.played import Law, foretold
from kvplan.ingest.timing.samples import Deployment, Point, Sweep, Waits
from scoreboard.hidden import Hidden, split
from scoreboard.learning import learn, loads_of
from scoreboard.record import Configuration, Row, real_run
from scoreboard.recorded import read_runs

FILE, SETTINGS = "silicon-sweeps/sweeps.csv", "silicon-sweeps/settings.csv"
_SAME = ("gpu", "isl", "osl", "concurrency")  # with TTFT and TPOT to 0.1 ms, of one point in both files
_POOLED = Configuration("points of InferenceMAX", "InferenceMAX")  # all of them as one

Splits = Callable[[Sweep], Iterator[tuple[Sweep, Hidden]]]


class Sweeps(NamedTuple):
    """Sweeps, and what is believed of one before anything of its model was measured."""

    every: tuple[Sweep, ...]
    prior: Callable[[Deployment], Law]


@lru_cache(maxsize=1)
def read(folder: Path) -> Sweeps:
    """The sweeps of a folder of data, and priors that are each learnt from the sweeps of all other models."""
    sweeps = tuple(some for some in with_settings(folder) if some.points)
    measured = [*loads_of(sweeps), *read_runs(folder)]
    learnt = cache(lambda model: learn(measured, lambda of: of.model == model))

    def prior(deployment: Deployment) -> Law:
        of_others = learnt(_model(deployment))
        found = of_deployment(deployment, of_others.reached)
        assert found is not None, deployment
        assert found.timing is not None
        answer = of_others.answers[EngineName(deployment.engine)]
        return Law(found.timing, answer.overhead_s(found.timing))

    return Sweeps(sweeps, prior)


def with_settings(folder: Path) -> Iterator[Sweep]:
    """The sweeps of a folder, with what the benchmark had set; without runs of which some drafted, or may have.

    Versions of an engine are apart, and so are runs that were not warmed up: what they had set differs. A run that the
    file has twice, under another source or model, counts once.
    """
    set_by = {point_of(row): row for row in rows_in(folder / SETTINGS)}
    table = dict(enumerate(rows_in(folder / FILE), 2))
    ordered = sorted(table, key=lambda line: table[line]["source"] != "inferencemax")
    once = set({(point_of(table[line]), table[line]["backend"]): line for line in reversed(ordered)}.values())
    for some in read_samples(folder / FILE):
        if not isinstance(some, Sweep):
            continue
        apart: dict[str, list[Point]] = {}
        for point in some.points:
            row = table[point.line]
            if point.line not in once:
                continue
            known = set_by.get(point_of(row))
            if (played := _as_set(point, known)) is not None:
                warm = "" if known is None or known["warmed_up"] == "yes" else "cold"
                apart.setdefault(f"{some.deployment.other} {row['version']} {warm}".strip(), []).append(
                    played
                )
        for other, points in apart.items():
            yield replace(some, points=tuple(points), deployment=replace(some.deployment, other=other))


def rows_in(path: Path) -> list[dict[str, str]]:
    """The rows of a table, by column."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def point_of(row: Mapping[str, str]) -> tuple[object, ...]:
    """What a row is recognized by in another table, or under another source or model."""
    times = (round(float(row[name]), 1) for name in ("ttft_ms", "tpot_ms"))
    return *(row[name] for name in _SAME), *times


def _as_set(point: Point, row: Mapping[str, str] | None) -> Point | None:
    if row is None:
        return point
    if row["speculative"] != "no":
        return None
    waits = Waits(*(int(row[name]) for name in Waits._fields))
    if (row["gpu"], row["backend"]) == (
        "b300_sxm",
        "sglang",
    ):  # its figures show no interval, whatever the script says
        waits = Waits()
    return replace(point, waits=waits, max_num_batched_tokens=int(row["max_num_batched_tokens"]))


def high_from_low(sweep: Sweep) -> Iterator[tuple[Sweep, Hidden]]:
    """Of each shape of request the upper half of the concurrencies, rounded down, is held out."""
    yield split(sweep, lambda point: point.concurrency not in _lower_half(sweep.points, point))


def _lower_half(points: Sequence[Point], alike: Point) -> Sequence[int]:
    levels = sorted({point.concurrency or 0 for point in points if _shape(point) == _shape(alike)})
    return levels[: (len(levels) + 1) // 2]


def each_shape(sweep: Sweep) -> Iterator[tuple[Sweep, Hidden]]:
    """One shape of request after the other is held out."""
    for shape in sorted({_shape(point) for point in sweep.points}):
        yield split(sweep, lambda point, shape=shape: _shape(point) == shape)  # type: ignore[misc]


def _shape(point: Point) -> tuple[int, int]:
    return point.inputs[1], point.outputs[1]


def rows(sweep: Sweep, prior: Law, splits: Splits, kind: str) -> Iterator[Row]:
    """What is held out of a sweep, as foretold by what is fitted to the rest."""
    deployment = sweep.deployment
    of = Configuration(deployment.name, kind, _model(deployment), deployment.engine)
    for known, hidden in splits(sweep):
        if not hidden.loads.points or not known.points:
            continue
        law = fit_measured([known], prior.timing, request_overhead_s=prior.request_overhead_s).law
        for point, times in hidden.against(foretold([hidden.loads], law)):
            mine = list(_rows_of(of, point, times[Kind.TTFT], times[Kind.TPOT]))
            yield from mine
            if point.inputs[0] < point.inputs[1]:  # as it draws lengths
                yield from (row._replace(configuration=_POOLED) for row in mine)


def _rows_of(of: Configuration, point: Point, ttft_s: float, tpot_s: float) -> Iterator[Row]:
    """Requests per second of a closed loop are those in flight, each done after its TTFT and as many TPOT."""
    assert point.ttft_s is not None
    assert point.tpot_s is not None
    clients, later = point.concurrency or 0, sum(point.outputs) / 2 - 1
    load = f"{point.inputs[1]} in, {point.outputs[1]} out, {clients} at once"
    yield Row(of, load, "TPOT", "s", tpot_s, point.tpot_s)
    yield Row(of, load, "TTFT", "s", ttft_s, point.ttft_s)
    rates = (
        clients / (first + later * token) for first, token in ((ttft_s, tpot_s), (point.ttft_s, point.tpot_s))
    )
    yield Row(of, load, "requests/s", "1/s", *rates)


def _model(deployment: Deployment) -> str:
    """What sweeps of the same model are learnt from, and left out, by."""
    shape = read_model(deployment.model)
    return shape.like or shape.name


def _kind(deployment: Deployment) -> str:
    return "MoE" if read_model(deployment.model).counts.experts else "dense"


def rows_of(sweeps: Sweeps, splits: Splits, kind: Callable[[Deployment], str] = _kind) -> list[Row]:
    """The rows of several sweeps."""
    return [
        row
        for sweep in sweeps.every
        for row in rows(sweep, sweeps.prior(sweep.deployment), splits, kind(sweep.deployment))
    ]


HIGH = real_run("sweeps-high", (FILE,), lambda folder: rows_of(read(folder), high_from_low))
SHAPE = real_run("sweeps-shape", (FILE,), lambda folder: rows_of(read(folder), each_shape))
