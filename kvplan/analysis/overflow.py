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
from kvplan.analysis.kv_passage import Passage, passage, passage_speed, usage_changes
from kvplan.analysis.kv_tail import (
    PMF_NOISE,
    Tail,
    UsagePmf,
    UsageScale,
    pmf_tail,
    saddlepoint_table,
    saddlepoint_tail,
    usage_pmf,
)
from kvplan.model import ServingModel, sum_by

_MOST_WORK = 1 - 1e-3  # Λ; above, the shape of the law no longer changes
_ROUNDING = 1e-9
_VACUOUS = 0.5  # a bound on a probability that says nothing
_LEAST_WORK = 0.01  # Λ; below, the law at constant iteration time is off by less than others at their best
_MAX_JUMP = 1 << 22  # pages; for longer requests the saddlepoint alone is used
_LIKELY = 0.1  # levels that are exceeded more often may be below the mean
_MOST_PROMPTS, _FEWEST_CLUSTERS = 0.5, 4
_MOST_WATERMARK = 1.0  # an engine cannot keep more than all of its blocks free


class TailMethod(StrEnum):
    """Which of two answers about the tail is reported: the larger, or without feedback the exact one."""

    SADDLEPOINT = "saddlepoint"
    EXACT_PMF = "exact_pmf"


class SafetyBuffer(NamedTuple):
    """Risk of overflow and the memory that bounds it; the keys of the report's `safety_buffer` block.

    Everything is None where Λ >= 1, and where sums of the law of the usage are beyond all floats.

    Attributes
    ----------
    kv_std_tokens
        Standard deviation of KV usage, its feedback on iteration times included.
    overflow_probability_per_iteration
        P(KV > M), one of the two below.
    overflow_probability_horizon
        Of any overflow in the horizon: estimated.
    passage_rate
        Passages over M per iteration spent below it, which that is computed from.
    overflow_probability_horizon_bound
        It is this at most, and at most 1: the sum over iterations.
    required_kv_tokens
        Smallest memory, in whole pages, with which the estimated probability of any overflow in the horizon is δ at
        most, but enough for the longest request: no more than M exactly where `overflow_probability_horizon` <= δ.
    watermark_fraction
        (required - M*)/M: what to keep free above the mean usage, as a fraction of blocks; negative where an
        overflow is so welcome that less than the mean is enough, None where it would be more than all blocks.
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
    passage_rate: float | None
    overflow_probability_horizon_bound: float | None
    required_kv_tokens: int | None
    watermark_fraction: float | None
    theorem_bound: float | None
    theorem_bound_is_vacuous: bool | None
    saddlepoint_probability: float | None
    exact_pmf_probability: float | None
    reported_tail: TailMethod | None


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
    New, theory §7: the estimate of `kv_passage`; P(any overflow in T) <= (T/τ*)·P(KV > M), by Boole's inequality; FC
    Theorem 3.6.

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
        return SafetyBuffer(*[None] * 12)
    iterations = max(1.0, horizon_s / tau)
    mean, memory = usage_scale(model).mean, model.replica.memory_tokens
    found = _tails(model, delta, iterations)
    if found is None:
        return SafetyBuffer(*[None] * 12)
    log_probability = found.reported.log_probability
    probability, by_saddlepoint = math.exp(log_probability), log_probability == found.smooth.log_probability
    any_overflow = found.usual.any_overflow(log_probability)
    required = _required(model, found.reported.levels[0], enough=any_overflow <= delta)
    watermark = (required - mean) / memory
    bound = flow_control_bound(flow_control(model, iterations, budgets))
    return SafetyBuffer(
        kv_std_tokens=found.std,
        overflow_probability_per_iteration=probability,
        overflow_probability_horizon=any_overflow,
        passage_rate=found.usual.rate(log_probability),
        overflow_probability_horizon_bound=min(1.0, iterations * probability),
        required_kv_tokens=required,
        watermark_fraction=watermark if watermark <= _MOST_WATERMARK else None,
        theorem_bound=bound,
        theorem_bound_is_vacuous=bound is None or bound >= _VACUOUS,
        saddlepoint_probability=math.exp(found.smooth.log_probability),
        exact_pmf_probability=None if found.exact is None else math.exp(found.exact.log_probability),
        reported_tail=TailMethod.SADDLEPOINT if by_saddlepoint else TailMethod.EXACT_PMF,
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
        mean=float(mix.rate_rps @ mix.footprint) * tau,
        std_without_feedback=math.sqrt(float(mix.rate_rps @ (mix.held.squares + mix.partial.held_squares)))
        * math.sqrt(tau),
        largest=float(mix.held.largest.max()),
    )


class UsageLaw(NamedTuple):
    """The law of KV usage before any eviction, feedback included, as the saddlepoint needs it.

    Attributes
    ----------
    scale
        Of the law on the grid.
    stretch
        Usage is that of the grid, times this; 1 unless Λ is within 1e-3 of 1, or arrivals cluster.
    """

    grid: ClusterGrid
    scale: UsageScale
    stretch: float


def usage_law(model: ServingModel) -> UsageLaw:
    """The law of KV usage of a model with Λ < 1.

    Where arrivals cluster, so many times rarer and larger requests have the variance of usage that they have, and
    nearly its skewness.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> law = usage_law(ServingModel((RequestClass("a", 9, (5,), (1.0,), 2.0),), Timing(0.5), Replica(500)))
    >>> law.scale.mean, law.stretch
    (60.0, 1.0)
    """
    # As Λ → 1 usage over its mean tends to a gamma law: nearer than 1e-3, take the law there and stretch it. A law that
    # is not linear has another tangent there, so that one step may not be enough.
    slower = model
    while (work := _tangent_work(slower)) > _MOST_WORK * (1 + _ROUNDING):
        slower = _at_rate(slower, _MOST_WORK / work)
    at, grid = usage_scale(slower), cluster_grid(slower)
    spread = 1.0 if model.arrivals.cv <= 1 else usage_changes(slower).spread
    if spread != 1:
        grid = grid._replace(fixed_time_s=grid.fixed_time_s / spread)
        at = at._replace(
            mean=at.mean / spread, std_without_feedback=at.std_without_feedback / math.sqrt(spread)
        )
    return UsageLaw(grid, at, usage_scale(model).mean / at.mean)


def usage_pmf_of(model: ServingModel) -> UsagePmf | None:
    """Distribution of KV usage of a model with Λ < 1, feedback left out; None where requests are too long.

    None where arrivals cluster, too: it is that of Poisson arrivals.
    """
    tau = iteration_time(model)
    assert tau is not None
    if model.arrivals.cv > 1:
        return None
    mix, page = model.mix, model.replica.block_tokens
    if mix.held.largest.max() > _MAX_JUMP * page:
        return None
    by_pages = mix.by_pages(mix.rate_rps * tau)
    return usage_pmf(by_pages[:: round(mix.lattice_tokens / page)], mix.lattice_tokens)


class _Tails(NamedTuple):
    """What is known about the tail: at M, and at the probability that δ allows."""

    std: float
    usual: Passage
    smooth: Tail
    exact: Tail | None
    reported: Tail


def _tails(model: ServingModel, delta: float, iterations: float) -> _Tails | None:
    """None where floats do not reach."""
    lattice = model.mix.lattice_tokens
    level = (model.replica.capacity_tokens // lattice + 0.5) * lattice
    grid, at, stretch = usage_law(model)
    table = saddlepoint_table(grid, at, with_left=level < at.mean * stretch or delta > _LIKELY)
    if not table.theta.size:
        return None
    std = table.std * stretch
    usual = passage(passage_speed(model, std), iterations)
    log_allowed = usual.log_allowed(delta)
    smooth = saddlepoint_tail(table, level / stretch, [log_allowed])
    smooth = Tail(smooth.log_probability, tuple(x * stretch for x in smooth.levels))
    if (pmf := usage_pmf_of(model)) is None:
        return _Tails(std, usual, smooth, None, smooth)
    exact = pmf_tail(pmf, level, [math.exp(log_allowed)])
    pairs = [(smooth.log_probability, exact.log_probability), *zip(smooth.levels, exact.levels, strict=True)]
    if not _has_feedback(model):
        # exact, as far as it reaches
        reaches = [p > math.log(PMF_NOISE) for p in (exact.log_probability, log_allowed)]
        pairs = [(e if there else s, e) for (s, e), there in zip(pairs, reaches, strict=True)]
    reported, *levels = map(max, pairs)
    return _Tails(std, usual, smooth, exact, Tail(reported, tuple(levels)))


def _has_feedback(model: ServingModel) -> bool:
    """Whether usage makes iterations vary enough to matter."""
    tau = iteration_time(model)
    assert tau is not None
    return tangent(model).fixed_s < (1 - _LEAST_WORK) * tau


def _required(model: ServingModel, level: float, *, enough: bool) -> int:
    """Memory that exceeds a level; at most what the model has if that is `enough`, else more than it.

    Levels and probabilities are interpolated apart, so that at the memory of the model the two can differ by a page.
    """
    lattice, capacity = model.mix.lattice_tokens, model.replica.capacity_tokens
    required = max(math.ceil(level / lattice - 0.5), 0) * lattice if level > 0 else 0.0
    required = min(required, capacity) if enough else max(required, (capacity // lattice + 1) * lattice)
    return round(max(required, usage_scale(model).largest))


def _tangent_work(model: ServingModel) -> float:
    """Λ of the linear law that touches the iteration time."""
    tau = iteration_time(model)
    assert tau is not None
    return 1 - tangent(model).fixed_s / tau


def _at_rate(model: ServingModel, factor: float) -> ServingModel:
    """The model with every rate scaled."""
    return replace(model, classes=tuple(replace(c, rate_rps=c.rate_rps * factor) for c in model.classes))


def has_doubtful_tail(model: ServingModel) -> bool:
    """Whether few prompts, each of which lets in many more, make the saddlepoint several times too small; Λ < 1.

    Where prompts alone take more than half of all time and fewer than four clusters are in memory, tails were .13 to
    .7 of those simulated; elsewhere .72 and more.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> def alone(rate: float) -> ServingModel:
    ...     return ServingModel((RequestClass("a", 999, (9,), (1.0,), rate),), Timing(0.1, d2=1e-3), Replica(9_999))
    >>> has_doubtful_tail(alone(0.7)), has_doubtful_tail(alone(0.2))
    (True, False)
    """
    law, tau = tangent(model), iteration_time(model)
    assert tau is not None
    prompts = law.per_prefill_token_s * float(model.mix.rate_rps @ model.mix.prefill_tokens)
    clusters = clusters_held(model) * law.fixed_s / tau
    return prompts > _MOST_PROMPTS and clusters < _FEWEST_CLUSTERS


def clusters_held(model: ServingModel) -> float:
    """How many independent things, requests or clusters of them, are in memory: mean² over variance; Λ < 1.

    Of requests that arrive in clusters two and more make the saddlepoint .59 to 1.21 times what simulations have, from
    one to three standard deviations above the mean (210 levels); fewer make it up to ten times too small.

    Examples
    --------
    >>> from kvplan.model import ArrivalProcess, Replica, RequestClass, Timing
    >>> def held(cv: float) -> float:
    ...     one = RequestClass("a", 99, (500,), (1.0,), 2.0)
    ...     return clusters_held(ServingModel((one,), Timing(0.01), Replica(9_999), arrivals=ArrivalProcess(cv)))
    >>> round(held(1.0), 1), round(held(3.0), 1)
    (8.5, 1.1)
    """
    scale = usage_scale(model)
    spread = usage_changes(model).spread if model.arrivals.cv > 1 else 1.0
    return (scale.mean / scale.std_without_feedback) ** 2 / spread


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
    longest = max(int(model.mix.input_tokens.max()), *(c.decode_tokens[-1] for c in model.classes))
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
