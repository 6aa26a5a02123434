"""Where estimates of a replica and its timing come from, in sentences."""

from collections.abc import Iterator, Mapping
from typing import Any

from kvplan.engine import EngineName
from kvplan.ingest.facts import Part, constants, facts, layout_keys, timing_table
from kvplan.ingest.model.estimate import ReplicaEstimate
from kvplan.ingest.model.hardware import Gpu
from kvplan.ingest.model.roofline import Roofline, request_overhead_s
from kvplan.ingest.model.shape import ModelShape
from kvplan.model import Knowledge, MeasuredRange, Origin
from kvplan.model.kv_layout import Attention, KvLayout
from kvplan.model.parallelism import Parallelism
from kvplan.profile.reading import Profile
from kvplan.profile.replica import Gpu as GpuTable
from kvplan.units import format_bytes, format_number
from kvplan.version import __version__

_KEPT: Mapping[Attention, str] = {
    Attention.FULL: "all tokens{of}",
    Attention.WINDOW: "the last {}{of}",
    Attention.CHUNK: "those since a multiple of {}{of}",
    Attention.STATE: "a state{of}",
}


def estimate_part(
    estimate: ReplicaEstimate, shape: ModelShape, gpu: Gpu, base: Profile | None, *, limits: Mapping[str, int]
) -> Part:
    """Make [gpu] from an estimate; `limits` are the engine's own, which a base may say better."""
    ranks, layout = estimate.parallelism, estimate.layout
    memory: dict[str, Any] = {"memory_tokens": estimate.memory_tokens, "block_tokens": estimate.block_tokens}
    if estimate.is_mixed:
        memory = {"kv_blocks": estimate.kv_blocks, **layout_keys(layout)}
    per_token = "" if estimate.is_mixed else f" at {layout.bytes_per_token // ranks.pipeline:,} bytes a token"
    about = [
        f"{format_bytes(estimate.memory_bytes_for_kv)}{' each' if ranks.gpus > 1 else ''} for KV{per_token}, beside "
        f"{format_bytes(estimate.weights_bytes)} of weights and {format_bytes(estimate.overhead_bytes)} of overhead, "
        "an assumption.",
        *((f"{line}." for line in layout_lines(layout)) if estimate.is_mixed else ()),
    ]
    origin, where = _origin(shape, gpu, ranks)
    said = facts("gpu", memory, origin, f"{where}; what the engine logs when it starts is better")
    old = {} if base is None else base.tables.get("gpu", {})
    if ranks != GpuTable.model_validate(old).parallelism:
        said |= facts("gpu", ranks.keys or {"gpus": 1}, origin)
    if not old:
        said |= facts("gpu", limits, origin, "defaults of vllm serve on such a GPU")
    name = f"{shape.name} on {together(gpu, ranks)}"
    return Part("gpu", said, name, "estimate", about=tuple(about), notes=estimate.notes)


def layout_lines(layout: KvLayout) -> Iterator[str]:
    """Layers by kind, groups, and what a request takes, in sentences.

    Examples
    --------
    >>> from kvplan.model.kv_layout import Layers
    >>> window = Layers(Attention.WINDOW, 52, 8192, window=1024)
    >>> for line in layout_lines(KvLayout((Layers(Attention.FULL, 10, 8192), window), block_tokens=16)):
    ...     print(line)
    10 layers keep all tokens of a request at 8,192 bytes each, 52 the last 1,024 at 8,192
    7 groups of 10 layers share a pool: a block is 16 tokens in each layer of a group, 1,310,720 bytes
    A long request takes 81,920 bytes for a token more, and up to 6,234 pool tokens whatever its length
    """
    kinds = []
    for i, layer in enumerate(layout.layers):
        each = f" at {layer.bytes:,}" + (" bytes each" if i == 0 else "")
        kept = _KEPT[layer.kind].format(
            f"{layer.window:,}" if layer.window else "", of=" of a request" if i == 0 else ""
        )
        kinds.append(f"{layer.count}{' layers keep' if i == 0 else ''} {kept}{each}")
    yield ", ".join(kinds)
    if layout.held != layout.layers:
        yield "In this version every layer holds every token: what windows and chunks keep is what they read"
    groups = sum(group.copies for group in layout.groups)
    block = (
        f"a block is {layout.block_tokens:,} tokens in each layer of a group, {layout.block_bytes:,} bytes"
    )
    yield f"{groups} groups of {layout.group_size} layers share a pool: {block}"
    more = f"{layout.bytes_per_token:,} bytes for a token more"
    yield f"A long request takes {more}, and up to {layout.fixed_tokens:,} pool tokens whatever its length"


def roofline_part(
    roofline: Roofline, shape: ModelShape, gpu: Gpu, ranks: Parallelism, engine: EngineName
) -> Part:
    """Make [timing] as expected, with its band."""
    table = timing_table(
        roofline.timing, request_overhead_s(roofline.timing, engine), MeasuredRange(band=roofline.band)
    )
    origin, where = _origin(shape, gpu, ranks)
    low, high = map(format_number, roofline.band)
    return Part(
        "timing",
        facts("timing", table, origin, where),
        f"{shape.name} on {together(gpu, ranks)}",
        "estimate",
        f"{constants(roofline.timing)}; {low} to {high} times that",
        notes=(*shape.notes, *roofline.notes),
    )


def _origin(shape: ModelShape, gpu: Gpu, ranks: Parallelism) -> tuple[Origin, str]:
    """Say how an estimate is known, briefly and in full."""
    where = together(gpu, ranks)
    told = f"estimated by kvplan {__version__} for {shape.name} ({shape.source}) on {where} ({gpu.source})"
    return Origin(Knowledge.ESTIMATED, f"kvplan {__version__} for {shape.name} on {where}"), told


def together(gpu: Gpu, ranks: Parallelism) -> str:
    """Write GPUs that share a model: 8 x H200 (TP1 DP8 EP8)."""
    named = f" ({ranks})" if ranks != Parallelism(ranks.tensor) else ""
    return gpu.name if ranks.gpus == 1 else f"{ranks.gpus} x {gpu.name}{named}"
