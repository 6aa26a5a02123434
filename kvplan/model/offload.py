"""A tier of host memory behind the prefix cache: what it holds, and what a token costs that comes from there."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Offload:
    """Host memory that keeps KV which the GPU has no room for (theory §13)."""

    memory_tokens: int  # that it holds
    load_s: float  # of the link to the GPU, for a token
    inclusive: bool = (
        True  # every full block is written to it as it is computed; else only what the GPU throws away
    )
    overlap: bool = (
        True  # requests wait for their loads while others run; else loads are part of the iteration
    )
    memory_bytes: int = 0  # as an engine is told; 0 where nothing says it

    def reach_tokens(self, gpu_tokens: int) -> int:
        """Tokens in use and left behind that are there, on a GPU that holds so many, or on the host."""
        return max(self.memory_tokens, gpu_tokens) if self.inclusive else self.memory_tokens + gpu_tokens
