"""One record for every format that is read: what a file of it is, how it begins, and what reads it.

To add a format is to add a module with a `Reader` to the package of its kind; `readers_in` finds it, and nothing else
need know of it. Formats are told apart by content, never by name.
"""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Generic, NamedTuple, TypeVar

from kvplan.ingest.cells import is_json, json_object, json_records, plain_name
from kvplan.ingest.text_file import beginning, lines_of

_CHARACTERS = 1 << 16  # of a beginning
_MOST_LINES = 100_000  # that are read of a log until it says what it is
_MOST_COLUMNS = 2_000  # of a table; more are rows without line ends
_LONGEST_NAME = 1_000  # characters that tell what a column is
_DELIMITERS = ",;\t"


class FileKind(StrEnum):
    """Content of a file."""

    LOG = "log"
    TIMING = "timing"
    DRAFTS = "drafts"
    REQUESTS = "requests"
    METRICS = "metrics"
    MODEL = "model"
    PROFILE = "profile"


class Beginning(NamedTuple):
    """How a file begins."""

    line: str  # the first that is not blank
    in_json: bool  # it begins an object, or a list of them; else it is taken for the header of a table
    names: Sequence[str]  # of the columns, or the keys of the first object; as written
    values: Mapping[str, Any] | None  # the first object; None where it goes on in lines that were not read
    delimiter: str = ""  # of a table
    text: str = ""  # some thousand characters of a file
    path: Path | None = None

    @classmethod
    def of_line(cls, line: str) -> "Beginning":
        """Take the first line alone."""
        if line.lstrip().startswith("{"):
            values = json_object(line)
            return cls(line, True, list(values or ()), values)
        delimiter = max(_DELIMITERS, key=line.count)
        names = next(csv.reader([line], delimiter=delimiter), [])
        return cls(line, False, names if len(names) <= _MOST_COLUMNS else (), None, delimiter)

    @classmethod
    def of_file(cls, path: Path) -> "Beginning":
        """Take the first object or header of a file; bytes that are not UTF-8 do no harm."""
        text = beginning(path, _CHARACTERS, "replace")
        with lines_of(path, errors="replace") as lines:
            line = next((line for line in lines if line.strip()), "")
            if is_json(line):
                first = next(json_records(lines.source, lines.number, line, iter(lines)), None)
                values = first.values if first is not None and first.ended else {}
                return cls(line, True, list(values), values, text=text, path=path)
        try:
            return cls.of_line(line)._replace(text=text, path=path)
        except csv.Error:
            return cls(line, False, (), None, text=text, path=path)

    def has(self, *names: str) -> bool:
        """Tell whether there are such keys or columns, written like this."""
        return all(name in self.names for name in names)

    @property
    def plain_names(self) -> frozenset[str]:
        """The names without case, spaces and signs."""
        return _plain(tuple(self.names))

    def log_lines(self) -> Iterator[str]:
        """Yield the lines of a file, as many as a log may take to say what it is."""
        if self.path is None:
            return
        with lines_of(self.path, errors="replace") as lines:
            yield from islice(lines, _MOST_LINES)


@lru_cache(8)  # every reader asks
def _plain(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(plain_name(name[:_LONGEST_NAME]) for name in names)


Reads = TypeVar("Reads")


class Reader(NamedTuple, Generic[Reads]):
    """A format, under the name by which provenance calls it.

    `recognises` tells a file by how it begins. `read` is what reads it: readers of one package are called alike, as its
    documentation says. Of those that recognise a file the one that asks for the most columns reads it.
    """

    name: str
    kind: FileKind
    recognises: Callable[[Beginning], bool]
    read: Reads
    columns: int = 0


def collected(package: str, path: Sequence[str], name: str) -> tuple[Any, ...]:
    """Collect what modules of a package call `name`, in the order of the modules."""
    modules = (import_module(f"{package}.{module.name}") for module in iter_modules(path))
    return tuple(getattr(module, name) for module in modules if hasattr(module, name))
