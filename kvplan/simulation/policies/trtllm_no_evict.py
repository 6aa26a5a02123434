"""TensorRT-LLM's GUARANTEED_NO_EVICT: admitted requests have room reserved to the end, and none is evicted.

It mirrors `GuaranteedNoEvictScheduler` of `cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp`, 2025.

Memory is counted as the engine does: tokens computed so far, in whole blocks. Prompts are computed in chunks within
the token budget, as in `vllm`. With a batch wait (`_waiting_requests` of `tensorrt_llm/_torch/pyexecutor/
py_executor.py`) prompts wait, while anything decodes, until they and the decodes are tokens enough, one begun before
like others; of a prompt that the budget cuts, what it lets them compute counts. Left out is TensorRT-LLM's reuse of
blocks, since it is unclear which of them it counts on at admission.
"""

import numpy as np

from kvplan.model import Engine
from kvplan.simulation.actions import advance, seat, seat_is_free
from kvplan.simulation.initial_state import Setup
from kvplan.simulation.policies.parameters import (
    LIMITS,
    MAX_NEW,
    PATIENCE,
    longest_outputs,
    whole_number,
    within_limits,
)
from kvplan.simulation.policies.protocol import Policy, Scenario, Settings
from kvplan.simulation.policies.vllm import FIRST_PART, compute_prompt, granted_tokens
from kvplan.simulation.state import (
    MAX_TOKENS,
    NOBODY,
    Counter,
    Fixed,
    List,
    Request,
    State,
    Turn,
    group_list,
    kernel,
    sequence,
)

WAIT_ITERATIONS, WAIT_TOKENS, WAITED = range(3, 6)  # of the knobs, behind those of `vllm`
_ITERATIONS, _TOKENS, _BALANCE = "batch_wait_iterations", "batch_wait_tokens", "balance_iterations"
BATCH_WAIT = {
    _ITERATIONS: "iterations that prompts wait at most, while anything decodes, until they and the decodes are tokens "
    "enough, TensorRT-LLM's batch_wait_timeout_iters; the profile's",
    _TOKENS: "so many tokens, its batch_wait_max_tokens_ratio times max_num_tokens; the profile's",
    _BALANCE: "iterations that prompts wait at most until every data-parallel rank has one, its timeout_iters; the "
    "profile's",
}


@kernel
def form_batch(s: State) -> None:
    """Give running requests a token each, go on with the prompt begun before, then admit prompts."""
    budget = int(s.knobs[MAX_TOKENS]) - s.list[group_list(s, 0), List.LENGTH]
    request = s.counter[Counter.PARTLY]
    if s.counter[Counter.TURN] != Turn.PROMPTS:
        advance(s, 0)
        if may_wait(s) and prompts_wait(s, promised_tokens(s, budget)):
            return
    if request != NOBODY and budget > 0:
        budget -= compute_prompt(s, request, budget)
    admit_promised(s, budget)


@kernel
def promised_tokens(s: State, budget: int) -> int:
    """Count the tokens of prompts that this iteration could compute."""
    left, seats = budget, s.fixed[Fixed.SEATS] - s.counter[Counter.RESIDENT]
    if s.counter[Counter.PARTLY] != NOBODY and left > 0:
        left -= granted_tokens(s, s.counter[Counter.PARTLY], left)
    request, promised = s.list[0, List.HEAD], s.counter[Counter.PROMISED]
    while request != NOBODY and left > 0 and seats > 0:
        promised += s.request[request, Request.PROMISE]
        if promised > s.fixed[Fixed.CAPACITY]:
            break
        left -= min(sequence(s, request), left)
        seats -= 1
        request = s.request[request, Request.AFTER]
    return int(budget - left)


@kernel
def may_wait(s: State) -> bool:
    """Tell whether prompts may have to wait, for more of them or for those of other ranks."""
    return bool(s.knobs[WAIT_ITERATIONS] > 0 or s.counter[Counter.TURN] == Turn.DECODES)


@kernel
def prompts_wait(s: State, tokens: int) -> bool:
    """Tell whether prompts wait of which this iteration could compute so many tokens."""
    s.counter[Counter.READY] = tokens
    return s.counter[Counter.TURN] == Turn.DECODES or waits_for_more(s, tokens)


@kernel
def waits_for_more(s: State, tokens: int) -> bool:
    """Tell whether prompts wait of which this iteration could compute so many tokens, and count how often they did."""
    decodes = s.list[group_list(s, 0), List.LENGTH]
    if tokens == 0:
        return False
    enough = decodes == 0 or tokens + decodes >= s.knobs[WAIT_TOKENS]
    if enough or s.knobs[WAITED] >= s.knobs[WAIT_ITERATIONS]:
        s.knobs[WAITED] = 0
        return False
    s.knobs[WAITED] += 1
    return True


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
    setup, limits = prepared(scenario, settings)
    max_new, requests = longest_outputs(scenario, settings), scenario.requests
    longest = np.maximum(requests.input_tokens, 1) + np.array(max_new, dtype=np.int64)[requests.class_index]
    promise = -(-longest // scenario.model.replica.block_tokens)
    return setup._replace(promise=promise), {"max_new": list(max_new), **limits}


def prepared(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """Prepare a queue within limits, a batch wait and balanced ranks, all the profile's unless set."""
    engine = scenario.model.engine or Engine()
    iterations = whole_number(settings, _ITERATIONS, engine.batch_wait_iterations, 0)
    tokens = whole_number(settings, _TOKENS, engine.batch_wait_tokens, 0)
    balance = whole_number(settings, _BALANCE, engine.balance_iterations, 0)
    setup, limits = within_limits(scenario, settings, 0, FIRST_PART, iterations, tokens, 0)
    known = {_ITERATIONS: iterations, _TOKENS: tokens} if iterations and tokens else {}
    balanced = {_BALANCE: balance} if balance else {}
    setup = setup._replace(coasts=not known, balance_iterations=balance)
    return setup, {**limits, **known, **balanced}


POLICY = Policy(
    name="trtllm-no-evict",
    summary="TensorRT-LLM's GUARANTEED_NO_EVICT: input and longest output are reserved at admission, nobody is evicted",
    prepare=prepare,
    form_batch=form_batch,
    parameters={**MAX_NEW, **PATIENCE, **LIMITS, **BATCH_WAIT},
    engine=True,
    evicts=False,
)
