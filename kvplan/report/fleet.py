"""Split or together: the block of the report, and in numbers why one serves more."""

import math
from typing import NamedTuple

from kvplan.analysis.fleet import FleetFigures, JoinedFleet, SplitFleet, Winner
from kvplan.analysis.split import COMPUTE, ITL, LINK, Served
from kvplan.report.keys import SCREENS
from kvplan.report.ledger import Ledger
from kvplan.report.wording import sentence
from kvplan.units import format_number, format_rate, format_seconds, format_tokens

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
    return (
        " ".join(
            (
                f"{_serve(split.prefill, 'prefill', found.prefill)}, {_serve(split.decode, 'decode', found.decode)};",
                f"together {_serve(joined.replicas, '', found.both)}{_budget(found)}.",
                _goodputs(found),
                _criterion(found, proved),
                _better(found),
            )
        )
        .replace("  ", " ")
        .strip()
    )


def _serve(replicas: int, kind: str, one: Served) -> str:
    """Say what so many replicas serve, and why not more."""
    named = f"{replicas} {kind + ' ' if kind else ''}replica{'s' * (replicas != 1)}"
    if one.rate_rps == math.inf:
        return f"{named} ha{'s' if replicas == 1 else 've'} nothing to do"
    limit = _BOUND_BY.get(one.binding, one.binding)
    return f"{named} serve{'s' * (replicas == 1)} {format_rate(replicas * one.rate_rps, 'requests')} (limit: {limit})"


def _budget(found: FleetFigures) -> str:
    """Say what evens the iterations of replicas that do both; else prompts make the tail of the gaps."""
    if found.budget_tokens is None:
        return ""
    return f", if max_num_batched_tokens = {format_tokens(found.budget_tokens)} keeps iterations even"


def _goodputs(found: FleetFigures) -> str:
    """Say what objectives leave of that."""
    return sentence(SCREENS["fleet_goodputs"], Ledger({"fleet": found})) or ""


def _criterion(found: FleetFigures, proved: bool) -> str:
    """Say where the winner changes, by rates under a limit on the time between tokens."""
    assert found.prefill is not None
    assert found.split.rate_rps is not None
    assert found.together.rate_rps is not None
    here = "none" if found.itl_limit_s is None else format_seconds(found.itl_limit_s)
    if found.crossing is None:
        more = "the split" if found.split.rate_rps > found.together.rate_rps else "together"
        said = f"By rate {more} serves more whatever the limit on the time between tokens."
    else:
        where = "below" if found.crossing.split_wins_below else "above"
        said = (
            f"By rate the split serves more while the limit on the time between tokens is {where} "
            f"{format_seconds(found.crossing.itl_s)} (here: {here})."
        )
    if not proved:
        return said
    iteration = format_seconds(found.prefill.iteration_time_s)
    which = "its prefill iterations" if found.prefill.binding == LINK else "a full prefill iteration"
    return f"{said} On equal replicas no split does above {iteration}, the time of {which}."


def _better(found: FleetFigures) -> str:
    """Name another split of the same GPUs that serves more."""
    best, split = found.best, found.split
    if best is None or split.rate_rps is None or best.rate_rps <= split.rate_rps * (1 + 1e-9):
        return ""
    return f"{best.prefill} + {best.decode} would serve {format_number(best.rate_rps)}."
