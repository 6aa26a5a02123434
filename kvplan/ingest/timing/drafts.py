"""Cost of drafts, from runs with different numbers of them: an iteration takes τ + e_c + k·e0 + v·k·B (theory §11).

Of each run are known the number k of drafts, the tokens that an iteration emits on average, the time between two tokens
of a request, and how many requests B ran. The time of an iteration is the time between tokens, times the tokens. τ is
that of a run without drafts, of as many requests.
"""

import csv
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.cells import Record, csv_rows, names
from kvplan.ingest.facts import Part, duration, facts
from kvplan.ingest.reader import Beginning
from kvplan.ingest.text_file import lines_of
from kvplan.ingest.timing.reading import DRAFTS, EMITTED, listed, tells_of_drafts
from kvplan.model import FloatArray, Knowledge, Origin
from kvplan.model.drafts import Drafts
from kvplan.ranges import MOST_DRAFTS
from kvplan.units import format_percent, format_seconds
from kvplan.version import __version__

_BETWEEN = {**names("tpotms itlms meantpotms meanitlms", 1e-3), **names("tpots itls")}
_BATCH = names("sequences concurrency maxconcurrency batch batchsize running")
_GROUP = "method"


class DraftRun(NamedTuple):
    """A run: drafts, tokens of an iteration, seconds between tokens, requests at a time."""

    drafts: int
    emitted: float
    between_s: float
    sequences: float

    @property
    def iteration_s(self) -> float:
        return self.emitted * self.between_s


class DraftRuns(NamedTuple):
    """Those of one file and one method of drafting, ordered."""

    source: str
    sha256: str
    method: str
    runs: tuple[DraftRun, ...]


class DraftsFit(NamedTuple):
    """Fitted costs, and errors of the times between tokens: of the fit, and of each run by the others.

    `drafts.tokens` is the number with the least time between tokens, among the runs of the most requests.
    """

    measured: DraftRuns
    drafts: Drafts
    error: float
    held_out_error: float
    tells_verifying: bool


def read_drafts(path: Path, method: str | None = None) -> DraftRuns:
    """Read the runs of a table with the columns drafts, mean_acceptance_length and tpot_ms.

    A column `sequences` says how many requests ran at once, 1 without it; `method` parts ways of drafting. Rows without
    drafts belong to all of them.
    """
    with lines_of(path) as lines:
        try:
            start = Beginning.of_line(next(iter(lines), ""))
            if not tells_of_drafts(start):
                raise UsageError(
                    f"{path}: no table of runs with drafts: no columns drafts and mean_acceptance_length"
                )
            numbered = enumerate(lines, 2)
            records = csv_rows(str(path), start.names, numbered, start.delimiter)
            rows = [(record.text(_GROUP), _run(record)) for record in records]
        except csv.Error as error:
            raise UsageError(f"{path}: not CSV: {error}; is a quote open?") from None
    methods = sorted({name for name, run in rows if run.drafts})
    chosen = methods[0] if method is None and len(methods) == 1 else method
    if chosen not in methods:
        several = f"{len(methods)} ways of drafting; choose one with --group"
        wrong = several if method is None else repr(method)
        raise UsageError(f"{path}: {wrong}; there are: {listed(methods) or 'none'}")
    runs = tuple(sorted(run for name, run in rows if name == chosen or not run.drafts))
    plain = {run.sequences for run in runs if not run.drafts}
    if missing := sorted({run.sequences for run in runs} - plain):
        at_a_time = f"{missing[0]:g} requests at a time"
        raise UsageError(f"{path}: no run without drafts of {at_a_time}, to compare with")
    return DraftRuns(str(path), lines.sha256, chosen, runs)


def _run(row: Record) -> DraftRun:
    drafts, emitted = row.number(DRAFTS), row.number(EMITTED)
    if drafts != int(drafts) or drafts > MOST_DRAFTS:
        message = f"{drafts:g}; must be a whole number, at most {MOST_DRAFTS}"
        raise ProfileError(row.source, message, key="drafts", line=row.line)
    if not 1 <= emitted <= drafts + 1:
        message = f"{emitted:g}; must be from 1 to {drafts + 1:g}, with {drafts:g} drafts"
        raise ProfileError(row.source, message, key="mean_acceptance_length", line=row.line)
    between_s, sequences = row.number(_BETWEEN), row.number(_BATCH, default=1.0)
    if not (between_s > 0 and sequences > 0):
        raise ProfileError(row.source, "times and sequences must be more than 0", line=row.line)
    return DraftRun(int(drafts), emitted, between_s, sequences)


def fit_drafts(measured: DraftRuns) -> DraftsFit:
    """Fit by least squares of the relative error of iterations, no term below 0; with one batch e0 has v·B in it.

    Examples
    --------
    >>> runs = [DraftRun(k, e, (8 + k + 0.01 * k * b) / 1e3 / e, b) for k, e in ((1, 1.7), (3, 2.5)) for b in (1, 50)]
    >>> plain = [DraftRun(0, 1.0, 7e-3, b) for b in (1, 50)]
    >>> drafts = fit_drafts(DraftRuns("", "", "", (*plain, *runs))).drafts
    >>> [round(cost * 1e3, 6) for cost in (drafts.overhead_s, drafts.draft_s, drafts.verify_s)], drafts.accepted
    ([1.0, 1.0, 0.01], (0.7, 0.4, 0.4))
    """
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    plain = {run.sequences: run.between_s for run in measured.runs if not run.drafts}
    runs = [run for run in measured.runs if run.drafts]
    tells = len({run.sequences for run in runs}) > 1

    def terms(run: DraftRun) -> list[float]:
        return [1.0, run.drafts, run.drafts * run.sequences * tells]

    def costs(some: Sequence[DraftRun]) -> FloatArray:
        """Fit e_c, e0 and v, seconds."""
        seconds = np.array([run.iteration_s for run in some])
        more = seconds - [plain[run.sequences] for run in some]
        return np.asarray(nnls(np.array(list(map(terms, some))) / seconds[:, None], more / seconds)[0])

    def off(run: DraftRun, fitted: FloatArray) -> float:
        between_s = (plain[run.sequences] + float(fitted @ terms(run))) / run.emitted
        return abs(between_s / run.between_s - 1)

    fitted = costs(runs)
    rests = [(run, [other for other in runs if other != run]) for run in runs]
    held_out = [off(run, costs(rest)) for run, rest in rests if len({r.drafts for r in rest}) > 1]
    most = max(plain)
    fastest = min((run for run in runs if run.sequences == most), key=lambda run: run.between_s)
    overhead_s, draft_s, verify_s = fitted.tolist()
    drafts = Drafts(fastest.drafts, _accepted(runs), draft_s, verify_s, overhead_s)
    error = float(np.mean([off(run, fitted) for run in runs]))
    return DraftsFit(measured, drafts, error, float(np.mean(held_out)) if held_out else 0.0, tells)


def _accepted(runs: Sequence[DraftRun]) -> tuple[float, ...]:
    """Tell how often each position is accepted: what one draft more emits; between numbers not run, evenly."""
    from scipy.optimize import isotonic_regression

    emitted = {0: 1.0}
    for k in sorted({run.drafts for run in runs}):
        emitted[k] = float(np.mean([run.emitted for run in runs if run.drafts == k]))
    rates: list[float] = []
    for few, many in pairwise(emitted):
        rates += [(emitted[many] - emitted[few]) / (many - few)] * (many - few)
    falling = isotonic_regression(rates, increasing=False).x
    return tuple(np.clip(falling, 0.0, 1.0).round(4).tolist())


def drafts_part(fit: DraftsFit) -> Part:
    """Make [speculative] of fitted costs."""
    measured, drafts = fit.measured, fit.drafts
    name = Path(measured.source).name
    runs = sum(run.drafts > 0 for run in measured.runs)
    table = {
        "tokens": drafts.tokens,
        "accepted": list(drafts.accepted),
        "draft_time": duration(drafts.draft_s),
        "verify_time": duration(drafts.verify_s),
        "overhead": duration(drafts.overhead_s),
    }
    errors = f"{format_percent(fit.error)}, of runs not fitted to {format_percent(fit.held_out_error)}"
    notes = [
        f"mean error of the time between tokens {errors}",
        "tokens is the number with the least time between tokens of those that were run",
    ]
    if not fit.tells_verifying:
        notes.append(
            "all runs have as many requests at a time: what verifying costs is in draft_time, and verify_time is 0, "
            "which is too little for more requests"
        )
    return Part(
        "speculative",
        facts("speculative", table, Origin(Knowledge.MEASURED, name)),
        name,
        "drafts",
        f"{drafts.tokens} tokens, {format_seconds(drafts.draft_s)} a draft",
        (
            f"Drafts{f' by {measured.method}' if measured.method else ''}: fitted by kvplan {__version__} to {runs} "
            f"runs of {name} (sha256 {measured.sha256}).",
        ),
        tuple(notes),
    )
