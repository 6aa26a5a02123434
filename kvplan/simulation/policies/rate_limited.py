"""Greedy admission under a cap per iteration (SIC 5.1)."""

import math

import numpy as np

from kvplan.analysis.equilibrium import saturation
from kvplan.errors import UsageError
from kvplan.simulation.actions import admit_in_order, advance, evict_until_it_fits, kernel
from kvplan.simulation.policies.protocol import Policy, Scenario, Settings, one_queue
from kvplan.simulation.state import ITERATIONS, Setup, State

CAP = 0


@kernel
def form_batch(s: State) -> None:
    """As greedy, but of iterations 0 .. t at most ⌊(t + 1)β⌋ requests are admitted."""
    advance(s, 0)
    evict_until_it_fits(s)
    t, cap = s.counter[ITERATIONS], s.knobs[CAP]
    admit_in_order(s, 0, 0, int(math.floor((t + 1) * cap) - math.floor(t * cap)))


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """The cap is the report's `rate_cap.per_iteration` unless it is set."""
    cap = settings.number("beta", saturation(scenario.model).admissions_per_iteration)
    if not cap > 0:
        raise UsageError(f"rate-limited.beta = {cap:g}: admissions per iteration, above 0")
    return one_queue(scenario.requests)._replace(knobs=np.array([cap])), {"beta": cap}


POLICY = Policy(
    "greedy admission under a cap per iteration (SIC 5.1)",
    {"beta": "admissions per iteration; rate_cap.per_iteration"},
    prepare,
    form_batch,
)
