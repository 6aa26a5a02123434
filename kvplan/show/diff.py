"""What differs between two reports, for people and programs."""

import json
from collections.abc import Sequence

from kvplan.gate.diff import Change, Comparison, Leaf, Row, Side, folded
from kvplan.show.check import key_column
from kvplan.show.elements import Block, Column, Paragraph, Section, Table, number, table, words
from kvplan.units import ABSENT, format_number, format_percent, format_rate, format_seconds

_FEW_ROWS, _MAX_ROWS = 10, 40
_MAX_TEXT, _MAX_LIST = 20, 28  # characters
_DECIDES = (  # what an operator looks at, in this order
    *("verdict.status", "verdict.binding", "load.offered_rps", "load.sustainable_rps", "load.headroom"),
    *("verdict.recovers_up_to_rps", "goodput.rate_rps", "latency.status"),
    *(f"latency.{time}.p95" for time in ("ttft_s", "itl_s", "e2e_s")),
    *("equilibrium.kv_utilization", "latency.preemptions_per_request", "prefix_cache.hit_ratio"),
    *("worst_cycle.loss", "verdict.drain.seconds", "cost.per_hour", "fleet.winner"),
    *("cost.offered.per_million_output_tokens", "safety_buffer.required_kv_tokens"),
)


def build(found: Comparison, *, full: bool = False) -> Section:
    """Build tables of what differs, what goes in before what comes out; `full`: beyond what decides."""
    a, b = found.before, found.after
    sides = [("Before", _name(a)), ("After", _name(b))]
    blocks: list[Block] = [table((Column(""), words("")), sides)]
    if found.inputs:
        inputs = [c for c in found.inputs if full or not c.key.startswith("provenance.")]
        blocks.append(_table("Input", folded(inputs, a.inputs or {}), full, _FEW_ROWS))
    elif found.inputs is not None and found.changes:
        blocks.append(Paragraph("No input differs."))
    if found.changes:
        rows = folded(found.changes, a.document)
        blocks.append(_table("Result", rows if full else _deciding(rows), full))
        if not full:
            blocks.append(Paragraph(f"{len(found.changes):,} keys of the report differ; --full shows more."))
    elif not found.inputs:
        blocks.append(Paragraph("Nothing differs."))
    return Section("diff", "What differs", tuple(blocks))


def _deciding(rows: Sequence[Row]) -> list[Row]:
    """What an operator looks at; where hardly any of that differs, the largest effects."""
    by_key = {row.change.key: row for row in rows}
    decide = [by_key[key] for key in _DECIDES if key in by_key]
    return (decide + [row for row in rows if row not in decide])[: max(len(decide), _FEW_ROWS)]


def _table(name: str, found: Sequence[Row], full: bool, most: int | None = None) -> Table:
    columns = (
        key_column(name),
        Column("Before", wraps=True, least=8, outcome=True),
        Column("After", wraps=True, least=8, outcome=True),
        number("Change"),
    )
    rows = [row for row in map(_row, found) if row[1:3] != (ABSENT, ABSENT)]
    if full:
        return table(columns, rows, _MAX_ROWS, "and {} more keys; --format json has all")
    return table(columns, rows, most, "and {} more; --full shows them")


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
