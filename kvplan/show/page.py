"""Documents before any format: sections of tables, paragraphs, lists and figures.

All strings are plain text, names from the profile included: a format quotes them and interprets nothing.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from kvplan.report.words import Status
from kvplan.units import format_number, format_rate, format_seconds
from kvplan.version import __version__

MAX_ROWS = 20  # of a table of classes; programs read the JSON, people do not read a thousand rows

_COMMAND = re.compile(r"^(\s*:)(?=:)|(#)(?=#\[)", re.MULTILINE)
_WIDTH = 74  # of a command, before a backslash
_NOTHING = "\u200b"  # a space of no width
_Row = TypeVar("_Row")


class Column(NamedTuple):
    """A table column: numbers compared down the column stand right; names and sentences wrap where space is short.

    One that wraps keeps `least` characters. Cells of a `dotted` one are keys, which wrap at their dots; those of an
    `outcome` begin with PASS or FAIL, or with * where they are the best. An `optional` one is left out where space is
    short.
    """

    name: str
    right: bool = False
    wraps: bool = False
    least: int = 16
    dotted: bool = False
    optional: bool = False
    outcome: bool = False


class Table(NamedTuple):
    """Rows of formatted strings; `cut` says what was left out."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    cut: str | None = None


class Paragraph(NamedTuple):
    """A few sentences."""

    text: str


class Bullets(NamedTuple):
    """Sentences that stand each for itself."""

    items: tuple[str, ...]


class Figure(NamedTuple):
    """Lines of characters, to be shown as they are."""

    text: str


Block = Table | Paragraph | Bullets | Figure


class Section(NamedTuple):
    """A titled part; `key` is its name in the JSON where it has one.

    Where all its figures have one basis, `basis` says so once and the tables have no column for it.
    """

    key: str
    title: str
    blocks: tuple[Block, ...]
    basis: str | None = None


def section(
    key: str, title: str, *blocks: Block, notes: Iterable[str] = (), basis: str | None = None
) -> Section:
    """Put a section together, with notes below where there are any."""
    below = tuple(notes)
    return Section(key, title, (*blocks, Bullets(below)) if below else blocks, basis)


class Document(NamedTuple):
    """Sections, and their origin; a report has a `status` and a first screen above them."""

    sections: tuple[Section, ...]
    origin: str
    title: str = ""
    status: Status | None = None
    headline: str = ""
    summary: Table = Table((), ())
    actions: tuple[str, ...] = ()
    caveat: str = ""


def document(sections: Iterable[Section], *sha256: str) -> Document:
    """Put sections about profiles with these hashes together."""
    return Document(tuple(sections), origin(*sha256))


def key_column(name: str) -> Column:
    """Make a column of keys of the report."""
    return Column(name, wraps=True, least=12, dotted=True)


def words(name: str) -> Column:
    """Make a column of names or sentences."""
    return Column(name, wraps=True)


def number(name: str) -> Column:
    """Make a column of numbers."""
    return Column(name, right=True)


def table(
    columns: Iterable[Column], rows: Iterable[tuple[str, ...]], most: int | None = None, more: str = ""
) -> Table:
    """Make a table, of at most so many rows if that is given; `more` then says how many are left out, as ``{}``."""
    every = tuple(rows)
    left = 0 if most is None else len(every) - most
    return Table(tuple(columns), every[:most], more.format(f"{left:,}") if left > 0 else None)


Columns = Mapping[Column, Callable[[_Row], str]]  # each with what it shows of a row


def tabulate(columns: Columns[_Row], rows: Iterable[_Row], most: int | None = None, more: str = "") -> Table:
    """Make a table of columns, each with its text of a row.

    >>> tabulate({Column("Name"): str.title, number("Letters"): lambda row: f"{len(row)}"}, ["chat"]).rows
    (('Chat', '4'),)
    """
    return table(columns, (tuple(cell(row) for cell in columns.values()) for row in rows), most, more)


def in_unit(value: float | bool | str, unit: str, digits: int = 4) -> str:
    """Write a value of a key: times and rates with their units, words as they are, all else as a number.

    >>> in_unit(0.25, "s"), in_unit(3.0, "requests/s"), in_unit(1500, "tokens"), in_unit(True, "")
    ('250 ms', '3 requests/s', '1,500', 'true')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    if unit == "s":
        return format_seconds(value, digits)
    if unit.endswith("/s"):
        return format_rate(value, unit.removesuffix("/s"), digits)
    return format_number(value, digits)


def origin(*sha256: str) -> str:
    """Write the last line of any output: which kvplan made it, of which profiles."""
    hashes = ", ".join(full[:12] for full in sha256)
    return f"kvplan {__version__}, profile {hashes} (sha256)" if hashes else f"kvplan {__version__}"


def without_commands(text: str) -> str:
    """Break commands to GitHub's runner: a line that begins with ``::``, and ``##[`` anywhere.

    >>> without_commands(" ::error::no, a::b ##[group]").replace(_NOTHING, "~")
    ' :~:error::no, a::b #~#[group]'
    """
    return _COMMAND.sub(lambda match: match[0] + _NOTHING, text)


def json_without_commands(text: str) -> str:
    r"""Break ``##[`` in a JSON text by another spelling of the same string.

    >>> print(json_without_commands('"##[group]"'))
    "#\u0023[group]"
    """
    return text.replace("##[", "#\\u0023[")


def shell(begin: str, flags: Iterable[str]) -> Figure:
    """Break a command into lines that a shell takes as one."""
    lines = [begin]
    for flag in flags:
        if len(lines[-1]) + len(flag) > _WIDTH:
            lines.append(f"  {flag}")
        else:
            lines[-1] += f" {flag}"
    return Figure(" \\\n".join(lines))


def printable(text: str) -> str:
    r"""Escape, as Python does, what would move a terminal's cursor or turn a line around; line ends stay.

    >>> print(printable("red \x1b[31m\nand \u202e"))
    red \x1b[31m
    and \u202e
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
