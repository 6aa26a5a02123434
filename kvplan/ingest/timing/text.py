"""Where a timing comes from and how far to trust it, in sentences."""

from collections.abc import Iterable, Sequence
from pathlib import PurePath

import numpy as np

from kvplan.errors import UsageError
from kvplan.ingest.profile_text import Part, timing_text
from kvplan.ingest.timing.equations import Kind, Terms
from kvplan.ingest.timing.fit import Outlier, TimingFit
from kvplan.ingest.timing.prior import NOTHING, Prior
from kvplan.ingest.timing.samples import Measured
from kvplan.model import FloatArray, Knowledge, MeasuredRange, Origin
from kvplan.model.provenance import Range
from kvplan.units import format_percent, format_seconds, format_tokens
from kvplan.version import __version__

_NO_LAW = 0.5  # mean error of what a profile is refused for
_NAMED = 5  # outliers in a sentence
_EXACT = 5e-4  # no band that anybody could see
_LEAST_SHARE = (
    1e-3  # of the shortest time; a fixed time is more, and what is left over of 0 by a prior is less
)


def timing_part(fit: TimingFit, measured: Sequence[Measured], prior: Prior) -> Part:
    """The table [timing] of what was fitted to measurements.

    Raises
    ------
    UsageError
        The fit has no fixed time.

    Examples
    --------
    >>> from kvplan.ingest.timing.reading import parse_samples
    >>> from kvplan.ingest.timing.fit import fit_measured
    >>> from kvplan.model import Timing
    >>> rows = [f"{k},{p},{(10 + k / 1000 + p / 10):.3f}\\n" for k in (0, 4000, 20000) for p in (0, 50, 200)]
    >>> samples = parse_samples(["kv_tokens,prefill_tokens,iteration_ms\\n", *rows], "iterations.csv")
    >>> prior = Prior(Timing(0.02), "some-profile")
    >>> part = timing_part(fit_measured(samples, prior.timing), samples, prior)
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
    timing, rested = fit.timing, fit.equations.part(fit.kept)
    if (timing.d0 * rested.amounts[:, 0] < _LEAST_SHARE * rested.seconds).all():
        raise UsageError(
            f"{measured[0].source}: the fit leaves no fixed time of an iteration (d0 = 0), which every engine has; "
            "samples of small batches would tell"
        )
    for kind in fit.kinds:
        if kind is not Kind.TTFT and fit.error(kind) > _NO_LAW:
            raise UsageError(
                f"{measured[0].source}: no law of iterations has these times, {kind.value} is off by "
                f"{format_percent(fit.error(kind))} on average: do they contradict each other?"
            )
    body = timing_text(timing, fit.request_overhead_s, measured_range(fit))
    return Part("timing", tuple(_about(fit, measured, prior)), body, _origin(fit, measured, prior))


def measured_range(fit: TimingFit) -> MeasuredRange:
    """The range of what a timing rests on, and how long four fifths of it took against what was foretold."""
    band = fit.band
    exact = band is not None and max(abs(end - 1) for end in band) < _EXACT
    rested = fit.equations.part(fit.kept)
    peaks = rested.prefill_peak
    return MeasuredRange(
        _ends(rested.kv_tokens),
        None if np.isnan(peaks).any() else (0.0, float(peaks.max())),
        _ends(rested.sequences),
        None if exact else band,
    )


def _ends(values: FloatArray) -> Range:
    return float(values.min()), float(values.max())


def _origin(fit: TimingFit, measured: Sequence[Measured], prior: Prior) -> Origin:
    files = ", ".join(dict.fromkeys(PurePath(some.source).name for some in measured))
    if free := _free(fit, prior):
        return Origin(Knowledge.ESTIMATED, f"{files}; {free} is not told, and taken as 0")
    if not fit.from_prior:
        return Origin(Knowledge.MEASURED, files)
    return Origin(Knowledge.ESTIMATED, f"{files}; {_from_prior(fit, prior)}")


def _free(fit: TimingFit, prior: Prior) -> str:
    """What costs nothing by measurements alone: KV tokens, prompts or both."""
    return " and ".join(d for d in ("d1", "d2") if prior is NOTHING and getattr(fit.timing, d) == 0)


def _from_prior(fit: TimingFit, prior: Prior) -> str:
    return f"{', '.join(fit.from_prior)}: estimated after {prior.source}"


def _about(fit: TimingFit, measured: Sequence[Measured], prior: Prior) -> Iterable[str]:
    group = f" of {measured[0].group}" if measured[0].group else ""
    files = "; ".join(
        f"{s.source} ({s.format}{f', sha256 {s.sha256}' if s.sha256 else ''})" for s in measured
    )
    yield f"Iteration time{group}: fitted by kvplan {__version__} to {files}."
    yield accuracy(fit)
    if fit.outliers and not fit.envelope:
        more = f", and {len(fit.outliers) - _NAMED} more" if len(fit.outliers) > _NAMED else ""
        yield f"Outliers: {'; '.join(map(outlier_text, fit.outliers[:_NAMED]))}{more}."
    for note in notes(fit, measured, prior):
        yield f"Note: {note}."


def accuracy(fit: TimingFit) -> str:
    """How much was measured, how much of it left out, and the errors.

    `timing_part` has an example.
    """
    loads = np.unique(np.column_stack([fit.equations.source, fit.equations.line]), axis=0)
    of_iterations = Kind.ITERATION in fit.kinds
    left = "none left out"
    if fit.trimmed:
        left = f"{format_tokens(fit.trimmed)} left out ({format_percent(fit.trimmed_share)})"
    if fit.envelope:
        left += ": a lower envelope, since engines do not count recomputed prefill and only the fast samples are whole"
    errors = ". ".join(_error_of(kind, fit) for kind in fit.kinds)
    what = "sample" if of_iterations else "load"
    held_out = (
        "" if fit.held_out is not None else f"; the error of {what}s not fitted to cannot be told from so few"
    )
    return f"{_count(len(fit.equations) if of_iterations else len(loads), what)}, {left}. {errors}{held_out}."


def _error_of(kind: Kind, fit: TimingFit) -> str:
    of, what = ("", "samples") if kind is Kind.ITERATION else (f" of {kind.value}", "loads")
    held_out = fit.held_out_error(kind)
    rest = "" if held_out is None else f"; of {what} not fitted to {error_text(held_out)}"
    return f"Mean error{of} {error_text(fit.error(kind))}{rest}"


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


def notes(fit: TimingFit, measured: Sequence[Measured], prior: Prior) -> list[str]:
    """What rests on the prior, which terms were tried, warnings of the fit, and rows that gave nothing."""
    found = []
    if fit.from_prior:
        found.append(f"the measurements do not determine {_from_prior(fit, prior)}")
    if free := _free(fit, prior):
        found.append(f"the measurements do not tell {free}, taken as 0: --model and --gpu, or a --base, tell")
    if len(fit.considered) > 1:
        found.append(_terms(fit))
    found += dict.fromkeys(f"{some.source}: {note}" for some in measured for note in some.notes)
    left_out = dict.fromkeys((s.source, some) for s in measured for some in s.left_out)
    found += [
        f"{source}: {_count(some.count, 'row')} left out, {some.reason} (first: line {some.line})"
        for source, some in left_out
    ]
    return [*found, *fit.warnings]


def _terms(fit: TimingFit) -> str:
    """The best law of each sort, by its held-out error."""
    best: dict[tuple[str, ...], float] = {}
    for terms, error in fit.considered:
        best[terms.names] = min(error, best.get(terms.names, error))
    tried = ", ".join(f"{_sort(names)} {error_text(error)}" for names, error in best.items())
    return f"held-out error by terms of the law: {tried}; {_sort(fit.terms.names)} is the simplest that is no worse"


def _sort(names: Sequence[str]) -> str:
    beyond = names[len(Terms().names) :]
    return f"with {' and '.join(beyond)}" if beyond else "linear"
