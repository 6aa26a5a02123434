"""The engine that serves: whose scheduler it is, and how its version admits requests."""

import re
from dataclasses import dataclass
from enum import StrEnum

VERSION = r"[0-9]+(\.[0-9]+){1,3}([.+]?[a-z][.+a-z0-9]*)?"  # of an engine, with what marks a candidate or a later build

_RESERVES_PROMPTS = (0, 18)  # vLLM's version from which on whole prompts have to fit, or the next


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, without zeros at its end and what marks a candidate or a later build.

    >>> numbers("0.24.0rc1") == numbers("0.24") < numbers("0.24.1")
    True
    """
    plain = re.sub(r"(\.0+)+$", "", re.split(r"[^\d.]", version)[0].strip("."))
    return tuple(map(int, plain.split(".")))


class EngineName(StrEnum):
    """Engines whose schedulers are simulated."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"


class Admission(StrEnum):
    """Part of a waiting prompt that has to fit in free memory for it to begin: all of it, or what is computed first."""

    WHOLE_PROMPT = "whole-prompt"
    FIRST_CHUNK = "first-chunk"


def admission_before(version: str) -> Admission | None:
    """Say how a version of vLLM admits that is older than pull request 37307; None of later ones, and of none.

    >>> [admission_before(version) for version in ("0.11.2", "0.18", "")]
    [<Admission.FIRST_CHUNK: 'first-chunk'>, None, None]
    """
    return Admission.FIRST_CHUNK if version and numbers(version) < _RESERVES_PROMPTS else None


class Scheduling(StrEnum):
    """Which request goes first: the one that came first, or the one of the lowest priority number."""

    FCFS = "fcfs"
    PRIORITY = "priority"


_HAS_PRIORITIES = (0, 9, 2)  # V1 does, from vLLM's version on; with the flag those before it fall back to V0
_ALIGNS_STATES = (0, 32)  # vLLM's version from which on --mamba-cache-mode has no "all"
_HAVE_INTERVALS = {EngineName.VLLM: (0, 24), EngineName.SGLANG: (0, 5, 19)}  # from which version on


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine as its version and flags make it.

    Attributes
    ----------
    admission
        For TensorRT-LLM, `Admission.FIRST_CHUNK` is its MAX_UTILIZATION; SGLang has its own rule.
    watermark
        Share of the blocks that vLLM keeps free at admission while anything runs.
    scheduling
        Of vLLM: whether priorities of classes count.
    prefill_interval
        Of so many iterations data-parallel ranks of vLLM, and SGLang, compute prompts in one.
    receive_every_steps
        SGLang looks for new requests after so many steps of decodes; after prompts, and where nothing runs, at once.
    batch_wait_iterations, batch_wait_tokens
        While anything decodes, prompts wait in TensorRT-LLM until the iteration would compute so many tokens, but no
        more than so many iterations.
    balance_iterations
        Prompts wait in TensorRT-LLM until every data-parallel rank has one, but no more than so many iterations.
    version
        As it was told; empty where it is not known.
    max_model_len
        Most tokens of a request, prompt and output together, beyond which the engine refuses it.
    """

    name: EngineName = EngineName.VLLM
    admission: Admission = Admission.WHOLE_PROMPT
    watermark: float = 0.0
    receive_every_steps: int = 1
    batch_wait_iterations: int = 0
    batch_wait_tokens: int = 0
    balance_iterations: int = 0
    version: str = ""
    max_model_len: int | None = None
    scheduling: Scheduling = Scheduling.FCFS
    prefill_interval: int = 1

    @property
    def holds_prompts_back(self) -> bool:
        """SGLang's interval or TensorRT-LLM's wait for a batch: prompts wait while others decode."""
        spaced = self.name is EngineName.SGLANG and self.prefill_interval > 1
        return spaced or (self.batch_wait_iterations > 0 and self.batch_wait_tokens > 0)


def has_priorities(engine: Engine) -> bool:
    """Tell whether vLLM, in the version that is named, orders requests by priority as is modelled.

    >>> has_priorities(Engine()), has_priorities(Engine(version="0.9.1"))
    (True, False)
    """
    return not engine.version or numbers(engine.version) >= _HAS_PRIORITIES


def aligns_states(engine: Engine) -> bool:
    """Tell whether it is a version of vLLM that cannot keep states at the end of every block of a prompt.

    >>> aligns_states(Engine()), aligns_states(Engine(version="0.32.0"))
    (False, True)
    """
    return engine.name is EngineName.VLLM and numbers(engine.version or "0") >= _ALIGNS_STATES


def has_intervals(engine: Engine) -> bool:
    """Tell whether an engine, in the version that is named, can compute prompts in one of every so many iterations.

    >>> has_intervals(Engine()), has_intervals(Engine(version="0.23.1")), has_intervals(Engine(EngineName.TRTLLM))
    (True, False, False)
    """
    since = _HAVE_INTERVALS.get(engine.name)
    return since is not None and (not engine.version or numbers(engine.version) >= since)
