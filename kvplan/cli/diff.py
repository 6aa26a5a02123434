"""`kvplan diff`: what has changed between two profiles or reports."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.cli import completion
from kvplan.cli.common import (
    DocumentFormat,
    Format,
    Full,
    Output,
    refuse_overwriting,
    rendered,
    standard_input,
)
from kvplan.cli.output import write_result

if TYPE_CHECKING:
    from kvplan.gate.diff import Side

_A_SIDE = typer.Argument(
    help="A profile (a TOML file, '-' for standard input, or the name of a shipped profile), "
    "or a report that kvplan analyze --format json wrote.",
    show_default=False,
    autocompletion=completion.profiles,
)


def diff(
    before: Annotated[str, _A_SIDE],
    after: Annotated[str, _A_SIDE],
    full: Full = False,
    format: Format = DocumentFormat.TEXT,
    output: Output = None,
) -> None:
    """Show what differs between two profiles or reports: inputs, then the figures that decide."""
    from kvplan.gate.diff import compare
    from kvplan.show import diff as tables
    from kvplan.show import json

    refuse_overwriting(output, [Path(side) for side in (before, after) if side != "-"])
    found = compare(_side(before), _side(after))
    full = full or format is not DocumentFormat.TEXT
    text = rendered(format, output, lambda: json.diff(found), lambda: [tables.build(found, full=full)])
    write_result(text, output)


def _side(reference: str) -> "Side":
    from kvplan.gate.diff import read_side
    from kvplan.profile.reading import read_reference

    return read_side(*read_reference(reference, stdin=standard_input()))
