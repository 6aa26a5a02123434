"""Whole requests under a backlog, from states that greedy admission may not recover from (theory §3, "Finite memory").

What the fluid map says of very many requests is confirmed by so many as memory holds: the smallest rate that greedy
admission serves, from a flood and from trains of pulses, is one at which a backlog drains.
"""

import math
from dataclasses import replace

import numpy as np

from kvplan.analysis.equilibrium import saturation
from kvplan.model import Plan, ServingModel
from kvplan.simulation.experiments.load import Arrivals, Load, generate
from kvplan.simulation.experiments.pools import footprint, mean_footprint, served_rps
from kvplan.simulation.experiments.runner import Job, run_to_the_end
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Requests

_STAYS = 30  # of a full memory in the longest stay: so many requests complete
_FEWEST, _MOST = 20_000, 300_000


def confirmed_rate(model: ServingModel, plan: Plan) -> float | None:
    """Smallest rate that greedy admission serves under a backlog, over several starts, requests/s; simulated.

    None where a run could not be ended, because a request never fits.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> model = ServingModel((RequestClass("a", 7, (2,), (1.0,), 0.1),), Timing(1.0), Replica(9))
    >>> confirmed_rate(model, Plan())  # one request at a time, two iterations each
    0.5
    """
    model = replace(model, schedule=None)
    size = math.ceil(_STAYS * saturation(model).admissions_per_iteration * int(model.mix.stages.max()))
    flood = generate(model, Load(Arrivals.SATURATED, min(max(size, _FEWEST), _MOST)), seed=0)
    drawn = [flood, *(_pulses(model, flood, period) for period in _periods(model))]
    names = tuple(c.name for c in model.classes)
    jobs = [Job(Settings("greedy", {}), Scenario(model, plan, requests, names)) for requests in drawn]
    [runs] = run_to_the_end([jobs], None, None)
    if not all(run.finished for run in runs):
        return None
    sizes = footprint(flood.input_tokens, flood.decode_tokens)
    mean = mean_footprint(model)
    return min(served_rps(run, sizes / mean) for run in runs)


def _periods(model: ServingModel) -> list[int]:
    stages = model.mix.stages
    longest = int(stages.max())
    several = {int(stages.min()), round(model.mix.mean(stages)), longest // 2}
    return sorted(period for period in several if 1 < period < longest)


def _pulses(model: ServingModel, flood: Requests, period: int) -> Requests:
    """The same requests, of which a memory's fill comes in pulses at so many iterations, and then all others."""
    full = saturation(model)
    pulse = max(1, round(full.admissions_per_iteration * period))
    last = -(-int(model.mix.stages.max()) // period)
    number = np.minimum(np.arange(flood.arrival_s.size) // pulse, last)
    return replace(flood, arrival_s=number * (period * full.iteration_time_s))
