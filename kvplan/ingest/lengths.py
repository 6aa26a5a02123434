"""Lengths of requests: how long one can be, and ranges that stand for many."""

import numpy as np

from kvplan.model import FloatArray, IntArray

BINS = 8  # classes made of ranges of the input length, at most
POINTS = 50  # decode lengths of a class, at most


def cut(values: IntArray, count: FloatArray, limit: int) -> IntArray:
    """Group values by size into at most `limit` ranges: the group of each, from 0 up.

    Means lose the least squared error where the density of ranges follows the cube root of the density of values
    (Panter and Dite 1951): more ranges than equally frequent ones where values are few and far between. No more than
    `limit` distinct values are left alone.

    Parameters
    ----------
    values : ndarray, shape (n,)
    count : ndarray, shape (n,)
        How often each came.

    Examples
    --------
    >>> cut(np.array([7, 1, 2, 100]), np.ones(4), 2).tolist()
    [0, 0, 0, 1]
    """
    distinct, group = np.unique(values, return_inverse=True)
    if distinct.size > limit:
        gap = np.diff(distinct, prepend=2 * distinct[0] - distinct[1]).astype(np.float64)
        share = np.cbrt(np.bincount(group, count) * gap**2)
        for _ in range(limit):  # what alone would take several ranges can only fill one
            share = np.minimum(share, share.sum() / limit)
        place = np.floor((np.cumsum(share) - share / 2) / share.sum() * limit)
        group = np.unique(np.minimum(place, limit - 1), return_inverse=True)[1][group]
    return group.astype(np.int64)


def span(values: IntArray) -> str:
    """From the least to the greatest, as names of classes say it.

    Examples
    --------
    >>> span(np.array([12, 10])), span(np.array([300]))
    ('10-12', '300')
    """
    low, high = int(values.min()), int(values.max())
    return f"{low}" if low == high else f"{low}-{high}"
