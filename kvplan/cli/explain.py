"""`kvplan explain`: what a number of the report means."""

from enum import StrEnum
from typing import Annotated

import typer

from kvplan.cli import completion
from kvplan.cli.common import Full, Output, Profile, argument, read, write


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
    """Explain a number of the report. It is shown with its meaning, its formula, and this profile's figures in it."""
    from kvplan.report.assembly import analyze
    from kvplan.report.explain import find, page
    from kvplan.show import elements, explanation
    from kvplan.show.view import View

    found = find(key)
    loaded = read(profile, output)
    report = analyze(loaded.model, name=loaded.name, sha256=loaded.sha256, plan=loaded.plan)
    full = full or format is PageFormat.MARKDOWN
    shown = page(found, report, loaded.model, loaded.plan, full=full)
    screen = elements.document([explanation.build(shown, full=full)], loaded.sha256)
    write(View(dict, lambda _: screen), format, output)
