"""Closed populations: at what rate so many users ask, each of whom thinks for a while after every answer (theory §8).

The rate follows from the stay: λ = users/(nτ + think), so that a slower replica is asked less.
"""

import math
from dataclasses import replace

import numpy as np

from kvplan.analysis.cache_states import CachedReplica, cached_replica
from kvplan.analysis.prefix_cache import full_memory
from kvplan.model import ServingModel
from kvplan.solve import boundary

_TIMES = 64  # iteration times tried for the least that lasts
_ROUNDING = 1e-9


def users_of(model: ServingModel) -> int:
    """Users of closed populations in the traffic."""
    return sum(c.sessions.users or 0 for c in model.classes if c.sessions is not None)


def with_part_of_users(model: ServingModel, factor: float) -> ServingModel:
    """Return the model with all rates and users times a factor, users whole and not fewer.

    Rates are as if none waited longer.
    """
    classes = []
    for c in model.classes:
        sessions = c.sessions
        if sessions is not None and sessions.users is not None:
            sessions = replace(sessions, users=max(1, math.ceil(sessions.users * factor * (1 - _ROUNDING))))
        classes.append(replace(c, rate_rps=c.rate_rps * factor, sessions=sessions))
    return replace(model, classes=tuple(classes))


def with_rates_of_users(model: ServingModel) -> ServingModel:
    """Return the model with the rates that its users have at the equilibrium of a warm cache.

    Where they do not fit, those that they would have in a full replica if none of them had to wait.
    """
    asking = [c.sessions for c in model.classes]
    if not users_of(model):
        return model
    if model.fleet is not None:  # each replica has its part of the users
        size = model.fleet.size
        one = with_rates_of_users(replace(with_part_of_users(model, 1 / size), fleet=None))
        rates_of_all = ((c, size * part.rate_rps) for c, part in zip(model.classes, one.classes, strict=True))
        return replace(model, classes=tuple(replace(c, rate_rps=rate) for c, rate in rates_of_all))
    start = cached_replica(model)

    def at(tau: float) -> CachedReplica:
        """Traffic where iterations take so long."""
        streams = tuple(
            stream
            if one is None or one.users is None
            else replace(stream, rate_rps=one.users / (stream.stages * tau + one.think.mean_s))
            for stream, one in zip(start.streams, asking, strict=True)
        )
        return replace(start, streams=streams)

    def longer(tau: float) -> float:
        """Excess of the time that an iteration then takes."""
        cached, time, none = at(tau), np.array([tau]), np.zeros(1)
        x = cached.rate_rps * time
        if cached.memory(x, time, none)[0][0] > cached.replica.capacity_tokens:
            return np.inf
        return float(cached.next_seconds(cached.found(x, time, none, none))[0]) - tau

    least = float(start.seconds(np.zeros(1), np.zeros(1))[0])
    # of the mix that they ask for, whatever else comes
    most = float(full_memory(at(least)).iteration_time_s[0])
    tried = np.geomspace(least, most, _TIMES).tolist()
    after = next((i for i, tau in enumerate(tried) if longer(tau) <= 0), None)
    tau = most
    if after is not None:
        tau = boundary(lambda tau: longer(tau) <= 0, tried[max(after - 1, 0)], tried[after])[1]
    rates = (stream.rate_rps for stream in at(tau).streams)
    return replace(
        model, classes=tuple(replace(c, rate_rps=rate) for c, rate in zip(model.classes, rates, strict=True))
    )
