"""Groups of equal replicas on a fixed workload: what a placement of classes does in simulation.

The workload is so many requests of the whole traffic; a group gets its share of them, and each of its replicas an
equal part. Replicas of a group are alike, so one of them is simulated, over several seeds, at two loads:
*saturated*, where all its requests are there at the beginning, in an order drawn anew for each seed, and *offered*,
Poisson arrivals at its part of the rates. The same amount of work, however it is spread, is what SIC 6.2 compares.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from kvplan.model import Plan, ServingModel
from kvplan.simulation.experiments.study import Arrivals, Job, Load, generate, run_all
from kvplan.simulation.outcome import Ending, Outcome
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings


class Pooled(NamedTuple):
    """Equal replicas that serve a part of the traffic.

    Attributes
    ----------
    model : ServingModel
        One replica of them and the traffic it sees.
    replicas : int
    requests : int
        Of the workload, for one replica; at least 1.
    """

    model: ServingModel
    replicas: int
    requests: int


class Runs(NamedTuple):
    """One load: figures of all replicas of a group, or of a placement, one a seed.

    Attributes
    ----------
    requests : int
        In all.
    throughput_rps : tuple of float
        Requests over the time until the last of them is done.
    e2e_s : tuple of float
        Mean time from arrival to the last token, seconds.
    evictions : tuple of int
    """

    requests: int
    throughput_rps: tuple[float, ...]
    e2e_s: tuple[float, ...]
    evictions: tuple[int, ...]


class Loads(NamedTuple):
    """The two loads."""

    saturated: Runs
    offered: Runs


def measure(
    groups: Sequence[Pooled],
    plan: Plan,
    *,
    seeds: Sequence[int],
    policy: str = "greedy",
    progress: Callable[[float], None] | None = None,
    announce: Callable[[str, bool], None] | None = None,
) -> list[Loads | None]:
    """Run one replica of every group on both loads and all seeds, on all cores.

    Parameters
    ----------
    groups : sequence of Pooled
    plan : Plan
    seeds : sequence of int
    policy : str
    progress, announce : function, optional
        As for `kvplan.simulation.experiments.study.study`.

    Returns
    -------
    list of Loads or None
        In the order of the groups; None where a run could not be ended, because a request never fits.

    Raises
    ------
    KeyboardInterrupt
        Somebody pressed Ctrl-C: half a comparison is none.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> model = ServingModel((RequestClass("a", 7, (2,), (1.0,), 0.1),), Timing(1.0), Replica(9))
    >>> [found] = measure([Pooled(model, replicas=2, requests=10)], Plan(), seeds=[0, 1])
    >>> found.saturated.requests, found.saturated.throughput_rps, found.saturated.evictions
    (20, (1.0, 1.0), (0, 0))
    """
    jobs = [
        Job(policy, POLICIES[policy], Settings(policy, {}), _scenario(group, plan, load, seed), None)
        for group in groups
        for load in (
            Load(Arrivals.CLOSED, group.requests, concurrency=group.requests),
            Load(Arrivals.POISSON, group.requests),
        )
        for seed in seeds
    ]
    outcomes, interrupted = run_all(jobs, progress, announce)
    if interrupted:
        raise KeyboardInterrupt
    ended = [found for found in outcomes if found is not None]
    size = len(seeds)
    parts = [ended[i : i + size] for i in range(0, len(ended), size)]
    return [
        _loads(group, saturated, offered)
        for group, saturated, offered in zip(groups, parts[::2], parts[1::2], strict=True)
    ]


def _scenario(group: Pooled, plan: Plan, load: Load, seed: int) -> Scenario:
    names = tuple(c.name for c in group.model.classes)
    return Scenario(group.model, plan, generate(group.model, load, seed), names)


def _loads(group: Pooled, saturated: Sequence[Outcome], offered: Sequence[Outcome]) -> Loads | None:
    if any(run.ending is not Ending.FINISHED for run in (*saturated, *offered)):
        return None
    return Loads(_runs(group, saturated), _runs(group, offered))


def _runs(group: Pooled, runs: Sequence[Outcome]) -> Runs:
    requests = group.replicas * group.requests
    return Runs(
        requests=requests,
        throughput_rps=tuple(requests / run.end_s for run in runs),
        e2e_s=tuple(float(np.mean(run.finish_s - run.arrival_s)) for run in runs),
        evictions=tuple(group.replicas * int(run.evictions.sum()) for run in runs),
    )


def together(parts: Sequence[Runs]) -> Runs:
    """The groups of a placement as one: done when the last group is done, seed by seed.

    Examples
    --------
    >>> one, other = Runs(10, (5.0,), (1.0,), (3,)), Runs(30, (10.0,), (2.0,), (0,))
    >>> together([one, other])  # 40 requests in 3 seconds
    Runs(requests=40, throughput_rps=(13.333333333333334,), e2e_s=(1.75,), evictions=(3,))
    """
    total = sum(part.requests for part in parts)
    seeds = range(len(parts[0].throughput_rps))
    return Runs(
        requests=total,
        throughput_rps=tuple(
            total / max(part.requests / part.throughput_rps[i] for part in parts) for i in seeds
        ),
        e2e_s=tuple(math.fsum(part.requests * part.e2e_s[i] for part in parts) / total for i in seeds),
        evictions=tuple(sum(part.evictions[i] for part in parts) for i in seeds),
    )


def spread(total: int, share: float, replicas: int) -> int:
    """Requests of a workload for one replica of a group with that share of the traffic; at least 1.

    >>> spread(1000, 0.5, 4), spread(3, 0.01, 1)
    (125, 1)
    """
    return max(1, round(total * share / replicas))
