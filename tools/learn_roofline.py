"""Learns kvplan/ingest/model/roofline.toml from public concurrency sweeps and runs, and prints it.

    PYTHONPATH=tools:tests python tools/learn_roofline.py

What is learnt, and how: `scoreboard.learning`. Bands come from models left out one by one, each foretold with
constants learnt from the others; those of unseen GPUs from GPUs left out; ratios are those to what is shipped.
"""

import datetime
import hashlib
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from scoreboard.catalogue import folder_beside_checkout
from scoreboard.deployed import Configuration
from scoreboard.learning import Learnt, Load, learn, loads_of, weights
from scoreboard.measured import learnt_widths
from scoreboard.recorded import RESIDENCY, TRAINING, Run, read_runs
from scoreboard.sweeps import FILE, SETTINGS, with_settings

# Recorded over simulated makespan of Llama-3.1-8B on GPUs that no sweep is of, in tests/real/test_roofline_sweeps.py
ON_OTHER_GPUS = {"RTX 4090": 0.92, "RTX PRO 6000": 1.14}
# Of ln(measured/law), with a margin: fits to all loads of a configuration leave 0.041 and 0.098, robustly
NOISE_OF_LAW = {"tpot": 0.05, "ttft": 0.12, "misfit": 0.05}
LEAST_CONFIGURATIONS = 4  # for a band of their own
LEAST_POINTS = 5  # for ratios of their own
MOST_SPREAD = 3  # of ratios, high over low: beyond, the points are hardly of one deployment

Group = TypeVar("Group", bound=Hashable)


class Points(NamedTuple):
    """Loads of sweeps that were not speculative, and runs, from which is learnt too."""

    loads: Sequence[Load]
    runs: Sequence[Run]
    widths: Mapping[str, float]  # of what is believed

    def learnt(self, left_out: Callable[[Configuration], bool] = lambda of: False) -> Learnt:
        """What is learnt from all but some."""
        return learn([*self.loads, *self.runs], left_out)


def read_points(folder: Path) -> Points:
    """What a folder has."""
    return Points(loads_of(with_settings(folder)), read_runs(folder), learnt_widths(folder))


class Ratio(NamedTuple):
    """Measured over foretold, of a load."""

    point: Load
    ttft: float
    tpot: float

    @property
    def kind(self) -> str:
        """Of the model."""
        return "experts" if self.point.deployed.shape.counts.experts else "dense"


def ratios(points: Iterable[Load], learnt: Learnt) -> list[Ratio]:
    """Compare what was measured with what is foretold."""
    return [Ratio(point, *(point.measured_s / point.foretold_s(learnt)).tolist()) for point in points]


def held_out(points: Points, key: Callable[[Configuration], str]) -> list[Ratio]:
    """Foretell each model, or each GPU, with what is learnt from the others."""

    def of(name: str) -> list[Ratio]:
        learnt = points.learnt(lambda configuration: key(configuration) == name)
        return ratios((point for point in points.loads if key(point.configuration) == name), learnt)

    return [ratio for name in sorted({key(p.configuration) for p in points.loads}) for ratio in of(name)]


class Band(NamedTuple):
    """From the 10 % quantile of ratios of TPOT to the 90 % one, every configuration with the same weight."""

    low: float
    high: float
    configurations: int


def bands(found: Iterable[Ratio], key: Callable[[Ratio], Group]) -> dict[Group, Band]:
    """The band of each group that has enough configurations."""
    groups: dict[Group, list[Ratio]] = defaultdict(list)
    for ratio in found:
        groups[key(ratio)].append(ratio)
    return {
        group: Band(*quantiles(members), number)
        for group, members in sorted(groups.items())
        if (number := len({ratio.point.configuration for ratio in members})) >= LEAST_CONFIGURATIONS
    }


def quantiles(members: Sequence[Ratio]) -> tuple[float, float]:
    """The 10 % and 90 % quantiles."""
    order = np.argsort([ratio.tpot for ratio in members])
    weight = weights([ratio.point for ratio in members])[order]
    share = np.cumsum(weight) / weight.sum()
    low, high = (members[order[min(np.searchsorted(share, q), order.size - 1)]].tpot for q in (0.1, 0.9))
    return round(low, 2), round(high, 2)


def by_gpus(ratio: Ratio) -> tuple[str, int]:
    """What a band is learnt for."""
    return ratio.kind, ratio.point.deployed.ranks.gpus


def own(points: Sequence[Load], learnt: Learnt) -> dict[str, dict[str, tuple[float, float, int]]]:
    """The ratios of each model to what is learnt: low, high, points, by GPU, parallelism, engine and weights."""
    groups: dict[tuple[str, str], list[Ratio]] = defaultdict(list)
    for ratio in ratios(points, learnt):
        of = ratio.point.configuration
        where = f"{of.gpu} {of.parallelism} {of.engine} {ratio.point.deployed.shape.storage.name}"
        groups[of.model, where].append(ratio)
    found: dict[str, dict[str, tuple[float, float, int]]] = defaultdict(dict)
    for (model, where), members in sorted(groups.items()):
        low, high = quantiles(members)
        if len(members) >= LEAST_POINTS and high <= MOST_SPREAD * low:
            found[model][where] = low, high, len(members)
    return found


def gpus(points: Iterable[Load]) -> list[str]:
    """Those that sweeps are of from which anything is learnt."""
    return sorted({point.configuration.gpu for point in points if point.has_ttft})


def document(points: Points) -> str:
    """The file, but for its comment."""
    learnt = points.learnt()
    models = held_out(points, lambda of: of.model)
    unseen = bands(held_out(points, lambda of: of.gpu), lambda ratio: ratio.kind)
    dense, others = unseen["dense"], ON_OTHER_GPUS.values()
    low, high = min(dense.low, *others), max(dense.high, *others)
    unseen["dense"] = Band(low, high, dense.configurations + len(others))
    lines = [f"gpus = {json.dumps(gpus(points.loads))}", "", "[efficiency]"]
    lines += [f"{name} = {value}" for name, value in asdict(learnt.reached).items()]
    lines += ["", "[answer]"]
    lines += [f"{name} = {_inline(asdict(answer))}" for name, answer in learnt.answers.items()]
    lines += ["", "[belief]", f"date = {datetime.date.today()}"]
    lines += [f"{name} = {value}" for name, value in {**points.widths, **NOISE_OF_LAW}.items()]
    by_number = bands(models, by_gpus)
    for kind in ("dense", "experts"):
        lines += ["", f"[bands.{kind}]"]
        lines += [
            f"{number} = {_inline(band._asdict())}" for (of, number), band in by_number.items() if of == kind
        ]
    lines += ["", "[unseen_gpu]", *(f"{kind} = {_inline(band._asdict())}" for kind, band in unseen.items())]
    for model, measured in own(points.loads, learnt).items():
        lines += [
            "",
            f'[ratios."{model}"]',
            *(f'"{where}" = {json.dumps(of)}' for where, of in measured.items()),
        ]
    return "\n".join(lines)


def _inline(values: Mapping[str, float]) -> str:
    return f"{{ {', '.join(f'{name} = {value}' for name, value in values.items())} }}"


def main() -> None:
    """Print the file."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else folder_beside_checkout()
    assert folder is not None
    points = read_points(folder)
    for file in (FILE, SETTINGS, TRAINING, RESIDENCY):
        print(f"# {file}: sha256 {hashlib.sha256((folder / file).read_bytes()).hexdigest()}")
    configurations = {point.configuration for point in points.loads}
    learnt_from = sum(point.has_ttft for point in points.loads)
    print(f"# {datetime.date.today()}: {len(points.loads)} points of {len(configurations)} configurations")
    print(f"# learnt from {learnt_from} of InferenceMAX and {len(points.runs)} runs")
    print(document(points))


if __name__ == "__main__":
    main()
