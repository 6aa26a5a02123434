"""`kvplan analyze` and `kvplan explain`: what the formulas say."""

import shutil
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import kvplan
from kvplan.cli.common import Output, Profile, progress_bar, read, say, say_compiling, terminal
from kvplan.cli.output import can_show, remove_from, write_into, write_result
from kvplan.errors import UsageError

if TYPE_CHECKING:
    from kvplan.layout.document import Document
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


class PageFormat(StrEnum):
    """How an explanation is written."""

    TEXT = "text"
    MARKDOWN = "markdown"


def _complete_key(incomplete: str) -> list[str]:
    from kvplan.report.keys import BLOCKS, CONTRACT

    return sorted(key for key in {*BLOCKS, *CONTRACT} if key.startswith(incomplete))


Key = Annotated[
    str,
    typer.Argument(
        metavar="KEY",
        help="A key of the JSON report such as load.headroom or wait.classes[].threshold, or a block such as load.",
        show_default=False,
        autocompletion=_complete_key,
    ),
]


def analyze(
    profile: Profile = None,
    format: Annotated[Format, typer.Option("--format", help="How to write the report.")] = Format.TEXT,
    output: Output = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Put simulated figures beside the formulas.")
    ] = False,
    section: Annotated[
        list[str] | None,
        typer.Option(
            "--section",
            metavar="KEY",
            help="Show only this block of the details, such as load or wait; may be repeated.",
            show_default=False,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="DIR", help="Write the plots into this folder as well.", show_default=False
        ),
    ] = None,
    plot_format: Annotated[
        PlotFormat, typer.Option("--plot-format", help="How to write the plots.")
    ] = PlotFormat.SVG,
) -> None:
    """Load, worst cycle, stability, caps and thresholds."""

    if plot is not None:
        from kvplan.plots import drawing

        drawing.require()
    loaded = read(profile)
    result = kvplan.analyze(loaded)
    runs = None
    if simulate:
        from kvplan.report import formula_check

        with progress_bar() as progress:
            runs = formula_check.simulate(
                loaded.model, loaded.plan, progress=progress, announce=say_compiling
            )
        figures = formula_check.figures(result, runs, loaded.model.replica.memory_tokens)
        result = result._replace(simulation=figures)
    plots: tuple[Plot, ...] = ()
    if plot is not None or format is Format.HTML:
        from kvplan.plots import catalogue

        plots = catalogue.build(result, loaded.model, loaded.plan, runs)
    text = _rendered(result, format, output, section, plots)
    if plot is not None:
        _write_plots(plots, plot, plot_format)
    write_result(text, output)


def explain(
    key: Key,
    profile: Profile = None,
    format: Annotated[PageFormat, typer.Option("--format", help="How to write it.")] = PageFormat.TEXT,
    output: Output = None,
) -> None:
    """What a number of the report means, with its formula."""
    from kvplan.layout import explanation
    from kvplan.report import explain as explaining

    found = explaining.find(key)
    loaded = read(profile)
    result = kvplan.analyze(loaded)
    page = explaining.page(found, result, loaded.model, loaded.plan)
    width = shutil.get_terminal_size().columns if output is None else 80
    as_text = format is PageFormat.TEXT
    write_result(explanation.text(page, width=width) if as_text else explanation.markdown(page), output)


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
    format: Format,
    output: Path | None,
    sections: list[str] | None,
    plots: "tuple[Plot, ...]",
) -> str:
    """The report as text; colour and width only where a terminal reads it."""
    from kvplan.layout import document

    if format is Format.JSON:
        if sections:
            raise UsageError("--section chooses what text and Markdown show; JSON is always whole")
        from kvplan.formats import json
        from kvplan.report.assembly import to_document

        return json.render(to_document(result))
    if format is Format.MARKDOWN:
        from kvplan.formats import markdown

        return markdown.render(document.build(result, sections))
    if format is Format.HTML:
        return _page(document.build(result, sections), plots)
    from kvplan.formats import terminal as to_terminal

    width, colour = terminal(output)
    picture = None
    if width >= to_terminal.MAX_WIDTH:
        from kvplan.layout import plot

        blocks = can_show("".join(plot.BLOCKS))
        picture = plot.rate_section(result, width=to_terminal.MAX_WIDTH - 2, blocks=blocks)
    return to_terminal.render(document.build(result, sections), width=width, colour=colour, picture=picture)


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
