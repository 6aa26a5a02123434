"""The catalogue of GPUs: how one is found, and that what it says is plausible."""

import pytest
from every import every

from kvplan.errors import UsageError
from kvplan.ingest.model.hardware import Gpu, find_gpu, gpus


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
    ],
)
def test_a_gpu_is_found_by_any_of_its_names(written: str, expected: str) -> None:
    assert find_gpu(written).name == expected


@every(
    ("written", "message"),
    [
        ("A100", "A100: no GPU in the catalogue of that name; did you mean A100 "),
        ("RTX 4900", "did you mean .*RTX 4090"),
        ("Voodoo 2", "known are RTX 3090, RTX 4090"),
        ("", "'': no GPU"),
        ("a\nb", r"'a\\nb': no GPU"),
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
    assert 2e-3 < gpu.memory_bytes / gpu.bandwidth_bytes_per_s < 0.1
    assert 50 < gpu.flops_bf16 / gpu.bandwidth_bytes_per_s < 500
    if gpu.flops_fp8 is not None:
        assert gpu.flops_fp8 / gpu.flops_bf16 == pytest.approx(2, rel=0.02)
    if gpu.flops_fp4 is not None:
        assert gpu.flops_fp8 is not None
        assert 1.9 < gpu.flops_fp4 / gpu.flops_fp8 <= 4  # GeForce adds 8-bit products up at half speed
    assert 16e9 <= gpu.link_bytes_per_s < gpu.bandwidth_bytes_per_s / 3
    assert len(gpu.source) > 20
