"""How many parameters a language model has, counted from its sizes, and how many bytes they take."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvplan.errors import UsageError
from kvplan.ingest.model.json_keys import FAMILIES, Keys
from kvplan.ingest.model.layers import Layer, for_each

_SIXTEEN = 16.0  # bits
_NAMED_METHODS = ("fp8", "fbgemm_fp8", "mxfp4")
_GROUPED_METHODS = ("awq", "gptq", "auto-round", "awq_marlin", "gptq_marlin")
_ALGORITHMS = {"fp4": "nvfp4", "w4": "int4", "int4": "int4", "fp8": "fp8"}  # by a part of the name
_GROUP = 128  # weights that share a scale, where a configuration does not say


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Parameters by what becomes of them. Norms and biases are left out: less than 0.2 %.

    `embeddings` are tables from tokens to vectors and back, one where they are tied, and two `tables` else; `looked_up`
    further ones, of which a token reads a row for each layer; `experts` all routed ones, of which a token is not routed
    to the idle ones; `other` attention, dense MLPs, shared experts, routers. `mlp_inputs` and `mlp_widths` sum up the
    two sizes of the matrices of dense MLPs.
    """

    embeddings: int
    tables: int
    experts: int
    idle_experts: int
    other: int
    mlp_inputs: int = 0
    mlp_widths: int = 0
    looked_up: int = 0

    @property
    def total(self) -> int:
        """All parameters."""
        return self.embeddings + self.looked_up + self.experts + self.other

    @property
    def table_bytes(self) -> int:
        """Bytes of embeddings and output table, quantised or not."""
        return int((self.embeddings + self.looked_up) * _SIXTEEN / 8)

    @property
    def active(self) -> int:
        """Parameters one token meets."""
        return self.total - self.idle_experts

    @property
    def computing(self) -> int:
        """Parameters a prompt token is multiplied with: its embedding is looked up, and only the last token of a
        prompt goes on to the output table."""
        return self.active - self.embeddings - self.looked_up


@dataclass(frozen=True, slots=True)
class Storage:
    """How weights are kept: "16-bit", "fp8", "awq", …

    `bits` is that of a quantised weight, its share of scales and zero points included. Embeddings keep 16 bits, unless
    `embeddings` are quantised too, and so does all but routed experts with `experts_only`. Of weights that are kept in
    a way not known, `problem` says so.
    """

    name: str
    bits: float = _SIXTEEN
    experts_only: bool = False
    problem: str = ""
    embeddings: bool = False

    def total_bytes(self, counts: ParameterCounts) -> int:
        """Bytes of all weights."""
        quantised = counts.experts if self.experts_only else counts.experts + counts.other
        quantised = counts.total if self.embeddings else quantised
        return int((counts.total - quantised) * _SIXTEEN / 8 + quantised * self.bits / 8)

    @property
    def is_16_bit(self) -> bool:
        """Nothing is quantised."""
        return self.bits == _SIXTEEN


SIXTEEN_BIT = Storage("16-bit")


def count_parameters(
    keys: Keys, kinds: Sequence[Layer], *, attention_parameters: int, state_parameters: int = 0
) -> ParameterCounts:
    """Parameters of a decoder, from the text model's configuration and those of one layer's attention or state.

    Llama-2-7B: 6.74·10⁹.

    >>> keys = Keys("config.json", {"hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 32000})
    >>> count_parameters(keys, [Layer.FULL] * 32, attention_parameters=4 * 4096 * 4096).total
    6738149376
    """
    kind = keys.text("model_type")
    hidden = keys.size("hidden_size")
    matrices = 2 if kind in FAMILIES["plain_mlp"] else 3
    experts = keys.size("num_local_experts", default=0, least=0, most=10**5)
    dense, sparse = _feed_forward(keys, kinds, experts > 0)
    states, alone = kinds.count(Layer.STATE), kinds.count(Layer.MLP) + kinds.count(Layer.EXPERTS)
    other = (len(kinds) - states - alone) * attention_parameters + states * state_parameters
    width = keys.size("intermediate_size_mlp") // (2 if kind in FAMILIES["joint_mlp"] else 1) if dense else 0
    other += dense * matrices * hidden * width
    routed = idle = 0
    if sparse:
        used = keys.size("num_experts_per_tok", most=experts)
        of_expert = keys.size("moe_intermediate_size")
        shared = keys.size("n_shared_experts", default=0, least=0, most=10**5)
        shared *= keys.size("moe_shared_expert_intermediate_size", default=of_expert)
        shared += keys.size("shared_expert_intermediate_size", default=0, least=0)
        one_expert = sparse * matrices * hidden * of_expert
        routed, idle = experts * one_expert, (experts - used) * one_expert
        other += sparse * hidden * (matrices * shared + experts)  # a router has a row for each expert
    per_layer = keys.size("hidden_size_per_layer_input", default=0, least=0)
    other += len(kinds) * hidden * 3 * per_layer  # of all layers at once, and into and out of each
    rows = keys.size("vocab_size_per_layer_input", default=keys.size("vocab_size"))
    tables = 1 if keys.flag("tie_word_embeddings", default=kind in FAMILIES["tied"]) else 2
    return ParameterCounts(
        tables * keys.size("vocab_size") * hidden,
        tables,
        routed,
        idle,
        other,
        mlp_inputs=dense * matrices * hidden,
        mlp_widths=dense * matrices * width,
        looked_up=len(kinds) * per_layer * rows,
    )


def _feed_forward(keys: Keys, kinds: Sequence[Layer], has_experts: bool) -> tuple[int, int]:
    """Count MLPs, and layers with routed experts, which are layers of their own or follow attention."""
    alone = kinds.count(Layer.MLP), kinds.count(Layer.EXPERTS)
    if alone[1] and not has_experts:
        raise keys.error("n_routed_experts", "missing; must be how many experts the layers with experts have")
    if any(alone):
        return alone
    sparse = len(_sparse(keys, len(kinds))) if has_experts else 0
    return len(kinds) - sparse, sparse


def _sparse(keys: Keys, layers: int) -> set[int]:
    """Choose the layers with experts: listed, or every so many after the first dense ones."""
    if (words := keys.words("mlp_layer_types")) is not None:
        return {
            i for i, word in enumerate(for_each(keys, "mlp_layer_types", words, layers)) if word != "dense"
        }
    if enumerated := keys.text("moe_layers_enum"):
        return {int(part) for part in enumerated.split(",") if part.strip().isdecimal()} & set(range(layers))
    if numbers := keys.numbers("moe_layers"):
        return set(numbers) & set(range(layers))
    if isinstance(keys.values.get("moe_layer_freq"), list):
        flags = for_each(keys, "moe_layer_freq", keys.numbers("moe_layer_freq") or [], layers)
        return {i for i, flag in enumerate(flags) if flag}
    first = keys.size("first_k_dense_replace", default=0, least=0)
    last = keys.size("moe_layer_end_index", default=-1, least=-1)
    if (step := keys.optional_size("expert_layer_period")) is not None:
        offset = keys.size("expert_layer_offset", default=0, least=0)
    elif (step := keys.optional_size("moe_layer_freq")) is not None:
        offset = 0
    else:
        step = keys.size("decoder_sparse_step", default=1)
        offset = step - 1
    every = {i for i in range(first, layers if last < 0 else min(last + 1, layers)) if i % step == offset}
    return every - set(keys.numbers("mlp_only_layers") or ())


def count_encoder(table: Keys) -> int:
    """Parameters of an encoder of images, from its table: a transformer, and what merges patches; 0: not told.

    SigLIP, as Gemma 3 has it: 0.41·10⁹.

    >>> table = {"num_hidden_layers": 27, "hidden_size": 1152, "intermediate_size": 4304}
    >>> count_encoder(Keys("config.json", table))
    411070464
    """
    layers, width = table.optional_size("depth"), table.optional_size("embed_dim")
    ratio = (
        table.size("mlp_ratio", default=0, least=0) if isinstance(table.values.get("mlp_ratio"), int) else 4
    )
    inner = table.optional_size("intermediate_size") or (width or 0) * ratio
    if layers is None or width is None or not inner:
        return 0
    matrices = 3 if table.text("model_type") in FAMILIES["gated_encoder"] else 2
    merged = width * (table.optional_size("spatial_merge_size") or 0) ** 2
    out = table.optional_size("out_hidden_size") or 0
    mergers = 1 + len(table.numbers("deepstack_visual_indexes") or ())
    return layers * width * (4 * width + matrices * inner) + mergers * merged * (merged + out)


def read_storage(table: Keys | None, *, experts: bool) -> Storage:
    """Read how weights are kept, from a `quantization_config` or a file that stands for it.

    Without one weights take 16 bits: engines load 32-bit checkpoints as 16-bit ones unless told otherwise. Where
    `experts` are and attention is not quantised, only the experts are taken to be. What is not known is a problem where
    nobody says how weights are kept.
    """
    if table is None:
        return SIXTEEN_BIT
    try:
        storage = _storage(table)
    except UsageError as error:
        return Storage(table.text("quant_method")[:40] or "quantised", problem=str(error))
    left_alone = table.words("ignore") or ()
    partly = experts and any("attn" in name for name in left_alone)
    return replace(storage, experts_only=True) if partly else storage


def read_kv_dtype(table: Keys | None) -> str:
    """Read the type of KV cache that a quantised checkpoint is for; "auto" where it does not say."""
    if table is None:
        return "auto"
    if isinstance(table.values.get("kv_cache_scheme"), str):  # as modelopt writes
        word = table.text("kv_cache_scheme")
        return "fp8" if "fp8" in word else word if word not in ("", "none") else "auto"
    scheme = table.table("kv_cache_scheme")
    eight = scheme.optional_size("num_bits") == 8 if scheme else "fp8" in table.text("kv_cache_quant_algo")
    return "fp8" if eight else "auto"


def _storage(table: Keys) -> Storage:
    method = table.text("quant_method")
    if method in _NAMED_METHODS:
        return named_storage(method.removeprefix("fbgemm_"))
    if method in _GROUPED_METHODS:
        return _grouped(method, table.size("bits", default=4, most=8), table)
    if method == "bitsandbytes":
        return Storage(method, 4.5 if table.flag("load_in_4bit", default=False) else 8)
    if method == "compressed-tensors":
        return _compressed(table)
    if method != "modelopt":
        known = ", ".join(
            (*_NAMED_METHODS, *_GROUPED_METHODS, "bitsandbytes", "modelopt", "compressed-tensors")
        )
        raise table.error("quant_method", f"{method[:40] or 'missing'}; known are {known}")
    algorithm = table.text("quant_algo")
    for part, name in _ALGORITHMS.items():
        if part in algorithm:
            return named_storage(name)
    raise table.error("quant_algo", f"{algorithm[:40] or 'missing'}; known are FP8, NVFP4, INT4 and W4")


def _compressed(table: Keys) -> Storage:
    groups = table.table("config_groups")
    listed = [groups.table(name) for name in groups.values] if groups else []
    each = {_compressed_group(weights) for group in listed if group and (weights := group.table("weights"))}
    if len(each) != 1:
        several = "a mixture of " + ", ".join(sorted(storage.name for storage in each)) if each else "missing"
        raise table.error("config_groups", f"{several}; known are groups with weights of one type")
    return each.pop()


def _compressed_group(weights: Keys) -> Storage:
    bits = weights.size("num_bits", most=16)
    if bits == 8:
        return Storage("fp8" if weights.text("type") == "float" else "int8", 8)
    if bits == 4 and weights.text("type") == "float":
        return named_storage("nvfp4")
    return _grouped("compressed-tensors", bits, weights)


def _grouped(name: str, bits: int, table: Keys) -> Storage:
    """Every group of weights has a scale of 16 bits and a zero point of as many as a weight; -1 is a whole row."""
    group = table.size("group_size", default=_GROUP, least=-1)
    return Storage(name, bits + ((16 + bits) / group if group > 0 else 0.0))


_NAMED = {
    **dict.fromkeys(("bf16", "bfloat16", "fp16", "float16", "half"), SIXTEEN_BIT),
    "fp8": Storage("fp8", 8),
    "int8": Storage("int8", 8),
    "int4": Storage("int4", 4 + (16 + 4) / _GROUP),
    "mxfp4": Storage("mxfp4", 4 + 8 / 32, experts_only=True),  # a scale of 8 bits for 32 weights
    **dict.fromkeys(("nvfp4", "fp4"), Storage("nvfp4", 4 + 8 / 16)),
}


def named_storage(name: str) -> Storage:
    """Return the storage of a type."""
    if name.lower() not in _NAMED:
        raise UsageError(f"{name[:40]!r} is not a type of weights; there are {', '.join(_NAMED)}")
    return _NAMED[name.lower()]
