"""`kvplan analyze` and `kvplan explain`: what the formulas say."""

import shutil
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.commands.common import Output, Profile, progress_bar, read, say_compiling, terminal
from kvplan.errors import UsageError
from kvplan.output import write_result

if TYPE_CHECKING:
    from kvplan.report import Report


class Format(StrEnum):
    """How a report is written."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"


class PageFormat(StrEnum):
    """How an explanation is written."""

    TEXT = "text"
    MARKDOWN = "markdown"


def _complete_key(incomplete: str) -> list[str]:
    from kvplan.explanations import BLOCKS, EXPLANATIONS

    keys = {*BLOCKS, *(explanation.key for explanation in EXPLANATIONS)}
    return sorted(key for key in keys if key.startswith(incomplete))


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
) -> None:
    """Load, worst cycle, stability, rate cap, WAIT thresholds and safety buffer of a replica."""
    from kvplan import report

    loaded = read(profile)
    result = report.analyze(loaded.model, name=loaded.name, sha256=loaded.sha256, plan=loaded.plan)
    if simulate:
        from kvplan.simulation import beside

        with progress_bar() as progress:
            runs = beside.simulate(loaded.model, loaded.plan, progress=progress, announce=say_compiling)
        figures = beside.figures(result, runs, loaded.model.replica.memory_tokens)
        result = result._replace(simulation=figures)
    write_result(_rendered(result, format, output, section), output)


def explain(
    key: Key,
    profile: Profile = None,
    format: Annotated[PageFormat, typer.Option("--format", help="How to write it.")] = PageFormat.TEXT,
    output: Output = None,
) -> None:
    """What a number of the report means: formula, source, and the profile's figures put into it."""
    from kvplan import explain as explaining
    from kvplan import report
    from kvplan.render import explanation

    found = explaining.find(key)
    loaded = read(profile)
    result = report.analyze(loaded.model, name=loaded.name, sha256=loaded.sha256, plan=loaded.plan)
    page = explaining.page(found, result, loaded.model, loaded.plan)
    width = shutil.get_terminal_size().columns if output is None else 80
    as_text = format is PageFormat.TEXT
    write_result(explanation.text(page, width=width) if as_text else explanation.markdown(page), output)


def _rendered(result: "Report", format: Format, output: Path | None, sections: list[str] | None) -> str:
    """The report as text; colour and width only where a terminal reads it."""
    from kvplan.render import document

    if format is Format.JSON:
        if sections:
            raise UsageError("--section chooses what text and Markdown show; JSON is always whole")
        from kvplan.render import json
        from kvplan.report import to_document

        return json.render(to_document(result))
    if format is Format.MARKDOWN:
        from kvplan.render import markdown

        return markdown.render(document.build(result, sections))
    from kvplan.render import terminal as to_terminal

    width, colour = terminal(output)
    return to_terminal.render(document.build(result, sections), width=width, colour=colour)
