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
_WIDTHS = 0.2, 0.4, 0.8  # to choose from
_WORSE = 0.25  # of configurations


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

    @property
    def objectives(self) -> range:
        """Loads whose TPOT is a limit in turn; none of few."""
        return range(1, len(self.loads) - 1 if len(self.loads) >= _FEWEST else 1)

    def fitted(self, runs: Sequence[int], spread: FloatArray | None = None) -> Posterior:
        """What is believed after some of the loads."""
        return believed(self.parts[list(runs)], self.measured_s[list(runs)], spread)

    def truth(self, hidden: int) -> float:
        """Requests/s of a load."""
        ttft_s, tpot_s = self.measured_s[hidden]
        return math.exp(float(self.places[hidden])) / (float(ttft_s) + self.later * float(tpot_s))

    def proposed(self, hidden: int, spread: FloatArray | None = None) -> list[int]:
        """The two loads that are run: nearest to where a limit is met by the estimate, and by the fit to the first."""
        tpot_s, nothing = self.measured_s[hidden, 1], Posterior(np.zeros(self.parts.shape[2]), np.zeros(0))
        first = self.nearest(self.end(nothing, tpot_s)[0], [hidden])
        then = self.nearest(self.end(self.fitted([first], spread), tpot_s)[0], [hidden])
        return list(dict.fromkeys([first, then]))

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


def believed(parts: FloatArray, measured_s: FloatArray, spread: FloatArray | None = None) -> Posterior:
    """What is believed after loads, of TTFT and TPOT each."""
    noise = np.tile(_NOISE, len(parts))
    rows = parts.reshape(-1, parts.shape[-1])
    names = [""] * (parts.shape[-1] - 1) + ["request_overhead"]
    return posterior(rows, measured_s.reshape(-1), noise, widths(names) if spread is None else spread)


def objective_rows(of: Configuration, shape: Shape, hidden: int) -> Iterator[Row]:
    """The rate of a hidden load, as foretold by no run, by one, by two, and by two at random."""
    tpot_s, truth = shape.measured_s[hidden, 1], shape.truth(hidden)
    load = f"{shape.loads[hidden].point.concurrency} at once"

    def row(quantity: str, rate: float) -> Row:
        return Row(of, load, quantity, "1/s", math.exp(rate), truth)

    nothing = Posterior(np.zeros(shape.parts.shape[2]), np.zeros(0))
    runs = shape.proposed(hidden)
    yield row("rate, no run", shape.end(nothing, tpot_s)[1])
    yield row("rate, one run", shape.end(shape.fitted(runs[:1]), tpot_s)[1])
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


def one_run_rows(
    of: Configuration, shapes: Sequence[Shape], spread: FloatArray | None = None
) -> Iterator[Row]:
    """TPOT of all others after one run, each in turn, against that of the estimate: a share, 1 where it is worse."""
    parts = np.concatenate([shape.parts for shape in shapes])
    seen = np.concatenate([shape.measured_s for shape in shapes])
    errors = []
    for run in range(len(parts)):
        rest = np.arange(len(parts)) != run
        after = believed(parts[[run]], seen[[run]], spread).mean
        tpot = (parts[rest, 1] * np.exp(after)).sum(axis=1), parts[rest, 1].sum(axis=1)
        errors.append([median(np.abs(times / seen[rest, 1] - 1).tolist()) for times in tpot])
    with_run, without = np.median(errors, axis=0)
    yield Row(of, "all others", "TPOT worse with one run", "%", float(with_run > without), 0.0)


def shapes_of(known: Known, folder: Path) -> Iterator[tuple[Configuration, list[Shape]]]:
    """Configurations with enough loads."""
    for sweep in with_settings(folder):
        loads = loads_of([sweep]) if sweep.points else []
        if len(loads) < _LEAST:
            continue
        configuration, learnt = loads[0].configuration, known.without_model(loads[0].configuration.model)
        kind = "MoE" if loads[0].deployed.shape.counts.experts else "dense"
        by_shape: dict[tuple[int, int], list[Load]] = {}
        for load in sorted(loads, key=lambda load: load.point.concurrency or 0):
            by_shape.setdefault((load.point.inputs[1], load.point.outputs[1]), []).append(load)
        of = Configuration(sweep.deployment.name, kind, configuration.model, configuration.engine)
        yield of, [Shape(tuple(some), learnt) for some in by_shape.values()]


def learnt_widths(folder: Path) -> dict[str, float]:
    """Standard deviations of ln(constant/estimate) with which runs foretell the rate best, models left out.

    Of those with which one run makes TPOT of other loads no worse in three of four configurations; what is outside of
    the engine is taken to be twice as uncertain.
    """
    every = [shapes for _, shapes in shapes_of(read(folder), folder)]

    def spread(width: float) -> FloatArray:
        constants = every[0][0].parts.shape[2] - 1
        return np.array([width] * constants + [2 * width])

    def worse(width: float) -> float:
        rows = (row for shapes in every for row in one_run_rows(_POOLED, shapes, spread(width)))
        return float(np.mean([row.foretold for row in rows]))

    def error(width: float) -> float:
        off = [
            [_off(shape, hidden, spread(width)) for shape in shapes for hidden in shape.objectives]
            for shapes in every
        ]
        return float(np.prod(np.median([np.median(some, axis=0) for some in off if some], axis=0)))

    constants = min((width for width in _WIDTHS if worse(width) <= _WORSE), key=error)
    return {"constants": constants, "overhead": 2 * constants}


def _off(shape: Shape, hidden: int, spread: FloatArray) -> list[float]:
    """How far off a rate is after one run and after two."""
    runs, truth, limit_s = shape.proposed(hidden, spread), shape.truth(hidden), shape.measured_s[hidden, 1]
    rates = (shape.end(shape.fitted(some, spread), limit_s)[1] for some in (runs[:1], runs))
    return [abs(math.exp(rate) / truth - 1) for rate in rates]


def _sweep_rows(known: Known, folder: Path) -> Iterator[Row]:
    held = []
    for of, shapes in shapes_of(known, folder):
        every = [row for s in shapes for hidden in s.objectives for row in objective_rows(of, s, hidden)]
        off: dict[str, list[float]] = {}
        for row in every:
            off.setdefault(row.quantity, []).append(abs(row.foretold / row.measured - 1))
        if every:
            held.append(1 - float(np.mean(off["interval holds"])))
            worse = median(off["rate, two runs"]) > median(off["rate, two runs at random"])
            yield Row(of, "", "two runs worse than at random", "%", float(worse), 0.0)
        yield from (row for row in every if row.quantity != "interval holds")
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
