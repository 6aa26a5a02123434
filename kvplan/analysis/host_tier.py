"""What a tier of host memory behind the prefix cache finds, and what it changes (theory §13, corrected for queues).

Two characteristic times: what was left less than T ago is on the GPU, less than T2 ago on the host. Its hits survive a
GPU full of requests in flight, so that a replica that was just filled recovers at rates that it would collapse at
without the tier. They do not survive a queue: a turn that waits is looked up that much later, and where the wait is
longer than T2 nothing is left of what it waits for. So what is served *whatever has happened* is what the GPU alone
serves; the tier raises what is served as long as waits are short, and a bound on the wait keeps them so.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kvplan.analysis.cache_states import CachedReplica
from kvplan.analysis.prefix_cache import (
    CacheState,
    SustainableRates,
    full_rate,
    population_of,
    sustainable_rates,
    wait_without_hits_s,
)
from kvplan.solve import falling_root


class HostTier(NamedTuple):
    """The host tier at the offered load.

    Attributes
    ----------
    hit_ratio
        Share of the prompt tokens that are loaded from it, part of what the prefix cache finds.
    characteristic_time_s
        T2, after which what nobody asked for again is gone; None where everything fits.
    link_utilization
        Share of the time in which it loads.
    recovers_up_to_rps
        The rate up to which a replica full of requests, with none waiting, comes back to its warm state.
    longest_wait_s
        The longest queue, in seconds of waiting, from which it comes back at the offered rate; None where it comes
        back from any, or from none.
    without
        Rates that the GPU alone serves.
    """

    hit_ratio: float | None
    characteristic_time_s: float | None
    link_utilization: float | None
    recovers_up_to_rps: float
    longest_wait_s: float | None
    without: SustainableRates


def host_tier(cached: CachedReplica, warm: CacheState | None) -> HostTier | None:
    """What the host tier does at the offered load, where `warm` is the state of the warm cache; None without one.

    Examples
    --------
    >>> from kvplan.analysis.cache_states import cached_replica
    >>> from kvplan.model import Replica, RequestClass, ServingModel, Timing
    >>> from kvplan.model.gaps import Exponential
    >>> from kvplan.model.offload import Offload
    >>> from kvplan.model.reuse import Reuse
    >>> one = RequestClass("a", 3000, (200,), (1.0,), 4.4, reuse=Reuse(3000, 0.8, Exponential(60.0)))
    >>> replica = Replica(400_000, offload=Offload(800_000, 5e-6, overlap=False))
    >>> cached = cached_replica(ServingModel((one,), Timing(0.012, 1e-7, 60e-6), replica))
    >>> found = host_tier(cached, None)
    >>> [round(value, 2) for value in (found.recovers_up_to_rps, found.longest_wait_s, found.without.good)]
    [4.82, 12.68, 4.1]
    """
    if cached.replica.offload is None:
        return None
    alone = cached.on_gpu_alone
    return HostTier(
        hit_ratio=warm and warm.host_hit_ratio,
        characteristic_time_s=warm and warm.host_time_s,
        link_utilization=warm and warm.link_utilization,
        recovers_up_to_rps=full_rate(cached),
        longest_wait_s=longest_wait_s(cached),
        without=sustainable_rates(alone) if cached.users is None else _of_users(alone),
    )


def _of_users(cached: CachedReplica) -> SustainableRates:
    found = population_of(cached)
    return SustainableRates(found.guaranteed_rps, found.good_rps)


def longest_wait_s(cached: CachedReplica) -> float | None:
    """How long requests may wait so that a full replica still serves more than is offered; None: whatever, or never.

    With a wait W gaps that begin with an answer are W longer.
    """

    def more(wait_s: float) -> float:
        return full_rate(replace(cached, wait_s=wait_s)) - cached.rate_rps

    longest = wait_without_hits_s(cached)
    if more(0.0) <= 0 or more(longest) > 0:
        return None
    found = falling_root(lambda w: np.array([more(float(w[0]))]), np.zeros(1), np.array([longest]))
    return float(found[0])
