"""The shape of a language model, from a Hugging Face config.json or the catalogue."""

import os
from collections import ChainMap
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from kvplan.errors import UsageError
from kvplan.ingest.model.hardware import find, tables
from kvplan.ingest.model.json_keys import Keys, read_object
from kvplan.ingest.model.layers import Layer, read_layers, read_state, window_of
from kvplan.ingest.model.shape import Heads, Kept, ModelShape
from kvplan.ingest.model.weights import Storage, count_parameters, read_kv_dtype, read_storage
from kvplan.model.kv_layout import Attention

_LAYERS = 10_000  # at most; published models have up to 126
_NOUN = "model in the catalogue nor file"
_NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
_QUANTISED = {"fp8": {"quant_method": "fp8"}, "nvfp4": _NVFP4, "fp4": _NVFP4}  # ends of names

_REQUIRED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
_TEXT_PARTS = ("text_config", "llm_config", "language_config")

# What classes of models fill in and their published configurations leave out.
_CLASS_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma2": {"sliding_window_pattern": 2},
    "gemma3_text": {"sliding_window_pattern": 6, "vocab_size": 262_208},
    "llama4_text": {"no_rope_layer_interval": 4, "n_shared_experts": 1},
    **{kind: {"use_sliding_window": False} for kind in ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")},
    **{kind: {"attn_output_gate": True} for kind in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")},
}

# Keys that make the formulas wrong. A refusal is better than a number that is off by a factor.
_GENERATING = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")  # ends of the names of their classes
_UNSUPPORTED = {
    "block_configs": "layers of different shapes",
    "block_types": "layers listed by kind",
    "hybrid_layer_ids": "layers that share one attention",
    "cross_attention_layers": "layers that attend to images",
    "global_head_dim": "full-attention layers with heads of another size",
    "linear_attn_config": "layers listed by a configuration of their own",
    "moe_latent_size": "experts of smaller vectors",
    "num_kv_shared_layers": "layers that share one cache",
}


def read_model(reference: str | Path) -> ModelShape:
    """The shape of a model: of a config.json, a folder with one, or a name in the catalogue.

    Raises
    ------
    UsageError
        The file cannot be read, is not such a configuration, or describes a model these formulas do not hold for;
        the catalogue knows no such name.

    Examples
    --------
    >>> from kvplan.ingest.model.shape import kv_bytes_per_token
    >>> shape = read_model("Llama-3.1-8B")
    >>> shape.attention.kind, shape.layers, shape.attention.kv_heads, kv_bytes_per_token(shape)
    ('GQA', 32, 8, 131072)
    """
    text = os.fspath(reference)
    if os.path.isdir(text):
        return read_model(Path(text) / "config.json")
    if isinstance(reference, Path) or os.path.exists(text) or text.endswith(".json"):
        path = Path(text)
        if path.name != "config.json":
            return shape_of(read_object(path), path.stem)
        name = path.absolute().parent.name or path.stem
        return shape_of(read_object(path), name, _quantization_beside(path))
    name, quantised = _catalogued(text)
    return shape_of(Keys(f"catalogue: {name}", {**catalogue()[name], **quantised}), name)


@cache
def catalogue() -> Mapping[str, Mapping[str, Any]]:
    """The configurations that come with kvplan, by their names on Hugging Face."""
    return tables("models.toml")


def _catalogued(text: str) -> tuple[str, Mapping[str, Any]]:
    """The name in the catalogue, and what a type of weights at the end of `text` changes: nvidia/Qwen3-32B-NVFP4."""
    known = catalogue()
    names = {name: name for name in known}
    aliases = {alias: name for name, config in known.items() for alias in _other_names(name, config)}
    try:
        return find(text, names, aliases, _NOUN), {}
    except UsageError:
        stem, _, ending = text.rpartition("-")
        if ending.lower() not in _QUANTISED:
            raise
    name = find(stem.rpartition("/")[2], names, aliases, _NOUN)
    return name, {"quantization_config": _QUANTISED[ending.lower()]}


def _other_names(name: str, config: Mapping[str, Any]) -> list[str]:
    """The name without its owner, and those the catalogue gives."""
    short = name.partition("/")[2]
    given = [short, *config.get("also", ())]
    return given + [f"{owner}/{other}" for owner in [name.partition("/")[0]] for other in given]


def _quantization_beside(path: Path) -> Keys | None:
    """What stands for the `quantization_config` of a config.json without one: the files that quantisers write."""
    for name, method in (("hf_quant_config.json", "modelopt"), ("quantize_config.json", "gptq")):
        if path.with_name(name).exists():
            whole = read_object(path.with_name(name))
            table = (whole.table("quantization") if method == "modelopt" else None) or whole
            return Keys(whole.source, {"quant_method": method, **table.values})
    return None


def shape_of(whole: Keys, name: str, quantization: Keys | None = None) -> ModelShape:
    """The shape that a config.json describes; of a text model nested in one for images or sound, where there is one.

    `quantization` stands for its `quantization_config` where it has none. Raises as `read_model`.

    Examples
    --------
    >>> small = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
    >>> shape = shape_of(Keys("config.json", small | {"vocab_size": 100}), "small")
    >>> shape.attention.kind, shape.attention.head_dim
    ('MHA', 16)
    """
    part = next((text for key in _TEXT_PARTS if (text := whole.table(key))), None)
    values = ChainMap(dict(part.values) if part else {}, dict(whole.values))
    keys = Keys(whole.source, values)
    defaults = _CLASS_DEFAULTS.get(keys.text("model_type"), {})
    filled = {key: value for key, value in defaults.items() if values.get(key) is None}
    keys = Keys(whole.source, values.new_child(filled))
    keys.require(*_REQUIRED)
    for key, why in _UNSUPPORTED.items():
        if keys.values.get(key):
            raise keys.error(key, f"{why} are not supported; state kv_bytes_per_token in the profile instead")
    classes = keys.values.get("architectures")
    if isinstance(classes, list) and classes and not any(str(one).endswith(_GENERATING) for one in classes):
        raise keys.error("architectures", "none of these generates text, and so keeps KV")
    context = keys.optional_size("max_position_embeddings")
    layers = keys.size("num_hidden_layers", most=_LAYERS)
    kinds = read_layers(keys, layers, context)
    heads, state = _heads(keys), read_state(keys, listed=Layer.STATE in kinds)
    counts = count_parameters(
        keys,
        kinds,
        attention_parameters=heads.parameters,
        state_parameters=state.parameters if state else 0,
    )
    quantization = keys.table("quantization_config") or quantization
    storage = read_storage(quantization, experts=counts.experts > 0)
    kv_dtype = read_kv_dtype(quantization)
    return ModelShape(
        name=name,
        source=whole.source,
        layers=layers,
        kept=_kept(keys, kinds),
        state=state,
        hidden_size=keys.size("hidden_size"),
        attention=heads,
        counts=counts,
        storage=storage,
        context_tokens=context,
        notes=_notes(storage, kv_dtype, filled, nested=part is not None),
        kv_dtype=kv_dtype,
    )


def _kept(keys: Keys, kinds: Sequence[Layer]) -> tuple[Kept, ...]:
    """Layers by what they keep; an MLP alone keeps nothing."""
    kept = []
    for kind in Attention:
        layer = Layer(kind.value)
        if layer in kinds:
            window = window_of(keys, layer) if layer in (Layer.WINDOW, Layer.CHUNK) else None
            kept.append(Kept(kind, kinds.count(layer), window))
    return tuple(kept)


def _heads(keys: Keys) -> Heads:
    hidden = keys.size("hidden_size")
    heads = keys.size("num_attention_heads")
    if (rank := keys.optional_size("kv_lora_rank")) is not None:
        return _latent(keys, hidden, heads, rank)
    alone = 1 if keys.flag("multi_query", default=False) else heads
    kv_heads = keys.size("num_key_value_heads", default=alone)
    if heads % kv_heads:
        raise keys.error("num_key_value_heads", f"{kv_heads}; must divide num_attention_heads, {heads}")
    head_dim = keys.optional_size("head_dim")
    if head_dim is None:
        if hidden % heads:
            must = f"must divide hidden_size, {hidden}, without head_dim"
            raise keys.error("num_attention_heads", f"{heads}; {must}")
        head_dim = hidden // heads
    kind = "MHA" if kv_heads == heads else "MQA" if kv_heads == 1 else "GQA"
    # Queries and output, keys and values; a gate of the output is as large as the queries.
    parameters = 2 * hidden * head_dim * (heads + kv_heads)
    if keys.flag("attn_output_gate", default=False):
        parameters += hidden * head_dim * heads
    return Heads(kind, heads, kv_heads, head_dim, parameters)


def _latent(keys: Keys, hidden: int, heads: int, rank: int) -> Heads:
    """Multi-head latent attention: keys and values of all heads are made from one small vector per token."""
    rope, nope = keys.size("qk_rope_head_dim"), keys.size("qk_nope_head_dim")
    value = keys.size("v_head_dim")
    query_rank = keys.optional_size("q_lora_rank")
    queries = heads * (nope + rope)
    parameters = query_rank * (hidden + queries) if query_rank else hidden * queries
    parameters += hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
    return Heads("MLA", heads, heads, nope + rope, parameters, rank, rope)


def _notes(storage: Storage, kv_dtype: str, filled: Mapping[str, Any], *, nested: bool) -> tuple[str, ...]:
    notes = []
    if sizes := [f"{key} {value:,}" for key, value in filled.items() if not isinstance(value, bool)]:
        notes.append(f"the file lacks {', '.join(sizes)}: what models of this type have is taken")
    if not storage.is_16_bit:
        notes.append(f"bytes of {storage.name} weights are an estimate: scales and padding vary")
    if kv_dtype != "auto":
        notes.append(f"the checkpoint is made for a KV cache in {kv_dtype}, which auto stands for")
    if nested:
        notes.append("only the text model is counted: encoders of images or sound take memory besides")
    return tuple(notes)
