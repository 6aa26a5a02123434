"""Groups of equal replicas on a fixed workload: what a placement of classes does in simulation.

The workload is so many requests of the whole traffic; a group gets its share of them, and each of its replicas an
equal part. Replicas of a group are alike, so one of them is simulated, over several seeds, at two loads:
*saturated*, where all its requests are there at the beginning, in an order drawn anew for each seed, and *offered*,
Poisson arrivals at its part of the rates. The same amount of work, however it is spread, is what SIC 6.2 compares.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from kvplan.model import Plan, ServingModel
from kvplan.simulation.experiments.load import Load, crowd
from kvplan.simulation.experiments.runner import Announce, Job, Progress, run_to_the_end, scenarios
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.policies.protocol import Settings


class Pooled(NamedTuple):
    """Equal replicas that serve a part of the traffic."""

    model: ServingModel  # one of them and the traffic it sees
    replicas: int
    requests: int  # of the workload, for one replica; at least 1


class Runs(NamedTuple):
    """One load: figures of all replicas of a group, or of a placement, one a seed."""

    requests: int  # in all
    throughput_rps: tuple[float, ...]  # until the last request is done
    e2e_s: tuple[float, ...]  # mean from arrival to the last token
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
    progress: Progress | None = None,
    announce: Announce | None = None,
) -> list[Loads | None]:
    """Run one replica of every group on both loads and all seeds, on all cores.

    None stands for a group in which a run could not be ended, because a request never fits.

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
    settings = Settings(policy, {})
    rows = run_to_the_end(
        [
            [Job(settings, one) for one in scenarios(group.model, plan, load, seeds)]
            for group in groups
            for load in (crowd(group.requests), Load(requests=group.requests))
        ],
        progress,
        announce,
    )
    return [
        _loads(group, saturated, offered)
        for group, saturated, offered in zip(groups, rows[::2], rows[1::2], strict=True)
    ]


def _loads(group: Pooled, saturated: Sequence[Outcome], offered: Sequence[Outcome]) -> Loads | None:
    if not all(run.finished for run in (*saturated, *offered)):
        return None
    return Loads(_runs(group, saturated), _runs(group, offered))


def _runs(group: Pooled, runs: Sequence[Outcome]) -> Runs:
    requests = group.replicas * group.requests
    return Runs(
        requests=requests,
        throughput_rps=tuple(requests / run.end_s for run in runs),
        e2e_s=tuple(run.mean_e2e_s for run in runs),
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
