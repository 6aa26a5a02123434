"""Small plots of characters, for terminals."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvplan.layout.elements import Figure, Paragraph, Section
from kvplan.plots.catalogue import cache_branches, rate_throughput, shares
from kvplan.plots.data import RateThroughput
from kvplan.plots.prefix_cache import CacheBranches
from kvplan.units import format_number

if TYPE_CHECKING:
    from kvplan.layout.elements import Document
    from kvplan.model import ServingModel
    from kvplan.report.assembly import Report

_ROWS = 8  # of areas
_LOG_ROWS = 12  # of branches
_COLUMNS = 76  # which fit a terminal of 80, and a design document
_FINE = 50  # points between two of a curve, so that it has no gaps


class Ink(NamedTuple):
    """The characters areas are drawn with: a full cell, half of one, a lighter one, two axes, a corner, an arrow."""

    full: str
    half: str
    light: str
    axis: str
    zone: str
    side: str
    corner: str
    arrow: str


BLOCKS, ASCII = Ink(*"█▄░─═│└^"), Ink(*"##.-=|+^")


def throughput(content: RateThroughput, *, width: int, ink: Ink = BLOCKS) -> str:
    """What is served of what is offered, as an area: dark by anybody, light only with a cap.

    In so many columns, 60 or more. Where the offered rate is beyond the plot, it is not marked.

    Examples
    --------
    >>> import numpy as np
    >>> from kvplan.plots.data import RateThroughput
    >>> rate = np.array([0.0, 2.0, 4.0, 5.0])
    >>> one = RateThroughput(rate, np.minimum(rate, 4), np.minimum(rate, 2), (2.0, 4.0), 2.0, 3.0, 4.0)
    >>> print("\\n".join(throughput(one, width=66, ink=ASCII).splitlines()[:9]))
    4 |                                               ................
      |                                         ......................
      |                                   ............................
      |                            ...................................
    2 |                    ###########################################
      |              #################################################
      |        #######################################################
    0 |  #############################################################
      +-------------------------=========================-------------
    """
    served, collapsed = content.sustainable_rps, float(content.recovered_rps[-1])
    labels = {0: format_number(served), _ROWS - 1: "0"}
    # the row whose top is next to where the lower line ends
    knee = _ROWS - round(collapsed / served * _ROWS)
    if content.danger_zone_rps is not None and 0 < knee < _ROWS - 1:
        labels[knee] = format_number(collapsed)
    margin = max(map(len, labels.values()))
    columns = width - margin - 2
    last = float(content.rate_rps[-1])
    at = (np.arange(columns) + 0.5) / columns * last
    dark = np.minimum(at, collapsed) / served * _ROWS
    light = np.minimum(at, served) / served * _ROWS
    lines = []
    for row in range(_ROWS):
        below = _ROWS - 1 - row
        cells = (
            _cell(low - below, high - below, ink)
            for low, high in zip(dark.tolist(), light.tolist(), strict=True)
        )
        lines.append(f"{labels.get(row, ''):>{margin}} {ink.side}{''.join(cells)}".rstrip())

    def column(rate: float) -> int:
        return min(int(rate / last * columns), columns - 1)

    low, high = content.danger_zone_rps or (last, last)
    axis = "".join(ink.zone if low <= rate < high else ink.axis for rate in at.tolist())
    ticks = [(column(served), format_number(served))]
    if content.danger_zone_rps is not None:
        ticks.append((column(low), format_number(low)))
    if content.shows_offered:
        ticks.insert(
            0, (column(content.offered_rps), f"{ink.arrow} {format_number(content.offered_rps)} offered")
        )
    lead = " " * (margin + 2)
    legend = [f"{ink.full} served with or without a cap"]
    if content.danger_zone_rps is not None:
        legend += [f"{ink.light} only with a cap", f"{ink.zone} danger zone"]
    return "\n".join(
        [
            *lines,
            f"{'':>{margin}} {ink.corner}{axis}",
            lead + _placed([*ticks, (0, "0")], columns),
            lead + "   ".join(legend),
        ]
    )


def rate_section(report: "Report", *, width: int, blocks: bool) -> Section:
    """The plot of throughput as a section for a terminal of so many columns, which has block characters or not."""
    plot = rate_throughput(report)
    assert isinstance(plot.data, RateThroughput)
    drawn = throughput(plot.data, width=width, ink=BLOCKS if blocks else ASCII)
    return Section(plot.key, f"{plot.title}, requests/s", (Figure(drawn),), plot.basis.value)


def running(content: CacheBranches, *, width: int, ink: Ink = BLOCKS) -> str:
    """Running requests in every state of a prefix cache, by their logarithm, against the load.

    In so many columns, 60 or more; dark what is stable, light what is not.

    Examples
    --------
    >>> import numpy as np
    >>> curve = np.array([2.0, 8.0, 6.0]), np.array([1.0, 10.0, 100.0]), np.array([True, False, False])
    >>> levels = {"full_in_flight": 100.0, "warm_in_flight": 7.0, "separatrix_in_flight": 30.0}
    >>> edges = {"full_from": 6.0, "low": 2.0, "high": 10.0, "low_in_flight": 1.0}
    >>> one = CacheBranches("requests/s", *curve, offered=7.0, guaranteed=6.0, good=8.0, **levels, **edges)
    >>> print(running(one, width=62, ink=ASCII))
    100 |                            =============================
        |                            :  ....:      :
     30 |                            :     ...     :
        |                            :      : ...  :
        |                            :      :   ...:
        |                            :      :  ###..
      7 |                            : ########    :
        |                       #######     :      :
        |               ########     :      :      :
        |       ########             :      :      :
        |#######                     :      :      :
        |#                           :      :      :
        +---------------------------------------------------------
                                     6      ^ 7 offered
         # stable   . unstable   = full, with a queue
    """
    bottom, top = np.log([content.low_in_flight, content.high_in_flight]).tolist()
    full = content.full_in_flight

    def row(in_flight: float) -> int:
        part = (np.log(in_flight) - bottom) / (top - bottom)
        return int(_LOG_ROWS - 1 - min(max(part, 0.0) * _LOG_ROWS, _LOG_ROWS - 1))

    labels: dict[int, str] = {}
    for level in (full, content.warm_in_flight, content.separatrix_in_flight):
        if level is not None:
            labels.setdefault(row(level), format_number(level, 3))
    margin = max(map(len, labels.values()))
    columns = width - margin - 2

    def column(rate: float) -> int:
        part = (rate - content.low) / (content.high - content.low)
        return min(int(max(part, 0.0) * columns), columns - 1)

    grid = [[" "] * columns for _ in range(_LOG_ROWS)]
    marks = [
        content.guaranteed,
        content.good,
        *([content.offered] if content.shows_offered else []),
    ]
    for cells in grid:
        for mark in marks:
            cells[column(mark)] = ":"
    known = np.arange(content.load.size)
    at = np.linspace(0, known[-1], known[-1] * _FINE + 1)
    rates = np.interp(at, known, content.load)
    running = np.exp(np.interp(at, known, np.log(content.in_flight)))
    for rate, in_flight, stable in zip(
        rates.tolist(), running.tolist(), content.stable[at.astype(int)].tolist(), strict=True
    ):
        if rate >= content.low and content.low_in_flight <= in_flight:
            grid[row(in_flight)][column(rate)] = ink.full if stable else ink.light
    end = column(content.full_from)
    grid[row(full)][end:] = ink.zone * (columns - end)
    lead = " " * (margin + 2)
    ticks = [(column(rate), format_number(rate)) for rate in (content.guaranteed, content.good)]
    if content.shows_offered:
        ticks.insert(0, (column(content.offered), f"{ink.arrow} {format_number(content.offered)} offered"))
    legend = [f"{ink.full} stable"]
    if not content.stable.all():
        legend.append(f"{ink.light} unstable")
    legend.append(f"{ink.zone} full, with a queue")
    return "\n".join(
        [
            *(
                f"{labels.get(i, ''):>{margin}} {ink.side}{''.join(cells)}".rstrip()
                for i, cells in enumerate(grid)
            ),
            f"{'':>{margin}} {ink.corner}{ink.axis * columns}",
            lead + _placed(ticks, columns),
            lead + "   ".join(legend),
        ]
    )


def with_branches(
    document: "Document", report: "Report", model: "ServingModel", *, blocks: bool
) -> "Document":
    """The document, with the states of a prefix cache in its section, where requests have something in common."""
    if not shares(report):
        return document
    plot = cache_branches(report, model)
    if plot is None:
        return document
    assert isinstance(plot.data, CacheBranches)
    drawn = Figure(running(plot.data, width=_COLUMNS, ink=BLOCKS if blocks else ASCII))
    more = (Paragraph(f"{plot.title}:"), drawn, Paragraph(plot.caption))
    sections = (
        section._replace(blocks=(*section.blocks, *more)) if section.key == plot.section else section
        for section in document.sections
    )
    return document._replace(sections=tuple(sections))


def _cell(dark: float, light: float, ink: Ink) -> str:
    """A cell whose parts below these heights are dark and light."""
    if dark >= 0.75:
        return ink.full
    if dark >= 0.25:
        return ink.light if light >= 1 and dark < 0.5 else ink.half
    return ink.light if light >= 0.5 else " "


def _placed(ticks: Iterable[tuple[int, str]], columns: int) -> str:
    """Labels that begin at these columns, or end at the last; the first ones win where there is no place for all."""
    line = [" "] * columns
    for column, label in ticks:
        start = max(0, min(column, columns - len(label)))
        around = line[max(0, start - 1) : start + len(label) + 1]
        if not "".join(around).strip():
            line[start : start + len(label)] = label
    return "".join(line).rstrip()
