"""Learns kvplan/ingest/model/roofline.toml from public concurrency sweeps; `python tests/learn_roofline.py` prints it.

A sweep gives TTFT and TPOT of C clients that each send their next request when the last one is done. Of those
C·(1 - TTFT/E2E) are decoding, B; they hold K = B·(input + output/2) KV tokens, and since each of them stands for one
prompt in `output` iterations, P = B·input/output prefill tokens come with an iteration. TPOT is the mean of the law
there. TTFT is read where few clients wait for one another.

The constants are the robust least squares of the logarithms of both, every configuration of model, GPU, engine, type
of weights and parallelism with the same weight. Bands come from models left out one by one, each foretold with
constants learnt from the others.
"""

import csv
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from kvplan.ingest.model.config import read_model
from kvplan.ingest.model.hardware import Gpu, find_gpu
from kvplan.ingest.model.roofline import Efficiency, estimated_timing
from kvplan.ingest.model.shape import ModelShape, kv_bytes_per_token
from kvplan.ingest.model.weights import named_storage

SWEEPS = Path(__file__).resolve().parents[2] / "shared/data/silicon-sweeps/sweeps.csv"
BANDWIDTH = (
    0.85  # an assumption: what kernels that stream weights reach. From 0.75 to 1 nothing held out tells
)
REQUEST_OVERHEAD_S = (
    0.014  # of tokeniser and server, as measured on other sweeps: part of TTFT, not of an iteration
)
TTFT_WEIGHT = 0.3
TTFT_CLIENTS = 8  # at most: beyond, TTFT is mostly waiting
LEAST_CONFIGURATIONS = 4  # for a band of their own
_SCALE = 0.02  # of a residual of logarithms from which on it counts in proportion, not squared

Group = TypeVar("Group")

NOTHING = Efficiency(math.inf, math.inf, math.inf, math.inf, 0.0, 0.0)  # all is free


class Configuration(NamedTuple):
    """What a sweep is of; versions of engines apart."""

    model: str
    gpu: str
    engine: str
    precision: str
    tensor_parallel: int
    expert_parallel: str


@dataclass(frozen=True)
class Point:
    """One concurrency of a sweep."""

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
        return self.all_at_once and self.clients <= TTFT_CLIENTS

    @property
    def fits(self) -> bool:
        """Whether weights and KV cache have room, at 8 bits for the cache: else the figures are of something else."""
        share = self.configuration.tensor_parallel
        per_token = kv_bytes_per_token(self.shape, kv_dtype="fp8", tensor_parallel=share)
        return self.shape.weight_bytes / share + per_token * self.kv_tokens < self.gpu.memory_bytes

    @cached_property
    def parts_s(self) -> NDArray[np.float64]:
        """What each of `u` adds to an iteration: of shape (6, 2), without and with its prefill tokens."""
        reached = [replace(NOTHING, **{name: 1.0}) for name in Efficiency.__dataclass_fields__]
        laws = [
            estimated_timing(self.shape, self.gpu, one, tensor_parallel=self.configuration.tensor_parallel)
            for one in reached
        ]
        return np.array(
            [[law(self.kv_tokens, p, self.decoding) for p in (0.0, self.prefill_tokens)] for law in laws]
        )

    def foretold(self, u: NDArray[np.float64]) -> tuple[float, float]:
        """TPOT and TTFT; see `u_of`.

        A request waits for the end of an iteration, for the prompts before it, and for its own.
        """
        alone, loaded = u @ self.parts_s
        prompt = (loaded - alone) / self.prefill_tokens * self.input_tokens
        before = min(1.0, (self.clients - 1) * prompt / self.e2e_s) * prompt / 2
        if self.all_at_once:  # a tenth of the requests are the first of their clients
            before += 0.1 * (self.clients - 1) / 2 * prompt
        return loaded, REQUEST_OVERHEAD_S + alone / 2 + before + alone + prompt


def read_points(path: Path = SWEEPS) -> list[Point]:
    """The points of a file of sweeps, without those listed twice and those that cannot be what they say."""
    with path.open(newline="") as file:
        points = {_key(row): _point(row) for row in csv.DictReader(file)}
    return [point for point in points.values() if point.fits]


def _key(row: dict[str, str]) -> tuple[object, ...]:
    """DeepSeek-R1 and -V3 are one model, and some points stand in the file twice, of two sources or versions."""
    times = [round(float(row[name]), 1) for name in ("ttft_ms", "tpot_ms")]
    columns = ("gpu", "backend", "precision", "tp", "ep", "isl", "osl", "concurrency")
    return (read_model(row["model"]).name, *(row[name] for name in columns), *times)


def _point(row: dict[str, str]) -> Point:
    shape, precision = read_model(row["model"]), row["precision"]
    if precision != "int4" and (precision, shape.storage.name) != ("fp4", "mxfp4"):  # else as published
        shape = replace(shape, storage=named_storage(precision))
    inferencemax = row["source"] == "inferencemax"
    drawn = 0.9 if inferencemax else 1.0  # lengths are drawn from 0.8 to 1 times what is said
    gpu = find_gpu(row["gpu"])
    return Point(
        Configuration(shape.name, gpu.name, row["backend"], precision, int(row["tp"]), row["ep"]),
        shape,
        gpu,
        int(row["concurrency"]),
        drawn * int(row["isl"]),
        drawn * int(row["osl"]),
        float(row["ttft_ms"]) / 1e3,
        float(row["tpot_ms"]) / 1e3,
        inferencemax,
    )


def weights(points: Iterable[Point]) -> NDArray[np.float64]:
    """The same for every configuration, over all of its points."""
    configurations = [point.configuration for point in points]
    number = Counter(configurations)
    return np.array([1 / number[one] for one in configurations])


def learn(points: Sequence[Point]) -> Efficiency:
    """The constants that foretell these points best."""
    weight = np.sqrt(weights(points))
    waits = [i for i, point in enumerate(points) if point.has_ttft]

    def residuals(log_u: NDArray[np.float64]) -> NDArray[np.float64]:
        foretold = np.array([point.foretold(_with_bandwidth(log_u)) for point in points])
        measured = np.array([(point.tpot_s, point.ttft_s) for point in points])
        error = np.log(foretold / measured) * weight[:, None]
        return np.concatenate([error[:, 0], math.sqrt(TTFT_WEIGHT) * error[waits, 1]])

    start = u_of(Efficiency(BANDWIDTH, 0.5, 0.1, 0.3, 60e-6, 30e-6))[1:]
    least = np.array([1.0] * 3 + [1e-7] * 2)  # no more than the peaks
    found = least_squares(
        residuals, np.log(start), bounds=(np.log(least), np.inf), loss="soft_l1", f_scale=_SCALE
    )
    u = _with_bandwidth(found.x)
    values = np.concatenate([1 / u[:4], u[4:]])
    return Efficiency(*(float(f"{value:.3g}") for value in values))


def _with_bandwidth(log_u: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([[1 / BANDWIDTH], np.exp(log_u)])


def u_of(reached: Efficiency) -> NDArray[np.float64]:
    """What the time of an iteration is linear in: shares of peaks inverted, and seconds."""
    values = np.array(astuple(reached))
    return np.concatenate([1 / values[:4], values[4:]])


class Ratio(NamedTuple):
    """Measured over foretold, of a point whose model was left out."""

    point: Point
    tpot: float
    ttft: float


def held_out(points: Sequence[Point]) -> list[Ratio]:
    """Each model foretold with what is learnt from the others."""
    models = sorted({point.configuration.model for point in points})
    return [ratio for model in models for ratio in left_out(points, model)]


def left_out(points: Sequence[Point], model: str) -> list[Ratio]:
    """One model foretold with what is learnt from the others."""
    of_model = [point.configuration.model == model for point in points]
    u = u_of(learn([point for point, is_of_model in zip(points, of_model, strict=True) if not is_of_model]))
    ratios = []
    for point in compress(points, of_model):
        tpot, ttft = point.foretold(u)
        ratios.append(Ratio(point, point.tpot_s / tpot, point.ttft_s / ttft))
    return ratios


class Band(NamedTuple):
    """From the 10 % quantile of ratios to the 90 % one, every configuration with the same weight."""

    low: float
    high: float
    configurations: int


def bands(ratios: Sequence[Ratio]) -> dict[tuple[str, int], Band]:
    """By kind of model and tensor parallelism."""
    groups = defaultdict(list)
    for ratio in ratios:
        groups[group_of(ratio.point)].append(ratio)
    found = {}
    for group, members in groups.items():
        points = [ratio.point for ratio in members]
        order = np.argsort([ratio.tpot for ratio in members])
        share = np.cumsum(weights(points)[order]) / weights(points).sum()
        low, high = (members[order[np.searchsorted(share, q)]].tpot for q in (0.1, 0.9))
        number = len({point.configuration for point in points})
        if number >= LEAST_CONFIGURATIONS:
            found[group] = Band(round(low, 2), round(high, 2), number)
    return found


def group_of(point: Point) -> tuple[str, int]:
    """What a band is learnt for."""
    kind = "experts" if point.shape.counts.experts else "dense"
    return kind, point.configuration.tensor_parallel


def factors(ratios: Sequence[Ratio]) -> dict[tuple[str, int], float]:
    """How far off TPOT is, either way: the median over configurations of the factor of their median point."""
    return _factors((group_of(ratio.point), ratio.point.configuration, ratio.tpot) for ratio in ratios)


def ttft_factors(ratios: Sequence[Ratio]) -> dict[str, float]:
    """The same of TTFT with few clients, by kind of model."""
    return _factors(
        (group_of(ratio.point)[0], ratio.point.configuration, ratio.ttft)
        for ratio in ratios
        if ratio.point.has_ttft
    )


def _factors(ratios: Iterable[tuple[Group, Configuration, float]]) -> dict[Group, float]:
    by_configuration = defaultdict(list)
    for group, configuration, ratio in ratios:
        by_configuration[group, configuration].append(ratio)
    off = defaultdict(list)
    for (group, _), values in by_configuration.items():
        off[group].append(math.exp(abs(math.log(np.median(values)))))
    return {group: float(np.median(values)) for group, values in off.items()}


def document(points: Sequence[Point], ratios: Sequence[Ratio]) -> str:
    """The file, but for its comment."""
    lines = [f"gpus = {json.dumps(gpus(points))}", "", "[efficiency]"]
    lines += [f"{name} = {value}" for name, value in asdict(learn(points)).items()]
    found = sorted(bands(ratios).items())
    for kind in ("dense", "experts"):
        lines += ["", f"[bands.{kind}]"]
        for (of, number), band in found:
            if of == kind:
                values = ", ".join(f"{name} = {value}" for name, value in band._asdict().items())
                lines.append(f"{number} = {{ {values} }}")
    return "\n".join(lines)


def gpus(points: Iterable[Point]) -> list[str]:
    """Those that sweeps are of."""
    return sorted({point.gpu.name for point in points})


def main() -> None:
    """Print the file, and how far off the figures are that it was not fitted to."""
    points = read_points(Path(sys.argv[1]) if len(sys.argv) > 1 else SWEEPS)
    ratios = held_out(points)
    print(document(points, ratios))
    print(f"\n# {len(points)} points of {len({point.configuration for point in points})} configurations")
    print("# TPOT is off by the factor", {group: round(f, 2) for group, f in sorted(factors(ratios).items())})
    print("# TTFT is off by the factor", {kind: round(f, 2) for kind, f in ttft_factors(ratios).items()})


if __name__ == "__main__":
    main()
