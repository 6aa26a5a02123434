"""The shape of a language model, from a Hugging Face config.json, the header of a GGUF file or the catalogue."""

import os
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from kvplan.errors import UsageError
from kvplan.ingest.model.gguf import is_gguf, read_gguf
from kvplan.ingest.model.hardware import find, tables
from kvplan.ingest.model.json_keys import DEFAULTS, FAMILIES, LARGEST, Keys, read_object
from kvplan.ingest.model.layers import Layer, read_layers, read_state, window_of
from kvplan.ingest.model.shape import Heads, Kept, ModelShape
from kvplan.ingest.model.weights import count_encoder, count_parameters, read_kv_dtype, read_storage
from kvplan.model.kv_layout import Attention
from kvplan.units import format_bytes

_SIXTEEN_BITS = 2  # bytes
_LAYERS = 10_000  # at most; published models have up to 126
_NOUN = "model in the catalogue nor file"
_NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
_QUANTISED = {"fp8": {"quant_method": "fp8"}, "nvfp4": _NVFP4, "fp4": _NVFP4}  # ends of names
_ABOUT = ("also", "longest", "short", "source", "total_billion", "active_billion")  # keys of the catalogue
_UNSCALED = (
    "su",
    "longrope",
    "llama3",
)  # kinds of rope_scaling whose factor vLLM leaves out of the longest context

_REQUIRED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
_GENERATING = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")  # ends of the names of their classes


def read_model(reference: str | Path) -> ModelShape:
    """Read a model's shape: of a config.json, a folder with one, a file in GGUF, or a name in the catalogue.

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
        if is_gguf(path):
            keys, storage = read_gguf(path)
            return replace(shape_of(keys, path.stem), storage=storage)
        if path.name != "config.json":
            return shape_of(read_object(path), path.stem)
        name = path.absolute().parent.name or path.stem
        return shape_of(read_object(path), name, _quantization_beside(path))
    name, entry, quantised = _catalogued(text)
    known = catalogue()[entry]
    config = {key: value for key, value in known.items() if key not in _ABOUT} | dict(quantised)
    if longest := known.get("longest", {}).get(name.rpartition("/")[2]):
        config["max_position_embeddings"] = longest
    shape = shape_of(Keys(f"catalogue: {entry}", config), name)
    return replace(shape, like=entry)


@cache
def catalogue() -> Mapping[str, Mapping[str, Any]]:
    """Read the configurations of the catalogue, by their names on Hugging Face."""
    return tables("models.toml")


@cache
def checkpoints() -> Mapping[str, Mapping[str, str]]:
    """Checkpoints with weights of another type, by the name of the model and the type."""
    return tables("checkpoints.toml")


def models() -> dict[str, dict[str, str]]:
    """Return all names of the catalogue: by entry, each name of a model of these sizes, with its name in full.

    >>> models()["meta-llama/Llama-3.2-1B"]["Llama-3.2-1B-Instruct"]
    'meta-llama/Llama-3.2-1B-Instruct'
    """
    return {entry: dict(_names(entry, config)) for entry, config in catalogue().items()}


def _names(entry: str, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    owner, _, own = entry.partition("/")
    every = (name if "/" in name else f"{owner}/{name}" for name in (own, *config.get("also", ())))
    real = {name.rpartition("/")[2]: name for name in every}
    for name, full in (
        *real.items(),
        *((short, real[long]) for short, long in config.get("short", {}).items()),
    ):
        yield from ((name, full), (name if "/" in name else f"{full.partition('/')[0]}/{name}", full))


def _catalogued(text: str) -> tuple[str, str, Mapping[str, Any]]:
    """Find a model's full name, the entry with its sizes, and what a type of weights at `text`'s end changes."""
    full = {name: model for names in models().values() for name, model in names.items()}
    entries = {model: entry for entry, names in models().items() for model in names.values()}
    known = {name: name for name in entries}
    try:
        name = find(text, known, full, _NOUN)
    except UsageError:
        Keys.refuse_by_name(text)
        stem, _, ending = text.rpartition("-")
        if ending.lower() not in _QUANTISED:
            raise
        name, method = find(stem.rpartition("/")[2], known, full, _NOUN), _QUANTISED[ending.lower()]
        kind = "fp8" if ending.lower() == "fp8" else "nvfp4"
        named = text if "/" in text else checkpoints().get(name, {}).get(kind, text)
        return named, entries[name], {"quantization_config": method}
    return name, entries[name], {}


def _quantization_beside(path: Path) -> Keys | None:
    """Read the file of a quantiser that replaces the `quantization_config` of a config.json without one."""
    for name, method in (("hf_quant_config.json", "modelopt"), ("quantize_config.json", "gptq")):
        if path.with_name(name).exists():
            whole = read_object(path.with_name(name))
            table = (whole.table("quantization") if method == "modelopt" else None) or whole
            return Keys(whole.source, {"quant_method": method, **table.values})
    return None


def shape_of(whole: Keys, name: str, quantization: Keys | None = None) -> ModelShape:
    """Read the shape in a config.json; of a text model nested in one for images or sound, where there is one.

    `quantization` stands for its `quantization_config` where it has none. Raises as `read_model`.
    """
    parts = [whole]  # from the outermost to that of the decoder
    while (part := next((text for key in _TEXT_PARTS if (text := parts[-1].table(key))), None)) is not None:
        parts.append(part)
    values = ChainMap(*(dict(part.values) for part in reversed(parts)))
    values = values.new_child(_delta_attention(Keys(whole.source, values)))
    filled = _filled(Keys(whole.source, values))
    keys = Keys(whole.source, values.new_child(filled))
    keys.refuse()
    keys.require(*_REQUIRED)
    unread = keys.unread()
    classes = keys.values.get("architectures")
    if isinstance(classes, list) and classes and not any(str(cls).endswith(_GENERATING) for cls in classes):
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
    encoder = keys.table("vision_config")
    shape = ModelShape(
        name=name,
        source=whole.source,
        layers=layers,
        kept=_kept(keys, kinds),
        state=state,
        hidden_size=keys.size("hidden_size"),
        attention=heads,
        counts=counts,
        storage=storage,
        notes=(),
        kv_dtype=kv_dtype,
        encoder_bytes=_SIXTEEN_BITS * (count_encoder(encoder) if encoder else 0),
        max_model_len=_longest(keys, context),
    )
    others = keys.has("audio_config") or (not shape.encoder_bytes and (len(parts) > 1 or encoder is not None))
    return replace(shape, notes=tuple(_notes(shape, filled, unread, other_encoders=others)))


def _filled(keys: Keys) -> dict[str, Any]:
    """Return defaults of a model's class, or of full attention; a pattern of layers unless these are listed."""
    kind, heads, hidden = (
        keys.text("model_type"),
        *(keys.find(key)[1] for key in ("num_attention_heads", "hidden_size")),
    )
    listed = isinstance(words := keys.find("layer_types")[1], list)
    defaults: dict[str, Any] = {}
    if isinstance(heads, int) and not (keys.has("kv_lora_rank") or keys.values.get("multi_query")):
        defaults["num_key_value_heads"] = heads
    if isinstance(hidden, int) and kind in FAMILIES["wide_mlp"]:
        defaults["intermediate_size_mlp"] = 4 * hidden
    if listed:
        defaults["num_hidden_layers"] = len(words)
    defaults |= DEFAULTS.get(kind, {})
    return {
        key: value
        for key, value in defaults.items()
        if not keys.has(key) and not (listed and key == "sliding_window_pattern")
    }


def _longest(keys: Keys, context: int | None) -> int | None:
    """Most tokens of a request, as vLLM derives them: `_get_and_verify_max_len` of its config/model.py."""
    table = keys.table("rope_parameters") or keys.table("rope_scaling")
    if context is None or table is None or "gemma3" in keys.text("model_type"):
        return context
    several = [
        rope for name in table.values if isinstance(table.values[name], dict) and (rope := table.table(name))
    ]
    for rope in several or [table]:
        kind = rope.text("rope_type") or rope.text("type")
        factor = rope.values.get("factor")
        if kind in _UNSCALED or isinstance(factor, bool) or not isinstance(factor, int | float):
            continue
        trained = (
            rope.size("original_max_position_embeddings", default=context) if kind == "yarn" else context
        )
        return max(1, min(int(trained * factor), LARGEST))
    return context


def _delta_attention(keys: Keys) -> dict[str, Any]:
    """Read Kimi Linear's own table, which counts layers from 1; vLLM keeps its states in 32 bits."""
    table = keys.table("linear_attn_config")
    if table is None:
        return {}
    full, states = (table.numbers(name) or [] for name in ("full_attn_layers", "kda_layers"))
    if sorted(full + states) != list(range(1, keys.size("num_hidden_layers") + 1)):
        raise keys.error(
            "linear_attn_config", "full_attn_layers and kda_layers must name each layer once, from 1"
        )
    heads, width = table.size("num_heads"), table.size("head_dim")
    return {
        "attn_layer_indices": [i - 1 for i in full],
        **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), heads),
        **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), width),
        "linear_conv_kernel_dim": table.size("short_conv_kernel_size"),
        "mamba_ssm_cache_dtype": "float32",
    }


def _kept(keys: Keys, kinds: Sequence[Layer]) -> tuple[Kept, ...]:
    """Layers by what they keep; an MLP alone keeps nothing, nor do the last ones that share an earlier cache."""
    kinds = kinds[: len(kinds) - keys.size("num_kv_shared_layers", default=0, least=0, most=len(kinds) - 1)]
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
    for key in ("index_head_dim", "q_lora_rank"):
        if keys.optional_size(key) is not None:
            raise keys.error(key, "not supported beside other attention than latent, which has kv_lora_rank")
    kv_heads = keys.size("num_key_value_heads", default=1)  # all but multi-query attention are filled in
    if keys.flag("multi_query", default=False) and not keys.flag("new_decoder_architecture", default=False):
        kv_heads = 1
    elif keys.has("multi_query_group_num") and not keys.flag("multi_query_attention", default=False):
        kv_heads = heads  # ChatGLM
    if heads % kv_heads:
        raise keys.error("num_key_value_heads", f"{kv_heads}; must divide num_attention_heads, {heads}")
    head_dim = keys.optional_size("head_dim")
    if head_dim is None:
        if hidden % heads:
            must = f"must divide hidden_size, {hidden}, without head_dim"
            raise keys.error("num_attention_heads", f"{heads}; {must}")
        head_dim = hidden // heads
    value_dim = keys.optional_size("v_head_dim") or head_dim
    each = keys.numbers("num_attention_heads_per_layer") or [heads]
    kind = "MHA" if kv_heads == heads else "MQA" if kv_heads == 1 else "GQA"
    # Queries and keys, values and output; a gate of the output is as large as the queries.
    matrices, shared = 4, round((sum(each) / len(each) + kv_heads) * (head_dim + value_dim))
    if keys.flag("attn_output_gate", default=False):
        matrices, shared = 5, shared + heads * head_dim
    sizes = matrices * hidden, shared
    return Heads(kind, heads, kv_heads, head_dim, hidden * shared, sizes, value_dim)


def _latent(keys: Keys, hidden: int, heads: int, rank: int) -> Heads:
    """Multi-head latent attention: keys and values of all heads are made from one small vector per token."""
    rope, nope = keys.size("qk_rope_head_dim"), keys.size("qk_nope_head_dim")
    if keys.size("qk_head_dim", default=rope + nope) != rope + nope:
        raise keys.error(
            "qk_head_dim", f"must be qk_rope_head_dim and qk_nope_head_dim together, {rope + nope}"
        )
    value = keys.size("v_head_dim")
    query_rank = keys.optional_size("q_lora_rank")
    queries = heads * (nope + rope)
    parameters = query_rank * (hidden + queries) if query_rank else hidden * queries
    parameters += hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
    index, topk = keys.optional_size("index_head_dim"), keys.size("index_topk", default=0, least=0)
    if index is not None:
        if keys.size("index_topk_freq", default=1) > 1 or "shared" in (keys.words("indexer_types") or ()):
            at = "indexer_types" if keys.has("indexer_types") else "index_topk_freq"
            raise keys.error(at, "index keys in some layers alone are not supported")
        index_heads = keys.size("index_n_heads")
        parameters += (query_rank or hidden) * index_heads * index + hidden * (index + index_heads)
    whole = 3 * hidden + 2 * rank + rope + 2 * (query_rank or 0)
    sizes = whole, queries + heads * (nope + 2 * value)
    return Heads("MLA", heads, heads, nope + rope, parameters, sizes, value, rank, rope, index, topk)


def _notes(
    shape: ModelShape, filled: Mapping[str, Any], unread: Sequence[str], *, other_encoders: bool
) -> Iterator[str]:
    if sizes := [f"{key} {value:,}" for key, value in filled.items() if not isinstance(value, bool)]:
        yield f"the file lacks {', '.join(sizes)}: what models of this type have is taken"
    if unread:
        more = f" and {len(unread) - 8} more" if len(unread) > 8 else ""
        yield f"keys not known, taken to change no size: {', '.join(unread[:8])}{more}"
    if not shape.storage.is_16_bit:
        yield f"bytes of {shape.storage.name} weights are an estimate: scales and padding vary"
    if shape.kv_dtype != "auto":
        yield f"the checkpoint is made for a KV cache in {shape.kv_dtype}, which auto stands for"
    if shape.attention.index_dim is not None:
        topk = f"{shape.attention.index_topk:,}" if shape.attention.index_topk else "some"
        yield f"attention reads {topk} tokens of a request, and the index keys of all"
    if shape.encoder_bytes:
        yield f"weights of an encoder of images, {format_bytes(shape.encoder_bytes)} by vision_config, count as memory"
    if other_encoders:
        counted = "and an encoder of images are" if shape.encoder_bytes else "is"
        kinds = "sound" if shape.encoder_bytes else "images or sound"
        yield f"only the text model {counted} counted: encoders of {kinds} take memory besides"
