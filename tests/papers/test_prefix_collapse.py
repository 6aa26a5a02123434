"""Agents on one replica (theory §8): served from the cache, collapsed after a burst, and brought back."""

import numpy as np
import pytest
from strategies import one_class

from kvplan.model import Plan, Replica, ServingModel, Timing
from kvplan.model.gaps import Lognormal
from kvplan.model.lengths import Lengths
from kvplan.model.sessions import Sessions
from kvplan.simulation import engine
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Requests
from kvplan.simulation.sessions import Burst, stream_of_sessions

AGENT = Sessions(
    first=Lengths.uniform(4000, 12_000),
    user=Lengths.uniform(300, 1500),
    decode=Lengths.uniform(40, 200),
    turns=Lengths.uniform(8, 24),
    think=Lognormal(10.0, 1.0),
)
TIMING, REPLICA = Timing(0.015, d1=5e-9, d2=4e-6, d3=1e-6), Replica(4_000_000, block_tokens=16)
SETTLED_S, END_S = 1500.0, 6000.0


def served(burst: int, settings: dict[str, tuple[float, ...]], seed: int) -> tuple[Requests, Outcome]:
    rng = np.random.default_rng(seed)
    requests = stream_of_sessions([AGENT], [0.834], rng, requests=None, horizon_s=END_S, burst=Burst(burst))
    model, policy = ServingModel((one_class(1, 1),), TIMING, REPLICA), POLICIES["vllm"]
    scenario = Scenario(model, Plan(), requests, ("agent",))
    setup, _ = policy.prepare(scenario, Settings("vllm", {"prefix_caching": (1.0,)} | settings))
    outcome = engine.run(policy.form_batch, requests, TIMING, REPLICA, setup, horizon_s=END_S, compile=True)
    return requests, outcome


def hit_rate(requests: Requests, outcome: Outcome) -> float:
    """Of prompt tokens, once settled."""
    assert outcome.found is not None
    late = (outcome.arrival_s > SETTLED_S) & ~np.isnan(outcome.first_token_s)
    return float(outcome.found.hit_tokens[late].sum() / requests.input_tokens[late].sum())


def usage(outcome: Outcome) -> float:
    """Mean KV held over time, once settled, as a share."""
    late = outcome.series.time_s > SETTLED_S
    busy_s = np.diff(outcome.series.busy_s, prepend=0.0)[late]
    return float(np.average(outcome.series.kv_tokens[late], weights=busy_s)) / REPLICA.memory_tokens


@pytest.mark.nightly
def test_from_empty_agents_are_served_from_the_cache() -> None:
    rates, uses = [], []
    for seed in range(6):
        requests, outcome = served(0, {}, seed)
        rates.append(hit_rate(requests, outcome))
        uses.append(usage(outcome))
        assert outcome.series.waiting[-1] < 5
    assert np.mean(rates) == pytest.approx(0.822, abs=0.015)
    assert np.mean(uses) == pytest.approx(0.14, abs=0.01)


def test_a_burst_of_sessions_empties_the_cache_for_good() -> None:
    requests, outcome = served(600, {}, 0)
    assert hit_rate(requests, outcome) < 0.005
    assert usage(outcome) > 0.98
    late = outcome.series.time_s > SETTLED_S
    assert outcome.series.waiting[late][-1] > outcome.series.waiting[late][0] + 50
    done = np.count_nonzero(outcome.finish_s > SETTLED_S) / (END_S - SETTLED_S)
    assert done == pytest.approx(12.06, rel=0.03)  # the guaranteed rate


def test_a_cap_with_shedding_brings_the_cache_back() -> None:
    requests, outcome = served(600, {"max_num_seqs": (117.0,), "shed_after": (5.0,)}, 0)
    assert hit_rate(requests, outcome) == pytest.approx(0.822, abs=0.03)
    assert usage(outcome) == pytest.approx(0.14, abs=0.02)
    assert outcome.shed is not None
    assert 300 < np.count_nonzero(outcome.shed) < 1000
    assert outcome.series.waiting[-1] < 5


@pytest.mark.parametrize(
    "settings", [{"max_num_seqs": (117.0,)}, {"shed_after": (5.0,)}], ids=["cap", "shedding"]
)
def test_neither_alone_does(settings: dict[str, tuple[float, ...]]) -> None:
    requests, outcome = served(600, settings, 0)
    assert hit_rate(requests, outcome) < 0.3
