"""Learns what engines reach of the peaks of GPUs from concurrency sweeps, of all models or of all but one.

A sweep gives TTFT and TPOT of C clients that each send their next request when the last one is done. Of those
C·(1 - TTFT/E2E) are decoding, B; they hold K = B·(input + output/2) KV tokens, and since each of them stands for one
prompt in `output` iterations, P = B·input/output prefill tokens come with an iteration. TPOT is the mean of the law
there. TTFT is read where few clients wait for one another.

The constants are the robust least squares of the logarithms of both, every configuration of model, GPU, engine, type
of weights and parallelism with the same weight.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from kvplan.ingest.model.config import read_model
from kvplan.ingest.model.hardware import Gpu, find_gpu
from kvplan.ingest.model.roofline import Efficiency, estimated_timing
from kvplan.ingest.model.shape import ModelShape, kv_bytes_per_token
from kvplan.ingest.model.weights import named_storage
from kvplan.ingest.timing.samples import Deployment, Point, Sweep
from kvplan.model import FloatArray, Parallelism

BANDWIDTH = (
    0.85  # an assumption: what kernels that stream weights reach. From 0.75 to 1 nothing held out tells
)
REQUEST_OVERHEAD_S = (
    0.014  # of tokeniser and server, as measured on other sweeps: part of TTFT, not of an iteration
)
_TTFT_WEIGHT = 0.3
_TTFT_CLIENTS = 8  # at most: beyond, TTFT is mostly waiting
_SCALE = 0.02  # of a residual of logarithms from which on it counts in proportion, not squared
_NOTHING = Efficiency(math.inf, math.inf, math.inf, math.inf, 0.0, 0.0)  # all is free


class Configuration(NamedTuple):
    """What a sweep is of; versions of engines together."""

    model: str
    gpu: str
    engine: str
    precision: str
    tensor_parallel: int
    other: str


@dataclass(frozen=True)
class Load:
    """One concurrency of a sweep; see the module for what the properties stand for."""

    configuration: Configuration
    shape: ModelShape
    gpu: Gpu
    clients: int
    input_tokens: float
    output_tokens: float
    ttft_s: float
    tpot_s: float
    all_at_once: bool

    @property
    def decoding(self) -> float:
        """B."""
        return self.clients * (1 - self.ttft_s / self.e2e_s)

    @property
    def e2e_s(self) -> float:
        """From a request to its last token."""
        return self.ttft_s + self.tpot_s * (self.output_tokens - 1)

    @property
    def kv_tokens(self) -> float:
        """K."""
        return self.decoding * (self.input_tokens + self.output_tokens / 2)

    @property
    def prefill_tokens(self) -> float:
        """P."""
        return self.decoding * self.input_tokens / self.output_tokens

    @property
    def has_ttft(self) -> bool:
        """Whether it tells what TTFT is of: sends of the others are known, and few are waited for."""
        return self.all_at_once and self.clients <= _TTFT_CLIENTS

    @property
    def fits(self) -> bool:
        """Whether weights and KV cache have room, at 8 bits for the cache: else the figures are of something else."""
        share = self.configuration.tensor_parallel
        per_token = kv_bytes_per_token(self.shape, kv_dtype="fp8", tensor_parallel=share)
        return self.shape.weight_bytes / share + per_token * self.kv_tokens < self.gpu.memory_bytes

    @cached_property
    def parts_s(self) -> FloatArray:
        """What each of `u_of` adds to an iteration: of shape (6, 2), without and with its prefill tokens."""
        reached = [replace(_NOTHING, **{name: 1.0}) for name in Efficiency.__dataclass_fields__]
        laws = [
            estimated_timing(
                self.shape, self.gpu, one, parallelism=Parallelism(self.configuration.tensor_parallel)
            )
            for one in reached
        ]
        return np.array(
            [[law(self.kv_tokens, p, self.decoding) for p in (0.0, self.prefill_tokens)] for law in laws]
        )

    def foretold(self, u: FloatArray) -> tuple[float, float]:
        """TPOT and TTFT; see `u_of`.

        A request waits for the end of an iteration, for the prompts before it, and for its own.
        """
        alone, loaded = u @ self.parts_s
        prompt = (loaded - alone) / self.prefill_tokens * self.input_tokens
        before = min(1.0, (self.clients - 1) * prompt / self.e2e_s) * prompt / 2
        if self.all_at_once:  # a tenth of the requests are the first of their clients
            before += 0.1 * (self.clients - 1) / 2 * prompt
        return loaded, REQUEST_OVERHEAD_S + alone / 2 + before + alone + prompt


def loads_of(sweeps: Iterable[Sweep]) -> list[Load]:
    """The loads of sweeps, without those listed twice and those that cannot be what they say.

    DeepSeek-R1 and -V3 are one model, and some points stand in a file twice, of two sources or versions.
    """
    found: dict[tuple[object, ...], Load] = {}
    for sweep in sweeps:
        configuration, shape, gpu = _read(sweep.deployment)
        for point in sweep.points:
            if point.ttft_s is None or point.tpot_s is None or point.concurrency is None:
                continue
            times = round(1e3 * point.ttft_s, 1), round(1e3 * point.tpot_s, 1)
            key = (configuration, point.inputs[1], point.outputs[1], point.concurrency, *times)
            found[key] = _load(configuration, shape, gpu, point, point.ttft_s, point.tpot_s)
    return [load for load in found.values() if load.fits]


def _read(deployment: Deployment) -> tuple[Configuration, ModelShape, Gpu]:
    shape, precision = read_model(deployment.model), deployment.weight_dtype
    if precision != "int4" and (precision, shape.storage.name) != ("fp4", "mxfp4"):  # else as published
        shape = replace(shape, storage=named_storage(precision))
    gpu = find_gpu(deployment.gpu)
    of = (deployment.engine, precision, deployment.tensor_parallel, deployment.other)
    return Configuration(shape.name, gpu.name, *of), shape, gpu


def _load(
    configuration: Configuration, shape: ModelShape, gpu: Gpu, point: Point, ttft_s: float, tpot_s: float
) -> Load:
    return Load(
        configuration,
        shape,
        gpu,
        point.concurrency or 0,
        sum(point.inputs) / 2,
        sum(point.outputs) / 2,
        ttft_s,
        tpot_s,
        point.inputs[0] < point.inputs[1],  # who draws lengths from a range sends all at once
    )


def weights(loads: Iterable[Load]) -> FloatArray:
    """The same for every configuration, over all of its loads."""
    configurations = [load.configuration for load in loads]
    number = Counter(configurations)
    return np.array([1 / number[one] for one in configurations])


def learn(loads: Sequence[Load]) -> Efficiency:
    """The constants that foretell these loads best."""
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    weight = np.sqrt(weights(loads))
    waits = [i for i, load in enumerate(loads) if load.has_ttft]
    measured = np.array([(load.tpot_s, load.ttft_s) for load in loads])

    def residuals(log_u: FloatArray) -> FloatArray:
        u = _with_bandwidth(log_u)
        error = np.log(np.array([load.foretold(u) for load in loads]) / measured) * weight[:, None]
        return np.concatenate([error[:, 0], math.sqrt(_TTFT_WEIGHT) * error[waits, 1]])

    start = u_of(Efficiency(BANDWIDTH, 0.5, 0.1, 0.3, 60e-6, 30e-6))[1:]
    least = np.array([1.0] * 3 + [1e-7] * 2)  # no more than the peaks
    found = least_squares(
        residuals, np.log(start), bounds=(np.log(least), np.inf), loss="soft_l1", f_scale=_SCALE
    )
    u = _with_bandwidth(found.x)
    values = np.concatenate([1 / u[:4], u[4:]])
    return Efficiency(*(float(f"{value:.3g}") for value in values))


def learn_without(loads: Iterable[Load], model: str) -> Efficiency:
    """What is learnt from all other models."""
    return learn([load for load in loads if load.configuration.model != model])


def _with_bandwidth(log_u: FloatArray) -> FloatArray:
    return np.concatenate([[1 / BANDWIDTH], np.exp(log_u)])


def u_of(reached: Efficiency) -> FloatArray:
    """What the time of an iteration is linear in: shares of peaks inverted, and seconds.

    Examples
    --------
    >>> u_of(Efficiency(0.5, 0.5, 0.1, 0.25, 1e-5, 2e-5)).round(6).tolist()
    [2.0, 2.0, 10.0, 4.0, 1e-05, 2e-05]
    """
    values = np.array(astuple(reached))
    return np.concatenate([1 / values[:4], values[4:]])
