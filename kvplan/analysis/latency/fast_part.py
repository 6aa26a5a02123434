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
from kvplan.analysis.latency.law import Law, certain, mixture
from kvplan.analysis.latency.slow_part import SlowPart
from kvplan.analysis.latency.traffic import Traffic
from kvplan.model import FloatArray, IntArray, sum_by, survival

ComplexArray = NDArray[np.complex128]

_PROMPTS = 16
_CLOSE = 1e-6  # of log-transforms
_FORGOTTEN = 0.01  # of a prompt's seconds, when what follows it no longer counts
_LEAST_FACTOR, _MOST_FACTOR = (
    0.5,
    2.0,
)  # by which the slow part is stretched for its mean to be that of an own stage
_AGES = 6  # cells of own stages, where what a request adds itself grows ...
_AGEING = 0.01  # ... by more than this of d0
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

    def psi(self, z: ComplexArray) -> ComplexArray:
        """ψ(z), the log-transform of the prompts that arrive in a second."""
        out: ComplexArray = np.dot(self.rate_rps, np.exp(self.seconds[:, None] * z)) - self.rate_rps.sum()
        return out


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
    bent = third * iteration_s
    enough = (6 * _CLOSE / bent) ** (1 / 3) if bent > 0 else math.inf
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

    Examples
    --------
    Half an iteration on average, then a whole one, where requests neither take time nor are missed:

    >>> from kvplan.analysis.latency.feedback import feedback
    >>> traffic = Traffic(1.0, 0.0, 1.0, *np.array([[0], [1]]), *np.array([[9.0], [1.0], [0.0], [0.0]]))
    >>> nobody = SlowPart(1.0, 1.0, np.empty(0), np.empty(0))
    >>> law = waiting_law(traffic, prompts_of(traffic), nobody, feedback(traffic), 0.0)
    >>> round(law.at(0.25), 2), round(law.at(0.75), 2)
    (1.25, 1.75)
    """
    fixed = slow.fixed_s
    if empty > 0:
        nobody = float(chain(prompts, np.array([-traffic.total_rps]), traffic.iteration_s).total[0])
        slow = slow.with_empty(min(1.0, empty * math.exp(-fixed * nobody)))
    deviation = 2 * math.sqrt(feedback.covariance[0])
    grid = _grid(traffic, prompts, fixed, 3 * traffic.iteration_s, deviation)
    z = grid.z[1:]
    psi = prompts.psi(z)
    alone = z + chain(prompts, psi, traffic.iteration_s).total
    twice = 2 * z + psi
    after = z + chain(prompts, z + psi, traffic.iteration_s).total
    value, weight = slow.nodes
    both = _mean_exp(value, weight, after) - _mean_exp(value, weight, alone)
    both -= empty * (np.exp(fixed * twice) - np.exp(fixed * (z + psi)))
    norm = slow.mean / (1 - prompts.work) - empty * fixed
    return grid.law(np.concatenate([[1.0], both / (z * norm)]))


class Gaps(NamedTuple):
    """What times between two tokens have in common, of whichever class.

    Attributes
    ----------
    some, none
        ψ iterated from what an iteration lets in, and from what it does where it lets in nobody.
    """

    traffic: Traffic
    prompts: Prompts
    slow: SlowPart
    grid: "_Grid"
    some: Chain
    none: Chain

    @classmethod
    def of(cls, traffic: Traffic, prompts: Prompts, slow: SlowPart, feedback: Feedback) -> "Gaps":
        """Iterate once for all classes."""
        tau = traffic.iteration_s
        grid = _grid(traffic, prompts, slow.fixed_s, tau, math.sqrt(feedback.covariance[0]))
        some, none = (
            chain(prompts, prompts.psi(grid.z), tau),
            chain(prompts, np.array([-traffic.total_rps]), tau),
        )
        return cls(traffic, prompts, slow, grid, some, none)

    def law(self, mine: NDArray[np.bool_], mean: float) -> Law:
        """Between two tokens of a request of the rows `mine`, whose mean is known.

        Iterations with a prompt and without are taken apart: the latter take hardly more than c, and are not blurred.
        """
        prompts, slow, fixed, z = self.prompts, self.slow, self.slow.fixed_s, self.grid.z
        work, straight = prompts.work, 1 / (1 - prompts.work)
        stages = _Stages.of(self.traffic, prompts, mine)
        # what its own prompt adds to later iterations, and those of who came with it
        age = np.arange(1, stages.early.shape[0] + 1)[:, None]
        shared = float(prompts.rate_rps @ prompts.seconds**2) / (1 - work**2)
        echo = float((stages.early * work**age * (prompts.seconds + work * shared)).sum())
        usual = slow.mean - fixed
        factor = ((mean - echo) / straight - fixed - stages.own_mean) / usual if usual > 0 else 1.0
        value, weight = slow.nodes
        value = fixed + min(max(factor, _LEAST_FACTOR), _MOST_FACTOR) * (value - fixed)

        without = stages.effect(self.none, straight)[:, 0].real
        at, none_at = z + self.some.total, z + self.none.total
        every = _mean_exp(value, weight, at) * (stages.effect(self.some, straight) * stages.own(at)).sum(
            axis=0
        )
        quiet = _mean_exp(value, weight, none_at) * np.dot(without, stages.own(none_at))
        busy = self.grid.law(every - quiet)

        own, share = stages.own_s.ravel(), (without[:, None] * stages.own_share).ravel()
        seldom = self.none.total[
            0
        ].real  # e^{c·S} is the probability that nobody arrived in an iteration before c
        laws = [_spread(c + own, p * share * np.exp(seldom * (c + own))) for c, p in ((value[0], weight[0]),)]
        if value.size > 1:
            both = value[1:, None] + own
            laws.append(_spread(both.ravel(), (weight[1:, None] * share * np.exp(seldom * both)).ravel()))
        return mixture([busy, *laws], [busy.mass, *(law.mass for law in laws)])


class _Stages(NamedTuple):
    """Own stages past prefill of the requests of a class, by group of prompts.

    Attributes
    ----------
    early : ndarray, shape (n_kept, n_groups)
        Share of the gaps that are the m-th of their requests, m = 1, 2, ….
    total : ndarray, shape (n_groups,)
        Share of the gaps of each group.
    own_s, own_share : ndarray, shape (n_groups, n_cells)
        What a request adds itself, and at what share of its stages.
    """

    early: FloatArray
    total: FloatArray
    own_s: FloatArray
    own_share: FloatArray

    @classmethod
    def of(cls, traffic: Traffic, prompts: Prompts, mine: NDArray[np.bool_]) -> "_Stages":
        stages = traffic.stages[mine]
        rate, group = traffic.rate_rps[mine], prompts.group[mine]
        groups = prompts.rate_rps.size
        gaps, level = (
            sum_by(group, rate * (stages - 1) * x, groups)
            for x in (np.ones_like(rate), traffic.stage_s[mine])
        )
        work = prompts.work
        kept = math.ceil(math.log(_FORGOTTEN) / math.log(work)) if work > 0 else 1
        early = [sum_by(group, rate * (stages > m), groups) for m in range(1, max(kept, 1) + 1)]
        cells = _AGES if traffic.token_s * traffic.longest > _AGEING * traffic.fixed_s else 1
        own, share = np.zeros((groups, cells)), np.zeros((groups, cells))
        for g in np.flatnonzero(gaps).tolist():
            present = survival(stages[group == g], rate[group == g])[1:]
            cell = np.floor((np.cumsum(present) - present / 2) / present.sum() * cells).astype(np.int64)
            cell = np.minimum(cell, cells - 1)  # the last may weigh less than a rounding of the sum
            share[g] = sum_by(cell, present, cells) / present.sum()
            age = sum_by(cell, present * np.arange(1, present.size + 1), cells) / present.sum()
            own[g] = level[g] / gaps[g] + traffic.token_s * age / np.where(share[g] > 0, share[g], np.inf)
        return cls(np.array(early) / gaps.sum(), gaps / gaps.sum(), own, share)

    @property
    def own_mean(self) -> float:
        return float(self.total @ (self.own_s * self.own_share).sum(axis=1))

    def own(self, z: ComplexArray) -> ComplexArray:
        """E e^{z·own} of each group; shape (n_groups, n_values)."""
        out: ComplexArray = np.einsum("gc,gcz->gz", self.own_share, np.exp(self.own_s[:, :, None] * z))
        return out

    def effect(self, chain: Chain, straight: float) -> ComplexArray:
        """Σ over own stages of what one's own arrival did to the iteration; shape (n_groups, n_values)."""
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
        return Law(edges, np.maximum.accumulate(below)).reduced()


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


def _spread(atoms: FloatArray, mass: FloatArray) -> Law:
    """Atoms that stand for a smooth law: each spread to half way to its neighbours."""
    atoms, at = np.unique(atoms, return_inverse=True)
    mass = sum_by(at, mass)
    between = (atoms[1:] + atoms[:-1]) / 2
    if between.size == 0:
        return certain(float(atoms[0]), float(mass[0]))
    first, last = 2 * atoms[0] - between[0], 2 * atoms[-1] - between[-1]
    return Law(np.concatenate([[first], between, [last]]), np.append(0.0, np.cumsum(mass)))
