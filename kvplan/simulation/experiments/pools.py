"""Groups of equal replicas on parts of the same traffic: what a placement of classes does in simulation.

Replicas of a group are alike, so one of them is simulated, over several seeds, at two loads: *saturated*, where all
its requests are there at the beginning, and *offered*, its part of all arrivals at random. Every class draws
from generators of its own: with one seed its k-th request is as long, and as early for its rate, in whatever group it
is and however many replicas that has, so that placements are compared on the same arrivals.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kvplan.analysis.pool import subset
from kvplan.model import FloatArray, IntArray, Plan, ServingModel
from kvplan.simulation.experiments.load import Load, generate
from kvplan.simulation.experiments.runner import Announce, Job, Progress, run_to_the_end
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Requests, gamma_times, lengths, prompt_lengths

_WARM_UP = 0.2  # of the completions


class Pooled(NamedTuple):
    """Equal replicas that serve some classes of the traffic."""

    classes: tuple[int, ...]  # by their place in the profile
    replicas: int
    requests: int  # for one replica; at least 1


class Runs(NamedTuple):
    """Figures of all replicas of a group, one a seed."""

    requests: int  # in all, of one seed
    throughput_rps: tuple[
        float, ...
    ]  # of the traffic's mix, after a warm-up, as long as requests wait or arrive
    e2e_s: tuple[float, ...]  # mean from arrival to the last token
    evictions: tuple[float, ...]  # per request


def measure(
    model: ServingModel,
    groups: Sequence[Pooled],
    plan: Plan,
    *,
    saturated: bool,
    seeds: Sequence[int],
    policy: str = "greedy",
    progress: Progress | None = None,
    announce: Announce | None = None,
) -> list[Runs | None]:
    """Run one replica of every group on all seeds, on all cores.

    None stands for a group in which a run could not be ended, because a request never fits.

    Parameters
    ----------
    model
        Traffic of all groups together.

    Raises
    ------
    KeyboardInterrupt
        Somebody pressed Ctrl-C: half a comparison is none.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> model = ServingModel((RequestClass("a", 7, (2,), (1.0,), 0.1),), Timing(1.0), Replica(9))
    >>> [found] = measure(model, [Pooled((0,), 2, requests=10)], Plan(), saturated=True, seeds=[0, 1])
    >>> found.requests, found.throughput_rps, found.evictions
    (20, (1.0, 1.0), (0.0, 0.0))
    """
    steps = [part(progress, i / len(groups), (i + 1) / len(groups)) for i in range(len(groups))]
    return [
        _measured(model, group, plan, saturated, seeds, policy, step, announce)
        for group, step in zip(groups, steps, strict=True)
    ]


def part(progress: Progress | None, first: float, last: float) -> Progress | None:
    """Progress of a step that takes all from one share to another."""
    return None if progress is None else lambda done: progress(first + (last - first) * done)


def _measured(
    model: ServingModel,
    group: Pooled,
    plan: Plan,
    saturated: bool,
    seeds: Sequence[int],
    policy: str,
    progress: Progress | None,
    announce: Announce | None,
) -> Runs | None:
    seen, names = (
        subset(model, group.classes, group.replicas),
        tuple(model.classes[i].name for i in group.classes),
    )
    drawn = [arrivals(seen, group, seed, saturated=saturated) for seed in seeds]
    jobs = [Job(Settings(policy, {}), Scenario(seen, plan, requests, names)) for requests in drawn]
    [runs] = run_to_the_end([jobs], progress, announce)
    if not all(run.finished for run in runs):
        return None
    mean = mean_footprint(seen)
    rates = (
        served_rps(run, footprint(requests.input_tokens, requests.decode_tokens) / mean)
        for run, requests in zip(runs, drawn, strict=True)
    )
    return Runs(
        requests=group.replicas * group.requests,
        throughput_rps=tuple(group.replicas * rate for rate in rates),
        e2e_s=tuple(run.mean_e2e_s for run in runs),
        evictions=tuple(float(run.evictions.mean()) for run in runs),
    )


def footprint(input_tokens: IntArray, decode_tokens: IntArray | FloatArray) -> FloatArray:
    """KV token-iterations, about."""
    return decode_tokens * (input_tokens + (decode_tokens + 1) / 2)


def mean_footprint(model: ServingModel) -> float:
    """Of the requests of a model, by their decode lengths."""
    mix = replace(model, drafts=None).mix
    return float(mix.mean(footprint(mix.input_tokens, mix.decode_tokens)))


def arrivals(part: ServingModel, group: Pooled, seed: int, *, saturated: bool) -> Requests:
    """The requests of one replica of a group, which sees that part of the traffic.

    Where arrivals cluster, classes do so together: requests of a trace, or of a renewal process, have one at random.
    """
    if not (saturated or part.arrivals.is_poisson):
        return _clustered(part, group, seed)
    arrival, decode, kind = [], [], []
    for at, (key, rate) in enumerate(zip(group.classes, part.class_rates_rps, strict=True)):
        expected = group.requests * rate / part.total_rate_rps
        count = min(group.requests, math.ceil(expected + 6 * math.sqrt(expected) + 6))
        mine = np.full(count, at)
        when, how_long = (np.random.default_rng([seed, key, stream]) for stream in range(2))
        arrival.append(np.cumsum(when.standard_exponential(count)) / rate)
        decode.append(lengths(part, mine, how_long))
        kind.append(mine)
    times = np.concatenate(arrival)
    order = np.argsort(times, kind="stable")[: group.requests]
    kinds = np.concatenate(kind)[order]
    inputs = prompt_lengths(part, kinds, np.random.default_rng([seed, 2]))
    first = np.zeros(order.size) if saturated else times[order]
    return Requests(first, inputs, np.concatenate(decode)[order], kinds)


def _clustered(part: ServingModel, group: Pooled, seed: int) -> Requests:
    when, which, how_long, prompt = (np.random.default_rng([seed, stream, 3]) for stream in range(4))
    if part.arrivals.trace is None:
        rate, cv = part.total_rate_rps, part.arrivals.cv
        times = gamma_times(when, rate, cv, requests=group.requests, end_s=math.inf)
    else:
        times = generate(part, Load(), seed).arrival_s[: group.requests]
    kinds = np.searchsorted(np.cumsum(part.class_rates_rps), which.random(times.size) * part.total_rate_rps)
    kinds = np.minimum(kinds, len(part.classes) - 1)
    inputs = prompt_lengths(part, kinds, prompt)
    return Requests(times, inputs, lengths(part, kinds, how_long), kinds)


def served_rps(run: Outcome, size: FloatArray) -> float:
    """Completions over time from one of them, after a warm-up, to the last before the queue was empty for good.

    All of the run where that leaves nothing: from the beginning to the end.

    Parameters
    ----------
    size : ndarray, shape (n_requests,)
        Of a request; the mean of the traffic is 1. A request counts as so many: what happens to be done between two
        instants is seldom of the traffic's composition, and memory serves sizes.
    """
    order = np.argsort(run.finish_s, kind="stable")
    done, total = run.finish_s[order], np.cumsum(size[order])
    first = int(np.searchsorted(done, done[int(_WARM_UP * done.size)], side="right")) - 1
    stop = int(np.searchsorted(done, run.first_token_s.max(), side="right")) - 1
    if stop <= first:
        return float(total[-1]) / run.end_s
    return float((total[stop] - total[first]) / (done[stop] - done[first]))


def spread(total: int, share: float, replicas: int) -> int:
    """Requests of a workload for one replica of a group with that share of the traffic; at least 1.

    >>> spread(1000, 0.5, 4), spread(3, 0.01, 1)
    (125, 1)
    """
    return max(1, round(total * share / replicas))
