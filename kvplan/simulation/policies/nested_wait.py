"""Nested WAIT: segments of decode length, each with a threshold, for unknown lengths (WAIT-s Algorithm 2)."""

from itertools import pairwise

import numpy as np

from kvplan.analysis.nested import nested_wait
from kvplan.errors import UsageError
from kvplan.model import Prefill
from kvplan.simulation.actions import admit_in_order, advance, batch_is_empty, evict_until_it_fits, move_on
from kvplan.simulation.followups import more_to_come
from kvplan.simulation.initial_state import Setup
from kvplan.simulation.policies.protocol import Policy, Scenario, Settings, one_queue
from kvplan.simulation.state import NOBODY, List, State, kernel, parked_list


@kernel
def form_batch(s: State) -> None:
    """Run segments 1 .. k, k the largest with all of them at threshold; each takes as many from those who wait.

    When nothing runs and nothing else is to come, all segments run with those there.
    """
    segments, k = s.group.shape[0], 0
    while k < segments and waiting(s, k) >= s.knobs[k]:
        k += 1
    run_segments(s, k)
    if batch_is_empty(s) and not more_to_come(s):
        run_segments(s, segments)


@kernel
def run_segments(s: State, k: int) -> None:
    """Move the members of the first k segments on, and as many as the thresholds say into each."""
    for segment in range(k):
        advance(s, segment)
    for segment in range(1, k):
        for _ in range(int(s.knobs[segment])):
            request = s.list[parked_list(s, segment - 1), List.HEAD]
            if request == NOBODY:
                break
            move_on(s, request, segment)
    if not evict_until_it_fits(s) and k > 0:
        admit_in_order(s, 0, 0, int(s.knobs[0]))


@kernel
def waiting(s: State, segment: int) -> int:
    """Count the requests that wait at the start of a segment."""
    return int(s.list[0 if segment == 0 else parked_list(s, segment - 1), List.LENGTH])


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """Take boundaries and thresholds of the plan, unless they are set."""
    boundaries, thresholds = _segments(scenario, settings)
    inline = scenario.model.replica.prefill is Prefill.INLINE
    setup = one_queue(scenario.requests)
    until = np.append(np.array(boundaries[:-1], dtype=np.int64) + inline, setup.until)
    return setup._replace(until=until, knobs=np.array(thresholds, dtype=np.float64)), {
        "boundaries": list(boundaries),
        "thresholds": list(thresholds),
    }


def _segments(scenario: Scenario, settings: Settings) -> tuple[tuple[int, ...], tuple[int, ...]]:
    given = settings.numbers("boundaries")
    if (given is None) is not (settings.numbers("thresholds") is None):
        raise UsageError("nested-wait: boundaries and thresholds belong together; set both or neither")
    if given is not None:
        boundaries = settings.counts("boundaries", len(given), "the decode lengths that end the segments")
        assert boundaries is not None
        if any(a >= b for a, b in pairwise(boundaries)):
            raise UsageError("nested-wait.boundaries: ascending decode lengths are wanted")
        thresholds = settings.counts("thresholds", len(given), "one for each boundary")
        assert thresholds is not None
        return boundaries, thresholds
    plan = scenario.plan
    nested = nested_wait(scenario.model, delta=plan.delta, horizon_s=plan.horizon_s, segments=plan.segments)
    if not nested.feasible:
        raise UsageError("nested-wait: no thresholds keep up with this load; set boundaries and thresholds")
    return tuple(s.upto_decode for s in nested.segments), tuple(s.threshold for s in nested.segments)


POLICY = Policy(
    name="nested-wait",
    summary="segments of decode length run once their thresholds are met; lengths unknown (WAIT-s Algorithm 2)",
    prepare=prepare,
    form_batch=form_batch,
    parameters={
        "boundaries": "decode lengths that end the segments, with commas; those of the plan",
        "thresholds": "one for each segment, with commas; those of the plan",
    },
    gathers=True,
)
