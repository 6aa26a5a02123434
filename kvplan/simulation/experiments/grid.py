"""The best variant of a grid over parameters of policies, and those that cannot be told from it."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from kvplan.model import FloatArray
from kvplan.simulation.estimates import Interval, half_width_over_runs
from kvplan.simulation.experiments.study import Study
from kvplan.simulation.metrics import MORE_IS_BETTER, PolicyResult, RunStatus


class Search(NamedTuple):
    """The best of all policies and variants by a figure; None where none has it."""

    figure: str
    best: str | None
    alike: tuple[str, ...]  # others whose difference from the best may be chance
    livelocks: tuple[str, ...]


def search(study: Study, figure: str | None = None) -> Search:
    """Find the best by a figure; None: goodput where there are objectives, else throughput.

    Where all serve the same within their intervals, the mean time end to end decides. The best is told from others by
    the differences of each seed, with Student's 95 % interval; of a single seed by the intervals of both.
    """
    if figure is None:
        figure = "goodput_rps" if study.objectives else "throughput_rps"
        first = _search(study, figure, paired=False)
        if len(first.alike) + 1 == len(study.results) - len(first.livelocks):
            figure = "e2e_s.mean"
    return _search(study, figure, paired=len(study.seeds) > 1)


def _search(study: Study, figure: str, *, paired: bool) -> Search:
    livelocks = tuple(each.policy for each in study.results if each.status is RunStatus.LIVELOCK)
    names = ranked(study, figure)
    if not names:
        return Search(figure, None, (), livelocks)
    best, values = names[0], _by_seed(study, figure)
    intervals = {each.policy: each.ci95[figure] for each in study.results}

    def is_alike(name: str) -> bool:
        difference = values[name] - values[best]
        if paired:
            half_width = half_width_over_runs(difference)
        else:
            half_width = _combined(intervals[name], intervals[best]) if study.by_chance else 0.0
        return abs(float(difference.mean())) <= half_width

    return Search(figure, best, tuple(filter(is_alike, names[1:])), livelocks)


def _by_seed(study: Study, figure: str) -> Mapping[str, FloatArray]:
    """Return the figure in each run of those that have it in all of them."""
    rows = {
        result.policy: [figures[figure] for figures in runs]
        for result, runs in zip(study.results, study.by_seed, strict=True)
    }
    return {name: np.array(row, dtype=np.float64) for name, row in rows.items() if None not in row}


def _combined(*intervals: Interval | None) -> float:
    """Return half the interval of a difference of figures that are taken to be independent."""
    return math.hypot(*(math.inf if each is None else (each[1] - each[0]) / 2 for each in intervals))


def ranked(study: Study, figure: str) -> list[str]:
    """List those that have the figure and go on, the best first."""
    livelocks = {each.policy for each in study.results if each.status is RunStatus.LIVELOCK}
    values = {name: row for name, row in _by_seed(study, figure).items() if name not in livelocks}
    return sorted(values, key=lambda name: float(values[name].mean()), reverse=figure in MORE_IS_BETTER)


def by_policy(study: Study) -> dict[str, list[PolicyResult]]:
    """Group results by policy."""
    groups: dict[str, list[PolicyResult]] = {}
    for result in study.results:
        groups.setdefault(study.settings[result.policy].policy, []).append(result)
    return groups


def leading(study: Study, figure: str) -> Study:
    """Leave of each policy the best of its variants, or the first where none has the figure."""
    groups = [[result.policy for result in results] for results in by_policy(study).values()]
    return study.only([next(iter(ranked(study.only(names), figure)), names[0]) for names in groups])
