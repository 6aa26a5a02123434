"""Figures that formulas name where a prefix cache finds what requests have in common, beside those of `figures`."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from kvplan.analysis.cache_states import FOREVER_S, CachedReplica, cached_replica
from kvplan.analysis.equilibrium import sustainable_rates
from kvplan.analysis.prefix_cache import FLUCTUATING_STREAMS, full_memory, population_of
from kvplan.model import ServingModel
from kvplan.report.assembly import Report
from kvplan.report.keys import law_text
from kvplan.report.keys.evidence import Figure
from kvplan.report.prefix_cache import CacheBlock

_TWICE = "KV tokens that running requests have in common, beyond once"


class _Found(NamedTuple):
    """Sums over what a state finds: tokens of a request or of memory, and the share of the gaps that are over."""

    common_hits: float
    twice: float
    reached: float
    asked_for: float
    common_kept: float


def cache_figures(model: ServingModel, report: Report) -> dict[str, Figure]:
    """Figures of the replica with a warm cache, and of the same with memory full.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> from kvplan.model.reuse import SharedPrompt
    >>> from kvplan.report.assembly import analyze
    >>> one = RequestClass("a", 1000, (200,), (1.0,), 8.0, shared=(SharedPrompt(800),))
    >>> model = ServingModel((one,), Timing(0.012, 1e-7, 60e-6), Replica(100_000))
    >>> found = cache_figures(model, analyze(model, name="", sha256=""))
    >>> round(found["x_limit"].value / found["tau_limit"].value, 4), found["common"].value
    (24.2247, 800.0)
    """
    cached, block = cached_replica(model), report.prefix_cache
    assert block is not None
    return {
        name: Figure(symbol, meaning, value)
        for name, symbol, meaning, value in (
            *_of_requests(cached),
            *_of_warm_state(cached, block, report.equilibrium.iteration_time_s),
            *_of_host_tier(cached, block, report.equilibrium.iteration_time_s),
            *_of_full_memory(cached, model),
            *_of_states(cached, block),
        )
    }


_Rows = Iterator[tuple[str, str, str, float | int | bool | None]]


def _of_requests(cached: CachedReplica) -> _Rows:
    share, tokens, _ = cached.shared
    reused = sum(one.reused for one in cached.private)
    by_curve = bool(cached.hit_curve)
    work = law_text.work("S̄", "s̄", "n̄")
    yield "n", "n̄", "mean iterations that a request stays", cached.stages
    yield "S_b", "S̄", "mean footprint of a request, KV token-iterations, in whole pages", cached.held
    yield "c", "c̄", f"mean time that a request adds to iterations without hits, s: {work}", cached.work_s
    yield "s_exact", "s̄", "mean prompt tokens of a request", cached.mean("prompt")
    yield "prompt_work", "s̄", "mean prefill work of a request without hits, tokens", cached.prefill
    left = "mean tokens that a request leaves in full pages, shared prompts not counted"
    yield "left", "L̄", left, cached.left
    yield "q", "q", "share of them asked for again", None if by_curve else _part(reused, cached.left)
    yield "common", "Σ p_g·c_g", "mean tokens of shared prompts in a request", float(share @ tokens)
    population = None if cached.users is None else population_of(cached)
    yield "users", "users", "closed population", cached.users
    most = "users whose replica cannot stay collapsed"
    yield "users_guaranteed", "users guaranteed", most, None if population is None else population.guaranteed


def _of_warm_state(cached: CachedReplica, block: CacheBlock, tau: float | None) -> _Rows:
    found, saved, age, rest = None, None, block.characteristic_time_s, None
    tiers, reach, loads = None, block.host.characteristic_time_s, 0.0
    if tau is not None and block.hit_ratio is not None:
        saved = cached.saves * block.hit_ratio * cached.mean("prompt")
        found = _found(cached, cached.rate_rps, tau, FOREVER_S if age is None else age)
        tiers = found
        if block.host.hit_ratio is not None:
            tiers = _found(cached, cached.rate_rps, tau, FOREVER_S if reach is None else reach)
            loads = cached.load_s * block.host.hit_ratio * cached.mean("prompt")
        rest = _rest(cached, cached.rate_rps * tau, tau, saved) - cached.rate_rps * tau * loads
    streams = block.streams_in_memory
    few = streams is not None and streams < FLUCTUATING_STREAMS and cached.users is None
    hits = (
        None if few or cached.hit_curve or tiers is None else tiers.common_hits
    )  # else not those of T alone
    yield "saved", "h", "prompt tokens of a request that the cache saves, on average", saved
    yield "loads", "dx·h₂", "time that loads from the host add to iterations for a request, s", loads
    yield "F", "F(T)", "share of the gaps up to T, T₂ with a host tier", tiers and tiers.reached
    yield "f", "f(T)", "density of the gaps at T, 1/s", None if age is None else _density(cached, age)
    yield "common_hits", "Σ p_g·c_g·(…)", "tokens of shared prompts found, on average", hits
    yield "D", "D", _TWICE, found and found.twice
    yield "asked_for", "C_a", "KV tokens kept that will be asked for again", found and found.asked_for
    yield "common_kept", "C_g", "KV tokens kept of shared prompts not in use", found and found.common_kept
    filled = None if age is None and not cached.hit_curve else cached.replica.capacity_tokens
    yield "M_filled", "M", "KV tokens that memory holds, in whole pages", filled
    yield "F_equilibrium", "F", law_text.REST, rest


def _of_host_tier(cached: CachedReplica, block: CacheBlock, tau: float | None) -> _Rows:
    """What the two tiers find apart; nothing without a warm state, by a curve, or where fluctuations count."""
    tier, host = cached.replica.offload, block.host
    here = there = None
    few = block.streams_in_memory is not None and block.streams_in_memory < FLUCTUATING_STREAMS
    if tau is not None and host.hit_ratio is not None and not cached.hit_curve and not few:
        ages = (block.characteristic_time_s, host.characteristic_time_s)
        here, there = (
            _found(cached, cached.rate_rps, tau, FOREVER_S if age is None else age) for age in ages
        )
    yield "load_s", "dx", "time of the link for a token, s", None if tier is None else tier.load_s
    yield "F_gpu", "F(T)", "share of the gaps up to T", here and here.reached
    yield (
        "common_gpu",
        "Σ p_g·c_g·(…)",
        "tokens of shared prompts found on the GPU",
        here and here.common_hits,
    )
    yield (
        "asked_for_host",
        "C_a",
        "KV tokens that both tiers keep and will be asked for",
        there and there.asked_for,
    )
    kept = "KV tokens that both tiers keep of shared prompts not in use"
    yield "common_kept_host", "C_g", kept, there and there.common_kept
    yield "M_reach", "M₂", "KV tokens that both tiers keep, in use or not", cached.reach_tokens


def _of_full_memory(cached: CachedReplica, model: ServingModel) -> _Rows:
    full = full_memory(cached)
    x, tau, hits = float(full.admissions[0]), float(full.iteration_time_s[0]), float(full.hits[0])
    saved = cached.saves * hits
    yield "saved_full", "h", "prompt tokens of a request that a full replica saves, on average", saved
    yield "D_full", "D", _TWICE, _found(cached, x / tau, tau, 0.0).twice
    yield "F_saturation", "F", law_text.REST, _rest(cached, x, tau, saved)
    rates = {} if cached.users is not None else sustainable_rates(model)
    limit = min(rates, key=lambda name: rates[name], default="")
    at: tuple[float, float] | tuple[None, None] = (None, None)
    if limit in ("compute", "kv_memory"):
        at = x, tau
    elif limit == "max_num_seqs":
        most = (model.replica.max_num_seqs or 0) / cached.stages
        at = most, float(cached.states(np.array([most]), warm=False).iteration_time_s[0])
    if at[0] is None or at[1] is None or not math.isclose(at[0] / at[1], rates[limit], rel_tol=1e-9):
        at = None, None  # fewer are served faster
    yield "x_limit", "x", "admissions an iteration at the limit", at[0]
    yield "tau_limit", "τ(x)", "time of an iteration there, s", at[1]
    yield "x_full", "n*", "admissions an iteration with memory full", x if at[0] == x else None


def _of_states(cached: CachedReplica, block: CacheBlock) -> _Rows:
    unstable = next((state for state in block.branches if not state.stable), None)
    yield "rate_unstable", "λ", "rate at the unstable state", unstable and unstable.rate_rps
    yield "tau_unstable", "τ", "its iteration time, s", unstable and unstable.iteration_time_s
    yield "stable_states", "", "stable states", sum(state.stable for state in block.branches)
    yield "most", "", "requests/s served by a warm cache", block.sustainable_rps.good


def _found(cached: CachedReplica, rate: float, tau: float, age: float) -> _Found:
    """What theory's formulas make of a state, sum by sum."""
    share, tokens, stages = cached.shared
    unused, gone = (np.exp(-rate * share * (stages * tau + extra)) for extra in (0.0, age))
    twice = float(tokens @ (rate * share * stages * tau - 1 + unused))
    reached = asked_for = 0.0
    for one in cached.private:
        stay = one.stages * tau
        [now, then] = np.array(one.gap.until(np.array([stay, age + stay]))).T
        reached += one.reused * float(then[0])
        asked_for += rate * one.reused * float(then[1] - now[1])
        twice += rate * one.reused * (stay - float(now[1]))
    return _Found(
        common_hits=float((share * tokens) @ (1 - gone)),
        twice=twice,
        reached=_part(reached, sum(one.reused for one in cached.private)),
        asked_for=asked_for,
        common_kept=float(tokens @ (unused - gone)),
    )


def _density(cached: CachedReplica, age_s: float) -> float | None:
    """Of the gaps, where the closed form of the loop gain holds."""
    is_one = len(cached.private) == 1 and not cached.private[0].stages and not cached.shared[0].size
    if not (is_one and cached.saves and cached.timing.is_linear) or cached.replica.offload is not None:
        return None
    return float(cached.private[0].gap.density(age_s))


def _part(amount: float, whole: float) -> float:
    return amount / whole if whole else 0.0


def _rest(cached: CachedReplica, x: float, tau: float, saved: float) -> float:
    """The time of an iteration less what adds up."""
    return tau - x * (cached.work_s - cached.timing.d2 * saved)
