"""Nested WAIT: thresholds and a safety buffer for requests of unknown decode length (theory §6).

Stages are cut into segments at some of the decode lengths. Segment k keeps n_k requests at every stage; whoever
outlives it waits at the boundary, KV held, until n_(k+1) are there. The requirement has three parts: the segments
filled, n_k at the boundaries, and what the boundary queues exceed that by with probability δ over a horizon.

Segments that merge several lengths are filled by their longest: n_k requests enter, any of them may stay to the end,
and memory is certified for the case that all do. Iteration times need no such caution, only their mean has to stay
below n_1/Λ_1, so they count every request for as long as it lasts. With one segment per length the two agree.

Where rates vary over time, Λ_1ΔT gives way to the most arrivals in any window of length ΔT, and p_k to the largest
share of any time (WAIT 7.1; WAIT-s eq. 10).
"""

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from kvplan.analysis.segments import (
    Lengths,
    Segments,
    candidate_ends,
    lengths_of,
    segments_of,
    worst_segments,
)
from kvplan.analysis.wait import GUARD
from kvplan.analysis.worst_window import at_rates, class_windows
from kvplan.model import FloatArray, IntArray, ServingModel

_SEARCHED_TOGETHER = (0, 16, 64, math.inf)  # segmentations with numbers of segments between these, in turn
# Exponents ln(events/δ) that raised thresholds are made for. None of them depends on δ or the horizon: the least
# requirement over a fixed set of thresholds then falls with δ and grows with the horizon, as each of them does.
_EXPONENTS = (
    (4.0, 8.0, 12.0, 16.0, 20.0, 25.0),
    (1.0, 2.0, 6.0, 10.0, 14.0, 18.0, 22.0, 28.0, 32.0, 40.0, 60.0, 100.0, 400.0),
)
_LEAST_STEPS = 40  # towards the least first threshold, before settling for one that is only locally so
_TOO_CLOSE = 1e-9  # to a work rate of 1, for a bound that is only there to save steps
_HOPELESS = 1e60  # a first threshold: no smaller one keeps up under a law that is not linear
_NARROWING_STEPS = 120
_MOST_ITERATIONS = 1e300
_NEWTON_STEPS = 60
_SMALLEST_SHARE = 1e-300  # a larger share only shortens θ, which is safe; its inverse must not overflow


class Segment(NamedTuple):
    """One segment of Nested WAIT.

    Attributes
    ----------
    upto_decode
        Decode length at which it ends, l'_k, tokens.
    rate_rps
        Requests that reach it, Λ_k, requests/s.
    continue_probability
        Share of the segment before that goes on to it, p_k; None for the first.
    threshold
        Requests kept at every stage, n_k.
    theta
        Decay rate of the queue at its start, per request; None for the first, and where the queue cannot outgrow n_k.
    queue_bound
        Requests waiting at its start, c_k, exceeded with probability at most δ in all; None for the first, whose
        queue holds no KV.
    input_tokens
        Mean input of the requests that reach it, tokens.
    kv_tokens
        Tokens its stages hold when filled.
    """

    upto_decode: int
    rate_rps: float
    continue_probability: float | None
    threshold: int
    theta: float | None
    queue_bound: float | None
    input_tokens: float
    kv_tokens: float


class PrintedMemory(NamedTuple):
    """Base memory by the formulas the papers print, for the same thresholds, tokens; neither is used."""

    eq_13: float
    segment_design: float


class NestedWait(NamedTuple):
    """Nested WAIT thresholds and memory; the keys of the report's `nested_wait` block, and more.

    Attributes
    ----------
    feasible
        Whether Λ < 1, to 1e-12; otherwise there are no segments and every number is None.
    base_kv_tokens, boundary_kv_tokens, high_probability_kv_tokens, required_kv_tokens
        Filled segments, n_k at every boundary, what queues exceed that by with probability δ; and their sum.
    iteration_time_s
        Mean iteration time with every segment filled, ΔT, seconds.
    iterations
        Iterations within the horizon, ⌈horizon/ΔT⌉.
    smallest_thresholds_kv_tokens
        What the same segments require with the smallest thresholds.
    mixed_inputs
        Whether inputs differ: segments then count with their mean input, and memory holds in the mean over them.
    """

    feasible: bool
    segments: tuple[Segment, ...]
    base_kv_tokens: float | None
    boundary_kv_tokens: float | None
    high_probability_kv_tokens: float | None
    required_kv_tokens: float | None
    fits: bool
    iteration_time_s: float | None
    iterations: int | None
    smallest_thresholds_kv_tokens: float | None
    mixed_inputs: bool
    printed: PrintedMemory | None


class Requirement(NamedTuple):
    """The memory requirement of candidates, tokens; arrays of shape (n_candidates,), theta as the thresholds."""

    base: FloatArray
    boundary: FloatArray
    high_probability: FloatArray
    iteration_time_s: FloatArray
    iterations: FloatArray
    exponent: FloatArray
    theta: FloatArray

    @property
    def total(self) -> FloatArray:
        """Required memory, tokens."""
        return self.base + self.boundary + self.high_probability


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
    p = np.maximum(continuing[finite], _SMALLEST_SHARE)
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
        step = (log_mean - ratio * root) / (1 / (1 + decayed) - ratio)
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
    too many (Λ very near 1) a search finds a first threshold that keeps up while the one below it does not.

    Parameters
    ----------
    slack : ndarray, shape (n_segments, n_candidates)
        For `fill`.
    start : ndarray, shape (n_candidates,)
        Whole numbers from 1; `first_threshold_floor` leaves nothing out.

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
        raised = np.minimum(_raised(segments, slack, low, least[low]), _HOPELESS)
        lacking = raised > least[low]
        low, raised = low[lacking], raised[lacking]
        if not low.size:
            break
        least[low] = raised
    else:
        least[low] = _crossing(segments, slack, low, least[low])
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
    with np.errstate(over="ignore"):
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


def _crossing(segments: Segments, slack: FloatArray, columns: IntArray, low: FloatArray) -> FloatArray:
    """First thresholds that keep up, each just above one that does not or equal to `low`.

    Demand rises by about Λ a unit, so extrapolation from below comes near; halving in turn bounds the steps.
    """
    idle = 1 - (segments.work * segments.rate).sum(axis=0)[columns]
    wanted = _demand(segments, slack, columns, low)
    high: FloatArray = low + np.ceil(2 * (wanted - low).clip(0) / idle)
    hopeless = math.inf if segments.timing.is_linear else _HOPELESS
    while (lacking := (_demand(segments, slack, columns, high) > high) & (high < hopeless)).any():
        low, high = np.where(lacking, high, low), np.where(lacking, 3 * high - 2 * low, high)
    low, wanted = low.copy(), _demand(segments, slack, columns, low)
    for step in range(_NARROWING_STEPS):
        wide = np.flatnonzero((high - low > 1) & (wanted > low))
        if not wide.size:
            break
        below, above = low[wide], high[wide]
        ahead = (
            np.ceil((wanted[wide] - below) / idle[wide]) if step % 2 == 0 else np.floor((above - below) / 2)
        )
        middle = np.clip(below + ahead, below + 1, above - 1)
        demand = _demand(segments, slack, columns[wide], middle)
        lacking = demand > middle
        low[wide], high[wide] = np.where(lacking, middle, below), np.where(lacking, above, middle)
        wanted[wide] = np.where(lacking, demand, wanted[wide])
    return high


def first_threshold_floor(segments: Segments) -> FloatArray:
    """A whole number that no feasible first threshold is below, since n_k >= 1 and n_k >= n_1·Λ_k/Λ_1.

    Returns
    -------
    ndarray, shape (n_candidates,)
    """
    rate = segments.rate[0]
    idle = 1 - (segments.work * segments.rate).sum(axis=0)
    d0 = segments.timing.fixed(0.0, 0.0)
    fluid = rate * d0 / idle * (1 - 1e-12 / idle)
    single = rate * (d0 + segments.work.sum(axis=0)) * (1 - 1e-12)
    floor: FloatArray = np.floor(np.maximum(fluid, single)) + 1
    return floor


def requirement_floor(segments: Segments, thresholds: FloatArray) -> FloatArray:
    """Memory that no thresholds above the given ones can do with less of, tokens: the queues' excess left out.

    Returns
    -------
    ndarray, shape (n_candidates,)
    """
    floor: FloatArray = (thresholds * (segments.held + segments.waiting)).sum(axis=0)
    return floor


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


def requirement(segments: Segments, thresholds: FloatArray, *, delta: float, horizon_s: float) -> Requirement:
    """Memory not exceeded within a horizon with probability 1 - δ.

    M^π + Σ_(k>=2) w_k c_k with c_k = n_k + ln((m - 1)·N/δ)/θ_k and w_k = s̄_k + l'_(k-1), over N = ⌈horizon/ΔT⌉
    iterations.

    Parameters
    ----------
    thresholds : ndarray, shape (n_segments, n_candidates)
    horizon_s : float, seconds

    References
    ----------
    WAIT-s Theorem 5.1, D.
    """
    time = segments.iteration_time_s(thresholds)
    with np.errstate(over="ignore"):
        iterations = np.clip(np.ceil(horizon_s / time), 1.0, _MOST_ITERATIONS)
    exponent = np.log(np.maximum(segments.count - 1, 1)) + np.log(iterations) - math.log(delta)
    theta = np.full(thresholds.shape, np.inf)
    theta[1:] = decay_rates(thresholds[:-1], thresholds[1:], segments.continuing[1:])
    theta[segments.waiting == 0] = np.inf
    return Requirement(
        base=(thresholds * segments.held).sum(axis=0),
        boundary=(thresholds * segments.waiting).sum(axis=0),
        high_probability=exponent * (segments.waiting / theta).sum(axis=0),
        iteration_time_s=time,
        iterations=iterations,
        exponent=exponent,
        theta=theta,
    )


def least_requirement(
    segments: Segments, *, delta: float, horizon_s: float
) -> tuple[int, FloatArray, FloatArray]:
    """The candidate and thresholds that need the least memory.

    Every segmentation is tried with the smallest thresholds and with slack for several exponents, unless its floor
    already exceeds what another needs; so the result is the minimum over one set of thresholds for every δ and
    horizon.

    Returns
    -------
    tuple of int, ndarray and ndarray
        Column in `segments`, its thresholds and the smallest thresholds of the same column, padding included.

    References
    ----------
    new, theory §6.
    """
    best, chosen = math.inf, (0, np.empty(0), np.empty(0))
    smallest: list[tuple[IntArray, FloatArray]] = []
    for fewer, most in pairwise(_SEARCHED_TOGETHER):
        columns = np.flatnonzero((fewer < segments.count) & (segments.count <= most))
        if columns.size:
            group = segments.take(columns)
            floor = first_threshold_floor(group)
            thresholds = thresholds_of(group, np.zeros(group.rate.shape), floor)
            smallest.append((columns, thresholds))
            needs = requirement(group, thresholds, delta=delta, horizon_s=horizon_s)
            winner = int(needs.total.argmin())
            if needs.total[winner] < best:
                best = float(needs.total[winner])
                chosen = int(columns[winner]), thresholds[:, winner], thresholds[:, winner]
    for columns, least in smallest:
        hopeful = np.flatnonzero(requirement_floor(segments.take(columns), least) < best)
        for exponents in _EXPONENTS:
            if not hopeful.size:
                break
            group, start = segments.take(columns[hopeful]), least[0, hopeful]
            slack = np.concatenate([slack_for(group, e) for e in exponents], axis=1)
            copies = np.tile(np.arange(hopeful.size), len(exponents))
            every = group.take(copies)
            thresholds = thresholds_of(every, slack, start[copies])
            needs = requirement(every, thresholds, delta=delta, horizon_s=horizon_s)
            winner = int(needs.total.argmin())
            if needs.total[winner] < best:
                best, position = float(needs.total[winner]), hopeful[copies[winner]]
                chosen = int(columns[position]), thresholds[:, winner], least[:, position]
                hopeful = hopeful[requirement_floor(group, least[: len(group.rate), hopeful]) < best]
    return chosen


def printed_memory(ends: FloatArray, input_tokens: FloatArray, thresholds: FloatArray) -> PrintedMemory:
    """Base memory as the papers print it, for comparison; `ends` are the segments' decode lengths, tokens.

    Equation 13 counts s + (l'_1 + … + l'_k)/2 tokens at every stage of segment k, which is too much for many
    segments and too little for two. The segment design counts s + kΔ/2, always too little in the mean; with
    unequal widths kΔ is read as l'_k.

    References
    ----------
    WAIT eq. 13, WAIT 7.2; WAIT-s D.

    Examples
    --------
    >>> printed_memory(np.array([2.0, 4.0]), np.array([1.0, 1.0]), np.array([3.0, 2.0]))
    PrintedMemory(eq_13=28.0, segment_design=24.0)
    """
    filled = thresholds * np.diff(ends, prepend=0.0)
    return PrintedMemory(
        eq_13=float(filled @ (input_tokens + np.cumsum(ends) / 2)),
        segment_design=float(filled @ (input_tokens + ends / 2)),
    )


def nested_wait(model: ServingModel, *, delta: float, horizon_s: float, segments: int | None) -> NestedWait:
    """Nested WAIT segments, thresholds and required memory (WAIT-s Theorem 5.1, D; theory §6).

    Parameters
    ----------
    delta
        Accepted probability δ that queues outgrow the buffer within the horizon, 0 < δ <= 1.
    horizon_s : float, seconds
    segments
        Number of segments; None chooses the number that needs the least memory.

    Examples
    --------
    >>> from kvplan.model import Prefill, Replica, RequestClass, Timing
    >>> mix = zip((20, 40, 80, 160), (400.0, 300.0, 200.0, 100.0))
    >>> classes = tuple(RequestClass(f"{d}", 10, (d,), (1.0,), rate) for d, rate in mix)
    >>> model = ServingModel(classes, Timing(0.01, d1=1e-7), Replica(80_000, prefill=Prefill.INLINE))
    >>> result = nested_wait(model, delta=0.01, horizon_s=100.0, segments=2)
    >>> [(s.upto_decode, s.threshold) for s in result.segments], result.fits
    ([(80, 15), (160, 2)], False)
    """
    means = None if model.schedule is None else class_windows(model)
    lengths = lengths_of(model if means is None else at_rates(model, means.mean_rps))
    mixed = len({c.input_tokens for c in model.classes}) > 1
    nothing = NestedWait(False, (), None, None, None, None, False, None, None, None, mixed, None)
    if not lengths.work_to[-1] * GUARD < 1:
        return nothing
    ends = candidate_ends(lengths, segments)
    candidates = segments_of(lengths, ends) if means is None else worst_segments(model, lengths, ends)
    if not candidates.count.size:
        return nothing
    column, *found = least_requirement(candidates, delta=delta, horizon_s=horizon_s)
    if not found[0].size or found[0][0] >= _HOPELESS:
        return nothing
    one = candidates.take(np.array([column]))
    rows = len(one.rate)
    needs, least = (requirement(one, n[:rows, None], delta=delta, horizon_s=horizon_s) for n in found)
    thresholds = found[0][:rows]
    upto = lengths.decode[one.end[:, 0]]
    required = float(needs.total[0])
    return NestedWait(
        feasible=True,
        segments=_report(one, lengths, thresholds, needs),
        base_kv_tokens=float(needs.base[0]),
        boundary_kv_tokens=float(needs.boundary[0]),
        high_probability_kv_tokens=float(needs.high_probability[0]),
        required_kv_tokens=required,
        fits=required <= model.replica.capacity_tokens,
        iteration_time_s=float(needs.iteration_time_s[0]),
        iterations=int(needs.iterations[0]),
        smallest_thresholds_kv_tokens=float(least.total[0]),
        mixed_inputs=mixed,
        printed=printed_memory(upto, one.input_tokens[:, 0], thresholds),
    )


def _report(
    one: Segments, lengths: Lengths, thresholds: FloatArray, needs: Requirement
) -> tuple[Segment, ...]:
    ends = one.end[:, 0]
    reaching = lengths.rate_from[np.append(0, ends[:-1] + 1)]
    rows = []
    for k, threshold in enumerate(thresholds.tolist()):
        theta = float(needs.theta[k, 0])
        rows.append(
            Segment(
                upto_decode=int(lengths.decode[ends[k]]),
                rate_rps=float(reaching[k]),
                continue_probability=float(one.continuing[k, 0]) if k else None,
                threshold=int(threshold),
                theta=theta if math.isfinite(theta) else None,
                queue_bound=threshold + float(needs.exponent[0]) / theta if k else None,
                input_tokens=float(one.input_tokens[k, 0]),
                kv_tokens=threshold * float(one.held[k, 0]),
            )
        )
    return tuple(rows)
