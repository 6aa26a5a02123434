"""The catalogue of GPUs: how one is found, and that what it says is plausible."""

import pytest
from every import every

from kvplan.errors import UsageError
from kvplan.ingest.model.config import read_model
from kvplan.ingest.model.estimate import estimate_replica
from kvplan.ingest.model.hardware import Gpu, find_gpu, gpus
from kvplan.ingest.model.roofline import roofline
from kvplan.model import Parallelism


@every(
    ("written", "expected"),
    [
        ("RTX 4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("a100-80gb", "A100 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("H100", "H100 SXM"),
        ("h100_nvl", "H100 NVL"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-32GB", "V100 32GB"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000"),
        ("b300_sxm", "B300"),
        ("DGX Spark", "GB10"),
        ("Intel Gaudi3", "Gaudi 3"),
        ("H100:3g.40gb", "H100 SXM:3g.40gb"),
    ],
)
def test_a_gpu_is_found_by_any_of_its_names(written: str, expected: str) -> None:
    assert find_gpu(written).name == expected


@every(
    ("written", "message"),
    [
        ("A100", "A100: no GPU in the catalogue of that name; did you mean A100 "),
        ("RTX 4900", "did you mean .*RTX 4090"),
        ("Voodoo 2", r"kvplan gpus lists the \d+ that are known"),
        ("", "'': no GPU"),
        ("a\nb", r"'a\\nb': no GPU"),
        ("Voodoo 2", "or describe it with --gpu-memory, --gpu-bandwidth, --gpu-flops"),
        ("H100:9g.80gb", "H100 SXM: no slice '9g.80gb'; known are 1g.10gb, "),
        ("RTX 4090:1g.5gb", "it has none in the catalogue"),
    ],
)
def test_an_unknown_gpu_brings_the_nearest(written: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_gpu(written)


@every("gpu", gpus())
def test_figures_are_of_the_right_size(gpu: Gpu) -> None:
    """Wrong units, figures with sparsity and swapped columns show in these ratios."""
    assert 14e9 < gpu.memory_bytes < 310e9
    assert gpu.memory_from in {"torch", "driver", "datasheet"}
    assert 2e-3 < gpu.memory_bytes / gpu.bandwidth_bytes_per_s < (0.5 if gpu.name == "GB10" else 0.1)
    assert 30 < gpu.flops_bf16 / gpu.bandwidth_bytes_per_s < (800 if gpu.name == "GB10" else 510)
    if gpu.flops_fp8 is not None:
        times = 1 if gpu.name in {"GB10", "Gaudi 3"} else 2
        assert gpu.flops_fp8 / gpu.flops_bf16 == pytest.approx(times, rel=0.02)
    if gpu.flops_fp4 is not None:
        assert gpu.flops_fp8 is not None
        assert 1.9 < gpu.flops_fp4 / gpu.flops_fp8 <= 4  # GeForce adds 8-bit products up at half speed
    assert 16e9 <= gpu.link_bytes_per_s < gpu.bandwidth_bytes_per_s / 3
    assert len(gpu.source) > 20
    assert gpu.watts is None or 0.7e9 < gpu.flops_bf16 / gpu.watts / 1e2 < 50e9


@every(
    ("name", "gib", "bandwidth", "compute"),
    [
        ("H100:3g.40gb", 39.5, 1 / 2, 3 / 7),
        ("A100-SXM4-80GB:1g.10gb", 9.5, 1 / 8, 1 / 7),
        ("a100-80gb:2g.20gb", 19.5, 1 / 4, 2 / 7),
        ("A30:2g.12gb", 11.8, 1 / 2, 1 / 2),
        ("H200:1g.18gb", 16.5, 1 / 8, 1 / 7),
    ],
)
def test_slices_have_the_memory_of_the_guide_and_their_share_of_the_rest(
    name: str, gib: float, bandwidth: float, compute: float
) -> None:
    whole, part = find_gpu(name.partition(":")[0]), find_gpu(name)
    assert part.memory_bytes / 2**30 == pytest.approx(gib, rel=0.06)
    assert part.bandwidth_bytes_per_s == bandwidth * whole.bandwidth_bytes_per_s
    assert part.flops_bf16 == pytest.approx(compute * whole.flops_bf16)


def test_a_slice_shares_no_model_with_another() -> None:
    shape, part = read_model("Llama-3.1-8B"), find_gpu("H100:3g.40gb")
    for estimate in (estimate_replica, roofline):
        estimate(shape, part)
        with pytest.raises(
            UsageError, match=r"parallelism 2: must be 1 on H100 SXM:3g\.40gb: slices of a GPU"
        ):
            estimate(shape, part, parallelism=Parallelism(2))


@every(
    ("name", "gib"),
    [
        ("MI300X", 192),
        ("MI325X", 256),
        ("MI355X", 288),
        ("Gaudi 2", 96),
        ("Gaudi 3", 128),
        ("H20", 96),
        ("B40", 84),
    ],
)
def test_memory_sold_in_gb_is_counted_in_gib(name: str, gib: int) -> None:
    """Stacks and chips of memory come in powers of two: drivers report what is printed on the box in GiB."""
    assert find_gpu(name).memory_bytes / 2**30 == pytest.approx(gib, rel=0.01)


def test_a_gpu_is_described_by_its_figures() -> None:
    gpu = find_gpu("Voodoo 2", memory="96GB", bandwidth="4TB/s", flops="148TFLOPs")
    assert (gpu.name, gpu.memory_bytes, gpu.bandwidth_bytes_per_s, gpu.flops_bf16) == (
        "Voodoo 2",
        96 * 10**9,
        4e12,
        148e12,
    )
    assert (gpu.flops_fp8, gpu.memory_from) == (None, "stated")
    faster = find_gpu("H100", flops="0.5 PFLOPS")
    assert (faster.flops_bf16, faster.memory_bytes) == (5e14, find_gpu("H100").memory_bytes)
    assert "--gpu-flops" in faster.source


@every(
    ("figures", "message"),
    [
        ({"memory": "96GB"}, "or give --gpu-bandwidth and --gpu-flops too"),
        ({"memory": "96", "bandwidth": "4TB/s", "flops": "1TFLOPS"}, "--gpu-memory: '96' is not"),
        ({"memory": "9GB", "bandwidth": "4TB", "flops": "1TFLOPS"}, "--gpu-bandwidth: '4TB' is not"),
        ({"memory": "9GB", "bandwidth": "4TB/s", "flops": "1 kW"}, "--gpu-flops: '1 kW' is not"),
        ({"memory": "9GB", "bandwidth": "4TB/s", "flops": "9GFLOPS"}, "--gpu-flops '9GFLOPS': must be 1e"),
        ({"memory": "-9GB", "bandwidth": "4TB/s", "flops": "1TFLOPS"}, "--gpu-memory '-9GB': must be"),
    ],
)
def test_a_description_that_lacks_a_figure_or_has_an_absurd_one_is_refused(
    figures: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        find_gpu("Voodoo 2", **figures)


@every(
    ("name", "said"),
    [
        ("H100", "H100 was taken for H100 SXM, not H100 PCIe or H100 NVL"),
        ("H100 80GB", "H100 80GB was taken for H100 SXM, not H100 PCIe or H100 NVL"),
        ("A100-80GB", "A100-80GB was taken for A100 80GB SXM, not A100 80GB PCIe"),
        *(
            (name, "")
            for name in ("H100 PCIe", "H100-SXM", "A100-SXM4-80GB", "L40", "A10", "H200", "RTX 4090")
        ),
    ],
)
def test_a_form_that_was_assumed_is_said(name: str, said: str) -> None:
    assert find_gpu(name).assumed == said


def test_an_a100_has_to_be_named_in_full() -> None:
    with pytest.raises(
        UsageError, match="did you mean A100 40GB or A100 40GB PCIe or A100 80GB or A100 80GB PCIe"
    ):
        find_gpu("A100")
