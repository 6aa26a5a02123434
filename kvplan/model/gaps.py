"""How long until what a request leaves in the prefix cache is asked for again (theory §8).

A law gives, `until` g seconds have passed, P(gap ≤ g) and ∫₀^g P(gap > u) du, how much of a gap has passed on average;
for numbers or arrays of seconds; both from one call, since they cost the same. `density` is the slope of the first.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kvplan.model.arrays import FloatArray

Seconds = Any  # a float, or an array of them


@dataclass(frozen=True)
class Exponential:
    """Memoryless gaps."""

    mean_s: float

    def until(self, g: Seconds) -> tuple[Any, Any]:
        reached = -np.expm1(-g / self.mean_s)
        return reached, self.mean_s * reached

    def density(self, g: Seconds) -> float:
        return math.exp(-g / self.mean_s) / self.mean_s


@dataclass(frozen=True)
class Lognormal:
    """Gaps whose logarithms are normal: how long people and tools take to answer."""

    median_s: float
    sigma: float

    @property
    def mean_s(self) -> float:
        return self.median_s * math.exp(self.sigma**2 / 2)

    def until(self, g: Seconds) -> tuple[Any, Any]:
        score = self._score(g)
        reached, partial = normal(np.array([score, score - self.sigma]))
        return reached, g * (1 - reached) + self.mean_s * partial

    def density(self, g: Seconds) -> float:
        if g == 0:
            return 0.0
        score = float(self._score(g))
        return float(math.exp(-score * score / 2) / (math.sqrt(2 * math.pi) * self.sigma * g))

    def _score(self, g: Seconds) -> Any:
        return np.log(np.maximum(g, 1e-300) / self.median_s) / self.sigma


@dataclass(frozen=True)
class Quantiles:
    """Gaps known by equally likely values, the steps of their law; a single one is a fixed gap.

    Steps have no density. For a slope the share of a value is spread over the room between its neighbours' middles.
    """

    values_s: tuple[float, ...]

    @property
    def mean_s(self) -> float:
        return math.fsum(self.values_s) / len(self.values_s)

    def until(self, g: Seconds) -> tuple[Any, Any]:
        # a gap of g is not over: at g = 0 nothing is known of it, since whoever comes at once waits like all others
        reached = np.searchsorted(self._sorted, g, side="left") / self._sorted.size
        return reached, np.interp(g, *self._passed)

    def density(self, g: Seconds) -> float:
        """Slope of P(gap ≤ g) around g, 1/s."""
        edges = self._edges
        cell = int(np.searchsorted(edges, g, side="right")) - 1
        if not 0 <= cell < edges.size - 1:
            return 0.0
        return float(1 / (edges.size - 1) / (edges[cell + 1] - edges[cell]))

    @cached_property
    def _sorted(self) -> FloatArray:
        return np.sort(np.array(self.values_s, dtype=np.float64))

    @cached_property
    def _passed(self) -> tuple[FloatArray, FloatArray]:
        """Where the integral bends, and its values there."""
        at = np.concatenate([[0.0], self._sorted])
        longer = 1 - np.arange(self._sorted.size) / self._sorted.size
        return at, np.concatenate([[0.0], np.cumsum(np.diff(at) * longer)])

    @cached_property
    def _edges(self) -> FloatArray:
        values = self._sorted
        if values[0] == values[-1]:
            return values[:1]
        middle = (values[1:] + values[:-1]) / 2
        edges = np.concatenate([[2 * values[0] - middle[0]], middle, [2 * values[-1] - middle[-1]]])
        return np.asarray(np.maximum(edges, 0.0))


Gap = Exponential | Lognormal | Quantiles


def longer(gap: Gap, factor: float) -> Gap:
    """Return the law of gaps that are so many times as long."""
    match gap:
        case Exponential(mean_s):
            return Exponential(mean_s * factor)
        case Lognormal(median_s, sigma):
            return Lognormal(median_s * factor, sigma)
        case Quantiles(values_s):
            return Quantiles(tuple(value * factor for value in values_s))


def normal(score: Any) -> Any:
    """P(a standard normal ≤ score); numpy has no error function, and scipy takes long to load."""
    scaled = np.asarray(score / -math.sqrt(2))
    return np.array(list(map(math.erfc, scaled.ravel().tolist()))).reshape(scaled.shape) / 2
