"""Terms of formulas and rules without which most tests would still pass, each by another way."""

import numpy as np
import pytest
from strategies import mix_model

from kvplan.analysis.admission import rate_cap
from kvplan.analysis.nested import mean_queues
from kvplan.analysis.stability import stability
from kvplan.analysis.wait import queue_at_start
from kvplan.model import Plan, Timing
from kvplan.simulation import engine
from kvplan.simulation.backlog import Backlog
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import saturated


def lindley(brought: np.ndarray, taken: int) -> float:
    """Mean of Q' = (Q + brought - taken)⁺ over a long run."""
    queue, total = 0, 0
    for more in brought.tolist():
        queue = max(queue + more - taken, 0)
        total += queue
    return total / brought.size


@pytest.mark.parametrize(("arrivals", "threshold"), [(2.7, 3), (9.6, 10)])
def test_kingmans_term_is_that_of_poisson_arrivals(arrivals: float, threshold: int) -> None:
    """It is at least the mean queue of whole batches, and near it where arrivals are nearly as many as are taken."""
    seen = lindley(np.random.default_rng(1).poisson(arrivals, 400_000), threshold)
    bound = queue_at_start(arrivals, threshold, alone=False) - 2 * threshold
    assert 0.95 * seen <= bound <= 1.3 * seen


@pytest.mark.parametrize("p", [0.6, 0.95])
def test_a_segment_waits_by_the_variance_of_who_goes_on(p: float) -> None:
    """A batch of 100 brings Binomial(100, p), and the next takes one more than the mean: n_k + p(1 - p)·100/2."""
    taken = round(100 * p) + 1
    seen = lindley(np.random.default_rng(2).binomial(100, p, 400_000), taken)
    [bound] = mean_queues(np.array([100.0, taken]), np.array([1.0, p]))
    assert 0.95 * seen <= bound - taken <= 1.3 * seen + 1


def test_a_cap_a_second_counts_iterations_of_a_full_memory() -> None:
    """WAIT 6.2: 100,000/2,796 an iteration of 10 ms + 100,000·0.1 us."""
    rates = ((10, 20, 400.0), (10, 40, 300.0), (10, 80, 200.0), (10, 160, 100.0))
    cap = rate_cap(mix_model(*rates, memory=100_000, prefill="inline", timing=Timing(0.01, 1e-7)))
    assert cap.per_second == pytest.approx(100_000 / 2_796 / 0.020)


def test_the_scheduler_before_v1_keeps_its_watermark_free() -> None:
    """Prompts of three blocks in ten: three fit, two beside a watermark of three blocks."""
    model = mix_model((3, 5, 1.0), memory=10, prefill="fused")
    for watermark, prompts in ((0.0, 3), (0.3, 2)):
        run = Backlog(model, Plan(), Settings("vllm-v0", {"watermark": (watermark,)}), [1])
        assert run.on(1).prefill == 3 * prompts


def test_whoever_is_evicted_goes_to_the_front() -> None:
    """Requests of one length that come one after the other are done in order of arrival, evicted or not."""
    model = mix_model((2, 3, 1.0), memory=24)
    requests, policy = saturated(model, np.random.default_rng(0), requests=60), POLICIES["greedy"]
    setup, _ = policy.prepare(Scenario(model, Plan(), requests, ("a",)), Settings("greedy", {}))
    run = engine.run(policy.form_batch, requests, model.timing, model.replica, setup, compile=False)
    assert run.evictions.sum() > 10
    assert (np.diff(run.finish_s) >= 0).all()


def test_a_wide_spread_of_lengths_need_not_be_stable() -> None:
    """Lengths 1 and 100, half each: roots of Σ W_k·z^(99 - k), W_0 = 10,001 and W_k = (10,001 + k)/2."""
    weights = [10_001.0, *((10_001.0 + k) / 2 for k in range(1, 100))]
    radius = np.abs(np.roots(weights)).max()
    found = stability(mix_model((10_000, (1, 100), 1.0), memory=10**8))
    assert radius > 1.00006
    assert found.spectral_radius == pytest.approx(radius, abs=1e-9)
    assert not found.stable
    assert stability(mix_model((100, 1, 1.0), memory=10**5)).stable
