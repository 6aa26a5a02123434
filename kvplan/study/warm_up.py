"""Warm-up of a replica: what is seen before it has filled says little about later."""

import numpy as np

from kvplan.analysis.equilibrium import iteration_time, per_request, saturation, time_alone
from kvplan.model import ServingModel
from kvplan.model.sessions import Sessions

_OLD = 0.01  # share of the KV that requests older than the warm-up hold
_BEGUN = 0.99  # share of the turns of sessions that have begun by then
_SLOWEST = 10.0  # times longer, where a replica relaxes slower than requests stay


def warm_up_s(model: ServingModel) -> float:
    """Return the seconds after which a replica that began empty looks like one that has long been running.

    After W₁ requests that came before the start hold a hundredth of the KV. A replica bound by compute relaxes more
    slowly, by the factor of its iterations over those of a request that is alone (new).
    """
    alone = time_alone(model) / per_request(model).iterations
    return life_s(model) * min(max(typical_iteration_s(model) / alone, 1.0), _SLOWEST)


def life_s(model: ServingModel) -> float:
    """Return W₁: the age beyond which requests, or the turns of sessions, hold little."""
    held = model.mix.held.survival(model.mix.share)
    older = np.cumsum(held[::-1])[::-1]
    tau = typical_iteration_s(model)
    age = float(np.count_nonzero(older > _OLD * older[0])) * tau
    return age + max((_turns_s(model, c.sessions, tau) for c in model.classes if c.sessions), default=0.0)


def typical_iteration_s(model: ServingModel) -> float:
    """Return the iteration time of the equilibrium, or of a full memory if that is less or there is no equilibrium."""
    full, usual = saturation(model).iteration_time_s, iteration_time(model)
    return full if usual is None else min(full, usual)


def _turns_s(model: ServingModel, sessions: Sessions, tau: float) -> float:
    """Return the time from the begin of sessions until all but a hundredth of their turns have begun."""
    share = sessions.turns.at_least()
    turns = int(np.searchsorted(np.cumsum(share) / share.sum(), _BEGUN))
    return turns * (sessions.think.mean_s + per_request(model).iterations * tau)
