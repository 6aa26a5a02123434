"""Constants of least relative error, none negative, with a prior for what the equations leave open.

A prior is a law of another origin, an estimate or another profile. What is believed of it are the ratios of its
constants, to within a factor of a few, and not their size. So each constant is drawn to its share of the prior, at a
common scale that is free, and one that the prior does not have to 0: where equations determine a constant the prior has
next to no weight, and the less they say of it (prompts in a sweep without TTFT) the more it is the prior's ratio.
"""

from typing import Any

import numpy as np

from kvplan.model import FloatArray

_BELIEF = 3.0  # relative deviation of a constant from its share of the prior
_UNKNOWN = 0.3  # share of time that a constant may add which the prior does not have


def solve(
    design: FloatArray,
    seconds: FloatArray,
    deviation: FloatArray,
    prior: FloatArray | None = None,
) -> FloatArray:
    """The constants, shape (n_terms,).

    Parameters
    ----------
    design, seconds
        Amounts of shape (n_equations, n_terms), and the times they make up.
    deviation : ndarray, shape (n_equations,), seconds
        Of each equation.
    prior : ndarray, shape (n_terms,)
        Constants whose ratios are believed; 0 where nothing is known.

    Examples
    --------
    Two equations tell a fixed time from what grows; how that is shared out is left to the prior:

    >>> amounts = np.array([[1.0, 10.0, 10.0], [1.0, 30.0, 30.0]])
    >>> prior = np.array([10.0, 0.25, 0.75])
    >>> solve(amounts, np.array([2.0, 4.0]), np.full(2, 1e-6), prior).round(3).tolist()
    [1.0, 0.025, 0.075]
    """
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    rows, wanted = design / deviation[:, None], seconds / deviation
    if prior is not None and prior.any():
        believed = prior > 0
        # The scale of the prior is a column of its own, and takes the size of the measured.
        size = float(np.median(np.abs(seconds) / np.maximum(design @ prior, 1e-300)))
        share = np.where(believed, prior * size, 1.0)
        share_of_time = np.mean(design / np.maximum(np.abs(seconds), 1e-300)[:, None], axis=0)
        drawn = np.column_stack(
            [np.diag(np.where(believed, 1 / share, share_of_time)), -believed.astype(float)]
        )
        drawn /= np.where(believed, _BELIEF, _UNKNOWN)[:, None]
        rows = np.vstack([np.column_stack([rows, np.zeros(seconds.size)]), drawn])
        wanted = np.concatenate([wanted, np.zeros(len(drawn))])
    scale = np.sqrt((rows**2).sum(axis=0))
    scale[scale == 0] = 1.0
    # The triangle holds all that matters of any number of rows.
    triangle: Any = np.linalg.qr(np.column_stack([rows / scale, wanted]), mode="r")
    return np.asarray((nnls(triangle[:, :-1], triangle[:, -1])[0] / scale)[: design.shape[1]])
