"""The policy that stands for the engine of a profile."""

from kvplan.model import Prefill, ServingModel
from kvplan.simulation.policies.protocol import Settings


def engine_settings(model: ServingModel) -> Settings:
    """Policy and parameters of the profile's engine."""
    return Settings("vllm" if model.replica.prefill is Prefill.FUSED else "greedy", {})
