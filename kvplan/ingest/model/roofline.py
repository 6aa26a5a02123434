"""Timing of a replica nobody has measured: peaks of its GPUs, and what engines were seen to reach of them.

Terms of τ = d0 + d1·K + d2·P + d3·B + experts·(1 - (1 - chosen)^T) + d5·max(0, T - knee) + d6·Q, T = P + B, on n
GPUs: d ranks of attention of t each. Within a layer matrix products take the larger of reading weights and computing;
attention is a kernel of its own. Peaks are those of the catalogue, each times a share that was learnt (`Efficiency`).
Of several ranks it is the law of one, whose K, P, B and Q it is for, but for `all_ranks`, `d5_all_ranks` and `experts`,
for which tokens of all count:

=========  =========================================================================================================
d0         (weights but experts and tables / t + the output table / n) / bandwidth: every iteration reads them; of the
           input embeddings only a row per token is looked up. And a time for each layer: kernels that are launched,
           the latency of small all-reduces, whatever the batch; those that quantise inputs come on top
d1         KV bytes per token on one GPU / bandwidth: attention reads the cache of every sequence in the batch. Layers
           that keep every token: of windows and chunks K counts what is read, where [[gpu.kv]] lists them
d2         what a prompt token sends over the link: its activations in the two all-reduces of a layer, of which a ring
           sends 2·(n - 1)/n; with expert parallelism 3 bytes of each to n - 1 others, 8 at most. And its attention to
           windows, chunks, and tokens that sparse attention chooses, as if as many were there
d3         the same link for a decoded token; a time for its sequence; its states, read and written; and the latents
           that sparse attention chooses, where d1 is of index keys alone
d5         2 · parameters a token meets / (GPUs · operations per second); neither embeddings nor the output table, which
           only a prompt's last token needs. Those that are no experts' are shared by t GPUs, the others by n
knee       tokens whose arithmetic takes as long as reading all weights: beyond, it decides
d6         2 · (key + value width) · heads / t / operations per second in 16 bits, in each layer with full attention
all_ranks  of d > 1 the part of d2 and d3, and that of d5, that all tokens share: all-reduces over all GPUs; experts
experts    experts / n / bandwidth, of which an iteration reads those that its tokens choose, each `chosen` at random
=========  =========================================================================================================

Of p pipeline stages each holds 1/p of the layers, and as many batches are under way: K, P and B of an iteration are
those of all. In the time in which each of them passes all stages every GPU reads its weights p times, all layers of t
GPUs in the end, and reads and computes for each token 1/p of what t GPUs would. So d1 to d6 are divided by p; of the
experts a batch wakes what a p-th of the tokens choose. Bubbles are not modelled. Of c context ranks each reads 1/c of
the cache, but all index keys. Neither was compared with measurements.

What is learnt is in roofline.toml, with how it was and how far to trust it.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from kvplan.engine import EngineName
from kvplan.ingest.model.hardware import Gpu, tables
from kvplan.ingest.model.shape import ModelShape, kv_bytes_per_token, kv_layers, number_bytes, with_weights
from kvplan.ingest.model.weights import Storage
from kvplan.model import Parallelism, Timing
from kvplan.model.kv_layout import Attention
from kvplan.model.parallelism import ALONE

_OPERATIONS = 2  # a multiplication and an addition for each parameter
_SIXTEEN_BITS = 2  # bytes of an activation, and of a number in an embedding table, quantised or not
_ALL_REDUCES = 2  # a layer: after attention and after the MLP
_DISPATCHED = 3  # bytes of a number that goes to an expert in 8 bits, and comes back in 16
_MOST_PEERS = 8  # that a token is sent to: assumed
_WIDENED = 1.2  # times as long as weights of 16 bits take: what AWQ on an A100 came to
_FEW, _CONTEXT = 16.0, 1000.0  # a small batch: sequences, and tokens of each
_NVLINK = 200e9  # bytes per second of a link from which on it counts as NVLink or its like


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of the peaks that are reached, and seconds that a layer takes besides."""

    bandwidth: float  # an assumption, not learnt
    nvlink_bytes_per_s: float  # reached whatever its generation; an assumption
    pcie: float  # an assumption
    attention: float  # of operations in 16 bits; an assumption
    sequence_s: float  # of each sequence, whatever is computed of it; an assumption
    compute: float  # of dense models
    expert_compute: float  # of mixtures of experts
    fp4_compute: float  # of what comes on top where weights have 4 bits
    layer_s: float
    quantised_layer_s: float  # besides, where weights are narrow
    expert_layer_s: float  # besides, of mixtures of experts
    sglang_layer_s: float  # besides, of SGLang
    trtllm_saved_s: float  # less, of TensorRT-LLM


@dataclass(frozen=True, slots=True)
class Roofline:
    """An estimated timing, and in the first note how far to trust it.

    Attributes
    ----------
    band
        Measured over estimated iterations: of 8 in 10 points of such a configuration, or of those most like it.
    configurations
        That the band comes from.
    """

    timing: Timing
    band: tuple[float, float]
    configurations: int
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
    """Estimate the timing of a model on GPUs; `reached` are shares of their peaks, None: as shipped."""
    gpu.check_group(parallelism.group)
    shape = with_weights(shape, weight_dtype)
    timing = estimated_timing(
        shape, gpu, reached or efficiency(), parallelism=parallelism, kv_dtype=kv_dtype, engine=engine
    )
    trust = _trust(shape, gpu, parallelism, engine)
    took = f"measured iterations took {trust.low:.2g} to {trust.high:.2g} times as long"
    notes = [f"estimated: {took} {trust.where}. Import a log as soon as there is one"]
    if weight_dtype is not None:
        notes.append(f"weights are taken to be kept in {shape.storage.name}, whatever the configuration says")
    if parallelism.untested:
        notes.append(
            "times with pipeline or context parallelism were not compared with measurements; stages are taken to be "
            "always busy"
        )
    if any(layer.window for layer in shape.kept):
        notes.append(
            "d1 is for the context that layers with full attention read, and windows or chunks in proportion: it goes "
            "with the [[gpu.kv]] of the same model"
        )
    return Roofline(timing, (trust.low, trust.high), trust.configurations, tuple(notes))


def estimated_timing(
    shape: ModelShape,
    gpu: Gpu,
    reached: Efficiency,
    *,
    parallelism: Parallelism = ALONE,
    kv_dtype: str = "auto",
    engine: EngineName | None = None,
) -> Timing:
    """Compute the timing on GPUs of which so much is reached; of several data-parallel ranks, that of one."""
    ranks, counts = parallelism, shape.counts
    memory_s = 1 / (reached.bandwidth * gpu.bandwidth_bytes_per_s)
    table, of_experts, others = _bytes_read(shape)
    read_s = (others / ranks.tensor + table / ranks.group) * memory_s
    experts_s = of_experts / ranks.group * memory_s
    per_token, per_sequence = _kv_read(shape, kv_dtype, ranks)
    sent, sent_to_all = _sent_s(shape, gpu, reached, ranks)
    computed, computed_by_all = _computed_s(shape, gpu, reached, ranks)
    pair_s, pairs = _pair_s(shape, gpu, reached, ranks), _pairs(shape)
    apart = ranks.data > 1
    chosen = 1 - counts.idle_experts / counts.experts if counts.experts else 0.0
    link = sent + (0.0 if apart else sent_to_all)
    return Timing(
        d0=read_s + shape.layers * _layer_s(shape, reached, engine),
        d1=per_token / ranks.pipeline * memory_s,
        d2=link + pairs.bounded * pair_s,
        d3=link + per_sequence / ranks.pipeline * memory_s + reached.sequence_s,
        d5=computed + (0.0 if apart else computed_by_all),
        knee_tokens=(read_s + experts_s) / (computed + ranks.data * computed_by_all),
        experts=experts_s,
        chosen=1 - (1 - chosen) ** (1 / ranks.pipeline),
        d6=pairs.full * pair_s,
        all_ranks=sent_to_all if apart else 0.0,
        d5_all_ranks=computed_by_all if apart else 0.0,
    )


def assumed_kv_dtype(gpu: Gpu, engine: EngineName | None) -> str:
    """Return the type of KV cache that public benchmarks are assumed to have if they state none."""
    return "fp8" if gpu.flops_fp4 is not None or engine is EngineName.TRTLLM else "auto"


def _layer_s(shape: ModelShape, reached: Efficiency, engine: EngineName | None) -> float:
    seconds = reached.layer_s + (reached.expert_layer_s if shape.counts.experts else 0.0)
    if shape.storage.bits < 8 * _SIXTEEN_BITS and shape.storage.name != "mxfp4":  # which is of experts alone
        seconds += reached.quantised_layer_s
    besides = {EngineName.SGLANG: reached.sglang_layer_s, EngineName.TRTLLM: -reached.trtllm_saved_s}
    return seconds if engine is None else seconds + besides.get(engine, 0.0)


def _bytes_read(shape: ModelShape) -> tuple[float, float, float]:
    """Bytes of the table that is read, on all GPUs, of experts, and of all other weights.

    A tied table is read whole, as the output table it also is.
    """
    table = _SIXTEEN_BITS * shape.counts.embeddings / shape.counts.tables
    of_experts = shape.storage.bits / 8 * shape.counts.experts
    tables = _SIXTEEN_BITS * (shape.counts.embeddings + shape.counts.looked_up)
    return table, of_experts, shape.weight_bytes - tables - of_experts


def _kv_read(shape: ModelShape, kv_dtype: str, ranks: Parallelism) -> tuple[float, float]:
    """Bytes that a GPU reads for each KV token and each sequence."""
    layers = kv_layers(shape, kv_dtype=kv_dtype, tensor_parallel=ranks.tensor)
    states = 2 * sum(layer.count * layer.bytes for layer in layers if layer.is_state)
    if (attention := shape.attention).index_dim is None or not attention.index_topk:
        per_token = kv_bytes_per_token(shape, kv_dtype=kv_dtype, tensor_parallel=ranks.tensor)
        return per_token / ranks.context, states
    # the latents of so many tokens, and the index keys of all
    latents = shape.layers * attention.index_topk * attention.latent_bytes(number_bytes(shape, kv_dtype))
    return shape.layers * attention.index_bytes, states + latents / ranks.context


def _sent_s(shape: ModelShape, gpu: Gpu, reached: Efficiency, ranks: Parallelism) -> tuple[float, float]:
    """Seconds that a token of a rank takes on the link, and one of all ranks."""
    n, nvlink = ranks.group, gpu.link_bytes_per_s >= _NVLINK
    link = reached.nvlink_bytes_per_s if nvlink else reached.pcie * gpu.link_bytes_per_s
    number_s = shape.hidden_size * shape.layers / (link * ranks.pipeline)
    if ranks.expert > 1:
        return _DISPATCHED * min(n - 1, _MOST_PEERS) * number_s / ranks.tensor, 0.0
    return 0.0, _ALL_REDUCES * _SIXTEEN_BITS * 2 * (n - 1) / n * number_s


def _computed_s(shape: ModelShape, gpu: Gpu, reached: Efficiency, ranks: Parallelism) -> tuple[float, float]:
    """Seconds of arithmetic that a token of a rank takes, and one of all ranks."""
    counts, storage, flops = shape.counts, shape.storage, _flops(shape.storage, gpu)
    inverse = 1 / (reached.expert_compute if counts.experts else reached.compute)
    if storage.name in _FOUR_BITS:
        inverse += 1 / reached.fp4_compute
    if storage.bits < 8 * _SIXTEEN_BITS and flops == gpu.flops_bf16:
        inverse *= _WIDENED
    parameter_s = _OPERATIONS * inverse / (flops * ranks.pipeline)
    active = counts.experts - counts.idle_experts
    return parameter_s * (counts.computing - active) / ranks.tensor, parameter_s * active / ranks.group


def _pair_s(shape: ModelShape, gpu: Gpu, reached: Efficiency, ranks: Parallelism) -> float:
    """Seconds that a layer takes for a token to attend to another, in 16 bits."""
    of = shape.attention
    operations = _OPERATIONS * (of.head_dim + of.value_dim) * of.heads
    return operations / (ranks.tensor * ranks.pipeline * reached.attention * gpu.flops_bf16)


class _Pairs(NamedTuple):
    """Over all layers, how often a prompt token attends to each token before it, and to so many at most."""

    full: int
    bounded: int


def _pairs(shape: ModelShape) -> _Pairs:
    full = sum(layer.count for layer in shape.kept if layer.kind is Attention.FULL)
    bounded = sum(layer.count * layer.window for layer in shape.kept if layer.window)
    chosen = shape.attention.index_topk
    return _Pairs(0, full * chosen + bounded) if chosen else _Pairs(full, bounded)


_FOUR_BITS = ("nvfp4", "mxfp4")


def _flops(storage: Storage, gpu: Gpu) -> float:
    """Operations per second with inputs as narrow as the weights, or the next wider the GPU has.

    Others are widened to 16 bits before they multiply.
    """
    if storage.name in _FOUR_BITS and gpu.flops_fp4 is not None:
        return gpu.flops_fp4
    if storage.name in (*_FOUR_BITS, "fp8") and gpu.flops_fp8 is not None:
        return gpu.flops_fp8
    return gpu.flops_bf16


# -- what was learnt --------------------------------------------------------------------------------------------------


@cache
def learnt(part: str) -> Any:
    """Return what was learnt of public measurements: a table of roofline.toml."""
    return tables("roofline.toml")[part]


@cache
def efficiency() -> Efficiency:
    """Return the learnt shares."""
    return Efficiency(**learnt("efficiency"))


@dataclass(frozen=True, slots=True)
class Answer:
    """Time of a request outside the engine: seconds, and a number of iterations."""

    seconds: float
    iterations: float = 0.0

    def overhead_s(self, timing: Timing) -> float:
        """Return seconds, by the iteration time of a small batch; a larger one hardly told."""
        return self.seconds + self.iterations * timing(_FEW * _CONTEXT, 0.0, _FEW)


def request_overhead_s(timing: Timing, engine: EngineName) -> float:
    """Estimate the seconds that a request takes outside an engine."""
    return Answer(**learnt("answer")[engine]).overhead_s(timing)


class _Trust(NamedTuple):
    """The band of an estimate, the configurations it comes from, and which they are."""

    low: float
    high: float
    configurations: int
    where: str


def _trust(shape: ModelShape, gpu: Gpu, ranks: Parallelism, engine: EngineName | None) -> _Trust:
    """Trust what was measured of the same configuration, of such models on such GPUs, or of unseen GPUs."""
    kind, title = ("experts", "mixture of experts") if shape.counts.experts else ("dense", "dense model")
    own = _of_itself(shape, gpu, ranks, engine)
    if own:
        points = sum(number for *_, number in own)
        low, high = min(measured[0] for measured in own), max(measured[1] for measured in own)
        several = f"{ranks} of {gpu.name}" if ranks.gpus > 1 else gpu.name
        return _Trust(low, high, len(own), f"at {points} points of this model on {several}")
    if gpu.name not in learnt("gpus"):
        band = learnt("unseen_gpu")[kind]
        where = f"configurations of a {title} on GPUs that were left out, as {gpu.name} was"
        return _Trust(**band, where=f"in {band['configurations']} {where}")
    bands, several = learnt("bands")[kind], "1 GPU" if ranks.gpus == 1 else f"{ranks.gpus} GPUs"
    alike = [bands[str(ranks.gpus)]] if str(ranks.gpus) in bands else list(bands.values())
    number = sum(group["configurations"] for group in alike)
    where = f"like this, a {title} on {several}"
    if len(alike) > 1:
        where = f"of a {title}; too few of them on {several}, so that this may be further off"
    low, high = min(group["low"] for group in alike), max(group["high"] for group in alike)
    return _Trust(low, high, number, f"in {number} configurations {where}")


def _of_itself(
    shape: ModelShape, gpu: Gpu, ranks: Parallelism, engine: EngineName | None
) -> list[tuple[float, float, int]]:
    """List the ratios of public sweeps of the same model, GPUs, parallelism and weights."""
    ratios = learnt("ratios").get(shape.like, {})
    engines = EngineName if engine is None else (engine,)
    keys = (f"{gpu.name} {ranks} {name} {shape.storage.name}" for name in engines)
    return [ratios[key] for key in keys if key in ratios]
