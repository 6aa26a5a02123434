"""Nested WAIT: required memory for requests of unknown decode length (theory §6).

Stages are cut into segments at some of the decode lengths. Segment k keeps n_k requests at every stage; whoever
outlives it waits at the boundary, KV held, until n_(k+1) are there. The requirement has four parts: the segments
filled, n_k at the boundaries, what the boundary queues exceed that by and, where inputs differ, what the inputs of all
these requests add up to beyond their mean; the last two with probability δ over a horizon.

Segments that merge several lengths are filled by their longest: n_k requests enter, any of them may stay to the end,
and memory is certified for the case that all do. Iteration times need no such caution, only their mean has to stay
below n_1/Λ_1, so they count every request for as long as it lasts. With one segment per length the two agree.
"""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from kvplan.analysis.input_spread import Excess, excess, excess_about
from kvplan.analysis.segments import (
    HOPELESS,
    Lengths,
    Segments,
    candidate_ends,
    decay_rates,
    lengths_of,
    segments_of,
    slack_for,
    thresholds_of,
    worst_segments,
)
from kvplan.analysis.wait import GUARD, queue_at_start
from kvplan.analysis.worst_window import at_rates, class_windows
from kvplan.model import FloatArray, IntArray, Prefill, ServingModel

_SEARCHED_TOGETHER = (0, 16, 64, math.inf)  # segmentations with numbers of segments between these, in turn
# Exponents ln(events/δ) that raised thresholds are made for. None of them depends on δ or the horizon: the least
# requirement over a fixed set of thresholds then falls with δ and grows with the horizon, as each of them does.
_EXPONENTS = (
    (4.0, 8.0, 12.0, 16.0, 20.0, 25.0),
    (1.0, 2.0, 6.0, 10.0, 14.0, 18.0, 22.0, 28.0, 32.0, 40.0, 60.0, 100.0, 400.0),
)


class Segment(NamedTuple):
    """One segment of Nested WAIT; tokens are means over inputs."""

    upto_decode: int  # l'_k, tokens
    rate_rps: float  # Λ_k, requests that reach it
    # p_k, share of the segment before that goes on to it; None for the first
    continue_probability: float | None
    threshold: int  # n_k, requests kept at every stage
    theta: float | None  # decay rate of the queue at its start, per request; None: it cannot outgrow n_k
    # c_k, requests waiting at its start while a batch runs, exceeded with probability at most δ in all; the first holds
    # no KV, and has none
    parked_bound: float | None
    queue_bound: float | None  # just before n_k of them are taken, c_k + n_k - 1; as many fewer then run
    # E[W_k], waiting when an iteration starts; None for the first where arrivals are not those of a law
    mean_queue_bound: float | None
    input_tokens: float  # of the requests that reach it
    kv_tokens: float  # of its stages when filled
    parked_kv_tokens: float  # of one request waiting at its start


class PrintedMemory(NamedTuple):
    """Base memory by the formulas the papers print, for the same thresholds, tokens; neither is used."""

    eq_13: float
    segment_design: float


class NestedWait(NamedTuple):
    """Nested WAIT thresholds and memory: the report's `nested_wait` block; no numbers unless Λ < 1, to 1e-12."""

    feasible: bool = False
    segments: tuple[Segment, ...] = ()
    # (ΣE[W_k] + Σn_k·ℓ_k)/S, requests per iteration that are not served in the horizon
    throughput_gap: float | None = None
    base_kv_tokens: float | None = None  # segments filled
    boundary_kv_tokens: float | None = None  # n_k at every boundary
    high_probability_kv_tokens: float | None = None  # what queues exceed that by
    input_spread_kv_tokens: float | None = None  # what inputs add up to beyond their mean
    required_kv_tokens: float | None = None  # the sum, exceeded with probability δ at most
    fits: bool = False
    iteration_time_s: float | None = None  # ΔT, with every segment filled
    iterations: int | None = None  # S = ⌈horizon/ΔT⌉
    smallest_thresholds_kv_tokens: float | None = None  # required by the same segments with those
    printed: PrintedMemory | None = None


class Requirement(NamedTuple):
    """The memory requirement of candidates, tokens; shape (n_candidates,), `theta` as the thresholds."""

    base: FloatArray
    boundary: FloatArray
    high_probability: FloatArray
    inputs: Excess
    iteration_time_s: FloatArray
    iterations: FloatArray
    exponent: FloatArray  # ln(events/δ) of the queues ...
    input_exponent: FloatArray  # ... and of inputs
    theta: FloatArray

    @property
    def total(self) -> FloatArray:
        return self.base + self.boundary + self.high_probability + self.inputs.tokens


def requirement_floor(segments: Segments, thresholds: FloatArray) -> FloatArray:
    """Memory that no thresholds above these can do with less of, tokens: the queues' excess left out."""
    return np.asarray((thresholds * (segments.held + segments.waiting)).sum(axis=0))


def requirement(segments: Segments, thresholds: FloatArray, *, delta: float, horizon_s: float) -> Requirement:
    """Memory not exceeded within a horizon with probability 1 - δ; `thresholds` of shape (n_segments, n_candidates).

    M^π + Σ_(k>=2) w_k c_k with c_k = n_k + ln((m - 1)·N/δ)/θ_k over N = ⌈horizon/ΔT⌉ iterations. Where inputs differ,
    queues and inputs get half of δ each (inputs all of it where there is no queue), and the latter add inf_θ [ln(2N/δ)
    + Σ R_k ln E_k e^θ(w - w̄)]/θ, R_k the residents of segment k and ⌈c_k⌉ waiting: given who got how far, inputs are
    independent of each other and of all queues (WAIT-s Theorem 5.1, D; inputs that differ new, theory §6).
    """
    needs = _queues(segments, thresholds, delta, horizon_s)
    if segments.laws is None:
        return needs
    held = _held(segments, thresholds, needs)
    return needs._replace(inputs=excess(segments.laws, segments.start, held, needs.input_exponent))


def _queues(segments: Segments, thresholds: FloatArray, delta: float, horizon_s: float) -> Requirement:
    """Compute the requirement with mean inputs alone."""
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


def _held(segments: Segments, thresholds: FloatArray, needs: Requirement) -> FloatArray:
    """Requests held in each segment and phase, at most; shape (n_segments, n_candidates, n_phases)."""
    counts, theta = (amounts[: len(segments.rate)] for amounts in (thresholds, needs.theta))
    parked = np.where(segments.waiting > 0, np.ceil(counts + needs.exponent / theta), 0.0)
    return np.asarray(counts[..., None] * segments.phases + parked[..., None] * segments.waits_in)


def _least_of(
    segments: Segments, thresholds: FloatArray, delta: float, horizon_s: float
) -> tuple[int, float]:
    """Find the candidate that needs least, and about how much: what inputs add is compared as if normal."""
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
    """Return the column that needs the least memory, its thresholds and its smallest thresholds, padding included.

    Every segmentation is tried with the smallest thresholds and with slack for several exponents, unless its floor
    already exceeds what another needs: the minimum over one set of thresholds for every δ and horizon (new, theory §6).
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
                best, chosen = needed, (int(columns[winner]), thresholds[:, winner], thresholds[:, winner])
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

    Equation 13 counts s + (l'_1 + … + l'_k)/2 tokens at every stage of segment k, which is too much for many segments
    and too little for two. The segment design counts s + kΔ/2, always too little in the mean; with unequal widths kΔ is
    read as l'_k (WAIT eq. 13, WAIT 7.2; WAIT-s D).
    """
    filled = thresholds * np.diff(ends, prepend=0.0)
    by_equation, by_design = (filled @ (input_tokens + e / 2) for e in (np.cumsum(ends), ends))
    return PrintedMemory(float(by_equation), float(by_design))


def mean_queues(thresholds: FloatArray, continuing: FloatArray) -> FloatArray:
    """Bounds n_k + n_(k-1)·p_k(1 - p_k)/(2(n_k - n_(k-1)·p_k)) on E[W_k] for k >= 2, at any start of an iteration.

    A batch brings Binomial(n_(k-1), p_k) requests, of which the next takes n_k (WAIT-s Lemma D.1; Kingman).
    """
    before, here, p = thresholds[:-1], thresholds[1:], continuing[1:]
    return np.asarray(here + before * p * (1 - p) / (2 * (here - before * p)))


def nested_wait(
    model: ServingModel,
    *,
    delta: float,
    horizon_s: float,
    segments: int | None,
    arrivals_known: bool = True,
) -> NestedWait:
    """Nested WAIT segments, thresholds and memory, exceeded within the horizon with probability `delta` at most.

    `segments` is their number; None chooses the one that needs the least memory. The queue of the first has a bound
    for arrivals of a law: not where the model replays a trace, nor where they are not known.

    References
    ----------
    WAIT-s Theorem 5.1, D; theory §6.

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
    if not model.is_plain:
        return NestedWait()
    means = None if model.schedule is None else class_windows(model)
    lengths = lengths_of(model if means is None else at_rates(model, means.mean_rps))
    if not lengths.work_to[-1] * GUARD < 1:
        return NestedWait()
    ends = candidate_ends(lengths, segments)
    candidates = segments_of(lengths, ends) if means is None else worst_segments(model, lengths, ends)
    if not candidates.count.size:
        return NestedWait()
    column, best, smallest = least_requirement(candidates, delta=delta, horizon_s=horizon_s)
    if not best.size or best[0] >= HOPELESS:
        return NestedWait()
    chosen = candidates.take(np.array([column]))
    rows = len(chosen.rate)
    needs, least = (
        requirement(chosen, n[:rows, None], delta=delta, horizon_s=horizon_s) for n in (best, smallest)
    )
    required, iterations, first = float(needs.total[0]), int(needs.iterations[0]), None
    if arrivals_known and model.arrivals.trace is None:
        brought = float(chosen.arrivals(needs.iteration_time_s, np.zeros(1, dtype=np.int64))[0])
        index = max(model.arrivals.cv, 1.0) ** 2
        first = queue_at_start(brought, int(best[0]), alone=False, dispersion=index)
    stages = np.diff(
        lengths.decode[chosen.end[:, 0]], prepend=-float(model.replica.prefill is Prefill.INLINE)
    )
    in_flight = float(best[:rows] @ stages)  # at most n_k at each stage of segment k
    queues = [first, *mean_queues(best[:rows], chosen.continuing[:, 0]).tolist()]
    return NestedWait(
        feasible=True,
        segments=tuple(_rows(chosen, lengths, best[:rows], needs, queues)),
        base_kv_tokens=float(needs.base[0]),
        boundary_kv_tokens=float(needs.boundary[0]),
        high_probability_kv_tokens=float(needs.high_probability[0]),
        input_spread_kv_tokens=float(needs.inputs.tokens[0]),
        required_kv_tokens=required,
        fits=required <= model.replica.capacity_tokens,
        iteration_time_s=float(needs.iteration_time_s[0]),
        iterations=iterations,
        throughput_gap=None if first is None else (sum(queues) + in_flight) / iterations,
        smallest_thresholds_kv_tokens=float(least.total[0]),
        printed=printed_memory(lengths.decode[chosen.end[:, 0]], chosen.input_tokens[:, 0], best[:rows]),
    )


def _rows(
    chosen: Segments, lengths: Lengths, thresholds: FloatArray, needs: Requirement, queues: list[float | None]
) -> Iterator[Segment]:
    for k, threshold in enumerate(thresholds.tolist()):
        theta = float(needs.theta[k, 0])
        parked = threshold + float(needs.exponent[0]) / theta if k else None
        yield Segment(
            upto_decode=int(lengths.decode[chosen.end[k, 0]]),
            rate_rps=float(lengths.rate_from[chosen.start[k, 0]]),
            continue_probability=float(chosen.continuing[k, 0]) if k else None,
            threshold=int(threshold),
            theta=theta if math.isfinite(theta) else None,
            parked_bound=parked,
            queue_bound=None if parked is None else parked + threshold - 1,
            mean_queue_bound=queues[k],
            input_tokens=float(chosen.input_tokens[k, 0]),
            kv_tokens=threshold * float(chosen.held[k, 0]),
            parked_kv_tokens=float(chosen.waiting[k, 0]),
        )
