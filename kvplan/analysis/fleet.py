"""A fleet by formula: one of its replicas, and what all serve, prefill and decode apart or together (theory §12)."""

import math
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

from kvplan.analysis.cached_equilibrium import with_part_of_users
from kvplan.analysis.split import (
    ITL,
    Crossing,
    Served,
    Split,
    best_split,
    crossing,
    not_covered,
    served,
    sides,
)
from kvplan.model import ArrivalProcess, ServingModel

_TIE = 1e-9  # relative, of rates neither of which wins
_BETWEEN = ("itl_s.", "tpot_s.")  # objectives that limit the time of an iteration


class Winner(StrEnum):
    """The better fleet."""

    SPLIT = "split"
    TOGETHER = "together"
    EVEN = "even"


class SplitFleet(NamedTuple):
    """Replicas for prompts and for decoding; rates are largest ones, times are means at the offered rate."""

    prefill: int | None = None
    decode: int | None = None
    gpus: int | None = None
    rate_rps: float | None = None
    goodput_rps: float | None = None
    ttft_s: float | None = None
    itl_s: float | None = None


class JoinedFleet(NamedTuple):
    """Replicas that do both; figures as of a split."""

    replicas: int
    gpus: int
    rate_rps: float | None = None
    goodput_rps: float | None = None
    ttft_s: float | None = None
    itl_s: float | None = None


class FleetFigures(NamedTuple):
    """Rates of split and together, and why one is higher."""

    split: SplitFleet
    together: JoinedFleet
    winner: Winner | None = None
    crossing: Crossing | None = None
    uncovered: str | None = None  # why there are no rates
    itl_limit_s: float | None = None  # the objective on the time between tokens that binds iterations
    prefill: Served | None = None  # one replica of each kind
    decode: Served | None = None
    both: Served | None = None
    best: Split | None = None  # of as many GPUs, at that limit
    # that a replica that does both computes in an iteration at that limit, if it binds: a budget that keeps prompts
    # from making some iterations longer and others shorter
    budget_tokens: float | None = None


def one_replica(model: ServingModel) -> ServingModel:
    """Return the model of one replica behind a router that sends at random; without a fleet the model itself."""
    fleet = model.fleet
    if fleet is None:
        return model
    part = with_part_of_users(model, 1 / fleet.size)
    return replace(part, arrivals=model.arrivals.split(fleet.size), fleet=None)


def steady_replica(model: ServingModel) -> ServingModel:
    """Return one replica with its share at the rates of the classes: no schedule, at random in place of a trace."""
    alone = replace(one_replica(model), schedule=None)
    return alone if alone.arrivals.trace is None else replace(alone, arrivals=ArrivalProcess())


def between_tokens_s(limits: Mapping[str, float]) -> float | None:
    """Find the tightest objective on the time between tokens, whatever figure it is about; None without one."""
    return min((bound for key, bound in limits.items() if key.startswith(_BETWEEN)), default=None)


def fleet_figures(
    model: ServingModel, limits: Mapping[str, float], *, gpus: int | None = None
) -> FleetFigures | None:
    """Describe the fleet of a model, and the same GPUs the other way; None without a fleet.

    Where replicas do both, the split beside them is the one that serves most, and its transfers take no time. Of the
    objectives on the time between tokens, whatever figure they are about, the tightest limits iterations. `limits` are
    seconds by figure, such as ``itl_s.mean``; `gpus` are as many as the fleet takes unless given.
    """
    fleet = model.fleet
    if fleet is None:
        return None
    gpus = fleet.size * model.replica.gpus if gpus is None else gpus
    replicas = gpus // model.replica.gpus
    reason = not_covered(model)
    if reason is not None:
        apart = SplitFleet(fleet.prefill, fleet.decode, gpus) if fleet.is_split else SplitFleet()
        return FleetFigures(apart, JoinedFleet(replicas, gpus), uncovered=reason)
    own = between_tokens_s(limits)
    limit = math.inf if own is None else own
    kinds = sides(model, fleet)
    prefill, decode, both = served(kinds.prefill), served(kinds.decode, limit), served(kinds.together, limit)
    best = best_split(kinds, gpus, limit)
    chosen = Split(fleet.prefill, fleet.decode, 0.0) if fleet.is_split else best
    split = SplitFleet()
    if chosen is not None:
        rate = min(chosen.prefill * prefill.rate_rps, chosen.decode * decode.rate_rps)
        used = chosen.prefill * kinds.prefill.gpus + chosen.decode * kinds.decode.gpus
        split = SplitFleet(chosen.prefill, chosen.decode, used, rate)
    joined = JoinedFleet(replicas, gpus, replicas * both.rate_rps)
    in_time = both.rate_rps * both.iteration_time_s * kinds.together.computed_tokens
    return FleetFigures(
        split,
        joined,
        winner=winner(split, joined),
        crossing=None if chosen is None else crossing(kinds, chosen.prefill, chosen.decode, gpus),
        itl_limit_s=own,
        prefill=prefill,
        decode=decode,
        both=both,
        best=best,
        budget_tokens=None if both.binding != ITL else in_time / model.replica.ranks,
    )


def winner(split: SplitFleet, joined: JoinedFleet) -> Winner | None:
    """Say what serves more: by goodput where both have one, else by rate; None where there is no split."""
    if split.rate_rps is None or joined.rate_rps is None:
        return None
    rates = split.rate_rps, joined.rate_rps
    if split.goodput_rps is not None and joined.goodput_rps is not None:
        rates = split.goodput_rps, joined.goodput_rps
    if abs(rates[0] - rates[1]) <= _TIE * max(rates):
        return Winner.EVEN
    return Winner.SPLIT if rates[0] > rates[1] else Winner.TOGETHER
