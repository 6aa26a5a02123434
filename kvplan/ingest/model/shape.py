"""The shape of a language model: what a token costs in KV cache.

Attention kinds, with bytes per token and layer on one GPU of t that share the model by tensor parallelism:

======================  =============================================================================================
MHA, GQA, MQA           2 · max(1, kv_heads / t) · head_dim · bytes: t > kv_heads copies heads instead of splitting
MLA                     (kv_lora_rank + qk_rope_head_dim) · bytes on every GPU: the latent is not split
sliding window          as above, but for the last `window_tokens` of a request at most: a bounded extra
linear, Mamba, …        none: a state of fixed size
======================  =============================================================================================
"""

from dataclasses import dataclass

from kvplan.errors import UsageError
from kvplan.ingest.model.weights import ParameterCounts, Storage

_KV_BYTES = {
    **dict.fromkeys(("auto", "bf16", "bfloat16", "fp16", "float16", "half"), 2),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "int8"), 1),
}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a language model.

    Attributes
    ----------
    name, source
        What it is called; the file or the catalogue.
    layers
        All of them: those with full attention, those with a sliding window, and those without KV cache.
    window_tokens
        Tokens a sliding layer keeps of a request.
    attention
        "MHA", "GQA", "MQA" or "MLA".
    kv_lora_rank, qk_rope_head_dim
        Of MLA.
    storage
        How the weights are kept.
    context_tokens
        The longest request the model is made for.
    notes
        What a reader of any figure derived from this should know.
    kv_dtype
        The type of KV cache that the checkpoint is made for, "auto" for 16 bits.
    """

    name: str
    source: str
    layers: int
    full_layers: int
    sliding_layers: int
    recurrent_layers: int
    window_tokens: int | None
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    attention: str
    kv_lora_rank: int | None
    qk_rope_head_dim: int | None
    counts: ParameterCounts
    storage: Storage
    context_tokens: int | None
    notes: tuple[str, ...]
    kv_dtype: str = "auto"

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights as the configuration keeps them."""
        return self.storage.total_bytes(self.counts)


def kv_bytes_per_token(shape: ModelShape, *, kv_dtype: str = "auto", tensor_parallel: int = 1) -> int:
    """Bytes of KV cache that one token takes on each GPU of a tensor-parallel group.

    Layers with a sliding window are left out, for what a request keeps there stays bounded:
    `window_bytes_per_request`. Where every layer slides, they are what counts, up to `window_tokens` of a request.

    Parameters
    ----------
    kv_dtype
        "auto" for what the checkpoint is made for, mostly 16 bits; or fp8, fp8_e4m3, fp8_e5m2, int8, bf16, fp16.
    tensor_parallel
        GPUs that share the model.

    Raises
    ------
    UsageError
        No such type, or heads cannot be shared out over so many GPUs.

    Examples
    --------
    >>> from kvplan.ingest.model.config import read_model
    >>> shape = read_model("Llama-3.1-70B")
    >>> [kv_bytes_per_token(shape, tensor_parallel=t) for t in (1, 4, 8, 16)]
    [327680, 81920, 40960, 40960]
    >>> kv_bytes_per_token(read_model("DeepSeek-V3"), tensor_parallel=8)
    70272
    """
    return (shape.full_layers or shape.sliding_layers) * _layer_bytes(shape, kv_dtype, tensor_parallel)


def window_bytes_per_request(shape: ModelShape, *, kv_dtype: str = "auto", tensor_parallel: int = 1) -> int:
    """Bytes of KV cache at most that a request takes on each GPU in layers with a sliding window.

    Raises
    ------
    UsageError
        As `kv_bytes_per_token`.

    Examples
    --------
    12 of 24 layers keep 128 tokens of 2048 bytes:

    >>> from kvplan.ingest.model.config import read_model
    >>> window_bytes_per_request(read_model("gpt-oss-20b"))
    3145728
    """
    return shape.sliding_layers * (shape.window_tokens or 0) * _layer_bytes(shape, kv_dtype, tensor_parallel)


def _layer_bytes(shape: ModelShape, kv_dtype: str, tensor_parallel: int) -> int:
    """Of one token in one layer on one GPU."""
    kind = shape.kv_dtype if kv_dtype.lower() == "auto" else kv_dtype.lower()
    if kind not in _KV_BYTES:
        raise UsageError(f"{kv_dtype[:40]!r} is not a type of KV cache; there are {', '.join(_KV_BYTES)}")
    width = _KV_BYTES[kind]
    kv_heads = kv_heads_per_gpu(shape, tensor_parallel)
    if shape.kv_lora_rank is not None and shape.qk_rope_head_dim is not None:
        return (shape.kv_lora_rank + shape.qk_rope_head_dim) * width
    return 2 * kv_heads * shape.head_dim * width


def kv_heads_per_gpu(shape: ModelShape, tensor_parallel: int) -> int:
    """Key-value heads each GPU of a group holds: its share, or one copy where there are more GPUs than heads.

    Raises
    ------
    UsageError
        The heads cannot be shared out evenly, which engines refuse too.

    Examples
    --------
    >>> from kvplan.ingest.model.config import read_model
    >>> [kv_heads_per_gpu(read_model("Llama-3.1-8B"), t) for t in (1, 2, 8, 32)]
    [8, 4, 1, 1]
    """
    if tensor_parallel < 1:
        raise UsageError(f"tensor parallelism {tensor_parallel}: must be at least 1")
    if shape.heads % tensor_parallel:
        raise UsageError(
            f"tensor parallelism {tensor_parallel}: must divide the {shape.heads} attention heads of {shape.name}"
        )
    if shape.kv_heads % tensor_parallel and tensor_parallel % shape.kv_heads:
        raise UsageError(
            f"tensor parallelism {tensor_parallel}: must divide the {shape.kv_heads} key-value heads of "
            f"{shape.name} or be a multiple of them"
        )
    return max(1, shape.kv_heads // tensor_parallel)
