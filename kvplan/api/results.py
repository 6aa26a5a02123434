"""What the functions of kvplan return: the results of the package, which also show themselves."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvplan.profile.reading import Profile
from kvplan.report import assembly
from kvplan.simulation.experiments import study

if TYPE_CHECKING:
    from kvplan.show.chart import Chart
    from kvplan.show.elements import Section

_MAX_ROWS = 20
_FRAME = "border: 0; width: 100%; height: 40rem"  # of a page in a notebook, whose styles stay its own


class Result:
    """A result that prints its first screen, shows in notebooks, and gives its JSON and columns."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return what ``--format json`` writes, as plain dicts, lists, strings and finite numbers or None."""
        from kvplan.show import json as documents

        found: dict[str, Any] = json.loads(documents.render(self._document()))
        return found

    def columns(self) -> "Mapping[str, Sequence[Any] | NDArray[Any]]":
        """Return columns of equal length by name, as ``pandas.DataFrame(result.columns())`` takes them."""
        rows = [dict(_leaves(record)) for record in self._records(self.to_dict())]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}

    def __str__(self) -> str:
        from kvplan.show import terminal
        from kvplan.show.elements import origin

        return terminal.render_sections(self._sections(full=False), origin(*self._hashes())).rstrip("\n")

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self._page())}" style="{_FRAME}"></iframe>'

    def _page(self) -> str:
        """What ``--format html`` writes."""
        from kvplan.show import html
        from kvplan.show.elements import origin

        return html.render_sections(self._sections(full=True), origin(*self._hashes()), self._charts())

    def _charts(self) -> "Sequence[Chart]":
        return ()

    def _document(self) -> dict[str, Any]:
        raise NotImplementedError

    def _records(self, document: dict[str, Any]) -> Iterable[Mapping[str, Any]]:
        """The rows of a data frame, nested as the document is."""
        return [document]

    def _sections(self, *, full: bool) -> "Sequence[Section]":
        raise NotImplementedError

    def _hashes(self) -> Iterable[str]:
        """Of the profiles that it is about, where the screen ends with them."""
        return ()


def _leaves(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys with dots, and their values; lists have no place in a row."""
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        elif not isinstance(value, list):
            yield prefix + name, value


class Report(Result, assembly.Report):
    """A report of a profile, `of`. Its columns have one row, with the keys that `sweep` has."""

    of: Profile

    def _document(self) -> dict[str, Any]:
        return assembly.to_document(self)

    def __str__(self) -> str:
        from kvplan.show import terminal
        from kvplan.show.report import build

        return terminal.render(build(self)._replace(sections=())).rstrip("\n")

    def _page(self) -> str:
        from kvplan.show import html
        from kvplan.show.report import build

        return html.render(build(self), self._charts())

    def _charts(self) -> "Sequence[Chart]":
        from kvplan.show.charts import of_report

        return of_report(self, self.of.model, self.of.plan)


class Study(Result, study.Study):
    """Policies side by side. Its columns have a row for each policy."""

    profile: Profile

    def _document(self) -> dict[str, Any]:
        from kvplan.show.json import simulate

        return simulate(self, self.profile)

    def _records(self, document: dict[str, Any]) -> Iterable[Mapping[str, Any]]:
        policies: list[dict[str, Any]] = document["policies"]
        return [{key: value for key, value in one.items() if key != "ci95"} for one in policies]

    def _sections(self, *, full: bool) -> "Sequence[Section]":
        from kvplan.show.simulation import build

        return [build(self, self.profile.name, full=full)]

    def _charts(self) -> "Sequence[Chart]":
        from kvplan.show.charts import of_study

        return of_study(self, self.profile.model.replica.capacity_tokens)

    def _hashes(self) -> Iterable[str]:
        return (self.profile.sha256,)


class Sweep(Result, dict[str, NDArray[Any]]):
    """Arrays by name of the column, each of shape (n_points,)."""

    def columns(self) -> Mapping[str, NDArray[Any]]:
        """Return the arrays, as `pandas.DataFrame` takes them."""
        return self

    def _document(self) -> dict[str, Any]:
        return {
            name: [
                None if isinstance(value, float) and math.isnan(value) else value for value in array.tolist()
            ]
            for name, array in self.items()
        }

    def _sections(self, *, full: bool) -> "Sequence[Section]":
        from kvplan.show.elements import Column, Section, table

        names = [name for name in self if name != "error" or any(self[name])]
        columns = [
            Column(name, right=self[name].dtype != np.object_, wraps=name == "error") for name in names
        ]
        rows = zip(*([_cell(value) for value in self[name].tolist()] for name in names), strict=True)
        every = table(columns, rows, _MAX_ROWS, "and {} more points")
        return [Section("sweep", f"{len(self['point']):,} points", (every,))]


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.6g}"
    return "" if value is None else str(value)


def of_report(found: assembly.Report, profile: Profile) -> Report:
    """Return a report of a profile as a result."""
    result = Report._make(found)
    result.of = profile
    return result


def of_study(found: study.Study, profile: Profile) -> Study:
    """Return a study of a profile as a result."""
    result = Study._make(found)
    result.profile = profile
    return result
