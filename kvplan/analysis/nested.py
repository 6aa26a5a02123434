"""Nested WAIT: thresholds and required memory for requests of unknown decode length (theory §6).

Stages are cut into segments at some of the decode lengths. Segment k keeps n_k requests at every stage; whoever
outlives it waits at the boundary, KV held, until n_(k+1) are there. The requirement has four parts: the segments
filled, n_k at the boundaries, what the boundary queues exceed that by and, where inputs differ, what the inputs of all
these requests add up to beyond their mean; the last two with probability δ over a horizon.

Segments that merge several lengths are filled by their longest: n_k requests enter, any of them may stay to the end,
and memory is certified for the case that all do. Iteration times need no such caution, only their mean has to stay
below n_1/Λ_1, so they count every request for as long as it lasts. With one segment per length the two agree.
"""

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from kvplan.analysis.input_spread import Excess, excess, excess_about
from kvplan.analysis.nested_thresholds import (
    HOPELESS,
    decay_rates,
    slack_for,
    thresholds_of,
)
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
    parked_bound
        Requests waiting at its start while a batch runs, c_k, exceeded with probability at most δ in all; None for the
        first, whose queue holds no KV.
    queue_bound
        The same just before n_k of them are taken, c_k + n_k - 1; as many fewer then run.
    input_tokens
        Mean input of the requests that reach it, tokens.
    kv_tokens
        Tokens its stages hold when filled, mean over inputs.
    parked_kv_tokens
        Tokens that one request waiting at its start holds, mean over inputs; 0 for the first.
    """

    upto_decode: int
    rate_rps: float
    continue_probability: float | None
    threshold: int
    theta: float | None
    parked_bound: float | None
    queue_bound: float | None
    input_tokens: float
    kv_tokens: float
    parked_kv_tokens: float


class PrintedMemory(NamedTuple):
    """Base memory by the formulas the papers print, for the same thresholds, tokens; neither is used."""

    eq_13: float
    segment_design: float


class InputBound(NamedTuple):
    """Chernoff's bound for inputs that differ, at its θ, per token; None where the largest inputs throughout are it."""

    theta: float | None
    log_transform: float


class NestedWait(NamedTuple):
    """Nested WAIT thresholds and memory; the keys of the report's `nested_wait` block, and more.

    Attributes
    ----------
    feasible
        Whether Λ < 1, to 1e-12; otherwise there are no segments and every number is None.
    base_kv_tokens, boundary_kv_tokens, high_probability_kv_tokens, input_spread_kv_tokens, required_kv_tokens
        Filled segments, n_k at every boundary, what queues exceed that by, what inputs add up to beyond their mean;
        and their sum, exceeded with probability δ at most.
    iteration_time_s
        Mean iteration time with every segment filled, ΔT, seconds.
    iterations
        Iterations within the horizon, ⌈horizon/ΔT⌉.
    smallest_thresholds_kv_tokens
        What the same segments require with the smallest thresholds.
    input_bound
        None where inputs are equal; where they differ, queues and inputs share δ.
    """

    feasible: bool
    segments: tuple[Segment, ...]
    base_kv_tokens: float | None
    boundary_kv_tokens: float | None
    high_probability_kv_tokens: float | None
    input_spread_kv_tokens: float | None
    required_kv_tokens: float | None
    fits: bool
    iteration_time_s: float | None
    iterations: int | None
    smallest_thresholds_kv_tokens: float | None
    input_bound: InputBound | None
    printed: PrintedMemory | None


class Requirement(NamedTuple):
    """The memory requirement of candidates, tokens; arrays of shape (n_candidates,), theta as the thresholds.

    `exponent` is ln(events/δ) of the queues, `input_exponent` that of inputs.
    """

    base: FloatArray
    boundary: FloatArray
    high_probability: FloatArray
    inputs: Excess
    iteration_time_s: FloatArray
    iterations: FloatArray
    exponent: FloatArray
    input_exponent: FloatArray
    theta: FloatArray

    @property
    def total(self) -> FloatArray:
        """Required memory, tokens."""
        return self.base + self.boundary + self.high_probability + self.inputs.tokens


def requirement_floor(segments: Segments, thresholds: FloatArray) -> FloatArray:
    """Memory that no thresholds above the given ones can do with less of, tokens: the queues' excess left out.

    Returns
    -------
    ndarray, shape (n_candidates,)
    """
    floor: FloatArray = (thresholds * (segments.held + segments.waiting)).sum(axis=0)
    return floor


def requirement(segments: Segments, thresholds: FloatArray, *, delta: float, horizon_s: float) -> Requirement:
    """Memory not exceeded within a horizon with probability 1 - δ.

    M^π + Σ_(k>=2) w_k c_k with c_k = n_k + ln((m - 1)·N/δ)/θ_k over N = ⌈horizon/ΔT⌉ iterations. Where inputs differ,
    queues and inputs get half of δ each (inputs all of it where there is no queue), and the latter add
    inf_θ [ln(2N/δ) + Σ R_k ln E_k e^θ(w - w̄)]/θ, R_k the residents of segment k and ⌈c_k⌉ waiting: given who got how
    far, inputs are independent of each other and of all queues.

    Parameters
    ----------
    thresholds : ndarray, shape (n_segments, n_candidates)
    horizon_s : float, seconds

    References
    ----------
    WAIT-s Theorem 5.1, D; inputs that differ new, theory §6.
    """
    needs = _queues(segments, thresholds, delta, horizon_s)
    return needs._replace(inputs=_inputs(segments, thresholds, needs))


def _queues(segments: Segments, thresholds: FloatArray, delta: float, horizon_s: float) -> Requirement:
    """The requirement, were all inputs as in the mean."""
    time = segments.iteration_time_s(thresholds)
    iterations = np.maximum(np.ceil(horizon_s / time), 1.0)
    shared = math.log(2) * (segments.count > 1) * (segments.laws is not None)
    each = np.log(iterations) - math.log(delta) + shared
    exponent = np.log(np.maximum(segments.count - 1, 1)) + each
    theta = np.full(thresholds.shape, np.inf)
    theta[1:] = decay_rates(thresholds[:-1], thresholds[1:], segments.continuing[1:])
    theta[segments.waiting == 0] = np.inf
    none = np.zeros(time.size)
    return Requirement(
        base=(thresholds * segments.held).sum(axis=0),
        boundary=(thresholds * segments.waiting).sum(axis=0),
        high_probability=exponent * (segments.waiting / theta).sum(axis=0),
        inputs=Excess(none, none),
        iteration_time_s=time,
        iterations=iterations,
        exponent=exponent,
        input_exponent=each,
        theta=theta,
    )


def _inputs(segments: Segments, thresholds: FloatArray, needs: Requirement) -> Excess:
    """What inputs add up to beyond their mean."""
    if segments.laws is None:
        none = np.zeros(needs.exponent.size)
        return Excess(none, none)
    return excess(segments.laws, segments.start, _held(segments, thresholds, needs), needs.input_exponent)


def _held(segments: Segments, thresholds: FloatArray, needs: Requirement) -> FloatArray:
    """Requests held in each segment and phase, at most; shape (n_segments, n_candidates, n_phases)."""
    counts, theta = (amounts[: len(segments.rate)] for amounts in (thresholds, needs.theta))
    parked = np.where(segments.waiting > 0, np.ceil(counts + needs.exponent / theta), 0.0)
    held: FloatArray = counts[..., None] * segments.phases + parked[..., None] * segments.waits_in
    return held


def _least_of(
    segments: Segments, thresholds: FloatArray, delta: float, horizon_s: float
) -> tuple[int, float]:
    """The candidate that needs the least, and about what it needs."""
    needs = _queues(segments, thresholds, delta, horizon_s)
    total = needs.total
    if segments.laws is not None:
        held = _held(segments, thresholds, needs)
        total = total + excess_about(segments.laws, segments.start, held, needs.input_exponent)
    least = int(total.argmin())
    return least, float(total[least])


def least_requirement(
    segments: Segments, *, delta: float, horizon_s: float
) -> tuple[int, FloatArray, FloatArray]:
    """The candidate and thresholds that need the least memory.

    Every segmentation is tried with the smallest thresholds and with slack for several exponents, unless its floor
    already exceeds what another needs; so the result is the minimum over one set of thresholds for every δ and
    horizon; where inputs differ, what they add is compared as if it were normal.

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
            thresholds = thresholds_of(group, np.zeros(group.rate.shape), np.ones(columns.size))
            smallest.append((columns, thresholds))
            winner, needed = _least_of(group, thresholds, delta, horizon_s)
            if needed < best:
                best = needed
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
            winner, needed = _least_of(every, thresholds, delta, horizon_s)
            if needed < best:
                best, position = needed, hopeful[copies[winner]]
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
        Accepted probability δ that memory is exceeded within the horizon, 0 < δ <= 1.
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
    nothing = NestedWait(False, (), None, None, None, None, None, False, None, None, None, None, None)
    if not model.is_plain:
        return nothing
    means = None if model.schedule is None else class_windows(model)
    lengths = lengths_of(model if means is None else at_rates(model, means.mean_rps))
    if not lengths.work_to[-1] * GUARD < 1:
        return nothing
    ends = candidate_ends(lengths, segments)
    candidates = segments_of(lengths, ends) if means is None else worst_segments(model, lengths, ends)
    if not candidates.count.size:
        return nothing
    column, *found = least_requirement(candidates, delta=delta, horizon_s=horizon_s)
    if not found[0].size or found[0][0] >= HOPELESS:
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
        input_spread_kv_tokens=float(needs.inputs.tokens[0]),
        required_kv_tokens=required,
        fits=required <= model.replica.capacity_tokens,
        iteration_time_s=float(needs.iteration_time_s[0]),
        iterations=int(needs.iterations[0]),
        smallest_thresholds_kv_tokens=float(least.total[0]),
        input_bound=None if one.laws is None else _input_bound(needs),
        printed=printed_memory(upto, one.input_tokens[:, 0], thresholds),
    )


def _input_bound(needs: Requirement) -> InputBound:
    theta, exponent = float(needs.inputs.theta[0]), float(needs.input_exponent[0])
    if not math.isfinite(theta):
        return InputBound(None, 0.0)
    return InputBound(theta, theta * float(needs.inputs.tokens[0]) - exponent)


def _report(
    one: Segments, lengths: Lengths, thresholds: FloatArray, needs: Requirement
) -> tuple[Segment, ...]:
    ends = one.end[:, 0]
    reaching = lengths.rate_from[one.start[:, 0]]
    rows = []
    for k, threshold in enumerate(thresholds.tolist()):
        theta = float(needs.theta[k, 0])
        parked = threshold + float(needs.exponent[0]) / theta if k else None
        rows.append(
            Segment(
                upto_decode=int(lengths.decode[ends[k]]),
                rate_rps=float(reaching[k]),
                continue_probability=float(one.continuing[k, 0]) if k else None,
                threshold=int(threshold),
                theta=theta if math.isfinite(theta) else None,
                parked_bound=parked,
                queue_bound=None if parked is None else parked + threshold - 1,
                input_tokens=float(one.input_tokens[k, 0]),
                kv_tokens=threshold * float(one.held[k, 0]),
                parked_kv_tokens=float(one.waiting[k, 0]),
            )
        )
    return tuple(rows)
