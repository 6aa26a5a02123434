"""Arrays of the model, and sums over groups of their rows."""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def sum_by(group: IntArray, amounts: FloatArray, groups: int = 0) -> FloatArray:
    """Sum of `amounts` in each group, numbered from 0; both of shape (n_rows,). There are `groups` at least."""
    return np.bincount(group, weights=amounts, minlength=groups).astype(np.float64, copy=False)


def survival(stages: IntArray, amounts: FloatArray) -> FloatArray:
    """Sum of `amounts` over the rows still present at each stage: out[k] = Σ_{n_i > k} amount_i, shape (max(stages),).

    >>> survival(np.array([2, 3]), np.array([0.25, 0.75])).tolist()
    [1.0, 1.0, 0.75]
    """
    leaving = sum_by(stages - 1, amounts)
    return np.cumsum(leaving[::-1])[::-1]


def as_written(value: float) -> Fraction:
    """Return the shortest decimal that reads back as `value`, exactly: 0.8 becomes 4/5."""
    return Fraction(repr(float(value)))
