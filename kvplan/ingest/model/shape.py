"""The shape of a language model: what a token costs in KV cache.

Attention kinds, with bytes per token and layer on one GPU of t that share the model by tensor parallelism:

======================  =============================================================================================
MHA, GQA, MQA           2 · max(1, kv_heads / t) · head_dim · bytes: t > kv_heads copies heads instead of splitting
MLA                     (kv_lora_rank + qk_rope_head_dim) · bytes on every GPU: the latent is not split
sparse MLA              beside the latent, an index key of index_head_dim in 8 bits; an 8-bit latent keeps its rope in
                        16 bits; both with a scale of 4 bytes for 128 numbers (vLLM's fp8_ds_mla)
context parallelism     tokens are dealt out to c of the t GPUs, / c; an index key is on all of them
window, chunk           as above, but for the last tokens of a request alone
linear, Mamba, …        none: a state of fixed size, `kvplan.ingest.model.layers`
======================  =============================================================================================
"""

from dataclasses import dataclass, replace

from kvplan.errors import UsageError
from kvplan.ingest.model.layers import State
from kvplan.ingest.model.weights import ParameterCounts, Storage, named_storage
from kvplan.model.kv_layout import Attention, Layers
from kvplan.model.parallelism import Parallelism

_SIXTEEN_BITS = 2  # bytes
_MXFP4_BLOCK = 256  # gpt-oss takes 13.47 and 64.38 GiB on an H100, not 12.80 and 60.69
_KV_BYTES = {
    **dict.fromkeys(("auto", "bf16", "bfloat16", "fp16", "float16", "half"), 2),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla", "int8"), 1),
}


@dataclass(frozen=True, slots=True)
class Kept:
    """How many layers keep what of a request; of a window or chunk so many tokens."""

    kind: Attention
    count: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention of one layer: "MHA", "GQA", "MQA" or "MLA", which has a rank and a part with positions.

    Sparse MLA chooses `index_topk` tokens by keys of `index_dim`. `linear_sizes` sums up inputs and outputs of the
    matrices: those that every GPU of a group has whole, and those that are shared out.
    """

    kind: str
    heads: int
    kv_heads: int
    head_dim: int
    parameters: int
    linear_sizes: tuple[int, int]
    value_dim: int
    kv_lora_rank: int | None = None
    rope_dim: int | None = None
    index_dim: int | None = None
    index_topk: int = 0

    def latent_bytes(self, number_bytes: int) -> int:
        """Bytes of the latent of a token, without its index key."""
        assert self.kv_lora_rank is not None
        assert self.rope_dim is not None
        if self.index_dim is None or number_bytes > 1:
            return (self.kv_lora_rank + self.rope_dim) * number_bytes
        return _scaled(self.kv_lora_rank) + self.rope_dim * _SIXTEEN_BITS

    def token_bytes(self, number_bytes: int, tensor_parallel: int, context_parallel: int = 1) -> int:
        """Bytes of a token in one layer on one GPU: its share of the heads, or a copy of one."""
        if self.kv_lora_rank is not None:
            return -(-self.latent_bytes(number_bytes) // context_parallel) + self.index_bytes
        heads = max(1, self.kv_heads // tensor_parallel)
        return -(-heads * (self.head_dim + self.value_dim) * number_bytes // context_parallel)

    def copies(self, tensor_parallel: int) -> int:
        """GPUs that have the same keys and values, of so many that share a layer."""
        return tensor_parallel if self.kv_lora_rank is not None else max(1, tensor_parallel // self.kv_heads)

    @property
    def index_bytes(self) -> int:
        """Bytes of the index key of a token, in 8 bits whatever the cache is in."""
        return 0 if self.index_dim is None else _scaled(self.index_dim)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a language model."""

    name: str
    source: str  # a file, or the catalogue
    layers: int  # all of them, those that keep nothing too
    kept: tuple[Kept, ...]
    state: State | None
    hidden_size: int
    attention: Heads
    counts: ParameterCounts
    storage: Storage
    notes: tuple[str, ...]  # that a reader of any figure derived from this should know
    kv_dtype: str = "auto"  # of the cache that the checkpoint is made for; 16 bits
    encoder_bytes: int = 0  # weights of an encoder of images
    drafts: int = 0  # tokens drafted at a time, for each of which a state is larger
    adapter_ranks: int = 0  # LoRA adapters loaded at once, times their rank
    max_model_len: int | None = None  # most tokens of a request
    like: str = ""  # the entry of the catalogue with its sizes

    @property
    def vocabulary(self) -> int:
        """Tokens there are."""
        return self.counts.embeddings // (self.counts.tables * self.hidden_size)

    @property
    def weights(self) -> str:
        """Type of the weights as the configuration keeps them, by name."""
        return "bf16" if self.storage.is_16_bit else self.storage.name

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights of the decoder as the configuration keeps them."""
        return self.storage.total_bytes(self.counts)

    def loaded_bytes(self, ranks: Parallelism) -> int:
        """Bytes on one GPU of all that is loaded: weights, an encoder, room for adapters in 16 bits.

        Experts and tables are spread over all GPUs of a pipeline stage; the rest over those of a data-parallel rank.
        An adapter of rank r has r inputs and r outputs for every matrix of attention and dense MLPs.
        """
        attending = sum(layer.count for layer in self.kept if layer.kind is not Attention.STATE)
        whole, shared = (attending * size for size in self.attention.linear_sizes)
        sizes = whole + self.counts.mlp_inputs + -(-(shared + self.counts.mlp_widths) // ranks.tensor)
        loaded = self.weight_bytes + self.encoder_bytes
        experts = int(self.storage.bits / 8 * self.counts.experts)
        of_rank = loaded - experts - self.counts.table_bytes
        if self.storage.name == "mxfp4":  # kernels take vectors of whole blocks
            loaded += experts * (-self.hidden_size % _MXFP4_BLOCK) // self.hidden_size
        weights = -(-(loaded + (ranks.data - 1) * of_rank) // ranks.gpus)
        return weights + -(-_SIXTEEN_BITS * self.adapter_ranks * sizes // ranks.pipeline)


def with_weights(shape: ModelShape, weight_dtype: str | None) -> ModelShape:
    """Give a model weights of a type: by name, else as its configuration keeps them."""
    if weight_dtype is not None:
        return replace(shape, storage=named_storage(weight_dtype))
    if shape.storage.problem:
        raise UsageError(f"{shape.storage.problem}; --weights says what they take, such as --weights int4")
    return shape


def with_adapters(shape: ModelShape, adapters: int | None, rank: int | None) -> ModelShape:
    """Make room for LoRA adapters, as --loras and --lora-rank say."""
    if (adapters is None) != (rank is None):
        raise UsageError(
            f"--{'loras' if adapters is None else 'lora-rank'} is missing: adapters have a number and a rank"
        )
    if adapters is None or rank is None:
        return shape
    if adapters < 1 or rank < 1:
        raise UsageError(f"--loras {adapters} --lora-rank {rank}: both must be at least 1")
    note = f"{adapters} LoRA adapters of rank {rank} count at attention and dense MLPs, not at experts"
    return replace(shape, adapter_ranks=adapters * rank, notes=(*shape.notes, note))


def kv_layers(
    shape: ModelShape, *, kv_dtype: str = "auto", tensor_parallel: int = 1, context_parallel: int = 1
) -> tuple[Layers, ...]:
    """Layers by what they keep, with the bytes on each GPU of a tensor-parallel group.

    `kv_dtype` is "auto" for what the checkpoint is made for, mostly 16 bits, or a type by name.
    """
    per_token = _layer_bytes(shape, kv_dtype, tensor_parallel, context_parallel)
    of_state = shape.state.bytes(tensor_parallel, shape.drafts) if shape.state else 0
    return tuple(
        Layers(kept.kind, kept.count, of_state if kept.kind is Attention.STATE else per_token, kept.window)
        for kept in shape.kept
    )


def kv_bytes_per_token(
    shape: ModelShape, *, kv_dtype: str = "auto", tensor_parallel: int = 1, context_parallel: int = 1
) -> int:
    """Bytes of KV cache that a long request takes on each GPU for one token more; parameters as for `kv_layers`.

    Layers that keep a part of a request are left out, but where no layer keeps all of it.

    Examples
    --------
    >>> from kvplan.ingest.model.config import read_model
    >>> shape = read_model("Llama-3.1-70B")
    >>> [kv_bytes_per_token(shape, tensor_parallel=t) for t in (1, 4, 8, 16)]
    [327680, 81920, 40960, 40960]
    """
    layers = kv_layers(
        shape, kv_dtype=kv_dtype, tensor_parallel=tensor_parallel, context_parallel=context_parallel
    )
    full = sum(layer.count * layer.bytes for layer in layers if layer.kind is Attention.FULL)
    return full or sum(layer.count * layer.bytes for layer in layers if not layer.is_state)


def number_bytes(shape: ModelShape, kv_dtype: str) -> int:
    """Bytes of a number in the cache."""
    kind = shape.kv_dtype if kv_dtype.lower() == "auto" else kv_dtype.lower()
    if kind not in _KV_BYTES:
        raise UsageError(f"{kind[:40]!r} is not a type of KV cache; there are {', '.join(_KV_BYTES)}")
    return _KV_BYTES[kind]


def _layer_bytes(shape: ModelShape, kv_dtype: str, tensor_parallel: int, context_parallel: int) -> int:
    """Count bytes of a token, layer, GPU."""
    width, of, must = number_bytes(shape, kv_dtype), shape.attention, ""
    if tensor_parallel < 1:
        must = "must be at least 1"
    elif of.heads % tensor_parallel:
        must = f"must divide the {of.heads} attention heads of {shape.name}"
    elif of.kv_heads % tensor_parallel and tensor_parallel % of.kv_heads:
        must = f"must divide the {of.kv_heads} key-value heads of {shape.name} or be a multiple of them"
    if must:
        raise UsageError(f"tensor parallelism {tensor_parallel}: {must}")
    copies = of.copies(tensor_parallel)
    if copies % context_parallel:
        must = f"must divide the {copies} GPUs that keep the same keys and values of {shape.name}"
    elif context_parallel > 1 and {layer.kind for layer in shape.kept} != {Attention.FULL}:
        must = f"must be 1 for {shape.name}: not modelled beside windows, chunks and states"
    if must:
        raise UsageError(f"context parallelism {context_parallel}: {must}")
    return of.token_bytes(width, tensor_parallel, context_parallel)


def _scaled(numbers: int) -> int:
    """Bytes of numbers in 8 bits, with a scale for every 128."""
    return numbers + numbers // 128 * 4
