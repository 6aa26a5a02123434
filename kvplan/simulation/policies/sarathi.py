"""Sarathi's scheduler: decodes first, then chunks of prompts within a token budget; a cap if wanted (SIC Table 3).

It is `vllm` without its reserved block and its watermark: all blocks are usable, memory is counted as tokens computed
so far, in whole blocks, and the whole next sequence must fit for admission. Evicted requests head the queue, and
nobody is admitted in an iteration that evicts: whoever was evicted last does not fit, or he would have stayed.
The cap counts all admissions, those of evicted requests too. Sarathi has no prefix cache.
"""

import numpy as np

from kvplan.errors import UsageError
from kvplan.simulation.actions import blocks_of
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
from kvplan.simulation.policies.rate_limited import LEAST, allowance, cap_knobs, pass_idle
from kvplan.simulation.policies.vllm import NO_CAP, WHOLE_PROMPT, admit_prompts, serve_running
from kvplan.simulation.state import NOBODY, Counter, Fixed, List, Request, State, kernel

LIMIT = 3  # the parameters before are those of vllm, after it are the iterations skipped


@kernel
def form_batch(s: State) -> None:
    """Running requests first, then prompts, as many as the cap allows.

    Where nothing runs and only the cap holds a request back, iterations without admissions pass in no time.
    """
    budget = serve_running(s)
    request = s.list[0, List.HEAD]
    if s.counter[Counter.RESIDENT] == 0 and request != NOBODY:
        whole = s.request[request, Request.FIRST_WEIGHT] + s.request[request, Request.STAGE]
        if blocks_of(s, whole) <= s.fixed[Fixed.CAPACITY]:
            pass_idle(s, LIMIT)
    admit_prompts(s, budget, allowance(s, LIMIT))


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """Engine limits from the profile; no cap unless one is set."""
    seats, tokens = most_running(scenario, settings), token_budget(scenario, settings)
    patience_s = patience(scenario, settings)
    cap = settings.number("cap", NO_CAP)
    if cap < LEAST:
        raise UsageError(f"sarathi.cap = {cap:g}: admissions per iteration, at least 1e-6")
    setup = as_engines_count(scenario.requests)._replace(
        knobs=np.array([tokens or UNLIMITED, 0.0, WHOLE_PROMPT, *cap_knobs(cap)]),
        seats=seats,
        shed_after_s=patience_s,
        coasts=cap == NO_CAP,  # else who may not begin now may a little later
    )
    return setup, {
        "cap": None if cap == NO_CAP else cap,
        SHED_AFTER: known(patience_s),
        SEQUENCES: seats,
        TOKENS: tokens,
    }


POLICY = Policy(
    name="sarathi",
    summary="Sarathi: decodes first, then chunks of prompts within a token budget; the last admitted is evicted",
    prepare=prepare,
    form_batch=form_batch,
    parameters={"cap": "most admissions per iteration, 0.5 is one in two; none", **PATIENCE, **LIMITS},
    engine=True,
    limits=frozenset(LIMITS),
)
