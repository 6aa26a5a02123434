"""`kvplan explain`: what a number of the report means."""

from enum import StrEnum
from typing import Annotated

import typer

import kvplan
from kvplan.cli import completion
from kvplan.cli.common import DocumentFormat, Full, Output, Profile, argument, read, rendered
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
    full: Full = False,
    format: Annotated[PageFormat, typer.Option("--format", help="Format of the result.")] = PageFormat.TEXT,
    output: Output = None,
) -> None:
    """Explain a number of the report: its meaning, formula and source, and the values that it rests on."""
    from kvplan.report.explain import find, page
    from kvplan.show import explanation

    found = find(key)
    loaded = read(profile, output)
    full = full or format is PageFormat.MARKDOWN
    shown = page(found, kvplan.analyze(loaded), loaded.model, loaded.plan, full=full)
    section = explanation.build(shown, full=full)
    text = rendered(DocumentFormat(format), output, dict, lambda: [section], loaded.sha256)
    write_result(text, output)
