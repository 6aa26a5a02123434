"""Admission that looks ahead with lower bounds of decode lengths, raised where they prove too low (FC 4.1.1)."""

import numpy as np

from kvplan.model import Prefill
from kvplan.simulation.actions import admit, advance, due_slot, overflows
from kvplan.simulation.forecast import begin_tick, end_tick, expect, fits_to_the_end, give_up
from kvplan.simulation.initial_state import Setup
from kvplan.simulation.policies.parameters import MOST_RUNNING, most_running
from kvplan.simulation.policies.protocol import SEQUENCES, Policy, Scenario, Settings, one_queue
from kvplan.simulation.predictions import predicted, predicts
from kvplan.simulation.queues import last_of, lowest, pile, unpile
from kvplan.simulation.state import NOBODY, Group, List, Request, State, kernel

LONGEST = 10**6  # stages that can be looked ahead; each takes memory


@kernel
def form_batch(s: State) -> None:
    """Run everybody; where memory lacks evict those expected to be shortest, of equals the last admitted first.

    Then admit in order of arrival while nobody is expected to overflow memory.
    """
    advance(s, 0)
    begin_tick(s)
    while overflows(s):
        request = last_of(s, lowest(s))
        unpile(s, s.request[request, Request.EXPECTED], request)
        give_up(s, request)
    request = s.list[0, List.HEAD]
    while request != NOBODY and fits_to_the_end(s, request):
        admit(s, request, 0)
        expect(s, request, 1)
        pile(s, s.request[request, Request.EXPECTED], request)
        request = s.list[0, List.HEAD]
    end_tick(s)
    request = s.ring[due_slot(s, 0, s.group[0, Group.TICK])]
    while request != NOBODY:
        unpile(s, s.request[request, Request.EXPECTED], request)
        request = s.request[request, Request.DUE_AFTER]


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """Expect the shortest length of all classes, or the predicted one, of every request until it is evicted."""
    given = settings.counts("shortest", 1, "the shortest decode length", LONGEST)
    shortest = shortest_possible(scenario) if given is None else given[0]
    requests = scenario.requests
    inline = scenario.model.replica.prefill is Prefill.INLINE
    expected = np.full(requests.decode_tokens.size, shortest + inline, dtype=np.int64)
    if given is None and predicts(scenario):
        expected = predicted(scenario).decode_tokens + inline
    longest = max(int(requests.decode_tokens.max(initial=1)) + inline, int(expected.max(initial=0)))
    seats = most_running(scenario, settings)
    setup = one_queue(requests)._replace(expected=expected, ranks=longest + 1, seats=seats)
    return setup, {"shortest": shortest, SEQUENCES: seats}


def shortest_possible(scenario: Scenario) -> int:
    """Find the shortest decode length of the requests, and of the profile's classes where they are theirs."""
    declared = [c.decode_tokens[0] for c in scenario.model.classes if c.name in scenario.names]
    return min([*declared, *scenario.requests.decode_tokens.tolist()], default=1)


POLICY = Policy(
    name="a-min",
    summary="admit while memory suffices for lower bounds of decode lengths; evict the shortest bound first (FC 4.1.1)",
    prepare=prepare,
    form_batch=form_batch,
    parameters={
        "shortest": "decode length that all are taken for at first; as predicted, or the shortest of all classes",
        **MOST_RUNNING,
    },
)
