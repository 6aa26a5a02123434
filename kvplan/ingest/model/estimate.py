"""The KV capacity of a replica nobody has started yet, from the sizes of model and GPU, engine and version.

::

    KV memory = utilization · memory of the GPU - weights - overhead
    weights   = (all but experts and tables / t + experts and tables / (t · d)) / p
    overhead  = max(sampling, forward pass) + fixed

on each GPU, for t of them in tensor, d in data and p in pipeline parallelism; a data-parallel rank holds what its p
stages do. vLLM measures the overhead as it starts, on max_num_seqs sequences and max_num_batched_tokens tokens;
engines.toml has it by version, and how SGLang and TensorRT-LLM differ. docs/accuracy.md says how near it comes.
What an engine logs when it starts always wins over this.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kvplan.engine import EngineName, numbers
from kvplan.errors import UsageError
from kvplan.ingest.model.hardware import Gpu, tables
from kvplan.ingest.model.shape import ModelShape, kv_layers, with_weights
from kvplan.model.kv_layout import Attention, KvLayout, least_block_tokens
from kvplan.model.parallelism import ALONE, Parallelism
from kvplan.units import format_bytes, format_number

_LIMITS = {"max_num_seqs": 256, "max_num_batched_tokens": 8192}  # where none are known
_MOST_GPUS = 64  # in one group: eight servers of eight
_TITLES = {EngineName.VLLM: "vLLM", EngineName.SGLANG: "SGLang", EngineName.TRTLLM: "TensorRT-LLM"}
_OFF = {
    "driver": "the driver's, up to one per cent above",
    "datasheet": "the datasheet's, a few per cent off",
}


class Takes(NamedTuple):
    """Memory that an engine takes from one version on, by engines.toml; `limits` are its own or given."""

    engine: EngineName
    newest: str
    utilization: float
    fixed_gib: float
    shared_gib: float = 0.0
    logits: float = 0.0

    def beside(
        self, shape: ModelShape, ranks: Parallelism, memory: int, weights: int, limits: Mapping[str, int]
    ) -> tuple[int, int]:
        """Bytes that are shared out on each GPU, and of them those that neither weights nor KV cache take.

        A forward pass takes at most all inner vectors of an MLP and four vectors of each token; workspaces of experts
        and encoders are left out.
        """
        share, seqs, tokens = self.utilization, *({**_LIMITS, **limits}[key] for key in _LIMITS)
        fixed = (self.fixed_gib + (self.shared_gib if ranks.gpus > 1 else 0)) * 2**30
        forward = 2 * tokens * (shape.counts.mlp_widths / shape.layers / ranks.tensor + 4 * shape.hidden_size)
        # a share of what is free before weights; activations in the rest
        if self.engine is EngineName.SGLANG:
            return int(share * memory), int(share * fixed)
        if self.engine is EngineName.TRTLLM:  # of what is free beside them
            peak = fixed + forward + weights
            return memory, int(peak - weights + (1 - share) * max(0.0, memory - peak))
        sampling = 4 * self.logits * min(seqs, tokens) * shape.vocabulary + 2 * tokens * shape.hidden_size
        return int(share * memory), int(max(forward, sampling) + fixed)


def takes(engine: EngineName, version: str = "") -> list[Takes]:
    """List what an engine takes: at a version, the newest known if that is empty, then at those before it.

    Raises
    ------
    UsageError
        The version is not known.
    """
    table = tables("engines.toml")[engine]
    newest, records = table["newest"], table["records"]
    asked, first = numbers(version or newest), records[0]["since"]
    if asked < numbers(first) or asked[:2] > numbers(newest):
        known = f"known are {first} to {newest}, and without one {newest} is taken"
        raise UsageError(f"--engine {engine}=={version}: no such version; {known}")
    kept = [record for record in reversed(records) if numbers(record["since"]) <= asked]
    return [Takes(engine, newest, **{key: r[key] for key in Takes._fields if key in r}) for r in kept]


def is_hybrid(kinds: Collection[Attention], engine: EngineName, version: str = "") -> bool:
    """Tell whether a version, the newest if it is empty, drops what layers of these kinds do not attend to again.

    Raises
    ------
    UsageError
        It keeps states beside its pool.

    Examples
    --------
    >>> [is_hybrid({Attention.CHUNK}, EngineName.VLLM, version) for version in ("0.10.0", "0.10.1", "")]
    [True, False, True]
    """
    table = tables("engines.toml")[engine]
    asked = numbers(version or table["newest"])
    records = [each for each in table.get("kept", ()) if numbers(each["since"]) <= asked]
    lacking = {*kinds} - {Attention.FULL, *(records[-1]["kinds"] if records else Attention)}
    if Attention.STATE in lacking:
        first = next(each["since"] for each in table["kept"] if Attention.STATE in each["kinds"])
        why = f"layers with states are kept beside the pool before {first}, which is not modelled"
        raise UsageError(f"--engine {engine}=={version}: {why}")
    return not lacking


_SGLANG_CHUNKS = ((35, 2048), (60, 4096), (160, 8192))  # below so many GiB, tokens


def default_limits(engine: EngineName | None, gpu: Gpu, version: str = "") -> dict[str, int]:
    """Return the limits an engine has by default on a GPU.

    ``vllm serve``: ``EngineArgs.get_batch_defaults``. Before 0.8, the first version with V1 as its default, limits were
    the same on all GPUs (vLLM pull request 16158). TensorRT-LLM: ``BuildConfig``, on all. SGLang: the chunk of a prompt
    by the GPU's memory, ``ServerArgs``; and the least of what it allows by KV cache and context length.
    """
    if engine is EngineName.TRTLLM:
        return {"max_num_seqs": 2048, "max_num_batched_tokens": 8192}
    if engine is EngineName.SGLANG:
        chunks = (chunk for most, chunk in _SGLANG_CHUNKS if gpu.memory_bytes < most * 2**30)
        return {"max_num_seqs": 2048, "max_num_batched_tokens": next(chunks, 16_384)}
    if engine is not EngineName.VLLM:
        return {}
    large = gpu.memory_bytes >= 70 * 2**30 and "A100" not in gpu.name and numbers(version or "0.8") >= (0, 8)
    return {"max_num_seqs": 1024 if large else 256, "max_num_batched_tokens": 8192 if large else 2048}


@dataclass(frozen=True, slots=True)
class ReplicaEstimate:
    """Capacity of one data-parallel rank, in whole blocks. Bytes are those of one GPU.

    `version` is the engine's, with what others hold if none was named; `notes` tell assumptions.
    """

    memory_tokens: int
    layout: KvLayout
    memory_bytes_for_kv: int
    weights_bytes: int
    overhead_bytes: int
    parallelism: Parallelism
    version: str
    notes: tuple[str, ...]

    @property
    def block_tokens(self) -> int:
        """Tokens of a page, in each layer of a group."""
        return self.layout.block_tokens

    @property
    def kv_blocks(self) -> int:
        """Pages of the pool."""
        return self.memory_tokens // self.block_tokens

    @property
    def is_mixed(self) -> bool:
        """Some layers keep less than all tokens of a request."""
        return any(layer.kind is not Attention.FULL for layer in self.layout.layers)


def estimate_replica(
    shape: ModelShape,
    gpu: Gpu,
    *,
    engine: EngineName = EngineName.VLLM,
    version: str = "",
    limits: Mapping[str, int] | None = None,
    utilization: float | None = None,
    kv_dtype: str = "auto",
    parallelism: Parallelism = ALONE,
    block_tokens: int = 16,
    weight_dtype: str | None = None,
) -> ReplicaEstimate:
    """KV capacity of a model on a GPU, or on several that share it.

    Parameters
    ----------
    engine, version
        The newest version known if it is empty.
    limits
        max_num_seqs and max_num_batched_tokens, where they are not the engine's own.
    utilization
        Share of the GPU's memory the engine may take, vLLM's ``gpu_memory_utilization``; None: its default.
    kv_dtype, weight_dtype
        As for `kv_layers`; of the weights, in place of the configuration's: fp8, int8, int4, mxfp4, nvfp4, bf16, fp16.
    block_tokens
        Tokens of a page, or as many as a state needs; the capacity is rounded down to whole pages.

    Examples
    --------
    A real start of vLLM 0.19 reported 41,408 tokens here:

    >>> from kvplan.ingest.model.hardware import find_gpu
    >>> from kvplan.ingest.model.config import read_model
    >>> estimate = estimate_replica(read_model("Llama-3.1-8B"), find_gpu("RTX 4090"), version="0.19.0")
    >>> estimate.memory_tokens, estimate.layout.bytes_per_token
    (40896, 131072)
    """
    if utilization is not None and not 0 < utilization <= 1:
        raise UsageError(f"memory utilization {utilization}: must be above 0 and at most 1")
    if block_tokens < 1:
        raise UsageError(f"block of {block_tokens} tokens: must be at least 1")
    shape = with_weights(shape, weight_dtype)
    versions = takes(engine, version)
    limits = default_limits(engine, gpu, version) | dict(limits or {})
    hybrid = is_hybrid({kept.kind for kept in shape.kept}, engine, version)

    def on(ranks: Parallelism, taken: Takes = versions[0]) -> tuple[int, int, int, KvLayout]:
        """Bytes of weights, overhead and KV on each of so many GPUs, and pages as large as a state, as engines do.

        Norms, and heads that are copied, are on every GPU; both are small and left out.
        """
        check_parallelism(ranks, shape, gpu)
        weights = shape.loaded_bytes(ranks)
        layers = kv_layers(
            shape, kv_dtype=kv_dtype, tensor_parallel=ranks.tensor, context_parallel=ranks.context
        )
        block = max(block_tokens * ranks.context, least_block_tokens(layers))
        layout = KvLayout(layers, block, hybrid=hybrid)
        taken = taken if utilization is None else taken._replace(utilization=utilization)
        usable, overhead = taken.beside(shape, ranks, gpu.memory_bytes, weights, limits)
        return weights, overhead, usable - weights - overhead, layout

    weights, overhead, left, layout = on(parallelism)
    needed = -(-layout.block_bytes // parallelism.pipeline)
    if left < needed:
        where = gpu.name if parallelism.gpus == 1 else f"each of {parallelism.gpus} {gpu.name}"
        raise UsageError(
            f"{shape.name} leaves no room for KV on {where}: {format_bytes(weights)} of weights and "
            f"{format_bytes(overhead)} of overhead in {format_bytes(weights + overhead + left)} of "
            f"{format_bytes(gpu.memory_bytes)}; {format_bytes(needed - left)} are missing; "
            f"{_what_fits(on, parallelism)}"
        )
    named = f"{_TITLES[engine]} {version or versions[0].newest}"
    if not version:
        named += _spread([on(parallelism, other)[2] / left for other in versions], engine)
    notes = [
        f"capacity is an estimate for {named}: {format_bytes(overhead)} are taken for activations, graphs and "
        "communication; the engine's own figure at start-up wins",
        *shape.notes,
    ]
    notes += [gpu.assumed] if gpu.assumed else []
    if gpu.memory_from in _OFF:
        notes.append(f"memory of {gpu.name} is {_OFF[gpu.memory_from]} what engines see")
    tokens = parallelism.pipeline * left // layout.block_bytes * layout.block_tokens
    return ReplicaEstimate(tokens, layout, left, weights, overhead, parallelism, named, tuple(notes))


def check_parallelism(ranks: Parallelism, shape: ModelShape, gpu: Gpu) -> None:
    """Refuse parallelism that does not fit a model, or GPUs without connection."""
    gpu.check_group(ranks.gpus)
    kind, must = ranks.misfit or ("", "")
    if not shape.counts.experts:
        if ranks.expert > 1:
            kind, must = "expert", f"must be 1: {shape.name} has no experts"
        elif ranks.data > 1:
            why = "ranks without experts share nothing, and are replicas"
            kind, must = "data", f"must be 1 for {shape.name}: {why}"
    if ranks.pipeline > shape.layers:
        kind, must = "pipeline", f"must be at most {shape.layers}, the layers of {shape.name}"
    if must:
        raise UsageError(f"{kind} parallelism {getattr(ranks, kind)}: {must}")


def _spread(times: Sequence[float], engine: EngineName) -> str:
    """Say that it is the newest version known, and how much KV memory others have, in multiples of its own."""
    low, high = (format_number(max(0.0, each), digits=2) for each in (min(times), max(times)))
    others = f"; others hold {low} to {high} times as much, --engine {engine}==VERSION" if low != high else ""
    return f" (the newest known{others})"


def _what_fits(on: Callable[[Parallelism], tuple[int, int, int, KvLayout]], ranks: Parallelism) -> str:
    for tensor in range(1, _MOST_GPUS + 1):
        try:
            *_, left, layout = on(replace(ranks, tensor=tensor))
        except UsageError:  # heads cannot be shared out over so many, or slices not connected
            continue
        if ranks.pipeline * left >= layout.block_bytes:
            return f"tensor parallelism {tensor} fits"
    return f"no tensor parallelism up to {_MOST_GPUS} fits"
