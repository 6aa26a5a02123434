"""Density of KV usage before any eviction, for plots: saddlepoint with feedback, exact without (theory §7)."""

import math
from typing import NamedTuple

import numpy as np

from kvplan.analysis.kv_tail import cumulant_table
from kvplan.analysis.overflow import usage_law
from kvplan.model import FloatArray, ServingModel

_SEARCHED = 36  # points to either side of θ = 0 ...
_LARGEST = 38.0  # ... out to so many over the standard deviation ...
_SMALLEST = 0.01  # ... from so many on
_POINTS = 160


class Density(NamedTuple):
    """A density at ascending levels, arrays of shape (n_points,): tokens, and probability per token."""

    tokens: FloatArray
    density: FloatArray


def saddlepoint_density(model: ServingModel, low: float, high: float) -> Density:
    """Density of KV usage between two levels, its feedback on iteration times included; Λ < 1.

    f(x) = exp(K(θ) - θx)/√(2πK''(θ)) where K'(θ) = x: accurate to a few per cent, not normalised.

    Parameters
    ----------
    low, high : float, tokens
        Below and above the mean. Levels so low that hardly a request is there are left out.

    References
    ----------
    Daniels (1954), on the cumulant function of theory §7 (new).

    Examples
    --------
    A large Poisson number of requests of one token each is nearly normal:

    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> ones = RequestClass("score", 0, (1,), (1.0,), 10_000.0)
    >>> model = ServingModel((ones,), Timing(1.0), Replica(20_000))
    >>> f = saddlepoint_density(model, 9_800.0, 10_200.0)
    >>> peak = float(f.density.max())
    >>> round(float(f.tokens[f.density.argmax()]), -2), round(peak * math.sqrt(2 * math.pi * 10_000), 3)
    (10000.0, 1.0)
    """
    grid, scale, stretch = usage_law(model)
    side = np.geomspace(_SMALLEST, _LARGEST, _SEARCHED) / scale.std_without_feedback
    side = side[side * scale.largest < 700]  # beyond, exp overflows
    coarse = cumulant_table(grid, scale.mean, np.concatenate([-side, side]))
    reached = coarse.value[1]
    # evenly spaced levels, since evenly spaced θ would crowd on the left
    levels = np.linspace(max(low / stretch, reached[0]), min(high / stretch, reached[-1]), _POINTS)
    theta = np.interp(levels, reached, coarse.theta)
    table = cumulant_table(grid, scale.mean, theta[np.abs(theta) > 0])
    value, slope, curvature = table.value
    exponent = np.minimum(value - table.theta * slope, 0.0)  # K is convex, but for rounding
    density = np.exp(exponent) / np.sqrt(2 * math.pi * curvature)
    # an empty memory has a probability of its own, which the density of the lowest levels tends to
    deviation = math.sqrt(curvature[table.origin])
    mode = int(np.where(slope >= scale.mean - deviation, density, 0.0).argmax())
    start = int(density[: mode + 1].argmin())
    return Density(slope[start:] * stretch, density[start:] / stretch)
