"""Axes of a sweep: ``KEY=VALUES`` read and checked, and the values of each point.

A grid has every combination of the values of its keys, the last key changing fastest. A sample draws each key from a
range instead; it depends on the seed alone, so that any stretch of points can be had by itself.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from kvplan.errors import UsageError
from kvplan.model import FloatArray, Timing
from kvplan.profile.positions import KeyPath
from kvplan.profile.reading import with_value
from kvplan.profile.schema import Document, SchemaError, check_values
from kvplan.units import BANDWIDTH_UNITS, BYTE_UNITS, COUNT_UNITS, TIME_UNITS, parse_exact

MAX_POINTS = 10**7
MAX_LATIN = 10**6  # held in memory
_MAX_TEXT = 100_000  # characters of KEY=VALUES
MAX_LISTED = _MAX_TEXT // 2  # a value and its comma are two characters at least
_CHUNK = 1024  # points of a sample that are drawn at once; part of what a seed means
_HOW = "KEY=VALUES, such as classes.chat.rate=0.5,1,2 or gpu.memory_tokens=20k:400k:20"

Number = int | float


class Quantity(NamedTuple):
    """How values of a key are written, whether they are whole, and their unit where profiles have no plain numbers."""

    units: Mapping[str, Fraction]
    whole: bool
    unit: str = ""


_TOKENS = Quantity(COUNT_UNITS, True)
_NUMBER = Quantity(COUNT_UNITS, False)
_BYTES = Quantity(BYTE_UNITS, True, "B")
_BANDWIDTH = Quantity(BANDWIDTH_UNITS, False, "B/s")
_SECONDS = Quantity({"": Fraction(1), **TIME_UNITS}, False)


@dataclass(frozen=True, slots=True)
class Axis:
    """One key and the values it takes: a list of them, or a range, perhaps spaced by its logarithm.

    The key is as written and names its column. `count` is how many values there are; 0 where a sample draws them.
    """

    key: str
    path: KeyPath
    text: str
    whole: bool
    values: tuple[Number, ...] = ()
    low: Fraction = Fraction(0)
    high: Fraction = Fraction(0)
    log: bool = False
    count: int = 0

    def at(self, index: int) -> Number:
        """Return value number `index` of a grid."""
        if self.values:
            return self.values[index]
        if index in (0, self.count - 1):
            return self._number(self.high if index else self.low)
        step = Fraction(index, self.count - 1)
        return self._number(self._log(float(step)) if self.log else self.low + (self.high - self.low) * step)

    def drawn(self, u: float) -> Number:
        """Return the value at a place from 0 to 1 of the range; whole ones are equally likely where it is linear."""
        if self.log:
            return self._number(self._log(u))
        if self.whole:
            return min(int(self.low + int((self.high - self.low + 1) * Fraction(u))), int(self.high))
        return float(self.low) + u * float(self.high - self.low)

    def _log(self, place: float) -> Fraction:
        value = float(self.low) * (float(self.high) / float(self.low)) ** place
        return min(max(Fraction(f"{value:.15g}"), self.low), self.high)

    def _number(self, value: Fraction) -> Number:
        return math.floor(value + Fraction(1, 2)) if self.whole else float(value)


class Kind(StrEnum):
    """How a sample is drawn."""

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
    count = _count(number, f"--sample {text[:60]!r}", least=1)
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
        axes.append(_axis(key, path, values, sample))
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
    found: dict[KeyPath, str] = {tuple(key.split(".")): key for key in fields}
    for i, c in enumerate(document.classes):
        for field in (rate, "input", "decode"):
            found["classes", i, field] = f"classes.{c.name}.{field}"
    for i, one in enumerate(document.sessions):
        for field in ("rate" if one.users is None else "users", "shared"):
            found["sessions", i, field] = f"sessions.{one.name}.{field}"
    return found


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
    **{f"timing.{f.name}": _TOKENS if f.name == "knee_tokens" else _SECONDS for f in fields(Timing)},
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
    """Say what was meant, or two keys that are a little like it: a profile has too many to name all."""
    known = list(known)
    close = get_close_matches(key[:60], known, n=1)
    if close:
        return f"did you mean {_short(close[0])}?"
    return f"the nearest are {', '.join(map(_short, get_close_matches(key[:60], known, n=2, cutoff=0)))}"


def _path(key: str, document: Document) -> KeyPath:
    """Return where a key as written stands; classes by name, or ``classes[0]`` as messages have it."""
    head, _, field = key.rpartition(".")
    kind, _, name = head.partition(".")
    if found := _INDEXED.fullmatch(key):
        kind, name, field = found[1], found[2], found[3]
    for i, entry in enumerate(getattr(document, kind) if kind in ("classes", "sessions") else ()):
        if name == entry.name or (found and name == str(i)):
            return (kind, i, field)
    return tuple(key.split("."))


def _quantity(path: KeyPath) -> Quantity:
    return _QUANTITIES[".".join(part for part in path if isinstance(part, str))]


def _axis(key: str, path: KeyPath, text: str, sample: Sample | None) -> Axis:
    if not text.strip(", "):
        raise UsageError(f"--vary {key}: no values; {_HOW}")
    if ":" in text:
        return _range(key, path, text, sample)
    place = f"--vary {key}={text[:60]}"
    if sample is not None:
        raise UsageError(f"{place}: --sample draws from LOW:HIGH or LOW:HIGH:log")
    whole = _quantity(path).whole
    exact = [_number(key, path, part) for part in text.split(",")]
    values = tuple(int(value) if whole else float(value) for value in exact)
    if len(set(values)) < len(values):
        raise UsageError(f"{place}: a value is there twice")
    return Axis(key, path, text, whole, values, count=len(values))


def _range(key: str, path: KeyPath, text: str, sample: Sample | None) -> Axis:
    place, whole = f"--vary {key}={text[:60]}", _quantity(path).whole
    low, high, *rest = text.split(":")
    how = rest[0].strip() if rest else ""
    log = how.startswith("log")
    if len(rest) > 1 or (sample is not None and how not in ("", "log")):
        shape = "LOW:HIGH:COUNT or LOW:HIGH:logCOUNT" if sample is None else "LOW:HIGH or LOW:HIGH:log"
        raise UsageError(f"{place}: a range is {shape}{' with --sample' * bool(sample)}")
    if sample is None and not how:
        raise UsageError(f"{place}: how many values? LOW:HIGH:COUNT or LOW:HIGH:logCOUNT")
    count = 0 if sample is not None else _count(how.removeprefix("log"), place, least=2)
    if count > MAX_POINTS:
        raise UsageError(f"{place}: {count:,} points; {MAX_POINTS:,} is the most")
    axis = Axis(
        key,
        path,
        text,
        whole,
        low=_number(key, path, low),
        high=_number(key, path, high),
        log=log,
        count=count,
    )
    if axis.low >= axis.high:
        raise UsageError(f"{place}: an empty range; LOW must be below HIGH")
    if log and axis.low <= 0:
        raise UsageError(f"{place}: a log range must start above 0")
    if whole and count and _least_step(axis) < 1 - 1e-9:
        raise UsageError(f"{place}: {count:,} values, but they must be whole and steps at least 1")
    return axis


def _least_step(axis: Axis) -> float:
    """Return the smallest step of a range; of a log range it is the first."""
    low, high, steps = float(axis.low), float(axis.high), axis.count - 1
    return low * math.expm1(math.log(high / low) / steps) if axis.log else (high - low) / steps


def _number(key: str, path: KeyPath, text: str) -> Fraction:
    quantity = _quantity(path)
    try:
        value = parse_exact(text, quantity.units)
    except UsageError as error:
        raise UsageError(f"--vary {key}: {error}") from None
    if quantity.units is BYTE_UNITS:
        value = Fraction(math.floor(value))
    if quantity.whole and value.denominator != 1:
        raise UsageError(f"--vary {key}: must be a whole number, not {text.strip()!r}")
    return value


def _count(text: str, place: str, *, least: int) -> int:
    if not re.fullmatch("[0-9](?:_?[0-9]){0,29}", text):
        raise UsageError(f"{place}: the number of values must be a whole number above 0, not {text[:40]!r}")
    count = int(text)
    if count < least:
        raise UsageError(f"{place}: {count} values; at least {least}")
    return count


def _refuse_both_ways(axes: Sequence[Axis]) -> None:
    paths = {axis.path for axis in axes}
    for other in ("memory", "kv_bytes_per_token"):
        if {("gpu", "memory_tokens"), ("gpu", other)} <= paths:
            raise UsageError(f"--vary: gpu.memory_tokens and gpu.{other} say the same; vary one of them")


def _refuse_wrong_values(axis: Axis, tables: Mapping[str, Any]) -> None:
    """Refuse values out of bounds. Every key may be in an interval, so that the ends of a range speak for all of it."""
    ends = axis.values or tuple(int(value) if axis.whole else float(value) for value in (axis.low, axis.high))
    unit = _quantity(axis.path).unit
    for value in ends:
        try:
            check_values(with_value(tables, axis.path, f"{value} {unit}" if unit else value))
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
    """Return where in its range each value lies, of the points from `first` on; shape (at most _CHUNK, axes)."""
    if sample.kind is Kind.LATIN:
        return _latin(sample, axes)[first : first + _CHUNK]
    size = min(_CHUNK, sample.points - first)
    return np.random.default_rng([sample.seed, 0, first]).random((_CHUNK, axes))[:size]


@lru_cache(maxsize=2)
def _latin(sample: Sample, axes: int) -> FloatArray:
    from scipy.stats.qmc import LatinHypercube  # type: ignore[import-untyped]

    places: FloatArray = LatinHypercube(axes, seed=sample.seed).random(sample.points)
    return places
