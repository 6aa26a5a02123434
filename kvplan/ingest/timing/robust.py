"""Constants of least relative error, none negative, robust to outliers, with a prior for what is left open.

Iterations that do not belong to the others are left out first (`agreeing`). Loads are few, each the mean over many
requests, and TTFT scatters far more than TPOT: all count, each kind by its own spread, and those far off by less.

A prior is a law of another origin, an estimate or another profile. What is believed of it are the ratios of its
constants, to within a factor of a few, and not their size. So each constant is drawn to its share of the prior, at a
common scale that is free, and one that the prior does not have to 0: where equations determine a constant the prior has
next to no weight, and the less they say of it (prompts in a sweep without TTFT) the more it is the prior's ratio.

References
----------
Huber, Robust Estimation of a Location Parameter (1964): weights of what is far off.
Koenker, Bassett, Regression Quantiles (1978): the start of `agreeing`.
White, A Heteroskedasticity-Consistent Covariance Matrix Estimator (1980): standard errors.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from kvplan.ingest.timing.equations import FIXED, KV, PREFILL, BoolArray, Equations, Kind, Terms
from kvplan.model import FloatArray, Timing

_BELIEF = 3.0  # relative deviation of a constant from its share of the prior
_UNKNOWN = 0.3  # share of time that a constant may add which the prior does not have
_STEPS, _STILL = 30, 1e-6  # of a fit; relative change of what does not change any more
_ENVELOPE, _MEDIAN = 0.35, 0.5  # quantile of the samples that a first fit goes through
_AWAY = 3.0  # spreads from an envelope, or a rough formula, at which a sample is left out
_SPREADS = 6.0  # the same of measured samples
_CLOSE, _GROSS = 0.04, 0.6  # spread of samples close to the formula; relative error to leave out elsewhere
_TO_SIGMA = 1.4826  # of a normal distribution's median absolute deviation
_REPEATED = 3  # measurements of a setting that cannot all be wrong
_MOST = 0.9  # share of the samples that lie close to a formula that is not rough
_PARTS = (1.0, 0.5, 0.2, 0.1, 0.05)  # of a share of the prior, to try
_HARDLY, _NO_MATTER = 1.03, 0.0005  # how much worse a fit may be: so many times, and so much error
_AT_FIRST = 0.01  # of the least spread
_LEAST, _NEAR = 1e-6, 1e-3  # relative errors that count, at last and at first
_ALIKE = 1e-6  # singular value, of the largest, of what cannot be told apart
_DIGITS = 1e-4  # relative error that rounding makes at least


_FAR = 1.5  # spreads beyond which a load counts for less; iterations that are off are left out
_LEAST_SPREAD = {**dict.fromkeys(Kind, 0.02), Kind.TTFT: 0.06, Kind.ITERATION: _LEAST}  # relative errors


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
    spread: dict[str, float] = {}
    # Without a belief, what was measured decides however little it says.
    least = dict.fromkeys(Kind, _LEAST) if not prior[KV:].any() else _LEAST_SPREAD
    # Next to no deviation at first, so that what was measured says what there is before a prior has its say.
    deviation = _AT_FIRST * _of_each(equations, least)
    times = seconds
    for _ in range(_STEPS):
        fitted = solve(design, seconds - equations.offset, deviation * times, prior)
        if equations.of_iterations:
            times = np.sqrt(seconds * (equations.offset + design @ fitted))  # too fast counts as too slow
        off = np.abs(seconds - equations.offset - design @ fitted) / seconds
        last = deviation
        seen = _spreads(equations, off, least)
        spread = {kind: min(width, spread.get(kind, math.inf)) for kind, width in seen.items()}
        deviation = _deviations(equations, off, spread)
        if (np.abs(deviation - last) <= _STILL * last).all():
            break
    return fitted


def _spreads(equations: Equations, off: FloatArray, least: Mapping[Kind, float]) -> dict[str, float]:
    return {
        kind: max(_TO_SIGMA * float(np.median(off[rows])), least[Kind(kind)])
        for kind, rows in equations.kinds.items()
    }


def _deviations(equations: Equations, off: FloatArray, spread: Mapping[str, float]) -> FloatArray:
    """Return the deviation of each time, by which those that are far off count for less."""
    width = _of_each(equations, spread)
    return width if equations.of_iterations else width * np.sqrt(np.maximum(off / (_FAR * width), 1.0))


def _of_each(equations: Equations, by_kind: Mapping[Any, float]) -> FloatArray:
    values = np.empty(len(equations))
    for kind, rows in equations.kinds.items():
        values[rows] = by_kind[kind]
    return values


def standard_errors(equations: Equations, terms: Terms, fitted: FloatArray) -> FloatArray:
    """Return the standard errors of constants by what was measured alone, as shares of them; infinite of 0.

    Errors are taken as they are, but none below the typical one, or what digits in a file hold: an equation that alone
    tells a constant is met exactly. What cannot be told apart may be any constants that are not negative.
    """
    times, free = equations.times(terms, fitted), len(equations) - fitted.size
    errors = np.full(fitted.size, math.inf)
    if free <= 0 or not times.all():
        return errors
    design, off = equations.design(terms) / times[:, None], np.abs(equations.seconds / times - 1)
    told = design.any(axis=0)
    weight = 1 / _deviations(equations, off, _spreads(equations, off, _LEAST_SPREAD))
    least = _spreads(equations, off, dict.fromkeys(Kind, _DIGITS))
    typical = _of_each(equations, least)
    scale = 1 / np.sqrt((design[:, told] ** 2).mean(axis=0))
    left, sizes, axes = np.linalg.svd(design[:, told] * scale * weight[:, None], full_matrices=False)
    apart = sizes > _ALIKE * sizes[0]
    influence = (axes[apart].T / sizes[apart]) @ left[:, apart].T * np.maximum(off, typical) * weight
    variance = (influence**2).sum(axis=1) * equations.overlap * len(design) / free
    size = fitted[told] / scale
    for axis in np.where(np.abs(axes[~apart]) > _ALIKE, axes[~apart], 0.0):
        reach = [
            float((size[less] / np.abs(axis[less])).min(initial=math.inf)) for less in (axis < 0, axis > 0)
        ]
        variance += np.where(axis == 0, 0.0, axis * max(reach)) ** 2
    errors[told] = np.divide(np.sqrt(variance), size, out=errors[told], where=size > 0)
    return errors


def stand_ins(
    equations: Equations, terms: Terms, belief: Timing, fitted: FloatArray
) -> tuple[FloatArray, tuple[int, ...]]:
    """Replace d1, d2, and d0 of iterations where they came out at nearly 0; return which they were, too.

    Each gets a part of its share of the prior, the largest with which the others, fitted anew, hardly fit worse. A
    fixed time is the prior's own: full batches say nothing of it, not even its share.
    """
    design, seconds, prior = equations.design(terms), equations.seconds, equations.in_order(terms, belief)
    scale = float(np.median((seconds - equations.offset) / np.maximum(design @ prior, 1e-300)))
    priced_too = (FIXED, KV, PREFILL) if equations.of_iterations else (KV, PREFILL)
    free = [index for index in priced_too if fitted[index] < _PARTS[-1] * scale * prior[index]]
    if not (free and prior[KV:].any()):
        return fitted, ()

    def misfit(constants: FloatArray) -> float:
        off = np.abs(equations.offset + design @ constants - seconds) / seconds
        return float(np.minimum(off, 1.0).mean())

    rest, others = design.copy(), prior.copy()
    rest[:, free] = others[free] = 0.0
    for part in _PARTS:
        priced = np.zeros(prior.size)
        priced[free] = part * scale * prior[free]
        if FIXED in free:
            priced[FIXED] = min(prior[FIXED], float(seconds.min()) / 2)
        paid = replace(equations, offset=equations.offset + design @ priced)
        priced += np.where(priced > 0, 0.0, _constants(paid, rest, others))
        if misfit(priced) <= misfit(fitted) * _HARDLY + _NO_MATTER:
            break
    return priced, tuple(free)


def agreeing(equations: Equations, envelope: bool) -> BoolArray:
    """Tell which equations a linear law can rest on, shape (n_equations,): of loads all.

    A fit through a low quantile or the median comes first, then all samples within some spreads of it, time and again.
    Below an `envelope` nothing is hidden: its spread is that of the samples below, and half of all may be too slow.
    """
    if not equations.of_iterations:
        return np.ones(len(equations), dtype=np.bool_)
    design, seconds = equations.design(Terms()), equations.seconds
    fitted = _through(_ENVELOPE if envelope else _MEDIAN, design, seconds)
    _, setting, count = np.unique(equations.group, return_inverse=True, return_counts=True)
    repeated = count[setting.reshape(-1)] >= _REPEATED
    distance = np.abs(1 - design @ fitted / seconds)
    kept = np.asarray(distance <= np.quantile(distance, _MOST, method="higher"))
    for _ in range(_STEPS):
        off = 1 - design @ fitted / seconds
        below = off[off < 0] if envelope and (off < 0).any() else off
        spread = _TO_SIGMA * float(np.median(np.abs(below)))
        limit = max((_AWAY if envelope else _SPREADS) * spread, _LEAST)
        within = np.asarray(np.abs(off) <= limit)
        gross = max(_AWAY * float(np.sqrt((off[kept] ** 2).mean())), _GROSS)
        if not envelope and (spread >= _CLOSE or within.mean() < _MOST):  # it is the formula that is rough
            within = np.asarray(np.abs(off) <= gross)
        elif not envelope:  # and so it is where a setting was measured time and again
            within |= repeated & (np.abs(off) <= gross)
        if (within == kept).all():
            break
        kept = within
        fitted = solve(design[kept], seconds[kept], seconds[kept])
    return kept


def _through(quantile: float, design: FloatArray, seconds: FloatArray) -> FloatArray:
    """Return constants of a law that a share of the times lies below."""
    deviation = seconds
    for _ in range(_STEPS):
        fitted = solve(design, seconds, deviation)
        times = design @ fitted
        off = seconds / times - 1  # what is far too fast is off by no more than 1
        weight = np.where(off > 0, quantile, 1 - quantile) / np.maximum(np.abs(off), _NEAR)
        deviation = times / np.sqrt(weight)
    return fitted
