"""Greedy while memory is safe, flow control while it is not (FC 5 names the idea; levels and hysteresis are new)."""

import numpy as np

from kvplan.errors import UsageError
from kvplan.simulation.actions import admit_in_order, advance, evict_until_it_fits
from kvplan.simulation.initial_state import Setup
from kvplan.simulation.policies import flow_unknown
from kvplan.simulation.policies.parameters import MOST_RUNNING
from kvplan.simulation.policies.protocol import Policy, Scenario, Settings
from kvplan.simulation.policies.rate_limited import allowance, pass_idle
from kvplan.simulation.state import Counter, State, kernel

BUDGET = 0  # and after it the iterations skipped; then both levels, in blocks, and whether the budget holds
LOW, HIGH, HELD_BACK = 2, 3, 4


@kernel
def form_batch(s: State) -> None:
    """Admit in order until what is held reaches the high level, then as `flow-unknown` until it is at the low one."""
    advance(s, 0)
    if s.counter[Counter.HELD] >= s.knobs[HIGH]:
        s.knobs[HELD_BACK] = 1.0
    if s.counter[Counter.HELD] <= s.knobs[LOW]:
        s.knobs[HELD_BACK] = 0.0
    if evict_until_it_fits(s):
        return
    if s.knobs[HELD_BACK] > 0:
        pass_idle(s, BUDGET)
        admit_in_order(s, 0, 0, allowance(s, BUDGET))
        return
    while s.counter[Counter.HELD] < s.knobs[HIGH] and s.counter[Counter.WAITING] > 0:
        if not admit_in_order(s, 0, 0, 1):
            return


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """Take the budget of `flow-unknown`, and levels of usage."""
    low, high = settings.number("low", 0.2), settings.number("high", 0.3)
    if not 0 <= low < high <= 1:
        raise UsageError(
            f"adaptive.low = {low:g}, adaptive.high = {high:g}: shares of memory, low below high"
        )
    setup, parameters = flow_unknown.prepare(scenario, settings)
    replica = scenario.model.replica
    blocks = replica.memory_tokens // replica.block_tokens
    knobs = np.append(setup.knobs, [low * blocks, high * blocks, 0.0])
    return setup._replace(knobs=knobs), {"low": low, "high": high, **parameters}


POLICY = Policy(
    name="adaptive",
    summary="greedy while little memory is held, then at most so many admissions in an iteration (FC 5)",
    prepare=prepare,
    form_batch=form_batch,
    parameters={
        "budget": "admissions per iteration while memory is not safe; rate_cap.per_iteration, rounded down",
        "low": "share of memory held at which admission is greedy again; 0.2",
        "high": "share of memory held from which the budget holds; 0.3",
        **MOST_RUNNING,
    },
)
