"""Timing of a replica nobody has measured: terms by hand, how they scale, and how far it says to trust them."""

from dataclasses import astuple, replace
from functools import cache

import numpy as np
import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from kvplan.errors import UsageError
from kvplan.ingest.model.config import catalogue, read_model
from kvplan.ingest.model.hardware import Gpu, find_gpu, gpus
from kvplan.ingest.model.roofline import Efficiency, efficiency, estimated_timing, experts_read, roofline
from kvplan.ingest.model.shape import ModelShape
from kvplan.model import Parallelism, Timing

RTX_4090 = find_gpu("RTX 4090")
H100 = find_gpu("H100")
PEAKS = Efficiency(1, 1, 1, 1, 0, 0)  # all of them reached, and layers for nothing


def test_llama_on_an_rtx_4090_by_hand() -> None:
    """8.030·10⁹ parameters, of which the two tables take 2 · 128,256 · 4,096 = 1.051·10⁹; 32 layers."""
    parameters, table = 8_029_995_008, 128_256 * 4096
    reached = Efficiency(0.5, 0.25, 1, 1, 1e-5, 1)
    timing = estimated_timing(read_model("Llama-3.1-8B"), RTX_4090, reached)
    assert timing.d0 == pytest.approx(2 * (parameters - table) / (0.5 * 1.008e12) + 32e-5)
    assert timing.d1 == pytest.approx(131_072 / (0.5 * 1.008e12))
    assert timing.d2 == pytest.approx(2 * (parameters - 2 * table) / (0.25 * 165.2e12))
    assert timing.d3 == timing.d2
    assert (timing.d4, timing.d5) == (0, 0)


def test_a_mixture_of_experts_by_hand() -> None:
    """Qwen3-30B-A3B: 8 of 128 experts of 3 · 2048 · 768 parameters, in each of 48 layers."""
    shape = read_model("Qwen3-30B-A3B")
    experts, table = 48 * 128 * 3 * 2048 * 768, 151_936 * 2048
    always, root = experts_read(8 / 128)
    timing = estimated_timing(shape, H100, Efficiency(0.5, 1, 0.1, 1, 2e-5, 3e-5))
    others = shape.counts.total - experts - table
    assert timing.d0 == pytest.approx(2 * (others + always * experts) / (0.5 * 3.35e12) + 48 * 5e-5)
    assert timing.d4 == pytest.approx(2 * root * experts / (0.5 * 3.35e12))
    assert timing.d2 == pytest.approx(2 * (shape.counts.active - 2 * table) / (0.1 * 989.5e12))


def test_a_ring_of_gpus_sends_what_it_adds_up() -> None:
    """Twice a layer 8,192 numbers of 2 bytes; of 8 GPUs each sends 2 · 7/8 of that, at 450 GB/s."""
    shape = read_model("Llama-3.1-70B")
    one, eight = (estimated_timing(shape, H100, PEAKS, parallelism=Parallelism(t)) for t in (1, 8))
    sent = 2 * 80 * 8192 * 2 * 2 * 7 / 8 / 450e9
    assert eight.d2 == pytest.approx(one.d2 / 8 + sent)
    assert eight.d3 == eight.d2
    half = estimated_timing(shape, H100, replace(PEAKS, link=0.5), parallelism=Parallelism(8))
    assert half.d2 == pytest.approx(one.d2 / 8 + 2 * sent)


def test_a_group_of_gpus_shares_all_that_is_read_but_copied_heads() -> None:
    shape = read_model("Llama-3.1-70B")
    one, eight, sixteen = (
        estimated_timing(shape, H100, PEAKS, parallelism=Parallelism(t)) for t in (1, 8, 16)
    )
    assert (eight.d0, eight.d1) == pytest.approx((one.d0 / 8, one.d1 / 8))
    assert (sixteen.d0, sixteen.d1) == pytest.approx((one.d0 / 16, one.d1 / 8))


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
    d2 = roofline(shape, device, weight_dtype=weight_dtype).timing.d2
    assert d2 == pytest.approx(2 * shape.counts.computing / (efficiency().compute * peak))


def test_narrow_weights_are_read_faster() -> None:
    """4.5 bits for 16, but for the output table; the time for each layer stays."""
    shape = read_model("Llama-3.1-8B")
    table = 128_256 * 4096
    found = roofline(shape, H100, weight_dtype="nvfp4")
    read = 4.5 / 8 * (8_029_995_008 - 2 * table) + 2 * table
    reached = efficiency()
    expected = read / (reached.bandwidth * 3.35e12) + 32 * reached.layer_s
    assert found.timing.d0 == pytest.approx(expected)
    assert "weights are taken to be kept in nvfp4" in found.notes[1]
    with pytest.raises(UsageError, match="'int3' is not a type of weights"):
        roofline(shape, H100, weight_dtype="int3")


def test_windows_are_read_in_proportion_to_the_context_that_a_layout_counts() -> None:
    """gpt-oss-20b: 12 layers keep all, of 2 · 8 · 64 numbers of 2 bytes; windows are a part of K."""
    timing = estimated_timing(read_model("gpt-oss-20b"), H100, PEAKS)
    assert timing.d1 == pytest.approx(12 * 2048 / 3.35e12)
    assert timing.d3 == timing.d2
    assert "[[gpu.kv]]" in roofline(read_model("gpt-oss-20b"), H100).notes[-1]


# -- experts ----------------------------------------------------------------------------------------------------------


@given(st.floats(1e-4, 1))
def test_the_line_is_the_closest_that_never_falls(chosen: float) -> None:
    batches = 2.0 ** np.arange(9)
    share = np.array([1 - (1 - chosen) ** batch for batch in batches])
    closest, _ = nnls(np.stack([np.ones(9), np.sqrt(batches)], axis=1), share)
    assert experts_read(chosen) == pytest.approx(tuple(closest), abs=1e-9)


# -- how far to trust it ----------------------------------------------------------------------------------------------


def test_a_band_is_that_of_configurations_alike() -> None:
    dense = roofline(read_model("Llama-3.1-70B"), H100, parallelism=Parallelism(8))
    low, high = dense.band
    assert 0.5 < low < 1 < high < 1.5
    assert dense.configurations == 5
    assert dense.notes == (
        f"estimated: measured iterations took {low:.2g} to {high:.2g} times as long in 5 configurations like this, a "
        "dense model on 8 GPUs. Import a log as soon as there is one",
    )
    experts = roofline(read_model("DeepSeek-V3"), H100, parallelism=Parallelism(8))
    assert experts.band != dense.band
    assert experts.configurations == 27
    assert "a mixture of experts on 8 GPUs" in experts.notes[0]
    assert "up to 256 sequences" in experts.notes[1]


def test_a_run_on_an_rtx_4090_lies_in_the_band() -> None:
    """Its replay needs d0 = 14.5 ms, d1 = 0.25 µs, d2 = 85 µs; it held 41,000 tokens of 20 sequences."""
    found = roofline(read_model("Llama-3.1-8B"), RTX_4090)
    measured = Timing(d0=14.5e-3, d1=0.25e-6, d2=85e-6)
    ratio = measured(41_000, 50, 20) / found.timing(41_000, 50, 20)
    assert found.band[0] < ratio < found.band[1]
    assert ratio == pytest.approx(0.82, abs=0.05)


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
            assert min(timing.d0, timing.d1, timing.d2, timing.d3) > 0
            assert timing(0, 0, 1) < 10
            assert (timing.d4 > 0) == (shape.counts.experts > 0)
