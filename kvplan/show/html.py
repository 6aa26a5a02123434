"""Results as one HTML file: nothing is loaded, nothing runs, light or dark as the reader likes, printable.

Names from a profile are text and nothing else: all are escaped, characters that control a terminal or the direction
of writing are replaced, and a content security policy forbids whatever could still be meant to be loaded or run.
"""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kvplan.report.words import Status
from kvplan.show.chart import Chart
from kvplan.show.page import Column, Document, Figure
from kvplan.show.svg import DARK, LIGHT, element, quote

_COLOURS = {Status.STABLE: "green", Status.NEEDS_CAP: "orange", Status.OVERLOADED: "red"}


def render(document: Document, charts: Sequence[Chart] = ()) -> str:
    """Return the page of a document."""
    if document.status is None:
        title = document.sections[0].title if len(document.sections) == 1 else "kvplan"
        numbered = (section._replace(key=f"part-{i}") for i, section in enumerate(document.sections, 1))
        document = document._replace(title=title, sections=tuple(numbered))
    drawn = [(Markup(element(chart)), chart) for chart in charts]  # its texts are quoted
    return (
        _environment()
        .get_template("page.html.j2")
        .render(document=document, charts=drawn, light=LIGHT, dark=DARK, colours=_COLOURS)
    )


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("kvplan.show", ""),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_quoted,
        keep_trailing_newline=True,
    )
    made.filters |= {"zip": partial(zip, strict=True), "kind": _kind}
    made.tests["figure"] = lambda block: isinstance(block, Figure)
    return made


def _quoted(value: Any) -> Any:
    return value if isinstance(value, Markup) else Markup(quote(str(value)))


def _kind(column: Column) -> Markup:
    kind = "right" if column.right else "wraps" if column.wraps else ""
    return Markup(f' class="{kind}"' if kind else "")
