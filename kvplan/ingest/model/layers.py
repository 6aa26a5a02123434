"""Which layer of a model is of which kind, however its configuration says that; and the states of some.

=============================  =======================================================================================
``layer_types``                a word for each layer; so do ``layers_block_type``, ``mixer_types``
``hybrid_override_pattern``    a letter for each: M state, * attention, - MLP, E experts
``attn_layer_indices``,        the layers with attention, among others with states; so do ``attn_layer_period`` with
``full_attention_interval``    ``attn_layer_offset``, ``attn_type_list``; ``layer_group_size``, the last of each
                               group and all that make no whole one
``attention_chunk_size``       chunks where positions are rotated: all but every ``no_rope_layer_interval``-th layer
``sliding_window``             windows: all but every ``sliding_window_pattern``-th layer, or beyond
                               ``max_window_layers``
=============================  =======================================================================================

Of a state vLLM allocates the last inputs of a convolution, one more for each draft, and what its recurrence carries on:

================  ==========================================  ========================================================
linear attention  value heads · key width · value width       convolution over keys, queries and values
lightning         heads · head width · head width             none, or over keys, queries and values
Mamba-2           heads · head width · state width            over the inner vector, and two of each group's states
Mamba-1           inner width · state width                   over the inner vector
================  ==========================================  ========================================================
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kvplan.errors import UsageError
from kvplan.ingest.model.json_keys import FAMILIES, LAYERS, Keys


class Layer(StrEnum):
    """Kind of a layer: attention or a state, mostly followed by an MLP or experts; or one of these alone."""

    FULL = "full"
    WINDOW = "window"
    CHUNK = "chunk"
    STATE = "state"
    MLP = "mlp"
    EXPERTS = "experts"


_WORDS, _LETTERS, _OF_WINDOWS = (
    {word: Layer(kind) for word, kind in LAYERS[table].items()} for table in ("words", "letters", "windows")
)
_SIZES = {Layer.WINDOW: "sliding_window", Layer.CHUNK: "attention_chunk_size"}
_SIXTEEN_BITS = 2  # bytes
_WIDTHS = {"": 2, "auto": 2, "bfloat16": 2, "float16": 2, "float32": 4}
_DT_SHARE = 16  # of the hidden size to the width that Mamba-1 makes its time steps from


def read_layers(keys: Keys, count: int, context: int | None) -> tuple[Layer, ...]:
    """Tell each layer's kind; windows that no request is longer than are full attention."""

    def bounded(kind: Layer) -> bool:
        return kind in _SIZES and not (context is not None and window_of(keys, kind) >= context)

    read = _read(keys, count)
    layers = tuple(Layer.FULL if kind in _SIZES and not bounded(kind) else kind for kind in read)
    if not {Layer.FULL, *_SIZES} & set(layers):
        raise keys.error("num_hidden_layers", "no layer with attention, so there is no KV cache to plan")
    return layers


def window_of(keys: Keys, kind: Layer) -> int:
    """Tokens of the windows or chunks."""
    return keys.size(_SIZES[kind])


def _read(keys: Keys, count: int) -> list[Layer]:
    if (words := keys.words("layer_types")) is not None:
        return _listed(keys, "layer_types", words, _WORDS, count)
    if keys.values.get("hybrid_override_pattern"):
        keys.text("hybrid_override_pattern")
        letters = list(keys.values["hybrid_override_pattern"])
        return _listed(keys, "hybrid_override_pattern", letters, _LETTERS, count)
    if (attending := _attending(keys, count)) is not None:
        return [Layer.FULL if i in attending else Layer.STATE for i in range(count)]
    if keys.optional_size("attention_chunk_size") is not None:
        return _chunked(keys, count)
    if keys.optional_size("sliding_window") is None or not keys.flag("use_sliding_window", default=True):
        return [Layer.FULL] * count
    if isinstance(pattern := keys.find("sliding_window_pattern")[1], str) and pattern:
        letters = [pattern[i % len(pattern)] for i in range(count)]
        return _listed(keys, "sliding_window_pattern", letters, _OF_WINDOWS, count)
    if (every := keys.optional_size("sliding_window_pattern")) is not None:
        return [Layer.WINDOW if (i + 1) % every else Layer.FULL for i in range(count)]
    # Below this layer Qwen2 attends to everything; other models slide in all layers.
    first = min(keys.size("max_window_layers", default=0, least=0), count)
    return [Layer.FULL] * first + [Layer.WINDOW] * (count - first)


def _listed(keys: Keys, name: str, words: list[str], known: Mapping[str, Layer], count: int) -> list[Layer]:
    unknown = next((word for word in for_each(keys, name, words, count) if word not in known), None)
    if unknown is not None:
        raise keys.error(keys.find(name)[0], f"{unknown[:40]!r}; must be one of {', '.join(sorted(known))}")
    return [known[word] for word in words]


def _attending(keys: Keys, count: int) -> set[int] | None:
    """Layers with attention, in models that mix it with states."""
    if (indices := keys.numbers("attn_layer_indices")) is not None:
        return set(indices)
    if (period := keys.optional_size("attn_layer_period")) is not None:
        return set(range(keys.size("attn_layer_offset", default=0, least=0), count, period))
    if (interval := keys.optional_size("full_attention_interval")) is not None:
        return set(range(interval - 1, count, interval))
    if (types := keys.numbers("attn_type_list")) is not None:
        return {i for i, kind in enumerate(for_each(keys, "attn_type_list", types, count)) if kind}
    if (size := keys.optional_size("layer_group_size")) is not None:
        return {i for i in range(count) if i % size == size - 1 or i >= count // size * size}
    return None


def for_each(keys: Keys, name: str, values: Sequence[Any], count: int) -> Sequence[Any]:
    """Refuse a list of another length than there are layers; those that draft tokens may follow."""
    drafting = keys.size("num_nextn_predict_layers", default=0, least=0)
    if len(values) not in (count, count + drafting):
        raise keys.error(keys.find(name)[0], f"a list of {len(values)}; num_hidden_layers is {count}")
    return values[:count]


def _chunked(keys: Keys, count: int) -> list[Layer]:
    """Llama 4: layers that rotate positions attend within a chunk, the others to everything."""
    if rotated := keys.numbers("no_rope_layers"):
        each = for_each(keys, "no_rope_layers", rotated, count)
        return [Layer.CHUNK if rotates else Layer.FULL for rotates in each]
    every = keys.size("no_rope_layer_interval")
    return [Layer.CHUNK if (i + 1) % every else Layer.FULL for i in range(count)]


# ---------------------------------------------------------------------------------------------- states


@dataclass(frozen=True, slots=True)
class State:
    """Sizes of one layer's state: numbers of the recurrence, and `taps` inputs to each channel of the convolution.

    `heads` are shared out over GPUs. Channels of `groups`, `group_channels` each, are copied where there are more GPUs.
    """

    heads: int
    numbers: int
    number_bytes: int
    taps: int
    channels: int
    parameters: int
    groups: int = 0
    group_channels: int = 0

    def bytes(self, tensor_parallel: int, drafts: int = 0) -> int:
        """Bytes on one GPU, whose heads must be shared out evenly; a convolution keeps an input more for each draft.

        Qwen3-Next: 32 heads of 128 by 128, and 3 inputs to 8,192 channels, in 16 bits.

        >>> State(16, 32 * 128 * 128, 2, 3, 8192, 0).bytes(1)
        1097728
        """
        if self.heads % tensor_parallel:
            must = f"must divide the {self.heads} heads of the layers with states"
            raise UsageError(f"tensor parallelism {tensor_parallel}: {must}")
        groups = tensor_parallel if self.groups % tensor_parallel else self.groups
        channels = self.channels + groups * self.group_channels
        inputs = self.taps + drafts if self.taps else 0
        return (self.numbers * self.number_bytes + inputs * channels * _SIXTEEN_BITS) // tensor_parallel


def _linear(keys: Keys, hidden: int, width_bytes: int) -> State:
    key_heads, heads = keys.size("linear_num_key_heads"), keys.size("linear_num_value_heads")
    key_width, width = keys.size("linear_key_head_dim"), keys.size("linear_value_head_dim")
    kernel = keys.size("linear_conv_kernel_dim")
    values, channels = heads * width, 2 * key_heads * key_width + heads * width
    # Queries, keys and values, the gate of the output, two numbers a head; and the way back.
    parameters = hidden * (channels + values + 2 * heads) + values * hidden + channels * kernel
    shared = math.gcd(key_heads, heads)
    return State(shared, heads * key_width * width, width_bytes, kernel - 1, channels, parameters)


def _mamba2(keys: Keys, hidden: int, width_bytes: int) -> State:
    heads, width = keys.size("mamba_num_heads"), keys.size("mamba_head_dim")
    groups, state, kernel = keys.size("n_groups"), keys.size("ssm_state_size"), keys.size("conv_kernel")
    inner, of_groups = heads * width, 2 * groups * state
    # Inputs, their gate, what the groups share, a time step a head; and the way back.
    parameters = hidden * (2 * inner + of_groups + heads) + inner * hidden + (inner + of_groups) * kernel
    return State(heads, inner * state, width_bytes, kernel - 1, inner, parameters, groups, 2 * state)


def _mamba1(keys: Keys, hidden: int, width_bytes: int) -> State:
    inner, state, kernel = (
        keys.size("mamba_expand") * hidden,
        keys.size("mamba_d_state"),
        keys.size("mamba_d_conv"),
    )
    said = keys.values.get("mamba_dt_rank")
    steps = -(-hidden // _DT_SHARE) if said in (None, "auto") else keys.size("mamba_dt_rank")
    parameters = 3 * hidden * inner + inner * (2 * steps + 3 * state + kernel)
    return State(inner, inner * state, width_bytes, kernel - 1, inner, parameters)


def _lightning(keys: Keys, hidden: int, width_bytes: int) -> State:
    heads = keys.size("lightning_nh", default=keys.size("num_attention_heads"))
    width = keys.size("lightning_head_dim", default=keys.size("head_dim", default=hidden // heads or 1))
    inner, kernel = heads * width, keys.size("linear_conv_kernel_dim", default=1)
    parameters = 5 * hidden * inner  # queries, keys, values, the gate of the output and the way back
    return State(heads, inner * width, width_bytes, kernel - 1, 3 * inner, parameters)


# By the key that tells the kind.
_STATES: Mapping[str, Callable[[Keys, int, int], State]] = {
    "linear_num_value_heads": _linear,
    "mamba_num_heads": _mamba2,
    "mamba_d_state": _mamba1,
}
_LIGHTNING = ("lightning_nh", "layer_group_size", "attn_type_list", "mixer_types")


def read_state(keys: Keys, *, listed: bool) -> State | None:
    """Read the state in a configuration; `listed`: it says which layers have one."""
    stated = next((key for key in _STATES if keys.has(key)), None)
    if not listed and stated is not None:
        at = keys.find(stated)[0]
        raise keys.error(at, "states in layers that no key lists; must have layer_types or another list")
    if not listed:
        return None
    lightning = (
        any(keys.values.get(key) for key in _LIGHTNING) or keys.text("model_type") in FAMILIES["lightning"]
    )
    if stated is None and not lightning:
        kinds = (
            "linear_num_value_heads (linear attention), mamba_num_heads (Mamba-2) or mamba_d_state (Mamba-1)"
        )
        raise keys.error("layer_types", f"layers with states of no size; must have {kinds}")
    said = keys.text("mamba_ssm_cache_dtype")
    if said not in _WIDTHS:
        known = ", ".join(filter(None, _WIDTHS))
        raise keys.error(keys.find("mamba_ssm_cache_dtype")[0], f"{said[:40]!r}; must be one of {known}")
    read = _lightning if stated is None else _STATES[stated]
    return read(keys, keys.size("hidden_size"), _WIDTHS[said])
