"""Which layer of a model is of which kind, however its configuration says that.

=============================  =======================================================================================
``layer_types``                a word for each layer; so does ``layers_block_type``
``hybrid_override_pattern``    a letter for each: M state, * attention, - MLP, E experts
``attn_layer_indices``,        the layers with attention, among others with states; so do ``attn_layer_period`` with
``full_attention_interval``    ``attn_layer_offset``
``attention_chunk_size``       chunks where positions are rotated: all but every ``no_rope_layer_interval``-th layer
``sliding_window``             windows: all but every ``sliding_window_pattern``-th layer, or beyond
                               ``max_window_layers``
=============================  =======================================================================================
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from kvplan.ingest.model.json_keys import Keys


class Layer(StrEnum):
    """What a layer is: attention or a state, mostly followed by an MLP or experts; or one of these alone."""

    FULL = "full"
    WINDOW = "window"
    CHUNK = "chunk"
    STATE = "state"
    MLP = "mlp"
    EXPERTS = "experts"


_WORDS: Mapping[str, Layer] = MappingProxyType(
    {
        **dict.fromkeys(("full_attention", "attention"), Layer.FULL),
        "sliding_attention": Layer.WINDOW,
        "chunked_attention": Layer.CHUNK,
        **dict.fromkeys(("linear_attention", "mamba", "mamba2"), Layer.STATE),
        "mlp": Layer.MLP,
        "moe": Layer.EXPERTS,
    }
)
_LETTERS: Mapping[str, Layer] = MappingProxyType(
    {"M": Layer.STATE, "*": Layer.FULL, "-": Layer.MLP, "E": Layer.EXPERTS}
)
_SIZES = MappingProxyType({Layer.WINDOW: "sliding_window", Layer.CHUNK: "attention_chunk_size"})
_PATTERN = "hybrid_override_pattern"


def read_layers(keys: Keys, count: int, context: int | None) -> tuple[Layer, ...]:
    """The kind of each layer; windows that no request is longer than are full attention.

    Raises
    ------
    ProfileError
        A kind is none of those above, or none has attention, or there are more or fewer than `count`.

    Examples
    --------
    >>> [str(kind) for kind in read_layers(Keys("config.json", {"hybrid_override_pattern": "M-*E"}), 4, None)]
    ['state', 'mlp', 'full', 'experts']
    """
    found = tuple(
        Layer.FULL if kind in _SIZES and _covers(window_of(keys, kind), context) else kind
        for kind in _read(keys, count)
    )
    if not {Layer.FULL, *_SIZES} & set(found):
        raise keys.error("num_hidden_layers", "no layer with attention, so there is no KV cache to plan")
    return found


def window_of(keys: Keys, kind: Layer) -> int:
    """Tokens of the windows or chunks."""
    return keys.size(_SIZES[kind])


def _read(keys: Keys, count: int) -> list[Layer]:
    if (words := keys.words("layer_types", "layers_block_type")) is not None:
        return _listed(keys, "layer_types", words, _WORDS, count)
    if letters := keys.values.get(_PATTERN):
        keys.text(_PATTERN)
        return _listed(keys, _PATTERN, list(letters), _LETTERS, count)
    if set(keys.numbers("attn_type_list") or ()) - {1}:
        raise keys.error("attn_type_list", "layers listed by number are not supported; must be all 1")
    if (attending := _attending(keys, count)) is not None:
        return [Layer.FULL if i in attending else Layer.STATE for i in range(count)]
    if keys.optional_size("attention_chunk_size") is not None:
        return _chunked(keys, count)
    if keys.optional_size("sliding_window") is None or not keys.flag("use_sliding_window", default=True):
        return [Layer.FULL] * count
    if (every := keys.optional_size("sliding_window_pattern", "_sliding_window_pattern")) is not None:
        return [Layer.WINDOW if (i + 1) % every else Layer.FULL for i in range(count)]
    # Below this layer Qwen2 attends to everything; other models slide in all layers.
    first = min(keys.size("max_window_layers", default=0, least=0), count)
    return [Layer.FULL] * first + [Layer.WINDOW] * (count - first)


def _listed(keys: Keys, name: str, words: list[str], known: Mapping[str, Layer], count: int) -> list[Layer]:
    if len(words) != count:
        raise keys.error(name, f"a list of {len(words)}; num_hidden_layers is {count}")
    unknown = next((word for word in words if word not in known), None)
    if unknown is not None:
        raise keys.error(name, f"{unknown[:40]!r}; must be one of {', '.join(sorted(known))}")
    return [known[word] for word in words]


def _attending(keys: Keys, count: int) -> set[int] | None:
    """Layers with attention, in models that mix it with states."""
    if (indices := keys.numbers("attn_layer_indices")) is not None:
        return set(indices)
    if (period := keys.optional_size("attn_layer_period")) is not None:
        return set(range(keys.size("attn_layer_offset", default=0, least=0), count, period))
    if (interval := keys.optional_size("full_attention_interval")) is not None:
        return set(range(interval - 1, count, interval))
    return None


def _chunked(keys: Keys, count: int) -> list[Layer]:
    """Llama 4: layers that rotate positions attend within a chunk, the others to everything."""
    if rotated := keys.numbers("no_rope_layers"):
        if len(rotated) != count:
            raise keys.error("no_rope_layers", f"a list of {len(rotated)}; num_hidden_layers is {count}")
        return [Layer.CHUNK if one else Layer.FULL for one in rotated]
    every = keys.size("no_rope_layer_interval")
    return [Layer.CHUNK if (i + 1) % every else Layer.FULL for i in range(count)]


def _covers(window: int, context: int | None) -> bool:
    """No request is longer than the window, which then bounds nothing."""
    return context is not None and window >= context
