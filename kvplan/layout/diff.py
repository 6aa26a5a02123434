"""What differs between two reports, for people and programs."""

import json
from collections.abc import Sequence

from kvplan.decide.diff import Change, Comparison, Leaf, Row, Side, folded
from kvplan.layout.check import key_column
from kvplan.layout.elements import Block, Column, Paragraph, Section, Table, number, table
from kvplan.units import ABSENT, format_number, format_percent, format_rate, format_seconds

_MAX_ROWS = 40
_MAX_TEXT, _MAX_LIST = 20, 28  # characters


def build(found: Comparison) -> Section:
    """Tables of what differs, what goes in before what comes out; or that nothing does."""
    a, b = found.before, found.after
    blocks: list[Block] = [Paragraph(f"Before: {_name(a)}. After: {_name(b)}.")]
    if found.inputs:
        blocks.append(_table("Input", folded(found.inputs, a.inputs or {})))
    elif found.inputs is not None and found.changes:
        blocks.append(Paragraph("No input differs."))
    if found.changes:
        blocks.append(_table("Result", folded(found.changes, a.document)))
    elif not found.inputs:
        blocks.append(Paragraph("Nothing differs."))
    return Section("diff", "What differs", tuple(blocks))


def _table(name: str, found: Sequence[Row]) -> Table:
    columns = (
        key_column(name),
        Column("Before", wraps=True, least=8),
        Column("After", wraps=True, least=8),
        number("Change"),
    )
    more = "and {} more keys with smaller effects; --format json has all"
    return table(columns, map(_row, found), _MAX_ROWS, more)


def _name(side: Side) -> str:
    return f"{side.name} ({side.source})"


def _row(row: Row) -> tuple[str, ...]:
    change = row.change
    digits = next(
        (d for d in range(4, 12) if _shown(change.before, change, d) != _shown(change.after, change, d)), 12
    )
    moved = ABSENT if change.relative is None else format_percent(change.relative, 3, signed=True)
    if row.entries > 1:
        return change.key, "each", "", moved
    return change.key, _shown(change.before, change, digits), _shown(change.after, change, digits), moved


def _shown(value: Leaf, change: Change, digits: int) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        [only] = value if len(value) == 1 else [value]
        text = json.dumps(only).replace('"', "")
        return text if len(text) <= _MAX_LIST else f"{len(value)} entries"
    if isinstance(value, str):
        printable = "".join(c if c.isprintable() else "\ufffd" for c in value)
        return printable if len(printable) <= _MAX_TEXT else printable[: _MAX_TEXT - 1] + "…"
    match change.unit:
        case "s":
            return format_seconds(value, digits)
        case unit if unit.endswith("/s"):
            return format_rate(value, unit.removesuffix("/s"), digits)
        case _:
            return format_number(value, digits)
