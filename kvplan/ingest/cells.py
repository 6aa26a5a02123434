"""Values of a table or of JSON: names in any spelling, numbers in their units, objects.

A `Record` is a row of a table or a JSON object. Values are asked for by the names a column can have, or by paths of
keys such as ``metrics.request_latency.mean``; what does not fit is refused with file, line and key.
"""

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from kvplan.errors import ProfileError, UsageError

_SHOWN = 60  # characters of a value in a message
_MOST = 1e12  # of anything
_LONGEST = 64_000_000  # characters of a JSON document
_BEGINS = re.compile(r"\s*(\{|\[\s*(\{|\]|$))")  # a line of a log may begin with a bracket too
_SPACE = re.compile(r"[ \t\r\n\ufeff]*")
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+(\.\d*)?")
UPRIGHT = str.maketrans("│┃║", "|||")  # of tables that are drawn
_RULE = re.compile(r"(?=.*[|+\u2500-\u257f])(?=.*[-=\u2500-\u257f])[\s|+:=\u2500-\u257f-]+$")
_CORNER = re.compile(r"\s*[+\u2500-\u257f]")  # with which a rule above a header begins
_NOTHING = {"-", "–", "—", "n/a", "N/A"}
_CUT_OFF = "is the file cut off?"

Names = Mapping[str, float]  # what a value can be called, with the unit it then has


def names(text: str, unit: float = 1.0) -> Names:
    """Names of a value in this unit, in the order in which they count."""
    return dict.fromkeys(text.split(), unit)


def plain_name(name: str) -> str:
    """Write a name of a column without case, spaces and signs.

    Examples
    --------
    >>> plain_name("TPOT (ms)"), plain_name("input_tokens")
    ('tpotms', 'inputtokens')
    """
    return re.sub(r"[\W_]", "", name.lower())


def number_of(value: Any) -> float | None:
    """Read a number, which may have thousands separators; None of anything else.

    Examples
    --------
    >>> number_of("1,374"), number_of(7), number_of("1,5"), number_of(True)
    (1374.0, 7.0, None, None)
    """
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        separated = isinstance(value, str) and _THOUSANDS.fullmatch(value.strip())
        return float(value.replace(",", "")) if separated else None


def shown(value: Any) -> str:
    """Quote a value in a message: as in the file, and short."""
    text = repr(value.strip()) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


@dataclass(frozen=True, slots=True)
class Record:
    """A row of a table, or a JSON object.

    Attributes
    ----------
    values
        By plain name in a table, by key in JSON.
    written
        How the names of a table are written in the file; None of JSON.
    within
        Of an object in a list: the path of that.
    ended
        Whether the line came to its end.

    Examples
    --------
    >>> record = Record("result.json", 1, {"latency": {"mean": 250}, "runs": [{"users": 3}]})
    >>> record.number(names("latency.mean", 1e-3)), record.optional("latency.median")
    (0.25, None)
    >>> [run.number("users") for run in record.parts("runs")]
    [3.0]
    """

    source: str
    line: int
    values: Mapping[str, Any]
    written: Mapping[str, str] | None = None
    within: str = ""
    ended: bool = True

    def at(self, path: str) -> Any:
        """Look up what stands there; None where nothing does."""
        if self.written is not None:
            return self.values.get(path)
        value: Any = self.values
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def name(self, value: Names | str) -> str:
        """Tell under which of its names a value is there; the first where it is not."""
        if isinstance(value, str):
            return value
        return next(filter(self._has, value), next(iter(value)))

    def _has(self, name: str) -> bool:
        return self.at(name) is not None if self.written is None else name in self.written

    def number(self, value: Names | str, *, default: float | None = None) -> float:
        """Read a number that is finite and not negative, in its unit."""
        name = self.name(value)
        if default is not None and not self._has(name):
            return default
        seen = self.at(name)
        number = number_of(seen)
        number = math.nan if number is None else number
        if not 0 <= number <= _MOST:
            what = "missing" if seen is None or seen == "" else shown(seen)
            raise self.error(name, f"{what}; must be a number, from 0 to {_MOST:g}")
        return number if isinstance(value, str) else number * value[name]

    def optional(self, value: Names | str) -> float | None:
        """Read a number under the first name that is filled; None where none is."""
        known = {value: 1.0} if isinstance(value, str) else value
        if self.written is not None and self.values.keys().isdisjoint(known.keys()):
            return None  # of the hundred names of a time, with a table's few columns
        filled = next((name for name in known if self.at(name) not in (None, "")), None)
        return None if filled is None else self.number(filled) * known[filled]

    def whole(self, value: Names | str) -> int:
        """Read a whole number of at least 1."""
        number = self.number(value)
        if number < 1 or number != int(number):
            raise self.error(self.name(value), f"{number:g}; must be a whole number of at least 1")
        return int(number)

    def positive(self, value: Names | str) -> float:
        """Read a number above 0."""
        number = self.number(value)
        if number == 0:
            raise self.error(self.name(value), "0; must be above 0")
        return number

    def text(self, path: str) -> str:
        """Read what stands there as a word; empty where nothing does."""
        seen = self.at(path)
        return "" if seen is None else str(seen).strip()

    def parts(self, path: str) -> "Iterator[Record]":
        """Yield the objects of a list."""
        seen = self.at(path)
        if not (isinstance(seen, list) and all(isinstance(part, dict) for part in seen)):
            raise self.error(path, "must be a list of objects")
        for index, part in enumerate(seen):
            yield Record(self.source, self.line, part, within=f"{self.within}{path}[{index}].")

    def error(self, path: str, message: str) -> ProfileError:
        """Make an error about what stands there."""
        return ProfileError(self.source, message, key=self.within + self.written_as(path), line=self.line)

    def written_as(self, path: str) -> str:
        """Tell how a name is written in the file."""
        return path if self.written is None else self.written.get(path, path)

    @property
    def as_row(self) -> "Record":
        """A JSON object as the row of a table."""
        written = {plain_name(name): name for name in self.values}
        values = {plain: self.values[name] for plain, name in written.items()}
        return Record(self.source, self.line, values, written)


def csv_rows(
    source: str, header: Iterable[str], numbered: Iterable[tuple[int, str]], delimiter: str = ","
) -> Iterator[Record]:
    """Yield the rows of a CSV after its header, from numbered lines; blank ones say nothing."""
    written = {plain_name(name): name.strip() for name in header}
    plain = [plain_name(name) for name in header]
    for line, text in numbered:
        if text.strip():
            cells = next(csv.reader([text], delimiter=delimiter))
            values = dict(zip(plain, cells, strict=False))
            yield Record(source, line, values, written, ended=text.endswith(("\n", "\r")))


def tables_in(numbered: Iterable[tuple[int, str]]) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Yield the tables of a text as CSV: the header, and the rows with the numbers of their lines.

    They are in Markdown, or drawn with lines, where a name that is too long goes on in the next row.

    Examples
    --------
    >>> text = ["Results", "| ISL | TPOT (ms) |", "|----:|:---------:|", "| 1,024 | **24.3** |", ""]
    >>> list(tables_in(enumerate(text, 1)))
    [('ISL,TPOT (ms)\\r\\n', [(4, '"1,024",24.3\\r\\n')])]
    """
    header: list[str] = []
    rows: list[tuple[int, list[str]]] = []
    before, framed = "", False
    for line, written in chain(numbered, [(0, "")]):
        drawn = written.lstrip("> ")  # as in mail, and quoted in Markdown
        text = drawn.translate(UPRIGHT)
        is_rule = _RULE.match(text) is not None
        if header and is_rule:
            continue
        if header and "|" in text and (not framed or _framed(text)):
            cells = _cells(text)
            if text != drawn and rows and not any(cells[1:]):
                rows[-1][1][0] += f" {cells[0]}"
            else:
                rows.append((line, cells))
            continue
        if header:
            yield _as_csv(header), [(number, _as_csv(cells)) for number, cells in rows]
            header = []
        if is_rule and "|" in before and (_framed(before) or not _CORNER.match(text)):
            header, rows, framed = _cells(before), [], _framed(before)
        before = text


def _framed(text: str) -> bool:
    return text.lstrip().startswith("|")


def _cells(text: str) -> list[str]:
    cells = (re.sub(r"[*`]", "", cell).strip() for cell in text.strip().strip("|").split("|"))
    return ["" if cell in _NOTHING else cell for cell in cells]


def _as_csv(cells: list[str]) -> str:
    row = io.StringIO()
    csv.writer(row).writerow(cells)
    return row.getvalue()


def json_object(text: str) -> dict[str, Any] | None:
    """Read the JSON object that a text is; None where it is anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def is_json(first: str) -> bool:
    """Tell whether a file that begins with this line is JSON."""
    return _BEGINS.match(first) is not None


def json_records(source: str, number: int, first: str, lines: Iterator[str]) -> Iterator[Record]:
    """Yield the objects of a file that begins with the line `first`: one a line, over many lines, or in a list.

    A last line without its end may be cut off; its record is empty and has not `ended`.
    """
    if json_object(first) is None:
        yield from _in_text(source, number, _joined(source, chain([first], lines)))
        return
    for line, text in enumerate(chain([first], lines), number):
        if not text.strip():
            continue
        value = json_object(text)
        ended = text.endswith(("\n", "\r"))
        if value is None and ended:
            message = f"not a JSON object: {shown(text)}; {_CUT_OFF}"
            raise ProfileError(source, message, line=line)
        yield Record(source, line, value or {}, ended=value is not None)


def _in_text(source: str, line: int, text: str) -> Iterator[Record]:
    def after(place: int) -> int:
        match = _SPACE.match(text, place)
        return match.end() if match else place

    decoder, counted, in_list = json.JSONDecoder(), 0, False
    at = after(0)
    while at < len(text):
        line += text.count("\n", counted, at)
        counted = at
        if text[at] in ("]" if in_list else "["):
            in_list, end = not in_list, at + 1
        else:
            try:
                value, end = decoder.raw_decode(text, at)
            except json.JSONDecodeError as error:
                wrong = line + text.count("\n", at, error.pos)
                raise ProfileError(source, f"not JSON: {error.msg}; {_CUT_OFF}", line=wrong) from None
            except (ValueError, RecursionError):
                raise ProfileError(source, "JSON too deep, or a number too long", line=line) from None
            if not isinstance(value, dict):
                raise ProfileError(source, f"not a JSON object: {shown(text[at:end])}", line=line)
            yield Record(source, line, value)
        at = after(end)
        if in_list and at < len(text) and text[at] == ",":
            at = after(at + 1)
    if in_list:
        raise ProfileError(source, f"not JSON: the list has no end; {_CUT_OFF}", line=line)


def _joined(source: str, lines: Iterable[str]) -> str:
    parts, length = [], 0
    for text in lines:
        parts.append(text)
        length += len(text)
        if length > _LONGEST:
            raise UsageError(f"{source}: a JSON document of more than {_LONGEST // 1_000_000} MB")
    return "".join(parts)
