"""Runs of `vllm` with a prefix cache, block by block."""

from strategies import one_class

from kvplan.model import Plan, Replica, ServingModel, Timing
from kvplan.simulation import engine
from kvplan.simulation.outcome import Found, Outcome
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Requests


def run_cached(
    requests: Requests, law: Timing, replica: Replica, horizon_s: float | None = None, **settings: float
) -> tuple[Outcome, Found]:
    """Serve requests; and what was found."""
    given = {name: (value,) for name, value in settings.items()}
    model, policy = ServingModel((one_class(1, 1),), law, replica), POLICIES["vllm"]
    scenario = Scenario(model, Plan(), requests, ("",))
    setup, _ = policy.prepare(scenario, Settings("vllm", {"prefix_caching": (1.0,), **given}))
    outcome = engine.run(policy.form_batch, requests, law, replica, setup, horizon_s=horizon_s, compile=True)
    assert outcome.found is not None
    return outcome, outcome.found
