"""A host tier against more GPUs: the replicas that a demand needs with it and without, and what it may cost."""

from collections.abc import Callable
from dataclasses import replace

from kvplan.analysis.cache_states import cached_replica
from kvplan.analysis.host_tier import longest_wait_s
from kvplan.analysis.prefix_cache import full_rate
from kvplan.decide.fleet import Fleet, Way, Weighed
from kvplan.decide.sizing import capacity_rps
from kvplan.model import ServingModel
from kvplan.study.replicas import scaled


def weighed(
    model: ServingModel,
    found: Fleet,
    sized: Callable[..., Fleet],
    prices: tuple[float | None, float | None],
) -> Weighed | None:
    """The host tier of a model against more GPUs; None where it has none.

    Parameters
    ----------
    found
        What the model needs.
    sized
        The same of another model, and where given by another `capacity`: `kvplan.decide.fleet.fleet`.
    prices
        Of a replica and hour, without the tier and with it.

    References
    ----------
    New; what a full replica comes back from: theory §13.

    Examples
    --------
    >>> from functools import partial
    >>> from kvplan.decide.fleet import fleet
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> from kvplan.model.gaps import Exponential
    >>> from kvplan.model.offload import Offload
    >>> from kvplan.model.reuse import Reuse
    >>> from kvplan.study.judging import Trend
    >>> from kvplan.study.replicas import Kept
    >>> one = RequestClass("a", 3000, (200,), (1.0,), 19.0, reuse=Reuse(3000, 0.8, Exponential(60.0)))
    >>> replica = Replica(400_000, offload=Offload(800_000, 5e-6, overlap=False))
    >>> model = ServingModel((one,), Timing(0.012, 1e-7, 60e-6), replica)
    >>> steady = lambda one: Kept(Trend.STEADY, (), {})
    >>> sized = partial(fleet, rate_rps=None, headroom=0, slos=[], measure=steady)
    >>> found = weighed(model, sized(model), sized, (2.5, 2.6))
    >>> [(way.fleet.heaviest.replicas, found.worth_per_hour(way)) for way in found.ways]
    [(5, 0.0), (5, 0.0), (4, 0.625)]
    """
    if model.replica.offload is None:
        return None
    alone = replace(model, replica=replace(model.replica, offload=None))
    ways = [
        Way(False, None, sized(alone), prices[0]),
        Way(True, None, found, prices[1]),
    ]
    if (
        model.finds_prefixes
        and cached_replica(model).users is None
        and recovery_rps(model) > capacity_rps(model)
    ):
        bounded = sized(model, capacity=recovery_rps)
        if (wait_s := _shortest_bound_s(model, bounded)) is not None:
            ways.append(Way(True, wait_s, bounded, prices[1]))
    return Weighed(tuple(ways))


def recovery_rps(model: ServingModel) -> float:
    """Rate up to which a full replica with a host tier comes back, as long as nobody waits for long, requests/s."""
    return full_rate(cached_replica(model))


def _shortest_bound_s(model: ServingModel, found: Fleet) -> float | None:
    """What bounds waits enough for the heaviest part; None where it comes back from any, or nothing is enough."""
    one = found.heaviest
    if one.replicas is None:
        return None
    return longest_wait_s(cached_replica(scaled(model, one.needed_rps / one.replicas)))
