"""`kvplan analyze`: the report of a replica."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import kvplan
from kvplan.cli import completion
from kvplan.cli.common import (
    DocumentFormat,
    Format,
    Full,
    Output,
    Plot,
    Profile,
    Slos,
    check_plot,
    option,
    progress_bar,
    read,
    terminal,
    with_slos,
    write_plot,
)
from kvplan.cli.output import write_result
from kvplan.errors import UsageError

if TYPE_CHECKING:
    from kvplan.report.assembly import Report
    from kvplan.show.chart import Chart


def analyze(
    profile: Profile = None,
    format: Format = DocumentFormat.TEXT,
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
    full: Full = False,
    trial: Annotated[
        bool,
        typer.Option(
            "--trial",
            help="Also run the replica where a burst can empty its prefix cache, to see how long that lasts.",
        ),
    ] = False,
    plot: Plot = None,
) -> None:
    """Analyze a profile. The report has load, worst cycle, stability, caps and thresholds, and says what to do."""
    check_plot(plot, [profile], output)
    loaded = with_slos(read(profile, output), slo)
    with progress_bar() as progress:
        result = kvplan.analyze(loaded, trial=trial, progress=progress)
    charts: Sequence[Chart] = ()
    if plot is not None or format is DocumentFormat.HTML:
        from kvplan.show.charts import of_report

        charts = of_report(result, loaded.model, loaded.plan)
    write_result(_rendered(result, format, output, section, charts, full=full), output)
    write_plot(charts, plot)


def _rendered(
    result: "Report",
    format: DocumentFormat,
    output: Path | None,
    sections: list[str] | None,
    charts: "Sequence[Chart]",
    *,
    full: bool,
) -> str:
    """The report as text; colour and width only where a terminal reads it."""
    from kvplan.show.report import build

    if format is not DocumentFormat.TEXT and full:
        raise UsageError("--full goes with --format text; the other formats are always whole")
    if format is DocumentFormat.JSON:
        if sections:
            raise UsageError("--section chooses what text and Markdown show; JSON is always whole")
        from kvplan.report.assembly import to_document
        from kvplan.show import json

        return json.render(to_document(result))
    document = build(result, sections)
    if format is DocumentFormat.HTML:
        from kvplan.show import html

        return html.render(document, charts)
    if format is DocumentFormat.MARKDOWN:
        from kvplan.show import markdown

        return markdown.render(document)
    from kvplan.show import terminal as to_terminal

    width, colour = terminal(output)
    if not (full or sections):
        document = document._replace(sections=(), origin=f"{document.origin}; --full shows the details")
    return to_terminal.render(document, width=width, colour=colour)
