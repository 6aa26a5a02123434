"""Laws of lengths in tokens or turns, and exact moments of sums of them in whole pages (theory §2, §8).

What pages do to a length depends on the length modulo the page size alone. So of a random length its first moments are
kept apart by residue; adding independent lengths convolves them over the residues, which a short Fourier transform
does, whatever the lengths are.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvplan.model.arrays import FloatArray, IntArray

_BEYOND = 1e-15  # probability at which a law without an end is cut


@dataclass(frozen=True, eq=False)
class Lengths:
    """A law of whole numbers.

    Attributes
    ----------
    values : ndarray of int64, shape (n,), ascending
    weights : ndarray, shape (n,)
        Probabilities.

    Examples
    --------
    >>> Lengths.uniform(4, 6).mean, Lengths.of({50: 1.0, 200: 3.0}).mean, round(Lengths.geometric(6.0).mean, 12)
    (5.0, 162.5, 6.0)
    """

    values: IntArray
    weights: FloatArray

    @classmethod
    def of(cls, weights: Mapping[int, float]) -> "Lengths":
        """Lengths with weights, which need not sum to 1."""
        values = sorted(weights)
        weight = np.array([weights[v] for v in values], dtype=np.float64)
        return cls(np.array(values, dtype=np.int64), weight / weight.sum())

    @classmethod
    def uniform(cls, low: int, high: int) -> "Lengths":
        """Every whole number from low to high, both included."""
        values = np.arange(low, high + 1, dtype=np.int64)
        return cls(values, np.full(values.size, 1 / values.size))

    @classmethod
    def geometric(cls, mean: float) -> "Lengths":
        """1, 2, …, each with the same probability to be the last; cut where what lies beyond is never drawn."""
        if mean == 1:
            return cls.of({1: 1.0})
        more = 1 - 1 / mean
        values = np.arange(1, math.ceil(math.log(_BEYOND) / math.log(more)) + 1, dtype=np.int64)
        weights: FloatArray = np.power(more, values - 1.0)
        return cls(values, weights / weights.sum())

    @property
    def mean(self) -> float:
        """Mean."""
        return float(self.weights @ self.values)

    @property
    def longest(self) -> int:
        """Largest value."""
        return int(self.values[-1])

    def grouped(self, groups: int) -> "Lengths":
        """A law with the same mean and fewer lengths: neighbours in groups of about one size, at most so many.

        A group whose mean is between two whole numbers is both of them.

        Examples
        --------
        >>> fewer = Lengths.uniform(1, 9).grouped(2)
        >>> fewer.values.tolist(), round(fewer.mean, 12)
        ([2, 3, 7], 5.0)
        """
        if self.values.size <= groups:
            return self
        middle = np.cumsum(self.weights) - self.weights / 2
        group = np.minimum(middle * groups, groups - 1).astype(np.int64)
        weight = np.bincount(group, self.weights, groups)
        there = weight > 0
        weight, mean = (
            weight[there],
            np.bincount(group, self.weights * self.values, groups)[there] / weight[there],
        )
        low = np.floor(mean).astype(np.int64)
        values = np.concatenate([low, low + 1])
        found = np.bincount(values, np.concatenate([weight * (low + 1 - mean), weight * (mean - low)]))
        kept = np.flatnonzero(found)
        return Lengths(kept, found[kept] / found[kept].sum())

    def at_least(self) -> FloatArray:
        """P(length ≥ 1), P(length ≥ 2), …; shape (largest value,)."""
        mass = np.bincount(self.values, self.weights).astype(np.float64, copy=False)
        return np.cumsum(mass[::-1])[::-1][1:]


class Moments(NamedTuple):
    """Mass, sum and sum of squares of lengths."""

    mass: float
    sum: float
    squares: float


@dataclass(frozen=True, eq=False)
class Paged:
    """Moments of order 0, 1 and 2 of a random length, by its residue modulo the page size, as a Fourier transform.

    Attributes
    ----------
    transform : ndarray of complex128, shape (3, block_tokens // 2 + 1)
    block_tokens

    Examples
    --------
    >>> prompt = Paged.of(np.array([5, 7]), np.array([0.5, 0.5]), block_tokens=4)
    >>> grown = prompt + Paged.of(np.array([2]), np.array([1.0]), block_tokens=4)  # 7 or 9
    >>> [round(float(m), 9) for m in grown.down()], [round(float(m), 9) for m in grown.up()]  # 4 or 8, 8 or 12
    ([1.0, 6.0, 40.0], [1.0, 10.0, 104.0])
    """

    transform: NDArray[np.complex128]
    block_tokens: int

    @classmethod
    def of(cls, values: IntArray, weights: FloatArray, block_tokens: int) -> "Paged":
        """Lengths with weights."""
        residue, v = values % block_tokens, values.astype(np.float64)
        moments = [np.bincount(residue, weights * v**k, block_tokens) for k in range(3)]
        return cls(np.fft.rfft(moments), block_tokens)

    def __add__(self, other: "Paged") -> "Paged":
        """The sum of two independent lengths."""
        a, b = self.transform, other.transform
        sums = [a[0] * b[0], a[1] * b[0] + a[0] * b[1], a[2] * b[0] + 2 * a[1] * b[1] + a[0] * b[2]]
        return Paged(np.array(sums), self.block_tokens)

    def total(self, times: FloatArray) -> "Paged":
        """Σ_k times[k]·(the sum of k such lengths), k = 0, 1, …, as one law that need not sum to 1."""
        k = np.arange(times.size)[:, None]
        a, b, c = self.transform
        once, twice = a ** np.maximum(k - 1, 0), a ** np.maximum(k - 2, 0)
        sums = [a**k, k * once * b, k * once * c + k * (k - 1) * twice * b**2]
        return Paged(np.einsum("k,ikr->ir", times, np.array(sums)), self.block_tokens)

    def down(self) -> Moments:
        """Of the length in whole pages, rounded down."""
        return self._less(np.arange(self.block_tokens, dtype=np.float64))

    def up(self) -> Moments:
        """Of the length in whole pages, rounded up."""
        return self._less(-(-np.arange(self.block_tokens) % self.block_tokens).astype(np.float64))

    def plain(self) -> Moments:
        """Of the length as it is."""
        return self._less(np.zeros(self.block_tokens))

    def _less(self, taken: FloatArray) -> Moments:
        m0, m1, m2 = np.fft.irfft(self.transform, self.block_tokens)
        return Moments(
            float(m0.sum()),
            float((m1 - taken * m0).sum()),
            float((m2 - 2 * taken * m1 + taken**2 * m0).sum()),
        )
