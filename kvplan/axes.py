"""Values of a key as an option writes them: a list with commas, or a range."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from kvplan.errors import UsageError
from kvplan.units import BYTE_UNITS, parse_exact

MAX_POINTS = 10**7
MAX_LISTED = 50_000  # values in a list

Number = int | float


class Quantity(NamedTuple):
    """Notation of a key's values: units, whether they are whole, and the unit where profiles have no plain numbers."""

    units: Mapping[str, Fraction]
    whole: bool
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Axis:
    """One key and the values it takes: a list of them, or a range, perhaps spaced by its logarithm.

    The key is as written and names its column. `count` is how many values there are; 0 where a sample draws them.
    """

    key: str
    path: tuple[str | int, ...]
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


def read_axis(
    option: str,
    key: str,
    text: str,
    quantity: Quantity,
    path: tuple[str | int, ...] = (),
    *,
    sampled: bool = False,
) -> Axis:
    """Read a list, ``LOW:HIGH:COUNT`` or ``LOW:HIGH:logCOUNT``; what a sample draws from is a range without a count.

    >>> axis = read_axis("--vary", "gpu.max_num_seqs", "64:256:3", Quantity({"": Fraction(1)}, whole=True))
    >>> [axis.at(index) for index in range(axis.count)]
    [64, 160, 256]
    """
    if not text.strip(", "):
        raise UsageError(f"{option} {key}: no values; a list with commas or LOW:HIGH:COUNT is wanted")
    place = f"{option} {key}={text[:60]}"
    if ":" in text:
        return _range(Axis(key, path, text, quantity.whole), f"{option} {key}", place, quantity, sampled)
    if sampled:
        raise UsageError(f"{place}: --sample draws from LOW:HIGH or LOW:HIGH:log")
    exact = [_number(part, f"{option} {key}", quantity) for part in text.split(",")]
    values = tuple(int(value) if quantity.whole else float(value) for value in exact)
    if len(set(values)) < len(values):
        raise UsageError(f"{place}: a value is there twice")
    return Axis(key, path, text, quantity.whole, values, count=len(values))


def _range(axis: Axis, name: str, place: str, quantity: Quantity, sampled: bool) -> Axis:
    low, high, *rest = axis.text.split(":")
    how = rest[0].strip() if rest else ""
    log = how.startswith("log")
    if len(rest) > 1 or (sampled and how not in ("", "log")):
        shape = "LOW:HIGH or LOW:HIGH:log with --sample" if sampled else "LOW:HIGH:COUNT or LOW:HIGH:logCOUNT"
        raise UsageError(f"{place}: a range is {shape}")
    if not sampled and not how:
        raise UsageError(f"{place}: how many values? LOW:HIGH:COUNT or LOW:HIGH:logCOUNT")
    count = 0 if sampled else read_count(how.removeprefix("log"), place, least=2)
    if count > MAX_POINTS:
        raise UsageError(f"{place}: {count:,} points; {MAX_POINTS:,} is the most")
    least, most = _number(low, name, quantity), _number(high, name, quantity)
    axis = replace(axis, low=least, high=most, log=log, count=count)
    if axis.low >= axis.high:
        raise UsageError(f"{place}: an empty range; LOW must be below HIGH")
    if log and axis.low <= 0:
        raise UsageError(f"{place}: a log range must start above 0")
    if axis.whole and count and _least_step(axis) < 1 - 1e-9:
        raise UsageError(f"{place}: {count:,} values, but they must be whole and steps at least 1")
    return axis


def _least_step(axis: Axis) -> float:
    """Return the smallest step of a range; of a log range it is the first."""
    low, high, steps = float(axis.low), float(axis.high), axis.count - 1
    return low * math.expm1(math.log(high / low) / steps) if axis.log else (high - low) / steps


def _number(text: str, name: str, quantity: Quantity) -> Fraction:
    try:
        value = parse_exact(text, quantity.units)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
    if quantity.units is BYTE_UNITS:
        value = Fraction(math.floor(value))
    if quantity.whole and value.denominator != 1:
        raise UsageError(f"{name}: must be a whole number, not {text.strip()!r}")
    return value


def read_count(text: str, place: str, *, least: int) -> int:
    """Read how many values there are to be."""
    if not re.fullmatch("[0-9](?:_?[0-9]){0,29}", text):
        raise UsageError(f"{place}: the number of values must be a whole number above 0, not {text[:40]!r}")
    count = int(text)
    if count < least:
        raise UsageError(f"{place}: {count} values; at least {least}")
    return count
