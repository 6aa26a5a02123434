"""Concurrency sweeps foretold without any measurement of their model: TTFT and TPOT of every point, by groups.

Constants are learnt from all other models. Points of unknown protocol stand apart, and so do runs that were not warmed
up, and those with expert or data parallelism, of files of their own.
"""

import csv
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from sampled import parse_samples

from kvplan.ingest.timing.samples import Sweep
from scoreboard.learning import Learnt, Load, learn, loads_of
from scoreboard.record import Configuration, Row, real_run
from scoreboard.recorded import Run, read_runs
from scoreboard.sweeps import FILE, SETTINGS, with_settings

PARALLEL = "silicon-parallel/dp.csv"


class Known(NamedTuple):
    """Loads of sweeps, which of them were not warmed up, and runs."""

    loads: tuple[Load, ...]
    cold: frozenset[int]  # by place
    runs: tuple[Run, ...]

    def without_model(self, name: str) -> Learnt:
        """What is learnt from the other models."""
        return _without(self, "model", name)

    def without_gpu(self, name: str) -> Learnt:
        """What is learnt from the other GPUs."""
        return _without(self, "gpu", name)


@cache
def _without(known: Known, field: str, name: str) -> Learnt:
    return learn([*known.loads, *known.runs], lambda of: getattr(of, field) == name)


@lru_cache(maxsize=1)
def read(folder: Path) -> Known:
    """The loads of a folder."""
    cold, warm = [], []
    for sweep in with_settings(folder):
        (cold if sweep.deployment.other.endswith("cold") else warm).append(sweep)
    loads = loads_of([*cold, *warm])
    lines = {point.line for sweep in cold for point in sweep.points}
    cold_ones = frozenset(i for i, load in enumerate(loads) if load.point.line in lines)
    return Known(tuple(loads), cold_ones, read_runs(folder))


def rows_of(load: Load, learnt: Learnt, groups: Iterable[str]) -> Iterator[Row]:
    """TTFT, where it is known how requests came, and TPOT: in each of the groups, and as a configuration of its own."""
    of, point = load.configuration, load.point
    text = f"{point.inputs[1]} in, {point.outputs[1]} out, {point.concurrency} at once"
    named = Configuration(" ".join(of), _kind(load), of.model, of.engine)
    together = (Configuration(group, group.partition(":")[0]) for group in groups)
    for configuration in (named, *together):
        pairs = zip(("TTFT", "TPOT"), load.foretold_s(learnt), load.measured_s, strict=True)
        for quantity, foretold_s, measured_s in pairs:
            if quantity == "TPOT" or load.has_ttft:
                yield Row(configuration, text, quantity, "s", float(foretold_s), float(measured_s))


def _kind(load: Load) -> str:
    return "MoE" if load.deployed.shape.counts.experts else "dense"


def _rows(folder: Path) -> list[Row]:
    known = read(folder)
    rows = []
    for place, load in enumerate(known.loads):
        kind, engine = _kind(load), load.configuration.engine
        groups = ["aic"]
        if load.has_ttft:
            groups = ["InferenceMAX", f"InferenceMAX {kind}", f"InferenceMAX {kind} {engine}"]
            groups += ["InferenceMAX warmed up"] if place not in known.cold else []
        rows += rows_of(load, known.without_model(load.configuration.model), groups)
        if load.has_ttft:
            apart = rows_of(
                load, known.without_gpu(load.configuration.gpu), [f"unseen: {load.configuration.gpu}"]
            )
            rows += [row for row in apart if row.configuration.kind == "unseen"]
    return rows


def read_parallel(folder: Path) -> list[Sweep]:
    """The sweeps with expert or data parallelism; without those that drafted."""
    with (folder / PARALLEL).open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["speculative"] != "yes"]
    names = ("model", "gpu", "backend", "precision", "isl", "osl", "concurrency", "ttft_ms", "tpot_ms")
    lines = [",".join((*names, "tp", "dp", "ep", "source"))]
    for row in rows:
        dp = int(row["attention_dp"])
        shared = (str(int(row["gpus"]) // dp), str(dp), row["ep"], "inferencemax")
        lines.append(",".join((*(row[name] for name in names), *shared)))
    return [
        some for some in parse_samples([f"{line}\n" for line in lines], PARALLEL) if isinstance(some, Sweep)
    ]


def _parallel_rows(folder: Path) -> list[Row]:
    known = read(folder)
    rows = []
    for load in loads_of(read_parallel(folder)):
        kind = "DP" if "DP" in load.configuration.parallelism else "EP"
        groups = [f"{kind} {load.configuration.engine}"]
        groups += ["EP vllm and sglang"] if groups[0] in ("EP vllm", "EP sglang") else []
        rows += rows_of(load, known.without_model(load.configuration.model), groups)
    return rows


UNMEASURED = real_run("sweeps-unmeasured", (FILE, SETTINGS), _rows)
PARALLELISM = real_run("sweeps-parallel", (FILE, SETTINGS, PARALLEL), _parallel_rows)
