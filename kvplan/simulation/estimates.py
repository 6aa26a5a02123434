"""Intervals of simulated figures, by batches of runs or over runs: means, percentiles, shares; and queues that grow.

Over seeds runs are independent, and Student's t applies. Within one run neighbours resemble each other, so that the run
is cut into contiguous batches (Schmeiser 1982: 10 to 30 whatever its length). The estimate is always that of the whole
run, so that a percentile does not inherit the bias of short batches; how far off a percentile is follows from the share
of values below it, batch by batch. What correlation is left between neighbouring batches widens the interval
(Tafazzoli, Steiger and Wilson 2011). Warm-up is neither cut from the figures nor from the intervals.

An interval is None where it cannot be had, and where nothing varied: that no run had an eviction, say, is no proof
that longer ones have none.

References
----------
R. S. Woodruff, "Confidence intervals for medians and other position measures", JASA 47 (1952).
P. Heidelberger, P. A. W. Lewis, "Quantile estimation in dependent sequences", Operations Research 32 (1984).
B. Schmeiser, "Batch size effects in the analysis of simulation output", Operations Research 30 (1982).
A. Tafazzoli, N. M. Steiger, J. R. Wilson, "N-Skart: a nonsequential skewness- and autoregression-adjusted
batch-means procedure for simulation analysis", IEEE Transactions on Automatic Control 56 (2011).
"""

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvplan.model import FloatArray, IntArray
from kvplan.simulation.state import GAPS, GAPS_IN_E, SHORTEST_GAP_S

BATCHES = 20
_SLACK = 2.0  # requests that a queue may be longer in the end
_SLACK_SHARE = 0.02  # likewise, of the arrivals in a batch
_STEEP = 1.5  # times the half width of the interval of the slope

_LOOK_TWICE = 1e-14  # relative

Interval = tuple[float, float]


@cache
def t_quantile(degrees: int) -> float:
    """Return Student's t that 2.5 % exceed, for whole degrees of freedom; scipy takes longer to load than a short run.

    Newton's steps from below, where the probability is concave, so that none goes too far.

    References
    ----------
    M. Abramowitz, I. A. Stegun, "Handbook of Mathematical Functions" (1964), 26.7.3 and 26.7.4.

    >>> round(t_quantile(19), 3)
    2.093
    """
    t, step = 1.9, math.inf
    height = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(
        degrees * math.pi
    )
    while step > _LOOK_TWICE * t:
        step = (0.95 - _within(t, degrees)) / (2 * height * (1 + t * t / degrees) ** (-(degrees + 1) / 2))
        t += step
    return t


def _within(t: float, degrees: int) -> float:
    """Return the probability that Student's t is between -t and t."""
    cosine2, odd = degrees / (degrees + t * t), degrees % 2
    term = total = math.sqrt(cosine2) if odd else 1.0
    for k in range(2 + odd, degrees, 2):
        term *= cosine2 * (k - 1) / k
        total += term
    sine = math.sqrt(1 - cosine2)
    if not odd:
        return sine * total
    return 2 / math.pi * (math.atan(t / math.sqrt(degrees)) + (sine * total if degrees > 1 else 0.0))


def bounded(estimate: float | None, half_width: float | None) -> Interval | None:
    """Bound a figure that cannot be negative about its estimate; None where the interval would have no width."""
    if estimate is None or half_width is None or not _NO_WIDTH * abs(estimate) < half_width < math.inf:
        return None
    return max(estimate - half_width, min(estimate, 0.0)), estimate + half_width


def over_runs(values: Sequence[float]) -> Interval | None:
    """Bound the mean of a figure of independent runs; None for fewer than two, and where all are the same."""
    return None if len(values) < 2 else bounded(float(np.mean(values)), half_width_over_runs(values))


def half_width_over_runs(values: Sequence[float] | FloatArray) -> float:
    """Return half the 95 % interval of the mean of two independent values or more.

    >>> round(half_width_over_runs([1.0, 2.0, 3.0]), 3)
    2.484
    """
    n = len(values)
    unit = 2.0 ** (math.frexp(max(map(abs, values)))[1] - 1)  # squares can be beyond a float
    return t_quantile(n - 1) * float(np.std(np.array(values) / unit, ddof=1)) * unit / math.sqrt(n)


class Ratio(NamedTuple):
    """A ratio of sums, its standard error, and the degrees of freedom of that."""

    value: float
    standard_error: float
    degrees: int

    @property
    def half_width(self) -> float:
        """Half the 95 % interval."""
        return t_quantile(self.degrees) * self.standard_error


def ratio(amounts: Sequence[FloatArray], sizes: Sequence[FloatArray]) -> Ratio:
    """Return Σ amounts / Σ sizes over batches of independent runs.

    Correlation of neighbouring batches of a run widens the error by √((1 + φ)/(1 - φ)), φ the correlation of
    neighbouring residuals, plus 1/n because it is estimated low by so much.

    Parameters
    ----------
    amounts, sizes : sequence of ndarray, shape (n_batches,)
        Of each run, in order of time.

    Examples
    --------
    >>> ratio([np.array([2.0, 4.0])], [np.array([1.0, 2.0])])
    Ratio(value=2.0, standard_error=0.0, degrees=1)
    """
    total = math.fsum(float(s.sum()) for s in sizes)
    count = sum(s.size for s in sizes)
    if total <= 0:
        return Ratio(math.nan, math.inf, 1)
    value = math.fsum(float(a.sum()) for a in amounts) / total
    if count < 2:
        return Ratio(value, math.inf, 1)
    residuals = [a - value * s for a, s in zip(amounts, sizes, strict=True)]
    power = sum(float(r @ r) for r in residuals)
    if power == 0:
        return Ratio(value, 0.0, count - 1)
    neighbours = sum(float(r[:-1] @ r[1:]) for r in residuals)
    phi = min(max(neighbours / power + 1 / count, 0.0), 0.95)
    spread = math.sqrt(count / (count - 1) * power * (1 + phi) / (1 - phi))
    return Ratio(value, spread / total, count - 1)


def batch_edges(n: int) -> IntArray:
    """Return the edges of `BATCHES` contiguous batches of n values, shape (BATCHES + 1,).

    >>> batch_edges(200).tolist()[:4]
    [0, 10, 20, 30]
    """
    return np.arange(BATCHES + 1) * n // BATCHES


class Trend(StrEnum):
    """Trend of a queue."""

    STEADY = "steady"
    GROWING = "growing"
    UNDECIDED = "undecided"


def trend(least: FloatArray, arrivals: float, *, may_grow: bool = True) -> Trend:
    """Judge whether a queue is steady or grows, by its least of each batch of a run.

    *Steady*: the second half comes back to the least of the first, and the last quarter to its median, but for some
    slack. *Growing*: it does not, and a line through the batches rises by more than the slack and than chance explains.

    Parameters
    ----------
    least : ndarray, shape (n_batches,), at least 4
    arrivals
        Requests in a batch.
    may_grow
        True if the run is long enough to be called growing.

    References
    ----------
    New. Of 60 runs each at .98 of what saturates, 1.02 and 1.05 none was called growing, 51 were, and all.

    Examples
    --------
    >>> calm, rising = np.tile([0.0, 9.0], 8), 10.0 * np.arange(16)
    >>> trend(calm, 100.0).value, trend(rising, 100.0).value
    ('steady', 'growing')
    """
    slack = max(_SLACK, _SLACK_SHARE * arrivals)
    count = least.size
    first, second, last = least[: count // 2], least[count // 2 :], least[-(count // 4) :]
    if second.min() <= first.min() + slack and last.min() <= np.median(first) + slack:
        return Trend.STEADY
    place = np.arange(count) - (count - 1) / 2
    slope = float(place @ least / (place @ place))
    residuals = least - least.mean() - slope * place
    error = np.sqrt(float(residuals @ residuals) / (count - 2) / float(place @ place))
    steep = slope > _STEEP * t_quantile(count - 2) * error and slope * (count - 1) > slack
    return Trend.GROWING if may_grow and steep else Trend.UNDECIDED


def together(trends: Sequence[Trend]) -> Trend:
    """Return the trend of runs that have to agree."""
    return trends[0] if len(set(trends)) == 1 else Trend.UNDECIDED


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
    """Round to the end of a bin."""
    if value <= 0 or math.isinf(value):
        return value
    return math.exp(to(round(math.log(value) * BINS_IN_E, 9)) / BINS_IN_E)


def around(point: Ratio) -> Estimate:
    """Return a ratio with its 95 % interval."""
    return Estimate(point.value, max(point.value - point.half_width, 0.0), point.value + point.half_width)


class Values:
    """Values in batches; `total` is their number, `sizes` that of each batch of each run."""

    total: int
    sizes: list[FloatArray]

    def mean(self) -> Ratio:
        """Return the mean of all."""
        raise NotImplementedError

    def share_above(self, limit: float) -> Ratio:
        """Return the share of those above a limit."""
        raise NotImplementedError

    def quantile(self, share: float) -> tuple[float, float]:
        """Return the ends around a quantile."""
        raise NotImplementedError

    def counts(self, edges: FloatArray) -> FloatArray:
        """Count values between neighbouring edges."""
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
