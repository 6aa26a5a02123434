"""How many prefill tokens an iteration computes: prompts come in lumps (theory §1).

Where the iteration time is convex in them, its mean is not its value at the mean. Prompts of each length arrive in an
iteration as independent Poisson counts, so their tokens are compound Poisson.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kvplan.model.arrays import FloatArray

_POINTS = (
    512  # of the lattice that a level is the last but one of; prompts between two points keep their mean
)
_DAMPING = 1e-5 ** (np.arange(2 * _POINTS) / _POINTS)  # so that what wraps around the transform weighs 1e-10
_NEGLIGIBLE = 1e-9  # tokens
_RARE = 1e-7  # prompts, of which two then never come together
_FAR = 8.0  # standard deviations, beyond which a cut is not felt


@dataclass(frozen=True)
class Prompts:
    """Prefill tokens of an iteration.

    Attributes
    ----------
    count : ndarray, shape (n_lengths,)
        Mean prompts of each length.
    tokens : ndarray, shape (n_lengths,), tokens
    most
        An iteration computes no more; the rest waits for the next, so that the mean stays.

    Examples
    --------
    >>> prompts = Prompts(np.array([0.5]), np.array([100.0]))
    >>> prompts.mean, round(prompts.excess(100.0), 4)  # Σ (k - 1)·100·P(k prompts) over k > 1
    (50.0, 10.6531)
    """

    count: FloatArray
    tokens: FloatArray
    most: float = math.inf

    @cached_property
    def mean(self) -> float:
        """Mean, tokens."""
        return float(self.count @ self.tokens)

    def excess(self, level: float) -> float:
        """E[(P - level)⁺], tokens; at least the value at the mean."""
        deviation = math.sqrt(float(self.count @ self.tokens**2))
        felt = self.most < self.mean + _FAR * deviation
        return max(self._excess(level) - (self._excess(self.most) if felt else 0.0), self.mean - level, 0.0)

    def excess_per_token(self, level: float) -> float:
        """By how much `excess` rises for each further token that more prompts bring in the mean."""
        if level <= _NEGLIGIBLE:
            return 1.0
        if self.mean == 0:
            return 0.0
        if self._rare:
            return self._excess(level) / self.mean
        rise = self._expected_below(level, level - self.tokens) - self._expected_below(level, level)
        return float(self.count @ (rise + self.tokens)) / self.mean

    def exceeds(self, level: float) -> float:
        """P(P > level)."""
        if level < 0:
            return 1.0
        if level <= _NEGLIGIBLE:
            return -math.expm1(-float(self.count.sum()))
        if self._rare:
            return float(self.count @ (self.tokens > level))
        return max(0.0, 1.0 - float(self._probabilities(level)[1][:-1].sum()))

    @cached_property
    def _rare(self) -> bool:
        return float(self.count.sum()) < _RARE

    def _excess(self, level: float) -> float:
        if level <= _NEGLIGIBLE:
            return self.mean - level
        if self._rare:
            return float(self.count @ np.maximum(self.tokens - level, 0.0))
        return max(0.0, self.mean - level + float(self._expected_below(level, level)))

    def _expected_below(self, level: float, at: float | FloatArray) -> FloatArray:
        """E[(y - P)⁺] at y = `at`, all at most `level`, tokens."""
        step, mass = self._probabilities(level)
        below = np.concatenate([[0.0], np.cumsum(np.cumsum(mass))]) * step
        return np.interp(np.maximum(at, 0.0), step * np.arange(below.size), below)

    def _probabilities(self, level: float) -> tuple[float, FloatArray]:
        """A step, and the probabilities of 0, step, 2·step, … up to the level and one step beyond."""
        step = level / (_POINTS - 2)
        place = np.minimum(self.tokens / step, _POINTS)  # whatever lies beyond the level
        low = np.floor(place).astype(np.int64)
        jumps = np.bincount(low, self.count * (low + 1 - place), 2 * _POINTS)
        jumps += np.bincount(low + 1, self.count * (place - low), 2 * _POINTS)
        jumps[_POINTS:] = 0.0
        transform = np.fft.rfft(jumps * _DAMPING) - self.count.sum()
        mass = np.fft.irfft(np.exp(transform), 2 * _POINTS) / _DAMPING
        return step, np.maximum(mass[:_POINTS], 0.0)
