"""vLLM behind a gateway that caps the conversations in flight: turns of those that have begun never wait for others.

A conversation is in flight from its first admission to the end of its last turn, while it thinks too, so that its
tokens stay in the prefix cache until it asks again (CONCUR, arXiv 2601.22705: admission by agent, with a cap on those
that are active). New ones wait, first come first served, behind every turn of those in flight.
"""

import numpy as np

from kvplan.analysis.cache_states import cached_replica
from kvplan.errors import UsageError
from kvplan.model import IntArray
from kvplan.simulation.initial_state import Setup
from kvplan.simulation.policies import vllm
from kvplan.simulation.policies.parameters import whole_number
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Turns


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """Prepare vLLM with a queue for turns and one for those that begin; without turns there is nothing to cap."""
    turns, cached = scenario.requests.turns, cached_replica(scenario.model)
    fill = max(int(cached.replica.capacity_tokens / max(cached.left, 1.0)), 1)
    cap = whole_number(settings, "cap", fill, 1)
    setup, rule = vllm.prepare(scenario, settings)
    if turns is None:
        return setup, {"cap": None, **rule}
    if scenario.model.by_priority:
        raise UsageError(f'{settings.policy}: not modelled beside [engine] scheduling = "priority"')
    setup.knobs[vllm.SESSIONS] = cap
    return setup._replace(queue_of=begins(turns).astype(np.int64), queues=2), {"cap": cap, **rule}


def begins(turns: Turns) -> IntArray:
    """Tell which requests begin a session; so does what follows a turn, and would come in its stead."""
    first = np.ones(turns.following.size, dtype=np.int64)
    goes_on = turns.following[(turns.following >= 0) & (turns.following != turns.instead)]
    first[goes_on] = 0
    if turns.beside is not None:
        first[turns.beside[turns.beside >= 0]] = 0
    return first


POLICY = vllm.POLICY._replace(
    name="session-cap",
    summary="vLLM behind a cap on conversations in flight, which keep their prefix cache (CONCUR)",
    prepare=prepare,
    parameters={
        "cap": "conversations in flight; as many as fill memory with what each leaves",
        **{name: about for name, about in vllm.POLICY.parameters.items() if name != "scheduling"},
    },
    layers=False,
    drafts=False,
    fetches=False,
    one_engine=True,
)
