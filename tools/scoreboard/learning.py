"""Learns what engines reach of the peaks of GPUs from concurrency sweeps and runs, of all models or of all but some.

Each load of a sweep is played as the engine schedules it (`kvplan.ingest.timing.played`): TTFT and TPOT of a closed
loop are sums over iterations, and so linear in the constants of the law but for its knee, for which they are tabulated.
What open loads do depends on how long iterations take: the logarithms of their times are taken to be linear in those
of what is learnt, around where the search begins. What is learnt is learnt from InferenceMAX's sweeps, for how others
send their requests is not known, and from the first two sources of runs. What no load tells (the arithmetic of FP4,
where the only dense model is left out) stays what the search begins with.

The constants are the robust least squares of the logarithms of both, every configuration of model, GPU, engine, type
of weights and parallelism with the same weight.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from kvplan.engine import EngineName
from kvplan.ingest.model.roofline import Answer, Efficiency
from kvplan.ingest.model.shape import kv_bytes_per_token
from kvplan.ingest.timing.equations import Kind
from kvplan.ingest.timing.played import Law, foretold
from kvplan.ingest.timing.samples import Point, Sweep
from kvplan.model import FloatArray, Timing
from scoreboard.deployed import Configuration, Deployed, deployed
from scoreboard.recorded import KEPT, Run, played

_START = Efficiency(
    bandwidth=0.85,  # this and the next four are assumptions
    nvlink_bytes_per_s=200e9,
    pcie=0.299,
    attention=0.5,
    sequence_s=2.9e-6,
    compute=1 / 1.57,
    expert_compute=1 / 9.12,
    fp4_compute=1 / 0.68,
    layer_s=42.6e-6,
    quantised_layer_s=24.4e-6,
    expert_layer_s=27.7e-6,
    sglang_layer_s=37.4e-6,
    trtllm_saved_s=12e-6,
)
_LEARNT = (
    "compute",
    "expert_compute",
    "fp4_compute",
    "layer_s",
    "quantised_layer_s",
    "expert_layer_s",
    "sglang_layer_s",
    "trtllm_saved_s",
)
_CLIENT, _SECONDS, _ITERATIONS = (
    0.017,
    (0.003, 0.2, 0.032),
    1.4,
)  # where the search begins; by engine; of vLLM
_TTFT_WEIGHT = 0.3
_RUNS_COUNT = 3  # times as much as sweeps
_PULL = 0.05  # towards what the search begins with
_SCALE = 0.01  # of a residual of logarithms from which on it counts in proportion, not squared
_STEP = 1.05
_LAW = ("d0", "d1", "d2", "d3", "experts", "d6")  # what times are linear in
_KNEES = np.geomspace(0.5, 2.0, 6)  # times the knee where the search begins
_UNIT = Timing(1.0)


class Learnt(NamedTuple):
    """What is reached, what a request takes outside of each engine, and what InferenceMAX's client adds to vLLM."""

    reached: Efficiency
    answers: dict[EngineName, Answer]
    client_s: float

    def law(self, of: Deployed) -> Law:
        """What loads are foretold by."""
        timing = of.law(self.reached)
        return Law(timing, self.answers[of.engine].overhead_s(timing))


@dataclass(frozen=True, eq=False)
class Load:
    """One concurrency of a sweep, played: TTFT and TPOT as they were measured, and what each constant adds to them.

    `amounts` of `_LAW` are of shape (2, n_constants), those `beyond` each of `knees` (n_knees, 2).
    """

    deployed: Deployed
    point: Point
    has_ttft: bool  # how requests come is known
    amounts: FloatArray
    knees: FloatArray
    beyond: FloatArray

    @property
    def configuration(self) -> Configuration:
        """What was measured."""
        return self.deployed.configuration

    @property
    def measured_s(self) -> FloatArray:
        """TTFT and TPOT."""
        assert self.point.ttft_s is not None
        assert self.point.tpot_s is not None
        return np.array([self.point.ttft_s, self.point.tpot_s])

    def foretold_s(self, learnt: Learnt) -> FloatArray:
        """TTFT and TPOT."""
        return _Loads([self]).foretold_s(learnt)[0]

    def parts(self, learnt: Learnt) -> FloatArray:
        """What each constant adds to TTFT and TPOT, d5 and what is outside of the engine last: (2, n_constants)."""
        law = self.deployed.law(learnt.reached).of_ranks(self.deployed.ranks.data)
        amounts = self.amounts * [getattr(law, name) for name in _LAW]
        outside = self.foretold_s(learnt) - amounts.sum(axis=1)
        outside[1] = 0.0
        beyond = law.d5 * _Loads([self])._beyond(np.array([law.knee_tokens]))[0]
        return np.column_stack([amounts, beyond, outside - [beyond[0], 0.0]])


class _Loads:
    """Many loads, to foretell at once."""

    def __init__(self, loads: Sequence[Load]) -> None:
        self.deployed = list(dict.fromkeys(load.deployed for load in loads))
        place = {of: i for i, of in enumerate(self.deployed)}
        self.which = np.array([place[load.deployed] for load in loads])
        self.amounts = np.array([load.amounts for load in loads])
        self.knees = np.array([load.knees for load in loads])
        self.beyond = np.array([load.beyond for load in loads])

    def foretold_s(self, learnt: Learnt) -> FloatArray:
        """TTFT and TPOT, of shape (n_loads, 2)."""
        laws = [of.law(learnt.reached) for of in self.deployed]
        besides = np.array(
            [
                learnt.answers[of.engine].overhead_s(law) + learnt.client_s * (of.engine is EngineName.VLLM)
                for of, law in zip(self.deployed, laws, strict=True)
            ]
        )[self.which]
        evenly = [law.of_ranks(of.ranks.data) for of, law in zip(self.deployed, laws, strict=True)]
        constants = np.array(
            [[getattr(law, name) for name in (*_LAW, "d5", "knee_tokens")] for law in evenly]
        )
        mine = constants[self.which]
        times = np.einsum("nkc,nc->nk", self.amounts, mine[:, :-2])
        times += mine[:, -2, None] * self._beyond(mine[:, -1])
        return times + np.stack([besides, np.zeros_like(besides)], axis=1)

    def _beyond(self, knee: FloatArray) -> FloatArray:
        """What is computed beyond a knee, between the two nearest that were played."""
        rows, last = np.arange(knee.size), self.knees.shape[1] - 2
        left = np.clip((self.knees <= knee[:, None]).sum(axis=1) - 1, 0, last)
        low, high = self.knees[rows, left], self.knees[rows, left + 1]
        share = np.clip((knee - low) / (high - low), 0.0, 1.0)[:, None]
        return np.asarray((1 - share) * self.beyond[rows, left] + share * self.beyond[rows, left + 1])


def loads_of(sweeps: Iterable[Sweep]) -> list[Load]:
    """The loads of sweeps, without those listed twice and those that cannot be what they say.

    DeepSeek-R1 and -V3 are one model, and some points stand in a file twice, of two sources or versions.
    """
    loads: dict[tuple[object, ...], Load] = {}
    for sweep in sweeps:
        points = tuple(p for p in sweep.points if None not in (p.ttft_s, p.tpot_s, p.concurrency))
        for load in _played(replace(sweep, points=points)) if points else ():
            point, times = load.point, (1e3 * load.measured_s).round(1)
            shape = point.inputs[1], point.outputs[1]
            key = (load.configuration, *shape, point.concurrency, *times)
            loads[key] = max(load, loads.get(key, load), key=lambda load: load.has_ttft)
    return list(loads.values())


def _played(sweep: Sweep) -> list[Load]:
    of = deployed(sweep.deployment)
    law = of.law(_START).of_ranks(of.ranks.data)
    unit, knees = replace(_UNIT, chosen=law.chosen), law.knee_tokens * _KNEES
    laws = [unit, *(replace(unit, **{name: getattr(unit, name) + 1}) for name in _LAW)]
    laws += [replace(unit, d5=1.0, knee_tokens=knee) for knee in knees]
    first, *more = (
        np.array([[times[Kind.TTFT], times[Kind.TPOT]] for times in foretold([sweep], Law(law))])
        for law in laws
    )
    slopes = np.array(more) - first  # of shape (n_laws - 1, n_points, 2)
    loads = [
        Load(
            of,
            point,
            point.inputs[0] < point.inputs[1],  # who draws lengths from a range is InferenceMAX
            slopes[: len(_LAW), i].T,
            knees,
            slopes[len(_LAW) :, i],
        )
        for i, point in enumerate(sweep.points)
    ]
    room = of.gpu.memory_bytes - of.shape.weight_bytes / of.ranks.gpus
    per_token = kv_bytes_per_token(of.shape, kv_dtype="fp8", tensor_parallel=of.ranks.tensor)
    return [load for load in loads if per_token * _held(load.point) / of.ranks.data < room]


def _held(point: Point) -> float:
    return (point.concurrency or 0) * (sum(point.inputs) / 2 + sum(point.outputs) / 4)


def weights(measured: Iterable[Load | Run]) -> FloatArray:
    """The same for every configuration, over all of its loads; more where these are runs, which are few."""
    configurations = [(one.configuration, isinstance(one, Run)) for one in measured]
    number = Counter(configurations)
    return np.array([(_RUNS_COUNT if one[1] else 1) / number[one] for one in configurations])


class _Runs(NamedTuple):
    """Open loads around where the search begins: logarithms of TTFT and TPOT, and their slopes by what is learnt.

    Of shape (n_runs, 2) and (n_runs, 2, n_learnt).
    """

    times: FloatArray
    slopes: FloatArray


@lru_cache(maxsize=1)
def _around(runs: tuple[Run, ...]) -> _Runs:
    more = [replace(_START, **{name: _STEP * getattr(_START, name)}) for name in _LEARNT]
    laws = [(run, Law(run.deployed.law(reached))) for reached in (_START, *more) for run in runs]
    times = np.log([one[:2] for one in played(laws)]).reshape(len(more) + 1, len(runs), 2)
    return _Runs(times[0], np.moveaxis(times[1:] - times[0], 0, -1) / math.log(_STEP))


def learn(
    measured: Iterable[Load | Run], left_out: Callable[[Configuration], bool] = lambda of: False
) -> Learnt:
    """The constants that foretell these best, but for some that are left out."""
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    measured = list(measured)
    loads = [
        one for one in measured if isinstance(one, Load) and one.has_ttft and not left_out(one.configuration)
    ]
    every = tuple(one for one in measured if isinstance(one, Run) and one.source != KEPT)
    kept = np.array([not left_out(run.configuration) for run in every], dtype=bool)
    runs = [run for run, is_kept in zip(every, kept, strict=True) if is_kept]
    many, seen = _Loads(loads), np.log([load.measured_s for load in loads])
    weight = np.sqrt(weights([*loads, *runs]))[:, None]
    around = _Runs(*(some[kept] for some in _around(every))) if runs else None
    seen_of_runs = np.log([run.measured[:2] for run in runs]).reshape(-1, 2)
    tells = np.array([[not run.is_close_to_its_knee, not run.gives_up] for run in runs])
    start = np.log([*(getattr(_START, name) for name in _LEARNT), _CLIENT, *_SECONDS, _ITERATIONS])
    begin = start[: len(_LEARNT)]

    def residuals(log_values: FloatArray) -> FloatArray:
        learnt = _unpacked(np.exp(log_values))
        off = np.log(many.foretold_s(learnt)) - seen
        if around is not None:
            times = np.exp(around.times + around.slopes @ (log_values[: len(_LEARNT)] - begin))
            times[:, 0] += [learnt.law(run.deployed).request_overhead_s for run in runs]
            off = np.concatenate([off, np.where(tells, np.log(times) - seen_of_runs, 0.0)])
        off = off * weight * [math.sqrt(_TTFT_WEIGHT), 1.0]
        return np.concatenate([off.ravel(), _PULL * (log_values - start)])

    result = least_squares(residuals, start, loss="soft_l1", f_scale=_SCALE)
    return _unpacked(np.array([float(f"{value:.3g}") for value in np.exp(result.x)]))


def _unpacked(values: FloatArray) -> Learnt:
    reached = replace(_START, **dict(zip(_LEARNT, values.tolist(), strict=False)))
    client, *seconds, iterations = values[len(_LEARNT) :].tolist()
    engines = (EngineName.VLLM, EngineName.SGLANG, EngineName.TRTLLM)
    answers = {name: Answer(some) for name, some in zip(engines, seconds, strict=True)}
    return Learnt(reached, answers | {EngineName.VLLM: Answer(seconds[0], iterations)}, client)
