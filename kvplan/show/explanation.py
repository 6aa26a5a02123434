"""The page that explains a key of the report."""

from collections.abc import Iterator

from kvplan.report.explain import Explained, Input, Summary
from kvplan.show.page import Block, Column, Paragraph, Section, document, key_column, table, words
from kvplan.show.view import View

_MOST_KEYS = 24  # of the first screen


def view(about: Explained | Summary, sha256: str, *, full: bool) -> View:
    """Show what a key means for a profile; it has no JSON."""
    screen = document([build(about, full=full)], sha256)
    return View(dict, lambda _: screen)


def build(page: Explained | Summary, *, full: bool = False) -> Section:
    """Build the page of a key, or of the keys of a block; `full`: with what each of those means."""
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
    """Yield the rows of a page, the first of each part with its label."""
    values = [f"{name}: {value}" if name else value for name, value in page.rows]
    for label, paragraphs in (
        ("Formula", [page.formula]),
        ("Value", [*values, page.cut]),
        ("Null", [page.absent]),
        ("Inputs", [*map(_written, page.inputs)]),
        ("Source", [page.source]),
    ):
        said = [paragraph for paragraph in paragraphs if paragraph]
        yield from ((label if number == 0 else "", paragraph) for number, paragraph in enumerate(said))


def _written(given: Input) -> str:
    """Write ``M = 12: tokens``, without empty parts."""
    if not given.symbol:
        return f"{given.meaning} = {given.value}"
    return f"{given.symbol} = {given.value}: {given.meaning}"
