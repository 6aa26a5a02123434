"""Laws of lengths in tokens or turns, and exact moments of sums of them in whole pages (theory §2, §8).

What pages do to a length depends on the length modulo the page size alone. So of a random length its first moments are
kept apart by residue; adding independent lengths convolves them over the residues, which a short Fourier transform
does, whatever the lengths are.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvplan.model.arrays import FloatArray, IntArray, as_written
from kvplan.model.gaps import normal

_BEYOND = 1e-15  # probability at which a law without an end is cut
_LONGEST, _SCORE = (
    0.9999,
    3.719016485455709,
)  # quantile at which a log-normal law is cut; of a standard normal


@dataclass(frozen=True, eq=False)
class Lengths:
    """A law of whole numbers.

    Weights as written become whole numbers without a common factor, so that laws are equal however they are written.

    Examples
    --------
    >>> Lengths.uniform(4, 6).mean, Lengths.of({50: 1.0, 200: 3.0}).mean, round(Lengths.geometric(6.0).mean, 12)
    (5.0, 162.5, 6.0)
    >>> Lengths.uniform(4, 6) == Lengths.of({4: 0.2, 5: 0.2, 6: 0.2})
    True
    """

    values: IntArray  # (n,), ascending
    weights: FloatArray  # (n,), in proportion to the probabilities

    @classmethod
    def of(cls, weights: Mapping[int, float]) -> "Lengths":
        """Lengths with weights, which need not sum to 1."""
        values = sorted(weights)
        return cls(np.array(values, dtype=np.int64), _lowest_terms(tuple(weights[v] for v in values)))

    @classmethod
    def uniform(cls, low: int, high: int) -> "Lengths":
        """Take whole numbers from low to high, both included."""
        values = np.arange(low, high + 1, dtype=np.int64)
        return cls(values, np.ones(values.size))

    @classmethod
    def geometric(cls, mean: float) -> "Lengths":
        """1, 2, …, each with the same probability to be the last; cut where what lies beyond is never drawn."""
        if mean == 1:
            return cls.of({1: 1.0})
        more = 1 - 1 / mean
        values = np.arange(1, math.ceil(math.log(_BEYOND) / math.log(more)) + 1, dtype=np.int64)
        return cls(values, np.power(more, values - 1.0))

    @classmethod
    def lognormal(cls, mean: float, sigma: float) -> "Lengths":
        """Whole numbers from 1, a log-normal number below its quantile .9999, times what gives it this mean, rounded.

        Examples
        --------
        >>> law = Lengths.lognormal(400.0, 0.8)
        >>> round(law.mean, 6), law.longest, round(longest_lognormal(400.0, 0.8))
        (400.0, 5701, 5701)
        """
        return _lognormal(mean, sigma)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Lengths):
            return NotImplemented
        return np.array_equal(self.values, other.values) and np.array_equal(self.weights, other.weights)

    def __hash__(self) -> int:
        return hash((self.values.size, self.longest, float(self.weights[0])))

    @cached_property
    def probabilities(self) -> FloatArray:
        """Probability of each value."""
        return np.asarray(self.weights / self.weights.sum())

    @property
    def mean(self) -> float:
        return float(self.probabilities @ self.values)

    @property
    def variance(self) -> float:
        return float(self.probabilities @ (self.values - self.mean) ** 2)

    @property
    def shortest(self) -> int:
        return int(self.values[0])

    @property
    def longest(self) -> int:
        return int(self.values[-1])

    def at_most(self, points: int) -> "Lengths":
        """Take at most so many lengths, an even number, with the same mean and longest, and about the same variance.

        The law is cut into strata, and each is replaced by two whole lengths: its longest, and the one that keeps the
        mean and the variance (Gauss-Radau). The second is rounded down, so that the variance is never too small, nor
        E e^θs for any θ > 0. Strata are as fine as the cube root of the probabilities is large, which is where a
        given number of them is worth most (Panter and Dite).

        Examples
        --------
        >>> fewer = Lengths.uniform(1, 100).at_most(4)
        >>> fewer.values.tolist(), round(fewer.mean, 12)
        ([17, 50, 67, 100], 50.5)
        """
        if self.values.size <= points:
            return self
        share, place = self.probabilities, np.cbrt(self.probabilities)
        middle = np.cumsum(place) - place / 2
        stratum = np.floor(middle * (points // 2) / place.sum())
        begin = np.flatnonzero(np.diff(stratum, prepend=-1.0))
        size = np.diff(begin, append=share.size)
        mass = np.add.reduceat(share, begin)
        mean = np.add.reduceat(share * self.values, begin) / mass
        variance = np.add.reduceat(share * (self.values - np.repeat(mean, size)) ** 2, begin) / mass
        first, last = self.values[begin], self.values[begin + size - 1]
        several = (size > 1) & (mean < last)
        unit = np.gcd.reduce(self.values)  # low stays in step, so that the lengths have no less in common
        low = np.floor((mean - variance / np.where(several, last - mean, 1.0)) / unit) * unit
        low = low.clip(first, last)
        upper = np.where(several, (mean - low) / np.where(several, last - low, 1.0), 1.0).clip(0.0, 1.0)
        values = np.stack([low.astype(np.int64), last], axis=1).ravel()
        weights = np.stack([mass * (1 - upper), mass * upper], axis=1).ravel()
        return Lengths(values[weights > 0], weights[weights > 0])

    def upto(self, most: int) -> "Lengths":
        """Leave out longer ones."""
        kept = int(np.searchsorted(self.values, most, "right"))
        return Lengths(self.values[:kept], self.weights[:kept])

    def at_least(self) -> FloatArray:
        """P(length ≥ 1), P(length ≥ 2), …; shape (largest value,)."""
        mass = np.bincount(self.values, self.probabilities).astype(np.float64, copy=False)
        return np.cumsum(mass[::-1])[::-1][1:]


def longest_lognormal(mean: float, sigma: float) -> float:
    """Tokens of the longest, before it is rounded, of a log-normal law."""
    return _median(mean, sigma) * math.exp(sigma * _SCORE)


def _median(mean: float, sigma: float) -> float:
    """Find the median whose lengths below the quantile have this mean."""
    return mean * math.exp(-(sigma**2) / 2) * _LONGEST / float(normal(np.array(_SCORE - sigma)))


@lru_cache(maxsize=64)
def _lognormal(mean: float, sigma: float) -> Lengths:
    values = np.arange(1, max(1, math.floor(longest_lognormal(mean, sigma) + 0.5)) + 1, dtype=np.int64)
    score = np.log((values[:-1] + 0.5) / _median(mean, sigma)) / sigma
    reached = np.concatenate([normal(score), [_LONGEST]])
    shortest = int(np.argmax(reached > _BEYOND))
    return Lengths(values[shortest:], np.diff(reached[shortest:], prepend=0.0))


@lru_cache(maxsize=1024)  # profiles with other values, point by point, have the same laws
def _lowest_terms(weights: tuple[float, ...]) -> FloatArray:
    """Whole numbers in proportion to decimals as written; shares where these are too many digits for floats."""
    exact = [as_written(w) for w in weights]
    scale = math.lcm(*(w.denominator for w in exact))
    whole = [w.numerator * (scale // w.denominator) for w in exact]
    content = math.gcd(*whole)
    if max(whole) // content < 2**53:
        return np.array([w // content for w in whole], dtype=np.float64)
    total = sum(whole)
    return np.array([w / total for w in whole])


class Moments(NamedTuple):
    """Mass, sum and sum of squares of lengths."""

    mass: float
    sum: float
    squares: float


@dataclass(frozen=True, eq=False)
class Paged:
    """Moments of order 0, 1 and 2 of a random length, by its residue modulo the page size, as a Fourier transform.

    Examples
    --------
    >>> prompt = Paged.of(np.array([5, 7]), np.array([0.5, 0.5]), block_tokens=4)
    >>> grown = prompt + Paged.of(np.array([2]), np.array([1.0]), block_tokens=4)  # 7 or 9
    >>> [round(float(m), 9) for m in grown.down()], [round(float(m), 9) for m in grown.up()]  # 4 or 8, 8 or 12
    ([1.0, 6.0, 40.0], [1.0, 10.0, 104.0])
    """

    transform: NDArray[np.complex128]  # (3, block_tokens // 2 + 1)
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
        """Moments of the length in whole pages, rounded down."""
        return self._less(np.arange(self.block_tokens, dtype=np.float64))

    def up(self) -> Moments:
        """Moments of the length in whole pages, rounded up."""
        return self._less(-(-np.arange(self.block_tokens) % self.block_tokens).astype(np.float64))

    def plain(self) -> Moments:
        """Moments of the length as it is."""
        return self._less(np.zeros(self.block_tokens))

    def _less(self, taken: FloatArray) -> Moments:
        m0, m1, m2 = np.fft.irfft(self.transform, self.block_tokens)
        return Moments(
            float(m0.sum()),
            float((m1 - taken * m0).sum()),
            float((m2 - 2 * taken * m1 + taken**2 * m0).sum()),
        )
