"""Results of kvplan's functions, which also show themselves."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvplan.profile.reading import Profile
from kvplan.report import assembly
from kvplan.show import page
from kvplan.show.view import Json, View, json_text, render
from kvplan.simulation.experiments import study
from kvplan.simulation.experiments.hindsight_bound import StudyBound

_MAX_ROWS = 20
_FRAME = "border: 0; width: 100%; height: 40rem"  # of a page in a notebook, whose styles stay its own


class Result:
    """A result that prints its first screen, shows in notebooks, and gives its JSON and columns."""

    __slots__ = ()

    @classmethod
    def of_answer(cls, answer: Any, **beside: object) -> Self:
        """Make a result of an answer of the package, and of what it rests on."""
        result: Self = cls._make(answer)  # type: ignore[attr-defined]
        vars(result).update(beside)
        return result

    def to_dict(self) -> dict[str, Any]:
        """Return what ``--format json`` writes, as plain dicts, lists, strings and finite numbers or None."""
        document: dict[str, Any] = json.loads(json_text(self._view().json()))
        return document

    def columns(self) -> Mapping[str, "Sequence[Any] | NDArray[Any]"]:
        """Return columns of equal length by name, as ``pandas.DataFrame(result.columns())`` takes them."""
        rows = [dict(_leaves(record)) for record in self._view().rows(self.to_dict())]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}

    def __str__(self) -> str:
        return render(self._view(), "text").rstrip("\n")

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(render(self._view(), "html"))}" style="{_FRAME}"></iframe>'

    def _view(self) -> View:
        raise NotImplementedError


def _leaves(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield keys with dots, and their values; lists have no place in a row."""
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        elif not isinstance(value, list):
            yield prefix + name, value


class Report(Result, assembly.Report):
    """A report of a profile, `of`. Its columns have one row, with the keys that `sweep` has."""

    of: Profile

    def _view(self) -> View:
        from kvplan.show.report import view

        return view(self, self.of)


class Study(Result, study.Study):
    """Policies side by side, and `bounds` that none can surpass. Its columns have a row for each policy."""

    profile: Profile
    bounds: Sequence[StudyBound]

    def _view(self) -> View:
        from kvplan.show.simulation import view

        return view(self, self.profile, self.bounds)


class Sweep(Result, dict[str, NDArray[Any]]):
    """Arrays by name of the column, each of shape (n_points,)."""

    def columns(self) -> Mapping[str, NDArray[Any]]:
        """Return the arrays, as `pandas.DataFrame` takes them."""
        return self

    def _view(self) -> View:
        return View(self._document, lambda full: page.document([self._section()]))

    def _document(self) -> Json:  # only NaN differs from itself
        return {name: [v if v == v else None for v in array.tolist()] for name, array in self.items()}

    def _section(self) -> page.Section:
        names = [name for name in self if name != "error" or any(self[name])]
        columns = [
            page.Column(name, right=self[name].dtype != np.object_, wraps=name == "error") for name in names
        ]
        rows = zip(*([_cell(value) for value in self[name].tolist()] for name in names), strict=True)
        points = page.table(columns, rows, _MAX_ROWS, "and {} more points")
        return page.Section("sweep", f"{len(self['point']):,} points", (points,))


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.6g}"
    return "" if value is None else str(value)
