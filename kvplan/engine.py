"""The engine that serves: whose scheduler it is, and how its version admits requests."""

from dataclasses import dataclass
from enum import StrEnum


class EngineName(StrEnum):
    """Engines whose schedulers are simulated."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"


class Admission(StrEnum):
    """What has to fit in free memory for a waiting prompt to begin: all of it, or the part computed first."""

    WHOLE_PROMPT = "whole-prompt"
    FIRST_CHUNK = "first-chunk"


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine as its version and flags make it.

    Attributes
    ----------
    admission
        For TensorRT-LLM, `Admission.FIRST_CHUNK` is its MAX_UTILIZATION; SGLang has its own rule.
    watermark
        Share of the blocks that vLLM keeps free at admission while anything runs.
    """

    name: EngineName = EngineName.VLLM
    admission: Admission = Admission.WHOLE_PROMPT
    watermark: float = 0.0
