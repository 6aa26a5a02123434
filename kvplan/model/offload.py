"""A tier of host memory behind the prefix cache: what it holds, and what a token costs that comes from there."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Offload:
    """Host memory that keeps KV which the GPU has no room for (theory §13).

    Attributes
    ----------
    memory_tokens
        What it holds, KV tokens.
    load_s
        Seconds that the link to the GPU takes for a token.
    inclusive
        Whether every full block is written to the host as it is computed; else only what the GPU throws away.
    overlap
        Whether requests wait for their loads while others run; else loads take their time of the iteration.
    memory_bytes
        The memory in bytes, as an engine is told; 0 where nothing says it.
    """

    memory_tokens: int
    load_s: float
    inclusive: bool = True
    overlap: bool = True
    memory_bytes: int = 0

    def reach_tokens(self, gpu_tokens: int) -> int:
        """Tokens in use and left behind that are there, on a GPU that holds so many, or on the host.

        Examples
        --------
        >>> Offload(500, 1e-6).reach_tokens(100), Offload(500, 1e-6, inclusive=False).reach_tokens(100)
        (500, 600)
        """
        return max(self.memory_tokens, gpu_tokens) if self.inclusive else self.memory_tokens + gpu_tokens
