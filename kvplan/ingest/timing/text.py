"""Where a timing comes from and how far to trust it, in sentences."""

from collections.abc import Iterator, Sequence
from pathlib import PurePath

import numpy as np

from kvplan.errors import UsageError
from kvplan.ingest.facts import Part, constants, facts, timing_table
from kvplan.ingest.timing.equations import AMOUNTS, Kind, Terms
from kvplan.ingest.timing.fit import Outlier, Prior, TimingFit
from kvplan.ingest.timing.samples import Measured
from kvplan.model import FloatArray, Knowledge, MeasuredRange, Origin
from kvplan.units import format_percent, format_seconds, format_tokens
from kvplan.version import __version__

_NO_LAW = 0.5  # mean error of what a profile is refused for
_NAMED = 5  # outliers in a sentence
_PRICED = ("d0", "d1", "d2")  # what every engine takes time for
_NO_FIGURE = 1.0  # relative standard error that says nothing
_DOUBTFUL = 0.2  # held-out error of which to warn
_MANY = 1 / 3  # of requests, that take longer than the fast ones say
_FEW = 2  # sequences of a batch that is as good as alone
_EXACT = 5e-4  # no band that anybody could see
_LEAST_SHARE = 1e-3  # of the shortest time: a fixed time is more, and what a prior leaves over of 0 is less


def timing_part(fit: TimingFit, measured: Sequence[Measured], prior: Prior) -> Part:
    """Write the table [timing] of what was fitted to measurements."""
    timing, rested, source = fit.timing, fit.equations.part(fit.kept), measured[0].source
    if (timing.d0 * rested.amounts[:, 0] < _LEAST_SHARE * rested.seconds).all():
        raise UsageError(
            f"{source}: the fit leaves no fixed time of an iteration (d0 = 0), which every engine has; "
            "samples of small batches would tell"
        )
    for kind in fit.kinds:
        if kind is not Kind.TTFT and fit.error(kind) > _NO_LAW:
            off = f"{kind.value} is off by {format_percent(fit.error(kind))} on average"
            raise UsageError(
                f"{source}: no law of iterations has these times, {off}: do they contradict each other?"
            )
    paths = list(dict.fromkeys(some.source for some in measured))
    table = timing_table(timing, fit.request_overhead_s, _measured_range(fit))
    origin = Origin(Knowledge.MEASURED, ", ".join(PurePath(path).name for path in paths))
    if unknown := [name for name in fit.undetermined if name in _PRICED or getattr(timing, name) > 0]:
        open_ = "estimated, scaled" if _is_scaled(fit) else f"not determined: {', '.join(unknown)}"
        told = f"{origin.source}; {open_}{_instead(prior)}"
        origin = Origin(Knowledge.ESTIMATED, told)
    digests = {s.source: f", sha256 {s.sha256}" if s.sha256 else "" for s in measured}
    listed = "; ".join(f"{s.source} ({s.format}{digests[s.source]})" for s in measured)
    group = f" of {measured[0].group}" if measured[0].group else ""
    about = [f"Iteration time{group}: fitted by kvplan {__version__} to {listed}."]
    if fit.outliers and not fit.envelope:
        more = f", and {len(fit.outliers) - _NAMED} more" if len(fit.outliers) > _NAMED else ""
        about.append(f"Outliers: {'; '.join(map(_outlier_text, fit.outliers[:_NAMED]))}{more}.")
    said = [accuracy(fit), *notes(fit, measured, prior)]
    for path in paths:  # a note of several files is one
        said = [note.removeprefix(f"{path}: ") for note in said]
    return Part(
        "timing",
        facts("timing", table, origin),
        PurePath(paths[0]).name + (f" and {len(paths) - 1} more" if len(paths) > 1 else ""),
        ", ".join(dict.fromkeys(some.format for some in measured)),
        constants(timing),
        tuple(about),
        tuple(dict.fromkeys(said)),
    )


def _measured_range(fit: TimingFit) -> MeasuredRange:
    """Tell the range of what a timing rests on, and how long four fifths of it took against what was foretold."""
    band, rested = fit.band, fit.equations.part(fit.kept)
    exact = band is not None and max(abs(end - 1) for end in band) < _EXACT
    peaks = rested.prefill_peak

    def ends(values: FloatArray) -> tuple[float, float]:
        return float(values.min()), float(values.max())

    return MeasuredRange(
        ends(rested.kv_tokens),
        None if np.isnan(peaks).any() else (0.0, float(peaks.max())),
        ends(rested.sequences),
        None if exact else band,
    )


def _instead(prior: Prior) -> str:
    return f", estimated after {prior.source}" if prior.timing is not None else ""


def _is_scaled(fit: TimingFit) -> bool:
    """Tell whether one load scaled all constants of an estimate."""
    of = fit.equations  # equal loads, run twice, are one
    return fit.spread is not None and len(np.unique([of.sequences, of.kv_tokens], axis=1).T) == 1


def _loads(fit: TimingFit) -> int:
    """Count the loads: of one line of a file there can be several groups."""
    of = fit.equations
    return len(np.unique(np.column_stack([of.source, of.line, of.group]), axis=0))


def _scaled(fit: TimingFit) -> Iterator[str]:
    """Say what one load leaves open, and which would tell: the one that is most unlike it."""
    if _is_scaled(fit):
        alone = fit.equations.sequences.max() < _FEW
        other = "one request at a time"
        if alone:
            other = "where the objective ends, which one low load does not foretell"
        yield (
            "estimated, scaled: one load moves all constants together; a run of the same requests, "
            f"{other}, would tell them apart (kvplan measure)"
        )


def _undetermined(fit: TimingFit, prior: Prior) -> Iterator[str]:
    if not fit.undetermined:
        return
    rested = fit.equations.part(fit.kept)
    texts = []
    for name, error in fit.undetermined.items():
        column = rested.columns.get(name)
        if column is not None and np.ptp(column) == 0:
            why = f"all samples have {column[0]:,.0f} {AMOUNTS[name]}"
        elif error < _NO_FIGURE:
            why = f"give or take {format_percent(error)}"
        else:
            why = "not at all" if getattr(fit.timing, name) else "taken as 0"
        texts.append(f"{name} ({why})")
    way_out = _instead(prior) or ": --model and --gpu, or a --base, tell more"
    yield f"the measurements do not determine {', '.join(texts)}{way_out}"


def _several(fit: TimingFit) -> Iterator[str]:
    """Say that many times are longer than the law has them."""
    if fit.envelope and fit.trimmed_share >= _MANY:
        slower = float(np.median((fit.equations.seconds / fit.fitted_s)[~fit.kept]))
        yield (
            f"{format_percent(fit.trimmed_share)} took longer than the law says, {slower:.2g} times in the median: are "
            "they of several replicas or deployments? Then give a file of each"
        )


def _doubts(fit: TimingFit) -> Iterator[str]:
    """Explain a large error: times contradict each other, or have other causes."""
    for kind in fit.kinds:
        error = fit.held_out_error(kind)
        error = fit.error(kind) if error is None else error
        if error >= _DOUBTFUL:
            why = "many outliers, or no such law of time"
            if kind is not Kind.ITERATION:
                why = "contradictions, or an engine with other limits than --base has (max_num_seqs, memory)"
            yield f"{kind.value} is off by {error:.0%} on average where it was not fitted to: {why}"


def accuracy(fit: TimingFit) -> str:
    """Say how much was measured, how much of it left out, and the errors; `timing_part` has an example."""
    left = "none left out"
    if fit.trimmed:
        left = f"{format_tokens(fit.trimmed)} left out ({format_percent(fit.trimmed_share)})"
    if fit.envelope:
        left += ": a lower envelope, since engines do not count recomputed prefill and only the fast samples are whole"
    what, number = ("sample", len(fit.equations)) if fit.equations.of_iterations else ("load", _loads(fit))
    errors = []
    for kind in fit.kinds:
        of = "" if kind is Kind.ITERATION else f" of {kind.value}"
        held_out = fit.held_out_error(kind)
        rest = "" if held_out is None else f"; of {what}s not fitted to {_error_text(held_out)}"
        errors.append(f"Mean error{of} {_error_text(fit.error(kind))}{rest}")
    unknown = f"; the error of {what}s not fitted to cannot be told from so few"
    return f"{_count(number, what)}, {left}. {'. '.join(errors)}{unknown if fit.held_out is None else ''}"


def notes(fit: TimingFit, measured: Sequence[Measured], prior: Prior) -> list[str]:
    """Say what rests on the prior, which terms were tried, what the fit warns of, and which rows gave nothing."""
    texts = [*_several(fit), *_scaled(fit), *_undetermined(fit, prior)]
    if fit.contradicts_itself:
        texts.append(
            f"the loads contradict each other: they are {fit.misfit:.2g} times as far from one law as their noise, and "
            "the band is as much wider; are they of one replica?"
        )
    if len(fit.considered) > 1:
        texts.append(_terms(fit))
    texts += dict.fromkeys(f"{some.source}: {note}" for some in measured for note in some.notes)
    for source, rows in dict.fromkeys((some.source, rows) for some in measured for rows in some.left_out):
        left_out = f"{_count(rows.count, 'row')} left out, {rows.reason} (first: line {rows.line})"
        texts.append(f"{source}: {left_out}")
    return [*texts, *_doubts(fit)]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _error_text(error: float) -> str:
    return "below 0.01%" if error < 1e-4 else format_percent(error)


def _outlier_text(outlier: Outlier) -> str:
    return (
        f"line {outlier.line} ({format_tokens(outlier.sequences)} sequences, {format_tokens(outlier.kv_tokens)} KV and "
        f"{format_tokens(outlier.prefill_tokens)} prefill tokens: "
        f"{format_seconds(outlier.seconds)} for {format_seconds(outlier.fitted_s)})"
    )


def _terms(fit: TimingFit) -> str:
    """Say which is the best law of each sort, by its held-out error."""
    best: dict[str, float] = {}
    for terms, error in fit.considered:
        best[_sort(terms)] = min(error, best.get(_sort(terms), error))
    tried = ", ".join(f"{sort} {_error_text(error)}" for sort, error in best.items())
    return f"held-out error by terms of the law: {tried}; {_sort(fit.terms)} is the simplest that is no worse"


def _sort(terms: Terms) -> str:
    beyond = terms.names[len(Terms().names) :]
    return f"with {' and '.join(beyond)}" if beyond else "linear"
