"""One serving replica with the host memory behind its prefix cache, and what a plan for it should guarantee."""

from dataclasses import dataclass, replace

import numpy as np

from kvplan.model.arrays import IntArray
from kvplan.model.kv_layout import KvLayout
from kvplan.model.parallelism import ALONE, Parallelism
from kvplan.model.slo import Slo
from kvplan.model.weights import Prefill
from kvplan.solve import least_whole

_ROUND = 1_024  # tokens, of the longest request where memory limits it


@dataclass(frozen=True, slots=True)
class Offload:
    """Host memory that keeps KV which the GPU has no room for (theory §13)."""

    memory_tokens: int  # that it holds
    load_s: float  # of the link to the GPU, for a token
    # every full block is written to it as it is computed; else only what the GPU throws away
    inclusive: bool = True
    # requests wait for their loads while others run; else loads are part of the iteration
    overlap: bool = True
    memory_bytes: int = 0  # as an engine is told; 0 where nothing says it

    def reach_tokens(self, gpu_tokens: int) -> int:
        """Tokens in use and left behind that are there, on a GPU that holds so many, or on the host."""
        return max(self.memory_tokens, gpu_tokens) if self.inclusive else self.memory_tokens + gpu_tokens


@dataclass(frozen=True, slots=True)
class Replica:
    """KV capacity in tokens, page size, prefill convention, engine limits, GPUs, and whether prefixes are cached.

    Memory and limits are of all data-parallel ranks together, which share requests evenly; a rank has a part of each.
    """

    memory_tokens: int
    block_tokens: int = 1
    prefill: Prefill = Prefill.FUSED
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpus: int = 1
    prefix_caching: bool = True
    # of layers of several kinds: memory is in pool tokens, blocks are the pages
    layout: KvLayout | None = None
    offload: Offload | None = None  # host memory behind the prefix cache
    parallelism: Parallelism = ALONE
    # at the data-parallel rank of the one before; else turns go where the engine sends them
    turns_stay: bool = False

    @property
    def ranks(self) -> int:
        """Data-parallel engines that step together."""
        return self.parallelism.data

    def of_rank(self) -> "Replica":
        """Return the part of one rank, an engine of its own."""
        ranks = self.ranks
        return replace(
            self,
            memory_tokens=self.memory_tokens // ranks,
            max_num_seqs=self.max_num_seqs and self.max_num_seqs // ranks,
            max_num_batched_tokens=self.max_num_batched_tokens and self.max_num_batched_tokens // ranks,
            parallelism=replace(self.parallelism, data=1),
        )

    @property
    def meets_itself(self) -> float:
        """Chance that a turn comes to the rank where the one before it was."""
        return 1.0 if self.turns_stay else 1 / self.ranks

    def with_budget(self, batched_tokens: int | None) -> "Replica":
        """Set the token budget of each rank."""
        return replace(self, max_num_batched_tokens=batched_tokens and self.ranks * batched_tokens)

    @property
    def capacity_tokens(self) -> int:
        """Memory in whole pages, b·⌊M/b⌋ tokens."""
        return self.memory_tokens - self.memory_tokens % self.block_tokens

    def longest(self, most: int) -> int:
        """Return the longest request of up to `most` tokens that a rank has room for; rounded down where it is less.

        As vLLM judges when it starts: a window or chunk is held beside an iteration's tokens.

        >>> Replica(41_408, 16).longest(131_072), Replica(41_408, 16).longest(8_192)
        (40960, 8192)
        """
        rank, budget = self.of_rank(), self.of_rank().max_num_batched_tokens or most

        def is_too_long(tokens: int) -> bool:
            if rank.layout is None:
                return tokens > rank.capacity_tokens
            first, end = np.array([max(0, tokens - budget)]), np.array([tokens])
            return int(rank.layout.pool_tokens(first, end)[0]) > rank.memory_tokens

        if not is_too_long(most):
            return most
        held = least_whole(is_too_long, 0, most) - 1
        return max(held - held % _ROUND, min(held, _ROUND), 1)

    def with_states(self, more: int) -> "Replica":
        """Add so many blocks to each state that a request has: drafts have one each."""
        if self.layout is None:
            return self
        return replace(self, layout=replace(self.layout, state_blocks=self.layout.state_blocks + more))

    def held_first(self, tokens: IntArray) -> IntArray:
        """Tokens held for prompts of so many tokens while they are computed."""
        if self.layout is None:
            return -(-tokens // self.block_tokens) * self.block_tokens
        return self.layout.pool_tokens(np.zeros_like(tokens), tokens)

    def largest_held(self, first: int, last: int, slots: int = 0) -> int:
        """Tokens that a request holds at most at any stage, from `first` tokens at stage 0 to `last` at its end.

        With drafts it has `slots` more than its tokens, but at stage 0.
        """
        if self.layout is None:
            tokens = last + slots if last > first else last
            return -(-tokens // self.block_tokens) * self.block_tokens
        return int(held_by_stage(self.layout, first, last - first + 1, slots).max())


def held_by_stage(layout: KvLayout, first: int, stages: int, slots: int = 0) -> IntArray:
    """Pool tokens of a request at each number of its tokens, shape (stages,): a prompt is held whole at stage 0.

    After that it has `slots` more than its tokens.
    """
    tokens = first + np.arange(stages)
    before, end = tokens - 1, tokens + slots
    before[0], end[0] = 0, first
    return layout.pool_tokens(before, end)


@dataclass(frozen=True, slots=True)
class Plan:
    """Guarantees of a plan: at most a probability `delta` of one overflow within the horizon."""

    delta: float = 0.01
    horizon_s: float = 3600.0
    segments: int | None = None  # of Nested WAIT; None: as many as need the least memory
    slos: tuple[Slo, ...] = ()  # that latencies are to stay within
    gpu_hour: float | None = None  # what a GPU costs in an hour
    slower: float = 0.05  # enough replicas meet objectives with iterations longer by this share ...
    headroom: float = 0.0  # ... and with this added to the demand
    recover_s: float | None = (
        None  # ... and are normal again so long after a burst; inf: never; None: as usual
    )
    watts: float | None = None  # that a GPU draws at load
    idle_watts: float | None = None  # and while its engine has nothing to compute
    spare: int = 0  # replicas beyond those that are enough

    @property
    def limits(self) -> dict[str, float]:
        """Bounds of the objectives of all requests by their figure."""
        return {slo.key: slo.bound for slo in self.of_all}

    @property
    def of_all(self) -> tuple[Slo, ...]:
        """Objectives of all requests, and of no class alone."""
        return tuple(slo for slo in self.slos if slo.of_all)
