"""Constants in spite of samples that are off.

Iterations: least squares of the relative error, over the samples that agree: least trimmed squares first (the share of
the samples that one fit explains best), then all samples within some spreads of it.

- Where prefill is hidden (`Samples.hidden_prefill`) a sample can only be too slow, and most may be. So the fit is a
  lower envelope: it starts from the better half, the spread is that of the samples below, those above are cut off soon.
- Elsewhere the samples are right but for a few, and it is the formula that is approximate (small prompts do not fill
  a GPU, attention grows faster than the prompt). So only what is grossly off is left out, and what repeated
  measurements contradict: more work in less time.

Loads: there are few, each the mean over many requests, and TTFT scatters far more than TPOT. So all count, each kind by
its own spread, and those far off by less.

References
----------
Rousseeuw, Van Driessen, Computing LTS regression for large data sets (2006): concentration steps.
Huber, Robust Estimation of a Location Parameter (1964): weights of what is far off.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kvplan.ingest.timing.equations import KV, PREFILL, BoolArray, Equations, Kind, Terms
from kvplan.ingest.timing.least_squares import solve
from kvplan.model import FloatArray, IntArray

_STARTS, _FINISHED, _START_SIZE, _SUBSAMPLE = 40, 4, 8, 600
_STEPS = 30
_ABOVE_ENVELOPE, _AWAY = 2.0, 3.0  # spreads from the fit at which a sample is left out
_GROSS = 0.6  # relative error at which a measured sample may be left out
_CLOSE = 0.04  # spread of samples that lie close to the formula
_SPREADS = 6.0  # how many of them are then too far
_HALF, _MOST = 0.5, 0.9  # share of the samples that agree: at least, of an envelope; of measurements
_TO_SIGMA = 1.4826  # of a normal distribution's median absolute deviation
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


def agreeing(equations: Equations, envelope: bool) -> BoolArray:
    """Which equations a linear law can rest on, shape (n_equations,): of loads all."""
    if (equations.kind != Kind.ITERATION).any():
        return np.ones(len(equations), dtype=np.bool_)
    design = equations.design(Terms())
    varying = np.concatenate([[True], np.ptp(design[:, 1:], axis=0) > 0])
    return _trimmed(design[:, varying], equations.seconds, envelope)


def constants(equations: Equations, terms: Terms, prior: FloatArray) -> FloatArray:
    """Constants of a law with these terms, in the order of its design, where the equations agree.

    For `prior` see `solve`.
    """
    return _constants(equations, equations.design(terms), prior)


def nothing_free(
    equations: Equations, terms: Terms, prior: FloatArray, found: FloatArray
) -> tuple[FloatArray, tuple[int, ...]]:
    """Constants by which neither KV tokens nor prompts are free, and which of the two were.

    What came out at next to nothing is given a part of its share of the prior, the largest by which the others, fitted
    anew, hardly fit worse.
    """
    design, seconds = equations.design(terms), equations.seconds
    scale = float(np.median((seconds - equations.offset) / np.maximum(design @ prior, 1e-300)))
    free = tuple(index for index in (KV, PREFILL) if found[index] < _PARTS[-1] * scale * prior[index])
    if not free:
        return found, ()

    def misfit(constants: FloatArray) -> float:
        off = np.abs(equations.offset + design @ constants - seconds) / seconds
        return float(np.minimum(off, 1.0).mean())

    limit, chosen = misfit(found) * _HARDLY + _NO_MATTER, list(free)
    rest, others = design.copy(), prior.copy()
    rest[:, chosen] = others[chosen] = 0.0
    for part in _PARTS:
        priced = np.zeros(prior.size)
        priced[chosen] = part * scale * prior[chosen]
        paid = replace(equations, offset=equations.offset + design @ priced)
        priced += np.where(priced > 0, 0.0, _constants(paid, rest, others))
        if misfit(priced) <= limit:
            break
    return priced, free


def _constants(equations: Equations, design: FloatArray, prior: FloatArray) -> FloatArray:
    seconds = equations.seconds
    rows = {Kind(kind): equations.kind == kind for kind in np.unique(equations.kind)}
    spread = dict.fromkeys(rows, math.inf)
    # Next to no deviation at first, so that what was measured says what there is before a prior has its say.
    deviation = np.empty(seconds.size)
    for kind, mine in rows.items():
        deviation[mine] = _AT_FIRST * _SPREAD[kind].least
    for _ in range(_STEPS):
        found = solve(design, seconds - equations.offset, deviation * seconds, prior)
        off = np.abs(seconds - equations.offset - design @ found) / seconds
        last = deviation.copy()
        for kind, mine in rows.items():
            seen = max(_TO_SIGMA * float(np.median(off[mine])), _SPREAD[kind].least)
            spread[kind] = min(spread[kind], seen)
            deviation[mine] = spread[kind] * np.sqrt(
                np.maximum(off[mine] / (_SPREAD[kind].most * spread[kind]), 1.0)
            )
        if np.allclose(deviation, last, rtol=1e-6):
            break
    return found


def _trimmed(design: FloatArray, seconds: FloatArray, envelope: bool) -> BoolArray:
    """The samples that agree, shape (n_samples,)."""

    def residuals(found: FloatArray) -> FloatArray:
        return np.asarray((seconds - design @ found) / seconds)

    share = _HALF if envelope else _MOST
    found = _least_trimmed(design, seconds, share)
    distance = np.abs(residuals(found))
    kept = np.asarray(distance <= np.quantile(distance, share, method="higher"))
    for _ in range(_STEPS):
        off = residuals(found)
        within = _near_envelope(off) if envelope else _not_grossly_off(off, kept)
        if (within == kept).all():
            break
        kept = within
        found = _plain(design[kept], seconds[kept])
    return kept


def _plain(design: FloatArray, seconds: FloatArray) -> FloatArray:
    return solve(design, seconds, seconds)


def _near_envelope(off: FloatArray) -> BoolArray:
    """Which relative residuals are small, against the spread of those below the fit; at least half of them."""
    below = off[off < 0]
    spread = max(_TO_SIGMA * float(np.median(np.abs(below))) if below.size else 0.0, 1e-9)
    excess = np.maximum(off / _ABOVE_ENVELOPE, -off / _AWAY) / spread
    return np.asarray(excess <= max(1.0, float(np.quantile(excess, _HALF, method="higher"))))


def _not_grossly_off(off: FloatArray, kept: BoolArray) -> BoolArray:
    """Which relative residuals are small, against those of the samples kept so far.

    Where nearly all samples lie close to the formula, what is some spreads off is no noise. Elsewhere it is the
    formula that is rough, and only what is grossly off is left out.
    """
    spread = _TO_SIGMA * float(np.median(np.abs(off[kept])))
    close = np.asarray(np.abs(off) <= max(_SPREADS * spread, 1e-6))
    if spread < _CLOSE and close.mean() >= _MOST:
        return close
    return np.asarray(np.abs(off) <= max(_AWAY * float(np.sqrt((off[kept] ** 2).mean())), _GROSS))


def _least_trimmed(design: FloatArray, seconds: FloatArray, share: float) -> FloatArray:
    """Coefficients with the least sum of the smallest squared residuals, over many starts.

    The share is taken of the samples with and without prefill alike: of one kind alone they would leave terms open.
    """
    n = seconds.size
    every = np.unique(np.linspace(0, n - 1, min(n, _SUBSAMPLE)).astype(np.int64))
    kind = np.unique(design > 0, axis=0, return_inverse=True)[1].reshape(-1)
    rng = np.random.default_rng(0)  # the same samples give the same timing

    def concentrated(found: FloatArray, pool: IntArray, steps: int) -> tuple[float, FloatArray]:
        parts = [np.flatnonzero(kind[pool] == k) for k in range(kind.max() + 1)]
        total = np.inf
        for _ in range(steps):
            squares = ((seconds[pool] - design[pool] @ found) / seconds[pool]) ** 2
            order = np.concatenate(
                [
                    part[np.argsort(squares[part], kind="stable")[: math.ceil(share * part.size)]]
                    for part in parts
                ]
            )
            if squares[order].sum() >= total * (1 - 1e-12):
                break
            total = float(squares[order].sum())
            found = _plain(design[pool[order]], seconds[pool[order]])
        return total, found

    size = min(every.size, _START_SIZE)
    starts = [every, *(rng.choice(every, size, replace=False) for _ in range(_STARTS))]
    begun = [concentrated(_plain(design[rows], seconds[rows]), every, 2) for rows in starts]
    begun.sort(key=lambda pair: pair[0])
    best = min(
        (concentrated(found, every, _STEPS) for _, found in begun[:_FINISHED]), key=lambda pair: pair[0]
    )
    return concentrated(best[1], np.arange(n), _STEPS)[1]


def contradicted(equations: Equations) -> IntArray:
    """For each sample that contradicts others: one that did less in more time, or more in less; else −1.

    Only where repetitions tell how much is noise. Of two that contradict each other the one goes that contradicts
    more of the others, then the fast one.
    """
    design, seconds = equations.amounts[:, 1:4], equations.seconds
    opposed = np.full(seconds.size, -1, dtype=np.int64)
    if (equations.kind != Kind.ITERATION).any():
        return opposed
    points, first, group = np.unique(design, axis=0, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    if len(points) > min(_SUBSAMPLE, seconds.size // 2):
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
