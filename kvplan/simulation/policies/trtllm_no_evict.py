"""TensorRT-LLM's GUARANTEED_NO_EVICT: whoever is admitted has room reserved to the end, and nobody is evicted.

Memory is counted as the engine does: tokens computed so far, in whole blocks. Prompts are computed in chunks within
the token budget, as in `vllm`.
"""

import numpy as np

from kvplan.errors import UsageError
from kvplan.model import IntArray
from kvplan.simulation.actions import advance, group_list, kernel, seat
from kvplan.simulation.policies import vllm
from kvplan.simulation.policies.protocol import Policy, Scenario, Settings, one_queue
from kvplan.simulation.policies.vllm import MAX_SEQUENCES, MAX_TOKENS, compute_prompt, pause
from kvplan.simulation.state import (
    CAPACITY,
    HEAD,
    LENGTH,
    NOBODY,
    PARKED,
    PARTLY,
    PROMISE,
    PROMISED,
    RESIDENT,
    Setup,
    State,
)


@kernel
def form_batch(s: State) -> None:
    """Running requests get a token each, then the prompt begun before goes on, then prompts are admitted."""
    budget = int(s.knobs[MAX_TOKENS])
    advance(s, 0)
    pause(s, max(s.list[group_list(s, 0), LENGTH] - budget, 0))
    budget -= s.list[group_list(s, 0), LENGTH]
    request = s.counter[PARTLY]
    if request != NOBODY and budget > 0:
        budget -= compute_prompt(s, request, budget)
    admit_promised(s, budget)


@kernel
def admit_promised(s: State, budget: int) -> None:
    """In order of arrival, while the next request fits at its longest next to all others at theirs."""
    while budget > 0 and s.counter[RESIDENT] < s.knobs[MAX_SEQUENCES]:
        request = s.list[0, HEAD]
        if request == NOBODY or s.counter[PROMISED] + s.request[request, PROMISE] > s.fixed[CAPACITY]:
            return
        seat(s, request)
        s.request[request, PARKED] = 0
        budget -= compute_prompt(s, request, budget)


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """Engine limits from the profile; the longest output of a class is its longest decode length, unless set."""
    sequences, tokens = vllm.limits(scenario, settings)
    max_new = longest_outputs(scenario, settings)
    replica, requests = scenario.model.replica, scenario.requests
    inputs = np.maximum(requests.input_tokens, 1)
    longest = inputs + np.array(max_new, dtype=np.int64)[requests.class_index]
    setup = one_queue(requests)._replace(
        knobs=np.array([sequences, tokens]),
        first_weight=inputs,
        stages=requests.decode_tokens,
        promise=-(-longest // replica.block_tokens),
    )
    return setup, {"max_new": list(max_new), **vllm.as_run(sequences, tokens)}


def longest_outputs(scenario: Scenario, settings: Settings) -> tuple[int, ...]:
    """Tokens that a request of each class may generate at most, as its client has declared.

    Raises
    ------
    UsageError
        Not one number for each class, or a request that generates more.
    """
    requests, size = scenario.requests, len(scenario.names)
    seen = longest_by_class(requests.class_index, requests.decode_tokens, size)
    given = settings.counts("max_new", size, "one for each class")
    if given is None:
        declared = {c.name: c.decode_tokens[-1] for c in scenario.model.classes}  # a trace is none of them
        return tuple(
            max(declared.get(name, 1), longest)
            for name, longest in zip(scenario.names, seen.tolist(), strict=True)
        )
    for allowed, longest, name in zip(given, seen.tolist(), scenario.names, strict=True):
        if longest > allowed:
            raise UsageError(
                f"{settings.policy}.max_new = {allowed}: requests of {name} generate up to {longest} tokens"
            )
    return given


def longest_by_class(class_index: IntArray, decode_tokens: IntArray, classes: int) -> IntArray:
    """Longest decode length among the requests of each class, 0 where it has none."""
    longest = np.zeros(classes, dtype=np.int64)
    np.maximum.at(longest, class_index, decode_tokens)
    return longest


POLICY = Policy(
    "TensorRT-LLM's GUARANTEED_NO_EVICT: input and longest output are reserved at admission, nobody is evicted",
    {"max_new": "longest output of each class, with commas; its longest decode length", **vllm.LIMITS},
    prepare,
    form_batch,
)
