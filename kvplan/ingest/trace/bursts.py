"""Recorded arrivals split into slow variation, a schedule, and clusters, a coefficient of variation of gaps.

Counts are split at the time scale of a stay. Over steps ten times as long and longer, what differs by more than chance
is a schedule; what varies within a step, in windows of a stay, gives the cv of gamma gaps that vary as much. The two
then say how much counts should vary in windows from a second to an hour; where the recorded ones vary otherwise,
neither tells enough, and simulations should replay the trace.
"""

import math
from typing import NamedTuple

import numpy as np

from kvplan.analysis.dispersion import cv_of_dispersion, index_of_dispersion
from kvplan.ingest.lengths import cut
from kvplan.model import FloatArray, IntArray
from kvplan.model.schedule import StepCourse

WINDOWS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
LEAST, MOST = 0.8, 1.25  # share of the variance that is explained well enough
LEVELS = 24  # different rates of a schedule
_STAYS, _LEAST_STEP_S, _MOST_STEPS = 10, 60.0, 1000  # of a step
_SIGMAS = 4.0  # by which neighbours differ, or they are one step
_LEAST_INDEX = 0.01  # variance over mean of counts, which at less are regular
_FEWEST = 20  # windows that a variance is taken over


class Explained(NamedTuple):
    """Variance over mean of counts in windows: recorded, and by schedule and cv."""

    window_s: float
    recorded: float
    modelled: float
    error: float  # relative, twice the standard error of `recorded` if it were that of independent counts

    @property
    def share(self) -> float:
        """Modelled over recorded, of which at least `_LEAST_INDEX` is taken."""
        return self.modelled / max(self.recorded, _LEAST_INDEX)

    @property
    def enough(self) -> bool:
        """Whether the share is within `LEAST` and `MOST`, but for chance; too much only beyond Poisson's."""
        too_much = self.recorded > 1 and self.share / (1 + self.error) > MOST
        return self.share * (1 + self.error) >= LEAST and not too_much


class Bursts(NamedTuple):
    """A split of arrivals."""

    course: StepCourse  # factors of the mean rate over the recorded time
    cv: float  # of gamma gaps
    scale_s: float | None  # the windows that it was taken over; None: as described, not counted
    windows: tuple[Explained, ...]  # how much of the variance of counts the two explain

    @property
    def enough(self) -> bool:
        """Whether schedule and cv explain the variance in all windows."""
        return all(window.enough for window in self.windows)


def split(counts: FloatArray, cell_s: float, stay_s: float) -> Bursts:
    """Split arrivals, given by their counts in cells of time.

    Parameters
    ----------
    counts : ndarray, shape (n_cells,)
    cell_s, stay_s
        Seconds of a cell, and of a request in the engine.

    Examples
    --------
    >>> rates = np.repeat([2.0, 10.0, 2.0], 960)
    >>> bursts = split(np.random.default_rng(0).poisson(rates).astype(float), 1.0, 5.0)
    >>> bursts.course.factors.round(1).tolist(), bursts.cv, bursts.enough
    ([0.4, 2.2, 0.4], 1.0, True)
    """
    span, rate = counts.size * cell_s, float(counts.sum()) / counts.size / cell_s
    length = max(_STAYS * stay_s, _LEAST_STEP_S, span / _MOST_STEPS)
    edges = np.linspace(0, counts.size, max(int(span / length), 1) + 1).round().astype(np.int64)
    scale = min(max(round(stay_s / cell_s), 1), counts.size)
    cv = 1.0
    for _ in range(2):  # the second time within the steps that the first one leaves
        cv = _clustering(counts, edges, scale, rate, cell_s)
        edges = _merged(counts, edges, rate, cv, cell_s)
    course = _course(np.add.reduceat(counts, edges[:-1]), edges, cell_s)
    return Bursts(course, cv, scale * cell_s, tuple(_explained(counts, cell_s, rate, cv, course)))


def described(rates: FloatArray, width_s: float, cv: float) -> Bursts:
    """Make the split of described arrivals: windows with a rate each, and one cv."""
    edges = np.linspace(0, rates.size, min(rates.size, _MOST_STEPS) + 1).round().astype(np.int64)
    edges = _merged(rates * width_s, edges, float(rates.mean()), cv, width_s)
    course = _course(np.add.reduceat(rates * width_s, edges[:-1]), edges, width_s)
    return Bursts(course, cv, None, ())


def _clustering(counts: FloatArray, edges: IntArray, scale: int, rate: float, cell_s: float) -> float:
    """Find the cv that varies counts as much within steps, in windows of `scale` cells; 1 if it may be chance."""
    squares, degrees = 0.0, 0
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        windows = (end - begin) // scale
        if windows > 1:
            inside = counts[begin : begin + windows * scale].reshape(windows, scale).sum(axis=1)
            squares += float(inside.var()) * windows
            degrees += windows - 1
    if degrees < _FEWEST:
        return 1.0
    window = scale * cell_s
    index = squares / degrees / (rate * window)
    if abs(index - 1) < _SIGMAS * math.sqrt(2 / degrees):
        return 1.0
    return cv_of_dispersion(rate, index, window)


def _merged(counts: FloatArray, edges: IntArray, rate: float, cv: float, cell_s: float) -> IntArray:
    """Edges of steps, all neighbours of which differ by more than chance: the most alike are one, again and again."""
    kept, sums = edges.tolist(), np.add.reduceat(counts, edges[:-1]).tolist()
    shortest = float(np.diff(edges).min()) * cell_s
    index = index_of_dispersion(rate, cv, shortest)
    while len(sums) > 1:
        amount, seconds = np.array(sums), np.diff(kept) * cell_s
        mean = amount / seconds
        # counts vary as their pooled rate says
        pooled = (amount[1:] + amount[:-1]) / (seconds[1:] + seconds[:-1])
        chance = np.sqrt(index * pooled * (1 / seconds[1:] + 1 / seconds[:-1]))
        apart = np.abs(np.diff(mean)) / np.where(chance > 0, chance, 1.0)
        alike = int(apart.argmin())
        if apart[alike] >= _SIGMAS:
            break
        del kept[alike + 1]
        sums[alike : alike + 2] = [sums[alike] + sums[alike + 1]]
    return np.array(kept, dtype=np.int64)


def _course(sums: FloatArray, edges: IntArray, cell_s: float) -> StepCourse:
    """Steps of at most `LEVELS` different rates, as factors of the mean."""
    cells = np.diff(edges)
    rates = sums / cells
    order = np.argsort(rates, kind="stable")
    ranked = np.rint(rates[order] / rates.max() * 1e6).astype(np.int64)
    level = np.empty(rates.size, dtype=np.int64)
    level[order] = cut(ranked, cells[order].astype(np.float64), LEVELS)
    mean = np.bincount(level, sums) / np.bincount(level, cells)
    factors = np.round(mean[level] / (sums.sum() / cells.sum()), 4)
    kept = np.append(True, np.diff(factors) != 0)
    return StepCourse(float(edges[-1] * cell_s), edges[:-1][kept] * cell_s, factors[kept])


def _explained(
    counts: FloatArray, cell_s: float, rate: float, cv: float, course: StepCourse
) -> list[Explained]:
    explained = []
    for window_s in WINDOWS_S:
        size = round(window_s / cell_s)
        windows = counts.size // size if size else 0
        if windows < _FEWEST:
            continue
        inside = counts[: windows * size].reshape(windows, size).sum(axis=1)
        expected = np.diff(course.integral(np.arange(windows + 1, dtype=np.float64) * (size * cell_s))) * rate
        mean = float(inside.mean())
        modelled = index_of_dispersion(rate, cv, size * cell_s) + float(expected.var(ddof=1)) / mean
        recorded, error = float(inside.var(ddof=1)) / mean, 2 * math.sqrt(2 / (windows - 1))
        explained.append(Explained(size * cell_s, recorded, modelled, error))
    return explained
