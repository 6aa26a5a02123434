"""What is in the plots of a prefix cache: its branches against the rate, and what it finds against memory."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvplan.analysis.cache_states import CachedReplica, cached_replica
from kvplan.analysis.prefix_cache import branches, prefix_cache
from kvplan.model import FloatArray, ServingModel
from kvplan.report.prefix_cache import CacheBlock

_FAR = 4.0  # times the good rate: beyond, the offered rate is named in the caption instead
_AROUND = 1.15
_LEAST = 0.5  # times the guaranteed or the offered rate
_DECADES = 1e3  # of requests in flight, at most
_OCTAVES, _STEPS = 3, 8  # of memory to either side, and points in each


@dataclass(frozen=True)
class CacheBranches:
    """Running requests in every state, against the offered rate.

    Attributes
    ----------
    rate_rps, in_flight : ndarray, shape (n_points,)
        The curve of states, in-flight ascending.
    stable : ndarray of bool, shape (n_points,)
        Whether the state from there to the next point is stable.
    full_in_flight
        Once memory, or a limit, is reached and the queue grows, at any rate above the guaranteed one.
    warm_in_flight, separatrix_in_flight
        At the offered rate; None where there is no such state.
    low_rps, high_rps, low_in_flight, high_in_flight
        Where the plot begins and ends.
    """

    rate_rps: FloatArray
    in_flight: FloatArray
    stable: NDArray[np.bool_]
    offered_rps: float
    guaranteed_rps: float
    good_rps: float
    full_in_flight: float
    warm_in_flight: float | None
    separatrix_in_flight: float | None
    low_rps: float
    high_rps: float
    low_in_flight: float
    high_in_flight: float

    @property
    def shows_offered(self) -> bool:
        """Whether the profile's own rate is within the plot."""
        return self.offered_rps <= self.high_rps


def cache_branches(model: ServingModel, cache: CacheBlock) -> CacheBranches:
    """Good, unstable and full branch of a model whose requests share something; `cache` is the report's (theory §8)."""
    guaranteed, good = cache.sustainable_rps
    assert guaranteed is not None
    assert good is not None
    curve = branches(cached_replica(model))
    offered, full = model.total_rate_rps, float(curve.requests_in_flight[-1])
    shown = offered if offered <= _FAR * good else good
    low = max(_LEAST * min(guaranteed, shown), float(curve.rate_rps[0]))
    bottom = float(curve.requests_in_flight[np.argmax(curve.rate_rps >= low)])
    warm = next((state.requests_in_flight for state in cache.branches if state.stable), None)
    return CacheBranches(
        rate_rps=curve.rate_rps,
        in_flight=curve.requests_in_flight,
        stable=curve.stable,
        offered_rps=offered,
        guaranteed_rps=guaranteed,
        good_rps=good,
        full_in_flight=full,
        warm_in_flight=warm,
        separatrix_in_flight=cache.separatrix_in_flight,
        low_rps=low,
        high_rps=_AROUND * max(good, shown),
        low_in_flight=max(bottom, full / _DECADES),
        high_in_flight=full * _AROUND**2,
    )


@dataclass(frozen=True)
class CacheHits:
    """Hit ratio at the offered rate, from an empty replica, against the memory of the KV cache.

    Attributes
    ----------
    memory_tokens : ndarray, shape (n_points,)
    hit_ratio : ndarray, shape (n_points,)
        NaN where no state of a warm cache serves the offered rate.
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
    powers = np.arange(-_OCTAVES * _STEPS, _OCTAVES * _STEPS + 1) / _STEPS
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
