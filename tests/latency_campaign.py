"""Latency in closed form against simulations of the vllm policy, on profiles drawn at random and on a fixed list.

    PYTHONPATH=tests python tests/latency_campaign.py --profiles 100 --seed 7 --requests 150000

Percentiles of a run of so many requests are good to one or two per cent, and so much is granted at the ends of ranges.
"""

import argparse
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.analysis.latency import latency
from kvplan.model import Plan, Replica, RequestClass, ServingModel, Timing
from kvplan.profile.reading import load_profile
from kvplan.simulation.experiments import options, study
from kvplan.simulation.experiments.load import Arrivals, Load

TIMES = ("ttft_s", "itl_s", "e2e_s")
FIGURES = ("mean", "p50", "p95", "p99")
SHARES = (0.05, 0.3, 0.6, 0.8)  # of the sustainable rate, for the fixed list
FIXED = ("llama-3.1-8b-rtx4090", "tool-calls-h100", "reasoning-h100", "two-tier-100-125", "two-tier-99-125")
NOISE = 0.02


class Miss(NamedTuple):
    """A figure and how far it is off, relative; 0 within a printed range."""

    figure: str
    formula: float
    simulated: float
    error: float


class Compared(NamedTuple):
    """A profile at a load: all figures, or why there are none."""

    name: str
    reason: str | None
    figures: tuple[Miss, ...]


def drawn(seed: int) -> ServingModel:
    """A replica and its traffic: one to three classes, real iteration times, some with a token budget."""
    rng = np.random.default_rng(seed)

    def log_uniform(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(math.log(low), math.log(high))))

    classes = []
    for i in range(rng.integers(1, 4)):
        lengths = np.unique(np.round([log_uniform(8, 800) for _ in range(rng.integers(1, 5))]).astype(int))
        weights = rng.uniform(0.2, 1.0, lengths.size)
        classes.append(
            RequestClass(
                f"class {i}",
                round(log_uniform(30, 4000)),
                tuple(lengths.tolist()),
                tuple(weights.tolist()),
                log_uniform(0.2, 1.0),
            )
        )
    timing = Timing(
        log_uniform(0.005, 0.03), log_uniform(1e-8, 2e-7), log_uniform(1e-5, 1e-4), log_uniform(1e-6, 5e-5)
    )
    longest = max(c.max_tokens for c in classes)
    memory = round(longest * log_uniform(60, 600))
    budget = int(rng.choice([0, 1024, 2048, 8192]))
    replica = Replica(memory, 16, max_num_batched_tokens=budget or None, prefix_caching=False)
    return at_load(ServingModel(tuple(classes), timing, replica), rng.uniform(0.1, 0.85))


def at_load(model: ServingModel, share: float) -> ServingModel:
    """The same mix at a share of what is sustainable."""
    scale = share * sustainable_rate(model)[1] / model.total_rate_rps
    return replace(model, classes=tuple(replace(c, rate_rps=c.rate_rps * scale) for c in model.classes))


def fixed() -> Iterator[tuple[str, ServingModel]]:
    """Shipped profiles without a prefix cache, and their traffic on other replicas, at four loads."""
    for name in FIXED:
        model = load_profile(name).model
        plain = replace(model, replica=replace(model.replica, prefix_caching=False))
        budgets = {"": plain.replica.max_num_batched_tokens, ", budget 2048": 2048, ", no budget": None}
        for what, budget in budgets.items():
            one = replace(plain, replica=replace(plain.replica, max_num_batched_tokens=budget))
            for share in SHARES:
                yield f"{name}{what} at {share:.0%}", at_load(one, share)


def compared(name: str, model: ServingModel, requests: int) -> Compared:
    """All figures of a model beside those of one run."""
    found = latency(model)
    if found.reason is not None:
        return Compared(name, found.reason, ())
    load = Load(kind=Arrivals.POISSON, requests=requests)
    [run] = study.study(model, Plan(), load, options.chosen(["vllm"], []), [1], threads=1).results
    figures = []
    for time in TIMES:
        law, seen = getattr(found, time), getattr(run, time)
        for figure in FIGURES:
            value, simulated = getattr(law, figure), getattr(seen, figure)
            if value is None or simulated is None:
                continue
            ends = getattr(law, f"{figure}_range", None)
            inside = ends is not None and ends[0] * (1 - NOISE) <= simulated <= ends[1] * (1 + NOISE)
            figures.append(
                Miss(f"{time}.{figure}", value, simulated, 0.0 if inside else value / simulated - 1)
            )
    return Compared(name, None, tuple(figures))


def misses(found: Compared, mean: float, tail: float) -> list[Miss]:
    """Figures beyond these relative errors."""
    return [one for one in found.figures if abs(one.error) > (mean if one.figure.endswith("mean") else tail)]


def summary(all_found: list[Compared], mean: float, tail: float) -> str:
    """How many figures there are, how far off they are, and every miss."""
    known = [one for one in all_found if one.reason is None]
    figures = [miss for one in known for miss in one.figures]
    lines = [
        f"{len(all_found)} profiles, {len(all_found) - len(known)} without figures, {len(figures)} figures"
    ]
    for figure in (f"{time}.{name}" for time in TIMES for name in FIGURES):
        errors = np.abs([one.error for one in figures if one.figure == figure])
        if errors.size:
            half, most = np.median(errors), errors.max()
            lines.append(
                f"  {figure:12s} median {half:6.2%}  95 % {np.quantile(errors, 0.95):6.2%}  most {most:6.2%}"
            )
    reasons = Counter(
        " ".join(w for w in one.reason.split() if not w[0].isdigit()) for one in all_found if one.reason
    )
    lines += [f"  null {count:3d}: {reason}" for reason, count in reasons.most_common()]
    lines += [
        f"  miss {one.name}: {miss.figure} {miss.formula:.4g} for {miss.simulated:.4g} ({miss.error:+.1%})"
        for one in known
        for miss in misses(one, mean, tail)
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profiles", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--requests", type=int, default=150_000)
    parser.add_argument(
        "--fixed", action="store_true", help="the fixed list in place of profiles drawn at random"
    )
    given = parser.parse_args()
    cases = (
        fixed()
        if given.fixed
        else ((f"{given.seed + i}", drawn(given.seed + i)) for i in range(given.profiles))
    )
    found = [compared(name, model, given.requests) for name, model in cases]
    print(summary(found, 0.03 if given.fixed else 0.035, 0.08 if given.fixed else 0.1))


if __name__ == "__main__":
    main()
