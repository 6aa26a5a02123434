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

from kvplan.simulation.initial_state import Setup
from kvplan.simulation.policies.parameters import LIMITS, PATIENCE, within_limits
from kvplan.simulation.policies.protocol import Policy, Scenario, Settings
from kvplan.simulation.policies.vllm import FIRST_PART, NO_CAP, admit_prompts, serve_running
from kvplan.simulation.state import State, kernel


@kernel
def form_batch(s: State) -> None:
    """Serve running requests first, then prompts, part by part."""
    admit_prompts(s, serve_running(s), NO_CAP)


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """Take engine limits from the profile; absent ones do not bind."""
    setup, limits = within_limits(scenario, settings, 0, FIRST_PART)
    return setup._replace(coasts=True), limits


POLICY = Policy(
    name="trtllm-max-utilization",
    summary="TensorRT-LLM's MAX_UTILIZATION: whatever fits now is admitted, the last started is paused and recomputed",
    prepare=prepare,
    form_batch=form_batch,
    parameters={**PATIENCE, **LIMITS},
    engine=True,
)
