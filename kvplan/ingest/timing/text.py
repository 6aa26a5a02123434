"""Where a timing comes from and how far to trust it, in sentences."""

from collections.abc import Iterable, Sequence
from pathlib import PurePath

import numpy as np

from kvplan.errors import UsageError
from kvplan.ingest.profile_text import Part, timing_text
from kvplan.ingest.timing.fit import Outlier, TimingFit
from kvplan.ingest.timing.samples import Samples
from kvplan.model import FloatArray, Knowledge, MeasuredRange, Origin
from kvplan.model.provenance import Range
from kvplan.units import format_percent, format_seconds, format_tokens
from kvplan.version import __version__

_NAMED = 5  # outliers in a sentence
_BAND = (0.1, 0.9)  # of the samples took from so many to so many times as long as fitted
_EXACT = 5e-4  # no band that anybody could see
_LEAST_S = 1e-9  # what is left over of 0 by rounding is less


def timing_part(fit: TimingFit, samples: Sequence[Samples]) -> Part:
    """The table [timing] of what was fitted to samples.

    Raises
    ------
    UsageError
        The fit has no fixed time.

    Examples
    --------
    >>> from kvplan.ingest.timing.reading import parse_samples
    >>> from kvplan.ingest.timing.fit import fit_timing
    >>> rows = [f"{k},{p},{(10 + k / 1000 + p / 10):.3f}\\n" for k in (0, 4000, 20000) for p in (0, 50, 200)]
    >>> samples = parse_samples(["kv_tokens,prefill_tokens,iteration_ms\\n", *rows], "iterations.csv")
    >>> part = timing_part(fit_timing(*samples), samples)
    >>> print(part.body)
    [timing]
    d0 = "10 ms"
    d1 = "1 us"
    d2 = "100 us"
    d3 = 0
    measured = { kv_tokens = [0, 20_000], prefill_tokens = [0, 200], sequences = [1, 1] }
    >>> print(part.about[1])
    9 samples, none left out. Mean error below 0.01%; of samples not fitted to below 0.01%.
    """
    timing = fit.timing
    if timing.d0 < _LEAST_S:
        raise UsageError(
            f"{samples[0].source}: the fit leaves no fixed time of an iteration (d0 = 0), which every engine has; "
            "samples of small batches would tell"
        )
    body = timing_text(timing, measured=measured_range(fit, samples))
    origin = Origin(Knowledge.MEASURED, ", ".join(PurePath(s.source).name for s in samples))
    return Part("timing", tuple(_about(fit, samples)), body, origin)


def measured_range(fit: TimingFit, samples: Sequence[Samples]) -> MeasuredRange:
    """The range of the samples that a timing rests on, and how long four fifths of them took against it.

    Averages over many iterations, which are not whole, do not say how much prefill any of them computed.
    """
    low, high = np.quantile(fit.measured_s[fit.kept] / fit.fitted_s[fit.kept], _BAND).tolist()
    kept = {
        name: _ends(np.concatenate([getattr(s, name) for s in samples])[fit.kept])
        for name in ("kv_tokens", "prefill_tokens", "sequences")
    }
    if not all((s.prefill_tokens % 1 == 0).all() for s in samples):
        del kept["prefill_tokens"]
    exact = max(abs(low - 1), abs(high - 1)) < _EXACT
    return MeasuredRange(**kept, band=None if exact else (low, high))


def _ends(values: FloatArray) -> Range:
    return float(values.min()), float(values.max())


def _about(fit: TimingFit, samples: Sequence[Samples]) -> Iterable[str]:
    group = f" of {samples[0].group}" if samples[0].group else ""
    files = "; ".join(f"{s.source} ({s.format}{f', sha256 {s.sha256}' if s.sha256 else ''})" for s in samples)
    yield f"Iteration time{group}: fitted by kvplan {__version__} to {files}."
    yield accuracy(fit)
    if fit.outliers and not fit.envelope:
        more = f", and {len(fit.outliers) - _NAMED} more" if len(fit.outliers) > _NAMED else ""
        yield f"Outliers: {'; '.join(map(outlier_text, fit.outliers[:_NAMED]))}{more}."
    for note in notes(fit, samples):
        yield f"Note: {note}."


def accuracy(fit: TimingFit) -> str:
    """How many samples, how many of them left out, and the errors.

    `timing_part` has an example.
    """
    left = "none left out"
    if fit.trimmed:
        left = f"{format_tokens(fit.trimmed)} left out ({format_percent(fit.trimmed_share)})"
    if fit.envelope:
        left += ": a lower envelope, since engines do not count recomputed prefill and only the fast samples are whole"
    held_out = "the error of samples not fitted to cannot be told from so few"
    if fit.held_out_error is not None:
        held_out = f"of samples not fitted to {error_text(fit.held_out_error)}"
    return f"{_count(fit.samples, 'sample')}, {left}. Mean error {error_text(fit.error)}; {held_out}."


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def error_text(error: float) -> str:
    """A relative error, not finer than it matters."""
    return "below 0.01%" if error < 1e-4 else format_percent(error)


def outlier_text(outlier: Outlier) -> str:
    """One sample that is off, and why."""
    against = f", contradicts line {outlier.contradicts}" if outlier.contradicts is not None else ""
    return (
        f"line {outlier.line} ({format_tokens(outlier.sequences)} sequences, {format_tokens(outlier.kv_tokens)} KV and "
        f"{format_tokens(outlier.prefill_tokens)} prefill tokens: "
        f"{format_seconds(outlier.seconds)} for {format_seconds(outlier.fitted_s)}{against})"
    )


def notes(fit: TimingFit, samples: Sequence[Samples]) -> list[str]:
    """Warnings of the fit, and rows that gave no sample."""
    left_out = dict.fromkeys((s.source, some) for s in samples for some in s.left_out)
    rows = [
        f"{source}: {_count(some.count, 'row')} left out, {some.reason} (first: line {some.line})"
        for source, some in left_out
    ]
    return [*rows, *fit.warnings]
