"""`kvplan explain`: what a number of the report means."""

import shutil
from enum import StrEnum
from typing import Annotated

import typer

import kvplan
from kvplan.cli import completion
from kvplan.cli.common import Output, Profile, argument, read
from kvplan.cli.output import write_result


class PageFormat(StrEnum):
    """How an explanation is written."""

    TEXT = "text"
    MARKDOWN = "markdown"


def explain(
    key: Annotated[
        str,
        argument(
            metavar="KEY",
            help="Key of the JSON report, such as load.headroom or wait.classes[].threshold, or a block, such as load.",
            autocompletion=completion.keys_to_explain,
        ),
    ],
    profile: Profile = None,
    format: Annotated[PageFormat, typer.Option("--format", help="Format of the result.")] = PageFormat.TEXT,
    output: Output = None,
) -> None:
    """Explain a number of the report. It is shown with its meaning, its formula, and this profile's figures in it."""
    from kvplan.formats import explanation
    from kvplan.report.explain import find, page

    found = find(key)
    loaded = read(profile, output)
    shown = page(found, kvplan.analyze(loaded), loaded.model, loaded.plan)
    width = shutil.get_terminal_size().columns if output is None else 80
    as_text = format is PageFormat.TEXT
    write_result(explanation.text(shown, width=width) if as_text else explanation.markdown(shown), output)
