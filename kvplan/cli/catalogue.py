"""`kvplan init`, `profiles` and `schema`: profiles to begin from, and what a profile may hold."""

from pathlib import Path
from typing import Annotated

import typer

from kvplan.cli.common import Output, complete_profile
from kvplan.cli.output import write_result


def init(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="Where to write it; standard output if left out.", show_default=False
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE where it exists.")] = False,
) -> None:
    """Write a commented profile to start from."""
    from kvplan.profile import catalogue

    if file is not None and not force:
        catalogue.refuse_existing(file)
    write_result(catalogue.starter(), file)


def profiles(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Print this one, to be copied.",
            show_default=False,
            autocompletion=complete_profile,
        ),
    ] = None,
    output: Output = None,
) -> None:
    """List the shipped profiles, or print one."""
    from kvplan.profile import catalogue

    write_result(catalogue.listing() if name is None else catalogue.shipped_text(name), output)


def schema(output: Output = None) -> None:
    """Print the JSON Schema of a profile, for editors."""
    from kvplan.formats import json
    from kvplan.profile.schema import json_schema

    write_result(json.render(json_schema()), output)
