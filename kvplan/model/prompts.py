"""How many prefill tokens an iteration computes: prompts come in lumps (theory §1).

Where the iteration time is convex in them, its mean is not its value at the mean. Prompts of each length arrive in an
iteration as independent Poisson counts, so their tokens are compound Poisson.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kvplan.model.arrays import FloatArray

_POINTS = 1024  # of the lattice up to the level; coarser tokens keep their mean
_ALIAS = 1e-5  # weight of a level's tail where the transform wraps around, once for each turn


@dataclass(frozen=True)
class Prompts:
    """Prefill tokens of an iteration.

    Attributes
    ----------
    count : ndarray, shape (n_lengths,)
        Mean prompts of each length.
    tokens : ndarray, shape (n_lengths,), tokens
    most : float
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
        cut = self._excess(self.most) if math.isfinite(self.most) else 0.0
        return max(self._excess(level) - cut, self.mean - level, 0.0)

    def excess_per_token(self, level: float) -> float:
        """By how much `excess` rises for each further token that more prompts bring in the mean."""
        if self.mean == 0:
            return float(level < 0)
        rise = self._expected_below(level, level - self.tokens) - self._expected_below(level, level)
        return float(self.count @ (rise + self.tokens)) / self.mean

    def exceeds(self, level: float) -> float:
        """P(P > level)."""
        if level < 0:
            return 1.0
        return 1.0 - min(1.0, float(self._lattice(level)[1][:-1].sum()))

    def _excess(self, level: float) -> float:
        if level <= 0:
            return self.mean - level
        return max(0.0, self.mean - level + float(self._expected_below(level, np.array([level]))[0]))

    def _expected_below(self, level: float, at: float | FloatArray) -> FloatArray:
        """E[(y - P)⁺] at y = `at`, all at most `level`, tokens."""
        step, mass = self._lattice(level)
        below = np.concatenate([[0.0], np.cumsum(np.cumsum(mass))]) * step  # at 0, step, 2·step, …
        return np.interp(np.maximum(at, 0.0), step * np.arange(below.size), below)

    def _lattice(self, level: float) -> tuple[float, FloatArray]:
        """Step and probabilities of 0, step, … up to the level, tokens split so that each length keeps its mean."""
        step = max(1.0, math.ceil(max(level, 1.0) / _POINTS))
        size = math.floor(max(level, 1.0) / step) + 2
        place = self.tokens / step
        low = np.floor(place)
        jumps = np.zeros(size)
        for where, part in ((low, self.count * (low + 1 - place)), (low + 1, self.count * (place - low))):
            inside = where < size
            np.add.at(jumps, where[inside].astype(np.int64), part[inside])
        turns = 2 * size
        damping = _ALIAS ** (np.arange(turns) / size)
        transform = np.fft.rfft(jumps * damping[:size], turns) - self.count.sum()
        mass = np.fft.irfft(np.exp(transform), turns) / damping
        return step, np.maximum(mass[:size], 0.0)
