"""The catalogue of GPUs, gpus.toml: memory, bandwidth and speed, with the source of each; and how names are found."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import tomli

from kvplan.errors import UsageError
from kvplan.units import parse_bytes

T = TypeVar("T")

_MAKERS = re.compile(r"\b(?:nvidia|geforce|tesla|amd|instinct|gpu)\b")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device.

    Attributes
    ----------
    memory_bytes, memory_from
        What a process can see of it, and who says so: "torch", the total PyTorch reports; "driver", nvidia-smi, up to
        one per cent more; "datasheet", the maker, off by a few per cent.
    bandwidth_bytes_per_s, link_bytes_per_s
        Peak of the memory; what one device can send to the others of its server.
    flops_bf16, flops_fp8, flops_fp4
        Dense operations per second at the peak, with inputs of 16 bits (float16 where there is no bfloat16), and of 8
        and 4 bits, where the device has them.
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
    return find(name, known, aliases, "GPU in the catalogue")


def vllm_limits(gpu: Gpu) -> dict[str, int]:
    """What ``vllm serve`` allows on a GPU where nobody says otherwise: ``EngineArgs.get_batch_defaults``."""
    large = gpu.memory_bytes >= 70 * 2**30 and "A100" not in gpu.name
    return {"max_num_seqs": 1024 if large else 256, "max_num_batched_tokens": 8192 if large else 2048}


def gpus() -> tuple[Gpu, ...]:
    """All GPUs of the catalogue."""
    return tuple(_catalogue()[0].values())


@cache
def _catalogue() -> tuple[Mapping[str, Gpu], Mapping[str, str]]:
    listed = tables("gpus.toml")
    aliases = {alias: name for name, table in listed.items() for alias in table.get("also", ())}
    return {name: _gpu(name, table) for name, table in listed.items()}, aliases


def _gpu(name: str, table: Mapping[str, Any]) -> Gpu:
    flops = [table.get(f"tflops_{kind}") for kind in ("16", "fp8", "fp4")]
    sixteen, eight, four = (None if tera is None else tera * 1e12 for tera in flops)
    return Gpu(
        name=name,
        memory_bytes=parse_bytes(table["memory"]),
        memory_from=table["memory_from"],
        bandwidth_bytes_per_s=float(parse_bytes(table["bandwidth"])),
        flops_bf16=sixteen or 0.0,
        flops_fp8=eight,
        flops_fp4=four,
        link_bytes_per_s=float(parse_bytes(table["link"])),
        source=table["source"],
    )


# ----------------------------------------------------------------------------------------------- names


def tables(file: str) -> dict[str, Any]:
    """The tables of a TOML file beside this module."""
    return tomli.loads((Path(__file__).parent / file).read_text("utf-8"))


def find(name: str, known: Mapping[str, T], aliases: Mapping[str, str], noun: str) -> T:
    """What goes by a name, or by another one that stands for it; or raise a `UsageError` with the nearest.

    >>> find("rtx_4090", {"RTX 4090": 24, "L4": 22}, {}, "GPU")
    24
    """
    written = {plain(other): proper for other, proper in aliases.items()} | {plain(k): k for k in known}
    wanted = plain(name)
    if wanted in written:
        return known[written[wanted]]
    quoted = name if name.isprintable() and 0 < len(name) <= 100 else repr(name[:100])
    raise UsageError(f"{quoted}: no {noun} of that name; {_nearest(wanted, written, known)}")


def plain(name: str) -> str:
    """A name without case, punctuation and the words every product of a maker has.

    >>> plain("NVIDIA GeForce RTX 4090"), plain("rtx-4090")
    ('rtx4090', 'rtx4090')
    """
    return re.sub(r"[\W_]", "", _MAKERS.sub("", name.lower()))


def _nearest(wanted: str, written: Mapping[str, str], known: Iterable[str]) -> str:
    from difflib import get_close_matches  # only a mistake needs it

    # A name can be short for several things, as "A100"; and several spellings can lead to one.
    longer = [name for name in written if wanted and name.startswith(wanted)]
    near = longer or get_close_matches(wanted[:60], written, n=3)
    proper = dict.fromkeys(written[name] for name in near)
    return f"did you mean {' or '.join(proper)}?" if proper else f"known are {', '.join(known)}"
