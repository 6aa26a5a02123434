"""A chart as data, in the units of its axes."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from kvplan.model import FloatArray, IntArray
from kvplan.units import format_number, format_seconds

COLOURS = ("blue", "orange", "green", "violet", "red", "soft")  # of lines side by side
_SUBDIVISIONS = ((1, 2, 5), (1, 3), (1,))  # of a decade
_TIME_STEPS_S = (
    *(k * unit for unit in (1.0, 60.0) for k in (1, 2, 5, 10, 15, 30)),
    *(k * 3600.0 for k in (1, 2, 3, 6, 12, 24, 48, 168)),
)
_MOST_RECORDS = 400  # of a line over time


class Axis(NamedTuple):
    """A scale from `low` to `high`; `shown` writes a value of it, `at` are its ticks where they are given."""

    label: str
    low: float
    high: float
    log: bool = False
    shown: Callable[[float], str] = format_number
    at: Sequence[float] = ()

    def place(self, value: FloatArray) -> FloatArray:
        """Return the share of the axis that is below each value."""
        low, high = self.low, self.high
        if self.log:
            with np.errstate(divide="ignore"):
                value, low, high = np.log(np.maximum(value, 0.0)), math.log(low), math.log(high)
        return (value - low) / (high - low)

    def ticks(self, most: int) -> list[float]:
        """Return round values on the axis, at most so many.

        >>> Axis("", 0, 7.3).ticks(5), Axis("", 0.02, 3, log=True).ticks(5)
        ([0.0, 2.0, 4.0, 6.0], [0.03, 0.1, 0.3, 1.0, 3.0])
        """
        if self.at:
            return list(self.at)
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for subdivision in _SUBDIVISIONS:
                every = (float(f"{digit}e{decade}") for decade in decades for digit in subdivision)
                ticks = [value for value in every if self.low <= value <= self.high]
                if 2 <= len(ticks) <= most:
                    return ticks
            if len(ticks) > most:
                return ticks[:: -(-len(ticks) // most)]
        exponent = math.floor(math.log10((self.high - self.low) / most))
        for step in (float(f"{k}e{exponent}") for k in (1, 2, 5, 10, 20)):
            numbers = range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
            if len(numbers) <= most:
                break
        return [float(f"{step * number:.12g}") for number in numbers]


class Line(NamedTuple):
    """A line through points, broken at NaN; `style` is solid, dashed, dotted or dots."""

    label: str
    x: FloatArray
    y: FloatArray
    colour: str = "blue"
    style: str = "solid"


class Patch(NamedTuple):
    """Rectangles of one shade: `boxes` has rows of x and y of one corner and of the other."""

    label: str
    boxes: FloatArray
    colour: str
    opacity: float = 0.15


class Chart(NamedTuple):
    """Patches, and lines over them. `right` names the scale on the right and says how much one of it is on the left."""

    title: str
    caption: str
    x: Axis
    y: Axis
    lines: Sequence[Line] = ()
    patches: Sequence[Patch] = ()
    right: tuple[str, float] | None = None

    def upright(self, label: str, at: float, colour: str, style: str = "dashed") -> Line:
        """Return a vertical line across the chart."""
        return Line(label, np.array([at, at]), np.array([self.y.low, self.y.high]), colour, style)

    def level(self, label: str, at: float, colour: str, style: str = "dashed") -> Line:
        """Return a horizontal line across the chart."""
        return Line(label, np.array([self.x.low, self.x.high]), np.array([at, at]), colour, style)


def time_axis(end_s: float) -> Axis:
    """Return an axis of time from 0 with ticks in round units.

    >>> [tick / 3600 for tick in time_axis(86_400.0).at]
    [0.0, 6.0, 12.0, 18.0, 24.0]
    """
    step = next((step for step in _TIME_STEPS_S if 1 <= end_s / step <= 5), None)
    at = () if step is None else tuple(step * number for number in range(int(end_s / step) + 1))
    return Axis("time", 0.0, end_s, shown=lambda time: format_seconds(time) if time else "0", at=at)


def stairs(edges: FloatArray, heights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the points of steps between edges.

    >>> [line.tolist() for line in stairs(np.array([0.0, 1.0, 2.0]), np.array([5.0, 6.0]))]
    [[0.0, 1.0, 1.0, 2.0], [5.0, 5.0, 6.0, 6.0]]
    """
    return np.repeat(edges, 2)[1:-1], np.repeat(heights, 2)


def peaks(time: FloatArray, value: IntArray) -> tuple[FloatArray, FloatArray]:
    """Thin records out so that they can be drawn, each the largest of its neighbours."""
    first = np.arange(0, time.size, -(-time.size // _MOST_RECORDS))
    return time[first], np.maximum.reduceat(value.astype(np.float64), first)
