"""Closed populations: at what rate so many users ask, each of whom thinks for a while after every answer (theory §8).

The rate follows from the stay: λ = users/(nτ + think), so that a slower replica is asked less.
"""

from dataclasses import replace

import numpy as np

from kvplan.analysis.cache_states import CachedReplica, cached_replica
from kvplan.analysis.prefix_cache import full_memory
from kvplan.model import ServingModel

_TIMES = 64  # iteration times tried for the least that lasts
_HALVINGS = 50


def with_rates_of_users(model: ServingModel) -> ServingModel:
    """The model with the rates that its users have at the equilibrium of a warm cache.

    Where they do not fit, those that they would have in a full replica if none of them had to wait.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> from kvplan.model.gaps import Exponential
    >>> from kvplan.model.lengths import Lengths
    >>> from kvplan.model.sessions import Sessions
    >>> turn, once = Lengths.of({50: 1.0}), Lengths.of({1: 1.0})
    >>> one = Sessions(Lengths.of({100: 1.0}), turn, turn, once, Exponential(10.0), users=44)
    >>> some = RequestClass("a", 100, (50,), (1.0,), 1.0, sessions=one)
    >>> found = with_rates_of_users(ServingModel((some,), Timing(0.02), Replica(100_000)))
    >>> round(found.total_rate_rps, 9)  # each once in 10 s and 50 iterations
    4.0
    """
    asking = [c.sessions for c in model.classes]
    if not any(one is not None and one.users is not None for one in asking):
        return model
    start = cached_replica(model)

    def at(tau: float) -> CachedReplica:
        """The traffic where iterations take so long."""
        streams = tuple(
            stream
            if one is None or one.users is None
            else replace(stream, rate_rps=one.users / (stream.stages * tau + one.think.mean_s))
            for stream, one in zip(start.streams, asking, strict=True)
        )
        return replace(start, streams=streams)

    def longer(tau: float) -> float:
        """By how much an iteration then takes longer than that."""
        cached, time, none = at(tau), np.array([tau]), np.zeros(1)
        x = cached.rate_rps * time
        if cached.memory(x, time, none)[0][0] > cached.replica.capacity_tokens:
            return np.inf
        return float(cached.seconds(x, cached.hits(x, time, cached.keeps(x, time, none)))[0]) - tau

    most = float(full_memory(start).iteration_time_s[0])
    tried = np.geomspace(float(start.seconds(np.zeros(1), np.zeros(1))[0]), most, _TIMES).tolist()
    after = next((i for i, tau in enumerate(tried) if longer(tau) <= 0), None)
    tau = most
    if after is not None:
        low, tau = tried[max(after - 1, 0)], tried[after]
        for _ in range(_HALVINGS):
            middle = (low + tau) / 2
            low, tau = (middle, tau) if longer(middle) > 0 else (low, middle)
    rates = (stream.rate_rps for stream in at(tau).streams)
    return replace(
        model, classes=tuple(replace(c, rate_rps=rate) for c, rate in zip(model.classes, rates, strict=True))
    )
