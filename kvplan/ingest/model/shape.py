"""The shape of a language model: what a token costs in KV cache.

Attention kinds, with bytes per token and layer on one GPU of t that share the model by tensor parallelism:

======================  =============================================================================================
MHA, GQA, MQA           2 · max(1, kv_heads / t) · head_dim · bytes: t > kv_heads copies heads instead of splitting
MLA                     (kv_lora_rank + qk_rope_head_dim) · bytes on every GPU: the latent is not split
window, chunk           as above, but for the last tokens of a request alone
linear, Mamba, …        none: a state of fixed size, `kvplan.ingest.model.layers`
======================  =============================================================================================
"""

from dataclasses import dataclass

from kvplan.errors import UsageError
from kvplan.ingest.model.layers import State
from kvplan.ingest.model.weights import ParameterCounts, Storage
from kvplan.model.kv_layout import Attention, Layers

_KV_BYTES = {
    **dict.fromkeys(("auto", "bf16", "bfloat16", "fp16", "float16", "half"), 2),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "int8"), 1),
}


@dataclass(frozen=True, slots=True)
class Kept:
    """How many layers keep what of a request; of a window or chunk so many tokens."""

    kind: Attention
    count: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention of one layer: "MHA", "GQA", "MQA" or "MLA", which has a rank and a part with positions."""

    kind: str
    heads: int
    kv_heads: int
    head_dim: int
    parameters: int
    kv_lora_rank: int | None = None
    rope_dim: int | None = None


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a language model.

    Attributes
    ----------
    name, source
        What it is called; the file or the catalogue.
    layers
        All of them, those that keep nothing too.
    kept, state
        What layers keep of a request, by kind; the state of those that have one.
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
    kept: tuple[Kept, ...]
    state: State | None
    hidden_size: int
    attention: Heads
    counts: ParameterCounts
    storage: Storage
    context_tokens: int | None
    notes: tuple[str, ...]
    kv_dtype: str = "auto"

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights as the configuration keeps them."""
        return self.storage.total_bytes(self.counts)


def kv_layers(shape: ModelShape, *, kv_dtype: str = "auto", tensor_parallel: int = 1) -> tuple[Layers, ...]:
    """Layers by what they keep, with the bytes on each GPU of a tensor-parallel group.

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
    >>> [(str(one.kind), one.count, one.bytes, one.window) for one in kv_layers(read_model("gpt-oss-20b"))]
    [('full', 12, 2048, None), ('window', 12, 2048, 128)]
    """
    per_token = _layer_bytes(shape, kv_dtype, tensor_parallel)
    of_state = shape.state.bytes(tensor_parallel) if shape.state else 0
    return tuple(
        Layers(one.kind, one.count, of_state if one.kind is Attention.STATE else per_token, one.window)
        for one in shape.kept
    )


def kv_bytes_per_token(shape: ModelShape, *, kv_dtype: str = "auto", tensor_parallel: int = 1) -> int:
    """Bytes of KV cache that a long request takes on each GPU for one token more; parameters as for `kv_layers`.

    Layers that keep a part of a request are left out, but where no layer keeps all of it.

    Examples
    --------
    >>> from kvplan.ingest.model.config import read_model
    >>> shape = read_model("Llama-3.1-70B")
    >>> [kv_bytes_per_token(shape, tensor_parallel=t) for t in (1, 4, 8, 16)]
    [327680, 81920, 40960, 40960]
    """
    layers = kv_layers(shape, kv_dtype=kv_dtype, tensor_parallel=tensor_parallel)
    full = sum(one.count * one.bytes for one in layers if one.kind is Attention.FULL)
    return full or sum(one.count * one.bytes for one in layers if not one.is_state)


def _layer_bytes(shape: ModelShape, kv_dtype: str, tensor_parallel: int) -> int:
    """Of one token in one layer on one GPU: its share of the heads, or a copy where there are more GPUs than heads."""
    kind = shape.kv_dtype if kv_dtype.lower() == "auto" else kv_dtype.lower()
    if kind not in _KV_BYTES:
        raise UsageError(f"{kv_dtype[:40]!r} is not a type of KV cache; there are {', '.join(_KV_BYTES)}")
    of, must = shape.attention, ""
    if tensor_parallel < 1:
        must = "must be at least 1"
    elif of.heads % tensor_parallel:
        must = f"must divide the {of.heads} attention heads of {shape.name}"
    elif of.kv_heads % tensor_parallel and tensor_parallel % of.kv_heads:
        must = f"must divide the {of.kv_heads} key-value heads of {shape.name} or be a multiple of them"
    if must:
        raise UsageError(f"tensor parallelism {tensor_parallel}: {must}")
    if of.kv_lora_rank is not None and of.rope_dim is not None:
        return (of.kv_lora_rank + of.rope_dim) * _KV_BYTES[kind]
    return 2 * max(1, of.kv_heads // tensor_parallel) * of.head_dim * _KV_BYTES[kind]
