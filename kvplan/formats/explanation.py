"""Explanations of the report's keys, for a terminal and as Markdown."""

import textwrap
from collections.abc import Iterable

from kvplan.formats.commands import printable, without_commands
from kvplan.formats.markdown import quote
from kvplan.report.explain import Explained, Row, Summary
from kvplan.report.keys.evidence import Symbol

MIN_WIDTH, MAX_WIDTH = 40, 100
_LABEL = 10  # columns of "Formula" and its like


def text(page: Explained | Summary, *, width: int = 80) -> str:
    """What to print on a terminal of so many columns.

    Examples
    --------
    >>> row = Row("", "0.25", "1.25 − 1")
    >>> print(text(Explained("load.headroom", "Room.", (row,), "", "α − 1", (), "", "")), end="")
    load.headroom
    <BLANKLINE>
    Room.
    <BLANKLINE>
    Formula   α − 1
    Here      0.25 = 1.25 − 1
    """
    width = max(MIN_WIDTH, min(width, MAX_WIDTH))
    if isinstance(page, Summary):
        return _joined(_text_summary(page, width))
    return _joined(_text_key(page, width))


def markdown(page: Explained | Summary) -> str:
    """The same as GitHub Markdown.

    Examples
    --------
    >>> print(markdown(Summary("load", "Load.", (("load.work_rate", "0.5", "Work."),))), end="")
    ## load
    <BLANKLINE>
    Load.
    <BLANKLINE>
    | Key | Value | Meaning |
    | :--- | :--- | :--- |
    | load.work_rate | 0.5 | Work. |
    """
    return _joined(_markdown_summary(page) if isinstance(page, Summary) else _markdown_key(page))


def _text_key(page: Explained, width: int) -> Iterable[str]:
    yield from (page.key, "", *textwrap.wrap(page.meaning, width), "")
    for label, paragraphs in _parts(page):
        for number, paragraph in enumerate(paragraphs):
            yield from _hanging(("" if number else label).ljust(_LABEL), paragraph, width)


def _parts(page: Explained) -> Iterable[tuple[str, list[str]]]:
    """Label and paragraphs of what there is to say."""
    for label, paragraphs in (
        ("Formula", [page.formula]),
        ("Here", [*map(_equation, page.rows), page.cut]),
        ("Null", [page.absent]),
        ("Where", [*map(_definition, page.symbols)]),
        ("Source", [page.source]),
    ):
        if any(paragraphs):
            yield label, [p for p in paragraphs if p]


def _equation(row: Row) -> str:
    """``chat: 0.5 = 1 / 2``; a colon where what stands on the right is no number but a condition."""
    value = f"{row.name}: {row.value}" if row.name else row.value
    if not row.here:
        return value
    return f"{value}; {row.here}" if any(sign in row.here for sign in "<>≤;") else f"{value} = {row.here}"


def _definition(symbol: Symbol) -> str:
    """``M = 12: tokens``, without what is empty."""
    equation = " = ".join(part for part in (symbol.symbol, symbol.value) if part)
    return f"{equation}: {symbol.meaning}" if symbol.meaning else equation


def _hanging(label: str, paragraph: str, width: int) -> list[str]:
    return textwrap.wrap(
        paragraph,
        width,
        initial_indent=label,
        subsequent_indent=" " * (len(label) + 2),
        break_on_hyphens=False,
    )


def _text_summary(page: Summary, width: int) -> Iterable[str]:
    yield page.name
    if page.meaning:
        yield from ("", *textwrap.wrap(page.meaning, width))
    for key, value, meaning in page.keys:
        yield ""
        yield from _hanging("", f"{key} = {value}", width)
        yield from textwrap.wrap(meaning, width, initial_indent="  ", subsequent_indent="  ")


def _markdown_key(page: Explained) -> Iterable[str]:
    yield from (f"## {quote(page.key)}", "", quote(page.meaning), "")
    for label, paragraphs in _parts(page):
        if len(paragraphs) == 1:
            yield f"- **{label}:** {quote(paragraphs[0])}"
        else:
            yield from (f"- **{label}:**", *(f"  - {quote(p)}" for p in paragraphs))


def _markdown_summary(page: Summary) -> Iterable[str]:
    yield f"## {quote(page.name)}"
    if page.meaning:
        yield from ("", quote(page.meaning))
    yield from ("", "| Key | Value | Meaning |", "| :--- | :--- | :--- |")
    yield from (f"| {' | '.join(map(quote, row))} |" for row in page.keys)


def _joined(lines: Iterable[str]) -> str:
    return without_commands(printable("".join(f"{line.rstrip()}\n" for line in lines)))
