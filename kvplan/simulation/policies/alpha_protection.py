"""Greedy admission below a protected share of memory; an overflow clears all of it (FC 4.1.1)."""

import math
from fractions import Fraction

import numpy as np

from kvplan.errors import UsageError
from kvplan.simulation.actions import admit, advance, blocks_of, evict, overflows, seat_is_free
from kvplan.simulation.initial_state import Setup
from kvplan.simulation.policies.parameters import MOST_RUNNING, most_running
from kvplan.simulation.policies.protocol import SEQUENCES, Policy, Scenario, Settings, one_queue
from kvplan.simulation.state import NOBODY, Counter, List, Request, State, Stuck, group_list, kernel

# Blocks that admissions may fill; then how many were done and how many had ever been admitted once the batch after
# the last overflow was formed.
LIMIT, DONE, ADMITTED = range(3)


@kernel
def form_batch(s: State) -> None:
    """Evict everybody where memory overflows; then admit in order of arrival while it stays below the limit.

    Those who began together after an overflow, and overflow before anybody is done or joins them, will do so forever.
    """
    advance(s, 0)
    cleared = overflows(s)
    if cleared:
        same = s.knobs[DONE] == s.counter[Counter.COMPLETED]
        same = same and s.knobs[ADMITTED] == s.counter[Counter.SEQUENCE]
        why = Stuck.NEVER_FITS if s.counter[Counter.RESIDENT] == 1 else Stuck.AGAIN
        request = s.list[group_list(s, 0), List.TAIL]
        while request != NOBODY:
            evict(s, request)
            request = s.list[group_list(s, 0), List.TAIL]
        s.counter[Counter.STUCK] = why if same else 0
    request = s.list[0, List.HEAD]
    while (
        request != NOBODY
        and seat_is_free(s)
        and s.counter[Counter.HELD] + blocks_of(s, s.request[request, Request.FIRST_WEIGHT]) <= s.knobs[LIMIT]
    ):
        admit(s, request, 0)
        request = s.list[0, List.HEAD]
    if cleared:
        s.knobs[DONE], s.knobs[ADMITTED] = s.counter[Counter.COMPLETED], s.counter[Counter.SEQUENCE]


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """Protect a tenth unless it is set."""
    alpha = settings.number("alpha", 0.1)
    if not 0 <= alpha < 1:
        raise UsageError(f"alpha-protection.alpha = {alpha:g}: a share of memory, from 0 to below 1")
    replica = scenario.model.replica
    # exact, as the decimal that was written
    limit = math.floor((1 - Fraction(repr(alpha))) * replica.memory_tokens / replica.block_tokens)
    knobs = np.array([limit, -1.0, -1.0])
    seats = most_running(scenario, settings)
    setup = one_queue(scenario.requests)._replace(knobs=knobs, seats=seats)
    return setup, {"alpha": alpha, SEQUENCES: seats}


POLICY = Policy(
    name="alpha-protection",
    summary="admit while memory stays below 1 - α; an overflow evicts everybody (FC 4.1.1)",
    prepare=prepare,
    form_batch=form_batch,
    parameters={"alpha": "share of memory kept free at admission; 0.1", **MOST_RUNNING},
    may_livelock=True,
)
