"""The catalogue of GPUs: memory, bandwidth and speed, with the source of each, in gpus.toml."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from kvplan.ingest.model import named
from kvplan.units import parse_bytes

_CATALOGUE = "gpus.toml"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device.

    Attributes
    ----------
    memory_bytes
        What a process can see of it.
    memory_from
        Who says so: "torch", the total PyTorch reports; "driver", nvidia-smi, up to one per cent more; "datasheet",
        the maker, off by a few per cent.
    bandwidth_bytes_per_s
        Peak of the memory.
    flops_bf16
        Dense operations per second with 16-bit inputs, at the peak; float16 where there is no bfloat16.
    flops_fp8, flops_fp4
        With 8-bit and 4-bit floating-point inputs, where the device has them.
    link_bytes_per_s
        What one device can send to the others of its server.
    source
        Where the figures come from.
    """

    name: str
    memory_bytes: int
    memory_from: str
    bandwidth_bytes_per_s: float
    flops_bf16: float
    flops_fp8: float | None
    flops_fp4: float | None
    link_bytes_per_s: float
    source: str


def find_gpu(name: str) -> Gpu:
    """A GPU of the catalogue, by any of its names without regard to case and punctuation.

    Raises
    ------
    UsageError
        There is none of that name, or it is short for several; with the nearest.

    Examples
    --------
    >>> gpu = find_gpu("NVIDIA GeForce RTX 4090")
    >>> gpu.name, gpu.memory_bytes, gpu.bandwidth_bytes_per_s / 1e9
    ('RTX 4090', 25250627584, 1008.0)
    """
    known, aliases = _catalogue()
    return named.find(name, known, aliases, "GPU in the catalogue")


def vllm_limits(gpu: Gpu) -> dict[str, int]:
    """What ``vllm serve`` allows on a GPU where nobody says otherwise: ``EngineArgs.get_batch_defaults``.

    Examples
    --------
    >>> vllm_limits(find_gpu("H100 SXM")), vllm_limits(find_gpu("RTX 4090"))["max_num_seqs"]
    ({'max_num_seqs': 1024, 'max_num_batched_tokens': 8192}, 256)
    """
    large = gpu.memory_bytes >= 70 * 2**30 and "A100" not in gpu.name
    return {"max_num_seqs": 1024 if large else 256, "max_num_batched_tokens": 8192 if large else 2048}


def gpus() -> tuple[Gpu, ...]:
    """All GPUs of the catalogue.

    Examples
    --------
    >>> [gpu.name for gpu in gpus() if gpu.memory_bytes > 250e9]
    ['B300', 'GB300', 'MI325X', 'MI355X']
    """
    return tuple(_catalogue()[0].values())


@cache
def _catalogue() -> tuple[Mapping[str, Gpu], Mapping[str, str]]:
    tables = named.tables(_CATALOGUE)
    known = {name: _gpu(name, table) for name, table in tables.items()}
    aliases = {alias: name for name, table in tables.items() for alias in table.get("also", ())}
    return known, aliases


def _gpu(name: str, table: Mapping[str, Any]) -> Gpu:
    return Gpu(
        name=name,
        memory_bytes=parse_bytes(table["memory"]),
        memory_from=table["memory_from"],
        bandwidth_bytes_per_s=float(parse_bytes(table["bandwidth"])),
        flops_bf16=table["tflops_16"] * 1e12,
        flops_fp8=_flops(table.get("tflops_fp8")),
        flops_fp4=_flops(table.get("tflops_fp4")),
        link_bytes_per_s=float(parse_bytes(table["link"])),
        source=table["source"],
    )


def _flops(tera: float | None) -> float | None:
    return None if tera is None else tera * 1e12
