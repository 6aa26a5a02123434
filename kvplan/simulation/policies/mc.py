"""Admission that looks ahead: first come first served while memory suffices to everybody's end (FC 4.1.1)."""

import numpy as np

from kvplan.errors import UsageError
from kvplan.model import Prefill
from kvplan.simulation.actions import admit, advance, last_admitted, overflows
from kvplan.simulation.forecast import begin_tick, end_tick, expect, fits_to_the_end, give_up
from kvplan.simulation.initial_state import Setup, stage_weights
from kvplan.simulation.policies.parameters import MOST_RUNNING, most_running
from kvplan.simulation.policies.protocol import SEQUENCES, Policy, Scenario, Settings, one_queue
from kvplan.simulation.predictions import predicted
from kvplan.simulation.state import NOBODY, List, State, kernel

EXACT, MAX = range(2)
ASSUME = ("exact", "max")


@kernel
def form_batch(s: State) -> None:
    """Run everybody; admit in order of arrival while nobody is expected to overflow memory.

    If predictions were too short, evict the last admitted.
    """
    advance(s, 0)
    begin_tick(s)
    while overflows(s):
        give_up(s, last_admitted(s))
    request = s.list[0, List.HEAD]
    while request != NOBODY and fits_to_the_end(s, request):
        admit(s, request, 0)
        expect(s, request, 1)
        request = s.list[0, List.HEAD]
    end_tick(s)


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """Know decode lengths, as predicted, or take all for the longest of all classes."""
    requests = scenario.requests
    assume = settings.number("assume", EXACT)
    if assume not in (EXACT, MAX):
        raise UsageError(f"mc.assume = {assume:g}: {EXACT} (exact) or {MAX} (max)")
    _, stages = stage_weights(predicted(scenario), scenario.model.replica.prefill)
    if assume == MAX:
        inline = scenario.model.replica.prefill is Prefill.INLINE
        stages = np.full_like(stages, longest_possible(scenario) + inline)
    seats = most_running(scenario, settings)
    setup = one_queue(requests)._replace(expected=stages, seats=seats)
    return setup, {"assume": ASSUME[int(assume)], SEQUENCES: seats}


def longest_possible(scenario: Scenario) -> int:
    """Find the longest decode length of the requests, and of the profile's classes where they are theirs."""
    declared = {c.name: c.decode_tokens[-1] for c in scenario.model.classes}  # a trace is none of them
    longest = int(scenario.requests.decode_tokens.max(initial=1))
    return max(longest, *(declared.get(name, 1) for name in scenario.names))


POLICY = Policy(
    name="mc",
    summary="first come first served while the memory of all residents suffices to their ends (FC 4.1.1)",
    prepare=prepare,
    form_batch=form_batch,
    parameters={
        "assume": "exact: decode lengths are known; max: all are taken for the longest; exact",
        **MOST_RUNNING,
    },
    words={"assume": ASSUME},
    knows_lengths=True,
    evicts=False,
)
