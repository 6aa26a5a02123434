"""`kvplan analyze`: the report of a replica."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import kvplan
from kvplan.cli import completion
from kvplan.cli.common import (
    Output,
    Profile,
    Slos,
    option,
    progress_bar,
    read,
    say,
    terminal,
    with_slos,
)
from kvplan.cli.output import can_show, remove_from, write_into, write_result
from kvplan.errors import UsageError

if TYPE_CHECKING:
    from kvplan.layout.elements import Document
    from kvplan.model import ServingModel
    from kvplan.plots.catalogue import Plot
    from kvplan.report.assembly import Report


class Format(StrEnum):
    """How a report is written."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"
    HTML = "html"


class PlotFormat(StrEnum):
    """How plots are written."""

    SVG = "svg"
    PNG = "png"


def analyze(
    profile: Profile = None,
    format: Annotated[Format, typer.Option("--format", help="Format of the report.")] = Format.TEXT,
    output: Output = None,
    slo: Slos = None,
    section: Annotated[
        list[str] | None,
        option(
            "--section",
            metavar="KEY",
            help="Show this part of the details, such as load or wait. May be repeated.",
            autocompletion=completion.sections,
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Show all details below the first screen.")] = False,
    trial: Annotated[
        bool,
        typer.Option(
            "--trial",
            help="Also run the replica where a burst can empty its prefix cache, to see how long that lasts.",
        ),
    ] = False,
    plot: Annotated[
        Path | None,
        option("--plot", metavar="DIR", help="Also draw the plots, each to a file in this folder."),
    ] = None,
    plot_format: Annotated[
        PlotFormat, typer.Option("--plot-format", help="Format of the files that --plot writes.")
    ] = PlotFormat.SVG,
) -> None:
    """Analyze a profile. The report has load, worst cycle, stability, caps and thresholds, and says what to do."""
    if plot is not None:
        from kvplan.plots import drawing

        drawing.require()
    loaded = with_slos(read(profile, output), slo)
    with progress_bar() as progress:
        result = kvplan.analyze(loaded, trial=trial, progress=progress)
    plots: tuple[Plot, ...] = ()
    if plot is not None or format is Format.HTML:
        from kvplan.plots import catalogue

        plots = catalogue.build(result, loaded.model, loaded.plan)
    text = _rendered(result, loaded.model, format, output, section, plots, full=full)
    if plot is not None:
        _write_plots(plots, plot, plot_format)
    write_result(text, output)


def _write_plots(plots: "tuple[Plot, ...]", folder: Path, format: PlotFormat) -> None:
    """A file for each plot there is; what there is not is said, and gone if an earlier run had it."""
    from kvplan.plots import drawing
    from kvplan.plots.catalogue import KEYS

    drawn = {
        f"{plot.key}.{format.value}": drawing.file_of(plot.key, plot.data, f".{format.value}")
        for plot in plots
        if plot.data is not None
    }
    write_into(folder, drawn)
    absent = {plot.key: plot.caption for plot in plots if plot.data is None}
    for key, why in absent.items():
        say(f"note: no plot {key}: {why}")
    removed = remove_from(
        folder, [f"{key}.{format.value}" for key in KEYS if f"{key}.{format.value}" not in drawn]
    )
    if removed:
        say(f"note: {folder}: removed what an earlier run had plotted: {', '.join(removed)}")
    others = [f"{key}.{other.value}" for key in KEYS for other in PlotFormat if other is not format]
    left = [name for name in others if (folder / name).exists()]
    if left:
        say(f"note: {folder}: left there, from an earlier run: {', '.join(left)}")


def _rendered(
    result: "Report",
    model: "ServingModel",
    format: Format,
    output: Path | None,
    sections: list[str] | None,
    plots: "tuple[Plot, ...]",
    *,
    full: bool,
) -> str:
    """The report as text; colour and width only where a terminal reads it."""
    from kvplan.analysis.fleet import one_replica
    from kvplan.layout import plot
    from kvplan.layout.report import build

    if format is not Format.TEXT and full:
        raise UsageError("--full goes with --format text; the other formats are always whole")
    if format is Format.JSON:
        if sections:
            raise UsageError("--section chooses what text and Markdown show; JSON is always whole")
        from kvplan.formats import json
        from kvplan.report.assembly import to_document

        return json.render(to_document(result))
    model, document = one_replica(model), build(result, sections)
    if format is Format.HTML:
        return _page(document, plots)
    if format is Format.MARKDOWN:
        from kvplan.formats import markdown

        return markdown.render(plot.with_branches(document, result, model, blocks=True))
    from kvplan.formats import terminal as to_terminal

    width, colour = terminal(output)
    if not (full or sections):
        short = document._replace(sections=(), origin=f"{document.origin}; --full shows the details")
        return to_terminal.render(short, width=width, colour=colour)
    blocks = can_show("".join(plot.BLOCKS))
    picture = None
    if width >= to_terminal.MAX_WIDTH:
        picture = plot.rate_section(result, width=to_terminal.MAX_WIDTH - 2, blocks=blocks)
    document = plot.with_branches(document, result, model, blocks=blocks)
    return to_terminal.render(document, width=width, colour=colour, picture=picture)


def _page(document: "Document", plots: "tuple[Plot, ...]") -> str:
    """The HTML page, with its plots where they can be drawn."""
    from kvplan.formats import html
    from kvplan.plots import drawing

    if not drawing.available():
        say(f"note: plots are left out: {drawing.HOW_TO_INSTALL}")
        return html.render(document, notice=f"Plots are left out: {drawing.HOW_TO_INSTALL}")
    shown = {None, *(section.key for section in document.sections)}
    pictures = [
        html.Picture(
            section=plot.section,
            title=plot.title,
            basis=plot.basis.value,
            caption=plot.caption,
            numbers=plot.numbers,
            svg=drawing.inline_svg(plot.key, plot.data) if plot.data is not None else None,
        )
        for plot in plots
        if plot.section in shown
    ]
    return html.render(document, pictures)
