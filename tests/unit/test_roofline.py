"""Timing of a replica nobody has measured: terms by hand, how they scale, and how far it says to trust them."""

from dataclasses import astuple, replace
from functools import cache

import numpy as np
import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from kvplan.engine import EngineName
from kvplan.errors import UsageError
from kvplan.ingest.model.config import catalogue, read_model
from kvplan.ingest.model.hardware import Gpu, find_gpu, gpus, tables
from kvplan.ingest.model.roofline import Answer, Efficiency, efficiency, estimated_timing, roofline
from kvplan.ingest.model.shape import ModelShape
from kvplan.ingest.timing.equations import Kind
from kvplan.ingest.timing.fit import experts_read, rooted
from kvplan.ingest.timing.played import Law, foretold
from kvplan.ingest.timing.samples import Deployment, Point, Sweep
from kvplan.model import Parallelism, Timing
from kvplan.model.kv_layout import Attention

RTX_4090 = find_gpu("RTX 4090")
H100 = find_gpu("H100")
H200 = find_gpu("H200")
NOTHING = float("inf")  # takes no time
PEAKS = Efficiency(  # all of them reached, links and layers for nothing
    bandwidth=1,
    nvlink_bytes_per_s=NOTHING,
    pcie=1,
    attention=1,
    sequence_s=0,
    compute=1,
    expert_compute=1,
    fp4_compute=NOTHING,
    layer_s=0,
    quantised_layer_s=0,
    expert_layer_s=0,
    sglang_layer_s=0,
    trtllm_saved_s=0,
)


def test_llama_on_an_rtx_4090_by_hand() -> None:
    """8.030·10⁹ parameters, of which the two tables take 2 · 128,256 · 4,096 = 1.051·10⁹; 32 layers."""
    parameters, table = 8_029_995_008, 128_256 * 4096
    reached = replace(
        PEAKS,
        bandwidth=0.5,
        compute=0.25,
        layer_s=1e-5,
        expert_layer_s=1.0,
        sglang_layer_s=2e-5,
        sequence_s=3e-6,
    )
    timing = estimated_timing(read_model("Llama-3.1-8B"), RTX_4090, reached)
    assert timing.d0 == pytest.approx(2 * (parameters - table) / (0.5 * 1.008e12) + 32e-5)
    assert timing.d1 == pytest.approx(131_072 / (0.5 * 1.008e12))
    assert timing.d5 == pytest.approx(2 * (parameters - 2 * table) / (0.25 * 165.2e12))
    assert timing.knee_tokens == pytest.approx(2 * (parameters - table) / (0.5 * 1.008e12) / timing.d5)
    assert (timing.d2, timing.d3, timing.d4, timing.experts, timing.all_ranks) == (0, 3e-6, 0, 0, 0)
    slower = estimated_timing(read_model("Llama-3.1-8B"), RTX_4090, reached, engine=EngineName.SGLANG)
    assert slower == replace(timing, d0=pytest.approx(timing.d0 + 64e-5))


def test_attention_of_prompts_by_hand() -> None:
    """Qwen3-14B: 40 layers, 40 heads of 128 and 128; half of 989.5·10¹² operations/s.

    A prompt of 32,768 tokens takes 1.38 s of products and .89 s of attention.
    """
    timing = estimated_timing(read_model("Qwen3-14B"), H100, replace(PEAKS, attention=0.5, compute=1 / 1.57))
    assert timing.d6 == pytest.approx(2 * 256 * 40 * 40 / (0.5 * 989.5e12))
    assert 32768 * timing.d5 == pytest.approx(1.38, abs=0.01)
    assert 32768**2 / 2 * timing.d6 == pytest.approx(0.89, abs=0.005)


@every("tokens", [16_384, 32_768, 100_000])
def test_long_prompts_are_served_as_arithmetic_of_attention_allows(tokens: int) -> None:
    """One after the other, in chunks of 8,192: 2 · 13.2·10⁹ operations a token, 819,200 a pair of tokens."""
    timing = estimated_timing(read_model("Qwen3-14B"), H100, replace(PEAKS, attention=0.5, compute=0.5))
    point = Point(line=1, inputs=(tokens, tokens), outputs=(1, 1), concurrency=1)
    (times,) = foretold([Sweep("", "", Deployment(), (point,))], Law(timing))
    operations = 2 * 13_212_057_600 * tokens + 2 * 256 * 40 * 40 * tokens * (tokens + 1) / 2
    assert times[Kind.TTFT] == pytest.approx(operations / (0.5 * 989.5e12), rel=0.01)


def test_what_no_token_looks_beyond_costs_each_token_the_same() -> None:
    """gpt-oss-20b: 12 layers with windows of 128, 64 heads of 64 and 64; GLM-5 chooses 2,048 in each of 78 layers."""
    timing = estimated_timing(read_model("gpt-oss-20b"), H100, PEAKS)
    assert timing.d2 == pytest.approx(128 * timing.d6)
    sparse = estimated_timing(read_model("GLM-5"), H100, PEAKS)
    assert (sparse.d6, sparse.d2) == (0, pytest.approx(2 * 512 * 64 * 78 * 2048 / 989.5e12))


def test_what_a_request_takes_beside_iterations_grows_with_one_of_a_small_batch() -> None:
    """Sixteen sequences of 1,000 tokens: 10 ms + 16,000 · 0.1 µs."""
    assert Answer(0.003, 1.5).overhead_s(Timing(0.01, d1=1e-7)) == pytest.approx(0.003 + 1.5 * 0.0116)
    assert Answer(0.2).overhead_s(Timing(0.01)) == 0.2


def test_a_mixture_of_experts_by_hand() -> None:
    """Qwen3-30B-A3B: 8 of 128 experts of 3 · 2048 · 768 parameters, in each of 48 layers."""
    shape = read_model("Qwen3-30B-A3B")
    experts, table = 48 * 128 * 3 * 2048 * 768, 151_936 * 2048
    reached = replace(PEAKS, bandwidth=0.5, expert_compute=0.1, layer_s=2e-5, expert_layer_s=3e-5)
    timing = estimated_timing(shape, H100, reached)
    others = shape.counts.total - experts - table
    assert timing.d0 == pytest.approx(2 * (others) / (0.5 * 3.35e12) + 48 * 5e-5)
    assert timing.experts == pytest.approx(2 * experts / (0.5 * 3.35e12))
    assert timing.chosen == pytest.approx(8 / 128)
    assert timing.d5 == pytest.approx(2 * (shape.counts.active - 2 * table) / (0.1 * 989.5e12))
    assert timing.knee_tokens * timing.d5 == pytest.approx(timing.d0 + timing.experts - 48 * 5e-5)


def test_a_ring_of_gpus_sends_what_it_adds_up() -> None:
    """Twice a layer 8,192 numbers of 2 bytes; of 8 GPUs each sends 2 · 7/8 of that, at 200 GB/s of NVLink."""
    shape = read_model("Llama-3.1-70B")
    one, eight = (estimated_timing(shape, H100, PEAKS, parallelism=Parallelism(t)) for t in (1, 8))
    linked = replace(PEAKS, nvlink_bytes_per_s=200e9, pcie=0.25)
    sent = 2 * 80 * 8192 * 2 * 2 * 7 / 8
    assert (eight.d5, eight.d6) == pytest.approx((one.d5 / 8, one.d6 / 8))
    timing = estimated_timing(shape, H100, linked, parallelism=Parallelism(8))
    assert timing.d2 == pytest.approx(sent / 200e9)
    assert timing.d3 == timing.d2
    over_pcie = estimated_timing(shape, find_gpu("L40S"), linked, parallelism=Parallelism(8))
    assert over_pcie.d2 == pytest.approx(sent / (32e9 / 4))


def test_a_group_of_gpus_shares_all_that_is_read_but_copied_heads() -> None:
    shape = read_model("Llama-3.1-70B")
    one, eight, sixteen = (
        estimated_timing(shape, H100, PEAKS, parallelism=Parallelism(t)) for t in (1, 8, 16)
    )
    assert (eight.d0, eight.d1) == pytest.approx((one.d0 / 8, one.d1 / 8))
    assert (sixteen.d0, sixteen.d1) == pytest.approx((one.d0 / 16, one.d1 / 8))


# -- every kind of parallelism ----------------------------------------------------------------------------------------


def test_ranks_of_attention_share_experts_and_the_table() -> None:
    """DeepSeek-V3 on 8 H200: each of 8 ranks has all that is no expert, and a whole latent cache, as TP8 has."""
    shape, linked = read_model("DeepSeek-V3"), replace(PEAKS, nvlink_bytes_per_s=200e9)
    one = estimated_timing(shape, H200, PEAKS)
    tp8 = estimated_timing(shape, H200, linked, parallelism=Parallelism(8))
    dp8 = estimated_timing(shape, H200, linked, parallelism=Parallelism(1, data=8, expert=8))
    counts, bandwidth, flops = shape.counts, 4.8e12, 1979e12
    table = 2 * counts.embeddings / 2
    assert dp8.d0 == pytest.approx((counts.other + table / 8) / bandwidth)
    assert tp8.d0 == pytest.approx((counts.other + table) / 8 / bandwidth)
    assert dp8.d1 == tp8.d1 == pytest.approx(one.d1)
    assert dp8.experts == tp8.experts == pytest.approx(counts.experts / 8 / bandwidth)
    active = counts.experts - counts.idle_experts
    of_rank, of_all = 2 * counts.other / flops, 2 * active / 8 / flops
    assert (dp8.d5, dp8.d5_all_ranks) == pytest.approx((of_rank, of_all))
    assert (tp8.d5, tp8.d5_all_ranks, tp8.all_ranks) == (pytest.approx(of_rank / 8 + of_all), 0, 0)
    assert dp8.knee_tokens == pytest.approx((dp8.d0 + dp8.experts) / (of_rank + 8 * of_all))
    assert dp8.d2 == pytest.approx(3 * 7 * 7168 * 61 / 200e9)
    assert tp8.d2 == pytest.approx(8 * 7 / 8 * 7168 * 61 / 200e9)
    assert (dp8.d6, tp8.d6) == pytest.approx((one.d6, one.d6 / 8))
    ep8 = estimated_timing(shape, H200, linked, parallelism=Parallelism(8, expert=8))
    assert ep8 == replace(tp8, d2=ep8.d2, d3=ep8.d3)
    assert ep8.d2 == pytest.approx(3 * 7 * 7168 * 61 / 8 / 200e9)
    shared = estimated_timing(shape, H200, linked, parallelism=Parallelism(1, data=8))
    assert shared.all_ranks == pytest.approx(8 * 7 / 8 * 7168 * 61 / 200e9)


def test_pipeline_stages_read_all_weights_once_and_share_the_rest() -> None:
    """Stage after stage: of 2 with 4 batches' worth of 100 sequences each a cycle is two stages of half the layers."""
    shape = read_model("Qwen3-30B-A3B")
    reached = replace(PEAKS, layer_s=2e-5, nvlink_bytes_per_s=200e9)
    one = estimated_timing(shape, H100, reached, parallelism=Parallelism(2))
    two = estimated_timing(shape, H100, reached, parallelism=Parallelism(2, pipeline=2))
    stage = one(40_000, 600, 100) / 2  # of the batch that is in it, with half the layers
    assert two(80_000, 1200, 200) == pytest.approx(2 * stage)
    assert "not compared with measurements" in " ".join(
        roofline(shape, H100, parallelism=Parallelism(2, pipeline=2)).notes
    )


def test_context_ranks_share_the_cache_but_not_index_keys() -> None:
    dense = [
        estimated_timing(read_model("DeepSeek-V3"), H200, PEAKS, parallelism=Parallelism(8, context=c))
        for c in (1, 2)
    ]
    assert dense[1] == replace(dense[0], d1=pytest.approx(dense[0].d1 / 2))
    sparse = [
        estimated_timing(read_model("GLM-5"), H200, PEAKS, parallelism=Parallelism(8, context=c))
        for c in (1, 2)
    ]
    assert sparse[1].d1 == sparse[0].d1
    assert sparse[1].d3 < sparse[0].d3


@every(
    ("gpu", "weight_dtype", "peak"),
    [
        ("H100", "fp8", 1979e12),
        ("A100 80GB", "fp8", 312e12),
        ("H100", "nvfp4", 1979e12),
        ("B200", "nvfp4", 9000e12),
        ("B200", "mxfp4", 9000e12),
        ("B200", "int4", 2250e12),
        ("B200", "bf16", 2250e12),
    ],
)
def test_inputs_are_as_narrow_as_weights_where_a_gpu_has_that(
    gpu: str, weight_dtype: str, peak: float
) -> None:
    shape, device = read_model("Llama-3.1-8B"), find_gpu(gpu)
    d5, reached = roofline(shape, device, weight_dtype=weight_dtype).timing.d5, efficiency()
    inverse = 1 / reached.compute + (1 / reached.fp4_compute if weight_dtype.endswith("fp4") else 0)
    widened = 1.2 if (gpu, weight_dtype) in (("A100 80GB", "fp8"), ("B200", "int4")) else 1.0
    assert d5 == pytest.approx(widened * 2 * shape.counts.computing * inverse / peak)


@every("weight_dtype", ["int4", "int8", "fp8"])
def test_weights_that_are_widened_are_no_faster_at_load(weight_dtype: str) -> None:
    """On Ampere, with prompts in every iteration: what they save in reading does not count there."""
    shape, device = read_model("Qwen3-14B"), find_gpu("A100 80GB")
    narrow, wide = (roofline(shape, device, weight_dtype=of).timing for of in (weight_dtype, "bf16"))
    assert narrow(100_000, 1_000, 128, 500_000) > wide(100_000, 1_000, 128, 500_000)
    assert narrow(1_000, 0, 1) < wide(1_000, 0, 1)


def test_narrow_weights_are_read_faster() -> None:
    """4.5 bits for 16, but for the output table; the time for each layer stays."""
    shape = read_model("Llama-3.1-8B")
    table = 128_256 * 4096
    found = roofline(shape, H100, weight_dtype="nvfp4")
    read = 4.5 / 8 * (8_029_995_008 - 2 * table) + 2 * table
    reached = efficiency()
    expected = read / (reached.bandwidth * 3.35e12) + 32 * (reached.layer_s + reached.quantised_layer_s)
    assert found.timing.d0 == pytest.approx(expected)
    assert "weights are taken to be kept in nvfp4" in found.notes[1]
    with pytest.raises(UsageError, match="'int3' is not a type of weights"):
        roofline(shape, H100, weight_dtype="int3")


def test_windows_are_read_in_proportion_to_the_context_that_a_layout_counts() -> None:
    """gpt-oss-20b: 12 layers keep all, of 2 · 8 · 64 numbers of 2 bytes; windows are a part of K."""
    timing = estimated_timing(read_model("gpt-oss-20b"), H100, PEAKS)
    assert timing.d1 == pytest.approx(12 * 2048 / 3.35e12)
    assert "[[gpu.kv]]" in roofline(read_model("gpt-oss-20b"), H100).notes[-1]


# -- experts ----------------------------------------------------------------------------------------------------------


@given(st.floats(1e-4, 1))
def test_the_line_is_the_closest_that_never_falls(chosen: float) -> None:
    batches = 2.0 ** np.arange(9)
    share = np.array([1 - (1 - chosen) ** batch for batch in batches])
    closest, _ = nnls(np.stack([np.ones(9), np.sqrt(batches)], axis=1), share)
    assert experts_read(chosen) == pytest.approx(tuple(closest), abs=1e-9)
    law = rooted(Timing(0.01, d4=1e-4, experts=0.1, chosen=chosen))
    assert (law.d0, law.d4) == pytest.approx((0.01 + 0.1 * closest[0], 1e-4 + 0.1 * closest[1]), abs=1e-9)
    assert (law.experts, law.chosen) == (0, 0)


# -- how far to trust it ----------------------------------------------------------------------------------------------


def test_a_band_is_of_what_was_measured_or_of_what_is_most_like_it() -> None:
    shipped = tables("roofline.toml")
    own = roofline(
        read_model("Llama-3.1-70B"),
        H100,
        parallelism=Parallelism(2),
        weight_dtype="fp8",
        engine=EngineName.VLLM,
    )
    ratio = shipped["ratios"]["meta-llama/Llama-3.1-70B"]["H100 SXM TP2 vllm fp8"]
    assert own.band == tuple(ratio[:2])
    assert f"at {ratio[2]} points of this model on TP2 of H100 SXM" in own.notes[0]

    alike = roofline(read_model("Llama-3.1-70B"), H100, parallelism=Parallelism(2))
    band = shipped["bands"]["dense"]["2"]
    assert alike.band == (band["low"], band["high"])
    assert f"in {band['configurations']} configurations like this, a dense model on 2 GPUs" in alike.notes[0]

    some = roofline(read_model("Llama-3.1-70B"), H100, parallelism=Parallelism(16))
    every_band = shipped["bands"]["dense"].values()
    assert some.band == (min(one["low"] for one in every_band), max(one["high"] for one in every_band))
    assert "too few of them on 16 GPUs" in some.notes[0]

    unseen = roofline(read_model("Qwen3-30B-A3B"), find_gpu("MI300X"), parallelism=Parallelism(2))
    band = shipped["unseen_gpu"]["experts"]
    assert unseen.band == (band["low"], band["high"])
    assert "on GPUs that were left out, as MI300X was" in unseen.notes[0]


def test_a_run_on_an_rtx_4090_is_as_fast_as_the_band_of_an_unseen_gpu_allows() -> None:
    """Its replay needs d0 = 14.5 ms, d1 = 0.25 µs, d2 = 85 µs; it held 41,000 tokens of 20 sequences."""
    found = roofline(read_model("Llama-3.1-8B"), RTX_4090)
    measured = Timing(d0=14.5e-3, d1=0.25e-6, d2=85e-6)
    ratio = measured(41_000, 50, 20) / found.timing(41_000, 50, 20)
    assert found.band[0] <= ratio <= found.band[1]


# -- whatever is asked ------------------------------------------------------------------------------------------------


@cache
def shapes() -> list[ModelShape]:
    return [*map(read_model, catalogue())]


@every("gpu", gpus())
def test_every_model_has_a_timing_on_every_gpu(gpu: Gpu) -> None:
    for shape in shapes():
        for tensor_parallel in (1, 2):  # phi-4 has 10 key-value heads
            timing = roofline(shape, gpu, parallelism=Parallelism(tensor_parallel)).timing
            assert min(astuple(timing)) >= 0
            assert min(timing.d0, timing.d1, timing.d3, timing.d5, timing.knee_tokens) > 0
            assert (timing.d6 > 0) != (
                shape.attention.index_topk > 0 or not any(one.kind is Attention.FULL for one in shape.kept)
            )
            assert timing(0, 0, 1) < 10
            assert (timing.experts > 0) == (timing.chosen > 0) == (shape.counts.experts > 0)
