"""Learns kvplan/ingest/model/roofline.toml from public concurrency sweeps; `python tests/learn_roofline.py` prints it.

What is learnt, and how: `scoreboard.learning`. Bands come from models left out one by one, each foretold
with constants learnt from the others.
"""

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from sampled import read_samples
from scoreboard.learning import Configuration, Load, learn, learn_without, loads_of, u_of, weights

from kvplan.ingest.timing.samples import Sweep

SWEEPS = Path(__file__).resolve().parents[2] / "shared/data/silicon-sweeps/sweeps.csv"
LEAST_CONFIGURATIONS = 4  # for a band of their own

Group = TypeVar("Group")


def read_points(path: Path = SWEEPS) -> list[Load]:
    """The loads of a file of sweeps."""
    return loads_of(some for some in read_samples(path) if isinstance(some, Sweep))


class Ratio(NamedTuple):
    """Measured over foretold, of a load whose model was left out."""

    point: Load
    tpot: float
    ttft: float


def held_out(points: Sequence[Load]) -> list[Ratio]:
    """Each model foretold with what is learnt from the others."""
    models = sorted({point.configuration.model for point in points})
    return [ratio for model in models for ratio in left_out(points, model)]


def left_out(points: Sequence[Load], model: str) -> list[Ratio]:
    """One model foretold with what is learnt from the others."""
    u = u_of(learn_without(points, model))
    ratios = []
    for point in points:
        if point.configuration.model == model:
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


def group_of(point: Load) -> tuple[str, int]:
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


def document(points: Sequence[Load], ratios: Sequence[Ratio]) -> str:
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


def gpus(points: Iterable[Load]) -> list[str]:
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
