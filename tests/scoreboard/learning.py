"""Learns what engines reach of the peaks of GPUs from concurrency sweeps, of all models or of all but some.

Each load is played as the engine schedules it (`kvplan.ingest.timing.played`): TTFT and TPOT are sums over iterations,
and so linear in the constants of the law, which are linear in what is learnt: shares of peaks inverted, and seconds.
What is learnt is learnt from InferenceMAX's, for how others send their requests is not known. What no load tells (the
compute of dense models, where the only one is left out) stays what the search begins with.

The constants are the robust least squares of the logarithms of both, every configuration of model, GPU, engine, type
of weights and parallelism with the same weight.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import NamedTuple

import numpy as np

from kvplan.engine import EngineName
from kvplan.ingest.model.config import read_model
from kvplan.ingest.model.hardware import Gpu, find_gpu
from kvplan.ingest.model.roofline import Efficiency, assumed_kv_dtype, estimated_timing
from kvplan.ingest.model.shape import ModelShape, kv_bytes_per_token
from kvplan.ingest.model.weights import named_storage
from kvplan.ingest.timing.equations import Kind
from kvplan.ingest.timing.played import Law, foretold
from kvplan.ingest.timing.samples import Deployment, Point, Sweep
from kvplan.model import FloatArray, Timing

BANDWIDTH, NVLINK, PCIE = 0.85, 200e9, 1 / 3.35  # assumptions
_TTFT_WEIGHT = 0.3
_PULL = 1e-3  # towards what the search begins with
_SCALE = 0.01  # of a residual of logarithms from which on it counts in proportion, not squared
_NOTHING = Efficiency(*[math.inf] * 6, 0.0, 0.0, 0.0)  # all is free
_SHARES = 6  # of peaks: the others are seconds
_LEARNT = slice(3, None)
_LAW = ("d0", "d1", "d2", "d3", "experts")  # what times are linear in
_UNIT = Timing(1.0)


class Configuration(NamedTuple):
    """What a sweep is of; versions of engines together."""

    model: str
    gpu: str
    engine: str
    precision: str
    parallelism: str


class Learnt(NamedTuple):
    """What is reached, and seconds that a request takes outside of each engine."""

    reached: Efficiency
    overhead_s: dict[EngineName, float]


@dataclass(frozen=True)
class Load:
    """One concurrency of a sweep, played: TTFT and TPOT as they were measured, and what each constant adds to them.

    `parts_s` is of shape (2, n_constants), TTFT and TPOT by what `u_of` has.
    """

    configuration: Configuration
    gpus: int
    shape: ModelShape
    point: Point
    has_ttft: bool  # how requests come is known
    parts_s: FloatArray

    @property
    def measured_s(self) -> FloatArray:
        """TTFT and TPOT."""
        assert self.point.ttft_s is not None
        assert self.point.tpot_s is not None
        return np.array([self.point.ttft_s, self.point.tpot_s])

    def foretold_s(self, learnt: Learnt) -> FloatArray:
        """TTFT and TPOT."""
        overhead = learnt.overhead_s[EngineName(self.configuration.engine)]
        return self.parts_s @ u_of(learnt.reached) + [overhead, 0.0]


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


def deployed(deployment: Deployment) -> tuple[Configuration, ModelShape, Gpu]:
    """What was measured, with its weights as the benchmark names them."""
    shape, precision = read_model(deployment.model), deployment.weight_dtype
    if precision != "int4" and (precision, shape.storage.name) != ("fp4", "mxfp4"):  # else as published
        shape = replace(shape, storage=named_storage(precision))
    gpu = find_gpu(deployment.gpu)
    of = (deployment.engine, precision, str(deployment.parallelism))
    return Configuration(shape.name, gpu.name, *of), shape, gpu


def _played(sweep: Sweep) -> list[Load]:
    configuration, shape, gpu = deployed(sweep.deployment)
    engine, ranks = EngineName(configuration.engine), sweep.deployment.parallelism
    kv_dtype = assumed_kv_dtype(gpu, engine)
    units = [replace(_NOTHING, **{f.name: 1.0}) for f in fields(Efficiency)]
    laws = [
        estimated_timing(shape, gpu, one, parallelism=ranks, kv_dtype=kv_dtype, engine=engine).of_ranks(
            ranks.data
        )
        for one in units
    ]
    constants = np.array([[getattr(law, name) for law in laws] for name in _LAW])
    unit, *more = _amounts(sweep, laws[0].chosen)
    rows = []
    for i, point in enumerate(sweep.points):
        slopes = np.array([one[i] for one in more]).T - unit[i][:, None]
        rows.append(
            Load(
                configuration,
                ranks.gpus,
                shape,
                point,
                point.inputs[0] < point.inputs[1],  # who draws lengths from a range is InferenceMAX
                slopes @ constants,
            )
        )
    room = gpu.memory_bytes - shape.weight_bytes / ranks.gpus
    per_token = kv_bytes_per_token(shape, kv_dtype="fp8", tensor_parallel=ranks.tensor)
    return [row for row in rows if per_token * _held(row.point) / ranks.data < room]


def _held(point: Point) -> float:
    return (point.concurrency or 0) * (sum(point.inputs) / 2 + sum(point.outputs) / 4)


def _amounts(sweep: Sweep, chosen: float) -> list[list[FloatArray]]:
    """TTFT and TPOT of each point at a law, and with each of its constants one more."""
    unit = replace(_UNIT, chosen=chosen)
    laws = [unit, *(replace(unit, **{name: getattr(unit, name) + 1}) for name in _LAW)]
    return [
        [np.array([times[Kind.TTFT], times[Kind.TPOT]]) for times in foretold([sweep], Law(law))]
        for law in laws
    ]


def weights(loads: Iterable[Load]) -> FloatArray:
    """The same for every configuration, over all of its loads."""
    configurations = [load.configuration for load in loads]
    number = Counter(configurations)
    return np.array([1 / number[one] for one in configurations])


def learn(loads: Sequence[Load]) -> Learnt:
    """The constants that foretell these loads best."""
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    loads = [load for load in loads if load.has_ttft]
    weight = np.sqrt(weights(loads))
    parts = np.array([load.parts_s for load in loads])
    measured = np.array([load.measured_s for load in loads])
    engines = list(EngineName)
    of_engine = np.array(
        [[load.configuration.engine == name for name in engines] for load in loads], dtype=float
    )
    known = u_of(Efficiency(BANDWIDTH, NVLINK, PCIE, 0.6, 0.1, 1.0, 65e-6, 30e-6, 30e-6))

    def unpacked(log_u: FloatArray) -> tuple[FloatArray, FloatArray]:
        values = np.exp(log_u)
        return np.concatenate([known[: _LEARNT.start], values[: -len(engines)]]), values[-len(engines) :]

    def residuals(log_u: FloatArray) -> FloatArray:
        u, overhead = unpacked(log_u)
        times = parts @ u
        times[:, 0] += of_engine @ overhead
        error = np.log(times / measured) * weight[:, None]
        return np.concatenate([error[:, 1], math.sqrt(_TTFT_WEIGHT) * error[:, 0], _PULL * (log_u - start)])

    start = np.log(np.concatenate([known[_LEARNT], [0.03] * len(engines)]))
    result = least_squares(residuals, start, loss="soft_l1", f_scale=_SCALE)
    u, overhead = unpacked(result.x)
    values = [float(f"{value:.3g}") for value in np.concatenate([1 / u[:_SHARES], u[_SHARES:]])]
    return Learnt(
        Efficiency(*values), {name: round(float(s), 4) for name, s in zip(engines, overhead, strict=True)}
    )


def learn_without(loads: Iterable[Load], left_out: Callable[[Configuration], bool]) -> Learnt:
    """What is learnt from the others."""
    return learn([load for load in loads if not left_out(load.configuration)])


def u_of(reached: Efficiency) -> FloatArray:
    """What the time of an iteration is linear in: shares of peaks inverted, and seconds.

    Examples
    --------
    >>> u_of(Efficiency(0.5, 200e9, 0.25, 0.5, 0.1, 1.0, 1e-5, 2e-5, 0.0)).round(6).tolist()
    [2.0, 0.0, 4.0, 2.0, 10.0, 1.0, 1e-05, 2e-05, 0.0]
    """
    values = np.array(astuple(reached))
    return np.concatenate([1 / values[:_SHARES], values[_SHARES:]])
