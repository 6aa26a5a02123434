"""Greedy admission under a cap per iteration (SIC 5.1)."""

import math

import numpy as np

from kvplan.analysis.equilibrium import saturation
from kvplan.errors import UsageError
from kvplan.simulation.actions import admit_in_order, advance, evict_until_it_fits, fits, kernel
from kvplan.simulation.policies.protocol import Policy, Scenario, Settings, one_queue
from kvplan.simulation.state import FIRST_WEIGHT, HEAD, ITERATIONS, NOBODY, RESIDENT, Setup, State

CAP, SKIPPED = range(2)


@kernel
def form_batch(s: State) -> None:
    """As greedy, but of iterations 0 .. t at most ⌊(t + 1)β⌋ requests are admitted.

    Where nothing runs and only the cap holds a request back, iterations without admissions pass in no time.
    """
    advance(s, 0)
    evict_until_it_fits(s)
    request = s.list[0, HEAD]
    if s.counter[RESIDENT] == 0 and request != NOBODY and fits(s, s.request[request, FIRST_WEIGHT]):
        while allowance(s, CAP) == 0:
            s.knobs[SKIPPED] += 1
    admit_in_order(s, 0, 0, allowance(s, CAP))


@kernel
def allowance(s: State, at: int) -> int:
    """Admissions of this iteration, ⌊(t + 1)β⌋ - ⌊tβ⌋; β is the parameter at `at`, the next one iterations skipped."""
    t, cap = s.counter[ITERATIONS] + s.knobs[at + 1], s.knobs[at]
    return int(math.floor((t + 1) * cap) - math.floor(t * cap))


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """The cap is the report's `rate_cap.per_iteration` unless it is set."""
    cap = settings.number("beta", saturation(scenario.model).admissions_per_iteration)
    if not 1e-6 <= cap < math.inf:
        raise UsageError(f"rate-limited.beta = {cap:g}: admissions per iteration, at least 1e-6")
    return one_queue(scenario.requests)._replace(knobs=np.array([cap, 0.0])), {"beta": cap}


POLICY = Policy(
    "greedy admission under a cap per iteration (SIC 5.1)",
    {"beta": "admissions per iteration; rate_cap.per_iteration"},
    prepare,
    form_batch,
)
