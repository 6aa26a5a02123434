"""Thresholds of Nested WAIT that keep up with arrivals, and how fast queues at boundaries decay (theory §6).

Where rates vary over time, Λ_1ΔT gives way to the most arrivals in any window of length ΔT, and p_k to the largest
share of any time (WAIT 7.1; WAIT-s eq. 10).
"""

import math

import numpy as np

from kvplan.analysis.segments import Segments
from kvplan.analysis.wait import GUARD
from kvplan.model import FloatArray, IntArray

HOPELESS = 1e60  # a first threshold: no smaller one keeps up under a law that is not linear
_LEAST_STEPS = 200  # towards the least first threshold, before settling for any that keeps up
_TOO_CLOSE = 1e-9  # to a work rate of 1, for a bound that is only there to save steps
_NEWTON_STEPS = 60


def decay_rates(before: FloatArray, here: FloatArray, continuing: FloatArray) -> FloatArray:
    """Decay rate θ of a boundary queue, the root of n_(k-1)·ln(1 - p + p·e^θ) = θ·n_k.

    Parameters
    ----------
    before, here : ndarray, requests
        Thresholds n_(k-1) and n_k > p·n_(k-1).
    continuing : ndarray
        p, in (0, 1).

    Returns
    -------
    ndarray, per request
        Infinite where n_k >= n_(k-1): no batch can bring more than the next one takes.

    References
    ----------
    WAIT-s eq. 13, Lemma D.2; θ >= 8(n_k - p·n_(k-1))/n_(k-1), where Theorem B.2 prints the wrong denominator.

    Examples
    --------
    >>> decay_rates(np.array([100.0, 20.0]), np.array([51.0, 13.0]), np.array([0.5, 0.6])).round(10).tolist()
    [0.0800213413, 0.4318056617]
    """
    theta = np.full(np.broadcast(before, here, continuing).shape, np.inf)
    finite = (here < before) & (continuing < 1)
    if not finite.any():
        return theta
    n, m = before[finite], here[finite]
    p = continuing[finite]
    ratio = m / n
    # The logarithm's slope passes n_k/n_(k-1) at `lowest`; the root lies to the right of it, below `highest`, and
    # near 2·lowest. The function is convex: after one Newton step the iterates fall towards the root.
    lowest = np.log1p((m - p * n) / (p * (n - m)))
    highest = -np.log(p) * n / (n - m)
    root = np.minimum(2 * lowest, highest)
    odds = (1 - p) / p
    for _ in range(_NEWTON_STEPS):
        decayed = odds * np.exp(-root)
        small = np.minimum(root, 1.0)
        log_mean = np.where(root < 1, np.log1p(p * np.expm1(small)), root + np.log(p) + np.log1p(decayed))
        with np.errstate(
            divide="ignore", invalid="ignore"
        ):  # level: as far as it may, or, at a root, no further
            step = np.nan_to_num((log_mean - ratio * root) / (1 / (1 + decayed) - ratio))
        previous, root = root, np.clip(root - step, lowest, highest)
        if (np.abs(root - previous) <= 1e-14 * root).all():
            break
    theta[finite] = root
    return theta


def fill(first: FloatArray, continuing: FloatArray, slack: FloatArray) -> FloatArray:
    """Thresholds from that of the first segment on: n_k = ⌊p_k n_(k-1) + slack_k √n_(k-1)⌋ + 1, at most n_(k-1).

    Parameters
    ----------
    first : ndarray, shape (n_candidates,)
    continuing, slack : ndarray, shape (n_segments, n_candidates)
        Slack 0 gives the smallest thresholds.

    Returns
    -------
    ndarray, shape (n_segments, n_candidates)

    References
    ----------
    WAIT-s Theorem 5.1; whole thresholds and slack new, theory §6.
    """
    thresholds = np.empty(continuing.shape)
    thresholds[0] = first
    safe = continuing * GUARD
    for k in range(1, len(thresholds)):
        before = thresholds[k - 1]
        wanted = np.floor(safe[k] * before + slack[k] * np.sqrt(before)) + 1
        thresholds[k] = np.minimum(wanted, before)
    return thresholds


def thresholds_of(segments: Segments, slack: FloatArray, start: FloatArray) -> FloatArray:
    """Thresholds with the smallest first one, from `start` on, that keeps up: Λ_1·ΔT(n) < n_1. Λ < 1 is assumed.

    n_1 ← ⌊Λ_1 ΔT(n)⌋ + 1 from below ends on the least, here in larger steps that leave none out. Where even they are
    too many (Λ very near 1) it is a larger one.

    Parameters
    ----------
    slack : ndarray, shape (n_segments, n_candidates)
        For `fill`.
    start : ndarray, shape (n_candidates,)
        Whole numbers from 1, which leaves nothing out.

    Returns
    -------
    ndarray, shape (n_segments, n_candidates)

    References
    ----------
    WAIT-s eq. 10, Theorem 5.1; least whole thresholds new, theory §6.
    """
    least = start.copy()
    low = np.arange(least.size)  # columns whose first threshold is still too low
    for _ in range(_LEAST_STEPS):
        raised = np.minimum(_raised(segments, slack, low, least[low]), HOPELESS)
        lacking = raised > least[low]
        low, raised = low[lacking], raised[lacking]
        if not low.size:
            break
        least[low] = raised
    else:
        least[low] = _enough(segments, slack, low, least[low])
    return fill(least, segments.continuing, slack)


def _raised(segments: Segments, slack: FloatArray, columns: IntArray, first: FloatArray) -> FloatArray:
    """A first threshold that no feasible one from `first` on is below; `first` itself where it keeps up.

    With x = `first`, every feasible y >= x satisfies y > Λ_1(f + Σ c_k max(n_k(x), y·Λ_k/Λ_1)), f what the law takes
    beside at x, and so, for every set A of segments, y > Λ_1(f + Σ_rest c_k n_k(x))/(1 - Σ_A c_k Λ_k). The best A is
    a prefix in order of n_k(x)/Λ_k.
    """
    filled = fill(first, segments.continuing[:, columns], slack[:, columns])
    rate, work = segments.rate[:, columns], segments.work[:, columns]
    time = filled * work
    fixed = segments.fixed_s(filled, columns)
    keeps_up = np.floor(segments.arrivals(fixed + time.sum(axis=0), columns)) + 1 <= first
    order = np.argsort(filled / rate, axis=0)
    load = np.cumsum(np.take_along_axis(rate * work, order, axis=0), axis=0) * GUARD
    passed = np.cumsum(np.take_along_axis(time, order, axis=0), axis=0)
    idle = 1 - load
    bound = (fixed + passed[-1] - passed) / idle * (1 - 1e-14 / idle)
    least_time = np.maximum(bound.max(axis=0), fixed + passed[-1])
    if segments.windows is not None:  # the same for the steepest windows, as far as they go
        windows = segments.windows
        idle = 1 - load * (float(windows.ramp_rps[0]) / rate[0])
        sure = np.where(idle < -_TOO_CLOSE, np.inf, 0.0)
        np.divide(fixed + passed[-1] - passed, idle, out=sure, where=idle > _TOO_CLOSE)
        steep = sure * (1 - 1e-14 / np.maximum(idle, _TOO_CLOSE))
        least_time = np.maximum(least_time, np.minimum(steep.max(axis=0), windows.ramp_s))
    return np.where(keeps_up, first, np.floor(segments.arrivals(least_time, columns)) + 1)


def _demand(segments: Segments, slack: FloatArray, columns: IntArray, first: FloatArray) -> FloatArray:
    """⌊Λ_1 ΔT⌋ + 1 for given first thresholds, which keep up where they are no smaller."""
    filled = fill(first, segments.continuing[:, columns], slack[:, columns])
    time = segments.fixed_s(filled, columns) + (filled * segments.work[:, columns]).sum(axis=0)
    demand: FloatArray = np.floor(segments.arrivals(time, columns)) + 1
    return demand


def _enough(segments: Segments, slack: FloatArray, columns: IntArray, low: FloatArray) -> FloatArray:
    """First thresholds that keep up: demand rises by about Λ a unit, so extrapolation from below comes near."""
    idle = 1 - (segments.work * segments.rate).sum(axis=0)[columns]
    wanted = _demand(segments, slack, columns, low)
    high: FloatArray = low + np.ceil(2 * (wanted - low).clip(0) / idle)
    hopeless = math.inf if segments.timing.is_linear else HOPELESS
    while (lacking := (_demand(segments, slack, columns, high) > high) & (high < hopeless)).any():
        low, high = np.where(lacking, high, low), np.where(lacking, 3 * high - 2 * low, high)
    return high


def slack_for(segments: Segments, exponent: float) -> FloatArray:
    """Slack that about minimises memory when ln(events/δ) is `exponent`, for `fill`.

    Raising n_k by D costs what it holds, and through p what later segments hold as well: C tokens a unit in all.
    The queue it shortens holds w·exponent/θ with θ ≈ 2D/(n_(k-1)·p(1 - p)). The sum is least at
    D = √(exponent·n_(k-1)·p(1 - p)·w/(2C)).

    Returns
    -------
    ndarray, shape (n_segments, n_candidates), √requests

    References
    ----------
    WAIT-s Lemma D.2 (θ for small D); the rule new, theory §6.
    """
    rate = segments.rate
    cost = np.cumsum((rate * (segments.held + segments.waiting))[::-1], axis=0)[::-1] / rate
    spread = segments.continuing * (1 - segments.continuing)
    slack: FloatArray = np.sqrt(exponent / 2 * spread * segments.waiting / np.where(cost > 0, cost, 1.0))
    return slack
