"""Results as one HTML file: nothing is loaded, nothing runs, light or dark as the reader likes, printable.

Names from a profile are text and nothing else: all are escaped, characters that control a terminal or the direction
of writing are replaced, and a content security policy forbids whatever could still be meant to be loaded or run.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
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
    page = template("kvplan.show", "page.html.j2", _quoted, zip=partial(zip, strict=True), kind=_kind)
    return page.render(document=document, charts=drawn, light=LIGHT, dark=DARK, colours=_COLOURS)


def template(
    package: str,
    name: str,
    finalize: Callable[[Any], Any],
    *,
    trim: bool = False,
    **filters: Callable[..., Any],
) -> Template:
    """Read a template of a package; `finalize` quotes its values, and a name that it does not have is an error."""
    made = Environment(
        loader=PackageLoader(package, ""),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=trim,
        lstrip_blocks=trim,
        keep_trailing_newline=True,
    )
    made.filters |= filters
    made.tests["figure"] = lambda block: isinstance(block, Figure)
    return made.get_template(name)


def _quoted(value: Any) -> Any:
    return value if isinstance(value, Markup) else Markup(quote(str(value)))


def _kind(column: Column) -> Markup:
    kind = "right" if column.right else "wraps" if column.wraps else ""
    return Markup(f' class="{kind}"' if kind else "")
