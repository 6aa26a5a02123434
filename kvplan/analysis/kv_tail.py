"""Tail of KV usage before any eviction: saddlepoint with feedback, exact pmf without (theory §7).

The saddlepoint needs only the cumulant function, which knows about the feedback of memory on iteration times, and
gives probabilities however small. It smooths: with a handful of requests in memory the distribution is lumpy. The
pmf of the compound Poisson law at constant iteration time shows the lumps. Where the two differ, the larger counts.

Usage is a multiple of some tokens: of a page, and of more where requests take no page after their first. Tails are
taken half such a step above the last level that fits, in both.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from kvplan.analysis.kv_cumulants import ClusterGrid, cumulants
from kvplan.model import FloatArray
from kvplan.solve import boundary

_FARTHEST = 38.6  # standard deviations: the normal tail there is 1e-325
_LEAST_LOG = -745.0  # of the smallest float
_FIRST_POINTS, _POINTS_AN_OCTAVE = 30, 3
_POINTS_BETWEEN = 30  # in all, for what is still wanted
_MAX_PASSES = 12
_SMOOTH = 3.0  # K'' may grow so much between neighbours in the table
_NEAR_MEAN = 0.02  # standard deviations within which 1/u - 1/r is taken at its limit
_LEAST_SHARE = 0.1
_PMF_POINTS, _PMF_STANDARD_DEVIATIONS, _PMF_LARGEST_JUMPS = 1 << 16, 40, 8
PMF_NOISE = 1e-12  # tails below are rounding errors of the transform


class Tail(NamedTuple):
    """log P(KV > M), and the KV usage, tokens, that is exceeded with each of some probabilities; -inf for none."""

    log_probability: float
    levels: tuple[float, ...]


class UsageScale(NamedTuple):
    """M*, the standard deviation at constant iteration time, and the most that one request holds; tokens."""

    mean: float
    std_without_feedback: float
    largest: float


@dataclass(frozen=True)
class CumulantTable:
    """K(θ), K' (tokens) and K'' (tokens²), the rows of `value`, at ascending θ (1/tokens), of which one is 0.

    `shift` is what the grid's mean lacks to the exact one; `singular` is a θ at which E e^{θ·KV} is infinite.
    """

    grid: ClusterGrid
    shift: float
    theta: FloatArray
    value: FloatArray
    singular: float = math.inf

    @property
    def origin(self) -> int:
        """Position of θ = 0."""
        return int(np.searchsorted(self.theta, 0.0))

    @property
    def std(self) -> float:
        return math.sqrt(self.value[2, self.origin])

    @cached_property
    def skewness(self) -> float:
        """Third cumulant over the cube of the standard deviation."""
        at = self.origin
        step = float(self.theta[at + 1])
        (slope, next_slope), (curvature, next_curvature) = self.value[1:, at : at + 2].tolist()
        # both are the third derivative of K at first order; together at second
        by_curvature = (next_curvature - curvature) / step
        by_slope = 2 * (next_slope - slope - curvature * step) / step**2
        return float((3 * by_slope - 2 * by_curvature) / curvature / math.sqrt(curvature))

    @cached_property
    def log_tails(self) -> FloatArray:
        return np.array([self.log_tail(*point) for point in np.vstack([self.theta, self.value]).T.tolist()])

    def log_tail(self, theta: float, k: float, slope: float, curvature: float) -> float:
        """log P(KV > K'(θ)), given K and its derivatives at θ."""
        return log_upper_tail(theta, k, slope, curvature, self.skewness, self.grid.lattice_tokens)

    def extended(self, points: FloatArray) -> "CumulantTable":
        """Add points; those past the singularity only bound it."""
        value = cumulants(self.grid, points)
        value[0] += self.shift * points
        value[1] += self.shift
        infinite = ~np.isfinite(value).all(axis=0) | ((value[2] < 0) & (points > 0))
        # far past the singularity the recursion can come back to finite nonsense
        singular = min(self.singular, float(points[infinite & (points > 0)].min(initial=math.inf)))
        infinite |= points >= singular
        order = np.argsort(theta := np.concatenate([self.theta, points[~infinite]]))
        value = np.concatenate([self.value, value[:, ~infinite]], axis=1)[:, order]
        return replace(self, theta=theta[order], value=value, singular=singular)

    def between(self, index: int) -> Callable[[float], tuple[float, float, float]]:
        """K, K', K'' as functions of θ from point `index` to the next: of fifth degree, exact at both ends.

        K'' rises with θ, so it is kept between its values at the ends: with millions of requests in memory it is a
        difference of nearly equal numbers.
        """
        start, width = float(self.theta[index]), float(self.theta[index + 1] - self.theta[index])
        scale = np.array([1.0, width, width * width])
        least, most = self.value[2, index : index + 2].tolist()
        c0, c1, c2 = (self.value[:, index] * scale / [1, 1, 2]).tolist()
        e0, e1, e2 = (self.value[:, index + 1] * scale).tolist()
        e0, e1, e2 = e0 - c0 - c1 - c2, e1 - c1 - 2 * c2, e2 - 2 * c2
        c3, c4, c5 = 10 * e0 - 4 * e1 + e2 / 2, -15 * e0 + 7 * e1 - e2, 6 * e0 - 3 * e1 + e2 / 2

        def at(theta: float) -> tuple[float, float, float]:
            t = (theta - start) / width
            return (
                c0 + t * (c1 + t * (c2 + t * (c3 + t * (c4 + t * c5)))),
                (c1 + t * (2 * c2 + t * (3 * c3 + t * (4 * c4 + t * 5 * c5)))) / width,
                min(max((2 * c2 + t * (6 * c3 + t * (12 * c4 + t * 20 * c5))) / width**2, least), most),
            )

        return at

    def level_index(self, level: float) -> int | None:
        """Last point with K' <= level; None where there is none, or the tail is nothing (Chernoff's bound)."""
        if (self.value[0] - self.theta * level).min() < _LEAST_LOG:
            return None
        index = int(np.searchsorted(self.value[1], level, "right")) - 1
        return index if index >= 0 else None

    def tail_index(self, log_probability: float) -> int | None:
        """Last point whose tail is at least the probability."""
        above = np.flatnonzero(self.log_tails >= log_probability)
        return int(above[-1]) if above.size else None

    def gap_after(self, index: int | None) -> tuple[float, float] | None:
        """From point `index` to the next one, or to the singularity, unless these are close enough."""
        if index is None:
            return None
        low, last = float(self.theta[index]), index + 1 == self.theta.size
        high = self.singular if last else float(self.theta[index + 1])
        smooth = not last and self.value[2, index + 1] <= _SMOOTH * self.value[2, index]
        if smooth or math.isinf(high) or high - low <= 1e-9 * abs(high):
            return None
        return low, high

    def log_probability_at(self, level: float) -> float:
        """log P(KV > level)."""
        index = self.level_index(level)
        if index is None:
            return float(self.log_tails[0]) if level < self.value[1, 0] else -math.inf
        if index + 1 == self.theta.size:
            return float(self.log_tails[index])
        at = self.between(index)
        theta = boundary(lambda x: at(x)[1] > level, *self.theta[index : index + 2].tolist())[1]
        return self.log_tail(theta, *at(theta))

    def level_at(self, log_probability: float) -> float:
        """KV usage that is exceeded with a probability, tokens."""
        index = self.tail_index(log_probability)
        if index is None:
            return -math.inf
        if index + 1 == self.theta.size:
            return float(self.value[1, index])
        at = self.between(index)
        ends = self.theta[index : index + 2].tolist()
        theta = boundary(lambda x: log_probability > self.log_tail(x, *at(x)), *ends)[1]
        return at(theta)[1]


def log_upper_tail(
    theta: float, k: float, slope: float, curvature: float, skewness: float, lattice_tokens: float = 1.0
) -> float:
    """Return log P(KV > K'(θ)) by the Lugannani-Rice formula, KV being a multiple ℓ of `lattice_tokens`.

    Given K(θ), K'(θ) in tokens and K''(θ) in tokens², and the skewness at θ = 0, where the formula is 0/0.

    References
    ----------
    New, theory §7: Q(r) + φ(r)(1/u - 1/r), r = sign(θ)√(2(θK' - K)), u = (2/ℓ) sinh(ℓθ/2)√K''. Lattice form after
    Daniels (1987, "Tail probability approximations"): K' is half a step above the level that is exceeded. Levels below
    a single request, of which there is seldom any, make the formula negative: it is kept above a tenth of the tail that
    a normal law tilted to the level would have.

    Examples
    --------
    More than 4 arrivals of a Poisson law with mean 1 have probability 0.0037:

    >>> theta = math.log(4.5)
    >>> round(math.exp(log_upper_tail(theta, 3.5, 4.5, 4.5, 1.0)), 4)
    0.0037
    """
    if theta < 0 and curvature <= 0:  # by rounding, where so little of the law is left that all is above
        return 0.0
    deviation = math.sqrt(curvature)
    if abs(theta) * deviation < _NEAR_MEAN:
        return math.log(max(0.5 - skewness / (6 * math.sqrt(2 * math.pi)), 0.0) or math.ulp(0.0))
    r = math.sqrt(2 * max(theta * slope - k, 0.0))
    u = 2 / lattice_tokens * math.sinh(abs(theta) * lattice_tokens / 2) * deviation
    if r == 0:
        return -math.inf
    factor = max(_mills_ratio(r) + 1 / u - 1 / r, _LEAST_SHARE * _mills_ratio(u))
    log_tail = math.log(factor / math.sqrt(2 * math.pi)) - r * r / 2
    if theta > 0:
        return min(log_tail, 0.0)
    return math.log1p(-math.exp(log_tail)) if log_tail < 0 else -math.inf


def _mills_ratio(r: float) -> float:
    """Q(r)/φ(r) of the normal law, r >= 0; scipy has it, and takes longer to load than a report."""
    if r < 5:
        return math.sqrt(math.pi / 2) * math.exp(r * r / 2) * math.erfc(r / math.sqrt(2))
    fraction = r
    for k in range(30, 0, -1):
        fraction = r + k / fraction
    return 1 / fraction


def saddlepoint_table(grid: ClusterGrid, scale: UsageScale, *, with_left: bool) -> CumulantTable:
    """Tabulate K(θ) where it reaches all tails that a float can hold; below the mean too, if `with_left`.

    K'' rises with θ, so a level whose tail is that of r normal standard deviations has θ <= r/σ: no θ beyond 38.6/σ is
    ever needed (new, theory §7).
    """
    top = min(_FARTHEST / scale.std_without_feedback, -_LEAST_LOG / scale.largest)
    points = top * np.exp2(-np.arange(_FIRST_POINTS) / _POINTS_AN_OCTAVE)
    points = np.concatenate([points, -points, [0.0]] if with_left else [points, [0.0]])
    table = CumulantTable(grid, 0.0, np.empty(0), np.empty((3, 0))).extended(points)
    shift = scale.mean - float(table.value[1, table.origin])
    change = np.stack([shift * table.theta, np.full_like(table.theta, shift), np.zeros_like(table.theta)])
    return replace(table, shift=shift, value=table.value + change)


def saddlepoint_tail(table: CumulantTable, level: float, log_probabilities: Sequence[float]) -> Tail:
    """Tail of KV usage, with feedback, at a level in tokens and at probabilities, given by their logarithms."""
    for _ in range(_MAX_PASSES):  # as many more points as these tails need
        if table.theta[-1] == 0:  # all were past the singularity
            steps = np.arange(1, _FIRST_POINTS + 1) / _POINTS_AN_OCTAVE
            table = table.extended(table.singular * np.exp2(-steps))
            continue
        spots = {table.level_index(level), *map(table.tail_index, log_probabilities)}
        gaps = [gap for index in spots if (gap := table.gap_after(index)) is not None]
        if not gaps:
            break
        each = _POINTS_BETWEEN // len(gaps)
        table = table.extended(np.concatenate([np.linspace(*gap, each + 2)[1:-1] for gap in gaps]))
    return Tail(table.log_probability_at(level), tuple(map(table.level_at, log_probabilities)))


class UsagePmf(NamedTuple):
    """Probabilities of KV usage 0, step, 2·step, … tokens; shape (n_points,)."""

    step: float
    probability: FloatArray


def usage_pmf(requests: FloatArray, step: float, *, max_points: int = _PMF_POINTS) -> UsagePmf:
    """Distribution of KV usage at constant iteration time: a compound Poisson law, by one FFT.

    `requests` are mean numbers of those that hold 0, step, 2·step, … tokens; pmf = irfft(exp(rfft(jumps) - Σ jumps))
    (new, theory §7). Above `max_points` the lattice is coarsened: a jump between two of its points goes to both in
    shares that keep its mean.
    """
    sizes = np.arange(requests.size)
    mean, std = float(requests @ sizes), math.sqrt(float(requests @ sizes**2))
    span = mean + _PMF_STANDARD_DEVIATIONS * std + _PMF_LARGEST_JUMPS * (sizes.size - 1) + 2
    stride = max(1, math.ceil(span / max_points))
    size = 1 << math.ceil(math.log2(span / stride + 1))
    place = sizes / stride
    below = place.astype(np.int64)
    upper_share = requests * (place - below)
    jumps = np.bincount(below, requests - upper_share, size)[:size]
    jumps += np.bincount(below + 1, upper_share, size)[:size]
    spectrum = np.fft.rfft(jumps)
    probability = np.maximum(np.fft.irfft(np.exp(spectrum - jumps.sum()), size), 0.0)
    return UsagePmf(stride * step, probability)


def pmf_tail(pmf: UsagePmf, level: float, probabilities: Sequence[float]) -> Tail:
    """Tail of a lattice distribution at a level in tokens; nothing is known about tails below 1e-12, which count as 0.

    Usage is spread evenly over half a step to either side of its point.
    """
    exceeded = np.append(np.cumsum(pmf.probability[:0:-1])[::-1], 0.0)
    tails = np.append(1.0, np.where(exceeded > PMF_NOISE, np.minimum(exceeded, 1.0), 0.0))
    edges = np.append(-0.5, np.arange(pmf.probability.size) + 0.5) * pmf.step
    at = float(np.interp(level, edges, tails))

    def exceeded_with(probability: float) -> float:
        above = int(np.count_nonzero(tails > probability))  # tails fall, so these come first
        if above == 0:
            return -math.inf
        if tails[above] <= 0:
            return float(edges[above])
        part = (tails[above - 1] - probability) / (tails[above - 1] - tails[above])
        return float(edges[above - 1] + part * pmf.step)

    return Tail(math.log(at) if at > 0 else -math.inf, tuple(map(exceeded_with, probabilities)))
