"""`kvplan init`, `profiles` and `schema`: profiles to begin from, and what profiles and reports may hold."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kvplan.cli import completion, options
from kvplan.cli.options import argument
from kvplan.cli.output import write_result


class Described(StrEnum):
    """What a JSON Schema describes."""

    PROFILE = "profile"
    REPORT = "report"


def init(
    file: Annotated[
        Path | None, argument(metavar="FILE", help="File to write. Default: standard output.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
) -> None:
    """Write a commented profile to start from."""
    from kvplan.errors import UsageError
    from kvplan.profile.reading import starter

    if file is not None and not force and (file.is_file() or file.is_fifo()):
        raise UsageError(f"{file}: exists already; --force replaces it")
    write_result(starter(), file)


def profiles(
    name: Annotated[
        str | None,
        argument(
            metavar="NAME",
            help="Profile to print, to be copied and changed. Without a name the profiles are listed.",
            autocompletion=completion.profiles,
        ),
    ] = None,
    output: options.Output = None,
) -> None:
    """List the shipped profiles, or print one."""
    from kvplan.profile.reading import listing, shipped_text

    write_result(listing() if name is None else shipped_text(name), output)


def schema(
    of: Annotated[
        Described,
        typer.Option("--of", help="What the schema describes: a profile, or the JSON report of analyze."),
    ] = Described.PROFILE,
    output: options.Output = None,
) -> None:
    """Print the JSON Schema of a profile, for editors, or of the report, for programs that read it."""
    from kvplan.show.view import json_text

    if of is Described.PROFILE:
        from kvplan.profile.schema import json_schema
    else:
        from kvplan.report.schema import json_schema
    write_result(json_text(json_schema()), output)
