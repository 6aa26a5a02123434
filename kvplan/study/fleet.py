"""Times of a fleet with prefill and decode apart or together: the profile's own way, and the other on its GPUs."""

from dataclasses import replace
from typing import TypeVar

from kvplan.analysis.fleet import FleetFigures, JoinedFleet, SplitFleet, winner
from kvplan.errors import UsageError
from kvplan.model import Plan, ServingModel
from kvplan.study.operating_point import Latency, operating_point

_Side = TypeVar("_Side", SplitFleet, JoinedFleet)


def timed(
    found: FleetFigures | None,
    model: ServingModel,
    plan: Plan,
    own: Latency,
    goodput_rps: float | None = None,
) -> FleetFigures | None:
    """Add mean TTFT and ITL at the offered rate, simulated, to both ways of a fleet.

    `own` is what the fleet of the model was seen to do, `goodput_rps` up to which rate it keeps all objectives.
    """
    fleet = model.fleet
    if found is None or fleet is None:
        return found
    split, joined = found.split, found.together
    if fleet.is_split:
        together = replace(fleet, prefill=0, decode=0, replicas=joined.replicas)
        joined = _with_times(joined, _simulated(replace(model, fleet=together), plan))
        split = _with_times(split, own)._replace(goodput_rps=goodput_rps)
    else:
        joined = _with_times(joined, own)._replace(goodput_rps=goodput_rps)
        if split.prefill and split.decode:
            apart = replace(fleet, prefill=split.prefill, decode=split.decode, replicas=0)
            split = _with_times(split, _simulated(replace(model, fleet=apart), plan))
    return found._replace(split=split, together=joined, winner=winner(split, joined))


def _simulated(model: ServingModel, plan: Plan) -> Latency | None:
    try:
        return operating_point(model, plan).latency
    except UsageError:  # not modelled so
        return None


def _with_times(side: _Side, seen: Latency | None) -> _Side:
    if seen is None:
        return side
    return side._replace(ttft_s=seen.ttft_s.mean, itl_s=seen.itl_s.mean)
