"""Up to which rate a backlog drains under greedy admission, whatever it collapsed into (theory §3, "Finite memory").

A backlog drains iff the *saturated* throughput of whole requests, from the worst start, exceeds the offered rate. The
spectrum and the fluid cycle speak of very many requests; a replica that holds 33 also loses memory to the next request
that does not fit, and to fluctuations that evict. Little's law for KV is exact there::

    x·S̄ = E[KV] - E[KV of requests that will be evicted]

and both terms are bounded from the moments of the requests, which gives a throughput x_low that is taken to be reached.
Three factors (1.15, 1.5 and 0.985) are fitted to whole-request simulations, not proved.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from kvplan.analysis.concurrency import all_fit, never_grows
from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.analysis.fluid_map import MAX_STEPS, Cycle, usual_iterations
from kvplan.analysis.stability import Stability
from kvplan.analysis.worst_cycle import (
    attracts_all,
    collapsed_cycles,
    cycle_throughput_rps,
    mean_iteration_time,
)
from kvplan.model import FloatArray, IntArray, ServingModel, StageWeights, TabledWeights, Weights, survival

_NOISE = 1.15  # fitted: what is lost to the last gap and to fluctuations, in units of their estimate
_RECOMPUTED = 1.5  # fitted: evictions, in units of their estimate
_MARGIN = 0.985  # fitted: of the rate computed
_DEVIATIONS = 4.0  # between the KV of all running requests and memory, beyond which fluctuations do not evict
_MOST_WORK = 20_000_000  # rows times iterations of the longest request


class Fluctuations(NamedTuple):
    """What whole requests lose in saturated memory; it depends on lengths, shares, pages, memory and seats alone.

    Attributes
    ----------
    gap_tokens
        G, the room into which the next request does not fit.
    evicted_tokens
        D, KV that fluctuations will evict.
    kept
        r, the share of the throughput that the worst cycle keeps.
    recomputed_tokens
        Prompt tokens evicted in an iteration, and computed again.
    """

    gap_tokens: float
    evicted_tokens: float
    kept: float
    recomputed_tokens: float

    def outweigh(self, memory_tokens: float) -> bool:
        """Whether more is lost because requests are few and whole than in the worst cycle."""
        return (self.gap_tokens + self.evicted_tokens) / memory_tokens > 1 - self.kept


class Recovery(NamedTuple):
    """The rate up to which a backlog drains, and what it is made of.

    `rate_rps` is 0 where nothing is proved and None beyond the budget; `reason` says why, None where there is a rate.
    `capped_rps` is the same where admissions are capped at n* an iteration, so that evictions cannot go on: what whole
    requests lose to the gap that they do not fit into, and to fluctuations, they still lose. The state is that of a
    saturated replica at its worst: `throughput` x_low in requests an iteration, `lost_tokens` the KV of requests that
    will be evicted, `sequences` in flight, and its iteration time.
    """

    rate_rps: float | None
    capped_rps: float | None
    reason: str | None = None
    fluctuations: Fluctuations | None = None
    throughput: float | None = None
    lost_tokens: float | None = None
    sequences: float | None = None
    iteration_time_s: float | None = None


def recovery(model: ServingModel, stability: Stability) -> Recovery:
    """Largest offered rate at which greedy admission recovers from any backlog.

    recovers_up_to = min(α, 0.985·x_low/τ_low), with x_low the saturated throughput of whole requests from the worst
    start and τ_low the iteration time there. In detail:

    * Where nothing but the equilibrium attracts, it is the worst start. Otherwise each cycle that collapsed states end
      in has a rate of its own, from its own throughput and its own evictions, never above what the cycle itself serves
      by the clock; the least rate counts, and it is 0 where that run of the fluid map has not settled.
    * The factor 1.5 is for evictions that fluctuations cause. Those of the cycle come from the map, and count once.
    * Where requests take several pages at once, as prompts do that end with one, these pages are what evicts, if they
      are more than a token an iteration.
    * α where the longest requests all fit. Where weights never grow, the next request may still not fit: less than the
      largest first weight stays empty, what is left over of memory if all weigh the same.
    * Greedy admission does not obey a token budget: α knows it, and elsewhere the rate is 0.985·α at most.

    References
    ----------
    New, theory §3 ("Finite memory"); whole requests trim the latest admitted first, and so does the map here. Laws
    with d4 or d5 and token budgets are not validated.

    Examples
    --------
    >>> from kvplan.analysis.stability import stability
    >>> from kvplan.model import Prefill, Replica, RequestClass, Timing
    >>> mix = tuple(RequestClass(str(s), s, (d,), (1.0,), r) for s, d, r in ((50, 40, 3.0), (60, 80, 7.0)))
    >>> model = ServingModel(mix, Timing(0.01, 1e-7), Replica(30_000, prefill=Prefill.INLINE))
    >>> found = recovery(model, stability(model))
    >>> 279 < found.rate_rps < 285
    True
    """
    alpha, replica = sustainable_rate(model)[1], model.replica
    if all_fit(model):
        return Recovery(alpha, alpha)
    if never_grows(model):
        return _without_growth(model, alpha)
    budget = alpha if replica.max_num_batched_tokens is None else _MARGIN * alpha
    held = model.mix.held
    if held.stages.size * int(held.stages.max()) > _MOST_WORK:
        return Recovery(None, None, "the lengths are too many and too long to compute it")
    clean = _of_cycle(model, budget, None)
    if attracts_all(model, stability):
        return clean
    found = [(_of_cycle(model, budget, cycle), cycle.settled) for cycle in collapsed_cycles(model)]
    worst, settled = min(found, key=lambda one: one[0].rate_rps or 0.0)
    if usual_iterations(int(held.stages.max())) * held.stages.size > MAX_STEPS and not settled:
        return Recovery(None, clean.rate_rps, "the lengths are too many and too long for the fluid map")
    if not settled:
        return Recovery(0.0, clean.rate_rps, "the fluid map did not settle")
    return worst._replace(capped_rps=clean.rate_rps)


def _of_cycle(model: ServingModel, budget: float, cycle: Cycle | None) -> Recovery:
    """What whole requests keep of a fluid cycle, or of the equilibrium."""
    mix, held, replica = model.mix, model.mix.held, model.replica
    seats = math.inf if replica.max_num_seqs is None else float(replica.max_num_seqs)
    memory = float(replica.capacity_tokens)
    base = _moments(held, mix.share.tobytes(), memory)
    footprint, stages = mix.mean(held.footprint), mix.mean(mix.stages)
    n_star = memory / footprint
    admitted = min(n_star, seats / stages)
    kept = 1.0 if cycle is None else min(1.0, cycle.throughput / admitted)
    prompts = 0.0 if cycle is None else cycle.evicted_prompts
    noise = _NOISE * (base.gap_tokens + base.evicted_tokens) / memory
    evictions = _RECOMPUTED * base.evictions
    if math.isinf(seats):
        low = n_star * (kept - noise)
    else:
        if _room_is_left(model, seats, memory):
            noise = evictions = 0.0
        low = min(admitted * kept, n_star * (1 - noise) - admitted * (1 - kept)) - n_star * noise / 4
    low = max(low, 0.0)
    lost = (admitted - low) * footprint
    sequences = min(seats, stages * low + lost / mix.mean(held.at_start))
    prompts = prompts + evictions * mix.mean(mix.input_tokens)
    kv_tokens = low * mix.mean(mix.read.footprint) + lost
    tau = mean_iteration_time(model, kv_tokens, low * mix.mean(mix.prefill_tokens) + prompts, sequences)
    rate = min(budget, _MARGIN * low / tau)
    if cycle is not None:
        rate = min(rate, cycle_throughput_rps(model, cycle))
    lossy = Fluctuations(base.gap_tokens, base.evicted_tokens, kept, prompts)
    return Recovery(rate, rate, None, lossy, low, lost, sequences, tau)


def _without_growth(model: ServingModel, alpha: float) -> Recovery:
    """Where nothing grows nothing is evicted, but the next request may not fit: less than its weight stays empty."""
    mix, held, replica = model.mix, model.mix.held, model.replica
    memory = float(replica.capacity_tokens)
    weights = np.unique(held.at_start)
    gap = memory % float(weights[0]) if weights.size == 1 else float(weights[-1])
    low = max(0.0, (memory - gap) / mix.mean(held.footprint))
    if replica.max_num_seqs is not None:
        low = min(low, replica.max_num_seqs / mix.mean(mix.stages))
    sequences = low * mix.mean(mix.stages)
    tau = mean_iteration_time(
        model, low * mix.mean(mix.read.footprint), low * mix.mean(mix.prefill_tokens), sequences
    )
    rate = min(alpha, low / tau)
    return Recovery(rate, rate, None, None, low, 0.0, sequences, tau)


def _room_is_left(model: ServingModel, seats: float, memory: float) -> bool:
    """Whether so many sequences at random ages leave memory for one more, four standard deviations from full."""
    held, mean = model.mix.held, model.mix.mean
    weight = mean(held.footprint) / mean(held.stages)
    variance = max(0.0, mean(held.squares) / mean(held.stages) - weight**2)
    spare = memory - seats * weight - float(held.largest.max())
    return bool(spare > _DEVIATIONS * math.sqrt(seats * variance))


class _Moments(NamedTuple):
    gap_tokens: float
    evicted_tokens: float
    evictions: float


@lru_cache(maxsize=256)
def _moments(held: StageWeights, share: bytes, memory: float) -> _Moments:
    """G, D and the evictions that fluctuations cause; the bytes of arrays, which unlike arrays can be looked up."""
    p, n = np.frombuffer(share), held.stages
    n_star, mean_start = memory / float(p @ held.footprint), float(p @ held.at_start)
    gap = float(p @ held.at_start**2) / (2 * mean_start)
    if isinstance(held, Weights):
        tokens = held.first + (held.block_tokens - 1) / 2  # pages by their mean
        last, lost = tokens + n - 1, _fluctuations(tokens, n, p, n_star)
        # a token a stage; more where prompts end with a page, so that they take another at once
        grown = max(float(p @ n) - 1, float(p @ (held.at_end - held.at_start)))
    else:
        last, lost = held.at_end, _tabled_fluctuations(held, p, n_star)
        grown = sum(
            share * float(np.maximum(np.diff(w), 0.0).sum())
            for share, w in zip(p, held.by_stage(), strict=True)
        )
    growth = n_star * grown
    leaving = n_star * float(p @ last), math.sqrt(n_star * float(p @ last**2))
    evictions = min(_expected_excess(growth + n_star - leaving[0], leaving[1]), growth) / mean_start
    if n_star >= 2:
        evictions += _negative_admissions(
            held, p, n_star, float(p @ held.at_start**3) / (3 * mean_start) - gap**2
        )
    return _Moments(gap, lost, evictions)


def _expected_excess(mean: float, deviation: float) -> float:
    """E[x⁺] of a normal x."""
    if deviation == 0:
        return max(mean, 0.0)
    z = mean / deviation
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return deviation * density + mean * math.erfc(-z / math.sqrt(2)) / 2


def _fluctuations(first: FloatArray, stages: IntArray, share: FloatArray, n_star: float) -> float:
    """D = ∫ exp(-min_u (x + m(u))²/(2·v(u))) dx over x > 0, tokens.

    In u iterations without admissions, KV falls by m(u) on average, with variance v(u). The root of the exponent is the
    lowest of straight lines in x, so that the integral is a sum of error functions, one for each line that is lowest
    somewhere.
    """
    size = int(stages.max())
    u = np.arange(1.0, size + 1)
    fallen = n_star * np.cumsum(survival(stages, share * first) + (u - 1) * survival(stages, share))
    variance = np.zeros(size)
    for a, n, p in zip(first, stages, share, strict=True):
        staying = np.maximum(n - u, 0.0)
        before = (
            staying * a**2 + a * staying * (staying - 1) + staying * (staying - 1) * (2 * staying - 1) / 6
        )
        total = n * a**2 + a * n * (n - 1) + n * (n - 1) * (2 * n - 1) / 6
        variance += p * (staying * u**2 + total - before)
    return _below_lines(fallen, n_star * variance)


def _tabled_fluctuations(held: TabledWeights, share: FloatArray, n_star: float) -> float:
    """The same for any weights: in u iterations a request loses w(k) - w(k + u), with w = 0 after its last stage."""
    fallen = n_star * np.cumsum(held.survival(share))
    variance = np.zeros(fallen.size)
    for w, p in zip(held.by_stage(), share, strict=True):
        squares = np.concatenate([np.cumsum(w[::-1] ** 2)[::-1], np.zeros(fallen.size + 1 - w.size)])
        transform = np.fft.rfft(w, 1 << math.ceil(math.log2(2 * w.size)))
        again = np.zeros(fallen.size + 1)
        again[: w.size] = np.fft.irfft(np.abs(transform) ** 2)[: w.size]
        variance += p * (squares[1:] + squares[0] - 2 * again[1:])
    return _below_lines(fallen, n_star * variance)


def _below_lines(fallen: FloatArray, variance: FloatArray) -> float:
    """∫ exp(-min_u (x + m(u))²/(2·v(u))) dx over x > 0."""
    slope = 1 / np.sqrt(2 * variance)
    order = np.argsort(-slope)
    lowest: list[tuple[float, float, float]] = []  # from where on, slope and height at 0
    for rising, height in zip(slope[order].tolist(), (slope * fallen)[order].tolist(), strict=True):
        start = 0.0
        while lowest:
            since, steeper, other = lowest[-1]
            ahead = height - other
            start = ahead / (steeper - rising) if rising < steeper else math.copysign(math.inf, ahead)
            if start > since:
                break
            lowest.pop()
            start = 0.0
        lowest.append((start, rising, height))
    ends = [since for since, *_ in lowest[1:]] + [math.inf]
    return sum(
        math.sqrt(math.pi)
        / (2 * rising)
        * (math.erfc(rising * x + height) - math.erfc(rising * end + height))
        for (x, rising, height), end in zip(lowest, ends, strict=True)
    )


def _negative_admissions(held: StageWeights, share: FloatArray, n_star: float, gap_variance: float) -> float:
    """E[y⁻] of y, the admissions an iteration were they not cut at 0: normal, with the variance of a linear filter.

    0 where its variance is not finite: pages can keep the weights constant, and the filter then has poles.
    """
    size = 1 << math.ceil(math.log2(4 * int(held.stages.max())))
    squares = np.zeros(size // 2 + 1)
    for weights, p in zip(held.by_stage(), share, strict=True):
        squares += p * np.abs(np.fft.rfft(weights, size)) ** 2
    mean = np.abs(np.fft.rfft(held.survival(share), size)) ** 2
    if mean.min() <= 1e-20 * mean.max():
        return 0.0
    spectrum = n_star * (squares / mean - 1) + gap_variance / mean
    variance = (2 * spectrum.sum() - spectrum[0] - spectrum[-1]) / size  # both halves of the circle
    return _expected_excess(-n_star, math.sqrt(max(variance, 0.0)))
