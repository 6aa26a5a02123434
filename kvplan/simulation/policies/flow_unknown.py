"""Flow control where classes are not known: one budget of admissions in each iteration (FC Algorithm 2).

A budget that is not whole is a mean: iteration t admits at most ⌊(t + 1)b⌋ - ⌊tb⌋. FC draws B_t at random instead,
independently with mean b.
"""

import math

import numpy as np

from kvplan.analysis.equilibrium import saturation
from kvplan.errors import UsageError
from kvplan.simulation.actions import admit_in_order, advance, evict_until_it_fits
from kvplan.simulation.initial_state import Setup
from kvplan.simulation.policies.parameters import MOST_RUNNING, most_running
from kvplan.simulation.policies.protocol import SEQUENCES, Policy, Scenario, Settings, one_queue
from kvplan.simulation.policies.rate_limited import LEAST, allowance, cap_knobs, pass_idle
from kvplan.simulation.state import State, kernel

BUDGET = 0  # and after it the iterations skipped


@kernel
def form_batch(s: State) -> None:
    """Admit as `flow` does with one queue; an iteration that evicts admits nobody."""
    advance(s, 0)
    if evict_until_it_fits(s):
        return
    pass_idle(s, BUDGET)
    admit_in_order(s, 0, 0, allowance(s, BUDGET))


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """Take the report's `rate_cap.per_iteration`, rounded down, but at least 1, unless a budget is set."""
    planned = max(1, math.floor(saturation(scenario.model).admissions_per_iteration))
    budget = settings.number("budget", planned)
    if budget < LEAST:
        raise UsageError(f"{settings.policy}.budget = {budget:g}: admissions per iteration, at least 1e-6")
    seats = most_running(scenario, settings)
    setup = one_queue(scenario.requests)._replace(knobs=np.array(cap_knobs(budget)), seats=seats)
    return setup, {"budget": int(budget) if budget == int(budget) else budget, SEQUENCES: seats}


POLICY = Policy(
    name="flow-unknown",
    summary="at most so many admissions in an iteration; evict last admitted first (FC Algorithm 2)",
    prepare=prepare,
    form_batch=form_batch,
    parameters={
        "budget": "admissions per iteration, or their mean; rate_cap.per_iteration, rounded down",
        **MOST_RUNNING,
    },
)
