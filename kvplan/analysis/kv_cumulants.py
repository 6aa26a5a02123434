"""Cumulants of KV usage before any eviction: a Poisson cluster process with feedback (theory §7).

Requests in memory lengthen iterations, and longer iterations let more requests in: whoever is at stage k begets
Poisson(λ_j v(k)) requests of each class j for the next iteration. v(k) is what it adds to an iteration by the linear
law that touches the iteration time at the equilibrium: per token read, per sequence, and per prompt token at k = 0.
With g(t) the log-transform of what one second of arrivals holds t iterations later, in all generations,

    g(t) = Σ_i λ_i (exp(θ h_i(t) + Σ_k v_i(k) g(t-1-k)) - 1),        K(θ) = log E e^{θ·KV} = d0·Σ_t g(t),

h_i the memory held (in whole pages; 0 after the last stage). g at t needs only earlier values, so it is computed once,
from t = 0 on, for many θ side by side, with two derivatives in θ. Three things keep the cost independent of lengths,
of the number of classes and of how near Λ is to 1:

- Time runs in cells: single iterations at first, where the recursion is exact, then cells whose width grows with t.
  A cell keeps its mean of g and a slope.
- v is linear in k but for its first value, so Σ_k v g takes four running sums, at now and at n iterations ago.
- Requests of like first weight, and those of like length that have left, are replaced cell by cell by a mean
  request. Rates and work are kept exactly.
"""

from typing import Any, NamedTuple

import numpy as np

from kvplan.analysis.equilibrium import tangent
from kvplan.model import FloatArray, IntArray, Mix, ServingModel, StageWeights, TabledWeights, Weights, sum_by

_FINENESS = 20  # cells grow by 1/20 of the time passed: deviations to 2e-3, required memory to 1e-3
_PRESENT_GROUPS = 24
_LEFT_GROUPS, _LEFT_WEIGHT_GROUPS = 48, 4  # of requests that left: first weights times lengths
_RELAXATIONS = 60  # length of the grid over L/(1 - Λ); the recursion stops before, once g has died out
_NEGLIGIBLE = 1e-7  # of the sum so far, per e-fold of time
_CHECK_EVERY = 16
_ROUNDING = 1e-11  # of the rate of a group; what is left of it when all have left


class ClusterGrid(NamedTuple):
    """The recursion for g on cells of time; rows are groups of requests present, then of those that have left.

    Sums over the past are linear in four entries of a cell's history: Σg and Σu·g over the cells before it, its mean,
    its slope.
    """

    fixed_time_s: float  # d0
    lattice_tokens: float  # KV usage is a multiple of it
    longest: float  # L, iterations
    edge: FloatArray  # (n_cells + 1,), iterations
    rate: FloatArray  # (n_cells, n_rows), requests/s averaged over the cell
    held: FloatArray  # (n_cells, n_present), KV tokens of those present, on average
    now: FloatArray  # (n_cells, n_rows, 4), weights of the cell's own history in Σ_k v(k) g(t-1-k) back to t = 0
    then: FloatArray  # (n_cells, n_left, 4), weights that take away what came before a request began, ...
    then_cell: IntArray  # (n_cells, n_left), ... in this cell
    implicit: FloatArray  # (n_cells, n_rows), weight in that sum of the cell's own mean, not known yet
    slope: FloatArray  # (n_cells, 3), weights of the mean of this cell and of the two before in the slope


def cluster_grid(model: ServingModel, fineness: int = _FINENESS) -> ClusterGrid:
    """Lay out the recursion for a model with Λ < 1; cells after the first `fineness` iterations span 1/fineness of t.

    An approximation of second order in 1/fineness and in the width of the groups (new, theory §7).
    """
    mix, law = model.mix, tangent(model)
    token_s, rate = law.per_kv_token_s, mix.rate_rps
    stages = mix.iterations.astype(np.float64)
    # with parts of prompts, as if context grew evenly over all iterations
    first = mix.context / stages - (stages - 1) / 2 if mix.partial.exist else first_read(mix.read)
    prefill_s = law.prefill_s(mix.prefill_tokens, mix.prefill_pairs)
    work_s = token_s * mix.context + law.per_sequence_s * mix.sequences
    slack = 1 - float(rate @ (work_s + prefill_s))
    longest = float(stages.max())
    edge = cell_edges(longest * (1 + _RELAXATIONS / slack), fineness)
    width = np.diff(edge)
    middle = edge[:-1] + (width - 1) / 2

    mass = rate / rate.max() * stages
    alike = alike_in_one(first, mass, _PRESENT_GROUPS)
    amounts = rate * np.stack([np.ones_like(rate), first, prefill_s])
    everyone = np.stack([np.bincount(alike, x) for x in amounts])
    staying = everyone[:, :, None] - _left(alike, stages, amounts, edge)
    staying *= staying[0] > _ROUNDING * everyone[0][:, None]
    present, (first_weight, present_prefill) = _means(staying)
    if isinstance(mix.held, TabledWeights) or mix.partial.exist:
        held = _cumulated(mix, alike, edge)
    else:
        held = first_weight + middle + _unfilled(mix.held, rate, alike, edge)
    n_present = present.shape[0]

    amounts = rate * np.stack([np.ones_like(rate), stages, work_s, prefill_s])
    gone = _left(alike_in_both(first, stages, mass), stages, amounts, edge)
    left, (left_stages, left_work, left_prefill) = _means(gone)
    # the work of a stage such that n of them, with slope d1, cost what the members cost on average: this keeps Λ
    left_stage_work = left_work / np.maximum(left_stages, 1.0) - token_s * (left_stages - 1) / 2

    stage_work = np.vstack([token_s * first_weight + law.per_sequence_s, left_stage_work])
    reach = stage_work + token_s * (middle - 1)
    prefill = np.vstack([present_prefill, left_prefill])
    history = _window_weights(reach, token_s, edge[:-1], width, (width - 1) / 2)
    now = np.stack(np.broadcast_arrays(*history), axis=-1)
    # a prompt computed one iteration ago: g(t-1) is the mean less one slope
    now[..., 2] += prefill
    now[..., 3] -= prefill

    begin = middle - left_stages
    then_cell = np.maximum(np.searchsorted(edge, begin, "right") - 1, 0)
    before = np.maximum(begin, 0) - edge[then_cell]
    history = _window_weights(reach[n_present:], token_s, edge[then_cell], width[then_cell], before)
    then = -np.stack(history, axis=-1)
    then[begin <= 0] = 0.0

    slope = _slope_weights(width, middle)
    own = now[..., 2:].copy()
    own[n_present:] += np.where((then_cell == np.arange(width.size))[..., None], then[..., 2:], 0.0)
    implicit = np.where(width > 1, own[..., 0] + slope[:, 0] * own[..., 1], 0.0)
    tables = np.vstack([present, left]), held, now, then, then_cell, implicit
    by_cell: list[Any] = [np.ascontiguousarray(table.swapaxes(0, 1)) for table in tables]
    return ClusterGrid(law.fixed_s, mix.lattice_tokens, longest, edge, *[*by_cell, slope])


def first_read(read: StageWeights) -> FloatArray:
    """Context read at stage 0, if it grew by a token a stage to the same footprint."""
    return read.first if isinstance(read, Weights) else read.footprint / read.stages - (read.stages - 1) / 2


def cell_edges(end: float, fineness: int) -> FloatArray:
    """Edges of cells from 0 to at least `end`: single iterations, then a `fineness`-th of the time passed."""
    edges = [0]
    while edges[-1] < end:
        edges.append(edges[-1] + max(1, edges[-1] // fineness))
    return np.array(edges, dtype=np.float64)


def alike_in_one(values: FloatArray, mass: FloatArray, limit: int) -> IntArray:
    """Group rows by value: one group for each, or at most `limit` ranges of little variance.

    Quantisation loses least, mass times squared error, where the density of ranges follows the cube root of the
    density of mass (Panter and Dite 1951).
    """
    distinct, group = np.unique(values, return_inverse=True)
    if distinct.size > limit:
        gap = np.diff(distinct, prepend=distinct[0])
        share = np.cbrt(np.bincount(group, mass) * gap**2)
        range_of = np.floor((np.cumsum(share) - share / 2) / share.sum() * limit)
        group = np.unique(np.minimum(range_of, limit - 1), return_inverse=True)[1][group]
    return group.astype(np.int64)


def alike_in_both(first_weight: FloatArray, stages: FloatArray, mass: FloatArray) -> IntArray:
    """Group rows by first weight and, more finely, by length: when work was done shows in g at first order.

    Groups are numbered in the order in which their first members leave.
    """
    group = np.unique(np.stack([first_weight, stages]), axis=1, return_inverse=True)[1].ravel()
    if group.max() >= _LEFT_GROUPS:
        weight = alike_in_one(first_weight, mass, _LEFT_WEIGHT_GROUPS)
        weights = int(weight.max()) + 1
        for w in range(weights):
            rows = weight == w
            group[rows] = w * _LEFT_GROUPS + alike_in_one(stages[rows], mass[rows], _LEFT_GROUPS // weights)
        group = np.unique(group, return_inverse=True)[1]
    soonest = np.full(int(group.max()) + 1, np.inf)
    np.minimum.at(soonest, group, stages)
    place: IntArray = np.argsort(np.argsort(soonest, kind="stable"))
    return place[group]


def _left(group: IntArray, stages: FloatArray, amounts: FloatArray, edge: FloatArray) -> FloatArray:
    """Average `amounts` (n_amounts, n_rows) of rows with n_i <= t over cells: (n_amounts, n_groups, n_cells)."""
    groups = int(group.max()) + 1
    position = group * edge.size + np.searchsorted(edge, stages, "right")
    # Σ_i amount_i (edge - n_i)⁺ at every edge, from the rows that left before it
    sums = [np.bincount(position, x, groups * edge.size) for a in amounts for x in (a, a * stages)]
    table = np.cumsum(np.reshape(sums, (len(amounts), 2, groups, edge.size)), axis=-1)
    return np.asarray(np.diff(table[:, 0] * edge - table[:, 1], axis=-1) / np.diff(edge))


def _means(sums: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Weights and weighted means, from sums of weights and of weighted amounts; 0 without weight."""
    weight = sums[0]
    return weight, sums[1:] / np.where(weight > 0, weight, np.inf)


def _unfilled(held: Weights, rate: FloatArray, group: IntArray, edge: FloatArray) -> FloatArray:
    """Tokens of pages that a request present does not fill, averaged over groups and cells: (n_groups, n_cells).

    Within a cell, requests of one residue of a page are averaged over all of its iterations, though some leave before.
    """
    if held.block_tokens == 1:
        return np.zeros((int(group.max()) + 1, edge.size - 1))
    residue = np.stack([group, held.first % held.block_tokens])
    (of_group, over), alike = np.unique(residue, axis=1, return_inverse=True)
    until = edge.astype(np.int64)
    filled = Weights(over[:, None], until)
    unfilled = Weights(filled.first, until, held.block_tokens).footprint - filled.footprint
    each = np.diff(unfilled) / np.diff(edge)
    return _of_those_present(held.stages, rate, group, edge, alike.ravel(), of_group, each)


def _cumulated(mix: Mix, group: IntArray, edge: FloatArray) -> FloatArray:
    """Memory of those present, averaged over groups and cells: (n_groups, n_cells)."""
    held, partial = mix.held, mix.partial
    rows = np.stack([group, held.kind, partial.iterations])
    (of_group, kind, before), alike = np.unique(rows, axis=1, return_inverse=True)
    before = before.astype(np.int64)[:, None]
    until = np.minimum(edge, mix.iterations.max()).astype(np.int64)
    after = np.clip(until - before, 0, held.stages.max())
    total = partial.until(partial.held_by_part, np.minimum(until, before))
    total = total + np.where(after > 0, held.of(kind[:, None], np.maximum(after, 1)).footprint, 0.0)
    each = np.diff(total) / np.maximum(np.diff(until), 1)
    return _of_those_present(mix.iterations, mix.rate_rps, group, edge, alike.ravel(), of_group, each)


def _of_those_present(
    stages: IntArray,
    rate: FloatArray,
    group: IntArray,
    edge: FloatArray,
    alike: IntArray,
    of_group: IntArray | FloatArray,
    each: FloatArray,
) -> FloatArray:
    """Means over groups, in each cell, of what those present have `each`, rows `alike` in parts of groups."""
    present = sum_by(alike, rate)[:, None] - _left(alike, stages.astype(np.float64), rate[None], edge)[0]
    present = np.maximum(present, 0.0)  # but for rounding
    in_group = np.arange(int(group.max()) + 1)[:, None] == of_group  # shape (n_groups, n_alike)
    weight, total = in_group @ present, in_group @ (present * each)
    return np.asarray(total / np.where(weight > 0, weight, np.inf))


def _window_weights(
    reach: FloatArray, token_s: float, start: FloatArray, width: FloatArray, part: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Weights of (Σg, Σu·g, mean, slope) of a cell in Σ_u (reach - token_s·u) g(u) up to `part` iterations into it.

    The cell has g = mean + slope·(y - (width-1)/2) at its y-th iteration; `reach` is what the sum weighs u = 0 with.
    """
    y_sum = part * (part - 1) / 2
    y_square_sum = y_sum * (2 * part - 1) / 3
    tilt = y_sum - part * (width - 1) / 2
    tilt_moment = start * tilt + y_square_sum - y_sum * (width - 1) / 2
    mean = reach * part - token_s * (start * part + y_sum)
    return reach, np.full_like(reach, -token_s), mean, reach * tilt - token_s * tilt_moment


def _slope_weights(width: FloatArray, middle: FloatArray) -> FloatArray:
    """Backward differences: of first order between single iterations, where they are exact, else of second."""
    step = np.diff(middle, prepend=middle[0] - 1)
    ratio = np.ones_like(step)
    ratio[2:] = step[2:] / step[1:-1]
    second = np.stack([(1 + 2 * ratio) / (1 + ratio), -(1 + ratio), ratio**2 / (1 + ratio)], axis=1)
    return np.where(width[:, None] > 1, second, [1.0, -1.0, 0.0]) / step[:, None]


def cumulants(grid: ClusterGrid, theta: FloatArray) -> FloatArray:
    """Return the cumulant function K(θ) = log E e^{θ·KV}, K' (tokens) and K'' (tokens²), shape (3, n_theta).

    NaN past the singularity, where E e^{θ·KV} is infinite.
    """
    size, cells = theta.size, grid.edge.size - 1
    present, width = grid.held.shape[1], np.diff(grid.edge)
    first_row = np.where(grid.edge[:-1] < grid.longest, 0, present).tolist()
    last_row = (present + (grid.rate[:, present:] > 0).sum(axis=1)).tolist()
    _, _, moment, tilt_moment = _window_weights(np.zeros(cells), -1.0, grid.edge[:-1], width, width)
    direct = np.stack([theta, np.ones(size), np.zeros(size)])  # θ and its derivatives
    history = np.zeros((cells + 1, 4, 3 * size))
    total = np.zeros(3 * size)
    mean = before = np.zeros(3 * size)
    with np.errstate(all="ignore"):  # past the singularity
        for j in range(cells):
            low, high = first_row[j], last_row[j]
            entry, slope = history[j], grid.slope[j]
            entry[3] = slope[1] * mean + slope[2] * before
            exponent = grid.now[j, low:high] @ entry
            if high > present:
                left = slice(0, high - present)
                past = history[grid.then_cell[j, left]]
                exponent[present - low :] += np.einsum("rk,rkc->rc", grid.then[j, left], past)
            exponent = exponent.reshape(high - low, 3, size)
            if low < present:
                exponent[:present] += grid.held[j][:, None, None] * direct
            implicit = grid.implicit[j, low:high] if width[j] > 1 else None
            before, mean = mean, _mean(grid.rate[j, low:high], implicit, exponent, mean[:size])
            total += width[j] * mean
            entry[2] = mean
            entry[3] += slope[0] * mean
            history[j + 1, 0] = entry[0] + width[j] * mean
            history[j + 1, 1] = entry[1] + moment[j] * mean + tilt_moment[j] * entry[3]
            if low and j % _CHECK_EVERY == 0:
                dead = np.abs(mean) * grid.edge[j] <= _NEGLIGIBLE * np.abs(total)
                if (dead | np.isnan(total)).all():
                    break
    return grid.fixed_time_s * total.reshape(3, size)


def _mean(
    rate: FloatArray, implicit: FloatArray | None, exponent: FloatArray, guess: FloatArray
) -> FloatArray:
    """Solve g = Σ rate·(exp(exponent + implicit·g) - 1) for the mean of g in a cell and two derivatives in θ.

    `exponent` has shape (n_rows, 3, n_theta); `implicit` is None for single iterations. Returns (3·n_theta,).
    """
    value, first, second = exponent[:, 0], exponent[:, 1], exponent[:, 2]
    total = rate.sum()
    if implicit is None:
        factor = np.exp(value)
        mean = rate @ factor - total
        mean_first = rate @ (factor * first)
        mean_second = rate @ (factor * (second + first * first))
        return np.concatenate([mean, mean_first, mean_second])
    both, own, mean = np.stack([rate, rate * implicit]), implicit[:, None], guess
    for _ in range(2):  # Newton
        factor = np.exp(value + own * mean)
        reached, gain = both @ factor
        free = 1 - gain
        free[free <= 0] = np.nan
        mean = mean + (reached - total - mean) / free
    mean_first = rate @ (factor * first) / free
    change = first + own * mean_first
    mean_second = rate @ (factor * (second + change * change)) / free
    return np.concatenate([mean, mean_first, mean_second])
