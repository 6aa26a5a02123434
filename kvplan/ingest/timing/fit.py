"""Iteration time from samples: τ = d0 + d1·K + d2·P + d3·B, no term negative, in spite of samples that are off.

Least squares of the relative error, over the samples that agree: least trimmed squares first (the share of the samples
that one fit explains best), then all samples within some spreads of it.

- Where prefill is hidden (`Samples.hidden_prefill`) a sample can only be too slow, and most may be. So the fit is a
  lower envelope: it starts from the better half, the spread is that of the samples below, those above are cut off soon.
- Elsewhere the samples are right but for a few, and it is the formula that is approximate (small prompts do not fill
  a GPU, attention grows faster than the prompt). So only what is grossly off is left out, and what repeated
  measurements contradict: more work in less time.

References
----------
Rousseeuw, Van Driessen, Computing LTS regression for large data sets (2006): concentration steps.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvplan.errors import UsageError
from kvplan.ingest.timing.samples import Samples
from kvplan.model import FloatArray, IntArray, Timing

FOLDS = 5
_TERMS = ("d0", "d1", "d2", "d3")
_COLUMNS = ("", "KV tokens", "prefill tokens", "sequences")
_STARTS, _FINISHED, _START_SIZE, _SUBSAMPLE = 40, 4, 8, 600
_STEPS = 30
_ABOVE_ENVELOPE, _AWAY = 2.0, 3.0  # spreads from the fit at which a sample is left out
_GROSS = 0.6  # relative error at which a measured sample may be left out
_CLOSE, _SPREADS = (
    0.04,
    6.0,
)  # spread of samples that lie close to the formula, and how many of them are too far
_FEWEST = 2  # samples
_DOUBTFUL = 0.2  # held-out error of which to warn
_HALF, _MOST = 0.5, 0.9  # share of the samples that agree: at least, of an envelope; of measurements
_TO_SIGMA = 1.4826  # of a normal distribution's median absolute deviation
_NARROW = 0.25  # spread of a column, against its middle, below which it is as good as constant
_TOGETHER = 0.95  # R² of one column on the others
_MORE, _LESS_TIME, _NOISES = 1.5, 0.05, 4.0  # a contradiction: so much more work, in so much less time

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Outlier:
    """A sample that the fit leaves out, or that contradicts others.

    `contradicts` is the line of a repeated measurement that did less in more time, or more in less.
    """

    source: str
    line: int
    kv_tokens: float
    prefill_tokens: float
    sequences: float
    seconds: float
    fitted_s: float
    contradicts: int | None


@dataclass(frozen=True)
class TimingFit:
    """A timing, and how far to trust it.

    Attributes
    ----------
    trimmed
        Samples the fit leaves out.
    envelope
        Whether it is a lower envelope.
    error
        Mean of |measured − fitted| / measured over the samples kept.
    held_out_error
        The same where the timing was fitted without the samples it is asked about, a fold at a time; samples of equal
        K, P and B are in one fold. None with fewer than two such groups for each term.
    held_out_median
        The same, its median over all samples, those left out too.
    outliers
        What was trimmed or contradicts other samples, the furthest off first.
    warnings
        What the samples cannot tell.
    measured_s, fitted_s : ndarray, shape (n_samples,), seconds
    kept : ndarray of bool, shape (n_samples,)
    """

    timing: Timing
    samples: int
    trimmed: int
    envelope: bool
    error: float
    held_out_error: float | None
    held_out_median: float | None
    outliers: tuple[Outlier, ...]
    warnings: tuple[str, ...]
    measured_s: FloatArray
    fitted_s: FloatArray
    kept: BoolArray

    @property
    def trimmed_share(self) -> float:
        """Share of the samples that the fit leaves out."""
        return self.trimmed / self.samples


def fit_timing(*samples: Samples) -> TimingFit:
    """Fit an iteration time to samples of one replica, from one file or several.

    Raises
    ------
    UsageError
        Fewer samples than terms that vary.

    Examples
    --------
    >>> from kvplan.ingest.timing.reading import parse_samples
    >>> rows = [f"{k},{p},{(10 + k / 1000 + p / 10):.3f}\\n" for k in (0, 4000, 20000) for p in (0, 50, 200)]
    >>> fit = fit_timing(*parse_samples(["kv_tokens,prefill_tokens,iteration_ms\\n", *rows], "iterations.csv"))
    >>> [round(value, 9) for value in (fit.timing.d0, fit.timing.d1, fit.timing.d2)]
    [0.01, 1e-06, 0.0001]
    >>> fit.trimmed, fit.warnings
    (0, ('all samples have 1 sequences: d3 is taken as 0, what it is belongs to d0',))
    """
    design = np.column_stack(
        [
            np.concatenate([np.ones_like(s.seconds) for s in samples]),
            np.concatenate([s.kv_tokens for s in samples]),
            np.concatenate([s.prefill_tokens for s in samples]),
            np.concatenate([s.sequences for s in samples]),
        ]
    )
    seconds = np.concatenate([s.seconds for s in samples])
    envelope = any(s.hidden_prefill for s in samples)
    varying = np.array([True, *(np.ptp(column) > 0 for column in design.T[1:])])
    if seconds.size < max(varying.sum(), _FEWEST):
        raise UsageError(
            f"{samples[0].source}: {seconds.size} samples of iterations; at least {varying.sum()} are needed to tell "
            f"{', '.join(name for name, seen in zip(_TERMS, varying, strict=True) if seen)} apart"
        )
    columns = design[:, varying]
    opposed = _contradicted(columns, seconds)
    found, kept = _robust(columns[opposed < 0], seconds[opposed < 0], envelope)
    used = np.zeros(seconds.size, dtype=np.bool_)
    used[opposed < 0] = kept
    coefficients = np.zeros(len(_TERMS))
    coefficients[varying] = found
    timing = Timing(*coefficients.tolist())
    fitted = timing(*design.T[1:])
    off = np.abs(seconds - fitted) / seconds
    held_out = _held_out(columns, seconds, opposed < 0, envelope)
    return TimingFit(
        timing=timing,
        samples=seconds.size,
        trimmed=int((~used).sum()),
        envelope=envelope,
        error=float(off[used].mean()),
        held_out_error=None if held_out is None else float(held_out[used].mean()),
        held_out_median=None if held_out is None else float(np.median(held_out)),
        outliers=_outliers(samples, design, seconds, fitted, used, opposed),
        warnings=(*_doubts(held_out, used), *_warnings(design, seconds, used, varying)),
        measured_s=seconds,
        fitted_s=fitted,
        kept=used,
    )


def _least_squares(design: FloatArray, seconds: FloatArray, *, clipped: bool = True) -> FloatArray:
    """Coefficients of least relative error, shape (n_terms,); none negative if `clipped`."""
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    relative = design / seconds[:, None]
    scale = np.sqrt((relative**2).mean(axis=0))
    scale[scale == 0] = 1.0
    # The triangle holds all that matters of any number of rows.
    rows = np.column_stack([relative / scale, np.ones_like(seconds)])
    triangle: Any = np.linalg.qr(rows, mode="r")
    left, right = triangle[:, :-1], triangle[:, -1]
    solution = nnls(left, right)[0] if clipped else np.linalg.lstsq(left, right, rcond=None)[0]
    return np.asarray(solution / scale)


def _robust(design: FloatArray, seconds: FloatArray, envelope: bool) -> tuple[FloatArray, BoolArray]:
    """Coefficients, and the samples they rest on."""

    def residuals(coefficients: FloatArray) -> FloatArray:
        return np.asarray((seconds - design @ coefficients) / seconds)

    share = _HALF if envelope else _MOST
    coefficients = _least_trimmed(design, seconds, share)
    distance = np.abs(residuals(coefficients))
    kept = np.asarray(distance <= np.quantile(distance, share, method="higher"))
    for _ in range(_STEPS):
        off = residuals(coefficients)
        within = _near_envelope(off) if envelope else _not_grossly_off(off, kept)
        if (within == kept).all():
            break
        kept = within
        coefficients = _least_squares(design[kept], seconds[kept])
    return coefficients, kept


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
            found = _least_squares(design[pool[order]], seconds[pool[order]])
        return total, found

    size = min(every.size, _START_SIZE)
    starts = [every, *(rng.choice(every, size, replace=False) for _ in range(_STARTS))]
    begun = [concentrated(_least_squares(design[rows], seconds[rows]), every, 2) for rows in starts]
    begun.sort(key=lambda pair: pair[0])
    best = min(
        (concentrated(found, every, _STEPS) for _, found in begun[:_FINISHED]), key=lambda pair: pair[0]
    )
    return concentrated(best[1], np.arange(n), _STEPS)[1]


def _held_out(
    design: FloatArray, seconds: FloatArray, usable: BoolArray, envelope: bool
) -> FloatArray | None:
    """Relative error of every sample under a fit of the other folds, shape (n_samples,)."""
    _, group = np.unique(design, axis=0, return_inverse=True)
    group = group.reshape(-1)
    if group.max() + 1 < 2 * design.shape[1]:
        return None
    off = np.empty(seconds.size)
    for fold in range(FOLDS):
        out = group % FOLDS == fold
        if out.any():
            rest = ~out & usable
            found, _ = _robust(design[rest], seconds[rest], envelope)
            off[out] = np.abs(seconds[out] - design[out] @ found) / seconds[out]
    return off


def _outliers(
    samples: tuple[Samples, ...],
    design: FloatArray,
    seconds: FloatArray,
    fitted: FloatArray,
    kept: BoolArray,
    opposed: IntArray,
) -> tuple[Outlier, ...]:
    sources = np.repeat(np.arange(len(samples)), [s.seconds.size for s in samples])
    lines = np.concatenate([s.line for s in samples])
    named = np.flatnonzero(~kept)
    order = named[
        np.argsort(-np.abs(np.log(seconds[named] / np.maximum(fitted[named], 1e-12))), kind="stable")
    ]
    return tuple(
        Outlier(
            source=samples[sources[i]].source,
            line=int(lines[i]),
            kv_tokens=float(design[i, 1]),
            prefill_tokens=float(design[i, 2]),
            sequences=float(design[i, 3]),
            seconds=float(seconds[i]),
            fitted_s=float(fitted[i]),
            contradicts=int(lines[opposed[i]]) if opposed[i] >= 0 else None,
        )
        for i in order
    )


def _contradicted(design: FloatArray, seconds: FloatArray) -> IntArray:
    """For each sample that contradicts others: one that did less in more time, or more in less; else −1.

    Only where repetitions tell how much is noise. Of two that contradict each other the one goes that contradicts
    more of the others, then the fast one.
    """
    points, first, group = np.unique(design, axis=0, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    opposed = np.full(seconds.size, -1, dtype=np.int64)
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


def _doubts(held_out: FloatArray | None, used: BoolArray) -> list[str]:
    """What a large error says: that samples contradict each other, or that time has another form."""
    error = 0.0 if held_out is None else float(held_out[used].mean())
    if error < _DOUBTFUL:
        return []
    return [f"samples not fitted to are off by {error:.0%} on average: many outliers, or no such law of time"]


def _warnings(design: FloatArray, seconds: FloatArray, kept: BoolArray, varying: BoolArray) -> list[str]:
    """What the kept samples cannot tell."""
    found = []
    telling = []
    for index in (1, 2, 3):
        name, what, column = _TERMS[index], _COLUMNS[index], design[kept, index]
        low, middle, high = np.quantile(column, (0.05, 0.5, 0.95))
        if np.ptp(column) == 0:
            owner = "" if column[0] == 0 else ", what it is belongs to d0"
            found.append(f"all samples have {column[0]:g} {what}: {name} is taken as 0{owner}")
        elif middle > 0 and high - low < _NARROW * middle:
            found.append(
                f"nine in ten samples have {low:,.0f} to {high:,.0f} {what}: too narrow a range to tell {name} from d0"
            )
        else:
            telling.append(index)
    for index in telling:
        others = np.column_stack([np.ones(kept.sum()), *(design[kept, i] for i in telling if i != index)])
        column = design[kept, index]
        left = column - others @ np.linalg.lstsq(others, column, rcond=None)[0]
        if left.var() < (1 - _TOGETHER) * column.var():
            rest = " and ".join(_COLUMNS[i] for i in telling if i != index)
            found.append(
                f"{_COLUMNS[index]} move with {rest}: {_TERMS[index]} is hard to tell from the others"
            )
    free = _least_squares(design[kept][:, varying], seconds[kept], clipped=False)
    for name, value, size in zip(
        np.array(_TERMS)[varying], free, design[kept][:, varying].mean(axis=0), strict=True
    ):
        if value * size < -0.01 * seconds[kept].mean():
            found.append(f"{name} would be {value * 1e6:.3g} us, below 0; taken as 0")
    return found
