"""Flow control where classes are not known: one budget of admissions in each iteration (FC Algorithm 2)."""

import math

import numpy as np

from kvplan.analysis.equilibrium import saturation
from kvplan.simulation.policies.flow import form_batch
from kvplan.simulation.policies.protocol import Policy, Scenario, Settings, one_queue
from kvplan.simulation.state import Setup


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """The budget is the report's `rate_cap.per_iteration`, rounded down, but at least 1, unless it is set."""
    given = settings.counts("budget", 1, "admissions per iteration")
    if given is None:
        given = (max(1, math.floor(saturation(scenario.model).admissions_per_iteration)),)
    setup = one_queue(scenario.requests)._replace(knobs=np.array(given, dtype=np.float64))
    return setup, {"budget": given[0]}


POLICY = Policy(
    "at most so many admissions in an iteration; evict last admitted first (FC Algorithm 2)",
    {"budget": "admissions per iteration; rate_cap.per_iteration, rounded down"},
    prepare,
    form_batch,
)
