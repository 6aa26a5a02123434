"""Split or together: the block of the report, and in numbers why one serves more."""

import math
from typing import NamedTuple

from kvplan.analysis.fleet import FleetFigures, JoinedFleet, SplitFleet, Winner
from kvplan.analysis.split import COMPUTE, ITL, LINK, Served
from kvplan.report.ledger import Ledger
from kvplan.report.wording import sentences
from kvplan.units import format_rate

_BOUND_BY = {
    "kv_memory": "KV memory",
    ITL: "the time between tokens",
    LINK: "transfers",
    COMPUTE: "computing alone",
}


class FleetBlock(NamedTuple):
    """The keys of the report's `fleet` block."""

    split: SplitFleet
    together: JoinedFleet
    winner: Winner | None
    crossing_itl_s: float | None
    reason: str


def fleet_block(found: FleetFigures | None, *, proved: bool) -> FleetBlock | None:
    """Build the block; `proved`: replicas are equal and their iteration times linear, as the theorem has them."""
    if found is None:
        return None
    crossing = None if found.crossing is None else found.crossing.itl_s
    return FleetBlock(found.split, found.together, found.winner, crossing, _reason(found, proved))


def _reason(found: FleetFigures, proved: bool) -> str:
    if found.uncovered is not None:
        return f"No formula covers {found.uncovered} with prefill and decode apart."
    split, joined = found.split, found.together
    assert found.prefill is not None
    assert found.decode is not None
    assert found.both is not None
    if split.prefill is None or split.decode is None:
        return "There are too few GPUs for a replica of each kind."
    about = {
        "prefill": _serve(split.prefill, "prefill", found.prefill),
        "decode": _serve(split.decode, "decode", found.decode),
        "both": _serve(joined.replicas, "", found.both),
        "proved": proved,
        "by_link": found.prefill.binding == LINK,
        "more_than": (split.rate_rps or 0.0) * (1 + 1e-9),
    }
    return " ".join(sentences("fleet_reason", Ledger({"fleet": found, "about": about})))


def _serve(replicas: int, kind: str, one: Served) -> str:
    """Say what so many replicas serve, and why not more."""
    named = f"{replicas} {kind + ' ' if kind else ''}replica{'s' * (replicas != 1)}"
    if one.rate_rps == math.inf:
        return f"{named} ha{'s' if replicas == 1 else 've'} nothing to do"
    limit = _BOUND_BY.get(one.binding, one.binding)
    return f"{named} serve{'s' * (replicas == 1)} {format_rate(replicas * one.rate_rps, 'requests')} (limit: {limit})"
