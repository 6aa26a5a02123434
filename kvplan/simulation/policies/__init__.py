"""Policies by name: every module of this package that has a record, `POLICY`, is one."""

from importlib import import_module
from pkgutil import iter_modules

from kvplan.model import Admission, Engine, EngineName, Prefill, ServingModel
from kvplan.simulation.policies.protocol import Policy, Settings
from kvplan.simulation.policies.vllm import ADMISSION

_MODULES = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
POLICIES: dict[str, Policy] = {m.POLICY.name: m.POLICY for m in _MODULES if hasattr(m, "POLICY")}


def engine_settings(model: ServingModel) -> Settings:
    """Return the policy that a profile's engine runs, and its parameters.

    Without an engine in the profile it is vLLM where prompts are `fused`. The other conventions of prefill are of no
    engine, and greedy admission serves them. Runs refuse the parts of a profile that the policy does not model.
    """
    if model.engine is None and model.replica.prefill is not Prefill.FUSED:
        return Settings("greedy", {})
    engine = model.engine or Engine()
    if engine.name is EngineName.SGLANG:
        return Settings("sglang", {})
    if engine.name is EngineName.TRTLLM:
        first_chunk = engine.admission is Admission.FIRST_CHUNK
        return Settings("trtllm-max-utilization" if first_chunk else "trtllm-no-evict", {})
    admission = float(ADMISSION.index(engine.admission))
    return Settings("vllm", {"watermark": (engine.watermark,), "admission": (admission,)})
