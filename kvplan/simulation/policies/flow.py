"""Flow control: a budget of admissions for each class in each iteration (FC Algorithm 1)."""

import numpy as np

from kvplan.analysis.admission import rate_cap
from kvplan.errors import UsageError
from kvplan.simulation.actions import admit_in_order, advance, evict_until_it_fits
from kvplan.simulation.initial_state import Setup
from kvplan.simulation.policies.parameters import MOST_RUNNING, most_running
from kvplan.simulation.policies.protocol import SEQUENCES, Policy, Scenario, Settings, one_queue
from kvplan.simulation.predictions import predicted
from kvplan.simulation.state import State, kernel


@kernel
def form_batch(s: State) -> None:
    """Run everybody; admit of each queue at most its budget, last admitted first to go where memory lacks.

    So admitted requests are evicted before running ones: an iteration that evicts admits nobody, others as many as fit.
    """
    advance(s, 0)
    if evict_until_it_fits(s):
        return
    for queue in range(s.knobs.shape[0]):
        if not admit_in_order(s, queue, 0, int(s.knobs[queue])):
            return


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """Take the report's `rate_cap.classes[].integer_budget` for budgets unless they are set."""
    budgets = settings.counts("budgets", len(scenario.names), "one for each class")
    if budgets is None:
        budgets = _planned(scenario)
    seats = most_running(scenario, settings)
    return one_queue(scenario.requests)._replace(
        queue_of=predicted(scenario).class_index,
        queues=len(budgets),
        knobs=np.array(budgets, dtype=np.float64),
        seats=seats,
    ), {"budgets": list(budgets), SEQUENCES: seats}


def _planned(scenario: Scenario) -> tuple[int, ...]:
    classes = scenario.model.classes
    if len(scenario.names) != len(classes):
        raise UsageError(
            f"flow: a trace is one class, the profile's budgets are for {len(classes)}; "
            "--set flow.budgets=N gives one"
        )
    planned = [c.integer_budget for c in rate_cap(scenario.model).classes]
    budgets = tuple(b for b in planned if b is not None)
    if len(budgets) < len(planned):
        raise UsageError(
            "flow: no whole budgets above the arrivals of an iteration fit into memory; "
            "--set flow.budgets=... gives some"
        )
    return budgets


POLICY = Policy(
    name="flow",
    summary="at most so many admissions of each class in an iteration (FC Algorithm 1)",
    prepare=prepare,
    form_batch=form_batch,
    parameters={
        "budgets": "one for each class, with commas; rate_cap.classes[].integer_budget",
        **MOST_RUNNING,
    },
)
