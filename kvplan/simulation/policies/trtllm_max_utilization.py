"""TensorRT-LLM's MAX_UTILIZATION: requests whose next part fits run; the last started is paused and recomputed.

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

from kvplan.simulation.actions import blocks_of
from kvplan.simulation.policies.parameters import LIMITS, PATIENCE
from kvplan.simulation.policies.protocol import Policy
from kvplan.simulation.policies.trtllm_no_evict import BATCH_WAIT, may_wait, prepared, prompts_wait
from kvplan.simulation.policies.vllm import (
    NO_CAP,
    admit_prompts,
    further_blocks,
    go_on,
    granted_tokens,
    serve_decodes,
)
from kvplan.simulation.state import NOBODY, Counter, Fixed, List, Request, State, Turn, kernel, sequence


@kernel
def form_batch(s: State) -> None:
    """Serve running requests first, then prompts, part by part."""
    budget = s.counter[Counter.LEFT]
    if s.counter[Counter.TURN] != Turn.PROMPTS:
        budget = s.counter[Counter.LEFT] = serve_decodes(s)
        if may_wait(s) and prompts_wait(s, fitting_tokens(s, budget)):
            return
    admit_prompts(s, go_on(s, budget), NO_CAP)


@kernel
def fitting_tokens(s: State, budget: int) -> int:
    """Count the tokens of prompts that this iteration could compute."""
    left, seats = budget, s.fixed[Fixed.SEATS] - s.counter[Counter.RESIDENT]
    free = s.fixed[Fixed.CAPACITY] - s.counter[Counter.HELD]
    if s.counter[Counter.PARTLY] != NOBODY and left > 0:
        free -= further_blocks(s, s.counter[Counter.PARTLY], left)
        if free < 0:  # it is paused, and nobody is admitted
            return 0
        left -= granted_tokens(s, s.counter[Counter.PARTLY], left)
    request = s.list[0, List.HEAD]
    while request != NOBODY and left > 0 and seats > 0:
        part = min(sequence(s, request), left)
        free -= blocks_of(s, part)
        if free < 0:
            break
        left -= part
        seats -= 1
        request = s.request[request, Request.AFTER]
    return int(budget - left)


POLICY = Policy(
    name="trtllm-max-utilization",
    summary="TensorRT-LLM's MAX_UTILIZATION: whatever fits now is admitted, the last started is paused and recomputed",
    prepare=prepared,
    form_batch=form_batch,
    parameters={**PATIENCE, **LIMITS, **BATCH_WAIT},
    engine=True,
)
