"""Differences between two reports: tables, and the JSON document."""

import json
from collections.abc import Sequence
from functools import partial

from kvplan.gate.diff import Change, Comparison, Leaf, Row, Side, folded
from kvplan.report.keys import SCREENS
from kvplan.show import page
from kvplan.show.view import Json, View, fields, header
from kvplan.units import ABSENT, format_percent

_FEW_ROWS, _MAX_ROWS = 10, 40
_MAX_TEXT, _MAX_LIST = 20, 28  # characters


def view(comparison: Comparison) -> View:
    """Show differences."""
    return View(lambda: document(comparison), lambda full: page.document([build(comparison, full=full)]))


def document(comparison: Comparison) -> Json:
    """Return the JSON: every key that differs, of the profiles and of the reports."""
    return {
        **header(),
        "before": _side(comparison.before),
        "after": _side(comparison.after),
        "inputs": None if comparison.inputs is None else list(map(_change, comparison.inputs)),
        "changes": list(map(_change, comparison.changes)),
    }


def _side(side: Side) -> Json:
    profile = side.document.get("profile")
    sha256 = profile.get("sha256") if isinstance(profile, dict) else None
    return {"name": side.name, "source": side.source, "sha256": sha256}


def _change(change: Change) -> Json:
    return {**fields(change, "key", "before", "after"), "relative_change": change.relative}


def build(comparison: Comparison, *, full: bool = False) -> page.Section:
    """Build tables of differences, inputs before figures; `full`: also those that do not decide."""
    a, b = comparison.before, comparison.after
    sides = [(name, f"{side.name} ({side.source})") for name, side in (("Before", a), ("After", b))]
    blocks: list[page.Block] = [page.table((page.Column(""), page.words("")), sides)]
    if comparison.inputs:
        inputs = [c for c in comparison.inputs if full or not c.key.startswith("provenance.")]
        blocks.append(_table("Input", folded(inputs, a.inputs or {}), full, _FEW_ROWS))
    elif comparison.inputs is not None and comparison.changes:
        blocks.append(page.Paragraph("No input differs."))
    if comparison.changes:
        rows = folded(comparison.changes, a.document)
        blocks.append(_table("Result", rows if full else _deciding(rows), full))
        if not full:
            blocks.append(
                page.Paragraph(f"{len(comparison.changes):,} keys of the report differ; --full shows more.")
            )
    elif not comparison.inputs:
        blocks.append(page.Paragraph("Nothing differs."))
    return page.Section("diff", "What differs", tuple(blocks))


def _deciding(rows: Sequence[Row]) -> list[Row]:
    """Choose rows an operator looks at; where hardly any differ, the largest effects."""
    by_key = {row.change.key: row for row in rows}
    decide = [by_key[key] for key in SCREENS["diff"].split() if key in by_key]
    return (decide + [row for row in rows if row not in decide])[: max(len(decide), _FEW_ROWS)]


def _table(name: str, rows: Sequence[Row], full: bool, most: int | None = None) -> page.Table:
    columns: page.Columns[Row] = {
        page.key_column(name): lambda row: row.change.key,
        page.Column("Before", wraps=True, least=8, outcome=True): _before,
        page.Column("After", wraps=True, least=8, outcome=True): _after,
        page.number("Change"): _moved,
    }
    rows = [row for row in rows if (_before(row), _after(row)) != (ABSENT, ABSENT)]
    if full:
        return page.tabulate(columns, rows, _MAX_ROWS, "and {} more keys; --format json has all")
    return page.tabulate(columns, rows, most, "and {} more; --full shows them")


def _before(row: Row) -> str:
    return "each" if row.entries > 1 else _distinct(row.change)[0]


def _after(row: Row) -> str:
    return "" if row.entries > 1 else _distinct(row.change)[1]


def _moved(row: Row) -> str:
    relative = row.change.relative
    return ABSENT if relative is None else format_percent(relative, 3, signed=True)


def _distinct(change: Change) -> tuple[str, str]:
    """Write both values with the digits that tell them apart."""
    for digits in range(4, 13):
        before, after = map(partial(_written, change.unit, digits), (change.before, change.after))
        if before != after:
            break
    return before, after


def _written(unit: str, digits: int, value: Leaf) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, list):
        [only] = value if len(value) == 1 else [value]
        text = json.dumps(only).replace('"', "")
        return text if len(text) <= _MAX_LIST else f"{len(value)} entries"
    if isinstance(value, str):
        printable = "".join(c if c.isprintable() else "\ufffd" for c in value)
        return printable if len(printable) <= _MAX_TEXT else printable[: _MAX_TEXT - 1] + "…"
    return page.in_unit(value, unit, digits)
