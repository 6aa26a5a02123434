"""Fitted timings for people: the terms, how far to trust them, and the residuals as a plot."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvplan.ingest.timing.equations import LINEAR, Kind
from kvplan.ingest.timing.fit import TimingFit
from kvplan.ingest.timing.prior import Prior
from kvplan.ingest.timing.reading import Measured
from kvplan.ingest.timing.text import accuracy, error_text, notes, outlier_text
from kvplan.layout.elements import Block, Bullets, Figure, Paragraph, Section, Table, number, table, words
from kvplan.layout.plot import scatter
from kvplan.units import ABSENT, format_percent, format_seconds, format_tokens

_NAMED, _NAMED_EACH = 10, 2  # outliers listed, of one replica and of each of several
_PLOT_WIDTH = 76
_BEYOND = {"d4": "d4·√sequences", "d5": "d5·tokens beyond a knee"}
_OVERHEAD = "Overhead"


class Calibration(NamedTuple):
    """A fit, what it was fitted to, and what else was believed."""

    measured: tuple[Measured, ...]
    fit: TimingFit
    prior: Prior


def build(found: Sequence[Calibration]) -> Section:
    """A row for each replica that was measured; with one alone, its residuals and outliers too."""
    shown = _shown(found)
    blocks: list[Block] = [_table(found, partial(_terms, shown=shown))]
    if len(found) > 1:
        blocks.append(_table(found, _trust))
        named = [
            f"{_name(one.measured[0])}: {'; '.join(_outliers(one.fit, _NAMED_EACH))}"
            for one in found
            if one.fit.outliers and not one.fit.envelope
        ]
        if named:
            blocks += [Paragraph("Outliers, the furthest off first:"), Bullets(tuple(named))]
    else:
        measured, fit, prior = found[0]
        blocks += [Paragraph(accuracy(fit)), Paragraph("Measured time against the fit:"), _residuals(fit)]
        if fit.outliers and not fit.envelope:
            blocks += [Paragraph("Outliers, the furthest off first:"), Bullets(_outliers(fit, _NAMED))]
        if said := notes(fit, measured, prior):
            blocks.append(Bullets(tuple(said)))
    title = "Iteration time, d0 + d1·KV tokens + d2·prefill tokens + d3·sequences"
    title += "".join(f" + {_BEYOND[name]}" for name in shown if name in _BEYOND)
    return Section("timing", title, tuple(blocks), "computed")


def _outliers(fit: TimingFit, most: int) -> tuple[str, ...]:
    left = len(fit.outliers) - most
    more = (f"and {left} more",) if left > 0 else ()
    return (*map(outlier_text, fit.outliers[:most]), *more)


def _table(found: Sequence[Calibration], figures: Callable[[TimingFit], dict[str, str]]) -> Table:
    columns = (words("Replica"), *(number(name) for name in figures(found[0].fit)))
    return table(columns, ((_name(one.measured[0]), *figures(one.fit).values()) for one in found))


def _name(measured: Measured) -> str:
    return measured.group or Path(measured.source).name


def _shown(found: Sequence[Calibration]) -> tuple[str, ...]:
    """Constants that some fit has, and those of every law."""
    fits = [one.fit for one in found]
    beyond = (name for name in _BEYOND if any(getattr(fit.timing, name) > 0 for fit in fits))
    overhead = (_OVERHEAD,) if any(fit.request_overhead_s > 0 for fit in fits) else ()
    return (*LINEAR, *beyond, *overhead)


def _terms(fit: TimingFit, *, shown: Sequence[str]) -> dict[str, str]:
    values = {_OVERHEAD: fit.request_overhead_s}
    return {
        name: _marked(values.get(name, getattr(fit.timing, name, 0.0)), name in fit.from_prior)
        for name in shown
    }


def _marked(seconds: float, estimated: bool = False) -> str:
    """A constant; in brackets where it is the prior's."""
    text = format_seconds(seconds) if seconds else "0"
    return f"({text})" if estimated else text


def _trust(fit: TimingFit) -> dict[str, str]:
    kind = next(kind for kind in (Kind.TPOT, *fit.kinds) if kind in fit.kinds)
    held_out = fit.held_out_error(kind)
    return {
        "Measured": format_tokens(fit.kept.size),
        "Left out": format_tokens(fit.trimmed),
        "Error": error_text(fit.error(kind)),
        "Held out": ABSENT if held_out is None else error_text(held_out),
        "Outliers": ABSENT if fit.envelope else str(len(fit.outliers)),
    }


def _residuals(fit: TimingFit) -> Figure:
    off = fit.equations.seconds / np.maximum(fit.fitted_s, 1e-9) - 1
    most = max(float(np.quantile(np.abs(off), 0.95)), 1e-4)
    low, high = format_seconds(float(fit.fitted_s.min())), format_seconds(float(fit.fitted_s.max()))
    edge = format_percent(most, 2, signed=True)
    return Figure(
        scatter(
            np.log(np.maximum(fit.fitted_s, 1e-9)),
            off / most,
            ~fit.kept,
            width=_PLOT_WIDTH,
            ticks=(edge, "fit", edge.replace("+", "-")),
            below=f"{low} to {high} by the fit, logarithmic; o several, x left out",
        )
    )
