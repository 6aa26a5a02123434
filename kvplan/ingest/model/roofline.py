"""Timing of a replica nobody has measured: what memory bandwidth and arithmetic allow at their peaks.

Terms of τ = d0 + d1·K + d2·P + d3·B for t GPUs in tensor parallelism:

==  ================================================================================================================
d0  bytes of weights on one GPU / bandwidth: every iteration reads them all, but for the input embeddings, of which
    only a row per token is looked up
d1  KV bytes per token on one GPU / bandwidth: attention reads the cache of every sequence in the batch
d2  2 · parameters a prompt token meets / (t · operations per second); neither embeddings nor the output table, which
    only a prompt's last token needs
d3  0: the arithmetic of decoded tokens runs while the weights are read, and is the shorter of the two up to the
    batch a note names; above it this timing is too low
==  ================================================================================================================

Optimistic: no kernel reaches the peak of bandwidth or arithmetic, and communication between GPUs, attention over the
prompt, sampling and launches take time besides. Expect measured iterations to take 1.1 to 2 times as long, and more
with many GPUs or small models. It is a bound on the parts but not on every mixture of them: prefill and decode in one
iteration overlap, while d0 and d2·P add up here.

Against the one run at hand, Llama-3.1-8B on an RTX 4090 under vLLM, whose replay needs d0 = 14.5 ms, d1 = 0.25 µs and
d2 = 85 µs: 14.9 ms, 0.13 µs and 84.5 µs. Here d1 is half of the measured one and the rest as good as measured. A fit
shifts time between d0 and d1, which grow together as a batch does, so that its d0 may lie below the bound.
"""

from dataclasses import dataclass

from kvplan.ingest.model.hardware import Gpu
from kvplan.ingest.model.shape import ModelShape, kv_bytes_per_token
from kvplan.model import Timing
from kvplan.units import format_tokens

_OPERATIONS = 2  # a multiplication and an addition for each parameter
_TABLE_BYTES = 2  # of a number in an embedding table, quantised or not


@dataclass(frozen=True, slots=True)
class Roofline:
    """A timing from peaks; the first of its notes says that it is optimistic."""

    timing: Timing
    notes: tuple[str, ...]


def roofline(shape: ModelShape, gpu: Gpu, *, tensor_parallel: int = 1, kv_dtype: str = "auto") -> Roofline:
    """The shortest iterations that the peaks of a GPU allow a model; options as for `kv_bytes_per_token`.

    For mixtures of experts d0 reads all experts: a loaded batch meets nearly all of them, as each sequence picks its
    own. A single sequence would read only its few, so that small batches are faster than this.

    Raises
    ------
    UsageError
        No such type, or heads cannot be shared out over so many GPUs.

    Examples
    --------
    >>> from kvplan.ingest.model.hardware import find_gpu
    >>> from kvplan.ingest.model.config import read_model
    >>> timing = roofline(read_model("Llama-3.1-8B"), find_gpu("RTX 4090")).timing
    >>> f"{timing.d0 * 1e3:.1f} ms, {timing.d1 * 1e6:.2f} µs, {timing.d2 * 1e6:.1f} µs"
    '14.9 ms, 0.13 µs, 84.5 µs'
    """
    per_token = kv_bytes_per_token(shape, kv_dtype=kv_dtype, tensor_parallel=tensor_parallel)
    flops, width = _speed(shape, gpu)
    timing = Timing(
        d0=_bytes_read(shape) / tensor_parallel / gpu.bandwidth_bytes_per_s,
        d1=per_token / gpu.bandwidth_bytes_per_s,
        d2=_OPERATIONS * shape.counts.computing / (tensor_parallel * flops),
    )
    return Roofline(timing, _notes(shape, gpu, timing, width, tensor_parallel))


def _bytes_read(shape: ModelShape) -> int:
    """Weights an iteration reads, on all GPUs together. A tied table is read whole, as the output table it also is."""
    looked_up = _TABLE_BYTES * shape.counts.embeddings // 2 if shape.counts.tables == 2 else 0
    return shape.weight_bytes - looked_up


def _speed(shape: ModelShape, gpu: Gpu) -> tuple[float, str]:
    """Operations per second, and the inputs they take. Weights of 4 bits are widened to 16 before they multiply."""
    if shape.storage.name == "fp8" and gpu.flops_fp8 is not None:
        return gpu.flops_fp8, "8-bit"
    return gpu.flops_bf16, "16-bit"


def _notes(shape: ModelShape, gpu: Gpu, timing: Timing, width: str, tensor_parallel: int) -> tuple[str, ...]:
    notes = [
        f"optimistic: peaks of {gpu.name} in bandwidth and {width} arithmetic, which no kernel reaches; measured "
        "iterations take 1.1 to 2 times as long. Calibrate as soon as there is a log",
        f"decoding is taken to wait for memory alone, which holds up to {format_tokens(timing.d0 / timing.d2)} "
        "sequences in a batch",
    ]
    if tensor_parallel > 1:
        notes.append(f"no time for communication between {tensor_parallel} GPUs")
    if shape.counts.idle_experts:
        notes.append("every iteration reads all experts, as loaded batches do; small batches are faster")
    if shape.sliding_layers and shape.full_layers:
        notes.append(f"reading the windows of {shape.sliding_layers} sliding layers is left out")
    return tuple(notes)
