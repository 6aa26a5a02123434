"""How far the inputs of the requests that Nested WAIT holds may add up beyond their mean (theory §6).

Thresholds fix how many requests are held and at which stages. Each has an input of its own, with the law of the
requests that got as far, so with inputs that differ even a full replica holds more than the mean half of the time.
Chernoff's bound says how much more, for all that is held together. A page ends earlier for one input than for another:
the law of what a request holds, whole pages, then depends on the stage, and returns after a page's worth of stages.
"""

from typing import NamedTuple

import numpy as np

from kvplan.model import FloatArray, IntArray

# towards the best ln θ; any other θ gives a bound as well
_NEWTON_STEPS, _LONGEST_STEP, _CLOSE = 40, 1.0, 1e-7
_STEEPEST = 500.0  # θ times the range of inputs: exponentials beyond underflow, and little is gained
_SHALLOW = 1e-5  # the same where the law is as good as normal, and sums of its logarithms lose their digits


class InputLaws(NamedTuple):
    """Laws of what requests hold, one for each decode length that they got to."""

    share: FloatArray  # (n_lengths, n_inputs), of each input in those at least so long; inputs ascend
    tokens: FloatArray  # (n_phases, n_inputs), held in whole pages, but for what all hold alike
    edges: IntArray  # (n_phases,), last tokens beyond the input, modulo a page, with the law of the phase; ascending
    block_tokens: int

    def stages_in(self, above: FloatArray, upto: FloatArray) -> FloatArray:
        """Stages of each phase with more than `above` and at most `upto` tokens beyond the input; phases last."""
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
    """Return the laws of requests with these inputs, distinct and ascending."""
    edges = np.unique(-inputs % block_tokens)
    pages = -(-(inputs + edges[:, None]) // block_tokens)
    return InputLaws(share, (pages * block_tokens).astype(np.float64), edges, block_tokens)


class Excess(NamedTuple):
    """Tokens that inputs add up to beyond their mean, and the θ of the bound, per token; shape (n_candidates,).

    θ is infinite where even the largest inputs throughout are not too improbable to be counted with.
    """

    tokens: FloatArray
    theta: FloatArray


def excess_about(laws: InputLaws, reached: IntArray, held: FloatArray, exponent: FloatArray) -> FloatArray:
    """Roughly the tokens of `excess`, as if inputs added up to a normal law: enough to choose candidates by."""
    gap = laws.tokens[:, -1:] - laws.tokens
    variance = (laws.share @ gap.T**2 - (laws.share @ gap.T) ** 2).clip(0)
    spread = (held.swapaxes(0, 1) * variance[reached.T]).sum(axis=(1, 2))
    return np.asarray(np.sqrt(2 * exponent * spread))


def excess(laws: InputLaws, reached: IntArray, held: FloatArray, exponent: FloatArray) -> Excess:
    """Return the least c that the bound gives for what inputs exceed with probability e^-exponent at most.

    c = inf_θ [exponent + Σ held·ln E e^θ(w - w̄)]/θ, w the tokens of a request in whole pages. `reached`, of shape
    (n_segments, n_candidates), is the position in `laws.share` of the decode length that requests of a segment got to,
    `held` the requests held at most, by phase too; `exponent`, from 0, has shape (n_candidates,) (Chernoff's bound;
    new, theory §6 ("Inputs that differ")).

    Examples
    --------
    Of a hundred tosses of a coin, Chernoff allows for 22 above the mean at 10^-4; for no more than one of one.
    """
    gap = laws.tokens[:, -1:] - laws.tokens
    below = laws.share @ gap.T  # mean below the largest input of all, shape (n_lengths, n_phases)
    largest = laws.share.shape[1] - 1 - (laws.share[:, ::-1] > 0).argmax(axis=1)
    variance = (laws.share @ gap.T**2 - below**2).clip(0)
    by_column = held.swapaxes(0, 1)
    shares, mean = laws.share[reached.T], below[reached.T]
    over = mean - gap.T[largest][reached.T]  # what the largest input holds beyond the mean
    most = (by_column * over).sum(axis=(1, 2))
    spread, count = (by_column * variance[reached.T]).sum(axis=(1, 2)), by_column.sum(axis=(1, 2))
    span = float(gap.max())

    def cumulant(theta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Σ held·ln E e^θ(w - w̄) and its first two derivatives."""
        decayed = np.exp(-theta[:, None, None] * gap.T)
        zeroth, first, second = (shares @ (decayed * gap.T**k) for k in range(3))
        tilted = first / zeroth
        parts = np.log(zeroth) + theta[:, None, None] * mean, mean - tilted, second / zeroth - tilted**2
        value, slope, curvature = ((by_column * part).sum(axis=(1, 2)) for part in parts)
        return value, slope, curvature

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        normal = np.sqrt(2 * exponent / spread)  # the best θ of a normal law
        shallow = normal * span < _SHALLOW
        lowest = np.sqrt(8 * exponent / count) / span  # Hoeffding's, which is no larger than the best
        theta = np.where(shallow, _STEEPEST, normal * span).clip(None, _STEEPEST) / span
        for _ in range(_NEWTON_STEPS):
            value, slope, curvature = cumulant(theta)
            tokens = (exponent + value) / theta
            excessive = theta * slope - value  # grows with θ; the exponent where the bound is least
            step = np.nan_to_num(np.log(exponent / excessive) * excessive / (theta**2 * curvature))
            nearer = (theta * np.exp(step.clip(-_LONGEST_STEP, _LONGEST_STEP))).clip(lowest, _STEEPEST / span)
            if not (np.abs(nearer - theta) > _CLOSE * theta).any():
                break
            theta = nearer
        bennett = np.sqrt(2 * exponent * spread) * (1 + normal * span / 5)
    tokens = np.where(shallow, bennett, tokens)
    theta = np.where(shallow, normal, theta)
    cannot = ~(tokens < most)
    return Excess(np.where(cannot, most, tokens).clip(0), np.where(cannot, np.inf, theta))
