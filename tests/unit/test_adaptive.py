"""The adaptive policy: as fast as greedy admission while memory is safe, as much as flow control in overload."""

import numpy as np
from small_runs import Case, run

from kvplan.model import FloatArray, Prefill, Replica, Timing
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.requests import Requests

REPLICA = Replica(9_000, prefill=Prefill.DISAGGREGATED)
POLICIES = ("greedy", "flow-unknown", "adaptive")


def outcome(name: str, arrival_s: FloatArray, horizon_s: float | None = None) -> Outcome:
    size = arrival_s.size
    decode = np.random.default_rng(0).choice([20, 40, 60], size)
    requests = Requests(arrival_s, np.full(size, 10), decode, np.zeros(size, dtype=np.int64))
    given = {} if name == "greedy" else {"budget": (6.0,)}
    return run(name, Case(requests, Timing(1.0), REPLICA, given, horizon_s))


def test_a_burst_that_fits_waits_for_no_budget() -> None:
    """Of sixty, six an iteration: the tenth part waits nine iterations, 4.5 in the mean."""
    bursts = np.repeat(np.arange(5) * 100.0, 60)
    greedy, flow, adaptive = (outcome(name, bursts).e2e_s.mean() for name in POLICIES)
    assert adaptive == greedy
    assert flow - greedy == 4.5


def test_overload_is_served_as_by_flow_control() -> None:
    """Six a slot, all done sixty slots later; greedy's cohorts of 20, 40 and 60 stages meet every twentieth slot.

    Then a cycle serves M/E[s·d + d·(d + 20)/2] a slot at most (SIC Proposition 31), 5.19.
    """
    most_of_greedy = 1_000 * 9_000 / np.mean([10 * d + d * (d + 20) / 2 for d in (20, 40, 60)])
    arrivals = np.sort(np.random.default_rng(1).random(10_000) * 1_000)
    found = [outcome(name, arrivals, 1_000.0) for name in POLICIES]
    greedy, flow, adaptive = (int(np.isfinite(each.finish_s).sum()) for each in found)
    assert abs(adaptive - flow) < 0.02 * flow
    assert greedy < most_of_greedy < 6 * (1_000 - 60) < adaptive
    assert found[2].evictions.sum() < 0.02 * found[0].evictions.sum()
