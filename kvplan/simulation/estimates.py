"""Values of runs in batches: means, percentiles and shares of all together, each with how sure it is.

How far off a percentile is follows from the share of values below it, batch by batch.

References
----------
R. S. Woodruff, "Confidence intervals for medians and other position measures", JASA 47 (1952).
P. Heidelberger, P. A. W. Lewis, "Quantile estimation in dependent sequences", Operations Research 32 (1984).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvplan.model import FloatArray, IntArray
from kvplan.simulation.intervals import Ratio, ratio
from kvplan.simulation.state import GAPS, GAPS_IN_E, SHORTEST_GAP_S

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
FIGURES = ("mean", *QUANTILES)
_GAP_S: FloatArray = SHORTEST_GAP_S * np.exp((np.arange(GAPS) + 0.5) / GAPS_IN_E)
BINS_IN_E = 250  # of times, each .4 % wide, to which ends of intervals are rounded outward
_NO_WIDTH = 1e-9  # over the estimate: rounding
_EDGE = 1e-6  # of a bin: at its end
_ALONE = 0.1  # what neighbouring bins hold, of one whose gaps are all alike


class Estimate(NamedTuple):
    """A figure, its 95 % interval, and for percentiles how far off the share below it may be.

    An upper end is infinite where the sample does not have it.
    """

    value: float
    low: float
    high: float
    share_width: float = math.inf

    @property
    def rounded(self) -> "Estimate":
        """The same with the ends of the interval rounded outward to bins."""
        return self._replace(low=_rounded(self.low, math.floor), high=_rounded(self.high, math.ceil))

    @property
    def interval(self) -> tuple[float, float | None]:
        """The interval as reported: rounded if it has a width, None where the sample does not have the upper end."""
        ends = self if self.low == self.high else self.rounded
        return ends.low, None if math.isinf(ends.high) else ends.high

    @property
    def ends(self) -> tuple[float, float] | None:
        """Both ends; None where the sample does not have them, and where nothing varied."""
        return (
            (self.low, self.high) if _NO_WIDTH * abs(self.value) < self.high - self.low < math.inf else None
        )

    @property
    def relative_width(self) -> float:
        """Relative width of the larger side."""
        if self.value <= 0:
            return 0.0 if self.high <= 0 else math.inf
        return max(self.high - self.value, self.value - self.low) / self.value


def _rounded(value: float, to: Callable[[float], int]) -> float:
    """To the end of a bin."""
    if value <= 0 or math.isinf(value):
        return value
    return math.exp(to(round(math.log(value) * BINS_IN_E, 9)) / BINS_IN_E)


def around(found: Ratio) -> Estimate:
    """Return a ratio with its 95 % interval."""
    return Estimate(found.value, max(found.value - found.half_width, 0.0), found.value + found.half_width)


class Values:
    """Values in batches; `total` is how many, `sizes` how many in each batch of each run."""

    total: int
    sizes: list[FloatArray]

    def mean(self) -> Ratio:
        """Return the mean of all."""
        raise NotImplementedError

    def share_above(self, limit: float) -> Ratio:
        """Return the share of those above a limit."""
        raise NotImplementedError

    def quantile(self, share: float) -> tuple[float, float]:
        """Return ends that a quantile is between."""
        raise NotImplementedError

    def counts(self, edges: FloatArray) -> FloatArray:
        """Return how many are between neighbouring edges."""
        raise NotImplementedError

    def value(self, figure: str) -> float | None:
        """Return the mean or a percentile; None where there is no value."""
        if self.total == 0:
            return None
        return self.mean().value if figure == "mean" else sum(self.quantile(QUANTILES[figure])) / 2

    def estimate(self, figure: str) -> Estimate | None:
        """Return the same with its interval."""
        if self.total == 0:
            return None
        if figure == "mean":
            return around(self.mean())
        share = QUANTILES[figure]
        low, high = self.quantile(share)
        width = self.share_above(high).half_width or 1 / self.total
        least = self.quantile(max(share - width, 0.0))[0]
        most = self.quantile(share + width)[1] if share + width < 1 else math.inf
        return Estimate((low + high) / 2, least, most, width)


class Times(Values):
    """Times of requests, run by run in order of their batches, and where batches begin and end; sorted once."""

    def __init__(self, values: Sequence[FloatArray], edges: Sequence[IntArray]) -> None:
        self._values, self._edges = values, edges
        self.sizes = [np.diff(mine).astype(np.float64) for mine in edges]
        self._sorted = np.sort(values[0] if len(values) == 1 else np.concatenate(values))
        self.total = self._sorted.size

    def mean(self) -> Ratio:
        return ratio(list(map(_sums, self._values, self._edges)), self.sizes)

    def share_above(self, limit: float) -> Ratio:
        above = [_sums(v > limit, mine) for v, mine in zip(self._values, self._edges, strict=True)]
        return ratio(above, self.sizes)

    def quantile(self, share: float) -> tuple[float, float]:
        """Interpolate between the values on both sides, as `numpy.quantile`: an interval without width."""
        below, part = divmod(share * (self.total - 1), 1)
        low, high = self._sorted[int(below)], self._sorted[min(int(below) + 1, self.total - 1)]
        value = float(low + part * (high - low))
        return value, value

    def counts(self, edges: FloatArray) -> FloatArray:
        return np.diff(np.searchsorted(self._sorted, edges))


def _sums(values: FloatArray | NDArray[np.bool_], edges: IntArray) -> FloatArray:
    """Return the sum of each batch, of which some may be empty."""
    filled = np.flatnonzero(edges[:-1] < edges[1:])
    sums = np.zeros(edges.size - 1)
    if filled.size:
        sums[filled] = np.add.reduceat(values, edges[filled], dtype=np.float64)
    return sums


class Gaps(Values):
    """Times between two tokens, as counts in fine bins: of each run an array of shape (n_batches, GAPS)."""

    def __init__(self, counts: Sequence[IntArray]) -> None:
        self._counts = counts
        self._below = np.concatenate([[0], np.cumsum(sum(mine.sum(axis=0) for mine in counts))])
        self.sizes = [mine.sum(axis=1).astype(np.float64) for mine in counts]
        self.total = int(self._below[-1])

    def mean(self) -> Ratio:
        return ratio([mine @ _GAP_S for mine in self._counts], self.sizes)

    def share_above(self, limit: float) -> Ratio:
        """Return the share above a limit, as if gaps were even in its bin; none of that if all in it are alike."""
        place = math.log(max(limit / SHORTEST_GAP_S, 1.0)) * GAPS_IN_E
        first = min(math.floor(place + _EDGE), GAPS - 2)
        part = min(max(first + 1 - place, 0.0), 1.0)
        before, here, after = np.diff(self._below)[[max(first - 1, 0), first, first + 1]]
        if part < 1 - _EDGE and before + after < _ALONE * here:
            part = 0.0
        beyond = [mine[:, first + 1 :].sum(axis=1) + part * mine[:, first] for mine in self._counts]
        return ratio(beyond, self.sizes)

    def quantile(self, share: float) -> tuple[float, float]:
        """Return the ends of the bin that the quantile is in."""
        place = int(np.searchsorted(self._below, share * self.total, side="left")) - 1
        middle = _GAP_S[min(max(place, 0), GAPS - 1)]
        half = math.exp(0.5 / GAPS_IN_E)
        return float(middle / half), float(middle * half)

    def counts(self, edges: FloatArray) -> FloatArray:
        return np.diff(self._below[np.searchsorted(_GAP_S, edges)])
