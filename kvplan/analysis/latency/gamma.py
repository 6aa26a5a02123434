"""Gamma laws of mean 1."""

import math

import numpy as np

from kvplan.model import FloatArray

_POINTS = 1 << 9
_LOWEST = -30.0  # logarithm of a multiple of the mean
_FINE = 1 << 12
_LARGEST_SHAPE = 1e9


def gamma_laws(shape: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Ascending values of each law, and the probability below each; of shape (n_laws, n_values).

    The density of the logarithm of a gamma variable is smooth whatever the shape, and sums of it are as good as exact.

    Examples
    --------
    Of shape 1, the exponential law:

    >>> value, below = gamma_laws(np.array([1.0]))
    >>> round(float(np.interp(2.0, value[0], below[0])) + float(np.exp(-2)), 3)
    1.0
    """
    k = np.minimum(shape, _LARGEST_SHAPE)[:, None]
    low = np.maximum(-6 / np.sqrt(k) - 9 / k, _LOWEST)
    high = np.log1p(6 / np.sqrt(k) + 14 / k)
    step = (high - low) / _POINTS
    log = low + step * np.arange(_POINTS + 1)
    density = np.exp(k * (log - np.expm1(log)))
    lower = density[:, :1] / (k * step)  # all that is further down, where the density is exponential
    below = lower + np.cumsum(density, axis=1) - (density[:, :1] + density) / 2
    return np.exp(log), below / below[:, -1:]


def gamma_above(shape: float, value: float) -> float:
    """Probability that a gamma variable of mean 1 is above a value.

    Examples
    --------
    >>> round(gamma_above(1.0, 3.0) * math.exp(3), 4), gamma_above(10.0, 0.0), gamma_above(1e-3, 1e9)
    (1.0, 1.0, 0.0)
    """
    if value <= 0:
        return 1.0
    shape = min(shape, _LARGEST_SHAPE)
    spread = 1 / math.sqrt(shape)
    start, end = math.log(value), math.log1p(8 * spread + 40 / shape)
    if start >= end:
        return 0.0
    start = max(start, -8 * spread - 40 / shape)
    log, step = np.linspace(start, end, _FINE + 1, retstep=True)
    scale = shape * (math.log(shape) - 1) - math.lgamma(shape)
    density = np.exp(shape * (log - np.expm1(log)) + scale)
    return min(float(density.sum() - (density[0] + density[-1]) / 2) * float(step), 1.0)
