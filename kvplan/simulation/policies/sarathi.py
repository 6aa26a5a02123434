"""Sarathi's scheduler: decodes first, then chunks of prompts within a token budget; a cap if wanted (SIC Table 3).

It mirrors `SarathiScheduler._schedule` of `sarathi/core/scheduler/sarathi_scheduler.py` (sarathi-serve, 2024).

It is `vllm` without its reserved block and its watermark: all blocks are usable, memory is counted as tokens computed
so far, in whole blocks, and the whole next sequence must fit for admission. Evicted requests head the queue, and
nobody is admitted in an iteration that evicts: the last one evicted does not fit, or it would have stayed.
The cap counts all admissions, those of evicted requests too. Sarathi has no prefix cache.
"""

from kvplan.errors import UsageError
from kvplan.simulation.initial_state import Setup
from kvplan.simulation.policies.parameters import LIMITS, PATIENCE, within_limits
from kvplan.simulation.policies.protocol import Policy, Scenario, Settings
from kvplan.simulation.policies.rate_limited import LEAST, allowance, cap_knobs, pass_idle
from kvplan.simulation.policies.vllm import NO_CAP, WHOLE_PROMPT, admit_prompts, serve_running
from kvplan.simulation.state import State, kernel

LIMIT = 3  # the parameters before are those of vllm, after it are the iterations skipped


@kernel
def form_batch(s: State) -> None:
    """Serve running requests first, then prompts, as many as the cap allows.

    Where nothing runs and only the cap holds a request back, iterations without admissions pass in no time.
    """
    budget = serve_running(s)
    pass_idle(s, LIMIT)
    admit_prompts(s, budget, allowance(s, LIMIT))


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """Take engine limits from the profile; no cap unless one is set."""
    cap = settings.number("cap", NO_CAP)
    if cap < LEAST:
        raise UsageError(f"sarathi.cap = {cap:g}: admissions per iteration, at least 1e-6")
    setup, limits = within_limits(scenario, settings, 0.0, WHOLE_PROMPT, *cap_knobs(cap))
    # under a cap, who may not begin now may a little later
    return setup._replace(coasts=cap == NO_CAP), {"cap": None if cap == NO_CAP else cap, **limits}


POLICY = Policy(
    name="sarathi",
    summary="Sarathi: decodes first, then chunks of prompts within a token budget; the last admitted is evicted",
    prepare=prepare,
    form_batch=form_batch,
    parameters={"cap": "most admissions per iteration, 0.5 is one in two; none", **PATIENCE, **LIMITS},
    engine=True,
)
