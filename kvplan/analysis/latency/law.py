"""Laws of a time as functions on a grid, mixed and asked for percentiles."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvplan.analysis.latency.distribution import Distribution
from kvplan.model import FloatArray

_NEAR = 0.1  # of what lies above a percentile: so far to both sides a gap is looked for
_LEVELS = 1 << 11  # of a law's probabilities
_WIDTH = 1e-9  # of a time that is certain, for its law to be continuous
_GAP = 1.2  # factor between the two that makes one


class Law(NamedTuple):
    """Probability that a time is below each of ascending values, linear between them; a law ends at its last value.

    Part of a law ends below 1.
    """

    seconds: FloatArray
    below: FloatArray

    @property
    def mass(self) -> float:
        """Of all of it: 1, or less for a part."""
        return float(self.below[-1])

    def shifted(self, by: float) -> "Law":
        """The law of a time longer by so much."""
        return self._replace(seconds=self.seconds + by)

    def reduced(self) -> "Law":
        """The same law, as good as, at fewer values: where nothing happens there is none."""
        if not self.mass > 0:
            return self
        level = np.floor(self.below / self.mass * _LEVELS)
        steps = np.flatnonzero(np.diff(level))
        kept = np.unique(np.concatenate([[0], steps, steps + 1, [level.size - 1]]))
        return Law(self.seconds[kept], self.below[kept])

    def at(self, quantile: float) -> float:
        """The time that so large a part is below."""
        return float(np.interp(quantile * self.mass, self.below, self.seconds))


def certain(seconds: float, mass: float = 1.0) -> Law:
    """The law of a time that is always the same."""
    return Law(np.array([1 - _WIDTH, 1 + _WIDTH]) * seconds, np.array([0.0, mass]))


def mixture(laws: Sequence[Law], weights: Sequence[float]) -> Law:
    """The law of a time that follows each of several with a probability proportional to its weight.

    Examples
    --------
    >>> both = mixture([certain(1.0), Law(np.array([2.0, 4.0]), np.array([0.0, 1.0]))], [2.0, 2.0])
    >>> round(both.at(0.25), 6), round(both.at(0.75), 6)
    (1.0, 3.0)
    """
    parts = [(law, w) for law, w in zip(laws, weights, strict=True) if w > 0 and law.mass > 0]
    if len(parts) == 1:
        return parts[0][0]
    total = sum(w for _, w in parts)
    seconds = np.sort(np.concatenate([law.seconds for law, _ in parts]))
    below = np.zeros(seconds.size)
    for law, weight in parts:
        below += weight / total / law.mass * np.interp(seconds, law.seconds, law.below, left=0.0)
    return Law(seconds, below).reduced()


def distribution(law: Law, mean: float, added_s: float = 0.0) -> Distribution:
    """What a law says, its mean given, everything longer by `added_s`; with ranges where percentiles fall into gaps.

    Examples
    --------
    >>> gap = mixture([certain(1.0), certain(9.0)], [0.905, 0.095])
    >>> found = distribution(gap, 1.76)
    >>> [round(t) for t in found[1:5]], found.p50_range, [round(t) for t in found.p90_range]
    ([1, 1, 9, 9], None, [1, 9])
    """
    figures: list[float] = []
    ranges: list[tuple[float, float] | None] = []
    for quantile in (0.5, 0.9, 0.95, 0.99):
        reach = _NEAR * (1 - quantile)
        low, high = (law.at(quantile + side * reach) + added_s for side in (-1, 1))
        figures.append(law.at(quantile) + added_s)
        ranges.append((low, high) if high > _GAP * low else None)
    p50, p90, p95, p99 = figures
    return Distribution(mean + added_s, p50, p90, p95, p99, *ranges)
