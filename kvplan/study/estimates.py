"""Estimates from batches of runs: ratios of sums and shares, each with how far off it may be.

References
----------
A. Tafazzoli, N. M. Steiger, J. R. Wilson, "N-Skart: a nonsequential skewness- and autoregression-adjusted
batch-means procedure for simulation analysis", IEEE Transactions on Automatic Control 56 (2011).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from kvplan.model import FloatArray


class Ratio(NamedTuple):
    """A ratio of sums, its standard error, and the degrees of freedom of that."""

    value: float
    standard_error: float
    degrees: int


def ratio(amounts: Sequence[FloatArray], sizes: Sequence[FloatArray]) -> Ratio:
    """Σ amounts / Σ sizes over the batches of independent runs.

    What the batches of a run have in common with their neighbours widens the error by √((1 + φ)/(1 - φ)), φ the
    correlation of neighbouring residuals, plus 1/n because it is estimated low by so much.

    Parameters
    ----------
    amounts, sizes : sequence of ndarray, shape (n_batches,)
        Of each run, in order of time.

    Examples
    --------
    >>> import numpy as np
    >>> ratio([np.array([2.0, 4.0])], [np.array([1.0, 2.0])])
    Ratio(value=2.0, standard_error=0.0, degrees=1)
    """
    total = math.fsum(float(s.sum()) for s in sizes)
    count = sum(s.size for s in sizes)
    if total <= 0:
        return Ratio(math.nan, math.inf, 1)
    value = math.fsum(float(a.sum()) for a in amounts) / total
    if count < 2:
        return Ratio(value, math.inf, 1)
    residuals = [a - value * s for a, s in zip(amounts, sizes, strict=True)]
    power = sum(float(r @ r) for r in residuals)
    if power == 0:
        return Ratio(value, 0.0, count - 1)
    neighbours = sum(float(r[:-1] @ r[1:]) for r in residuals)
    phi = min(max(neighbours / power + 1 / count, 0.0), 0.95)
    spread = math.sqrt(count / (count - 1) * power * (1 + phi) / (1 - phi))
    return Ratio(value, spread / total, count - 1)
