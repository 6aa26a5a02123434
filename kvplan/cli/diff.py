"""`kvplan diff`: what has changed between two profiles or reports."""

from pathlib import Path
from typing import Annotated

from kvplan.cli import common, completion, options
from kvplan.cli.options import argument

_A_SIDE = argument(
    help="A profile (a TOML file, '-' for standard input, or the name of a shipped profile), "
    "or a report that kvplan analyze --format json wrote.",
    autocompletion=completion.profiles,
)


def diff(
    before: Annotated[str, _A_SIDE],
    after: Annotated[str, _A_SIDE],
    full: options.Full = False,
    format: options.Format = options.DocumentFormat.TEXT,
    output: options.Output = None,
) -> None:
    """Show what differs between two profiles or reports: inputs, then the figures that decide."""
    from kvplan.gate.diff import compare, read_side
    from kvplan.profile.reading import read_reference
    from kvplan.show.diff import view

    common.refuse_overwriting(output, [Path(side) for side in (before, after) if side != "-"])
    sides = [read_side(*read_reference(side, stdin=common.standard_input())) for side in (before, after)]
    common.write(view(compare(*sides)), format, output, full=full)
