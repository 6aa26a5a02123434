"""How sure a simulated figure is, over seeds or by batches of one run, and whether a queue grows.

Over seeds runs are independent, and Student's t applies. Within one run neighbours resemble each other, so
the run is cut into `BATCHES` contiguous batches (Schmeiser 1982: 10 to 30 whatever the length of the run).
The estimate is always that of the whole run; the batches give only its spread, so that a percentile does not
inherit the bias of short batches. What correlation is left between neighbouring batches widens the interval
(Tafazzoli, Steiger and Wilson 2011). Warm-up is neither cut from the figures nor from the intervals.

An interval is None where it cannot be had, and where nothing varied: that no run had an eviction, say, is no proof
that longer ones have none.

References
----------
B. Schmeiser, "Batch size effects in the analysis of simulation output", Operations Research 30 (1982).
A. Tafazzoli, N. M. Steiger, J. R. Wilson, "N-Skart: a nonsequential skewness- and autoregression-adjusted
batch-means procedure for simulation analysis", IEEE Transactions on Automatic Control 56 (2011).
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from typing import NamedTuple

import numpy as np

from kvplan.model import FloatArray, IntArray

BATCHES = 20
_NO_WIDTH = 1e-9  # over the estimate: rounding
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


def around(estimate: float | None, half_width: float | None) -> Interval | None:
    """Bound a figure that cannot be negative about its estimate; None where the interval would have no width."""
    if estimate is None or half_width is None or not _NO_WIDTH * abs(estimate) < half_width < math.inf:
        return None
    return max(estimate - half_width, min(estimate, 0.0)), estimate + half_width


def over_runs(values: Sequence[float]) -> Interval | None:
    """Bound the mean of a figure of independent runs; None for fewer than two, and where all are the same."""
    return None if len(values) < 2 else around(float(np.mean(values)), half_width_over_runs(values))


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
    """Σ amounts / Σ sizes over the batches of independent runs.

    What the batches of a run have in common with their neighbours widens the error by √((1 + φ)/(1 - φ)), φ the
    correlation of neighbouring residuals, plus 1/n because it is estimated low by so much.

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
    """Return where `BATCHES` contiguous batches of n values begin and end, shape (BATCHES + 1,).

    >>> batch_edges(200).tolist()[:4]
    [0, 10, 20, 30]
    """
    return np.arange(BATCHES + 1) * n // BATCHES


class Trend(StrEnum):
    """What a queue does."""

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
        Whether the run is long enough to be called growing.

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
