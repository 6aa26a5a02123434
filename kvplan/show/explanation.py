"""What a key of the report means, for people."""

from collections.abc import Iterator

from kvplan.report.explain import Explained, Row, Summary
from kvplan.report.keys.evidence import Symbol
from kvplan.show.elements import Block, Column, Paragraph, Section, key_column, table, words

_MOST_KEYS = 24  # of the first screen


def build(page: Explained | Summary, *, full: bool = False) -> Section:
    """Build a key with its formula in numbers, or the keys of a block; `full`: what each of those means, too."""
    if isinstance(page, Explained):
        parts = table((Column(""), words("")), _parts(page))
        return Section("explain", page.key, (Paragraph(page.meaning), *([parts] if parts.rows else [])))
    blocks: list[Block] = [Paragraph(page.meaning)] if page.meaning else []
    if full:
        columns = (key_column("Key"), words("Value"), words("Meaning"))
        blocks.append(table(columns, page.keys))
    else:
        there = [(key, value) for key, value, _ in page.keys if value != "null"]
        shown = table((key_column("Key"), words("Value")), there[:_MOST_KEYS])
        left = len(page.keys) - len(shown.rows)
        said = "--full says what each means" + (f", and shows {left} more" if left else "")
        blocks.append(shown._replace(cut=f"{said}."))
    return Section("explain", page.name, tuple(blocks))


def _parts(page: Explained) -> Iterator[tuple[str, str]]:
    """Rows of what there is to say, the first of each part with its label."""
    for label, paragraphs in (
        ("Formula", [page.formula]),
        ("Here", [*map(_equation, page.rows), page.cut]),
        ("Null", [page.absent]),
        ("Where", [*map(_definition, page.symbols)]),
        ("Source", [page.source]),
    ):
        said = [paragraph for paragraph in paragraphs if paragraph]
        yield from ((label if number == 0 else "", paragraph) for number, paragraph in enumerate(said))


def _equation(row: Row) -> str:
    """``chat: 0.5 = 1 / 2``; a semicolon where what stands on the right is no number but a condition."""
    value = f"{row.name}: {row.value}" if row.name else row.value
    if not row.here:
        return value
    return f"{value}; {row.here}" if any(sign in row.here for sign in "<>≤;") else f"{value} = {row.here}"


def _definition(symbol: Symbol) -> str:
    """``M = 12: tokens``, without what is empty."""
    equation = " = ".join(part for part in (symbol.symbol, symbol.value) if part)
    return f"{equation}: {symbol.meaning}" if symbol.meaning else equation
