"""The catalogue of GPUs, gpus.toml: memory, bandwidth and speed, with the source of each; and how names are found."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import tomli

from kvplan.errors import UsageError
from kvplan.units import BANDWIDTH_UNITS, BYTE_UNITS, parse_bytes, parse_exact

T = TypeVar("T")

_FLOPS = {
    f"{prefix}FLOP{end}": Fraction(size)
    for prefix, size in (("G", 10**9), ("T", 10**12), ("P", 10**15))
    for end in ("s", "S", "")
}
_LISTED = 36  # names in a message
_MAKERS = re.compile(r"\b(?:nvidia|geforce|tesla|amd|instinct|intel|gpu)\b")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device, with the figures that gpus.toml describes; bytes and operations per second."""

    name: str
    memory_bytes: int
    memory_from: str  # as there, or "stated" by options
    bandwidth_bytes_per_s: float
    flops_bf16: float
    flops_fp8: float | None
    flops_fp4: float | None
    link_bytes_per_s: float
    source: str
    watts: float | None = None  # the most that the board draws; None: nobody says, as of a slice
    mig: tuple[str, ...] = ()
    is_slice: bool = False
    assumed: str = field(default="", compare=False)  # what a name that says less was taken for, in a sentence

    def check_group(self, tensor_parallel: int) -> None:
        """Refuse tensor parallelism over MIG slices, which have no connection to others (MIG user guide)."""
        if self.is_slice and tensor_parallel > 1:
            must = f"must be 1 on {self.name}: slices of a GPU have no connection to others"
            raise UsageError(f"tensor parallelism {tensor_parallel}: {must}")


def find_gpu(
    name: str, *, memory: str | None = None, bandwidth: str | None = None, flops: str | None = None
) -> Gpu:
    """Find a GPU of the catalogue by any of its names in any case and punctuation, or make one as described.

    A slice is named after a colon. Of a GPU in the catalogue any figure may be replaced; another one needs all three,
    and is taken to have 32 GB/s to others, as PCIe 4.0.

    Examples
    --------
    >>> gpu = find_gpu("NVIDIA GeForce RTX 4090")
    >>> gpu.name, gpu.memory_bytes, gpu.bandwidth_bytes_per_s / 1e9
    ('RTX 4090', 25250627584, 1008.0)
    >>> half = find_gpu("H100:3g.40gb")
    >>> half.name, half.bandwidth_bytes_per_s / 1e9, round(half.flops_bf16 / 1e12)
    ('H100 SXM:3g.40gb', 1675.0, 424)
    """
    given = {"--gpu-memory": memory, "--gpu-bandwidth": bandwidth, "--gpu-flops": flops}
    known, aliases = _catalogue()
    whole, colon, profile = name.partition(":")
    try:
        gpu = find(whole, known, aliases, "GPU in the catalogue")
        gpu = replace(gpu, assumed=_assumed(whole, gpu, known))
    except UsageError as error:
        missing = [option for option, text in given.items() if text is None]
        if len(missing) == len(given):
            raise UsageError(f"{error}; or describe it with {', '.join(given)}") from None
        if missing:
            raise UsageError(f"{error}; or give {' and '.join(missing)} too") from None
        source = "as described; 32 GB/s between GPUs, as PCIe 4.0 has, is assumed"
        gpu = Gpu(" ".join(name.split())[:60], 0, "stated", 0.0, 0.0, None, None, 32e9, source)
    else:
        gpu = _slice(gpu, profile) if colon else gpu
        if not any(given.values()):
            return gpu
        gpu = replace(gpu, source=f"{gpu.source}; {', '.join(k for k, text in given.items() if text)}")
    if memory is not None:
        size = _stated("--gpu-memory", memory, BYTE_UNITS, 1e9, 1e13)
        gpu = replace(gpu, memory_bytes=int(size), memory_from="stated")
    if bandwidth is not None:
        per_s = _stated("--gpu-bandwidth", bandwidth, BANDWIDTH_UNITS, 1e9, 1e15)
        gpu = replace(gpu, bandwidth_bytes_per_s=per_s)
    if flops is not None:
        peak = _stated("--gpu-flops", flops.replace("/s", ""), _FLOPS, 1e11, 1e18)
        gpu = replace(gpu, flops_bf16=peak, flops_fp8=None, flops_fp4=None)
    return gpu


def _assumed(name: str, gpu: Gpu, known: Iterable[str]) -> str:
    """Say which of several forms of a GPU a name was taken for: SXM unless it says PCIe."""
    base = gpu.name
    if plain(name) != plain(base):
        base = base.partition(" ")[0]
        if re.sub(r"(?:40|80|94|96|141)gb$", "", plain(name)) != plain(base):
            return ""
    others = " or ".join(other for other in known if other != gpu.name and other.startswith(f"{base} "))
    taken = gpu.name if "SXM" in gpu.name else f"{gpu.name} SXM"
    return f"{name} was taken for {taken}, not {others}" if others else ""


def _stated(option: str, text: str, units: Mapping[str, Fraction], least: float, most: float) -> float:
    try:
        value = float(parse_exact(text, units))
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None
    if not least <= value <= most:
        raise UsageError(f"{option} {text[:40]!r}: must be {least:g} to {most:g}")
    return value


def _slice(gpu: Gpu, profile: str) -> Gpu:
    """Share of a GPU that MIG gives: compute by its slices, memory and bandwidth in eighths."""
    sizes = {name: tuple(map(int, name.removesuffix("gb").split("g."))) for name in gpu.mig}
    if profile.lower() not in sizes:
        known = f"known are {', '.join(gpu.mig)}" if gpu.mig else "it has none in the catalogue"
        raise UsageError(f"{gpu.name}: no slice {profile[:40]!r}; {known}")
    (compute, memory), (all_compute, all_memory) = sizes[profile.lower()], sizes[gpu.mig[-1]]
    eighths, share = round(memory / all_memory * 8) / 8, compute / all_compute
    return replace(
        gpu,
        name=f"{gpu.name}:{profile.lower()}",
        memory_bytes=int(gpu.memory_bytes * eighths),
        memory_from="datasheet",
        bandwidth_bytes_per_s=gpu.bandwidth_bytes_per_s * eighths,
        flops_bf16=gpu.flops_bf16 * share,
        flops_fp8=gpu.flops_fp8 and gpu.flops_fp8 * share,
        flops_fp4=gpu.flops_fp4 and gpu.flops_fp4 * share,
        source=f"{gpu.source}; a slice of it by NVIDIA's MIG user guide",
        watts=None,
        is_slice=True,
    )


def gpus() -> tuple[Gpu, ...]:
    """List all known GPUs."""
    return tuple(_catalogue()[0].values())


def gpu_names() -> dict[str, list[str]]:
    """Further names of each GPU of the catalogue."""
    _, aliases = _catalogue()
    return {gpu.name: [alias for alias, name in aliases.items() if name == gpu.name] for gpu in gpus()}


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
        watts=table.get("watts"),
        mig=tuple(table.get("mig", ())),
    )


# ----------------------------------------------------------------------------------------------- names


def tables(file: str | Path) -> dict[str, Any]:
    """Read a TOML file of the package, or of that name beside this module."""
    return tomli.loads((Path(__file__).parent / file).read_text("utf-8"))


def find(name: str, known: Mapping[str, T], aliases: Mapping[str, str], noun: str) -> T:
    """Look up a name or an alias; raise a `UsageError` with the nearest ones where there is none."""
    written = {plain(other): proper for other, proper in aliases.items()} | {plain(k): k for k in known}
    wanted = plain(name)
    if wanted in written:
        return known[written[wanted]]
    quoted = name if name.isprintable() and 0 < len(name) <= 100 else repr(name[:100])
    listing = "gpus" if noun.startswith("GPU") else "models"
    raise UsageError(f"{quoted}: no {noun} of that name; {_nearest(wanted, written, known, listing)}")


def plain(name: str) -> str:
    """Strip case, punctuation and the words every product of a maker has."""
    return re.sub(r"[\W_]", "", _MAKERS.sub("", name.lower()))


def _nearest(wanted: str, written: Mapping[str, str], known: Iterable[str], listing: str) -> str:
    from difflib import get_close_matches  # only a mistake needs it

    # A name can be short for several things, as "A100"; and several spellings can lead to one.
    longer = [name for name in written if wanted and name.startswith(wanted)]
    near = longer or get_close_matches(wanted[:60], written, n=3)
    proper = dict.fromkeys(written[name] for name in near)
    if proper:
        return f"did you mean {' or '.join(proper)}?"
    every = list(known)
    if len(every) > _LISTED:
        return f"kvplan {listing} lists the {len(every)} that are known"
    return f"known are {', '.join(every)}"
