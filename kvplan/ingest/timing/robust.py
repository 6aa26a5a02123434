"""Constants of least relative error, none negative, in spite of what is off, with a prior for what is left open.

Iterations: least squares of the relative error, over the samples that agree: least trimmed squares first (the share of
the samples that one fit explains best), then all samples within some spreads of it.

- Where prefill is hidden (`Samples.hidden_prefill`) a sample can only be too slow, and most may be. So the fit is a
  lower envelope: it starts from the better half, the spread is that of the samples below, those above are cut off soon.
- Elsewhere the samples are right but for a few, and it is the formula that is approximate (small prompts do not fill
  a GPU, attention grows faster than the prompt). So only what is grossly off is left out, and what repeated
  measurements contradict: more work in less time.

Loads: there are few, each the mean over many requests, and TTFT scatters far more than TPOT. So all count, each kind by
its own spread, and those far off by less.

A prior is a law of another origin, an estimate or another profile. What is believed of it are the ratios of its
constants, to within a factor of a few, and not their size. So each constant is drawn to its share of the prior, at a
common scale that is free, and one that the prior does not have to 0: where equations determine a constant the prior has
next to no weight, and the less they say of it (prompts in a sweep without TTFT) the more it is the prior's ratio.

References
----------
Rousseeuw, Van Driessen, Computing LTS regression for large data sets (2006): concentration steps. Losses of bounded
slope, such as scipy's soft_l1, were tried: half the samples too slow, they move with them.
Huber, Robust Estimation of a Location Parameter (1964): weights of what is far off.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from kvplan.ingest.timing.equations import KV, PREFILL, BoolArray, Equations, Kind, Terms
from kvplan.model import FloatArray, IntArray, Timing

_BELIEF = 3.0  # relative deviation of a constant from its share of the prior
_UNKNOWN = 0.3  # share of time that a constant may add which the prior does not have
_STEPS = 30
_STARTS, _START_SIZE = 40, 8  # samples that a start is fitted to
_ABOVE_ENVELOPE, _AWAY = 2.0, 3.0  # spreads from the fit at which a sample is left out
_GROSS = 0.6  # relative error at which a measured sample may be left out
_CLOSE = 0.04  # spread of samples that lie close to the formula
_SPREADS = 6.0  # how many of them are then too far
_HALF, _MOST = 0.5, 0.9  # share of the samples that agree: at least, of an envelope; of measurements
_TO_SIGMA = 1.4826  # of a normal distribution's median absolute deviation
_MOST_SETTINGS = 600  # to be compared with each other, or to try many starts on
_MORE, _LESS_TIME, _NOISES = 1.5, 0.05, 4.0  # a contradiction: so much more work, in so much less time
_PARTS = (1.0, 0.5, 0.2, 0.1, 0.05)  # of a share of the prior, to try
_HARDLY, _NO_MATTER = 1.03, 0.0005  # how much worse a fit may be: so many times, and so much error
_AT_FIRST = 0.01  # of the least spread


class _Spread(NamedTuple):
    """Of relative errors: the least, and how many of them an equation is off before it counts for less."""

    least: float
    most: float


_SPREAD = {
    **dict.fromkeys(Kind, _Spread(0.02, 1.5)),
    Kind.TTFT: _Spread(0.06, 1.5),
    Kind.ITERATION: _Spread(1e-6, math.inf),  # those that are off are left out
}


def solve(
    design: FloatArray, seconds: FloatArray, deviation: FloatArray, prior: FloatArray | None = None
) -> FloatArray:
    """Return the constants of amounts that make up times, shape (n_terms,).

    `design` has shape (n_equations, n_terms), `deviation` is that of each time in seconds. `prior` are constants whose
    ratios are believed, 0 where nothing is known.

    Examples
    --------
    Two equations tell a fixed time from what grows; how that is shared out is left to the prior:

    >>> amounts = np.array([[1.0, 10.0, 10.0], [1.0, 30.0, 30.0]])
    >>> prior = np.array([10.0, 0.25, 0.75])
    >>> solve(amounts, np.array([2.0, 4.0]), np.full(2, 1e-6), prior).round(3).tolist()
    [1.0, 0.025, 0.075]
    """
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    rows, wanted = design / deviation[:, None], seconds / deviation
    if prior is not None and prior.any():
        believed = prior > 0
        # The scale of the prior is a column of its own, and takes the size of the measured.
        size = float(np.median(np.abs(seconds) / np.maximum(design @ prior, 1e-300)))
        share = np.where(believed, prior * size, 1.0)
        share_of_time = np.mean(design / np.maximum(np.abs(seconds), 1e-300)[:, None], axis=0)
        drawn = np.column_stack(
            [np.diag(np.where(believed, 1 / share, share_of_time)), -believed.astype(float)]
        )
        drawn /= np.where(believed, _BELIEF, _UNKNOWN)[:, None]
        rows = np.vstack([np.column_stack([rows, np.zeros(seconds.size)]), drawn])
        wanted = np.concatenate([wanted, np.zeros(len(drawn))])
    scale = np.sqrt((rows**2).sum(axis=0))
    scale[scale == 0] = 1.0
    # The triangle holds all that matters of any number of rows.
    triangle: Any = np.linalg.qr(np.column_stack([rows / scale, wanted]), mode="r")
    return np.asarray((nnls(triangle[:, :-1], triangle[:, -1])[0] / scale)[: design.shape[1]])


def constants(equations: Equations, terms: Terms, prior: Timing) -> FloatArray:
    """Return the constants of a law with these terms, in the order of its design."""
    return _constants(equations, equations.design(terms), equations.in_order(terms, prior))


def _constants(equations: Equations, design: FloatArray, prior: FloatArray) -> FloatArray:
    seconds = equations.seconds
    rows = {Kind(kind): equations.kind == kind for kind in np.unique(equations.kind)}
    spread = dict.fromkeys(rows, math.inf)
    # Next to no deviation at first, so that what was measured says what there is before a prior has its say.
    deviation = np.empty(seconds.size)
    for kind, mine in rows.items():
        deviation[mine] = _AT_FIRST * _SPREAD[kind].least
    for _ in range(_STEPS):
        fitted = solve(design, seconds - equations.offset, deviation * seconds, prior)
        off = np.abs(seconds - equations.offset - design @ fitted) / seconds
        last = deviation.copy()
        for kind, mine in rows.items():
            seen = max(_TO_SIGMA * float(np.median(off[mine])), _SPREAD[kind].least)
            spread[kind] = min(spread[kind], seen)
            excess = off[mine] / (_SPREAD[kind].most * spread[kind])
            deviation[mine] = spread[kind] * np.sqrt(np.maximum(excess, 1.0))
        if np.allclose(deviation, last, rtol=1e-6):
            break
    return fitted


def nothing_free(
    equations: Equations, terms: Terms, belief: Timing, fitted: FloatArray
) -> tuple[FloatArray, tuple[int, ...]]:
    """Return constants by which neither KV tokens nor prompts are free, and which of the two were.

    What came out at next to nothing is given a part of its share of the prior, the largest by which the others, fitted
    anew, hardly fit worse.
    """
    design, seconds, prior = equations.design(terms), equations.seconds, equations.in_order(terms, belief)
    scale = float(np.median((seconds - equations.offset) / np.maximum(design @ prior, 1e-300)))
    free = [index for index in (KV, PREFILL) if fitted[index] < _PARTS[-1] * scale * prior[index]]
    if not free:
        return fitted, ()

    def misfit(constants: FloatArray) -> float:
        off = np.abs(equations.offset + design @ constants - seconds) / seconds
        return float(np.minimum(off, 1.0).mean())

    rest, others = design.copy(), prior.copy()
    rest[:, free] = others[free] = 0.0
    for part in _PARTS:
        priced = np.zeros(prior.size)
        priced[free] = part * scale * prior[free]
        paid = replace(equations, offset=equations.offset + design @ priced)
        priced += np.where(priced > 0, 0.0, _constants(paid, rest, others))
        if misfit(priced) <= misfit(fitted) * _HARDLY + _NO_MATTER:
            break
    return priced, tuple(free)


def agreeing(equations: Equations, envelope: bool) -> BoolArray:
    """Tell which equations a linear law can rest on, shape (n_equations,): of loads all."""
    if not equations.of_iterations:
        return np.ones(len(equations), dtype=np.bool_)
    design, seconds = equations.design(Terms()), equations.seconds
    design = design[:, np.concatenate([[True], np.ptp(design[:, 1:], axis=0) > 0])]
    share = _HALF if envelope else _MOST
    fitted = _least_trimmed(design, seconds, share)
    distance = np.abs(seconds - design @ fitted) / seconds
    kept = np.asarray(distance <= np.quantile(distance, share, method="higher"))
    for _ in range(_STEPS):
        off = np.asarray((seconds - design @ fitted) / seconds)
        within = _near_envelope(off) if envelope else _not_grossly_off(off, kept)
        if (within == kept).all():
            break
        kept = within
        fitted = solve(design[kept], seconds[kept], seconds[kept])
    return kept


def _least_trimmed(design: FloatArray, seconds: FloatArray, share: float) -> FloatArray:
    """Return constants with the least sum of the smallest squared residuals, the best of many starts.

    The share is taken of the samples with and without prefill alike: of one kind alone they would leave terms open.
    """
    kind = np.unique(design > 0, axis=0, return_inverse=True)[1].reshape(-1)

    def concentrated(rows: IntArray, pool: IntArray) -> tuple[float, IntArray, FloatArray]:
        parts = [pool[kind[pool] == k] for k in np.unique(kind[pool])]
        total = math.inf
        for _ in range(_STEPS):
            fitted = solve(design[rows], seconds[rows], seconds[rows])
            squares = ((seconds - design @ fitted) / seconds) ** 2
            nearest = (part[np.argsort(squares[part], kind="stable")] for part in parts)
            rows = np.concatenate([part[: math.ceil(share * part.size)] for part in nearest])
            last, total = total, float(squares[rows].sum())
            if total >= last * (1 - 1e-12):
                break
        return total, rows, fitted

    every = np.arange(seconds.size)
    pool = np.unique(np.linspace(0, seconds.size - 1, min(seconds.size, _MOST_SETTINGS)).astype(np.int64))
    rng = np.random.default_rng(0)  # the same samples give the same timing
    size = min(pool.size, _START_SIZE)
    starts = [pool, *(rng.choice(pool, size, replace=False) for _ in range(_STARTS))]
    _, rows, _ = min((concentrated(rows, pool) for rows in starts), key=lambda fit: fit[0])
    return concentrated(rows, every)[2]


def _near_envelope(off: FloatArray) -> BoolArray:
    """Tell which relative residuals are small, against the spread of those below the fit; at least half of them."""
    below = off[off < 0]
    spread = max(_TO_SIGMA * float(np.median(np.abs(below))) if below.size else 0.0, 1e-9)
    excess = np.maximum(off / _ABOVE_ENVELOPE, -off / _AWAY) / spread
    return np.asarray(excess <= max(1.0, float(np.quantile(excess, _HALF, method="higher"))))


def _not_grossly_off(off: FloatArray, kept: BoolArray) -> BoolArray:
    """Tell which relative residuals are small, against those of the samples kept so far.

    Where nearly all samples lie close to the formula, what is some spreads off is no noise. Elsewhere it is the
    formula that is rough, and only what is grossly off is left out.
    """
    spread = _TO_SIGMA * float(np.median(np.abs(off[kept])))
    close = np.asarray(np.abs(off) <= max(_SPREADS * spread, 1e-6))
    if spread < _CLOSE and close.mean() >= _MOST:
        return close
    return np.asarray(np.abs(off) <= max(_AWAY * float(np.sqrt((off[kept] ** 2).mean())), _GROSS))


def contradicted(equations: Equations) -> IntArray:
    """For each sample that contradicts others name one that did less in more time, or more in less; else −1.

    Only where repetitions tell how much is noise. Of two that contradict each other the one goes that contradicts
    more of the others, then the fast one.
    """
    design, seconds = equations.amounts[:, 1:4], equations.seconds
    opposed = np.full(seconds.size, -1, dtype=np.int64)
    if not equations.of_iterations:
        return opposed
    points, first, group = np.unique(design, axis=0, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    if len(points) > min(_MOST_SETTINGS, seconds.size // 2):
        return opposed
    middle = np.array([np.median(seconds[group == g]) for g in range(len(points))])
    noise = _TO_SIGMA * float(np.median(np.abs(seconds / middle[group] - 1)))
    more = (points[:, None, :] >= points[None, :, :]).all(axis=2)
    more &= points.sum(axis=1)[:, None] >= _MORE * points.sum(axis=1)[None, :]
    against = more & (middle[:, None] < middle[None, :] * (1 - max(_LESS_TIME, _NOISES * noise)))
    while against.any():
        fast, slow = against.sum(axis=1), against.sum(axis=0)
        worst = int(np.argmax(fast + slow + 0.5 * (fast > 0)))
        opponents = against[worst] if fast[worst] else against[:, worst]
        opposed[group == worst] = first[int(np.argmax(np.where(opponents, middle, 0)))]
        against[worst, :] = against[:, worst] = False
    return opposed
