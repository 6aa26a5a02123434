"""What the runs that `kvplan measure` proposes settle: the rate at which TPOT meets an objective, and all other loads.

Each load of a sweep but the lowest and the highest is an objective in turn: its TPOT is the limit, its requests per
second are to be foretold, and it is hidden. A run is the load of the sweep that is nearest to what would be proposed.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from statistics import median

import numpy as np

from kvplan.ingest.timing.belief import NOISE, Posterior, ends, misfit, posterior, widths
from kvplan.ingest.timing.equations import Kind
from kvplan.ingest.timing.fit import fit_measured
from kvplan.ingest.timing.played import foretold
from kvplan.ingest.timing.samples import Deployment, Point, Sweep
from kvplan.model import FloatArray
from scoreboard.learning import Learnt, Load, loads_of
from scoreboard.record import Configuration, Row, real_run
from scoreboard.recorded import RESIDENCY, Run
from scoreboard.sweeps import FILE, SETTINGS, with_settings
from scoreboard.unmeasured import Known, read

_LEAST = 8  # loads of a configuration
_FEWEST = 4  # of a shape of request: an objective, and three that may be run
_NOISE = np.array([NOISE[Kind.TTFT], NOISE[Kind.TPOT]])
_FLAT = 0.05  # of d ln(TPOT) / d ln(concurrency), at least
_POOLED = Configuration("all", "all")
_WITHIN = 0.05


@dataclass(frozen=True)
class Shape:
    """Loads of one shape of request, by concurrency, and what is learnt from other models."""

    loads: tuple[Load, ...]
    learnt: Learnt

    @cached_property
    def parts(self) -> FloatArray:
        """Of shape (n_loads, 2, n_constants)."""
        return np.array([load.parts(self.learnt) for load in self.loads])

    @cached_property
    def places(self) -> FloatArray:
        """Logarithms of concurrencies."""
        return np.log([load.point.concurrency or 1 for load in self.loads])

    @cached_property
    def measured_s(self) -> FloatArray:
        return np.array([load.measured_s for load in self.loads])

    def fitted(self, runs: Sequence[int]) -> Posterior:
        """What is believed after some of the loads."""
        return believed(self.parts[list(runs)], self.measured_s[list(runs)])

    def nearest(self, place: float, but: Sequence[int]) -> int:
        """The load that is nearest to a place, hidden ones left out."""
        others = [i for i in range(len(self.loads)) if i not in but]
        return min(others, key=lambda i: abs(float(self.places[i]) - place))

    def end(self, after: Posterior, tpot_s: float) -> tuple[float, float]:
        """Logarithms of the concurrency at which TPOT meets a limit and of the requests/s there."""
        ttft, tpot = np.log((self.parts * np.exp(after.mean)).sum(axis=2)).T
        x, y = self.places, np.maximum.accumulate(tpot)
        i = int(np.clip(np.searchsorted(y, math.log(tpot_s)) - 1, 0, x.size - 2))
        slope = max(float((y[i + 1] - y[i]) / max(x[i + 1] - x[i], _FLAT)), _FLAT)
        place = float(x[i]) + (math.log(tpot_s) - float(y[i])) / slope
        first_s = math.exp(float(np.interp(place, x, ttft)))
        return place, place - math.log(first_s + self.later * tpot_s)

    @property
    def later(self) -> float:
        """Tokens after the first."""
        return sum(self.loads[0].point.outputs) / 2 - 1


def believed(parts: FloatArray, measured_s: FloatArray) -> Posterior:
    """What is believed after loads, of TTFT and TPOT each."""
    noise = np.tile(_NOISE, len(parts))
    rows = parts.reshape(-1, parts.shape[-1])
    names = [""] * (parts.shape[-1] - 1) + ["request_overhead"]
    return posterior(rows, measured_s.reshape(-1), noise, widths(names))


def objective_rows(of: Configuration, shape: Shape, hidden: int) -> Iterator[Row]:
    """The rate of a hidden load, as foretold by no run, by one, by two, and by two at random."""
    ttft_s, tpot_s = shape.measured_s[hidden]
    truth = math.exp(float(shape.places[hidden])) / (ttft_s + shape.later * tpot_s)
    load = f"{shape.loads[hidden].point.concurrency} at once"

    def row(quantity: str, rate: float) -> Row:
        return Row(of, load, quantity, "1/s", math.exp(rate), truth)

    place, rate = shape.end(Posterior(np.zeros(shape.parts.shape[2]), np.zeros(0)), tpot_s)
    yield row("rate, no run", rate)
    first = shape.nearest(place, [hidden])
    place, rate = shape.end(shape.fitted([first]), tpot_s)
    yield row("rate, one run", rate)
    runs = list(dict.fromkeys([first, shape.nearest(place, [hidden])]))
    after = shape.fitted(runs)
    place, rate = shape.end(after, tpot_s)
    yield row("rate, two runs", rate)
    others = [i for i in range(len(shape.loads)) if i != hidden]
    pairs = [shape.end(shape.fitted(pair), tpot_s)[1] for pair in combinations(others, 2)]
    off = sorted(pairs, key=lambda each: abs(math.exp(each) / truth - 1))
    yield row("rate, two runs at random", off[len(off) // 2])
    told = math.hypot(
        float(after.spread(shape.parts[hidden, 1:])[0]),
        misfit([float(shape.places[run]) for run in runs], place),
    )
    low, high = (shape.end(after, tpot_s / end)[1] for end in ends(told))
    holds = min(low, high) <= math.log(truth) <= max(low, high)
    yield Row(of, load, "interval holds", "%", float(holds), 1.0)


def rest_rows(of: Configuration, shapes: Sequence[Shape]) -> Iterator[Row]:
    """All loads by three: the shortest prompts one at a time and most at once, and the longest most at once."""
    by_prompt = sorted(shapes, key=lambda shape: shape.loads[0].point.inputs)
    short, long = by_prompt[0], by_prompt[-1]
    if short is long:
        return
    runs = [(short, 0), (short, len(short.loads) - 1), (long, len(long.loads) - 1)]
    parts, seen = (np.array([getattr(s, name)[i] for s, i in runs]) for name in ("parts", "measured_s"))
    factors = np.exp(believed(parts, seen).mean)
    for shape in shapes:
        for i, load in enumerate(shape.loads):
            if (shape, i) not in runs:
                text = f"{load.point.inputs[1]} in, {load.point.concurrency} at once"
                times = (shape.parts[i] * factors).sum(axis=1), shape.measured_s[i]
                for quantity, said, was in zip(("TTFT", "TPOT"), *times, strict=True):
                    yield Row(of, text, quantity, "s", float(said), float(was))


def one_run_rows(of: Configuration, shapes: Sequence[Shape]) -> Iterator[Row]:
    """TPOT of all others after one run, each in turn, against that of the estimate: a share, 1 where it is worse."""
    parts = np.concatenate([shape.parts for shape in shapes])
    seen = np.concatenate([shape.measured_s for shape in shapes])
    errors = []
    for run in range(len(parts)):
        rest = np.arange(len(parts)) != run
        after = believed(parts[[run]], seen[[run]]).mean
        tpot = (parts[rest, 1] * np.exp(after)).sum(axis=1), parts[rest, 1].sum(axis=1)
        errors.append([median(np.abs(times / seen[rest, 1] - 1).tolist()) for times in tpot])
    with_run, without = np.median(errors, axis=0)
    yield Row(of, "all others", "TPOT worse with one run", "%", float(with_run > without), 0.0)


def _sweep_rows(known: Known, folder: Path) -> Iterator[Row]:
    held, worse = [], []
    for sweep in with_settings(folder):
        loads = loads_of([sweep]) if sweep.points else []
        if len(loads) < _LEAST:
            continue
        configuration, learnt = loads[0].configuration, known.without_model(loads[0].configuration.model)
        kind = "MoE" if loads[0].deployed.shape.counts.experts else "dense"
        of = Configuration(sweep.deployment.name, kind, configuration.model, configuration.engine)
        by_shape: dict[tuple[int, int], list[Load]] = {}
        for load in sorted(loads, key=lambda load: load.point.concurrency or 0):
            by_shape.setdefault((load.point.inputs[1], load.point.outputs[1]), []).append(load)
        shapes = [Shape(tuple(some), learnt) for some in by_shape.values()]
        objectives = [
            row
            for shape in shapes
            if len(shape.loads) >= _FEWEST
            for hidden in range(1, len(shape.loads) - 1)
            for row in objective_rows(of, shape, hidden)
        ]
        off: dict[str, list[float]] = {}
        for row in objectives:
            off.setdefault(row.quantity, []).append(abs(row.foretold / row.measured - 1))
        if objectives:
            held.append(1 - float(np.mean(off["interval holds"])))
            random = median(off["rate, two runs at random"])
            worse.append(float(median(off["rate, two runs"]) > random))
            yield Row(of, "", "two runs worse than at random", "%", worse[-1], 0.0)
        yield from (row for row in objectives if row.quantity != "interval holds")
        yield from rest_rows(of, shapes)
        yield from one_run_rows(of, shapes)
    yield Row(_POOLED, "", "intervals that hold", "%", float(np.mean(held)), 0.8)


def _pair_rows(known: Known) -> Iterator[Row]:
    """Loads of Qwen3-14B at rates, from one of them and a saturated one: a share, 1 where TPOT or knee is off."""
    runs = [run for run in known.runs if run.source == RESIDENCY]
    (full,) = (run for run in runs if run.is_saturated and not run.gives_up)
    rates = [run for run in runs if not run.is_saturated]
    law, replica = known.without_model(full.configuration.model).law(full.deployed), full.replica
    for run in rates:
        known_ones = Sweep("", "", Deployment(engine="vllm"), (_point(run), _point(full)))
        fit = fit_measured(
            [known_ones], law.timing, request_overhead_s=law.request_overhead_s, replica=replica
        )
        asked = Sweep("", "", Deployment(engine="vllm"), tuple(_point(other) for other in (*rates, full)))
        times = foretold([asked], fit.law, replica)
        tpot = [
            abs(said[Kind.TPOT] / each.measured.tpot - 1) for said, each in zip(times, rates, strict=False)
        ]
        knee = abs(1 / times[-1][Kind.INTERVAL] / full.measured.done_per_s - 1)
        yield Row(
            _POOLED, run.row["run"], "Qwen3-14B pairs off", "%", float(max(median(tpot), knee) > _WITHIN), 0.0
        )


def _point(run: Run) -> Point:
    row, seen = run.row, run.measured
    lengths = round(float(row["prompt_min"])), round(float(row["prompt_max"]))
    outputs = (int(row["output_asked"]),) * 2
    load = {"concurrency": 256} if run.is_saturated else {"rate_rps": float(row["rate_achieved"])}
    return Point(
        line=1, inputs=lengths, outputs=outputs, ttft_s=seen.ttft, tpot_s=seen.tpot, e2e_s=seen.e2e, **load
    )


def _rows(folder: Path) -> list[Row]:
    known = read(folder)
    return [*_sweep_rows(known, folder), *_pair_rows(known)]


MEASURED = real_run("measure", (FILE, SETTINGS, RESIDENCY), _rows)
