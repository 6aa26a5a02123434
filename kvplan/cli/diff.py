"""`kvplan diff`: what has changed between two profiles or reports."""

from pathlib import Path
from typing import Annotated

from kvplan.cli import completion
from kvplan.cli.common import (
    DocumentFormat,
    Format,
    Full,
    Output,
    argument,
    refuse_overwriting,
    standard_input,
    write,
)

_A_SIDE = argument(
    help="A profile (a TOML file, '-' for standard input, or the name of a shipped profile), "
    "or a report that kvplan analyze --format json wrote.",
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
    from kvplan.gate.diff import compare, read_side
    from kvplan.profile.reading import read_reference
    from kvplan.show.diff import view

    refuse_overwriting(output, [Path(side) for side in (before, after) if side != "-"])
    sides = [read_side(*read_reference(side, stdin=standard_input())) for side in (before, after)]
    write(view(compare(*sides)), format, output, full=full)
