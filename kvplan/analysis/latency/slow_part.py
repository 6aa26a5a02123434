"""What requests past prefill add to an iteration: the part of its time that changes slowly (theory §9).

In an iteration it is as good as constant, and a law of few values stands for it.
"""

import math
from typing import NamedTuple

import numpy as np

from kvplan.analysis.kv_cumulants import alike_in_one
from kvplan.analysis.latency.traffic import Traffic
from kvplan.model import FloatArray, IntArray, sum_by, survival

_NODES = 30
_STANDARD_DEVIATIONS = 12.0  # from the mean to where the lattice ends, and two jumps more
_POINTS = 1 << 13
_CELLS = 512  # of stages
_PROMPTS = 16
_NEVER = 1e-10  # requests past prefill, on average
_NOISE = 1e-12  # of the transforms
_FARTHEST = 4.2  # nodes divide the normal scores up to it evenly


class SlowPart(NamedTuple):
    """Time of an iteration without its prompts, c = d0 + Σ v over the requests past prefill.

    Attributes
    ----------
    fixed_s
        d0: c where no request is past prefill.
    empty
        Probability of that.
    seconds, weight : ndarray, shape (n_nodes,)
        Values that stand for c where some are, ascending, and their probabilities; `empty` and they sum to 1.
    """

    fixed_s: float
    empty: float
    seconds: FloatArray
    weight: FloatArray

    @property
    def mean(self) -> float:
        """E c, seconds."""
        return self.empty * self.fixed_s + float(self.weight @ self.seconds)

    @property
    def nodes(self) -> tuple[FloatArray, FloatArray]:
        """All values and their probabilities, that of nobody past prefill first."""
        return np.append(self.fixed_s, self.seconds), np.append(self.empty, self.weight)

    def with_empty(self, empty: float) -> "SlowPart":
        """The same law with another probability that nobody is past prefill."""
        others = 1 - self.empty
        factor = (1 - empty) / others if others > 0 else 0.0
        return self._replace(empty=empty if others > 0 else 1.0, weight=self.weight * factor)


def slow_part(traffic: Traffic, variance_ratio: float) -> SlowPart:
    """The law of c: compound Poisson, jumps stretched so that its variance is that with feedback.

    Parameters
    ----------
    variance_ratio
        r, of `kvplan.analysis.latency.feedback`.

    Examples
    --------
    Requests of two tokens: λτ* = 1 of them past prefill on average, each of which takes a tenth of a second.

    >>> traffic = Traffic(0.9, 0.0, 1.0, *np.array([[0], [2]]), *np.array([[9.0], [1.0], [0.0], [0.1]]))
    >>> law = slow_part(traffic, 1.0)
    >>> alone = law.weight[law.seconds.round(2) == 1.0].sum()
    >>> round(law.empty, 4), round(float(alone), 4), round(law.mean, 4)
    (0.3679, 0.3679, 1.0)
    """
    ratio = max(1.0, variance_ratio)
    rate, jump = _jumps(traffic)
    rate, jump = rate / ratio, jump * ratio
    total, mean = float(rate.sum()), float(rate @ jump)
    empty = math.exp(-total)
    if not mean > 0 or total < _NEVER:
        return SlowPart(traffic.fixed_s, 1.0, np.empty(0), np.empty(0))
    deviation, largest = math.sqrt(float(rate @ jump**2)), float(jump.max())
    start = max(0.0, mean - _STANDARD_DEVIATIONS * deviation)
    step = (mean - start + _STANDARD_DEVIATIONS * deviation + 2 * largest) / _POINTS
    # each jump goes to the points on both sides of it, such that the mean stays; the lattice is a circle
    below, fraction = np.divmod(jump / step, 1.0)
    place = below.astype(np.int64) % _POINTS
    jumps = np.bincount(place, rate * (1 - fraction), _POINTS)
    jumps += np.bincount((place + 1) % _POINTS, rate * fraction, _POINTS)
    law = np.fft.irfft(np.exp(np.fft.rfft(jumps) - total), _POINTS)
    law[0] -= empty
    first = math.floor(start / step)
    added = step * np.arange(first, first + _POINTS, dtype=np.float64)
    law = np.maximum(np.roll(law, -(first % _POINTS)), 0.0)
    weight, moment = _reduced(law, added)
    kept = (1 - empty) / weight.sum()
    scale = mean / (kept * moment.sum())  # 1, but for rounding
    return SlowPart(traffic.fixed_s, empty, traffic.fixed_s + scale * moment / weight, kept * weight)


def _jumps(traffic: Traffic) -> tuple[FloatArray, FloatArray]:
    """Requests past prefill, by what they add: mean numbers and seconds, of like prompts and stages together."""
    rate = traffic.rate_rps * traffic.iteration_s
    alike = alike_in_one(traffic.prompt_tokens, rate * traffic.stages, _PROMPTS)
    edges = np.unique(np.linspace(1, traffic.longest, _CELLS + 1).astype(np.int64))
    numbers, seconds = [], []
    for group in range(int(alike.max()) + 1):
        mine = alike == group
        present, level = (
            survival(traffic.stages[mine], x)[1:] for x in (rate[mine], rate[mine] * traffic.stage_s[mine])
        )
        if present.size == 0:
            continue
        cells = edges[edges <= present.size] - 1
        work = level + traffic.token_s * np.arange(1, present.size + 1) * present
        numbers.append(np.add.reduceat(present, cells))
        seconds.append(np.add.reduceat(work, cells))
    if not numbers:
        return np.empty(0), np.empty(0)
    number, work = np.concatenate(numbers), np.concatenate(seconds)
    there = number > 0
    return number[there], work[there] / number[there]


def _reduced(law: FloatArray, value: FloatArray) -> tuple[FloatArray, FloatArray]:
    """A law on many points as some that stand for it: their probabilities, and those times their mean values."""
    node = _node_of(np.cumsum(law) - law / 2)
    weight, moment = sum_by(node, law), sum_by(node, law * value)
    there = weight > _NOISE * weight.sum()
    return weight[there], moment[there]


def _node_of(cumulative: FloatArray) -> IntArray:
    """The node of each point of a law: nodes divide normal scores evenly, so that tails have theirs."""
    share = cumulative / cumulative[-1]
    scores = np.linspace(-_FARTHEST, _FARTHEST, _NODES + 1)[1:-1]
    edges = np.array([math.erfc(-score / math.sqrt(2)) / 2 for score in scores])
    node: IntArray = np.searchsorted(edges, share)
    return node
