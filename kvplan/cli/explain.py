"""`kvplan explain`: what a number of the report means."""

from enum import StrEnum
from typing import Annotated

import typer

from kvplan.cli import common, completion, options
from kvplan.cli.options import argument


class PageFormat(StrEnum):
    """How an explanation is written."""

    TEXT = "text"
    MARKDOWN = "markdown"


def explain(
    key: Annotated[
        str,
        argument(
            metavar="KEY",
            help="Key of the JSON report, such as load.work_rate or wait.classes[].threshold, or a block, as load.",
            autocompletion=completion.keys_to_explain,
        ),
    ],
    profile: options.Profile = None,
    full: options.Full = False,
    format: Annotated[PageFormat, typer.Option("--format", help="Format of the result.")] = PageFormat.TEXT,
    output: options.Output = None,
) -> None:
    """Explain a number of the report: its meaning, formula and source, and the values that it rests on."""
    from kvplan.report.assembly import analyze
    from kvplan.report.explain import find, page
    from kvplan.show.explanation import view

    found = find(key)
    loaded = common.read(profile, output)
    report = analyze(loaded.model, name=loaded.name, sha256=loaded.sha256, plan=loaded.plan)
    full = full or format is PageFormat.MARKDOWN
    shown = page(found, report, loaded.model, loaded.plan, full=full)
    common.write(view(shown, loaded.sha256, full=full), format, output)
