"""What is in each plot: frozen arrays and levels, computed from the model and the report; nothing is drawn here."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvplan.analysis.equilibrium import equilibrium, rates_that_hold
from kvplan.analysis.kv_density import Density, saddlepoint_density
from kvplan.analysis.nested import nested_wait
from kvplan.analysis.overflow import usage_pmf_of
from kvplan.analysis.roots import ComplexArray, leading_roots
from kvplan.analysis.segments import lengths_of, segment_counts
from kvplan.model import FloatArray, IntArray, Plan, ServingModel
from kvplan.plots.fleet import FleetRates
from kvplan.plots.prefix_cache import CacheBranches, CacheHits
from kvplan.report.assembly import Report

if TYPE_CHECKING:
    pass

MOST_ROOTS = 400
_FAR = 4.0  # times the middle of a plot: beyond, the profile's own rate is named in the caption instead
_MARGIN = 1.2
_CURVE_POINTS = 160
_FULL = 1.3  # times the capacity: how far up the equilibrium is followed
_BELOW, _ABOVE = 4.0, 5.0  # standard deviations around the mean usage
_WIDENED = 1.7  # times, to have the capacity in the plot
_BINS = 60
_TIME_BINS = 200


@dataclass(frozen=True)
class RateThroughput:
    """Throughput against offered rate, requests/s; straight between the points.

    Attributes
    ----------
    rate_rps : ndarray, shape (n_points,)
        Offered, ascending from 0.
    capped_rps : ndarray, shape (n_points,)
        Served where admissions are capped.
    recovered_rps : ndarray, shape (n_points,)
        Sure to be served by a greedy replica that has collapsed and has a backlog.
    danger_zone_rps
        Rates that fit and that it may not recover at.
    worst_cycle_rps
        What it serves on the worst cycle of very many requests.
    offered_rps
        Of the profile.
    """

    rate_rps: FloatArray
    capped_rps: FloatArray
    recovered_rps: FloatArray
    danger_zone_rps: tuple[float, float] | None
    worst_cycle_rps: float
    offered_rps: float
    sustainable_rps: float

    @property
    def shows_offered(self) -> bool:
        """Whether the profile's own rate is within the plot."""
        return self.offered_rps <= float(self.rate_rps[-1])


def rate_throughput(report: Report) -> RateThroughput:
    """What is served of what is offered, with a cap and in the worst cycle (theory §2, §3)."""
    offered, sustainable = report.load.offered_rps, report.load.sustainable_rps
    zone, worst = report.worst_cycle.danger_zone_rps, report.worst_cycle.throughput_rps
    sure = sustainable if zone is None else zone[0]
    top = _MARGIN * (max(offered, sustainable) if offered <= _FAR * sustainable else sustainable)
    rate = np.array(sorted({0.0, sure, sustainable, top}))  # np.unique imports much at its first call
    return RateThroughput(
        rate_rps=rate,
        capped_rps=np.minimum(rate, sustainable),
        recovered_rps=np.minimum(rate, sure),
        danger_zone_rps=zone,
        worst_cycle_rps=min(worst, sustainable),
        offered_rps=offered,
        sustainable_rps=sustainable,
    )


@dataclass(frozen=True)
class EquilibriumCurve:
    """KV tokens at the preemption-free equilibrium against offered rate.

    Attributes
    ----------
    rate_rps : ndarray, shape (n_points,), requests/s
    kv_tokens : ndarray, shape (n_points,)
    full_rps
        Rate at which the equilibrium fills memory, requests/s.
    offered_rps
        Of the profile.
    offered_kv_tokens
        At that rate; None where no equilibrium exists.
    """

    rate_rps: FloatArray
    kv_tokens: FloatArray
    capacity_tokens: int
    full_rps: float
    offered_rps: float
    offered_kv_tokens: float | None

    @property
    def shows_offered(self) -> bool:
        """Whether the profile's own point is within the plot."""
        kv = self.offered_kv_tokens
        return kv is not None and kv <= self.kv_tokens[-1] and self.offered_rps <= self.rate_rps[-1]


def equilibrium_curve(model: ServingModel, report: Report) -> EquilibriumCurve:
    """KV cache usage against the rate of the same mix, up to a little more than memory (theory §2)."""
    memory = model.replica.memory_tokens
    own = report.equilibrium.kv_tokens
    followed = _FULL * memory if own is None else min(max(_FULL * memory, own), _FAR * memory)
    kv = np.linspace(0.0, followed, _CURVE_POINTS)
    *rates, full = rates_that_hold(model, [*kv.tolist(), memory])
    return EquilibriumCurve(
        rate_rps=np.array(rates),
        kv_tokens=kv,
        capacity_tokens=memory,
        full_rps=full,
        offered_rps=report.load.offered_rps,
        offered_kv_tokens=own,
    )


@dataclass(frozen=True)
class Histogram:
    """Probability per token between edges: shapes (n_bins + 1,) and (n_bins,)."""

    edge_tokens: FloatArray
    density: FloatArray


@dataclass(frozen=True)
class UsageDensity:
    """How KV cache usage spreads before any preemption.

    Attributes
    ----------
    with_feedback
        Saddlepoint.
    without_feedback
        Exact at a constant iteration time; None where requests are too long for it.
    mean_tokens, required_tokens
        M*, and the memory that bounds the risk.
    low_tokens, high_tokens
        Where the plot begins and ends.
    """

    with_feedback: Density
    without_feedback: Histogram | None
    mean_tokens: float
    required_tokens: float
    capacity_tokens: int
    low_tokens: float
    high_tokens: float

    @property
    def shows_capacity(self) -> bool:
        """Whether the capacity is within the plot."""
        return self.low_tokens <= self.capacity_tokens <= self.high_tokens

    @property
    def has_room(self) -> bool:
        """Whether the mean fits."""
        return self.mean_tokens < self.capacity_tokens


def usage_density(model: ServingModel, report: Report) -> UsageDensity | None:
    """Density of KV cache usage around its mean; None where it has no spread (theory §7)."""
    mean, std = equilibrium(model).kv_tokens, report.safety_buffer.kv_std_tokens
    required = report.safety_buffer.required_kv_tokens
    if mean is None or not std or required is None:
        return None
    memory = model.replica.memory_tokens
    low = max(0.0, mean - _BELOW * std)
    high = max(mean + _ABOVE * std, float(required))
    high += 0.05 * (high - low)
    if high < memory <= low + _WIDENED * (high - low):
        high = memory + 0.05 * (high - low)
    return UsageDensity(
        with_feedback=saddlepoint_density(model, low, high),
        without_feedback=_histogram(model, low, high),
        mean_tokens=mean,
        required_tokens=required,
        capacity_tokens=memory,
        low_tokens=low,
        high_tokens=high,
    )


def _histogram(model: ServingModel, low: float, high: float) -> Histogram | None:
    pmf = usage_pmf_of(model)
    if pmf is None:
        return None
    # bins of whole lattice steps, or the lattice would show as a comb
    steps = max(1, round((high - low) / _BINS / pmf.step))
    first = int(low / pmf.step)
    bins = min(int((high - low) / pmf.step / steps), (pmf.probability.size - first) // steps)
    if bins < 2:
        return None
    held = pmf.probability[first : first + bins * steps].reshape(bins, steps).sum(axis=1)
    edge = (first + steps * np.arange(bins + 1)) * pmf.step - pmf.step / 2
    return Histogram(np.maximum(edge, 0.0), held / (steps * pmf.step))


@dataclass(frozen=True)
class Roots:
    """Roots of the survival polynomial.

    Attributes
    ----------
    roots : ndarray of complex128, shape (n_roots,)
        Descending modulus.
    degree
        How many there are in all.
    radius
        The largest modulus, as the report has it.
    """

    roots: ComplexArray
    degree: int
    radius: float


def roots(model: ServingModel, report: Report) -> Roots | None:
    """The leading roots of P(z) = Σ_k W_k z^(L-1-k); None for a single stage (theory §3)."""
    mix = model.mix
    weights = mix.held.survival(mix.share)
    if weights.size == 1:
        return None
    radius = report.stability.spectral_radius
    return Roots(leading_roots(weights, radius, MOST_ROOTS), weights.size - 1, radius)


@dataclass(frozen=True)
class SegmentMemory:
    """What Nested WAIT requires, by number of segments.

    Attributes
    ----------
    count : ndarray of int64, shape (n_counts,)
    base_tokens, boundary_tokens, buffer_tokens : ndarray, shape (n_counts,)
        Filled segments, waiting at boundaries, buffer for their queues and for inputs that differ.
    chosen
        Number of segments in the report.
    """

    count: IntArray
    base_tokens: FloatArray
    boundary_tokens: FloatArray
    buffer_tokens: FloatArray
    chosen: int
    capacity_tokens: int

    @property
    def required_tokens(self) -> FloatArray:
        """Their sum."""
        return self.base_tokens + self.boundary_tokens + self.buffer_tokens

    @property
    def shows_capacity(self) -> bool:
        """Whether the capacity is within the plot."""
        return self.capacity_tokens <= _FAR * float(self.required_tokens.max())


def segment_memory(model: ServingModel, report: Report, plan: Plan) -> SegmentMemory | None:
    """The least memory for each number of segments (theory §6).

    None where there is one length, Λ >= 1, or floats do not hold it.
    """
    lengths = lengths_of(model).decode.size
    if lengths == 1 or not report.nested_wait.feasible:
        return None
    chosen = len(report.nested_wait.segments)
    count = sorted({*segment_counts(lengths), chosen})
    plans = [nested_wait(model, delta=plan.delta, horizon_s=plan.horizon_s, segments=k) for k in count]
    parts = [
        (p.base_kv_tokens, p.boundary_kv_tokens, p.high_probability_kv_tokens, p.input_spread_kv_tokens)
        for p in plans
    ]
    base, boundary, *buffers = np.array(parts, dtype=np.float64).T
    found = SegmentMemory(
        np.array(count), base, boundary, sum(buffers), chosen, model.replica.capacity_tokens
    )
    return found if np.isfinite(found.required_tokens).all() else None


ReportData = (
    RateThroughput
    | EquilibriumCurve
    | CacheBranches
    | CacheHits
    | FleetRates
    | UsageDensity
    | Roots
    | SegmentMemory
)
