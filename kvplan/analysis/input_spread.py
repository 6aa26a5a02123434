"""How far the inputs of the requests that Nested WAIT holds may add up beyond their mean (theory §6).

Thresholds fix how many requests are held and at which stages. Each has an input of its own, with the law of the
requests that got as far, so with inputs that differ even a full replica holds more than the mean half of the time.
Chernoff's bound says how much more, for all that is held together. A page ends earlier for one input than for another:
the law of what a request holds, whole pages, then depends on the stage, and returns after a page's worth of stages.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kvplan.model import FloatArray, IntArray

_GOLDEN = (math.sqrt(5) - 1) / 2
_STEPS = 36  # of the golden section; each narrows the logarithm of θ to a share of that
_STEEPEST = 500.0  # θ times the range of inputs: exponentials beyond underflow, and little is gained
_SHALLOW = 1e-5  # the same where the law is as good as normal, and sums of its logarithms lose their digits


class InputLaws(NamedTuple):
    """Laws of what requests hold, one for each decode length that they got to.

    Attributes
    ----------
    share : ndarray, shape (n_lengths, n_inputs)
        Of each input in those at least so long; inputs ascend.
    tokens : ndarray, shape (n_phases, n_inputs), tokens
        Held in whole pages by a request of each input, but for what all hold alike.
    edges : ndarray of int64, shape (n_phases,)
        Last tokens beyond the input, modulo a page, at which the law is still that of the phase; ascending.
    block_tokens
        Size of a page.
    """

    share: FloatArray
    tokens: FloatArray
    edges: IntArray
    block_tokens: int

    def stages_in(self, above: FloatArray, upto: FloatArray) -> FloatArray:
        """Stages of each phase with more than `above` and at most `upto` tokens beyond the input; phases last.

        Examples
        --------
        >>> laws = laws_of(np.array([3, 8]), np.array([[0.5, 0.5]]), 4)
        >>> laws.edges.tolist(), laws.tokens.tolist()  # 8 tokens fill their pages where 3 have one more to go
        ([0, 1], [[4.0, 8.0], [4.0, 12.0]])
        >>> laws.stages_in(np.array(0.0), np.array(9.0)).tolist()  # 1, 5 and 9 are in the second phase
        [6.0, 3.0]
        """
        before = np.append(self.edges[-1] - self.block_tokens, self.edges[:-1])
        width = self.edges - before

        def until(tokens: FloatArray) -> FloatArray:
            pages, rest = np.divmod(tokens[..., None] - before, self.block_tokens)
            return np.asarray(pages * width + np.minimum(rest, width))

        return until(upto) - until(above)

    def phase_of(self, tokens: FloatArray) -> IntArray:
        """The phase of stages with so many tokens beyond the input."""
        return np.searchsorted(self.edges, tokens % self.block_tokens) % self.edges.size


def laws_of(inputs: IntArray, share: FloatArray, block_tokens: int) -> InputLaws:
    """The laws of requests with these inputs, distinct and ascending."""
    edges = np.unique(-inputs % block_tokens)
    pages = -(-(inputs + edges[:, None]) // block_tokens)
    return InputLaws(share, (pages * block_tokens).astype(np.float64), edges, block_tokens)


class Excess(NamedTuple):
    """What inputs add up to beyond their mean, tokens, and the θ of the bound, per token; shape (n_candidates,).

    θ is infinite where even the largest inputs throughout are not too improbable to be counted with.
    """

    tokens: FloatArray
    theta: FloatArray


def excess(laws: InputLaws, reached: IntArray, held: FloatArray, exponent: FloatArray) -> Excess:
    """The least c that the bound gives for what inputs exceed with probability e^-exponent at most.

    c = inf_θ [exponent + Σ held·ln E e^θ(w - w̄)]/θ, w the tokens of a request in whole pages.

    Parameters
    ----------
    reached : ndarray of int64, shape (n_segments, n_candidates)
        Decode length that requests of a segment got to, as a position in `laws.share`.
    held : ndarray, shape (n_segments, n_candidates, n_phases)
        Requests held, at most.
    exponent : ndarray, shape (n_candidates,)
        From 0.

    References
    ----------
    new, theory §6 ("Inputs that differ").

    Examples
    --------
    Of a hundred tosses of a coin, Chernoff allows for 22 above the mean at 10^-4; for no more than one of one.

    >>> coin = laws_of(np.array([0, 1]), np.array([[0.5, 0.5]]), 1)
    >>> one, hundred = (np.array([[[n]]]) for n in (1.0, 100.0))
    >>> [excess(coin, np.array([[0]]), n, np.log([1e4])).tokens.round(1).tolist() for n in (one, hundred)]
    [[0.5], [21.1]]
    """
    gap = laws.tokens[:, -1:] - laws.tokens
    by_length = laws.share @ gap.T  # mean below the largest input of all, shape (n_lengths, n_phases)
    largest = laws.share.shape[1] - 1 - (laws.share[:, ::-1] > 0).argmax(axis=1)
    mean = by_length[reached]
    variance = (laws.share @ gap.T**2 - by_length**2).clip(0)[reached]
    most = (held * (mean - gap.T[largest][reached])).sum(axis=(0, 2))  # every input the largest there is
    spread = (held * variance).sum(axis=(0, 2))
    span, count = float(gap.max()), held.sum(axis=(0, 2))
    shares, weighted = laws.share[reached].swapaxes(0, 1), held.swapaxes(0, 1)
    total_mean = (held * mean).sum(axis=(0, 2))

    def bound(log_theta: FloatArray) -> FloatArray:
        theta = np.exp(log_theta)
        transform = shares @ np.exp(
            -theta[:, None, None] * gap.T
        )  # shape (n_candidates, n_segments, n_phases)
        cumulant = theta * total_mean + (weighted * np.log(transform)).sum(axis=(1, 2))
        return np.asarray((exponent + cumulant) / theta)

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        normal = np.sqrt(2 * exponent / spread)
        shallow = normal * span < _SHALLOW
        # Hoeffding's θ is no larger than the best one
        hoeffding = np.where(shallow, _STEEPEST, np.sqrt(8 * exponent / count)).clip(None, _STEEPEST) / span
        log_theta, tokens = _least(
            bound, np.log(hoeffding), np.full(exponent.shape, math.log(_STEEPEST / span))
        )
        bennett = np.sqrt(2 * exponent * spread) * (1 + normal * span / 5)  # at the θ of the normal law
    tokens = np.where(shallow, bennett, tokens)
    theta = np.where(shallow, normal, np.exp(log_theta))
    cannot = ~(tokens < most)
    return Excess(np.where(cannot, most, tokens).clip(0), np.where(cannot, np.inf, theta))


def _least(
    function: Callable[[FloatArray], FloatArray], low: FloatArray, high: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Where functions with one minimum each are least between bounds, and what they are there; golden section."""
    inner = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    value = function(inner[0]), function(inner[1])
    for _ in range(_STEPS):
        left = value[0] < value[1]
        low, high = np.where(left, low, inner[0]), np.where(left, inner[1], high)
        new = np.where(left, high - _GOLDEN * (high - low), low + _GOLDEN * (high - low))
        there = function(new)
        inner = np.where(left, new, inner[1]), np.where(left, inner[0], new)
        value = np.where(left, there, value[1]), np.where(left, value[0], there)
    left = value[0] < value[1]
    return np.where(left, inner[0], inner[1]), np.where(left, value[0], value[1])
