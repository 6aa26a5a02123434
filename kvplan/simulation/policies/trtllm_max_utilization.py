"""TensorRT-LLM's MAX_UTILIZATION: whoever's next part fits is admitted; the last started is paused and recomputed.

Requests are walked in order of arrival, and each needs the blocks of its next step: `MaxUtilizationScheduler` in
`cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp`, 2025. Where blocks lack, the last started of the list is paused,
it may be the same one, and the list ends before it, so that nobody who waits is admitted in that iteration. A paused
request keeps its place, which is before all who wait, and computes its prompt and generated tokens again. All blocks
are usable, and there is no watermark.

The next step of a prompt is its next part, as in `KVCacheV2Scheduler`, `tensorrt_llm/_torch/pyexecutor/scheduler/
scheduler_v2.py`, 2026, which differs in whom it pauses for a prompt. The C++ manager of the KV cache takes the blocks
of a whole prompt with its first part (`KVCacheManager::getNeededBlocksOneStep`): where it serves, `vllm` with
whole-prompt admission is nearer. Left out is the reuse of blocks, as in `trtllm-no-evict`.
"""

import numpy as np

from kvplan.simulation.initial_state import Setup
from kvplan.simulation.policies.parameters import (
    LIMITS,
    PATIENCE,
    SEQUENCES,
    SHED_AFTER,
    TOKENS,
    UNLIMITED,
    known,
    most_running,
    patience,
    token_budget,
)
from kvplan.simulation.policies.protocol import Policy, Scenario, Settings, as_engines_count
from kvplan.simulation.policies.vllm import FIRST_PART, NO_CAP, admit_prompts, serve_running
from kvplan.simulation.state import State, kernel


@kernel
def form_batch(s: State) -> None:
    """Running requests first, then prompts, part by part."""
    admit_prompts(s, serve_running(s), NO_CAP)


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """Engine limits from the profile; absent ones do not bind."""
    seats, tokens = most_running(scenario, settings), token_budget(scenario, settings)
    patience_s = patience(scenario, settings)
    setup = as_engines_count(scenario.requests)._replace(
        knobs=np.array([tokens or UNLIMITED, 0, FIRST_PART]),
        seats=seats,
        coasts=True,
        shed_after_s=patience_s,
    )
    return setup, {SHED_AFTER: known(patience_s), SEQUENCES: seats, TOKENS: tokens}


POLICY = Policy(
    name="trtllm-max-utilization",
    summary="TensorRT-LLM's MAX_UTILIZATION: whatever fits now is admitted, the last started is paused and recomputed",
    prepare=prepare,
    form_batch=form_batch,
    parameters={**PATIENCE, **LIMITS},
    engine=True,
    limits=frozenset(LIMITS),
)
