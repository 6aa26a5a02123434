"""What is in the plot of a fleet: what split and together serve, against the limit on the time between tokens."""

from dataclasses import dataclass

import numpy as np

from kvplan.analysis.split import served, sides, split_rps, together_rps, unrounded_rps
from kvplan.model import FloatArray, ServingModel
from kvplan.report.fleet import FleetBlock

_POINTS = 160
_NEAREST = 1.02  # times the fixed time of an iteration
_AROUND = 2.0  # times the limits that are named


@dataclass(frozen=True)
class FleetRates:
    """Requests/s of as many GPUs, by formula.

    Attributes
    ----------
    itl_s, split_rps, together_rps, parts_rps : ndarray, shape (n_points,)
        Limit, ascending; and what the split, replicas that do both, and a split into parts of replicas serve.
    split, together
        How they are called.
    crossing_itl_s, own_itl_s
        Where the winner changes, and the limit of the profile; None where there is none.
    iteration_s
        Of a saturated prefill replica: beyond, no split serves more.
    """

    itl_s: FloatArray
    split_rps: FloatArray
    together_rps: FloatArray
    parts_rps: FloatArray
    split: str
    together: str
    crossing_itl_s: float | None
    own_itl_s: float | None
    iteration_s: float


def fleet_rates(model: ServingModel, block: FleetBlock, own_itl_s: float | None) -> FleetRates | None:
    """The plot of a fleet with this block in its report; None where there is no split."""
    prefill, decode, gpus = block.split.prefill, block.split.decode, block.together.gpus
    if model.fleet is None or prefill is None or decode is None or block.winner is None:
        return None
    found = sides(model, model.fleet)
    iteration = served(found.prefill).iteration_time_s
    named = [limit for limit in (iteration, block.crossing_itl_s, own_itl_s) if limit is not None]
    itl = np.geomspace(_NEAREST * model.timing.d0, _AROUND * max(named), _POINTS)
    limits = itl.tolist()
    return FleetRates(
        itl_s=itl,
        split_rps=np.array([split_rps(found, prefill, decode, limit) for limit in limits]),
        together_rps=np.array([together_rps(found, gpus, limit) for limit in limits]),
        parts_rps=np.array([unrounded_rps(found, gpus, limit) for limit in limits]),
        split=f"{prefill} + {decode} apart",
        together=f"{block.together.replicas} together",
        crossing_itl_s=block.crossing_itl_s,
        own_itl_s=own_itl_s,
        iteration_s=iteration,
    )
