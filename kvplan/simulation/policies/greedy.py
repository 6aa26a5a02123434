"""Greedy admission: whatever fits now (SIC 2.2)."""

from kvplan.simulation.actions import admit_in_order, advance, evict_until_it_fits
from kvplan.simulation.initial_state import Setup
from kvplan.simulation.policies.parameters import MOST_RUNNING, most_running
from kvplan.simulation.policies.protocol import SEQUENCES, Policy, Scenario, Settings, one_queue
from kvplan.simulation.state import Counter, State, kernel


@kernel
def form_batch(s: State) -> None:
    """Evict what no longer fits, least progressed first, then admit in order of arrival while the next one fits."""
    advance(s, 0)
    evict_until_it_fits(s)
    admit_in_order(s, 0, 0, s.counter[Counter.WAITING])


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """Take the engine's limit from the profile; absent, as many run as fit."""
    seats = most_running(scenario, settings)
    return one_queue(scenario.requests)._replace(seats=seats, coasts=True), {SEQUENCES: seats}


POLICY = Policy(
    name="greedy",
    summary="admit whatever fits now; evict least progressed first (SIC 2.2)",
    prepare=prepare,
    form_batch=form_batch,
    parameters=MOST_RUNNING,
    layers=True,
    drafts=True,
)
