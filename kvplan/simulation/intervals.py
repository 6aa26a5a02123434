"""How sure a simulated figure is: confidence intervals over seeds or from one run, and whether a queue grows.

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
R. S. Woodruff, "Confidence intervals for medians and other position measures", JASA 47 (1952).
P. Heidelberger, P. A. W. Lewis, "Quantile estimation in dependent sequences", Operations Research 32 (1984).
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvplan.model import FloatArray, IntArray

BATCHES = 20
_MIN_BATCH = 10  # values in a batch, below which its mean says little
_TREND_BATCHES = 16
_MIN_GROWTH = 1.0  # requests over the window
_NO_WIDTH = 1e-9  # over the estimate: rounding
_MIN_VISIBLE = 1.0  # growth over the window against the standard deviation about the line

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
    if estimate is None or half_width is None or half_width <= _NO_WIDTH * abs(estimate):
        return None
    return max(estimate - half_width, min(estimate, 0.0)), estimate + half_width


def over_runs(values: Sequence[float]) -> Interval | None:
    """Bound the mean of a figure of independent runs; None for fewer than two, and where all are the same."""
    n = len(values)
    if n < 2:
        return None
    unit = 2.0 ** (math.frexp(max(map(abs, values)))[1] - 1)  # squares can be beyond a float
    half_width = t_quantile(n - 1) * float(np.std(np.array(values) / unit, ddof=1)) * unit / math.sqrt(n)
    return around(float(np.mean(values)), half_width)


def ratio_half_width(amounts: FloatArray, sizes: FloatArray) -> float | None:
    """Return half the 95 % interval of Σ amounts / Σ sizes, from contiguous batches of one run.

    The spread is that of the residuals D_j = amount_j - ratio·size_j. Their lag-1 correlation φ > 0
    multiplies their variance by (1 + φ)/(1 - φ), as in N-Skart.

    Parameters
    ----------
    amounts, sizes : ndarray, shape (n_batches,)
        What each batch adds to numerator and denominator.

    Returns
    -------
    float or None
        In the unit of the ratio; None for fewer than two batches or sizes that sum to 0.

    Examples
    --------
    >>> ratio_half_width(np.array([2.0, 4.0, 6.0]), np.array([1.0, 2.0, 3.0]))
    0.0
    >>> round(ratio_half_width(np.array([1.0, 3.0, 1.0, 3.0]), np.ones(4)), 2)
    1.84
    """
    n, total = sizes.size, float(sizes.sum())
    if n < 2 or total <= 0:
        return None
    residuals = amounts - amounts.sum() / total * sizes
    largest = float(np.abs(residuals).max())
    if largest == 0 or not math.isfinite(largest):
        return 0.0 if largest == 0 else None
    residuals /= largest  # whose squares may be beyond a float
    spread = math.sqrt(n / (n - 1) * float(residuals @ residuals) * _inflation(residuals))
    return t_quantile(n - 1) * spread * (largest / total)


def _inflation(residuals: FloatArray) -> float:
    """Return (1 + φ)/(1 - φ) of the lag-1 correlation φ, at least 1; φ < 1 whatever the residuals."""
    power = float(residuals @ residuals)
    phi = max(float(residuals[:-1] @ residuals[1:]) / power, 0.0) if power > 0 else 0.0
    return (1 + phi) / (1 - phi)


def batch_edges(n: int) -> IntArray:
    """Return where `BATCHES` contiguous batches of n values begin and end, shape (BATCHES + 1,).

    >>> batch_edges(200).tolist()[:4]
    [0, 10, 20, 30]
    """
    return np.arange(BATCHES + 1) * n // BATCHES


def _batch_half_width(sums: FloatArray, size: int) -> float:
    """Return half the interval of the mean of at least `BATCHES` values in order of time, from sums of batches."""
    half_width = ratio_half_width(sums, np.diff(batch_edges(size)).astype(np.float64))
    assert half_width is not None
    return half_width


def _share_half_width(below: NDArray[np.bool_]) -> float:
    """Return half the interval of the share of those."""
    edges = batch_edges(below.size).tolist()
    sums = [np.count_nonzero(below[start:stop]) for start, stop in pairwise(edges)]
    return _batch_half_width(np.array(sums, dtype=np.float64), below.size)


def mean_half_width(values: FloatArray) -> float | None:
    """Return half the 95 % interval of the mean of one run's values, in order of time; None for fewer than 200."""
    if values.size < BATCHES * _MIN_BATCH:
        return None
    return _batch_half_width(np.add.reduceat(values, batch_edges(values.size)[:-1]), values.size)


def quantile_interval(
    values: FloatArray | IntArray, share: float, quantile: Callable[[float], float]
) -> Interval | None:
    """Return the 95 % interval of a quantile of one run's values, in order of time.

    How far the share of values below the quantile can be off follows from batch means of the indicator, and
    the quantiles of the shares so far below and above bound the quantile (Woodruff 1952; for dependent values
    Heidelberger and Lewis 1984). Of the indicators with and without ties the wider counts.

    `share` is 0.99 for the 99th percentile, `quantile` the quantile function of the whole run. None for fewer than 200
    values, where an end would be beyond the extremes, and where both ends are one value.
    """
    if values.size < BATCHES * _MIN_BATCH:
        return None
    middle = quantile(share)
    margin = max(_share_half_width(values < middle), _share_half_width(values <= middle), 1 / values.size)
    if share - margin < 0 or share + margin > 1:
        return None
    low, high = quantile(share - margin), quantile(share + margin)
    return (low, high) if high - low > _NO_WIDTH * abs(middle) else None


def queue_grows(time_s: FloatArray, waiting: IntArray, start_s: float, end_s: float) -> bool:
    """Tell whether a queue grows over the second half of a window.

    A line through the time averages of 16 batches must rise beyond its 95 % interval (widened for correlated
    residuals like `ratio_half_width`), by more than a request over the half window, and by more than the
    standard deviation of the queue about the line: a rise that fluctuations would hide is none.

    Parameters
    ----------
    time_s : ndarray, shape (n_records,), seconds, ascending
    waiting : ndarray, shape (n_records,)
        Requests in the queue from this record to the next.
    start_s, end_s
        The window, seconds. False where its second half has fewer than 32 records.

    References
    ----------
    New; the regression is the ordinary one, its residuals batch means.
    """
    half_s = (start_s + end_s) / 2
    inside = (time_s >= half_s) & (time_s <= end_s)
    if np.count_nonzero(inside) < 2 * _TREND_BATCHES:
        return False
    edges = np.linspace(half_s, end_s, _TREND_BATCHES + 1)
    area = np.concatenate(([0.0], np.cumsum(waiting[:-1] * np.diff(time_s))))
    means = np.diff(np.interp(edges, time_s, area)) / np.diff(edges)
    place = (np.arange(_TREND_BATCHES) + 0.5) / _TREND_BATCHES - 0.5  # slopes are per half window
    growth = float(place @ means / (place @ place))
    residuals = means - means.mean() - growth * place
    degrees = _TREND_BATCHES - 2
    variance = float(residuals @ residuals) / degrees / float(place @ place) * _inflation(residuals)
    line = means.mean() + growth * ((time_s[inside] - half_s) / (end_s - half_s) - 0.5)
    spread = float(np.std(waiting[inside] - line))
    return growth > max(t_quantile(degrees) * math.sqrt(variance), _MIN_GROWTH, _MIN_VISIBLE * spread)
