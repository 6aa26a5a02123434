"""Where estimates of a replica and its timing come from, in sentences."""

from kvplan.ingest.model.estimate import ReplicaEstimate
from kvplan.ingest.model.hardware import Gpu, vllm_limits
from kvplan.ingest.model.roofline import Roofline
from kvplan.ingest.model.shape import ModelShape
from kvplan.ingest.profile_text import Part, replica_part, timing_text
from kvplan.model import Knowledge, MeasuredRange, Origin
from kvplan.profile.reading import Profile
from kvplan.units import format_bytes
from kvplan.version import __version__


def estimate_part(
    found: ReplicaEstimate, shape: ModelShape, gpu: Gpu, base: Profile, *, default_base: bool
) -> Part:
    """The table [gpu] of an estimate; its limits are vLLM's own rather than those of a base nobody asked for."""
    several = f"{found.tensor_parallel} x " if found.tensor_parallel > 1 else ""
    each = " each" if found.tensor_parallel > 1 else ""
    about = (
        f"memory_tokens: estimated by kvplan {__version__} for {shape.name} ({shape.source}) on {several}{gpu.name} "
        f"({gpu.source}); what the engine logs when it starts is better: kvplan import log.",
        f"{format_bytes(found.memory_bytes_for_kv)}{each} for KV at {found.kv_bytes_per_token:,} bytes a token, beside "
        f"{format_bytes(found.weights_bytes)} of weights and {format_bytes(found.overhead_bytes)} of overhead, an "
        "assumption.",
        *(f"Note: {note}." for note in found.notes),
    )
    values = {"memory_tokens": found.memory_tokens, "block_tokens": found.block_tokens}
    if found.tensor_parallel != base.model.replica.gpus:
        values["gpus"] = found.tensor_parallel
    if default_base:
        values |= vllm_limits(gpu)
        about += (f"{' and '.join(vllm_limits(gpu))}: the defaults of vllm serve on such a GPU.",)
    return replica_part(base, values, about, _origin(shape, gpu, found.tensor_parallel))


def roofline_part(found: Roofline, shape: ModelShape, gpu: Gpu, tensor_parallel: int) -> Part:
    """The table [timing] to expect, with its band.

    Examples
    --------
    >>> from kvplan.ingest.model.hardware import find_gpu
    >>> from kvplan.ingest.model.config import read_model
    >>> from kvplan.ingest.model.roofline import roofline
    >>> shape, gpu = read_model("Llama-3.1-8B"), find_gpu("RTX 4090")
    >>> print(roofline_part(roofline(shape, gpu), shape, gpu, 1).body.splitlines()[1])
    d0 = "19.39 ms"
    """
    several = f"{tensor_parallel} x " if tensor_parallel > 1 else ""
    about = (
        f"Iteration time: an estimate by kvplan {__version__} for {shape.name} ({shape.source}) on "
        f"{several}{gpu.name} ({gpu.source}).",
        *(f"Note: {note}." for note in (*shape.notes, *found.notes)),
    )
    body = timing_text(found.timing, measured=MeasuredRange(band=found.band))
    return Part("timing", about, body, _origin(shape, gpu, tensor_parallel))


def _origin(shape: ModelShape, gpu: Gpu, tensor_parallel: int) -> Origin:
    several = f"{tensor_parallel} x " if tensor_parallel > 1 else ""
    return Origin(Knowledge.ESTIMATED, f"kvplan {__version__} for {shape.name} on {several}{gpu.name}")
