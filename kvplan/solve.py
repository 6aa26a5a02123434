"""Searches along a line: where a condition begins to hold, where a function is largest, where many pass zero."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_PROBES = 32  # points at which shifts of a series are weeded out
_POINTS = 17  # in which a peak is looked for at once
_CLOSE = 1e-12
_STEPS = 100

_Floats = NDArray[np.float64]


def boundary(
    holds: Callable[[float], bool], low: float, high: float, *, close: float = 0.0, geometric: bool = False
) -> tuple[float, float]:
    """Narrow down where a condition begins to hold, by halves; False at `low`, True at `high`, and asked at neither.

    The ends are as near in the end as `close`, relative to the lower one; 0: neighbours among floats. `geometric`
    halves the logarithm.

    Examples
    --------
    >>> boundary(lambda x: x * x >= 2, 1.0, 2.0)
    (1.414213562373095, 1.4142135623730951)
    >>> boundary(lambda x: x >= 300, 1.0, 10_000.0, close=0.5, geometric=True)
    (237.13737056616552, 316.22776601683796)
    """
    while high - low > close * low:
        middle = math.sqrt(low * high) if geometric else (low + high) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


def least_whole(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the least whole number at which a condition holds, that is False at `low` and True at `high`.

    >>> least_whole(lambda n: n * n > 50, 0, 100)
    8
    """
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def first_of_steps(holds: Callable[[float], bool], start: float, factor: float, most: float) -> float | None:
    """Return the first of `start`, `start`·`factor`, … at which a condition holds; None if none up to `most` does.

    >>> first_of_steps(lambda x: x > 100, 1.0, 2.0, 1000.0), first_of_steps(lambda x: x > 100, 1.0, 2.0, 100.0)
    (128.0, None)
    """
    while start <= most:
        if holds(start):
            return start
        start *= factor
    return None


def peak(f: Callable[[_Floats], _Floats], low: float, high: float, *, close: float) -> float:
    """Return where a function with one peak is largest, asked at several points at once, within `close`·|high|.

    >>> round(peak(lambda x: x * (3 - x), 0.0, 4.0, close=1e-9), 6)
    1.5
    """
    for _ in range(_STEPS):
        if high - low <= close * abs(high):
            break
        points = np.linspace(low, high, _POINTS)
        best = int(np.argmax(f(points)))
        low, high = float(points[max(best - 1, 0)]), float(points[min(best + 1, _POINTS - 1)])
    return (low + high) / 2


def falling_root(f: Callable[[_Floats], _Floats], low: _Floats, high: _Floats) -> _Floats:
    """Return where falling functions of one variable each pass zero between `low` and `high`; all of shape (n,).

    By inverse quadratic interpolation where that is safe, else by bisection.

    References
    ----------
    Chandrupatla, *A new hybrid quadratic/bisection algorithm for finding the zero of a nonlinear function without
    using derivatives*, Advances in Engineering Software 28 (1997).

    Examples
    --------
    >>> falling_root(lambda t: 4.0 - t**2, np.array([0.0]), np.array([10.0])).round(9).tolist()
    [2.0]
    >>> falling_root(lambda t: 4.0 + 1e-15 - t, np.array([0.0, 0.0]), np.array([4.0, 9.0])).round(9).tolist()
    [4.0, 4.0]
    """
    a, b = high, low  # b is the best guess, and the root lies between it and a
    at_a, at_b = f(a), f(b)
    end = np.where(np.abs(at_a) < np.abs(at_b), a, b)  # where rounding hides a zero at an end
    hidden = np.sign(at_a) == np.sign(at_b)
    a, b = np.where(hidden, end, a), np.where(hidden, end, b)
    part = np.full(a.shape, 0.5)
    for _ in range(_STEPS):
        new = a + part * (b - a)
        at_new = f(new)
        same = np.sign(at_new) == np.sign(at_a)
        c, at_c = np.where(same, a, b), np.where(same, at_a, at_b)
        b, at_b = np.where(same, b, a), np.where(same, at_b, at_a)
        a, at_a = new, at_new
        best = np.where(np.abs(at_a) < np.abs(at_b), a, b)
        with np.errstate(all="ignore"):
            least = _CLOSE * np.abs(best) / np.abs(b - a)
            if ((least > 0.5) | (at_a == 0) | ~np.isfinite(least)).all():
                return best
            xi, phi = (a - b) / (c - b), (at_a - at_b) / (at_c - at_b)
            safe = (phi**2 < xi) & ((1 - phi) ** 2 < 1 - xi)
            quadratic = at_a / (at_b - at_a) * at_c / (at_b - at_c) + (c - a) / (b - a) * at_a / (
                at_c - at_a
            ) * at_b / (at_c - at_b)
        least = np.clip(np.where(np.isfinite(least), least, 0.5), 0.0, 0.5)
        part = np.clip(np.where(safe & np.isfinite(quadratic), quadratic, 0.5), least, 1 - least)
    return best


def find_period(series: _Floats, tolerance: float) -> int | None:
    """Smallest shift under which the last half of a series repeats what came before, or None.

    >>> find_period(np.tile([0.0, 0.0, 2.4], 20), 1e-9)
    3
    """
    half = series.size // 2
    tail = series[half:]
    shifts = np.arange(1, half + 1)
    # Weed out shifts at a few points first: the highest, for series of rare pulses, and some in between.
    between = np.arange(tail.size - 1, -1, -max(1, half // _PROBES))
    for probe in half + np.concatenate([np.argsort(tail)[-_PROBES:], between]):
        shifts = shifts[np.abs(series[probe - shifts] - series[probe]) <= tolerance]
    for shift in shifts:
        if np.abs(tail - series[half - shift : series.size - shift]).max() <= tolerance:
            return int(shift)
    return None
