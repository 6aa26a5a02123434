"""The report for a terminal: verdict, what to do and key figures within the first screen, details below.

Everything reaches Rich as `Text`, which it never interprets as markup.
"""

import re
from collections.abc import Sequence
from io import StringIO
from textwrap import indent, shorten
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.containers import Lines
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from kvplan.report.words import Status
from kvplan.show.page import (
    Block,
    Bullets,
    Column,
    Document,
    Figure,
    Paragraph,
    Section,
    Table,
    printable,
    without_commands,
)
from kvplan.units import ABSENT

MIN_WIDTH, MAX_WIDTH = 40, 100  # narrower cannot be laid out, wider is harder to read

_INDENT = "  "
_LONG_WORD = 16  # longer ones are cut where a column wraps
_BREAKS = (
    re.compile(r"(?<=[.\] ])(?=[^.\] ])"),
    re.compile(r"(?<=[_\[-])(?=[^_])"),
)  # of a key, the better ones first
_COLOURS = {Status.STABLE: "green", Status.NEEDS_CAP: "yellow", Status.OVERLOADED: "red"}
_OUTCOMES = {
    **{status.value: colour for status, colour in _COLOURS.items()},
    **dict.fromkeys(("PASS", "PASSED", "*"), "green"),
    **dict.fromkeys(("FAIL", "FAILED", "UNUSABLE"), "red"),
}


def render(document: Document, *, width: int = 80, colour: bool = False) -> str:
    """Return the text to print, at most 100 columns wide; in colour, with ANSI escape sequences."""
    width = max(MIN_WIDTH, min(width, MAX_WIDTH))
    document = _harmless(document)
    parts = [part for section in document.sections for part in _section(section, width)]
    above = [] if document.status is None else _first_screen(document, document.status, width)
    parts = [*above, *parts] if above else parts[1:]
    return _written([*parts, Text(), Text(document.origin, "dim", overflow="fold")], width, colour)


def _first_screen(document: Document, status: Status, width: int) -> list[RenderableType]:
    word = status.replace("_", " ").upper()
    caveat = shorten(
        document.caveat, width, placeholder=" …"
    )  # in columns only nearly: ellipsis cuts the rest
    return [
        Text(document.title, "bold", overflow="ellipsis", no_wrap=True),
        Text.assemble((word, f"bold {_COLOURS[status]}"), "  ", document.headline),
        *([Text(caveat, "dim", overflow="ellipsis", no_wrap=True)] if caveat else []),
        Text(),
        Text("What to do", "bold"),
        _items(document.actions, [f"{n}" for n in range(1, len(document.actions) + 1)]),
        Text(),
        _table(document.summary, width),
    ]


def _harmless(part: Any) -> Any:
    """Quote control characters in all texts of a part."""
    if type(part) is str:
        return printable(part)
    if not isinstance(part, tuple):
        return part
    parts = map(_harmless, part)
    return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)


def _written(parts: list[RenderableType], width: int, colour: bool) -> str:
    out = StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        legacy_windows=False,
        _environ={},  # the caller has decided
    )
    console.print(Group(*parts), crop=False)  # a word of a command may be longer than a line
    # Rich fills table cells up to their width
    return without_commands("".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines()))


def _section(section: Section, width: int) -> list[RenderableType]:
    title = Text.assemble((section.title, f"bold {_style(section.title)}"))
    if section.basis:
        title.append(f"  {section.basis}", "not bold dim")
    parts: list[RenderableType] = [Text(), title]
    for number, block in enumerate(section.blocks):
        if number:
            parts.append(Text())
        parts.append(_block(block, width))
    return parts


def _block(block: Block, width: int) -> RenderableType:
    match block:
        case Table():
            return _table(block, width)
        case Paragraph():
            return _indented(Text(block.text))
        case Bullets():
            return _items(block.items, ["-"] * len(block.items))
        case Figure():
            return Text(indent(block.text, _INDENT), no_wrap=True, overflow="ignore")  # Padding would cut it


def _table(table: Table, width: int) -> RenderableType:
    parts: list[RenderableType] = []
    for number, part in enumerate(_stacked(table, width)):
        if number:
            parts.append(Text())
        lines = _aligned(part)
        parts += lines if max(line.cell_len for line in lines) <= width else [_wrapped(part, width)]
    return Group(*parts, *([_indented(Text(table.cut, "dim"))] if table.cut else []))


def _style(text: str) -> str:
    """Choose the colour of an outcome by its first word."""
    return _OUTCOMES.get(text.partition(" ")[0], "")


def _stacked(table: Table, width: int) -> list[Table]:
    """Split a table that is too wide: first leave out what is optional, then stack tables of as many columns as fit
    beside the first, or the first two where those are outcome and key. A cut number would be wrong."""
    _, least = _widths(table)
    if len(_INDENT) + sum(least) + 2 * (len(least) - 1) > width:
        kept = [i for i, column in enumerate(table.columns) if not column.optional]
        if len(kept) < len(least):
            return _stacked(_of_columns(table, kept), width)
    first = [0, 1] if table.columns[0].outcome else [0]
    groups: list[list[int]] = [[]]
    for index in range(len(first), len(least)):
        used = [least[i] for i in (*first, *groups[-1], index)]
        if groups[-1] and len(_INDENT) + sum(used) + 2 * (len(used) - 1) > width:
            groups.append([])
        groups[-1].append(index)
    return [table] if len(groups) == 1 else [_of_columns(table, [*first, *group]) for group in groups]


def _widths(table: Table) -> tuple[list[int], list[int]]:
    """Return each column's full width, and the least that will do."""
    natural, least = [], []
    columns = zip(*(tuple(column.name for column in table.columns), *table.rows), strict=True)
    for column, cells in zip(table.columns, columns, strict=True):
        full = max(map(cell_len, cells))
        word = 0 if column.dotted else max(cell_len(word) for cell in cells for word in cell.split() or [""])
        natural.append(full)
        least.append(min(full, max(column.least, min(word, _LONG_WORD))) if column.wraps else full)
    return natural, least


def _shrunk(table: Table, width: int) -> list[int]:
    """Return widths that fit, the widest columns made narrower first."""
    widths, least = _widths(table)
    for _ in range(len(_INDENT) + sum(widths) + 2 * (len(widths) - 1) - width):
        widest = max(range(len(widths)), key=lambda i: widths[i] if widths[i] > least[i] else 0)
        if widths[widest] > least[widest]:
            widths[widest] -= 1
    return widths


def _of_columns(table: Table, chosen: Sequence[int]) -> Table:
    """Take some columns, without the rows that say nothing there."""
    columns = tuple(table.columns[i] for i in chosen)
    rows = (tuple(row[i] for i in chosen) for row in table.rows)
    return Table(columns, tuple(row for row in rows if {*row[1:]} != {ABSENT}), table.cut)


def _aligned(table: Table) -> list[Text]:
    """Write lines of the header and each row, none wrapped: many times faster than a grid of Rich."""
    header = tuple(column.name for column in table.columns)
    widths = [max(map(cell_len, cells)) for cells in zip(header, *table.rows, strict=True)]

    def line(row: Sequence[str], style: str) -> Text:
        parts: list[str | tuple[str, str]] = []
        for cell, column, width in zip(row, table.columns, widths, strict=True):
            gap = " " * (width - cell_len(cell))
            shown = (cell, _style(cell) if column.outcome and not style else style)
            parts += ["  ", gap, shown] if column.right else ["  ", shown, gap]
        text = Text.assemble(*parts, no_wrap=True)
        text.rstrip()
        return text

    return [*([line(header, "dim")] if any(header) else []), *(line(row, "") for row in table.rows)]


def _wrapped(table: Table, width: int) -> RenderableType:
    """Lay a table out whose cells have to wrap."""
    headed = any(column.name for column in table.columns)
    grid = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", show_header=headed)
    keyed = any(column.dotted for column in table.columns)
    widths = _shrunk(table, width) if keyed else [None] * len(table.columns)
    for column, wide in zip(table.columns, widths, strict=True):
        grid.add_column(
            Text(column.name),
            justify="right" if column.right else "left",
            no_wrap=not column.wraps,
            overflow="fold",
            width=wide,
        )
    for row in table.rows:
        grid.add_row(*map(_cell, row, table.columns))
    return _indented(grid)


def _cell(text: str, column: Column) -> Text:
    if column.outcome:
        return Text(text, _style(text))  # what nobody asks for has no outcome
    return _KeyText(text) if column.dotted else Text(text)


class _KeyText(Text):
    """A key of the report, which wraps at its dots, or else between its words."""

    def wrap(self, console: Console, width: int, **_: Any) -> Lines:
        return self.divide(_key_breaks(self.plain, width))


def _key_breaks(text: str, width: int) -> list[int]:
    """Break a key into parts of at most so many columns; return where.

    >>> _key_breaks("equilibrium.requests_in_flight", 20), _key_breaks("equilibrium.requests_in_flight", 12)
    ([12], [12, 24])
    """
    breaks, start = [], 0
    while cell_len(text[start:]) > width:
        end = start + 1
        while cell_len(text[start : end + 1]) <= width:
            end += 1
        places = ([m.start() for m in kind.finditer(text) if start < m.start() <= end] for kind in _BREAKS)
        start = next((ends[-1] for ends in places if ends), end)
        breaks.append(start)
    return breaks


def _items(items: tuple[str, ...], marks: list[str]) -> RenderableType:
    grid = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for mark, item in zip(marks, items, strict=True):
        grid.add_row(Text(mark), Text(item))
    return _indented(grid)


def _indented(part: RenderableType) -> Padding:
    return Padding(part, (0, 0, 0, len(_INDENT)))
