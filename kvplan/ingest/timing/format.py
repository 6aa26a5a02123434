"""What a format of samples is: the record that a module of `kvplan.ingest.timing.formats` calls ``FORMAT``.

Formats are told apart by content, never by name: a `TableFormat` by its columns, a `DocumentFormat` by keys of a JSON
object, lines of a `LogFormat` by their words.
"""

import csv
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from kvplan.errors import ProfileError
from kvplan.ingest.cells import plain_name, shown
from kvplan.ingest.timing.collector import Collector

_MOST = 1e12  # of anything

Names = Mapping[str, float]  # what a column can be called, plain, with its unit


def names(text: str, unit: float = 1.0) -> Names:
    """Plain names of a column in this unit, in the order in which they count."""
    return dict.fromkeys(text.split(), unit)


def number(seen: Any, source: str, key: str, line: int) -> float:
    """A number of a file, finite and not negative.

    Raises
    ------
    ProfileError
        It is no such number.
    """
    try:
        value = math.nan if isinstance(seen, bool) else float(seen)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not 0 <= value <= _MOST:
        what = "missing" if seen is None or seen == "" else shown(seen)
        raise ProfileError(source, f"{what}; must be a number, from 0 to {_MOST:g}", key=key, line=line)
    return value


def whole(value: float, source: str, key: str, line: int) -> int:
    """The same, a whole number of at least 1."""
    if value < 1 or value != int(value):
        raise ProfileError(source, f"{value:g}; must be a whole number of at least 1", key=key, line=line)
    return int(value)


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
        return number(seen, self.source, self.written.get(name, name), self.line) * column[name]

    def optional(self, column: Names) -> float | None:
        """The same for the first of them that is filled, None where none is."""
        filled = next((name for name in column if self.values.get(name) not in (None, "")), None)
        return None if filled is None else self.number({filled: column[filled]})

    def whole(self, column: Names) -> int:
        """The same as `number`, a whole number of at least 1."""
        name = next((name for name in column if name in self.written), next(iter(column)))
        return whole(self.number(column), self.source, self.written.get(name, name), self.line)

    def text(self, name: str) -> str:
        """What stands in a column; empty where it is missing."""
        seen = self.values.get(name)
        return "" if seen is None else str(seen).strip()


class TableFormat(NamedTuple):
    """Samples in the rows of a table, which `add` adds.

    Each of `columns` must be there; of two formats that a table fits, the one with more counts.
    """

    name: str
    columns: tuple[Names, ...]
    add: Callable[[Row, Collector], None]


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON object; what is in it is asked for by paths such as ``metrics.request_latency.mean``.

    Examples
    --------
    >>> document = Document("result.json", 1, {"latency": {"mean": 250}, "runs": [{"users": 3}]})
    >>> document.number("latency.mean", 1e-3), document.optional("latency.median")
    (0.25, None)
    >>> [run.number("users") for run in document.parts("runs")]
    [3.0]
    """

    source: str
    line: int
    value: Any
    within: str = ""

    def at(self, path: str) -> Any:
        """What stands there; None where nothing does."""
        value = self.value
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def number(self, path: str, unit: float = 1.0) -> float:
        """A number, in this unit.

        Raises
        ------
        ProfileError
            It is no such number, or missing.
        """
        return number(self.at(path), self.source, self._key(path), self.line) * unit

    def optional(self, path: str, unit: float = 1.0) -> float | None:
        """The same, None where it is missing or null."""
        return None if self.at(path) is None else self.number(path, unit)

    def whole(self, path: str) -> int:
        """The same as `number`, a whole number of at least 1."""
        return whole(self.number(path), self.source, self._key(path), self.line)

    def text(self, path: str) -> str:
        """A string; empty where there is none."""
        seen = self.at(path)
        return seen.strip() if isinstance(seen, str) else ""

    def parts(self, path: str) -> Iterator["Document"]:
        """The objects of a list.

        Raises
        ------
        ProfileError
            It is no list of objects.
        """
        seen = self.at(path)
        if not (isinstance(seen, list) and all(isinstance(part, dict) for part in seen)):
            raise self.error(path, "must be a list of objects")
        for index, part in enumerate(seen):
            yield Document(self.source, self.line, part, f"{self._key(path)}[{index}].")

    def error(self, path: str, message: str) -> ProfileError:
        """An error about what stands there."""
        return ProfileError(self.source, message, key=self._key(path), line=self.line)

    def _key(self, path: str) -> str:
        return self.within + path


class DocumentFormat(NamedTuple):
    """Samples in JSON objects of a certain form, which `add` adds; a file may hold several such."""

    name: str
    recognises: Callable[[Document], bool]
    add: Callable[[Document, Collector], None]


class LogReader(Protocol):
    """Adds samples to its collector, line by line, and what is left at the end of the log."""

    def line(self, number: int, text: str) -> None: ...
    def end(self) -> None: ...


class LogFormat(NamedTuple):
    """Samples in the lines that an engine logs among others; every line goes to a reader of each such format."""

    reader: Callable[[Collector], LogReader]


Format = TableFormat | DocumentFormat | LogFormat


def csv_rows(source: str, header: list[str], numbered: Iterable[tuple[int, str]]) -> Iterator[Row]:
    """Rows of a CSV, after its header."""
    plain = [plain_name(name) for name in header]
    written = {name: as_written.strip() for name, as_written in zip(plain, header, strict=True)}
    for line, text in numbered:
        cells = next(csv.reader([text]))
        yield Row(source, line, dict(zip(plain, cells, strict=False)), written, text.endswith(("\n", "\r")))


def row_of(document: Document) -> Row:
    """A JSON object as the row of a table."""
    plain = {plain_name(name): name for name in document.value}
    values = {name: document.value[written] for name, written in plain.items()}
    return Row(document.source, document.line, values, plain, ended=True)


def floats(found: re.Match[str] | None) -> list[float] | None:
    """Numbers of a line; None where one of them is none that can be, or the line has another form.

    Examples
    --------
    >>> floats(re.search("([0-9]+) of ([0-9.]+)", "3 of 1.5")), floats(None)
    ([3.0, 1.5], None)
    >>> floats(re.search("([0-9]+)", "9" * 400))
    """
    try:
        values = [float(text) for text in found.groups()] if found else []
    except ValueError:
        return None
    return values if values and max(values) <= _MOST else None
