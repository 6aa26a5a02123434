"""Gamma laws of mean 1."""

import numpy as np

from kvplan.model import FloatArray

_POINTS = 1 << 9
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
    low, high = -6 / np.sqrt(k) - 9 / k, np.log1p(6 / np.sqrt(k) + 14 / k)
    log = low + (high - low) * np.linspace(0.0, 1.0, _POINTS + 1)
    density = np.exp(k * (log - np.expm1(log)))
    below = np.cumsum(density, axis=1) - density / 2
    return np.exp(log), below / below[:, -1:]


def gamma_below(shape: float, value: float) -> float:
    """Probability that a gamma variable of mean 1 is below a value."""
    (values,), (below,) = gamma_laws(np.array([shape]))
    return float(np.interp(value, values, below, left=0.0))
