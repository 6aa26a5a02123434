"""What is in the plots of a prefix cache: its branches against the load, and what it finds against memory."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvplan.analysis.cache_states import CachedReplica, cached_replica
from kvplan.analysis.prefix_cache import branches, population_of, prefix_cache
from kvplan.model import FloatArray, ServingModel
from kvplan.report.prefix_cache import CacheBlock

_FAR = 4.0  # times the good load: beyond, the offered one is named in the caption instead
_AROUND = 1.15
_LEAST = 0.5  # times the guaranteed or the offered load
_DECADES = 1e3  # of running requests, at most
_OCTAVES, _STEPS = 3, 8  # of memory to either side, and points in each ...
_STEPS_CONVEX = 3  # where each takes longer


@dataclass(frozen=True)
class CacheBranches:
    """Running requests in every state, against the load: requests/s, or users of a closed population.

    Attributes
    ----------
    unit
        Of the load.
    load, in_flight : ndarray, shape (n_points,)
        The curve of states, `in_flight` ascending.
    stable : ndarray of bool, shape (n_points,)
        Whether the state from there to the next point is stable.
    offered, guaranteed, good
        Load of the profile, without danger, and from a warm cache.
    full_from, full_in_flight
        Load from which on memory, or a limit, can be reached with nothing found, while others wait; and how many run.
    warm_in_flight, separatrix_in_flight
        At the offered load; None where there is no such state.
    low, high, low_in_flight
        Where the plot begins and ends.
    """

    unit: str
    load: FloatArray
    in_flight: FloatArray
    stable: NDArray[np.bool_]
    offered: float
    guaranteed: float
    good: float
    full_from: float
    full_in_flight: float
    warm_in_flight: float | None
    separatrix_in_flight: float | None
    low: float
    high: float
    low_in_flight: float

    @property
    def high_in_flight(self) -> float:
        """Where the plot ends."""
        return max(self.full_in_flight, float(self.in_flight[-1])) * _AROUND**2

    @property
    def shows_offered(self) -> bool:
        """Whether the profile's own load is within the plot."""
        return self.offered <= self.high


def cache_branches(model: ServingModel, cache: CacheBlock) -> CacheBranches | None:
    """Good, unstable and full branch of a model whose requests share something; `cache` is the report's (theory §8).

    None where no cache that is warm serves anything: an iteration's tokens are far fewer than a prompt's.
    """
    cached = cached_replica(model)
    if cached.users is None:
        (guaranteed, good), offered = cache.sustainable_rps, model.total_rate_rps
    else:
        (guaranteed, good), offered = population_of(cached)[:2], cached.users
    assert guaranteed is not None
    assert good is not None
    curve = branches(cached)
    if not curve.load.size:
        return None
    shown = offered if offered <= _FAR * good else good
    low = max(_LEAST * min(guaranteed, shown), float(curve.load[0]))
    bottom = float(curve.requests_in_flight[np.argmax(curve.load >= low)])
    return CacheBranches(
        unit="requests/s" if cached.users is None else "users",
        load=curve.load,
        in_flight=curve.requests_in_flight,
        stable=curve.stable,
        offered=offered,
        guaranteed=guaranteed,
        good=good,
        full_from=guaranteed if cached.users is None else float(curve.load[-1]),
        full_in_flight=curve.collapsed_in_flight,
        warm_in_flight=next((state.requests_in_flight for state in cache.branches if state.stable), None),
        separatrix_in_flight=cache.separatrix_in_flight,
        low=low,
        high=_AROUND * max(good, shown),
        low_in_flight=max(bottom, curve.collapsed_in_flight / _DECADES),
    )


@dataclass(frozen=True)
class CacheHits:
    """Hit ratio at the offered load, from an empty replica, against the memory of the KV cache.

    Attributes
    ----------
    memory_tokens : ndarray, shape (n_points,)
    hit_ratio : ndarray, shape (n_points,)
        NaN where no state of a warm cache serves it.
    collapse : ndarray of bool, shape (n_points,)
        Where a burst can empty the cache for good.
    reusable_ratio
        Of an infinite cache.
    own_tokens, own_ratio
        Of the profile; None where it has no such state.
    """

    memory_tokens: FloatArray
    hit_ratio: FloatArray
    collapse: NDArray[np.bool_]
    reusable_ratio: float
    own_tokens: int
    own_ratio: float | None


def cache_hits(model: ServingModel, cache: CacheBlock) -> CacheHits | None:
    """What is found with so much memory; None where none in reach serves the offered rate from a warm cache."""
    cached, own = cached_replica(model), model.replica.memory_tokens
    steps = _STEPS_CONVEX if model.timing.is_convex else _STEPS
    powers = np.arange(-_OCTAVES * steps, _OCTAVES * steps + 1) / steps
    memory = np.maximum(own * 2.0**powers, model.replica.block_tokens)
    found = [prefix_cache(_with_memory(cached, round(tokens))) for tokens in memory.tolist()]
    ratio = np.array([math.nan if one.expected is None else one.expected.hit_ratio for one in found])
    if np.isnan(ratio).all():
        return None
    assert cache.reusable_ratio is not None
    collapse = np.array([one.collapse_possible for one in found])
    return CacheHits(memory, ratio, collapse, cache.reusable_ratio, own, cache.hit_ratio)


def _with_memory(cached: CachedReplica, tokens: int) -> CachedReplica:
    return replace(cached, replica=replace(cached.replica, memory_tokens=tokens))
