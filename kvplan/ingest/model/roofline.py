"""Timing of a replica nobody has measured: peaks of its GPUs, and what engines were seen to reach of them.

Terms of τ = d0 + d1·K + d2·P + d3·B + d4·√B for t GPUs in tensor parallelism. Peaks are those of the catalogue, each
times a share that was learnt (`Efficiency`):

==  ================================================================================================================
d0  bytes of weights on one GPU / bandwidth: every iteration reads them, but for the input embeddings, of which only a
    row per token is looked up, and for experts that no token chose. And a time for each layer: kernels that are
    launched, the latency of small all-reduces, whatever the batch
d1  KV bytes per token on one GPU / bandwidth: attention reads the cache of every sequence in the batch. Layers that
    keep every token: of windows and chunks K counts what is read, where [[gpu.kv]] lists them
d2  2 · parameters a prompt token meets / (t · operations per second); neither embeddings nor the output table, which
    only a prompt's last token needs. For t > 1 also its activations in the two all-reduces of a layer: a ring sends
    2·(t - 1)/t of them over the link
d3  the same for a decoded token, which is the ceiling that compute sets to decoding; its states, read and written; and
    the latents that sparse attention chooses, where d1 is of index keys alone
d4  weights of the experts that more sequences wake
==  ================================================================================================================

Experts: B tokens that choose k of E each at random wake 1 - (1 - k/E)^B of them. The law has a constant and √B to say
so: the line a + b·√B closest to it over B = 1, 2, 4, …, 256. For 8 of 256 it reads 0.13, 0.26, 0.64 and 1.2 of the
experts at 1, 8, 64 and 256 sequences, where it should be 0.03, 0.22, 0.87 and 1. Iterations of sweeps that were held
out are foretold as well with this line as with the formula; beyond 256 sequences it is too slow.

What is learnt is in roofline.toml, with how it was and how far to trust it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from kvplan.engine import EngineName
from kvplan.ingest.model.hardware import Gpu, tables
from kvplan.ingest.model.shape import ModelShape, kv_bytes_per_token, kv_layers, number_bytes, with_weights
from kvplan.ingest.model.weights import Storage
from kvplan.model import Parallelism, Timing
from kvplan.model.parallelism import ALONE

# Of a request outside the engine, where nobody has measured it: of public sweeps, by engine.
REQUEST_OVERHEAD_S = {EngineName.VLLM: 0.024, EngineName.SGLANG: 0.179, EngineName.TRTLLM: 0.030}

_OPERATIONS = 2  # a multiplication and an addition for each parameter
_SIXTEEN_BITS = 2  # bytes of an activation, and of a number in an embedding table, quantised or not
_ALL_REDUCES = 2  # a layer: after attention and after the MLP
_BATCHES = 2.0 ** np.arange(9)  # 1 to 256 sequences


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of the peaks that are reached, and seconds that a layer takes besides."""

    bandwidth: float  # an assumption, not learnt
    compute: float  # of dense models
    expert_compute: float  # of mixtures of experts
    link: float
    layer_s: float
    expert_layer_s: float  # besides, of mixtures of experts


@dataclass(frozen=True, slots=True)
class Roofline:
    """An estimated timing, and in the first note how far to trust it."""

    timing: Timing
    band: tuple[
        float, float
    ]  # measured over estimated iterations, at 8 of 10 points of models not learnt from
    configurations: int  # that the band comes from
    notes: tuple[str, ...]


def roofline(
    shape: ModelShape,
    gpu: Gpu,
    *,
    parallelism: Parallelism = ALONE,
    kv_dtype: str = "auto",
    weight_dtype: str | None = None,
    engine: EngineName | None = None,
    reached: Efficiency | None = None,
) -> Roofline:
    """The timing to expect of a model on GPUs, whose peaks are `reached` as is shipped, or otherwise."""
    gpu.check_group(parallelism.group)
    shape = with_weights(shape, weight_dtype)
    timing = estimated_timing(
        shape, gpu, reached or efficiency(), parallelism=parallelism, kv_dtype=kv_dtype, engine=engine
    )
    band, configurations, trust = _trust(shape, gpu, parallelism.gpus)
    notes = [f"{trust}. Import a log as soon as there is one"]
    if weight_dtype is not None:
        notes.append(f"weights are taken to be kept in {shape.storage.name}, whatever the configuration says")
    if shape.counts.experts:
        notes.append(
            "weights of experts are read as batches of up to 256 sequences wake them, in proportion to the root of "
            "their number; larger batches are faster than this"
        )
    if any(one.window for one in shape.kept):
        notes.append(
            "d1 is for the context that layers with full attention read, and windows or chunks in proportion: it goes "
            "with the [[gpu.kv]] of the same model"
        )
    return Roofline(timing, band, configurations, tuple(notes))


def estimated_timing(
    shape: ModelShape,
    gpu: Gpu,
    reached: Efficiency,
    *,
    parallelism: Parallelism = ALONE,
    kv_dtype: str = "auto",
    engine: EngineName | None = None,
) -> Timing:
    """The timing of a model on GPUs of which so much is reached; of several data-parallel ranks, that of one."""
    tensor_parallel = parallelism.tensor
    experts, counts = shape.counts.experts, shape.counts
    per_token = kv_bytes_per_token(shape, kv_dtype=kv_dtype, tensor_parallel=tensor_parallel)
    memory_s = 1 / (reached.bandwidth * gpu.bandwidth_bytes_per_s)
    always, of_experts = _bytes_read(shape)
    fixed, per_root = experts_read(1 - counts.idle_experts / experts) if experts else (0.0, 0.0)
    compute = reached.expert_compute if experts else reached.compute
    token_s = _OPERATIONS * counts.computing / (tensor_parallel * compute * _flops(shape.storage, gpu))
    token_s += _sent_per_token(shape, tensor_parallel) / (reached.link * gpu.link_bytes_per_s)
    layers = kv_layers(shape, kv_dtype=kv_dtype, tensor_parallel=tensor_parallel)
    once = 2 * sum(one.count * one.bytes for one in layers if one.is_state)
    if (attention := shape.attention).index_dim is not None and attention.index_topk:
        # the latents of so many tokens, and the index keys of all
        latent = attention.latent_bytes(number_bytes(shape, kv_dtype))
        once += shape.layers * attention.index_topk * latent
        per_token = shape.layers * attention.index_bytes
    return Timing(
        d0=(always + fixed * of_experts) / tensor_parallel * memory_s
        + shape.layers * (reached.layer_s + (reached.expert_layer_s if experts else 0.0)),
        d1=per_token * memory_s,
        d2=token_s,
        d3=token_s + once * memory_s,
        d4=per_root * of_experts / tensor_parallel * memory_s,
    )


def experts_read(chosen: float) -> tuple[float, float]:
    """A constant and a factor of √B: the share of experts that B sequences wake if each chooses this share.

    Examples
    --------
    >>> [round(float(term), 3) for term in experts_read(8 / 256)]
    [0.057, 0.073]
    """
    root, share = np.sqrt(_BATCHES), 1 - (1 - chosen) ** _BATCHES
    slope, constant = np.polyfit(root, share, 1)
    if constant < 0:
        slope, constant = (root @ share) / (root @ root), 0.0
    return float(constant), float(max(slope, 0.0))


def _bytes_read(shape: ModelShape) -> tuple[float, float]:
    """Weights on all GPUs that every iteration reads, and those of experts.

    A tied table is read whole, as the output table it also is.
    """
    looked_up = _SIXTEEN_BITS * shape.counts.embeddings // 2 if shape.counts.tables == 2 else 0
    looked_up += _SIXTEEN_BITS * shape.counts.looked_up
    of_experts = shape.storage.bits / 8 * shape.counts.experts
    return shape.weight_bytes - looked_up - of_experts, of_experts


def _sent_per_token(shape: ModelShape, tensor_parallel: int) -> float:
    """Bytes that each GPU sends for a token."""
    ring = 2 * (tensor_parallel - 1) / tensor_parallel
    return _ALL_REDUCES * shape.layers * shape.hidden_size * _SIXTEEN_BITS * ring


def _flops(storage: Storage, gpu: Gpu) -> float:
    """Operations per second with inputs as narrow as the weights, or the next wider the GPU has.

    Integers of 4 bits are widened to 16 before they multiply.
    """
    if storage.name in ("nvfp4", "mxfp4") and gpu.flops_fp4 is not None:
        return gpu.flops_fp4
    if storage.name in ("nvfp4", "mxfp4", "fp8") and gpu.flops_fp8 is not None:
        return gpu.flops_fp8
    return gpu.flops_bf16


# -- what was learnt --------------------------------------------------------------------------------------------------


@cache
def _learnt() -> Mapping[str, Any]:
    return tables("roofline.toml")


@cache
def efficiency() -> Efficiency:
    """What was learnt of the peaks."""
    return Efficiency(**_learnt()["efficiency"])


def _trust(shape: ModelShape, gpu: Gpu, tensor_parallel: int) -> tuple[tuple[float, float], int, str]:
    """The band of an estimate, the configurations it comes from, and both in words."""
    kind, title = ("experts", "mixture of experts") if shape.counts.experts else ("dense", "dense model")
    bands, known = _learnt()["bands"][kind], gpu.name in _learnt()["gpus"]
    several = "1 GPU" if tensor_parallel == 1 else f"{tensor_parallel} GPUs"
    if known and str(tensor_parallel) in bands:
        behind, which = [bands[str(tensor_parallel)]], f"like this, a {title} on {several}"
    else:
        unlike = f"too few of them on {several}" if known else f"none of them on {gpu.name}"
        behind, which = list(bands.values()), f"of a {title}; {unlike}, so that this may be further off"
    band = min(one["low"] for one in behind), max(one["high"] for one in behind)
    number = sum(one["configurations"] for one in behind)
    took = f"measured iterations took {band[0]:.2g} to {band[1]:.2g} times as long"
    return band, number, f"estimated: {took} in {number} configurations {which}"
