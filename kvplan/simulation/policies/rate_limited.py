"""Greedy admission under a cap per iteration (SIC 5.1)."""

import math

import numpy as np

from kvplan.analysis.equilibrium import saturation
from kvplan.errors import UsageError
from kvplan.simulation.actions import admit_in_order, advance, evict_until_it_fits, fits
from kvplan.simulation.initial_state import Setup
from kvplan.simulation.policies.parameters import MOST_RUNNING, most_running
from kvplan.simulation.policies.protocol import SEQUENCES, Policy, Scenario, Settings, one_queue
from kvplan.simulation.state import NOBODY, Counter, List, State, kernel, sequence

CAP = 0  # and after it the iterations skipped
LEAST = 1e-6  # admissions per iteration
_ALL = float(1 << 30)  # in an iteration: there are never so many requests


@kernel
def form_batch(s: State) -> None:
    """Admit as greedy does, but of iterations 0 .. t at most ⌊(t + 1)β⌋ requests."""
    advance(s, 0)
    evict_until_it_fits(s)
    pass_idle(s, CAP)
    admit_in_order(s, 0, 0, allowance(s, CAP))


@kernel
def allowance(s: State, at: int) -> int:
    """Count this iteration's admissions, ⌊(t + 1)β⌋ - ⌊tβ⌋; β is the parameter at `at`, then iterations skipped."""
    t, cap = s.counter[Counter.ITERATIONS] + s.knobs[at + 1], s.knobs[at]
    return int(math.floor((t + 1) * cap) - math.floor(t * cap))


@kernel
def pass_idle(s: State, at: int) -> None:
    """Skip iterations without admissions, where nothing runs and only the cap holds the next request back.

    On to the next t with ⌊(t + 1)β⌋ > ⌊tβ⌋; knobs as for `allowance`.
    """
    request = s.list[0, List.HEAD]
    if s.counter[Counter.RESIDENT] > 0 or request == NOBODY or not fits(s, sequence(s, request)):
        return
    t, cap = s.counter[Counter.ITERATIONS] + s.knobs[at + 1], s.knobs[at]
    due = math.floor(t * cap) + 1
    following = math.ceil(due / cap)  # t + 1, but for rounding
    while math.floor(following * cap) < due:
        following += 1
    while following > t + 1 and math.floor((following - 1) * cap) >= due:
        following -= 1
    s.knobs[at + 1] += following - 1 - t


def cap_knobs(cap: float) -> list[float]:
    """Return the knobs of `allowance`; a cap that never binds is lowered, so that its multiples stay whole."""
    return [min(cap, _ALL), 0.0]


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """Take the report's `rate_cap.per_iteration` for the cap unless it is set."""
    cap = settings.number("beta", saturation(scenario.model).admissions_per_iteration)
    if not LEAST <= cap < math.inf:
        raise UsageError(f"rate-limited.beta = {cap:g}: admissions per iteration, at least 1e-6")
    seats = most_running(scenario, settings)
    setup = one_queue(scenario.requests)._replace(knobs=np.array(cap_knobs(cap)), seats=seats)
    return setup, {"beta": cap, SEQUENCES: seats}


POLICY = Policy(
    name="rate-limited",
    summary="greedy admission under a cap per iteration (SIC 5.1)",
    prepare=prepare,
    form_batch=form_batch,
    parameters={"beta": "admissions per iteration; rate_cap.per_iteration", **MOST_RUNNING},
    layers=True,
    drafts=True,
)
