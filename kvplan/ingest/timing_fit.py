"""Iteration time from samples: τ = d0 + d1·K + d2·P + d3·B, no term negative, in spite of samples that are off.

Least squares of the relative error, over the samples that agree: least trimmed squares first (the half, or three
quarters, of the samples that one fit explains best), then all samples within a few spreads of it. Where prefill is
hidden (`Samples.hidden_prefill`) a sample can only be too slow, so the fit is a lower envelope: the spread is that of
the samples below, and those above are cut off sooner.

References
----------
Rousseeuw, Van Driessen, Computing LTS regression for large data sets (2006): concentration steps.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvplan.errors import UsageError
from kvplan.ingest.samples import Samples
from kvplan.model import FloatArray, IntArray, Timing

FOLDS = 5
_TERMS = ("d0", "d1", "d2", "d3")
_COLUMNS = ("", "KV tokens", "prefill tokens", "sequences")
_STARTS, _START_SIZE, _SUBSAMPLE = 40, 8, 600
_STEPS = 30
_ABOVE_ENVELOPE, _AWAY = 2.0, 3.0  # spreads from the fit at which a sample is left out
_LEAST_KEPT = 0.5
_TO_SIGMA = 1.4826  # of a normal distribution's median absolute deviation
_NARROW = 0.25  # spread of a column, against its middle, below which it is as good as constant
_TOGETHER = 0.95  # R² of one column on the others
_FASTER = 0.05  # share by which more work may be faster without being named

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Outlier:
    """A sample that the fit leaves out, or that contradicts others.

    Attributes
    ----------
    source : str
    line : int
    kv_tokens, prefill_tokens, sequences : float
    seconds, fitted_s : float
        Measured, and what the fit says.
    faster_than : int or None
        Line of a sample that did no more of anything and took longer.
    """

    source: str
    line: int
    kv_tokens: float
    prefill_tokens: float
    sequences: float
    seconds: float
    fitted_s: float
    faster_than: int | None


@dataclass(frozen=True)
class TimingFit:
    """A timing, and how far to trust it.

    Attributes
    ----------
    timing : Timing
    samples : int
    trimmed : int
        Samples the fit leaves out.
    envelope : bool
        Whether it is a lower envelope.
    error : float
        Mean of |measured − fitted| / measured over the samples kept.
    held_out_error : float or None
        The same where the timing was fitted without the samples it is asked about, a fold at a time; samples of equal
        K, P and B are in one fold. None with fewer than two such groups for each term.
    held_out_error_all : float or None
        The same over all samples, those left out too.
    outliers : tuple of Outlier
        What was trimmed or contradicts other samples, the furthest off first.
    warnings : tuple of str
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
    held_out_error_all: float | None
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
    """Fit an iteration time to samples, of one replica.

    Parameters
    ----------
    *samples : Samples
        From one file or several.

    Raises
    ------
    UsageError
        Fewer samples than terms that vary.

    Examples
    --------
    >>> from kvplan.ingest.samples import parse_samples
    >>> rows = [f"{k},{p},{(10 + k / 1000 + p / 10):.3f}\\n" for k in (0, 4000, 20000) for p in (0, 50, 200)]
    >>> fit = fit_timing(*parse_samples(["kv_tokens,prefill_tokens,iteration_ms\\n", *rows], "iterations.csv"))
    >>> [round(value, 9) for value in (fit.timing.d0, fit.timing.d1, fit.timing.d2)]
    [0.01, 1e-06, 0.0001]
    >>> fit.trimmed, fit.warnings
    (0, ('every sample has 1 sequences: d3 is taken as 0, what it is belongs to d0',))
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
    if seconds.size < varying.sum():
        raise UsageError(
            f"{samples[0].source}: {seconds.size} samples of iterations; at least {varying.sum()} are needed to tell "
            f"{', '.join(name for name, seen in zip(_TERMS, varying, strict=True) if seen)} apart"
        )
    columns = design[:, varying]
    found, kept = _robust(columns, seconds, envelope)
    coefficients = np.zeros(len(_TERMS))
    coefficients[varying] = found
    fitted = design @ coefficients
    off = np.abs(seconds - fitted) / seconds
    held_out = _held_out(columns, seconds, envelope)
    return TimingFit(
        timing=Timing(*coefficients.tolist()),
        samples=seconds.size,
        trimmed=int((~kept).sum()),
        envelope=envelope,
        error=float(off[kept].mean()),
        held_out_error=None if held_out is None else float(held_out[kept].mean()),
        held_out_error_all=None if held_out is None else float(held_out.mean()),
        outliers=_outliers(samples, design, seconds, fitted, kept, envelope),
        warnings=tuple(_warnings(design, seconds, kept, varying)),
        measured_s=seconds,
        fitted_s=fitted,
        kept=kept,
    )


def _least_squares(design: FloatArray, seconds: FloatArray, *, clipped: bool = True) -> FloatArray:
    """Coefficients of least relative error, shape (n_terms,); none negative if `clipped`."""
    from scipy.optimize import nnls

    relative = design / seconds[:, None]
    scale = np.sqrt((relative**2).mean(axis=0))
    scale[scale == 0] = 1.0
    # The triangle holds all that matters of any number of rows.
    triangle = np.linalg.qr(np.column_stack([relative / scale, np.ones_like(seconds)]), mode="r")
    left, right = triangle[:, :-1], triangle[:, -1]
    solution = nnls(left, right)[0] if clipped else np.linalg.lstsq(left, right, rcond=None)[0]
    return np.asarray(solution / scale)


def _robust(design: FloatArray, seconds: FloatArray, envelope: bool) -> tuple[FloatArray, BoolArray]:
    """Coefficients, and the samples they rest on."""

    def residuals(coefficients: FloatArray) -> FloatArray:
        return np.asarray((seconds - design @ coefficients) / seconds)

    coefficients = _least_trimmed(design, seconds, 0.5 if envelope else 0.75)
    kept = np.ones(seconds.size, dtype=np.bool_)
    for _ in range(_STEPS):
        off = residuals(coefficients)
        within = _within(off, envelope)
        if (within == kept).all():
            break
        kept = within
        coefficients = _least_squares(design[kept], seconds[kept])
    return coefficients, kept


def _within(off: FloatArray, envelope: bool) -> BoolArray:
    """Which relative residuals are small, against their spread below the fit or around it; at least half of them."""
    below = off[off < 0]
    spread = _TO_SIGMA * float(np.median(np.abs(below if envelope and below.size else off)))
    spread = max(spread, 1e-9)  # exact samples
    excess = np.maximum(off / (_ABOVE_ENVELOPE if envelope else _AWAY), -off / _AWAY) / spread
    return np.asarray(excess <= max(1.0, float(np.quantile(excess, _LEAST_KEPT, method="higher"))))


def _least_trimmed(design: FloatArray, seconds: FloatArray, share: float) -> FloatArray:
    """Coefficients with the least sum of the smallest squared residuals, over many starts."""
    n = seconds.size
    every = np.unique(np.linspace(0, n - 1, min(n, _SUBSAMPLE)).astype(np.int64))
    rng = np.random.default_rng(0)  # the same samples give the same timing

    def concentrated(
        rows: IntArray, pool: IntArray, steps: int, start: FloatArray | None
    ) -> tuple[float, FloatArray]:
        size = max(design.shape[1] + 1, round(share * pool.size))
        found = _least_squares(design[rows], seconds[rows]) if start is None else start
        total = np.inf
        for _ in range(steps):
            squares = ((seconds[pool] - design[pool] @ found) / seconds[pool]) ** 2
            order = np.argsort(squares, kind="stable")[:size]
            if squares[order].sum() >= total * (1 - 1e-12):
                break
            total = float(squares[order].sum())
            found = _least_squares(design[pool[order]], seconds[pool[order]])
        return total, found

    size = min(every.size, _START_SIZE)
    starts = [every, *(rng.choice(every, size, replace=False) for _ in range(_STARTS))]
    _, best = min((concentrated(rows, every, _STEPS, None) for rows in starts), key=lambda pair: pair[0])
    return concentrated(every, np.arange(n), _STEPS, best)[1]


def _held_out(design: FloatArray, seconds: FloatArray, envelope: bool) -> FloatArray | None:
    """Relative error of every sample under a fit of the other folds, shape (n_samples,)."""
    _, group = np.unique(design, axis=0, return_inverse=True)
    group = group.reshape(-1)
    if group.max() + 1 < 2 * design.shape[1]:
        return None
    off = np.empty(seconds.size)
    for fold in range(FOLDS):
        out = group % FOLDS == fold
        if out.any():
            found, _ = _robust(design[~out], seconds[~out], envelope)
            off[out] = np.abs(seconds[out] - design[out] @ found) / seconds[out]
    return off


def _outliers(
    samples: tuple[Samples, ...],
    design: FloatArray,
    seconds: FloatArray,
    fitted: FloatArray,
    kept: BoolArray,
    envelope: bool,
) -> tuple[Outlier, ...]:
    sources = np.repeat(np.arange(len(samples)), [s.seconds.size for s in samples])
    lines = np.concatenate([s.line for s in samples])
    slower = np.full(seconds.size, -1) if envelope else _faster_with_more(design, seconds, fitted)
    named = np.flatnonzero(~kept | (slower >= 0))
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
            faster_than=int(lines[slower[i]]) if slower[i] >= 0 else None,
        )
        for i in order
    )


def _faster_with_more(design: FloatArray, seconds: FloatArray, fitted: FloatArray) -> IntArray:
    """For each sample one that did no more of anything and took longer, where the fit sides with that; else −1."""
    points, group = np.unique(design, axis=0, return_inverse=True)
    group = group.reshape(-1)
    slower = np.full(seconds.size, -1, dtype=np.int64)
    if len(points) > _SUBSAMPLE:
        return slower  # iterations of a log: contradictions are noise there
    middle = np.array([np.median(seconds[group == g]) for g in range(len(points))])
    expected = np.array([fitted[group == g][0] for g in range(len(points))])
    off = np.abs(np.log(middle / np.maximum(expected, 1e-12)))
    for g, point in enumerate(points):
        less = (points <= point).all(axis=1) & (middle * (1 - _FASTER) > middle[g]) & (off < off[g])
        if less.any():
            worst = int(np.argmax(np.where(less, middle, 0)))
            slower[group == g] = int(np.flatnonzero(group == worst)[0])
    return slower


def _warnings(design: FloatArray, seconds: FloatArray, kept: BoolArray, varying: BoolArray) -> list[str]:
    """What the kept samples cannot tell."""
    found = []
    telling = []
    for index in (1, 2, 3):
        name, what, column = _TERMS[index], _COLUMNS[index], design[kept, index]
        low, middle, high = np.quantile(column, (0.05, 0.5, 0.95))
        if np.ptp(column) == 0:
            owner = "" if column[0] == 0 else ", what it is belongs to d0"
            found.append(f"every sample has {column[0]:g} {what}: {name} is taken as 0{owner}")
        elif middle > 0 and high - low < _NARROW * middle:
            found.append(
                f"nine in ten samples have {low:.4g} to {high:.4g} {what}: too narrow a range to tell {name} from d0"
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
            found.append(f"{name} would be {value:.3g} s, below 0; taken as 0")
    return found
