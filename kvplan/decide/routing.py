"""What a prefix cache finds on many replicas: where each session stays on one, and where requests go to any of them.

Routed anywhere, the next turn of a session comes to the replica that has the last one with probability 1/replicas;
what all requests share is on every replica.
"""

from dataclasses import replace
from typing import NamedTuple

from kvplan.analysis.cache_states import CachedReplica, cached_replica
from kvplan.analysis.prefix_cache import prefix_cache
from kvplan.model import ServingModel
from kvplan.model.streams import Stream


class Routed(NamedTuple):
    """One replica under a way of routing; None where no state of a warm cache serves its rate."""

    hit_ratio: float | None
    iteration_time_s: float | None
    guaranteed_rps: float
    good_rps: float
    collapse_possible: bool


class Routing(NamedTuple):
    """Sessions on a replica of their own, and requests on any."""

    sessions: Routed
    anywhere: Routed


def routing(model: ServingModel, replicas: int) -> Routing | None:
    """Both ways for one of so many replicas, whose traffic the model is; None where requests leave nothing to reuse.

    An estimate: that an earlier turn than the last may be found is left out.

    References
    ----------
    New, from theory §8: the probability that a token is asked for again, over the replicas.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> from kvplan.model.gaps import Exponential
    >>> from kvplan.model.reuse import Reuse
    >>> again = RequestClass("a", 1000, (200,), (1.0,), 2.0, reuse=Reuse(800, 0.9, Exponential(1.0)))
    >>> found = routing(ServingModel((again,), Timing(0.012, 1e-7, 60e-6), Replica(100_000)), 4)
    >>> round(found.sessions.hit_ratio, 3), round(found.anywhere.hit_ratio, 3)
    (0.72, 0.18)
    """
    if not model.finds_prefixes:
        return None
    cached = cached_replica(model)
    if not cached.private:
        return None
    apart = replace(cached, streams=tuple(_with_part(stream, 1 / replicas) for stream in cached.streams))
    return Routing(_routed(cached), _routed(apart))


def _with_part(stream: Stream, part: float) -> Stream:
    """The stream of which that part of what is asked for again comes where it is."""
    if stream.gap is None:
        return stream
    common = sum(p.weight * p.tokens for p in stream.shared)
    kinds = []
    for kind in stream.prompts:
        asks = kind.asked_for > common
        kinds.append(replace(kind, share=kind.share * part) if asks else kind)
        if asks:
            kinds.append(replace(kind, share=kind.share * (1 - part), asked_for=common))
    return replace(
        stream,
        reused=stream.reused * part,
        reused_squares=stream.reused_squares * part,
        prompts=tuple(kinds),
    )


def _routed(cached: CachedReplica) -> Routed:
    found = prefix_cache(cached)
    state = found.expected
    return Routed(
        hit_ratio=None if state is None else state.hit_ratio,
        iteration_time_s=None if state is None else state.iteration_time_s,
        guaranteed_rps=found.sustainable_rps.guaranteed,
        good_rps=found.sustainable_rps.good,
        collapse_possible=found.collapse_possible,
    )
