"""Requests served by priority, against a model of vLLM's scheduler that is written request by request."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import slow_priority
from hypothesis import given
from hypothesis import strategies as st
from small_runs import bytes_of
from strategies import one_class
from tiers import examples

from kvplan.engine import Engine, Scheduling
from kvplan.model import Plan, Replica, ServingModel, Timing
from kvplan.simulation import engine
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.policies import POLICIES, vllm
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Requests

TIMING = Timing(1.0, 0.01, 0.02, 0.125)
NAMES, PRIORITIES = ("chat", "tools", "batch"), (-1, 0, 5)
ROW = st.tuples(
    st.integers(1, 12), st.integers(1, 12), st.integers(0, 2), st.sampled_from([0.0, 0.3, 1.0, 4.0])
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Requests, Replica]:
    """Requests that all fit alone, on memory that is too little for a few of them together."""
    rows = draw(st.lists(ROW, min_size=6, max_size=24))
    inputs, decode, kinds, gaps = (np.array(column) for column in zip(*rows, strict=True))
    block = draw(st.integers(1, 4))
    blocks = -(-int((inputs + decode).max()) // block) + draw(st.integers(1, 6))
    replica = Replica(
        blocks * block + block,
        block,
        max_num_seqs=draw(st.integers(2, 9)),
        max_num_batched_tokens=draw(st.integers(9, 20)),  # more than there are running requests
    )
    return Requests(np.cumsum(gaps), inputs, decode, kinds), replica


def run(
    requests: Requests,
    replica: Replica,
    scheduling: Scheduling = Scheduling.PRIORITY,
    *,
    compile: bool = False,
) -> Outcome:
    classes = tuple(
        replace(one_class(1, 1, name=name), priority=priority)
        for name, priority in zip(NAMES, PRIORITIES, strict=True)
    )
    model = ServingModel(classes, TIMING, replica, engine=Engine(scheduling=scheduling))
    policy, off = POLICIES["vllm"], Settings("vllm", {"prefix_caching": (0.0,)})
    setup, _ = policy.prepare(Scenario(model, Plan(), requests, NAMES), off)
    return engine.run(policy.form_batch, requests, TIMING, replica, setup, compile=compile)


def seconds(scheduled: Sequence[tuple[slow_priority.Asked, int]]) -> float:
    context = sum(request.computed + granted for request, granted in scheduled)
    prompts = sum(granted for _, granted in scheduled if granted > 1)
    return TIMING.d0 + TIMING.d1 * context + TIMING.d2 * prompts + TIMING.d3 * len(scheduled)


@given(case=cases())
@examples(40)
def test_the_order_of_preemptions_is_that_of_vllm(case: tuple[Requests, Replica]) -> None:
    requests, replica = case
    order: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        plain = vllm.preempt

        def noted(s: object, request: int) -> None:
            order.append(int(request))
            plain(s, request)  # type: ignore[arg-type]

        patch.setattr(vllm, "preempt", noted)
        fast = run(requests, replica)
    blocks = replica.memory_tokens // replica.block_tokens - 1
    assert replica.max_num_seqs is not None
    assert replica.max_num_batched_tokens is not None
    slow = slow_priority.Scheduler(
        blocks, replica.block_tokens, replica.max_num_seqs, replica.max_num_batched_tokens, seconds
    )
    columns = (requests.arrival_s, requests.input_tokens, requests.decode_tokens, requests.class_index)
    asked = [
        slow_priority.Asked(i, PRIORITIES[kind], arrival, prompt, decode)
        for i, (arrival, prompt, decode, kind) in enumerate(zip(*(c.tolist() for c in columns), strict=True))
    ]
    slow.run(asked)
    assert order == slow.preempted
    np.testing.assert_allclose(fast.first_token_s, [a.first_token_s for a in asked], rtol=1e-12)
    np.testing.assert_allclose(fast.finish_s, [a.finish_s for a in asked], rtol=1e-12)
    assert bytes_of(run(requests, replica, compile=True)) == bytes_of(fast)
