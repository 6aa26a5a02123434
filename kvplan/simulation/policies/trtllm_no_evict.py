"""TensorRT-LLM's GUARANTEED_NO_EVICT: whoever is admitted has room reserved to the end, and nobody is evicted.

It mirrors `GuaranteedNoEvictScheduler` of `cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp`, 2025.

Memory is counted as the engine does: tokens computed so far, in whole blocks. Prompts are computed in chunks within
the token budget, as in `vllm`. Left out is TensorRT-LLM's reuse of blocks: it is not known well enough which of them it
counts on at admission.
"""

import numpy as np

from kvplan.simulation.actions import advance, seat, seat_is_free
from kvplan.simulation.initial_state import Setup
from kvplan.simulation.policies.parameters import LIMITS, MAX_NEW, PATIENCE, longest_outputs, within_limits
from kvplan.simulation.policies.protocol import Policy, Scenario, Settings
from kvplan.simulation.policies.vllm import compute_prompt
from kvplan.simulation.state import (
    MAX_TOKENS,
    NOBODY,
    Counter,
    Fixed,
    List,
    Request,
    State,
    group_list,
    kernel,
)


@kernel
def form_batch(s: State) -> None:
    """Give running requests a token each, go on with the prompt begun before, then admit prompts."""
    budget = int(s.knobs[MAX_TOKENS])
    advance(s, 0)
    budget -= s.list[group_list(s, 0), List.LENGTH]
    request = s.counter[Counter.PARTLY]
    if request != NOBODY and budget > 0:
        budget -= compute_prompt(s, request, budget)
    admit_promised(s, budget)


@kernel
def admit_promised(s: State, budget: int) -> None:
    """Admit in order of arrival, while the next request fits at its longest next to all others at theirs."""
    while budget > 0 and seat_is_free(s):
        request = s.list[0, List.HEAD]
        if request == NOBODY:
            return
        if s.counter[Counter.PROMISED] + s.request[request, Request.PROMISE] > s.fixed[Fixed.CAPACITY]:
            return
        seat(s, request)
        s.request[request, Request.PARKED] = 0
        budget -= compute_prompt(s, request, budget)


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """Take engine limits from the profile; the longest output of a class is its longest decode length, unless set."""
    setup, limits = within_limits(scenario, settings)
    max_new, requests = longest_outputs(scenario, settings), scenario.requests
    longest = np.maximum(requests.input_tokens, 1) + np.array(max_new, dtype=np.int64)[requests.class_index]
    promise = -(-longest // scenario.model.replica.block_tokens)
    return setup._replace(promise=promise, coasts=True), {"max_new": list(max_new), **limits}


POLICY = Policy(
    name="trtllm-no-evict",
    summary="TensorRT-LLM's GUARANTEED_NO_EVICT: input and longest output are reserved at admission, nobody is evicted",
    prepare=prepare,
    form_batch=form_batch,
    parameters={**MAX_NEW, **PATIENCE, **LIMITS},
    engine=True,
    evicts=False,
)
