"""Latencies at a rate, and what is in memory and in the queue meanwhile."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from oracle.kernel import DONE, GAP_BINS, GAP_STEP, SHORTEST_GAP_S, SUMS, Ended, simulate
from oracle.saturated import Means, seconds
from oracle.system import System

PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}


@dataclass(frozen=True)
class Live:
    """What requests that completed after the warm-up saw, seconds, and means over that time.

    Attributes
    ----------
    figures
        `ttft_s.mean`, `ttft_s.p50` … of TTFT, TPOT (the mean gap of a request), ITL (every gap) and E2E.
    kv_tokens
        Memory held in whole blocks.
    queued
        Requests in the queue once a batch is formed.
    """

    figures: dict[str, float]
    completed: int
    seconds: float
    kv_tokens: float
    running: float
    queued: float
    preemptions_per_request: float


def replay(system: System, arrivals: Any, tokens: Any, iterations: Any) -> tuple[Ended, Any, Any, Any]:
    """Run these requests to the end: how it ended, first and last times, evictions of each."""
    n = len(arrivals)
    first_s, finish_s, evicted = np.zeros(n), np.zeros(n), np.zeros(n, np.int64)
    ended = simulate(
        np.asarray(tokens, dtype=np.int64), np.asarray(iterations, dtype=np.int64),
        np.asarray(arrivals, dtype=np.float64), np.zeros(0, np.int64), system.rules, system.law,
        np.zeros(0, np.int64), (0.0, math.inf), np.zeros((0, len(SUMS))), np.zeros(GAP_BINS, np.int64),
        first_s, finish_s, evicted,
    )  # fmt: skip
    return ended, first_s, finish_s, evicted


def live(system: System, *, rate_rps: float | None = None, requests: int = 200_000, seed: int = 0) -> Live:
    """Run at a rate for as long as so many requests arrive, after a warm-up of a fifth of that or more."""
    rate = rate_rps or system.rate_rps
    span = requests / rate
    warm = max(span / 5, warm_up_s(system, rate))
    end = warm + span
    gaps_rng, lengths_rng = (np.random.default_rng([seed, stream]) for stream in (77, 78))
    n = int(rate * end + 8 * math.sqrt(rate * end) * max(1.0, system.cv)) + 100
    arrivals = np.cumsum(gaps_between(system, rate, n, gaps_rng))
    if arrivals[-1] < end:
        raise RuntimeError("too few arrivals")
    tokens, iterations = system.draw(n, lengths_rng)
    gaps = np.zeros(GAP_BINS, np.int64)
    first_s, finish_s, evicted = np.zeros(n), np.zeros(n), np.zeros(n, np.int64)
    ended = simulate(
        tokens, iterations, arrivals, np.zeros(0, np.int64), system.rules, system.law, np.zeros(0, np.int64),
        (warm, end), np.zeros((0, len(SUMS))), gaps, first_s, finish_s, evicted,
    )  # fmt: skip
    if ended.status != DONE:
        raise RuntimeError(f"a run ended with status {ended.status}")
    done = (finish_s > warm) & (finish_s <= end)
    ttft, e2e = first_s - arrivals, finish_s - arrivals
    lengths = iterations - system.rules.silent
    several = done & (lengths > 1)
    samples = {
        "ttft_s": ttft[done] + system.overhead_s,
        "tpot_s": (finish_s - first_s)[several] / (lengths[several] - 1),
        "e2e_s": e2e[done] + system.overhead_s,
    }
    return Live(
        figures=figures_of(samples, gaps),
        completed=int(done.sum()),
        seconds=span,
        kv_tokens=ended.held / span * system.rules.block,
        running=ended.running / span,
        queued=ended.queued / span,
        preemptions_per_request=float(evicted[done].mean()) if done.any() else math.nan,
    )


def figures_of(samples: dict[str, Any], gaps: Any) -> dict[str, float]:
    """Means and percentiles of times of requests by name, and of the gaps between tokens."""
    figures = {}
    for name, sample in samples.items():
        if sample.size:
            figures[f"{name}.mean"] = float(sample.mean())
            values = np.percentile(sample, list(PERCENTILES.values()))
            figures |= {f"{name}.{p}": float(v) for p, v in zip(PERCENTILES, values, strict=True)}
    return figures | _of_gaps(gaps)


def step_s(system: System, rate: float) -> float:
    """Mean time of an iteration in the fluid without evictions, at most that of a full replica."""
    means, law, share = Means.of(system), system.law, system.share
    read = float(share @ (system.iterations * system.tokens + system.iterations**2 / 2))
    stay = float(share @ system.stay)

    def at(admissions: float) -> float:
        return seconds(law, *(admissions * each for each in (read, means.prompt, stay, means.pairs)))

    step, full = law.d0, at(means.admissions)
    for _ in range(200):
        step = min(at(rate * step), full)
    return step


def warm_up_s(system: System, rate: float) -> float:
    """Three stays of the longest requests; up to ten times that where work and not time fills the iterations."""
    step = step_s(system, rate)
    slower = min(step / system.law.d0, 10) if system.law.d0 > 0 else 10
    return 3 * Means.of(system).longest * step * slower


def gaps_between(system: System, rate: float, n: int, rng: np.random.Generator) -> Any:
    """Seconds between arrivals."""
    if system.cv == 0:
        return np.full(n, 1 / rate)
    shape = 1 / system.cv**2
    return rng.gamma(shape, 1 / (rate * shape), n)


def _of_gaps(gaps: Any) -> dict[str, float]:
    total = int(gaps.sum())
    if total == 0:
        return {}
    middles = SHORTEST_GAP_S * np.exp(GAP_STEP * (np.arange(gaps.size) + 0.5))
    figures = {"itl_s.mean": float(gaps @ middles) / total}
    below = np.cumsum(gaps)
    for name, p in PERCENTILES.items():
        figures[f"itl_s.{name}"] = float(middles[np.searchsorted(below, p / 100 * total)])
    return figures
