"""Settings of a policy against each other, on the same requests: with common random numbers small gains show.

Two loads: *saturated*, where all requests are there at the beginning, in an order drawn anew for each seed; and
*offered*, Poisson arrivals at the rates of the model. A setting is compared with another seed by seed, so that what
is common to both, who comes when and how long they are, cancels out.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kvplan.model import Plan, ServingModel
from kvplan.simulation.intervals import t_quantile
from kvplan.simulation.outcome import Ending, Outcome
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.study import Arrivals, Job, Load, generate, run_all


class Variant(NamedTuple):
    """A policy and what is set of it, parameters by name."""

    policy: str
    parameters: tuple[tuple[str, float], ...] = ()


class Measured(NamedTuple):
    """Figures of a variant, one a seed.

    Attributes
    ----------
    saturated_rps : tuple of float
        Completed requests per second until the last one is done, where all were there at the beginning.
    offered_rps : tuple of float
        The same for arrivals at the offered rate.
    offered_e2e_s : tuple of float
        Their mean time from arrival to the last token, seconds.
    evictions : int
        In all these runs.
    """

    saturated_rps: tuple[float, ...]
    offered_rps: tuple[float, ...]
    offered_e2e_s: tuple[float, ...]
    evictions: int


class Gain(NamedTuple):
    """Relative gain with its 95 % confidence interval; positive is better, 0.07 is 7 %."""

    mean: float
    low: float
    high: float


class Gains(NamedTuple):
    """What a variant gains over another; throughput upwards, time end to end downwards."""

    saturated_throughput: Gain
    offered_e2e: Gain
    offered_throughput: Gain


def measure(
    model: ServingModel,
    plan: Plan,
    variants: Sequence[Variant],
    *,
    requests: int,
    seeds: Sequence[int],
    progress: Callable[[float], None] | None = None,
    announce: Callable[[str, bool], None] | None = None,
) -> list[Measured | None]:
    """Run every variant on both loads and all seeds, on all cores.

    Parameters
    ----------
    model : ServingModel
    plan : Plan
    variants : sequence of Variant
    requests : int
        In each run.
    seeds : sequence of int
    progress, announce : function, optional
        As for `kvplan.simulation.study.study`.

    Returns
    -------
    list of Measured or None
        In the order of the variants; None where a run could not be ended, because a request never fits.

    Raises
    ------
    KeyboardInterrupt
        Somebody pressed Ctrl-C: half a comparison is none.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> model = ServingModel((RequestClass("a", 3, (5,), (1.0,), 0.1),), Timing(1.0), Replica(20))
    >>> one = Variant("vllm", (("max_num_seqs", 1.0),))
    >>> [found] = measure(model, Plan(), [one], requests=10, seeds=[0, 1])
    >>> found.saturated_rps, found.evictions
    ((0.2, 0.2), 0)
    """
    model = replace(model, schedule=None)  # offered are the rates as they stand, at any time
    alike = model.mix.share.size == 1  # no order to draw: one saturated run is as good as many
    saturated, offered = (
        Load(Arrivals.CLOSED, requests, concurrency=requests),
        Load(Arrivals.POISSON, requests),
    )
    names = tuple(c.name for c in model.classes)
    scenarios = [
        Scenario(model, plan, generate(model, load, seed), names)
        for load, of_load in ((saturated, seeds[:1] if alike else seeds), (offered, seeds))
        for seed in of_load
    ]
    jobs = [
        Job(v.policy, POLICIES[v.policy], _settings(v), scenario, None)
        for v in variants
        for scenario in scenarios
    ]
    outcomes, interrupted = run_all(jobs, progress, None if announce is None else _once(announce))
    if interrupted:
        raise KeyboardInterrupt
    ended = [found for found in outcomes if found is not None]
    size = len(scenarios)
    return [_measured(ended[i * size : (i + 1) * size], len(seeds)) for i in range(len(variants))]


def _once(announce: Callable[[str, bool], None]) -> Callable[[str, bool], None]:
    """Tell of each policy once: several runs come to be compiled at the same time."""
    told: set[str] = set()

    def tell(policy: str, kept: bool) -> None:
        if policy not in told:
            told.add(policy)
            announce(policy, kept)

    return tell


def _settings(variant: Variant) -> Settings:
    given: Mapping[str, tuple[float, ...]] = {name: (value,) for name, value in variant.parameters}
    return Settings(variant.policy, given)


def _measured(runs: Sequence[Outcome], seeds: int) -> Measured | None:
    """Of the saturated runs, one or as many as seeds, then of the offered ones."""
    if any(run.ending is not Ending.FINISHED for run in runs):
        return None
    rates = [run.finish_s.size / run.end_s for run in runs]
    saturated = rates[:-seeds]
    return Measured(
        saturated_rps=tuple(saturated * (seeds // len(saturated))),
        offered_rps=tuple(rates[-seeds:]),
        offered_e2e_s=tuple(float(np.mean(run.finish_s - run.arrival_s)) for run in runs[-seeds:]),
        evictions=sum(int(run.evictions.sum()) for run in runs),
    )


def gains(without: Measured, with_it: Measured) -> Gains:
    """What the second gains over the first, which ran on the same seeds.

    Examples
    --------
    >>> before = Measured((10.0, 20.0), (1.0, 1.0), (4.0, 8.0), 9)
    >>> after = Measured((11.0, 22.0), (1.0, 1.0), (3.0, 6.0), 0)
    >>> found = gains(before, after)
    >>> round(found.saturated_throughput.mean, 3), found.offered_e2e.mean, found.offered_throughput.mean
    (0.1, 0.25, 0.0)
    """

    def upwards(a: tuple[float, ...], b: tuple[float, ...]) -> Gain:
        return paired([y / x - 1 for x, y in zip(a, b, strict=True)])

    times = zip(without.offered_e2e_s, with_it.offered_e2e_s, strict=True)
    return Gains(
        saturated_throughput=upwards(without.saturated_rps, with_it.saturated_rps),
        offered_e2e=paired([1 - y / x for x, y in times]),
        offered_throughput=upwards(without.offered_rps, with_it.offered_rps),
    )


def advantage(without: Measured, with_it: Measured) -> Gain:
    """Both gains of the second over the first together, saturated throughput and time end to end, seed by seed.

    Examples
    --------
    >>> before = Measured((10.0, 20.0), (1.0, 1.0), (4.0, 8.0), 9)
    >>> after = Measured((11.0, 22.0), (1.0, 1.0), (3.0, 6.0), 0)
    >>> advantage(before, after).mean
    0.35
    """
    rates = zip(without.saturated_rps, with_it.saturated_rps, strict=True)
    times = zip(without.offered_e2e_s, with_it.offered_e2e_s, strict=True)
    sums = [(y / x - 1) + (1 - b / a) for (x, y), (a, b) in zip(rates, times, strict=True)]
    return paired([round(one, 12) for one in sums])


def paired(differences: Sequence[float]) -> Gain:
    """Mean of at least two paired differences, and Student's 95 % interval; without width where nothing varied.

    Examples
    --------
    >>> tuple(round(x, 3) for x in paired([0.1, 0.2, 0.3]))
    (0.2, -0.048, 0.448)
    """
    n = len(differences)
    mean = math.fsum(differences) / n
    half_width = t_quantile(n - 1) * float(np.std(differences, ddof=1)) / math.sqrt(n)
    return Gain(mean, mean - half_width, mean + half_width)
