"""What engines take of a GPU beside weights and KV cache, by version: engines.toml."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from kvplan.engine import EngineName
from kvplan.errors import UsageError
from kvplan.ingest.model.hardware import Gpu, tables
from kvplan.ingest.model.shape import ModelShape
from kvplan.model.parallelism import Parallelism

_LIMITS = {"max_num_seqs": 256, "max_num_batched_tokens": 8192}  # where none are known


class Takes(NamedTuple):
    """What an engine takes from one version on, as engines.toml describes it; `limits` are its own or given."""

    engine: EngineName
    newest: str
    utilization: float
    fixed_gib: float
    shared_gib: float = 0.0
    logits: float = 0.0

    def beside(
        self, shape: ModelShape, ranks: Parallelism, memory: int, weights: int, limits: Mapping[str, int]
    ) -> tuple[int, int]:
        """Bytes that are shared out on each GPU, and of them those that neither weights nor KV cache take.

        A forward pass takes at most all inner vectors of an MLP and four vectors of each token; workspaces of experts
        and encoders are left out.
        """
        share, seqs, tokens = self.utilization, *({**_LIMITS, **limits}[key] for key in _LIMITS)
        fixed = (self.fixed_gib + (self.shared_gib if ranks.gpus > 1 else 0)) * 2**30
        forward = 2 * tokens * (shape.counts.mlp_widths / shape.layers / ranks.tensor + 4 * shape.hidden_size)
        if (
            self.engine is EngineName.SGLANG
        ):  # a share of what is free before weights; activations in the rest
            return int(share * memory), int(share * fixed)
        if self.engine is EngineName.TRTLLM:  # of what is free beside them
            peak = fixed + forward + weights
            return memory, int(peak - weights + (1 - share) * max(0.0, memory - peak))
        sampling = 4 * self.logits * min(seqs, tokens) * shape.vocabulary + 2 * tokens * shape.hidden_size
        return int(share * memory), int(max(forward, sampling) + fixed)


def takes(engine: EngineName, version: str = "") -> list[Takes]:
    """What an engine takes: first at a version, the newest known if that is empty, then at those before it.

    Raises
    ------
    UsageError
        The version is not known.
    """
    newest, records = tables("engines.toml")[engine].values()
    asked, first = _numbers(version or newest), records[0]["since"]
    if asked < _numbers(first) or asked[:2] > _numbers(newest):
        known = f"known are {first} to {newest}, and without one {newest} is taken"
        raise UsageError(f"--engine {engine}=={version}: no such version; {known}")
    kept = [record for record in reversed(records) if _numbers(record["since"]) <= asked]
    return [Takes(engine, newest, **{key: r[key] for key in Takes._fields if key in r}) for r in kept]


def _numbers(version: str) -> tuple[int, ...]:
    """Numbers of a version, without what marks a candidate or a later build."""
    return tuple(map(int, re.split(r"[^\d.]", version)[0].strip(".").split(".")))


def default_limits(engine: EngineName | None, gpu: Gpu) -> dict[str, int]:
    """What ``vllm serve`` allows on a GPU where nobody says otherwise: ``EngineArgs.get_batch_defaults``."""
    if engine is not EngineName.VLLM:
        return {}
    large = gpu.memory_bytes >= 70 * 2**30 and "A100" not in gpu.name
    return {"max_num_seqs": 1024 if large else 256, "max_num_batched_tokens": 8192 if large else 2048}
