"""A fleet by formula: one of its replicas, and what all serve, prefill and decode apart or together (theory §12)."""

import math
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.analysis.goodput import Goodput, goodput
from kvplan.analysis.latency import Latency, latency
from kvplan.analysis.population import with_part_of_users
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
    transfers_s,
)
from kvplan.model import Prefill, ServingModel
from kvplan.model.fleet import Fleet

_TIE = 1e-9  # relative, of rates neither of which wins
_LINK_USE = 0.5  # beyond, transfers wait for each other longer than the times allow for
_BETWEEN = ("itl_s.", "tpot_s.")  # objectives that limit the time of an iteration


class Winner(StrEnum):
    """What serves more."""

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
    """What split and together serve, and why one serves more.

    Attributes
    ----------
    at_least_rps
        Goodput of split and together up to which all objectives are known to be met, where closed forms end.
    uncovered
        Why there are no rates; None where there are.
    itl_limit_s
        The objective on the time between tokens that binds iterations; None where there is none.
    prefill, decode, both
        One replica of each kind.
    best
        The split of as many GPUs that serves most, at that limit.
    budget_tokens
        What a replica that does both computes in an iteration at that limit, if it binds: a token budget that keeps
        prompts from making some iterations longer and others shorter. None where the limit does not bind.
    """

    split: SplitFleet
    together: JoinedFleet
    winner: Winner | None = None
    crossing: Crossing | None = None
    at_least_rps: tuple[float, float] = (0.0, 0.0)
    uncovered: str | None = None
    itl_limit_s: float | None = None
    prefill: Served | None = None
    decode: Served | None = None
    both: Served | None = None
    best: Split | None = None
    budget_tokens: float | None = None


def one_replica(model: ServingModel) -> ServingModel:
    """What a router that sends requests at random leaves to one replica of a fleet; the model itself without a fleet.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> one = RequestClass("a", 100, (50,), (1.0,), 4.0)
    >>> one_replica(ServingModel((one,), Timing(0.02), Replica(100_000), fleet=Fleet(replicas=8))).total_rate_rps
    0.5
    """
    fleet = model.fleet
    if fleet is None:
        return model
    part = with_part_of_users(model, 1 / fleet.size)
    return replace(part, arrivals=model.arrivals.split(fleet.size), fleet=None)


def between_tokens_s(limits: Mapping[str, float]) -> float | None:
    """The tightest objective on the time between tokens, whatever figure of it that is about; None without one."""
    return min((bound for key, bound in limits.items() if key.startswith(_BETWEEN)), default=None)


def fleet_figures(
    model: ServingModel,
    limits: Mapping[str, float],
    now: Latency,
    most: Goodput,
    *,
    gpus: int | None = None,
) -> FleetFigures | None:
    """The fleet of a model, and the same GPUs the other way; None without a fleet.

    Where replicas do both, the split beside them is the one that serves most, and its transfers take no time. Of the
    objectives on the time between tokens, whatever figure they are about, the tightest limits iterations.

    Parameters
    ----------
    limits
        Objectives: seconds by figure, such as ``ttft_s.p95``.
    now, most
        Latencies at the offered rate and goodput of `one_replica`.
    gpus
        That there are; None: as many as the fleet takes, each of its replicas being like the model's.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> chat = RequestClass("chat", 2000, (200,), (1.0,), 60.0)
    >>> law, replica = Timing(8e-3, 0.04e-6, 25e-6, 15e-6), Replica(450_000, max_num_batched_tokens=8192)
    >>> model = ServingModel((chat,), law, replica, fleet=Fleet(5, 3))
    >>> found = fleet_figures(model, {"tpot_s.mean": 0.02}, latency(one_replica(model)), Goodput())
    >>> round(found.split.rate_rps, 1), round(found.together.rate_rps, 1), str(found.winner)
    (91.3, 68.8, 'split')
    >>> round(found.crossing.itl_s, 4), found.crossing.split_wins_below
    (0.0494, True)
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
    found = sides(model, fleet)
    prefill, decode, both = served(found.prefill), served(found.decode, limit), served(found.together, limit)
    best = best_split(found, gpus, limit)
    chosen = Split(fleet.prefill, fleet.decode, 0.0) if fleet.is_split else best
    split, good = SplitFleet(), Goodput()
    if chosen is not None:
        rate = min(chosen.prefill * prefill.rate_rps, chosen.decode * decode.rate_rps)
        used = chosen.prefill * found.prefill.gpus + chosen.decode * found.decode.gpus
        split = SplitFleet(chosen.prefill, chosen.decode, used, rate)
        split, good = _timed(model, fleet, split, limits)
    joined = JoinedFleet(
        replicas,
        gpus,
        replicas * both.rate_rps,
        None if most.rate_rps is None else replicas * most.rate_rps,
        now.ttft_s.mean,
        now.itl_s.mean,
    )
    at_least = good.at_least_rps or 0.0, replicas * (most.at_least_rps or 0.0)
    return FleetFigures(
        split,
        joined,
        winner=_winner(split, joined, *at_least),
        crossing=None if chosen is None else crossing(found, chosen.prefill, chosen.decode, gpus),
        at_least_rps=at_least,
        itl_limit_s=own,
        prefill=prefill,
        decode=decode,
        both=both,
        best=best,
        budget_tokens=both.rate_rps * both.iteration_time_s * found.together.computed_tokens
        if both.binding == ITL
        else None,
    )


def _winner(split: SplitFleet, joined: JoinedFleet, split_least: float, joined_least: float) -> Winner | None:
    """By goodput where that tells, else by rate."""
    if split.rate_rps is None or joined.rate_rps is None:
        return None
    if split.goodput_rps is None and joined.goodput_rps is not None and split_least > joined.goodput_rps:
        return Winner.SPLIT
    if joined.goodput_rps is None and split.goodput_rps is not None and joined_least > split.goodput_rps:
        return Winner.TOGETHER
    one, other = split.rate_rps, joined.rate_rps
    if split.goodput_rps is not None and joined.goodput_rps is not None:
        one, other = split.goodput_rps, joined.goodput_rps
    if abs(one - other) <= _TIE * max(one, other):
        return Winner.EVEN
    return Winner.SPLIT if one > other else Winner.TOGETHER


# ------------------------------------------------------------------------------------------- prefill and decode apart


def _timed(
    model: ServingModel, fleet: Fleet, split: SplitFleet, limits: Mapping[str, float]
) -> tuple[SplitFleet, Goodput]:
    """The split with its times and its goodput, and what is known of that; each side gets requests at random."""
    assert split.prefill is not None
    assert split.decode is not None
    if model.replica.prefill is not Prefill.FUSED or model.replica.layout is not None:
        return split, Goodput()
    apart = model.on(fleet.prefill_on), model.on(fleet.decode_on)
    if any(side.timing.is_convex for side in apart):
        return split, Goodput()  # past its knee a prompt that is there already would count as computed
    first, later = prefill_replica(apart[0], split.prefill), decode_replica(apart[1], split.decode)
    transfer_s = float(model.mix.mean(transfers_s(model, fleet)))
    ttft = latency(first).ttft_s.mean
    whole = None if later is None else latency(later).e2e_s.mean
    if model.total_rate_rps * transfer_s > _LINK_USE * min(split.prefill, split.decode):
        ttft = None
    good = _goodput(first, later, limits, transfer_s, split)
    if (good.at_least_rps or 0.0) * transfer_s > _LINK_USE * min(split.prefill, split.decode):
        good = Goodput()
    timed = split._replace(
        goodput_rps=good.rate_rps,
        ttft_s=None if ttft is None else ttft + transfer_s,
        # all that a decode replica does for a request is the gaps after its first token
        itl_s=None if whole is None or later is None else whole / later.mix.mean(later.mix.decode_tokens),
    )
    return timed, good


def prefill_replica(model: ServingModel, replicas: int) -> ServingModel:
    """One of so many replicas that compute prompts, as a replica whose requests emit one token."""
    part = with_part_of_users(model, 1 / replicas)
    classes = tuple(
        replace(c, decode_tokens=(1,), decode_weights=(1.0,), decode_law=None, sessions=None)
        for c in part.classes
    )
    return replace(part, classes=classes, arrivals=model.arrivals.split(replicas), fleet=None)


def decode_replica(model: ServingModel, replicas: int) -> ServingModel | None:
    """One of so many replicas that generate the further tokens, as one whose prompts, with a token more, cost no time.

    None where requests emit one token. The token budget is then a limit on sequences.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> chat = RequestClass("chat", 2000, (1, 200), (1.0, 3.0), 60.0)
    >>> one = decode_replica(ServingModel((chat,), Timing(8e-3, 0.04e-6, 25e-6), Replica(450_000)), 5)
    >>> one.classes[0].input_tokens, one.classes[0].decode_tokens, one.total_rate_rps
    (2001, (199,), 9.0)
    """
    part = with_part_of_users(model, 1 / replicas)
    classes = []
    for c in part.classes:
        weights = {d - 1: w for d, w in zip(c.decode_tokens, c.decode_weights, strict=True) if d > 1}
        if weights:
            later = replace(
                c,
                input_tokens=c.input_tokens + 1,
                prompts=tuple(prompt._replace(tokens=prompt.tokens + 1) for prompt in c.prompts),
                decode_tokens=tuple(weights),
                decode_weights=tuple(weights.values()),
                rate_rps=c.rate_rps * sum(weights.values()) / sum(c.decode_weights),
                sessions=None,
                input_law=None,
                decode_law=None,
            )
            classes.append(later)
    if not classes:
        return None
    replica = model.replica
    most = [n for n in (replica.max_num_seqs, replica.max_num_batched_tokens) if n is not None]
    return replace(
        part,
        classes=tuple(classes),
        timing=replace(model.timing, d2=0.0),
        replica=replace(replica, max_num_seqs=min(most, default=None), max_num_batched_tokens=None),
        request_overhead_s=0.0,
        arrivals=model.arrivals.split(replicas),
        fleet=None,
    )


def _goodput(
    first: ServingModel,
    later: ServingModel | None,
    limits: Mapping[str, float],
    transfer_s: float,
    split: SplitFleet,
) -> Goodput:
    """Requests/s of the fleet at which both sides keep their objectives; nothing where there is no closed form.

    That on the first token is kept by prefill replicas, less the mean time of a transfer; that between tokens by decode
    replicas, in whose percentiles the gap after the first token counts as the others do.
    """
    waiting = {key: bound - transfer_s for key, bound in limits.items() if key.startswith("ttft_s")}
    between = {key: bound for key, bound in limits.items() if key.startswith("itl_s")}
    if not limits or len(waiting) + len(between) < len(limits):
        return Goodput()
    if any(bound <= 0 for bound in waiting.values()):
        return Goodput(0.0, at_least_rps=0.0)
    assert split.prefill is not None
    assert split.decode is not None
    parts = [_of_side(first, waiting, split.prefill)]
    if later is not None:  # requests of one token leave before the second
        passed = later.total_rate_rps * split.decode / (first.total_rate_rps * split.prefill)
        parts.append(_of_side(later, between, split.decode / passed))
    least = min(part.at_least_rps or 0.0 for part in parts)
    known = any(part.rate_rps == least for part in parts)  # whatever more the other side could do
    return Goodput(least if known else None, at_least_rps=least)


def _of_side(one: ServingModel, limits: Mapping[str, float], factor: float) -> Goodput:
    """So many times what one replica serves within these objectives."""
    if not limits:
        rate = factor * sustainable_rate(one)[1]
        return Goodput(rate, at_least_rps=rate)
    found = goodput(one, limits)
    rates = (None if rate is None else factor * rate for rate in (found.rate_rps, found.at_least_rps))
    return Goodput(next(rates), at_least_rps=next(rates))
