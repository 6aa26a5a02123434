"""The groups of replicas that the fleet of a model stands for."""

from dataclasses import replace

import numpy as np

from kvplan.analysis.fleet import one_replica
from kvplan.errors import UsageError
from kvplan.simulation.fleet.run import Group
from kvplan.simulation.policies.protocol import Policy, Scenario, Settings
from kvplan.simulation.state import DECODE, PREFILL, WHOLE

_CACHING = "prefix_caching"


def groups(policy: Policy, scenario: Scenario, settings: Settings) -> tuple[list[Group], dict[str, object]]:
    """Each with what its replicas need of the engine; and the parameters of the policy, as run.

    A policy plans for one of the replicas, at its share of the traffic. Decode replicas keep no prefix cache: prompts
    are looked up where they are computed.

    Raises
    ------
    UsageError
        Prefill and decode are apart, and the policy, or what the model has, is not modelled so.
    """
    model, fleet = scenario.model, scenario.model.fleet
    assert fleet is not None
    alone = scenario._replace(model=one_replica(model))
    if not fleet.is_split:
        setup, parameters = policy.prepare(alone, settings)
        return [Group(fleet.replicas, model.timing, model.replica, setup, WHOLE)], parameters
    for what, given in (
        ("layers of several kinds", model.replica.layout),
        ("drafts", model.drafts),
        ("a host tier", model.replica.offload),
    ):
        if given is not None:
            raise UsageError(
                f"prefill and decode apart are not modelled beside {what}; `replicas` together are"
            )
    prompts = replace(scenario.requests, decode_tokens=np.ones_like(scenario.requests.decode_tokens))
    prefill, parameters = policy.prepare(alone._replace(requests=prompts), settings)
    uncached = settings._replace(given={**settings.given, _CACHING: (0.0,)})
    decode, _ = policy.prepare(alone, uncached)
    return [
        Group(fleet.prefill, model.timing, model.replica, prefill, PREFILL),
        Group(fleet.decode, model.timing, model.replica, decode, DECODE),
    ], parameters
