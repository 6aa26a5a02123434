"""The prompts of an iteration: whoever arrives in one is in the next, and lengthens it (theory §9).

Given c, the slow part, an iteration takes c and the prompts that arrived during the one before. Its law follows from
ψ(z) = Σ λ_i (e^{z·v_i} - 1), v_i the seconds of a prompt, iterated: E e^{zτ} = e^{cS(z)}, S(z) = z + S(ψ(z)).
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvplan.analysis.kv_cumulants import alike_in_one
from kvplan.analysis.latency.feedback import Feedback
from kvplan.analysis.latency.law import Law, mixture
from kvplan.analysis.latency.slow_part import SlowPart
from kvplan.analysis.latency.traffic import Traffic
from kvplan.model import FloatArray, IntArray, sum_by

ComplexArray = NDArray[np.complex128]

_PROMPTS = 16
_CLOSE = 1e-6  # of log-transforms
_FORGOTTEN = 0.01  # of a prompt's seconds, when what follows it no longer counts
_STEPS_OF_FIXED = 60  # of d0; of a law's grid
_FEWEST_STEPS, _MOST_STEPS = 1 << 8, 1 << 13
_STANDARD_DEVIATIONS, _LARGEST_PROMPTS = 12.0, 4.0  # from the mean to the end of the grid


class Prompts(NamedTuple):
    """Prompts that arrive, those of like length together.

    Attributes
    ----------
    group : ndarray of int64, shape (n_rows,)
        The group of each row of the traffic.
    rate_rps, seconds : ndarray, shape (n_groups,)
        Of each group; seconds of an iteration that one takes.
    """

    group: IntArray
    rate_rps: FloatArray
    seconds: FloatArray

    @property
    def work(self) -> float:
        """Λ₀."""
        return float(self.rate_rps @ self.seconds)


def prompts_of(traffic: Traffic) -> Prompts:
    """The prompts of a traffic, in no more groups than it takes."""
    group = alike_in_one(traffic.prompt_tokens, traffic.rate_rps, _PROMPTS)
    rate = sum_by(group, traffic.rate_rps)
    return Prompts(group, rate, sum_by(group, traffic.rate_rps * traffic.prompt_s) / rate)


class Chain(NamedTuple):
    """ψ applied again and again to each of many values y.

    Attributes
    ----------
    total : ndarray, shape (n_values,)
        S(y).
    powers : ndarray, shape (n_kept, n_groups, n_values)
        e^{v·y}, e^{v·ψ(y)}, … of each group of prompts, as long as they count.
    slopes : ndarray, shape (n_steps + 1, n_values)
        S'(y), S'(ψ(y)), …
    """

    total: ComplexArray
    powers: ComplexArray
    slopes: ComplexArray


def chain(prompts: Prompts, start: ComplexArray, iteration_s: float) -> Chain:
    """Iterate from `start`, of no positive real part, until what is left is as good as quadratic.

    Examples
    --------
    Prompts that take no time bring on nothing; those of half a second, once a second, are 1/(1 - 1/2) of any delay:

    >>> prompts = [Prompts(np.array([0]), np.array([1.0]), np.array([v])) for v in (0.0, 0.5)]
    >>> [chain(p, np.array([-1e-4j]), 1.0).total.imag.round(8).tolist() for p in prompts]
    [[-0.0001], [-0.0002]]
    """
    rate, seconds, work = prompts.rate_rps, prompts.seconds, prompts.work
    square = float(rate @ seconds**2)
    straight = 1 / (1 - work)
    bend = square * straight / (1 - work**2)  # S''(0)
    third = float(rate @ seconds**3) * straight / (1 - work**3) + 3 * square * work * bend / (1 - work**3)
    enough = (6 * _CLOSE / (third * iteration_s)) ** (1 / 3) if third > 0 else math.inf
    kept = 1 + (math.ceil(math.log(_FORGOTTEN) / math.log(work)) if work > 0 else 1)
    at, total = start, np.zeros_like(start)
    powers: list[ComplexArray] = []
    steps: list[ComplexArray] = []
    while len(steps) < 2 or np.abs(at).max() > enough:
        power = np.exp(seconds[:, None] * at)
        steps.append(np.dot(rate * seconds, power))
        if len(powers) < kept:
            powers.append(power)
        total = total + at
        at = np.dot(rate, power) - rate.sum()
    slope = straight + bend * at
    slopes = [slope]
    for step in reversed(steps):
        slope = 1 + step * slope
        slopes.append(slope)
    return Chain(total + at * (straight + bend / 2 * at), np.array(powers), np.array(slopes[::-1]))


def waiting_law(traffic: Traffic, prompts: Prompts, slow: SlowPart, feedback: Feedback, empty: float) -> Law:
    """From arrival in a running iteration until the first token, but for one's own prompt.

    What is left of the iteration, the slow part of the next, and the prompts of whoever else arrived in the one.

    Parameters
    ----------
    empty
        Probability that nobody is there in an iteration, if iterations went on all the same: such are not run, and
        nobody arrives in one.
    """
    fixed = slow.fixed_s
    nobody = float(chain(prompts, np.array([-traffic.total_rps]), traffic.iteration_s).total[0])
    slow = slow.with_empty(min(1.0, empty * math.exp(-fixed * nobody)))
    deviation = 2 * math.sqrt(feedback.covariance[0])
    grid = _grid(traffic, prompts, fixed, 3 * traffic.iteration_s, deviation)
    z = grid.z[1:]
    psi = np.dot(prompts.rate_rps, np.exp(prompts.seconds[:, None] * z)) - prompts.rate_rps.sum()
    alone = z + chain(prompts, psi, traffic.iteration_s).total
    twice = 2 * z + psi
    after = z + chain(prompts, z + psi, traffic.iteration_s).total
    value, weight = slow.nodes
    both = _mean_exp(value, weight, after) - _mean_exp(value, weight, alone)
    both -= empty * (np.exp(fixed * twice) - np.exp(fixed * (z + psi)))
    norm = slow.mean / (1 - prompts.work) - empty * fixed
    return grid.law(np.concatenate([[1.0], both / (z * norm)]))


def gap_law(
    traffic: Traffic,
    prompts: Prompts,
    slow: SlowPart,
    feedback: Feedback,
    mine: NDArray[np.bool_],
    mean: float,
) -> Law:
    """Between two tokens of a request of the rows `mine`, whose mean is known.

    Iterations with a prompt and without are taken apart: the latter take hardly more than c, and are not blurred.
    """
    stages = _Stages.of(traffic, prompts, mine)
    straight, work = 1 / (1 - prompts.work), prompts.work
    fixed = slow.fixed_s
    # what the prompts of those who came with it, and its own, add in later iterations
    echo = float(prompts.rate_rps @ prompts.seconds**2) / (1 - work**2)
    ages = np.arange(1, stages.early.shape[0] + 1)
    from_own = float((work ** ages[:, None] * stages.early * prompts.seconds).sum()) + echo * float(
        (work ** (ages + 1) * stages.early.sum(axis=1)).sum()
    )
    own = float(stages.total @ stages.own_s)
    usual = slow.mean - fixed
    factor = ((mean - from_own) / straight - fixed - own) / usual if usual > 0 else 1.0
    factor = min(max(factor, 0.5), 2.0)
    value, weight = slow.nodes
    value = fixed + factor * (value - fixed)

    tau = traffic.iteration_s
    grid = _grid(traffic, prompts, fixed, tau, math.sqrt(feedback.covariance[0]))
    z = grid.z
    psi = np.dot(prompts.rate_rps, np.exp(prompts.seconds[:, None] * z)) - prompts.rate_rps.sum()
    some, none = chain(prompts, psi, tau), chain(prompts, np.array([-traffic.total_rps]), tau)
    without = stages.factors(none, straight)[:, 0].real
    quiet = _mean_exp(value, weight, z + none.total) * (
        without @ np.exp(stages.own_s[:, None] * (z + none.total))
    )
    every = _mean_exp(value, weight, z + some.total) * (
        stages.factors(some, straight) * np.exp(stages.own_s[:, None] * (z + some.total))
    ).sum(axis=0)
    busy = grid.law(every - quiet)
    atoms = value[:, None] + stages.own_s
    probability = weight[:, None] * without * np.exp(atoms * none.total[0].real)
    quiet_law = _spread(atoms.ravel(), probability.ravel(), fixed)
    return mixture([busy, quiet_law], [busy.mass, quiet_law.mass])


class _Stages(NamedTuple):
    """Own stages past prefill of the requests of a class, by group of prompts.

    Attributes
    ----------
    early : ndarray, shape (n_kept, n_groups)
        Share of the gaps that are the m-th of their requests, m = 1, 2, ….
    total : ndarray, shape (n_groups,)
        Share of the gaps of each group.
    own_s : ndarray, shape (n_groups,)
        What a request adds itself, on average.
    """

    early: FloatArray
    total: FloatArray
    own_s: FloatArray

    @classmethod
    def of(cls, traffic: Traffic, prompts: Prompts, mine: NDArray[np.bool_]) -> "_Stages":
        later = traffic.decode_tokens[mine] - 1.0
        rate, group = traffic.rate_rps[mine], prompts.group[mine]
        groups = prompts.rate_rps.size
        gaps = sum_by(group, rate * later, groups)
        own = traffic.stage_s[mine] + traffic.token_s * (later + 1) / 2
        own_s = sum_by(group, rate * later * own, groups) / np.where(gaps > 0, gaps, np.inf)
        work = prompts.work
        kept = math.ceil(math.log(_FORGOTTEN) / math.log(work)) if work > 0 else 1
        early = [sum_by(group, rate * (later >= m), groups) for m in range(1, max(kept, 1) + 1)]
        return cls(np.array(early) / gaps.sum(), gaps / gaps.sum(), own_s)

    def factors(self, chain: Chain, straight: float) -> ComplexArray:
        """Σ over own stages of what one's own arrival did to the iteration; shape (n_groups, …)."""
        kept = min(self.early.shape[0], chain.powers.shape[0])
        early = self.early[:kept]
        effect = chain.powers[:kept] * chain.slopes[1 : kept + 1, None] / straight
        late = self.total - early.sum(axis=0)
        out: ComplexArray = np.einsum("mg,mgz->gz", early, effect) + late[:, None]
        return out


class _Grid(NamedTuple):
    """A grid of times, and the points on which the transform of a law is needed to have it there."""

    start: float
    step: float
    size: int

    @property
    def z(self) -> ComplexArray:
        return 2j * np.pi / (self.size * self.step) * np.arange(self.size // 2 + 1).astype(np.complex128)

    def law(self, transform: ComplexArray) -> Law:
        """The law with E e^{zX} = `transform`, smoothed by a normal one a step wide."""
        z = self.z
        smooth = transform * np.exp((z * self.step) ** 2 / 2 - z * self.start)
        mass = np.fft.irfft(np.conj(smooth), self.size)
        below = np.append(0.0, np.cumsum(mass)).clip(0.0, mass.sum())
        edges = self.start + self.step * np.arange(-0.5, self.size)
        return Law(edges, np.maximum.accumulate(below))


def _grid(traffic: Traffic, prompts: Prompts, fixed: float, mean: float, deviation: float) -> _Grid:
    span = mean + _STANDARD_DEVIATIONS * deviation + _LARGEST_PROMPTS * float(prompts.seconds.max())
    wanted = span / fixed * _STEPS_OF_FIXED
    size = min(max(1 << math.ceil(math.log2(wanted)), _FEWEST_STEPS), _MOST_STEPS)
    step = span / size
    return _Grid(fixed - 4 * step, step, size)


def _mean_exp(value: FloatArray, weight: FloatArray, z: ComplexArray) -> ComplexArray:
    """E e^{cz} of a law of few values."""
    out: ComplexArray = np.dot(weight, np.exp(value[:, None] * z))
    return out


def _spread(atoms: FloatArray, mass: FloatArray, least: float) -> Law:
    """Atoms that stand for a smooth law: each spread to half way to its neighbours."""
    order = np.argsort(atoms)
    atoms, mass = atoms[order], mass[order]
    between = (atoms[1:] + atoms[:-1]) / 2
    first, last = (atoms[[0, -1]] if between.size == 0 else 2 * atoms[[0, -1]] - between[[0, -1]]).tolist()
    edges = np.concatenate([[max(first, least)], between, [last]])
    return Law(edges, np.concatenate([[0.0], np.cumsum(mass)]))
