"""How many prefill tokens an iteration computes: prompts come in lumps (theory §1).

Where the iteration time is convex in them, its mean is not its value at the mean. Prompts of each length arrive in an
iteration as independent Poisson counts, so their tokens are compound Poisson.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kvplan.model.arrays import FloatArray

# of the lattice that a level is the last but one of; prompts between two points keep their mean
_POINTS = 256
_DAMPING = 1e-5 ** (np.arange(2 * _POINTS) / _POINTS)  # so that what wraps around the transform weighs 1e-10
_TO_LEVEL = np.arange(_POINTS - 2, 0, -1.0)  # steps from each point below a level up to it
_NEGLIGIBLE = 1e-9  # tokens
_RARE = 1e-7  # prompts, of which two then never come together
_FAR = 8.0  # standard deviations, beyond which a cut is not felt
_FILLED = 2  # iterations that prompts which come together can fill, beside parts of long ones


@dataclass(frozen=True)
class Prompts:
    """Prefill tokens of an iteration; or of one in each of several states, all at once.

    An iteration computes `most` at most, and the rest waits, so that the mean stays.

    Examples
    --------
    >>> prompts = Prompts(np.array([0.5]), np.array([100.0]))
    >>> prompts.mean, round(prompts.excess(100.0), 4)  # Σ (k - 1)·100·P(k prompts) over k > 1
    (50.0, 10.6531)
    """

    count: FloatArray  # (n_lengths,) or (n_states, n_lengths), mean prompts of each length
    tokens: FloatArray  # (n_lengths,); of what is left of prompts (n_states, n_lengths)
    most: float | FloatArray = math.inf

    @cached_property
    def mean(self) -> Any:
        """Mean, tokens; a number, or an array of shape (n_states,), as all that follows."""
        return _number((self.count * self.tokens).sum(axis=-1))

    @cached_property
    def _parts(self) -> tuple[Any, "Prompts"]:
        """Iterations that a part of a long prompt fills, and what is left of prompts: independent of those, nearly."""
        most = np.maximum(np.asarray(self.most), 1.0)[..., None]
        if not np.any(self.tokens > most):
            return np.zeros(np.shape(self.mean)), self
        parts = np.floor(np.where(np.isinf(most), 0.0, self.tokens / most))
        rest = self.tokens - np.where(parts > 0, parts * most, 0.0)
        return (self.count * parts).sum(axis=-1), Prompts(self.count, rest, self.most)

    def excess(self, level: float | FloatArray) -> Any:
        """E[(P - level)⁺], tokens; at least the value at the mean.

        Of prompts longer than `most` parts of that size have iterations to themselves. What is left of prompts may
        be too much for an iteration together: then it fills one or two, and the rest comes on its own.
        """
        full, rest = self._parts
        excess = full * np.maximum(self.most - level, 0.0) if np.any(full) else 0.0
        excess = excess + rest._excess(level)
        deviation = np.sqrt((rest.count * rest.tokens**2).sum(axis=-1))
        for filled in range(1, _FILLED + 1):
            if not np.any(filled * self.most < rest.mean + _FAR * deviation):
                break
            beyond = np.where(np.isinf(self.most), 0.0, filled * self.most)
            more = rest._excess(beyond + level) - rest._excess(beyond)
            excess = excess + np.where(np.isinf(self.most), 0.0, more)
        return _number(np.maximum(np.maximum(excess, self.mean - level), 0.0))

    def power(self, base: float) -> Any:
        """E[base^P], of a base up to 1; prompts longer than `most` come in parts of that size."""
        return _number(np.exp(self._log_power(base)))

    def power_per_token(self, base: float) -> float:
        """Rise of `power` for each further token that more prompts bring in the mean; of one state, never above 0."""
        if self.mean == 0:
            return 0.0
        return float(np.exp(self._log_power(base)) * self._log_power(base)) / float(self.mean)

    def _log_power(self, base: float) -> FloatArray:
        parts = np.maximum(np.minimum(self.tokens, np.asarray(self.most)[..., None]), 1.0)
        return np.asarray((self.count * self.tokens / parts * (base**parts - 1.0)).sum(axis=-1))

    def excess_per_token(self, level: float) -> float:
        """Rise of `excess` for each further token that more prompts bring in the mean; of one state."""
        if level <= _NEGLIGIBLE:
            return 1.0
        if self.mean == 0:
            return 0.0
        full, rest = self._parts
        if rest is not self:
            of_rest = rest.excess_per_token(level) * rest.mean
            return float(full * max(self.most - level, 0.0) + of_rest) / float(self.mean)
        if self._rare:
            return float(self._excess(level) / self.mean)
        step, mass = _probabilities(self.count, self.tokens, level)
        below = np.concatenate([[0.0], np.cumsum(np.cumsum(mass))]) * step
        at = np.maximum(np.append(level - self.tokens, level), 0.0)
        *shorter, whole = np.interp(at, step * np.arange(below.size), below)  # E[(at - P)⁺]
        return float(self.count @ (np.array(shorter) - whole + self.tokens)) / float(self.mean)

    def exceeds(self, level: float) -> float:
        """P(P > level); of one state."""
        if level < 0:
            return 1.0
        if level <= _NEGLIGIBLE:
            return -math.expm1(-float(self.count.sum()))
        full, rest = self._parts
        if rest is not self:
            return min(float(full * (self.most > level)) + rest.exceeds(level), 1.0)
        if self._rare:
            return float(self.count @ (self.tokens > level))
        return max(0.0, 1.0 - float(_probabilities(self.count, self.tokens, level)[1][:-1].sum()))

    @cached_property
    def _rare(self) -> Any:
        return self.count.sum(axis=-1) < _RARE

    def _excess(self, level: float | FloatArray) -> FloatArray:
        """Excess but for what `most` and rounding make of it."""
        felt, excess = np.asarray(level > _NEGLIGIBLE), self.mean - level
        if np.any(rare := felt & self._rare):
            count = np.where(rare[..., None], self.count, 0.0)
            alone = (count * np.maximum(self.tokens - np.asarray(level)[..., None], 0.0)).sum(axis=-1)
            excess = np.where(rare, alone, excess)
        if np.any(often := felt & ~self._rare):
            count = np.where(often[..., None], self.count, 0.0)
            step, mass = _probabilities(count, self.tokens, np.where(often, level, 1.0))
            below = step * (mass[..., : _POINTS - 2] @ _TO_LEVEL)  # E[(level - P)⁺]
            excess = np.where(often, np.maximum(excess + below, 0.0), excess)
        return np.asarray(excess)


def _probabilities(
    count: FloatArray, tokens: FloatArray, level: float | FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return a step, and probabilities of 0, step, 2·step, … tokens to one step beyond the level."""
    step = np.asarray(level) / (_POINTS - 2)
    place = np.minimum(tokens / step[..., None], _POINTS)  # whatever lies beyond the level
    low = np.floor(place).astype(np.int64)
    row = 2 * _POINTS * np.arange(step.size).reshape(*step.shape, 1)
    size = 2 * _POINTS * step.size
    jumps = np.bincount((row + low).ravel(), (count * (low + 1 - place)).ravel(), size)
    jumps += np.bincount((row + low + 1).ravel(), (count * (place - low)).ravel(), size)
    jumps = jumps.reshape(*step.shape, 2 * _POINTS)
    jumps[..., _POINTS:] = 0.0
    transform = np.fft.rfft(jumps * _DAMPING) - count.sum(axis=-1)[..., None]
    mass = np.fft.irfft(np.exp(transform), 2 * _POINTS) / _DAMPING
    return step, np.maximum(mass[..., :_POINTS], 0.0)


def _number(value: Any) -> Any:
    """Return a number of Python in place of an array without dimensions."""
    return value if np.ndim(value) else float(value)
