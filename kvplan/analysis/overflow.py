"""Probability of overflow and the safety buffer that keeps it below δ (theory §7).

Before any eviction KV usage is a Poisson cluster process, and its tail is known to any depth. The report gives it
per iteration, over a horizon, and turned around: the memory that keeps the risk within δ. FC's theorem stands
beside it for comparison.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from kvplan.analysis.equilibrium import iteration_time, per_request, tangent
from kvplan.analysis.kv_cumulants import ClusterGrid, cluster_grid
from kvplan.analysis.kv_tail import Tail, UsagePmf, UsageScale, pmf_tail, saddlepoint_tail, usage_pmf
from kvplan.model import ServingModel, sum_by

_LEAST_SLACK = 1e-3  # of 1 - Λ; below, the shape of the law no longer changes
_VACUOUS = 0.5  # a bound on a probability that says nothing


class TailMethod(StrEnum):
    """Which of two answers about the tail is the larger, hence reported."""

    SADDLEPOINT = "saddlepoint"
    EXACT_PMF = "exact_pmf"


class SafetyBuffer(NamedTuple):
    """Risk of overflow and the memory that bounds it; the keys of the report's `safety_buffer` block.

    Everything is None where Λ >= 1.

    Attributes
    ----------
    kv_std_tokens
        Standard deviation of KV usage, its feedback on iteration times included.
    overflow_probability_per_iteration
        P(KV > M), the larger of the two below.
    overflow_probability_horizon
        Bound of the probability of any overflow in the horizon, at most 1.
    required_kv_tokens
        Smallest memory with that bound at most δ, but enough for the longest request.
    watermark_fraction
        (required - M*)/M: what to keep free above the mean usage, as a fraction of blocks; negative where an
        overflow is so welcome that less than the mean is enough.
    theorem_bound
        FC's bound of the expected overflows in the horizon; None where the mean does not fit.
    theorem_bound_is_vacuous
        It is above one half, or there is none.
    saddlepoint_probability
        P(KV > M) with feedback, smooth.
    exact_pmf_probability
        P(KV > M) without feedback, exact; None where requests are too long for it, 0 below 1e-12.
    """

    kv_std_tokens: float | None
    overflow_probability_per_iteration: float | None
    overflow_probability_horizon: float | None
    required_kv_tokens: int | None
    watermark_fraction: float | None
    theorem_bound: float | None
    theorem_bound_is_vacuous: bool | None
    saddlepoint_probability: float | None
    exact_pmf_probability: float | None
    larger_tail: TailMethod | None


def safety_buffer(
    model: ServingModel, *, delta: float, horizon_s: float, budgets: Sequence[int] | None = None
) -> SafetyBuffer:
    """Risk of overflow of a model, and the memory that keeps it within `delta`.

    Parameters
    ----------
    delta
        Accepted probability of an overflow within the horizon, above 0 and at most 1.
    horizon_s
        Seconds; counts as one iteration at least.
    budgets
        Admissions per iteration and class that FC's bound is for. Without them, the smallest whole number above the
        arrivals.

    References
    ----------
    New, theory §7: P(any overflow in T) <= (T/τ*)·P(KV > M), by Boole's inequality; FC Theorem 3.6.

    Examples
    --------
    >>> from kvplan.model import Prefill, Replica, RequestClass, Timing
    >>> chat = RequestClass("chat", 1155, (211,), (1.0,), 7.5)
    >>> timing = Timing(d0=0.0145, d1=2.494767e-7)
    >>> model = ServingModel((chat,), timing, Replica(94_160, prefill=Prefill.INLINE))
    >>> buffer = safety_buffer(model, delta=0.01, horizon_s=3600)
    >>> round(buffer.kv_std_tokens, -2), round(buffer.overflow_probability_per_iteration, 4)
    (12000.0, 0.0036)
    """
    tau = iteration_time(model)
    if tau is None:
        return SafetyBuffer(*[None] * 10)
    iterations = max(1.0, horizon_s / tau)
    log_allowed = math.log(delta) - math.log(iterations)
    scale = usage_scale(model)
    std, smooth, lumpy = _tails(model, log_allowed)
    smooth_probability, lumpy_probability = math.exp(smooth.log_probability), None
    probability, level, larger = smooth_probability, smooth.level, TailMethod.SADDLEPOINT
    if lumpy is not None:
        lumpy_probability = math.exp(lumpy.log_probability)
        level = max(level, lumpy.level)
        if lumpy_probability > smooth_probability:
            probability, larger = lumpy_probability, TailMethod.EXACT_PMF
    required = math.ceil(max(level - 0.5, scale.largest))
    memory = model.replica.memory_tokens
    bound = flow_control_bound(flow_control(model, iterations, budgets))
    return SafetyBuffer(
        kv_std_tokens=std,
        overflow_probability_per_iteration=probability,
        overflow_probability_horizon=min(1.0, iterations * probability),
        required_kv_tokens=required,
        watermark_fraction=(required - scale.mean) / memory,
        theorem_bound=bound,
        theorem_bound_is_vacuous=bound is None or bound >= _VACUOUS,
        saddlepoint_probability=smooth_probability,
        exact_pmf_probability=lumpy_probability,
        larger_tail=larger,
    )


def usage_scale(model: ServingModel) -> UsageScale:
    """Mean, and standard deviation at constant iteration time, of KV usage; Λ < 1.

    References
    ----------
    New, theory §7: M*, and Var = Σ λ_i τ* Σ_k h_i(k)², h the memory held.
    """
    mix, tau = model.mix, iteration_time(model)
    assert tau is not None
    return UsageScale(
        mean=float(mix.rate_rps @ mix.held.footprint) * tau,
        std_without_feedback=math.sqrt(float(mix.rate_rps @ mix.held.squares)) * math.sqrt(tau),
        largest=float(mix.held.at_end.max()),
    )


class UsageLaw(NamedTuple):
    """The law of KV usage before any eviction, feedback included, as the saddlepoint needs it.

    Attributes
    ----------
    scale
        Of the law on the grid.
    stretch
        Usage is that of the grid, times this; 1 unless Λ is within 1e-3 of 1.
    """

    grid: ClusterGrid
    scale: UsageScale
    stretch: float


def usage_law(model: ServingModel) -> UsageLaw:
    """The law of KV usage of a model with Λ < 1.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> law = usage_law(ServingModel((RequestClass("a", 9, (5,), (1.0,), 2.0),), Timing(0.5), Replica(500)))
    >>> law.scale.mean, law.stretch
    (60.0, 1.0)
    """
    tau = iteration_time(model)
    assert tau is not None
    # As Λ → 1 usage over its mean tends to a gamma law: nearer than 1e-3, take the law there and stretch it.
    work = 1 - tangent(model).fixed_s / tau
    slower = model
    if 1 - work < _LEAST_SLACK:
        slower = _at_rate(model, (1 - _LEAST_SLACK) / work)
    at = usage_scale(slower)
    return UsageLaw(cluster_grid(slower), at, usage_scale(model).mean / at.mean)


def usage_pmf_of(model: ServingModel) -> UsagePmf | None:
    """Distribution of KV usage of a model with Λ < 1, feedback left out; None where requests are too long."""
    tau = iteration_time(model)
    assert tau is not None
    return usage_pmf(model.mix.held.at_start, model.mix.stages, model.mix.rate_rps * tau)


def _tails(model: ServingModel, log_allowed: float) -> tuple[float, Tail, Tail | None]:
    """Standard deviation, saddlepoint tail, and exact tail without feedback, at M and at the allowed probability."""
    level = model.replica.memory_tokens + 0.5
    grid, at, stretch = usage_law(model)
    std, smooth = saddlepoint_tail(grid, at, level / stretch, log_allowed)
    smooth = Tail(smooth.log_probability, smooth.level * stretch)
    pmf = usage_pmf_of(model)
    return std * stretch, smooth, None if pmf is None else pmf_tail(pmf, level, math.exp(log_allowed))


def _at_rate(model: ServingModel, factor: float) -> ServingModel:
    """The model with every rate scaled."""
    return replace(model, classes=tuple(replace(c, rate_rps=c.rate_rps * factor) for c in model.classes))


class FlowControl(NamedTuple):
    """What FC's bound is a function of; see `flow_control_bound`."""

    iterations: float
    memory_tokens: float
    mean_tokens: float
    largest_budget: int
    longest: int


def flow_control(model: ServingModel, iterations: float, budgets: Sequence[int] | None) -> FlowControl:
    """The inputs of FC's bound for a model with Λ < 1.

    Class budgets admit Σ b_i an iteration and hold Σ b_i S_i on average. Without them the theorem's mean budget is
    taken at the arrivals, where usage averages M*, and its largest at the next whole number.
    """
    tau = iteration_time(model)
    assert tau is not None
    if budgets is None:
        largest_budget = math.floor(model.total_rate_rps * tau) + 1
        mean = per_request(model).held * model.total_rate_rps * tau
    else:
        mix = model.mix
        rates = np.array([c.rate_rps for c in model.classes])
        per_class = sum_by(mix.class_index, mix.rate_rps * mix.held.footprint) / rates
        largest_budget, mean = sum(budgets), float(np.array(budgets) @ per_class)
    longest = max(max(c.input_tokens, c.decode_tokens[-1]) for c in model.classes)
    return FlowControl(iterations, model.replica.memory_tokens, mean, largest_budget, longest)


def flow_control_bound(given: FlowControl) -> float | None:
    """FC's bound of the expected number of overflows, T·exp(-ε²M²/(2(A² + A)C³)) with ε = 1 - mean/M.

    Parameters
    ----------
    given
        T iterations, M, mean KV usage, A (the most requests admitted in an iteration), C (the longest input or decode
        length, tokens).

    Returns
    -------
    float or None
        None where the mean fills memory: the theorem needs ε > 0.

    References
    ----------
    FC Theorem 3.6, constant from its proof (A.4). The proof takes requests that are readmitted after an eviction
    for fresh independent ones; what is rigorous is the same bound on P(any overflow) (theory §7).

    Examples
    --------
    >>> round(flow_control_bound(FlowControl(10.0, 200.0, 100.0, largest_budget=1, longest=10)), 3)
    0.821
    """
    spare, budget = given.memory_tokens - given.mean_tokens, given.largest_budget
    if spare <= 0:
        return None
    return given.iterations * math.exp(
        -((spare / given.longest) ** 2) / (2 * (budget**2 + budget) * given.longest)
    )
