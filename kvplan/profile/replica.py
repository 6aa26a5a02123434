"""The tables of a replica in a profile: its memory, limits and parallelism, and how long its iterations take.

As in `kvplan.profile.tables`, the text below a key is its description in the JSON Schema.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from kvplan import model, ranges
from kvplan.model import Prefill
from kvplan.model.drafts import Drafts
from kvplan.model.kv_layout import Attention, KvLayout, Layers
from kvplan.model.parallelism import Parallelism
from kvplan.model.replica import Offload
from kvplan.profile import values
from kvplan.profile.relations import Cases, Check, Needs, Problem, Table, Ways
from kvplan.units import format_tokens


class Kv(Table, title="Layers of one kind"):
    """Layers that keep KV cache of one kind."""

    relations = (Cases("kind", full="", window="window", chunk="window", state="checkpoints?"),)

    kind: Annotated[Attention, Field(strict=False)]
    """What a layer keeps of a request: all tokens (full), the last ones (window), those since its chunk began
    (chunk), or a state of fixed size (state)."""
    layers: Annotated[int, Field(ge=1, le=10_000)]
    """How many layers are of this kind."""
    bytes: Annotated[int, Field(ge=1, le=10**12)]
    """Bytes of KV cache per token and layer, on one GPU; of a state, its bytes."""
    window: values.MemoryTokens | None = None
    """Tokens of a window or chunk."""
    checkpoints: bool = False
    """With prefix_caching = true: the state is kept at the end of every block, as by vLLM's --mamba-cache-mode all, its
    own choice for Mamba 2 layers; where it is not, nothing that is shared is modelled."""


class HostTier(Table, title="Host tier"):
    """Host memory behind the prefix cache, and the link to it."""

    relations = (Ways("memory", "memory_tokens"),)

    memory: values.Bytes | None = None
    """Host memory for KV cache of the replica, such as "200 GiB"."""
    memory_tokens: values.CacheTokens | None = None
    """The same in tokens."""
    bandwidth: values.Bandwidth
    """From host to GPU, such as "25 GB/s": of the replica, the links of all its GPUs together."""
    inclusive: bool = True
    """Whether every full block is written to the host as it is computed; otherwise only what the GPU throws away."""
    overlap: bool = True
    """Whether a request waits for its load while others run; otherwise loads are part of the iteration's time."""


def _memory(gpu: "Gpu") -> Iterator[Problem]:
    try:
        _ = gpu.layout
    except ValueError as error:
        yield Problem(("block_tokens" if gpu.has("block_tokens") else "kv",), str(error))
        return
    held = format_tokens(gpu.capacity_tokens)
    if not gpu.has("memory_tokens") and not 1 <= gpu.capacity_tokens <= ranges.MAX_MEMORY_TOKENS:
        limit = f"must hold 1 to {format_tokens(ranges.MAX_MEMORY_TOKENS)} tokens, not {held}"
        for key, other in (("memory", "kv_bytes_per_token"), ("kv_blocks", "kv")):
            if gpu.has(key) and gpu.has(other):
                yield Problem((key,), limit)
    if gpu.block_tokens > gpu.capacity_tokens > 0:
        yield Problem(("block_tokens",), f"must be at most the memory, {held} tokens, not {gpu.block_tokens}")


def _parallelism(gpu: "Gpu") -> Iterator[Problem]:
    ranks = gpu.parallelism
    if (gpu.gpus or ranks.gpus) != ranks.gpus:
        yield Problem(
            ("gpus",), f"must be tensor x data x pipeline parallelism, {ranks.gpus}, not {gpu.gpus}"
        )
    if ranks.gpus > ranges.MAX_GPUS:
        limit = f"must be at most {format_tokens(ranges.MAX_GPUS)}"
        yield Problem((), f"tensor x data x pipeline parallelism {limit}, not {format_tokens(ranks.gpus)}")
    if (misfit := ranks.misfit) is not None:
        yield Problem((f"{misfit[0]}_parallel",), misfit[1])


class Gpu(Table, title="Replica"):
    """One replica: its KV memory and what the engine limits; memory and limits are those of one data-parallel rank."""

    relations = (
        Ways("kv_blocks kv", "memory_tokens kv_bytes_per_token?", "memory kv_bytes_per_token"),
        Needs("hybrid_kv_cache", "kv"),
        Check(_memory),
        Check(_parallelism),
    )

    memory_tokens: values.MemoryTokens | None = None
    """KV capacity of one replica, tokens. Or give memory with kv_bytes_per_token."""
    memory: values.Bytes | None = None
    """KV memory of one replica, such as "5.05 GiB"; needs kv_bytes_per_token."""
    kv_bytes_per_token: values.MemoryTokens | None = None
    """Bytes of KV cache per token, all layers."""
    kv_blocks: values.MemoryTokens | None = None
    """Blocks of the engine's pool, each of block_tokens tokens in every layer of a group; needs [[gpu.kv]]."""
    kv: list[Kv] = Field(default=[], max_length=64)
    """Layers by kind, where they differ in what they keep of a request."""
    hybrid_kv_cache: bool = True
    """Whether windows and chunks hold only what they attend to; false: all layers hold every token, as in vLLM with
    --disable-hybrid-kv-cache-manager and before 0.9.1."""
    block_tokens: Annotated[int, Field(ge=1, le=ranges.MAX_BLOCK_TOKENS)] = 1
    """Page size of the KV cache, tokens; 16 in vLLM."""
    prefill: Annotated[Prefill, Field(strict=False)] = Prefill.FUSED
    """Where a prompt's KV comes from: computed in the iteration that emits the first token (fused), in an
    iteration of its own (inline), or ready-made (disaggregated)."""
    max_num_seqs: values.MemoryTokens | None = None
    """Most requests the engine runs at once."""
    max_num_batched_tokens: values.MemoryTokens | None = None
    """Most tokens the engine computes in an iteration."""
    gpus: values.Gpus | None = None
    """GPUs of one replica, tensor x data x pipeline parallelism: what they hold together is its memory. Prices and
    sizes count them."""
    tensor_parallel: values.Gpus | None = None
    """GPUs that share each layer, of one data-parallel rank; what gpus leaves, or 1."""
    data_parallel: values.Gpus = 1
    """Ranks that step together, each with memory, limits and a queue of its own, which are what this table says."""
    expert_parallel: values.Gpus = 1
    """GPUs that experts are spread over, of tensor x data parallelism, which it divides."""
    pipeline_parallel: values.Gpus = 1
    """Stages that layers are spread over."""
    context_parallel: values.Gpus = 1
    """GPUs of tensor parallelism, which it divides, that share the KV cache of a request by its tokens."""
    prefix_caching: bool = True
    """Whether the engine keeps the KV cache of prefixes, as vLLM and SGLang do by default."""
    offload: HostTier | None = None

    @property
    def parallelism(self) -> Parallelism:
        """Parallelism of its ranks; GPUs of which nothing else is said are tensor-parallel."""
        data, pipeline = self.data_parallel, self.pipeline_parallel
        tensor = self.tensor_parallel or max(1, (self.gpus or 1) // (data * pipeline))
        return Parallelism(tensor, data, self.expert_parallel, pipeline, self.context_parallel)

    @property
    def capacity_tokens(self) -> int:
        """KV capacity of one data-parallel rank."""
        if self.memory is not None and self.kv_bytes_per_token is not None:
            return self.memory // self.kv_bytes_per_token
        if self.kv_blocks is not None:
            return self.kv_blocks * self.block_tokens
        return self.memory_tokens or 0

    @property
    def layout(self) -> KvLayout | None:
        """None where all layers keep every token; a prefix cache that is asked for keeps a second state.

        Raises
        ------
        ValueError
            Layers and block size do not go together.
        """
        counts = Counter[tuple[Attention, int, int | None, bool]]()
        for kv in self.kv:
            counts[kv.kind, kv.bytes, kv.window, kv.checkpoints and self._caches_prefixes] += kv.layers
        if len(counts) <= 1 and {kv.kind for kv in self.kv} <= {Attention.FULL}:
            return None
        layers = tuple(
            Layers(kind, n, size, window, kept) for (kind, size, window, kept), n in counts.items()
        )
        return KvLayout(layers, self.block_tokens, 2 if self._caches_prefixes else 1, self.hybrid_kv_cache)

    @property
    def _caches_prefixes(self) -> bool:
        """As the profile says; by default engines do, except where layers keep states."""
        states = any(kv.kind is Attention.STATE for kv in self.kv)
        return self.prefix_caching and not (states and "prefix_caching" not in self.model_fields_set)

    @property
    def token_bytes(self) -> int | None:
        """Bytes of KV cache per token of the replica, all layers and the GPUs that share it; None if nothing says it.

        Of a pool token where layers differ.
        """
        if self.layout is not None:
            return self.parallelism.tensor * self.layout.block_bytes // self.block_tokens
        if self.kv:
            return self.parallelism.tensor * sum(kv.layers * kv.bytes for kv in self.kv)
        return self.kv_bytes_per_token

    @property
    def host_tier(self) -> Offload | None:
        """The host tier in tokens; `token_bytes` must be known."""
        tier, size = self.offload, self.token_bytes
        if tier is None or size is None:
            return None
        tokens = tier.memory_tokens or (tier.memory or 0) // size
        return Offload(tokens, size / tier.bandwidth, tier.inclusive, tier.overlap, tokens * size)

    def with_drafts(self, drafts: Drafts | None) -> model.Replica:
        """Return the replica; a state takes a block more per draft."""
        return self.replica if drafts is None else self.replica.with_states(drafts.tokens)

    @property
    def replica(self) -> model.Replica:
        """All data-parallel ranks together, each with whole pages."""
        ranks, memory = self.parallelism, self.capacity_tokens
        return model.Replica(
            memory_tokens=ranks.data * (memory - memory % self.block_tokens) if ranks.data > 1 else memory,
            block_tokens=self.block_tokens,
            prefill=self.prefill,
            max_num_seqs=self.max_num_seqs and ranks.data * self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens and ranks.data * self.max_num_batched_tokens,
            gpus=ranks.gpus,
            prefix_caching=self._caches_prefixes,
            layout=self.layout,
            offload=self.host_tier,
            parallelism=ranks,
        )


class Measured(Table, title="Measured range"):
    """The iterations that a timing was measured on; beyond them, reports say so."""

    kv_tokens: values.Amounts | None = None
    """Least and most KV tokens of an iteration."""
    prefill_tokens: values.Amounts | None = None
    """Least and most prefill tokens of an iteration."""
    sequences: values.Amounts | None = None
    """Least and most sequences of an iteration."""
    band: values.Band | None = None
    """How good the fit is: iterations took from so many to so many times as long as it says."""


class Timing(Table, title="Iteration time"):
    """An iteration takes d0 + d1·KV + d2·prefill + d3·sequences + d4·√sequences + d5·(prefill + sequences - knee)⁺ +
    d6·pairs + experts·(1 - (1 - chosen)^(prefill + sequences))."""

    relations = (
        Needs("d5", "knee_tokens"),
        Needs("d5_all_ranks", "d5"),
        Needs("experts", "chosen"),
        Needs("chosen", "experts"),
    )

    d0: values.Iteration
    """Fixed time of an iteration: seconds, or a string such as "14.5 ms"."""
    d1: values.Cost = 0.0
    """Time per KV token in the batch."""
    d2: values.Cost = 0.0
    """Time per prefill token."""
    d3: values.Cost = 0.0
    """Time per sequence."""
    d4: values.Cost = 0.0
    """Time per square root of the sequences."""
    d5: values.Cost = 0.0
    """Time per token computed beyond knee_tokens, prefill tokens and sequences together."""
    knee_tokens: Annotated[int, Field(ge=0, le=ranges.MAX_MEMORY_TOKENS)] = 0
    """Tokens computed in an iteration from which on each takes d5 more; needed with d5."""
    d6: values.PairCost = 0.0
    """Time per pair of a prefill token and a token of its context, itself included: attention of prompts."""
    experts: values.Cost = 0.0
    """Time to read the weights of all experts, of which an iteration reads those that a token of it chose."""
    chosen: Annotated[float, Field(gt=0, lt=1)] = 0.0
    """Share of the experts that a token chooses, such as 8 of 256; needed with experts."""
    all_ranks: values.Cost = 0.0
    """Time per token, prefilled or decoded, of all data-parallel ranks together; the other terms but
    that of experts are of the busiest."""
    d5_all_ranks: values.Cost = 0.0
    """Time per token beyond the knee of all data-parallel ranks together; d5 is of the busiest."""
    request_overhead: values.Overhead = 0.0
    """Time of a request outside the engine (tokeniser, HTTP): part of TTFT and E2E, and of no iteration."""
    measured: Measured = Measured()
    """In what range the timing was measured."""
