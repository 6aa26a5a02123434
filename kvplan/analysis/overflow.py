"""Probability of overflow and the safety buffer that keeps it below δ (theory §7).

Before any eviction KV usage is a Poisson cluster process, and its tail is known to any depth. The report gives it
per iteration, over a horizon, and turned around: the memory that keeps the risk within δ. FC's theorem stands
beside it for comparison.
"""

import math
from dataclasses import replace
from typing import NamedTuple

from kvplan.analysis.equilibrium import iteration_time, per_request, tangent
from kvplan.analysis.kv_cumulants import ClusterGrid, cluster_grid
from kvplan.analysis.kv_passage import passage, passage_speed, usage_changes
from kvplan.analysis.kv_tail import (
    PMF_NOISE,
    UsagePmf,
    UsageScale,
    pmf_tail,
    saddlepoint_table,
    saddlepoint_tail,
    usage_pmf,
)
from kvplan.analysis.wait import GUARD
from kvplan.model import ServingModel

_MOST_WORK = 1 - 1e-3  # Λ; above, the shape of the law no longer changes
_ROUNDING = 1e-9
_VACUOUS = 0.5  # a bound on a probability that says nothing
_LEAST_WORK = 0.01  # Λ; below, the law at constant iteration time is off by less than others at their best
_MAX_JUMP = 1 << 22  # pages; for longer requests the saddlepoint alone is used
_LIKELY = 0.1  # levels that are exceeded more often may be below the mean
_MOST_PROMPTS, _FEWEST_CLUSTERS = 0.5, 4
_MOST_WATERMARK = 1.0  # an engine cannot keep more than all of its blocks free


class SafetyBuffer(NamedTuple):
    """Risk of overflow and the memory that bounds it: the report's `safety_buffer` block; all None where Λ >= 1."""

    kv_std_tokens: float | None = None  # its feedback on iteration times included
    overflow_probability_per_iteration: float | None = None  # P(KV > M), one of the two below
    overflow_probability_horizon: float | None = None  # of any overflow, estimated ...
    overflow_probability_horizon_bound: float | None = None  # the sum over iterations, at most 1
    # smallest memory, in whole pages and enough for the longest request, with which overflow_probability_horizon <= δ
    required_kv_tokens: int | None = None
    # (required - M*)/M, blocks to keep free above the mean usage; None where it would be more than all
    watermark_fraction: float | None = None
    theorem_bound: float | None = None  # FC's, of the expected overflows; None where the mean does not fit
    theorem_bound_is_vacuous: bool | None = None  # above one half, or there is none
    saddlepoint_probability: float | None = None  # P(KV > M) with feedback, smooth
    # P(KV > M) without feedback, exact; None where requests are too long for it, 0 below 1e-12
    exact_pmf_probability: float | None = None


def safety_buffer(model: ServingModel, *, delta: float, horizon_s: float) -> SafetyBuffer:
    """Risk of overflow of a model, and the memory that keeps it within `delta`, above 0 and at most 1, in a horizon.

    A horizon counts as one iteration at least.

    References
    ----------
    New, theory §7: the estimate of `kv_passage`; P(any overflow in T) <= (T/τ*)·P(KV > M), by Boole's inequality; FC
    Theorem 3.6.

    Examples
    --------
    >>> from kvplan.model import Prefill, Replica, RequestClass, Timing
    >>> chat = RequestClass("chat", 1155, (211,), (1.0,), 7.5)
    >>> model = ServingModel((chat,), Timing(0.0145, 2.494767e-7), Replica(94_160, prefill=Prefill.INLINE))
    >>> buffer = safety_buffer(model, delta=0.01, horizon_s=3600)
    >>> round(buffer.kv_std_tokens, -2), round(buffer.overflow_probability_per_iteration, 4)
    (12000.0, 0.0036)
    """
    tau = iteration_time(model)
    if tau is None:
        return SafetyBuffer()
    iterations = max(1.0, horizon_s / tau)
    lattice = model.mix.lattice_tokens
    level = (model.replica.capacity_tokens // lattice + 0.5) * lattice
    law = usage_law(model)
    left = level < law.scale.mean * law.stretch or delta > _LIKELY
    table = saddlepoint_table(law.grid, law.scale, with_left=left)
    std = table.std * law.stretch
    usual = passage(passage_speed(model, std), iterations)
    log_allowed = usual.log_allowed(delta)
    smooth = saddlepoint_tail(table, level / law.stretch, [log_allowed])
    log_tail, required_level = smooth_answers = smooth.log_probability, smooth.levels[0] * law.stretch
    exact, pmf = None, usage_pmf_of(model)
    if pmf is not None:
        exact = pmf_tail(pmf, level, [math.exp(log_allowed)])
        answers = list(zip(smooth_answers, (exact.log_probability, exact.levels[0]), strict=True))
        if tangent(model).fixed_s >= (1 - _LEAST_WORK) * tau:  # no feedback: exact, as far as it reaches
            reaches = [p > math.log(PMF_NOISE) for p in (exact.log_probability, log_allowed)]
            answers = [(e if there else s, e) for (s, e), there in zip(answers, reaches, strict=True)]
        log_tail, required_level = map(max, answers)
    probability, any_overflow = math.exp(log_tail), usual.any_overflow(log_tail)
    required = _required(model, required_level, enough=any_overflow <= delta)
    watermark = (required - usage_scale(model).mean) / model.replica.memory_tokens
    bound = flow_control_bound(model, iterations)
    return SafetyBuffer(
        kv_std_tokens=std,
        overflow_probability_per_iteration=probability,
        overflow_probability_horizon=any_overflow,
        overflow_probability_horizon_bound=min(1.0, iterations * probability),
        required_kv_tokens=required,
        watermark_fraction=watermark if watermark <= _MOST_WATERMARK else None,
        theorem_bound=bound,
        theorem_bound_is_vacuous=bound is None or bound >= _VACUOUS,
        saddlepoint_probability=math.exp(smooth.log_probability),
        exact_pmf_probability=None if exact is None else math.exp(exact.log_probability),
    )


def usage_scale(model: ServingModel) -> UsageScale:
    """Mean M*, and Var = Σ λ_i τ* Σ_k h_i(k)² at constant iteration time, of KV usage; Λ < 1 (new, theory §7)."""
    mix, tau = model.mix, iteration_time(model)
    assert tau is not None
    variance_per_s = float(mix.rate_rps @ (mix.held.squares + mix.partial.held_squares))
    return UsageScale(
        mean=float(mix.rate_rps @ mix.footprint) * tau,
        std_without_feedback=math.sqrt(variance_per_s) * math.sqrt(tau),
        largest=float(mix.held.largest.max()),
    )


class UsageLaw(NamedTuple):
    """The law of KV usage before any eviction, feedback included: that on the grid, times a factor."""

    grid: ClusterGrid
    scale: UsageScale  # of the law on the grid
    stretch: float  # 1 unless Λ is within 1e-3 of 1, or arrivals cluster


def usage_law(model: ServingModel) -> UsageLaw:
    """Return the law of KV usage, given Λ < 1.

    As Λ → 1 usage over its mean tends to a gamma law: nearer than 1e-3, take the law there and stretch it. Where
    arrivals cluster, so many times rarer and larger requests have the variance of usage that they have, and nearly its
    skewness.
    """
    slower = model
    while (work := _tangent_work(slower)) > _MOST_WORK * (
        1 + _ROUNDING
    ):  # another tangent there: not one step
        factor = _MOST_WORK / work
        slower = replace(
            slower, classes=tuple(replace(c, rate_rps=c.rate_rps * factor) for c in slower.classes)
        )
    scale, grid = usage_scale(slower), cluster_grid(slower)
    spread = 1.0 if model.arrivals.cv <= 1 else usage_changes(slower).spread
    if spread != 1:
        grid = grid._replace(fixed_time_s=grid.fixed_time_s / spread)
        std = scale.std_without_feedback / math.sqrt(spread)
        scale = scale._replace(mean=scale.mean / spread, std_without_feedback=std)
    return UsageLaw(grid, scale, usage_scale(model).mean / scale.mean)


def _tangent_work(model: ServingModel) -> float:
    """Λ of the linear law that touches the iteration time."""
    tau = iteration_time(model)
    assert tau is not None
    return 1 - tangent(model).fixed_s / tau


def usage_pmf_of(model: ServingModel) -> UsagePmf | None:
    """Distribution of KV usage of a model with Λ < 1 and Poisson arrivals, feedback left out.

    None where arrivals cluster, or requests are too long.
    """
    tau = iteration_time(model)
    assert tau is not None
    mix, page = model.mix, model.replica.block_tokens
    if model.arrivals.cv > 1 or mix.held.largest.max() > _MAX_JUMP * page:
        return None
    by_pages = mix.by_pages(mix.rate_rps * tau)
    return usage_pmf(by_pages[:: round(mix.lattice_tokens / page)], mix.lattice_tokens)


def _required(model: ServingModel, level: float, *, enough: bool) -> int:
    """Memory that exceeds a level; at most what the model has if that is `enough`, else more than it.

    Levels and probabilities are interpolated apart, so that at the memory of the model the two can differ by a page.
    """
    lattice, capacity = model.mix.lattice_tokens, model.replica.capacity_tokens
    required = max(math.ceil(level / lattice - 0.5), 0) * lattice if level > 0 else 0.0
    required = min(required, capacity) if enough else max(required, (capacity // lattice + 1) * lattice)
    return round(max(required, usage_scale(model).largest))


def has_doubtful_tail(model: ServingModel) -> bool:
    """Tell where few prompts, each of which lets in many more, make the saddlepoint several times too small; Λ < 1.

    Where prompts alone take more than half of all time and fewer than four clusters are in memory, tails were .13 to
    .7 of those simulated; elsewhere .72 and more.
    """
    law, tau = tangent(model), iteration_time(model)
    assert tau is not None
    mix = model.mix
    prefill_s = law.prefill_s(mix.prefill_tokens, mix.prefill_pairs)
    prompts = float(mix.rate_rps @ prefill_s)
    clusters = clusters_held(model) * law.fixed_s / tau
    return prompts > _MOST_PROMPTS and clusters < _FEWEST_CLUSTERS


def clusters_held(model: ServingModel) -> float:
    """Independent things, requests or clusters of them, that are in memory: mean² over variance; Λ < 1.

    Of requests that arrive in clusters two and more make the saddlepoint .59 to 1.21 times what simulations have, from
    one to three standard deviations above the mean (210 levels); fewer make it up to ten times too small.
    """
    scale = usage_scale(model)
    spread = usage_changes(model).spread if model.arrivals.cv > 1 else 1.0
    return (scale.mean / scale.std_without_feedback) ** 2 / spread


def flow_control_bound(model: ServingModel, iterations: float) -> float | None:
    """FC's bound of the expected overflows in T iterations, least over budgets b > λτ*; None where M* fills memory.

    T·exp(-(M - b·S̄)²/(2(A² + A)C³)) falls with b and with the largest budget A: it is least as b → λτ*, with A the
    next whole number. C is the longest of prompts and stays, weights being at most 2C (with `inline` those of inputs
    a token shorter and outputs a token longer).

    References
    ----------
    FC Theorem 3.6, constant from its proof (A.4). The proof takes requests that are readmitted after an eviction for
    fresh independent ones; what is rigorous is the same bound on P(any overflow) (theory §7).
    """
    tau, held = iteration_time(model), model.mix.held
    assert tau is not None
    arrivals = model.total_rate_rps * tau
    spare = model.replica.memory_tokens - arrivals * per_request(model).held
    if spare <= 0:
        return None
    budget = math.floor(arrivals * GUARD) + 1
    prompts = held.at_start.max() - 1  # l in l + q, the weight at the q-th stage
    longest = max(float(prompts), float(held.stages.max()), float(held.largest.max()) / 2)
    return iterations * math.exp(-((spare / longest) ** 2) / (2 * (budget**2 + budget) * longest))
