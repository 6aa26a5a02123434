"""What a format of samples is: the record that a module of `kvplan.ingest.timing.formats` calls ``FORMAT``.

Formats are told apart by content, never by name: a `TableFormat` by its columns, lines of a `LogFormat` by their words.
"""

import csv
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from kvplan.errors import ProfileError
from kvplan.ingest.cells import json_object, plain_name, shown
from kvplan.ingest.timing.collector import Collector

_MOST = 1e12  # of anything

Names = Mapping[str, float]  # what a column can be called, plain, with its unit


def names(text: str, unit: float = 1.0) -> Names:
    """Plain names of a column in this unit, in the order in which they count."""
    return dict.fromkeys(text.split(), unit)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: values by plain name; how the name is written; whether the line came to its end."""

    source: str
    line: int
    values: Mapping[str, Any]
    written: Mapping[str, str]
    ended: bool

    def number(self, column: Names, *, default: float | None = None) -> float:
        """The first column of these names, in its unit.

        Raises
        ------
        ProfileError
            It is no such number, or missing where there is no default.
        """
        name = next((name for name in column if name in self.written), None)
        if name is None and default is not None:
            return default
        name = name or next(iter(column))
        seen = self.values.get(name)
        try:
            value = math.nan if isinstance(seen, bool) else float(seen)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            value = math.nan
        if not 0 <= value <= _MOST:
            what = "missing" if seen is None or seen == "" else shown(seen)
            message = f"{what}; must be a number, from 0 to {_MOST:g}"
            raise ProfileError(self.source, message, key=self.written.get(name, name), line=self.line)
        return value * column[name]

    def optional(self, column: Names) -> float | None:
        """The same where there is such a column and something in it, else None."""
        filled = any(self.values.get(name) not in (None, "") for name in column)
        return self.number(column) if filled else None

    def whole(self, column: Names) -> int:
        """The same, a whole number of at least 1."""
        value = self.number(column)
        if value < 1 or value != int(value):
            name = next(name for name in column if name in self.written)
            message = f"{value:g}; must be a whole number of at least 1"
            raise ProfileError(self.source, message, key=self.written[name], line=self.line)
        return int(value)

    def text(self, name: str) -> str:
        """What stands in a column; empty where it is missing."""
        return str(self.values.get(name, "")).strip()


class TableFormat(NamedTuple):
    """Samples in the rows of a table, which `add` adds.

    Each of `columns` must be there; of two formats that a table fits, the one with more counts.
    """

    name: str
    columns: tuple[Names, ...]
    add: Callable[[Row, Collector], None]


class LogReader(Protocol):
    """Adds samples to its collector, line by line, and what is left at the end of the log."""

    def line(self, number: int, text: str) -> None: ...
    def end(self) -> None: ...


class LogFormat(NamedTuple):
    """Samples in the lines that an engine logs among others; every line goes to a reader of each such format."""

    reader: Callable[[Collector], LogReader]


def csv_rows(source: str, header: list[str], numbered: Iterable[tuple[int, str]]) -> Iterator[Row]:
    """Rows of a CSV, after its header."""
    plain = [plain_name(name) for name in header]
    written = {name: as_written.strip() for name, as_written in zip(plain, header, strict=True)}
    for line, text in numbered:
        cells = next(csv.reader([text]))
        yield Row(source, line, dict(zip(plain, cells, strict=False)), written, _ended(text))


def json_rows(source: str, numbered: Iterable[tuple[int, str]]) -> Iterator[Row]:
    """Rows of JSON lines.

    Raises
    ------
    ProfileError
        A line that came to its end is no object.
    """
    for line, text in numbered:
        value = json_object(text)
        if value is None and _ended(text):
            message = f"not a JSON object: {shown(text)}; is the file cut off?"
            raise ProfileError(source, message, line=line)
        written = {plain_name(name): name for name in value or ()}
        yield Row(source, line, {plain_name(k): v for k, v in (value or {}).items()}, written, _ended(text))


def floats(found: re.Match[str] | None) -> list[float] | None:
    """Numbers of a line; None where one of them is not, or the line has another form.

    Examples
    --------
    >>> floats(re.search("([0-9]+) of ([0-9.]+)", "3 of 1.5")), floats(None)
    ([3.0, 1.5], None)
    """
    try:
        return [float(text) for text in found.groups()] if found else None
    except ValueError:
        return None


def _ended(text: str) -> bool:
    return text.endswith(("\n", "\r"))
