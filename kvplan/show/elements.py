"""What anything shown to people is made of, before any format: sections of tables, paragraphs, lists and figures.

All strings are plain text, names from the profile included: a format quotes them and interprets nothing.
"""

from collections.abc import Iterable
from typing import NamedTuple

from kvplan.report.words import Status
from kvplan.version import __version__

MAX_ROWS = 20  # of a table of classes; programs read the JSON, people do not read a thousand rows


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


class Document(NamedTuple):
    """A report for people: the first screen (up to `caveat`, a line of it that may be empty), then the details."""

    title: str
    status: Status
    headline: str
    summary: Table
    actions: tuple[str, ...]
    sections: tuple[Section, ...]
    origin: str
    caveat: str = ""


def words(name: str) -> Column:
    """A column of names or sentences."""
    return Column(name, wraps=True)


def number(name: str) -> Column:
    """A column of numbers."""
    return Column(name, right=True)


def table(
    columns: Iterable[Column], rows: Iterable[tuple[str, ...]], most: int | None = None, more: str = ""
) -> Table:
    """A table, of at most so many rows if that is given; `more` then says how many are left out, as ``{}``."""
    every = tuple(rows)
    left = 0 if most is None else len(every) - most
    return Table(tuple(columns), every[:most], more.format(f"{left:,}") if left > 0 else None)


def replicas(count: int, gpus: int = 1) -> str:
    """``1 replica``, ``2,000 replicas``, ``2 replicas (8 GPUs)`` where each has several.

    >>> replicas(1), replicas(2000), replicas(2, gpus=4)
    ('1 replica', '2,000 replicas', '2 replicas (8 GPUs)')
    """
    said = "1 replica" if count == 1 else f"{count:,} replicas"
    return said if gpus == 1 else f"{said} ({count * gpus:,} GPUs)"


def origin(*sha256: str) -> str:
    """The last line of whatever is shown: which kvplan made it, of which profiles."""
    hashes = ", ".join(one[:12] for one in sha256)
    return f"kvplan {__version__}, profile {hashes} (sha256)" if hashes else f"kvplan {__version__}"
