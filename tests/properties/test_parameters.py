"""Whatever a parameter of a policy is set to, there is a run or an error in one line; and small caps cost no time."""

import math

import numpy as np
import pytest
from every import every

from kvplan.errors import UsageError
from kvplan.model import Plan, Replica, RequestClass, ServingModel, Timing
from kvplan.simulation import engine
from kvplan.simulation.followups import release
from kvplan.simulation.initial_state import new_state
from kvplan.simulation.outcome import Ending, Outcome
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import LARGEST, Scenario, Settings
from kvplan.simulation.policies.rate_limited import cap_knobs, pass_idle
from kvplan.simulation.requests import Requests
from kvplan.simulation.state import Counter

EVERY = [(name, key) for name, policy in POLICIES.items() for key in policy.parameters]
SHARES = (
    "low",
    "high",
    "alpha",
    "watermark",
    "admission",
    "scheduling",
    "assume",
    "prefix_caching",
    "swa_full_tokens_ratio",
)  # 1 at most
RUBBISH = (1e19, 1e308, -1.0, 0.0, math.nan, math.inf, -math.inf)
MODEL = ServingModel((RequestClass("a", 5, (7,), (1.0,), 0.01),), Timing(1.0), Replica(60))
FEW = Requests(np.arange(3.0), np.full(3, 5), np.full(3, 7), np.zeros(3, dtype=np.int64))


def run(name: str, parameters: dict[str, tuple[float, ...]], requests: Requests = FEW) -> Outcome:
    scenario = Scenario(MODEL, Plan(), requests, ("a",))
    setup, _ = POLICIES[name].prepare(scenario, Settings(name, parameters))
    form_batch = POLICIES[name].form_batch
    return engine.run(form_batch, requests, MODEL.timing, MODEL.replica, setup, compile=False)


def needed(name: str, key: str) -> dict[str, tuple[float, ...]]:
    """What has to be set beside a parameter, for a run to be made."""
    if name == "nested-wait":
        return {"boundaries": {"thresholds": (1.0,)}, "thresholds": {"boundaries": (7.0,)}}[key]
    return {"budgets": (4.0,)} if name == "flow" and key != "budgets" else {}


@every(("name", "key"), EVERY)
def test_rubbish_is_refused_in_one_line(name: str, key: str) -> None:
    refused, others = {}, needed(name, key)
    for value in RUBBISH:
        try:
            assert run(name, {**others, key: (value,)}).iterations > 0
        except UsageError as error:
            refused[value] = str(error)
    for value, message in refused.items():
        assert f"{name}.{key} = {value:g}" in message
        assert "\n" not in message
    assert refused.keys() >= {1e19, 1e308, math.inf, -1.0, -math.inf}
    assert any(map(math.isnan, refused))


@every(("name", "key"), [(name, key) for name, key in EVERY if key not in SHARES])
def test_the_largest_that_is_not_refused_runs(name: str, key: str) -> None:
    largest, others = 10**6 if key == "shortest" else LARGEST, needed(name, key)
    outcome = run(name, {**others, key: (float(largest),)})
    # nobody fits whose longest length is that, whoever waits for so many is taken in the end
    hopeless = (name, key) in (("trtllm-no-evict", "max_new"), ("a-min", "shortest"))
    assert outcome.ending is (Ending.LIVELOCK if hopeless else Ending.FINISHED)
    with pytest.raises(UsageError, match=f"at most {largest:,}"):
        run(name, {**others, key: (largest * 1.01,)})


@pytest.mark.parametrize(
    ("name", "key"), [("rate-limited", "beta"), ("sarathi", "cap"), ("flow-unknown", "budget")]
)
def test_a_million_idle_iterations_pass_at_once(name: str, key: str) -> None:
    """Each of fifty requests waits for the one before: 7 iterations, or 8 where the first one computes the prompt."""
    size = 50
    many = Requests(np.zeros(size), np.full(size, 5), np.full(size, 7), np.zeros(size, dtype=np.int64))
    outcome = run(name, {key: (1e-6,)}, many)
    assert outcome.ending is Ending.FINISHED
    assert outcome.iterations == size * 7


@every("cap", [1e-4, 0.07, 0.3, 1 / 3, 0.7, 1.0, 1.7])
@every("first", [0, 1, 2, 5, 12, 999_999, 1_000_000, 10**7 + 3])
def test_the_iteration_waited_for_is_the_one_found_by_counting(cap: float, first: int) -> None:
    setup, _ = POLICIES["greedy"].prepare(Scenario(MODEL, Plan(), FEW, ("a",)), Settings("greedy", {}))
    knobs = np.array(cap_knobs(cap))
    state = new_state(FEW, MODEL.timing, MODEL.replica, setup._replace(knobs=knobs), None)
    state.counter[Counter.ITERATIONS] = first
    release(state)  # somebody waits
    pass_idle(state, 0)
    t = first
    while math.floor((t + 1) * cap) == math.floor(t * cap):
        t += 1
    assert first + state.knobs[1] == t
