"""The policy that stands for the engine of a profile."""

from kvplan.model import Admission, Engine, EngineName, Prefill, ServingModel
from kvplan.simulation.policies.protocol import Settings
from kvplan.simulation.policies.vllm import ADMISSION


def engine_settings(model: ServingModel) -> Settings:
    """The policy that a profile's engine runs, and its parameters.

    Without an engine in the profile it is vLLM where prompts are `fused`. The other conventions of prefill are of no
    engine, and greedy admission serves them. What the policy does not model of the profile is for the run to refuse.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> chat = RequestClass("chat", 100, (50,), (1.0,), 2.0)
    >>> engine_settings(ServingModel((chat,), Timing(0.01), Replica(10_000))).policy
    'vllm'
    >>> trtllm = Engine(EngineName.TRTLLM, Admission.FIRST_CHUNK)
    >>> engine_settings(ServingModel((chat,), Timing(0.01), Replica(10_000), engine=trtllm)).policy
    'trtllm-max-utilization'
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
