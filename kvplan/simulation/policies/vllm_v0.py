"""vLLM's scheduler before V1: whole prompts first, in iterations without decodes; the baseline of WAIT 6.

It mirrors `Scheduler._schedule_default` of `vllm/core/scheduler.py`, vLLM 0.6.

Memory is counted as tokens computed so far, in whole blocks, and all blocks are usable. The token budget limits
prompts alone. One longer than it is computed in an iteration of its own: the engine does not start with a budget below
its longest sequence, so it would not come to that. While anything runs the watermark keeps blocks free of prompts.
Left out is the prefix cache, which was off by default.
"""

from kvplan.model import Engine
from kvplan.simulation.actions import (
    advance,
    blocks_of,
    last_admitted,
    overflows,
    seat,
    seat_is_free,
    stand_by,
)
from kvplan.simulation.initial_state import Setup
from kvplan.simulation.policies import vllm
from kvplan.simulation.policies.parameters import MOST_RUNNING, PATIENCE, within_limits
from kvplan.simulation.policies.protocol import TOKENS, Policy, Scenario, Settings
from kvplan.simulation.policies.vllm import WATERMARK, compute_prompt, preempt
from kvplan.simulation.state import MAX_TOKENS, NOBODY, Counter, Fixed, List, Request, State, kernel, sequence


@kernel
def form_batch(s: State) -> None:
    """Compute whole prompts, if the next one fits; else a token for all who run, the last admitted giving way."""
    if not next_fits(s):
        advance(s, 0)
        while overflows(s):
            preempt(s, last_admitted(s))
        return
    stand_by(s, 0)
    budget = left = int(s.knobs[MAX_TOKENS])
    while next_fits(s):
        request = s.list[0, List.HEAD]
        whole = sequence(s, request)
        if whole > left and left < budget:
            return
        seat(s, request)
        s.request[request, Request.PARKED] = 0
        left -= compute_prompt(s, request, whole)


@kernel
def next_fits(s: State) -> bool:
    """Tell whether the next in line may run, and its whole sequence fits."""
    request = s.list[0, List.HEAD]
    if request == NOBODY or not seat_is_free(s):
        return False
    spared = int(s.knobs[WATERMARK]) if s.counter[Counter.RESIDENT] > 0 else 0
    blocks = blocks_of(s, sequence(s, request))
    return bool(s.counter[Counter.HELD] + blocks <= s.fixed[Fixed.CAPACITY] - spared)


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """Take engine limits from the profile; absent ones do not bind."""
    replica = scenario.model.replica
    watermark = vllm.watermark_share(settings, scenario.model.engine or Engine())
    spared = int(watermark * (replica.memory_tokens // replica.block_tokens))
    setup, limits = within_limits(scenario, settings, spared)
    return setup._replace(coasts=True), {"watermark": watermark, **limits}


POLICY = Policy(
    name="vllm-v0",
    summary="vLLM before V1: whole prompts before any decode, the last admitted is preempted and recomputed",
    prepare=prepare,
    form_batch=form_batch,
    parameters={
        "watermark": vllm.POLICY.parameters["watermark"],
        **PATIENCE,
        **MOST_RUNNING,
        TOKENS: "most tokens of prompts in an iteration; the profile's",
    },
    engine=True,
)
