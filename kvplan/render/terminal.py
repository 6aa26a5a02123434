"""The report for a terminal: verdict, what to do and key figures within the first screen, details below.

Everything reaches Rich as `Text`, which it never interprets as markup.
"""

from collections.abc import Sequence
from io import StringIO

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from kvplan.render.document import Block, Bullets, Column, Document, Figure, Paragraph, Section, Table
from kvplan.report import Status

MIN_WIDTH, MAX_WIDTH = 40, 100  # narrower cannot be laid out, wider is harder to read

_INDENT = "  "
_MIN_WRAPPED = 16  # columns that names and sentences are given at least
_COLOURS = {Status.STABLE: "green", Status.NEEDS_CAP: "yellow", Status.OVERLOADED: "red"}


def render(
    document: Document, *, width: int = 80, colour: bool = False, picture: Section | None = None
) -> str:
    """The text to print.

    Parameters
    ----------
    document : Document
    width : int
        Columns of the terminal; more than 100 are not filled.
    colour : bool
        Write ANSI escape sequences.
    picture : Section, optional
        What stands below the key figures.

    Examples
    --------
    >>> from kvplan.render.document import Column, Document, Table
    >>> figures = Table((Column("Figure"), Column("Value")), (("Headroom", "+25%"),))
    >>> print(render(Document("chat", Status.STABLE, "It fits.", figures, ("Nothing.",), (), "kvplan 0")), end="")
    chat
    STABLE  It fits.
    <BLANKLINE>
    What to do
      1  Nothing.
    <BLANKLINE>
      Figure    Value
      Headroom  +25%
    <BLANKLINE>
    kvplan 0
    """
    width = max(MIN_WIDTH, min(width, MAX_WIDTH))
    sections = document.sections if picture is None else (picture, *document.sections)
    return _written(
        [
            Text(document.title, "bold", overflow="ellipsis", no_wrap=True),
            _verdict(document),
            Text(),
            Text("What to do", "bold"),
            _items(document.actions, [f"{n}" for n in range(1, len(document.actions) + 1)]),
            Text(),
            _table(document.summary, width),
            *(part for section in sections for part in _section(section, width)),
            Text(),
            Text(document.origin, "dim", overflow="fold"),
        ],
        width,
        colour,
    )


def render_section(section: Section, origin: str, *, width: int = 80, colour: bool = False) -> str:
    """The text of a single section, with its title first and its origin last.

    Examples
    --------
    >>> print(render_section(Section("a", "Two policies", (Paragraph("Equal."),)), "kvplan 0"), end="")
    Two policies
      Equal.
    <BLANKLINE>
    kvplan 0
    """
    return render_sections([section], origin, width=width, colour=colour)


def render_sections(
    sections: Sequence[Section], origin: str, *, width: int = 80, colour: bool = False
) -> str:
    """The text of several sections, with the origin last."""
    width = max(MIN_WIDTH, min(width, MAX_WIDTH))
    parts = [part for section in sections for part in _section(section, width)]
    return _written([*parts[1:], Text(), Text(origin, "dim", overflow="fold")], width, colour)


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
    console.print(Group(*parts))
    # Rich fills table cells up to their width
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _verdict(document: Document) -> RenderableType:
    word = document.status.replace("_", " ").upper()
    return Text.assemble((word, f"bold {_COLOURS[document.status]}"), "  ", document.headline)


def _section(section: Section, width: int) -> list[RenderableType]:
    title = Text(section.title, "bold")
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
            return _indented(Text(block.text, no_wrap=True, overflow="crop"))


def _table(table: Table, width: int) -> RenderableType:
    parts: list[RenderableType] = []
    for number, one in enumerate(_stacked(table, width)):
        if number:
            parts.append(Text())
        lines = _aligned(one)
        if max(map(cell_len, lines)) <= width:
            header, *rows = lines
            parts += [Text(header, "dim", no_wrap=True), *(Text(row, no_wrap=True) for row in rows)]
        else:
            parts.append(_wrapped(one))
    return Group(*parts, *([_indented(Text(table.cut, "dim"))] if table.cut else []))


def _stacked(table: Table, width: int) -> list[Table]:
    """The table itself, or tables of as many of its columns as fit beside the first: a cut number would be wrong."""
    cells = zip(*(tuple(column.name for column in table.columns), *table.rows), strict=True)
    widths = [
        min(max(map(cell_len, column)), _MIN_WRAPPED if of.wraps else width)
        for of, column in zip(table.columns, cells, strict=True)
    ]
    groups: list[list[int]] = [[]]
    for index in range(1, len(widths)):
        used = [widths[0], *(widths[i] for i in groups[-1]), widths[index]]
        if groups[-1] and len(_INDENT) + sum(used) + 2 * (len(used) - 1) > width:
            groups.append([])
        groups[-1].append(index)
    if len(groups) == 1:
        return [table]
    return [
        Table(
            tuple(table.columns[i] for i in (0, *group)),
            tuple(tuple(row[i] for i in (0, *group)) for row in table.rows),
        )
        for group in groups
    ]


def _aligned(table: Table) -> list[str]:
    """A line for the header and for each row, none of them wrapped: many times faster than a grid of Rich."""
    rows = [tuple(column.name for column in table.columns), *table.rows]
    widths = [max(map(cell_len, cells)) for cells in zip(*rows, strict=True)]

    def padded(cell: str, column: Column, width: int) -> str:
        gap = " " * (width - cell_len(cell))
        return gap + cell if column.right else cell + gap

    return [_INDENT + "  ".join(map(padded, row, table.columns, widths)).rstrip() for row in rows]


def _wrapped(table: Table) -> RenderableType:
    """The same where cells have to wrap."""
    grid = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column in table.columns:
        grid.add_column(
            Text(column.name),
            justify="right" if column.right else "left",
            no_wrap=not column.wraps,
            overflow="fold",
        )
    for row in table.rows:
        grid.add_row(*map(Text, row))
    return _indented(grid)


def _items(items: tuple[str, ...], marks: list[str]) -> RenderableType:
    grid = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for mark, item in zip(marks, items, strict=True):
        grid.add_row(Text(mark), Text(item))
    return _indented(grid)


def _indented(part: RenderableType) -> Padding:
    return Padding(part, (0, 0, 0, len(_INDENT)))
