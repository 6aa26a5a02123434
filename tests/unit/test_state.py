"""The state of a run: setting it up can be stopped, and what it holds is bounded and shared."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kvplan.model import Plan, Replica, RequestClass, ServingModel, Timing
from kvplan.model.kv_layout import Attention, KvLayout, Layers
from kvplan.simulation.experiments.runner import Job
from kvplan.simulation.initial_state import NotBegunError, _lookup, new_state
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Requests
from kvplan.simulation.state import State

LAYOUT = KvLayout((Layers(Attention.WINDOW, 2, 8, 40), Layers(Attention.FULL, 1, 8)), 4)


def job(lengths: list[int], policy: str = "sglang", replica: Replica | None = None) -> Job:
    """Of requests that all come at the start."""
    decode = np.array(lengths)
    nothing = np.zeros(decode.size, dtype=np.int64)
    requests = Requests(nothing.astype(np.float64), nothing + 4, decode, nothing)
    classes = (RequestClass("a", 4, (1,), (1.0,), 1.0),)
    model = ServingModel(classes, Timing(1.0), replica or Replica(10**6))
    return Job(
        Settings(policy, {"prefix_caching": (1.0,)} if policy == "sglang" else {}),
        Scenario(model, Plan(), requests, ("a",)),
    )


def test_who_stops_a_run_while_its_requests_are_set_up_does_not_wait_for_them() -> None:
    def stopped(completed: int) -> bool:
        asked.append(completed)
        return False

    asked: list[int] = []
    with pytest.raises(NotBegunError):
        job([3] * 100_000).run(stopped, None)
    assert asked == [0]


def test_what_tokens_take_of_layers_is_looked_up_once_for_many_runs() -> None:
    """And says of any context what the layers themselves say."""
    replica = Replica(400_000, 4, layout=LAYOUT)

    def state_of(longest: int) -> State:
        one = job([1, longest], "vllm", replica)
        model = one.scenario.model
        return new_state(one.scenario.requests, model.timing, replica, one.prepare()[0], None)

    _lookup.cache_clear()
    with ThreadPoolExecutor(8) as pool:  # begun at once, they do not each make their own
        short, *_, long = pool.map(state_of, [30, *[2_000] * 30, 3_000])
    assert _lookup.cache_info().misses == 1
    assert short.blocks is long.blocks
    begin, end = np.sort(np.random.default_rng(0).integers(0, 3_000, (2, 500)), axis=0)
    held = short.blocks[end, 0] - short.blocks[begin, 1]
    np.testing.assert_array_equal(held * 4, LAYOUT.pool_tokens(begin, end))
