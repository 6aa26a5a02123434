"""The groups of replicas that the fleet of a model stands for."""

import math
from dataclasses import replace

import numpy as np

from kvplan.analysis.fleet import one_replica
from kvplan.errors import UsageError
from kvplan.model.fleet import Routing
from kvplan.simulation.fleet.run import Group
from kvplan.simulation.policies.protocol import Policy, Scenario, Settings
from kvplan.simulation.state import Role

_CACHING = "prefix_caching"


def groups(policy: Policy, scenario: Scenario, settings: Settings) -> tuple[list[Group], dict[str, object]]:
    """Each with what its replicas need of the engine; and the parameters of the policy, as run.

    A policy plans for one of the replicas, at its share of the traffic. Decode replicas keep no prefix cache: prompts
    are looked up where they are computed. Nor do they give up anybody.

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
        return [Group(fleet.replicas, model.timing, model.replica, setup, Role.WHOLE)], parameters
    one, other = (alone.model.on(hardware) for hardware in (fleet.prefill_on, fleet.decode_on))
    for what, given in (
        ("layers of several kinds", one.replica.layout or other.replica.layout),
        ("drafts", model.drafts),
        ("a host tier", one.replica.offload or other.replica.offload),
    ):
        if given is not None:
            raise UsageError(
                f"prefill and decode apart are not modelled beside {what}; `replicas` together are"
            )
    prompts = replace(scenario.requests, decode_tokens=np.ones_like(scenario.requests.decode_tokens))
    prefill, parameters = policy.prepare(alone._replace(model=one, requests=prompts), settings)
    uncached = settings._replace(given={**settings.given, _CACHING: (0.0,)})
    decode, _ = policy.prepare(alone._replace(model=other), uncached)
    looked_at = fleet.routing is Routing.LEAST_KV  # in each iteration, while others come over the links
    # nobody comes to a decode replica who has not run
    decode = decode._replace(shed_after_s=math.inf, coasts=decode.coasts and not looked_at)
    return [
        Group(fleet.prefill, one.timing, one.replica, prefill, Role.PREFILL),
        Group(fleet.decode, other.timing, other.replica, decode, Role.DECODE),
    ], parameters
