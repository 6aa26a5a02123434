"""Axes of a sweep: ``KEY=VALUES`` read and checked, and the values of each point.

A grid has every combination of the values of its keys, the last key changing fastest. A sample draws each key from a
range instead; it depends on the seed alone, so that any stretch of points can be had by itself.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from kvplan.axes import MAX_LISTED, MAX_POINTS, Axis, Number, Quantity, read_axis, read_count
from kvplan.errors import UsageError
from kvplan.model import FloatArray, Timing
from kvplan.profile.positions import KeyPath
from kvplan.profile.reading import with_values
from kvplan.profile.schema import Document, SchemaError, check_values
from kvplan.units import BANDWIDTH_UNITS, BYTE_UNITS, COUNT_UNITS, TIME_UNITS

MAX_LATIN = 10**6  # held in memory
_MAX_TEXT = 2 * MAX_LISTED  # characters of KEY=VALUES: a value and its comma are two at least
_CHUNK = 1024  # points of a sample that are drawn at once; part of what a seed means
_HOW = "KEY=VALUES, such as classes.chat.rate=0.5,1,2 or gpu.memory_tokens=20k:400k:20"

_TOKENS = Quantity(COUNT_UNITS, True)
_NUMBER = Quantity(COUNT_UNITS, False)
_BYTES = Quantity(BYTE_UNITS, True, "B")
_BANDWIDTH = Quantity(BANDWIDTH_UNITS, False, "B/s")
_SECONDS = Quantity({"": Fraction(1), **TIME_UNITS}, False, "s")


class Kind(StrEnum):
    """Kinds of samples."""

    RANDOM = "random"
    LATIN = "lhs"


class Sample(NamedTuple):
    """A sample in place of a grid."""

    kind: Kind
    points: int
    seed: int


# ------------------------------------------------------------------------------------------------- reading


def parse_sample(text: str, seed: int) -> Sample:
    """Read ``random:N`` or ``lhs:N``."""
    kind, _, number = text.partition(":")
    if kind not in tuple(Kind):
        raise UsageError(f"--sample {text[:60]!r}: random:N or lhs:N, with the number of points")
    most = MAX_POINTS if kind == Kind.RANDOM else MAX_LATIN
    count = read_count(number, f"--sample {text[:60]!r}", least=1)
    if count > most:
        raise UsageError(f"--sample {text[:60]!r}: {count:,} points; {most:,} is the most")
    return Sample(Kind(kind), count, seed)


def parse_axes(
    texts: Sequence[str], document: Document, tables: Mapping[str, Any], sample: Sample | None
) -> tuple[Axis, ...]:
    """Read the axes of a sweep.

    `texts` are ``KEY=VALUES``: a list with commas, ``LOW:HIGH:COUNT`` or ``LOW:HIGH:logCOUNT``; with a sample
    ``LOW:HIGH`` or ``LOW:HIGH:log``. `document` is the checked profile, `tables` the same as written. Keys that the
    profile has not, values that they cannot take, and too many points are refused.

    Examples
    --------
    >>> from io import BytesIO
    >>> from kvplan.profile import schema
    >>> from kvplan.profile.reading import load_profile
    >>> tables = load_profile("tool-calls-h100", stdin=BytesIO()).tables
    >>> axes = parse_axes(["timing.d1=1e-8:1e-6:log3", "gpu.max_num_seqs=64,1k"], schema.check(tables), tables, None)
    >>> list(stretch(axes, None, 0, 6))[:3]
    [(1e-08, 64), (1e-08, 1000), (1e-07, 64)]
    """
    if not texts:
        raise UsageError(f"nothing is varied; --vary {_HOW}")
    known = known_keys(document)
    axes: list[Axis] = []
    for text in texts:
        if len(text) > _MAX_TEXT:
            raise UsageError(
                f"--vary {text[:40]!r}...: {len(text):,} characters, {_MAX_TEXT:,} is the most; "
                "many values are a range LOW:HIGH:COUNT"
            )
        if not text.isprintable():
            raise UsageError(f"--vary: printable text is wanted, {_HOW}")
        key, equals, values = (part.strip() for part in text.rpartition("="))
        if not equals or not key:
            raise UsageError(f"--vary {text[:80]!r}: {_HOW}")
        path = _path(key, document)
        if path not in known:
            raise UsageError(
                f"--vary {_short(key)!r}: not a number of this profile; {_nearest(key, known.values())}"
            )
        if any(axis.path == path for axis in axes):
            raise UsageError(f"--vary {key!r}: varied twice")
        axes.append(read_axis("--vary", key, values, _quantity(path), path, sampled=sample is not None))
    _refuse_both_ways(axes)
    count_points(axes, sample)
    for axis in axes:
        _refuse_wrong_values(axis, tables)
    return tuple(axes)


def count_points(axes: Sequence[Axis], sample: Sample | None) -> int:
    """Return the number of points; a UsageError where there are more than `MAX_POINTS`."""
    if sample is not None:
        return sample.points
    count = math.prod(axis.count for axis in axes)
    if count > MAX_POINTS:
        product = " × ".join(f"{axis.count:,}" for axis in axes)
        how = f" ({product})" if len(axes) > 1 else ""
        raise UsageError(f"--vary asks for {count:,} points{how}; {MAX_POINTS:,} is the most")
    return count


def known_keys(document: Document) -> dict[KeyPath, str]:
    """Return the numbers of a profile that can be varied, and how they are written."""
    rate = "rate" if document.workload is None else "share"
    fields = [key for key in _QUANTITIES if key.rpartition(".")[0] in ("gpu", "timing", "plan")]
    if document.gpu.memory is None:
        fields = [key for key in fields if key not in ("gpu.memory", "gpu.kv_bytes_per_token")]
    fields.remove("gpu.kv_blocks" if document.gpu.kv_blocks is None else "gpu.memory_tokens")
    if (tier := document.gpu.offload) is not None:
        size = "memory" if tier.memory_tokens is None else "memory_tokens"
        fields += [f"gpu.offload.{size}", "gpu.offload.bandwidth"]
    if document.speculative is not None:
        fields.append("speculative.tokens")
    if document.fleet is not None:
        whole = document.fleet.replicas is not None
        fields += ["fleet.replicas"] if whole else ["fleet.prefill", "fleet.decode"]
    if document.workload is not None:
        fields.append("workload.rate")
    keys: dict[KeyPath, str] = {tuple(key.split(".")): key for key in fields}
    for i, c in enumerate(document.classes):
        for field in (rate, "input", "decode"):
            keys["classes", i, field] = f"classes.{c.name}.{field}"
    for i, session in enumerate(document.sessions):
        own = [name for name in ("rate", "users") if session.has(name)]
        for field in (*own, *(["shared"] if own else [])):
            keys["sessions", i, field] = f"sessions.{session.name}.{field}"
    return keys


_QUANTITIES: Mapping[str, Quantity] = {
    "gpu.memory_tokens": _TOKENS,
    "gpu.memory": _BYTES,
    "gpu.kv_bytes_per_token": _TOKENS,
    "gpu.kv_blocks": _TOKENS,
    "gpu.block_tokens": _TOKENS,
    "gpu.max_num_seqs": _TOKENS,
    "gpu.max_num_batched_tokens": _TOKENS,
    "gpu.offload.memory": _BYTES,
    "gpu.offload.memory_tokens": _TOKENS,
    "gpu.offload.bandwidth": _BANDWIDTH,
    **{f"timing.{f.name}": _SECONDS for f in fields(Timing)},
    "timing.knee_tokens": _TOKENS,
    "timing.chosen": _NUMBER,
    "timing.request_overhead": _SECONDS,
    "workload.rate": _NUMBER,
    "speculative.tokens": _TOKENS,
    "fleet.replicas": _TOKENS,
    "fleet.prefill": _TOKENS,
    "fleet.decode": _TOKENS,
    "classes.rate": _NUMBER,
    "classes.share": _NUMBER,
    "classes.input": _TOKENS,
    "classes.decode": _TOKENS,
    "sessions.rate": _NUMBER,
    "sessions.users": _TOKENS,
    "sessions.shared": _TOKENS,
    "plan.delta": _NUMBER,
    "plan.horizon": _SECONDS,
    "plan.segments": _TOKENS,
}
_NAME_SHOWN = 40  # characters of a key in a message; names of classes can be long
_INDEXED = re.compile(r"(classes|sessions)\[ *(.+?) *\]\.([a-z]+)")


def _short(key: str) -> str:
    return key if len(key) <= _NAME_SHOWN else f"{key[: _NAME_SHOWN - 3]}..."


def _nearest(key: str, known: Iterable[str]) -> str:
    """Name the key that was meant, or two that are a little like it: a profile has too many to name all."""
    known = list(known)
    close = get_close_matches(key[:60], known, n=1)
    if close:
        return f"did you mean {_short(close[0])}?"
    return f"the nearest are {', '.join(map(_short, get_close_matches(key[:60], known, n=2, cutoff=0)))}"


def _path(key: str, document: Document) -> KeyPath:
    """Return the path of a key as written; classes by name, or ``classes[0]`` as messages have it."""
    head, _, field = key.rpartition(".")
    kind, _, name = head.partition(".")
    if indexed := _INDEXED.fullmatch(key):
        kind, name, field = indexed[1], indexed[2], indexed[3]
    for i, entry in enumerate(getattr(document, kind) if kind in ("classes", "sessions") else ()):
        if name == entry.name or (indexed and name == str(i)):
            return (kind, i, field)
    return tuple(key.split("."))


def _quantity(path: KeyPath) -> Quantity:
    return _QUANTITIES[".".join(part for part in path if isinstance(part, str))]


def as_in_profile(path: KeyPath, value: Number) -> object:
    """Write the value of a key as a profile does, with its unit."""
    unit = _quantity(path).unit
    return f"{value} {unit}" if unit else value


def _refuse_both_ways(axes: Sequence[Axis]) -> None:
    paths = {axis.path for axis in axes}
    for other in ("memory", "kv_bytes_per_token"):
        if {("gpu", "memory_tokens"), ("gpu", other)} <= paths:
            raise UsageError(f"--vary: gpu.memory_tokens and gpu.{other} say the same; vary one of them")


def _refuse_wrong_values(axis: Axis, tables: Mapping[str, Any]) -> None:
    """Refuse values out of bounds. Every key may be in an interval, so that the ends of a range speak for all of it."""
    ends = axis.values or tuple(int(value) if axis.whole else float(value) for value in (axis.low, axis.high))
    for value in ends:
        try:
            check_values(with_values(tables, {axis.path: as_in_profile(axis.path, value)}))
        except SchemaError as error:
            raise UsageError(f"--vary {axis.key}: {error.problems[0].message}") from None


# -------------------------------------------------------------------------------------------------- points


def stretch(
    axes: Sequence[Axis], sample: Sample | None, start: int, stop: int
) -> Iterator[tuple[Number, ...]]:
    """Yield the values of the points from `start` up to `stop`, in the order of the axes."""
    if sample is None:
        for index in range(start, stop):
            values = []
            for axis in reversed(axes):
                index, place = divmod(index, axis.count)
                values.append(axis.at(place))
            yield tuple(reversed(values))
        return
    for first in range(start - start % _CHUNK, stop, _CHUNK):
        places = _places(sample, len(axes), first)
        for row in places[max(start - first, 0) : stop - first].tolist():
            yield tuple(axis.drawn(u) for axis, u in zip(axes, row, strict=True))


def _places(sample: Sample, axes: int, first: int) -> FloatArray:
    """Return each value's place in its range, of the points from `first` on; shape (at most _CHUNK, axes)."""
    if sample.kind is Kind.LATIN:
        return _latin(sample, axes)[first : first + _CHUNK]
    size = min(_CHUNK, sample.points - first)
    return np.random.default_rng([sample.seed, 0, first]).random((_CHUNK, axes))[:size]


@lru_cache(maxsize=2)
def _latin(sample: Sample, axes: int) -> FloatArray:
    from scipy.stats.qmc import LatinHypercube  # type: ignore[import-untyped]

    places: FloatArray = LatinHypercube(axes, seed=sample.seed).random(sample.points)
    return places
