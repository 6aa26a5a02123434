"""One serving replica, and what a plan for it should guarantee."""

from dataclasses import dataclass

from kvplan.model.slo import Slo
from kvplan.model.weights import Prefill


@dataclass(frozen=True, slots=True)
class Replica:
    """KV capacity in tokens, page size, prefill convention, engine limits, GPUs, and whether prefixes are cached."""

    memory_tokens: int
    block_tokens: int = 1
    prefill: Prefill = Prefill.FUSED
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpus: int = 1
    prefix_caching: bool = True

    @property
    def capacity_tokens(self) -> int:
        """Memory in whole pages, b·⌊M/b⌋ tokens."""
        return self.memory_tokens - self.memory_tokens % self.block_tokens


@dataclass(frozen=True, slots=True)
class Plan:
    """What the plan should guarantee: at most a probability `delta` of one overflow within the horizon.

    With `segments` None the planner chooses how many Nested WAIT has. `slos` are what latencies are to stay within,
    `gpu_hour` what a GPU costs in an hour; None: nobody says.
    """

    delta: float = 0.01
    horizon_s: float = 3600.0
    segments: int | None = None
    slos: tuple[Slo, ...] = ()
    gpu_hour: float | None = None
