"""Admission that looks ahead, shortest decode length first (FC 4.1.1)."""

import numpy as np

from kvplan.simulation.actions import admit, advance, last_admitted, overflows
from kvplan.simulation.forecast import begin_tick, end_tick, expect, fits_to_the_end, give_up
from kvplan.simulation.initial_state import Setup, stage_weights
from kvplan.simulation.policies.parameters import MOST_RUNNING, most_running
from kvplan.simulation.policies.protocol import SEQUENCES, Policy, Scenario, Settings, one_queue
from kvplan.simulation.predictions import predicted
from kvplan.simulation.queues import count, lowest
from kvplan.simulation.state import NOBODY, List, Request, State, kernel


@kernel
def form_batch(s: State) -> None:
    """Run everybody; admit the shortest, and of equals the first, while nobody is expected to overflow memory.

    If predictions were too short, evict the last admitted.
    """
    advance(s, 0)
    begin_tick(s)
    while overflows(s):
        request = last_admitted(s)
        give_up(s, request)
        count(s, s.request[request, Request.QUEUE], 1)
    queue = lowest(s)
    while queue != NOBODY and fits_to_the_end(s, s.list[queue, List.HEAD]):
        request = s.list[queue, List.HEAD]
        admit(s, request, 0)
        expect(s, request, 1)
        count(s, queue, -1)
        queue = lowest(s)
    end_tick(s)


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """Make a queue for each decode length."""
    _, stages = stage_weights(predicted(scenario), scenario.model.replica.prefill)
    lengths, queue_of = np.unique(stages, return_inverse=True)
    queues, seats = max(lengths.size, 1), most_running(scenario, settings)
    return one_queue(scenario.requests)._replace(
        queue_of=queue_of, queues=queues, ranks=queues, expected=stages, counts_queues=True, seats=seats
    ), {SEQUENCES: seats}


POLICY = Policy(
    name="mc-sf",
    summary="shortest decode length first while the memory of all residents suffices to their ends (FC 4.1.1)",
    prepare=prepare,
    form_batch=form_batch,
    parameters=MOST_RUNNING,
    knows_lengths=True,
    evicts=False,
)
