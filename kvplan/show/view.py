"""A result in every format: JSON and CSV for programs, its screen and charts for people."""

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from typing import TYPE_CHECKING, Any

from kvplan.show.page import Document, json_without_commands
from kvplan.version import __version__

if TYPE_CHECKING:
    from kvplan.profile.reading import Profile
    from kvplan.report.assembly import ProfileIdentity
    from kvplan.show.chart import Chart

Json = dict[str, Any]

_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class View:
    """Ways to show a result; each part is made when a format asks for it."""

    json: Callable[[], Json]  # plain dicts, lists, strings, finite numbers and None
    screen: Callable[[bool], Document]  # of everything, or of the first screen
    draw: Callable[[], Iterable["Chart"]] = tuple
    rows: Callable[[Json], Sequence[Mapping[str, Any]]] = lambda document: [document]  # of a data frame
    csv: Callable[[], str] | None = None

    @cached_property
    def charts(self) -> "Sequence[Chart]":
        """Draw the charts, once."""
        return tuple(self.draw())


def render(view: View, format: str, *, full: bool = False, width: int = 80, colour: bool = False) -> str:
    """Write a result as ``text``, ``markdown``, ``html``, ``json`` or ``csv``.

    `full`, `width` and `colour` are about text; the other formats are always whole.
    """
    match format:
        case "json":
            return json_text(view.json())
        case "csv" if view.csv is not None:
            return view.csv()
        case "markdown":
            from kvplan.show import markdown

            return markdown.render(view.screen(True))
        case "html":
            from kvplan.show import html

            return html.render(view.screen(True), view.charts)
        case _:
            from kvplan.show import terminal

            return terminal.render(view.screen(full), width=width, colour=colour)


def json_text(document: Mapping[str, Any]) -> str:
    """Write a document as JSON, keys in its order: the same bytes for the same document.

    It raises ValueError where a number is not finite; documents have null instead.

    >>> print(json_text({"schema_version": 1, "loss": None, "name": "Übung"}), end="")
    {
      "schema_version": 1,
      "loss": null,
      "name": "Übung"
    }
    """
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2)
    return json_without_commands(text) + "\n"


def csv_text(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Write rows as CSV; None is empty.

    >>> print(csv_text(("policy", "value"), [("vllm", 0.5), ("greedy", None)]), end="")
    policy,value
    vllm,0.5
    greedy,
    """
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return out.getvalue()


def header(profile: "Profile | ProfileIdentity | None" = None) -> Json:
    """Return the beginning of every JSON document but the report."""
    begin: Json = {"schema_version": _SCHEMA_VERSION, "kvplan_version": __version__}
    if profile is not None:
        begin["profile"] = {"name": profile.name, "sha256": profile.sha256}
    return begin


def fields(value: object, *names: str) -> Json:
    """Return the fields of a result that its document has as they are."""
    return {name: getattr(value, name) for name in names}
