"""The report as one HTML file: nothing is loaded, nothing runs, light or dark as the reader likes, printable.

Names from a profile are text and nothing else: all are escaped, characters that control a terminal or the direction
of writing are replaced, and a content security policy forbids whatever could still be meant to be loaded or run.
"""

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from kvplan.layout.elements import Block, Bullets, Document, Figure, Paragraph, Section, Table
from kvplan.plots.palette import DARK, LIGHT
from kvplan.report.words import Status

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_COLOURS = {Status.STABLE: "green", Status.NEEDS_CAP: "orange", Status.OVERLOADED: "red"}
_SIDE_BY_SIDE = (
    1060  # pixels from which a plot stands beside its tables, and small sections beside each other
)
_STACKED = 4  # columns from which a table is too wide for a telephone


class Picture(NamedTuple):
    """A plot for the page, or why there is none: then `svg` is None, else a trusted ``<svg>`` element.

    A `section` of None is the first screen; `numbers` are its figures, for those who do not see it.
    """

    section: str | None
    title: str
    basis: str
    caption: str
    numbers: str
    svg: str | None


def render(document: Document, pictures: Sequence[Picture] = (), notice: str | None = None) -> str:
    """The page, with the pictures of those sections that the document has.

    `notice` says what is missing from it and how to get that.

    Examples
    --------
    >>> from kvplan.layout.elements import Column
    >>> figures = Table((Column("Figure"), Column("Value", right=True)), (("a<b", "1"),))
    >>> page = render(Document("chat", Status.STABLE, "It fits.", figures, ("Nothing.",), (), "kvplan 0"))
    >>> '<tr><th scope="row">a&lt;b</th><td class="right">1</td></tr>' in page
    True
    """
    word = document.status.replace("_", " ").upper()
    first = [
        _table(document.summary, "Key figures"),
        "<h2>What to do</h2>",
        _list("ol", document.actions),
        *([f'<p class="soft">{quote(notice)}</p>'] if notice else []),
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
            "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'\">",
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{quote(document.title)}</title>",
            '<link rel="icon" href="data:,">',
            f"<style>{_STYLE}</style>",
            "</head>",
            "<body>",
            "<header>",
            f"<h1>{quote(document.title)}</h1>",
            f'<p class="verdict"><strong class="{_COLOURS[document.status]}">{word}</strong> '
            f"{quote(document.headline)}</p>",
            *([f'<p class="soft">{quote(document.caveat)}</p>'] if document.caveat else []),
            "</header>",
            "<main>",
            f"<section>{_beside(first, [p for p in pictures if p.section is None])}</section>",
            _contents(document.sections),
            *_sections(document.sections, pictures),
            "</main>",
            f"<footer>{quote(document.origin)}</footer>",
            "</body>",
            "</html>",
            "",
        ]
    )


def quote(text: str) -> str:
    r"""Text that a browser shows as it is; what cannot be shown, or would change how the rest is, is replaced.

    Examples
    --------
    >>> print(quote("<script> \x1b[31m 'a' & \"b\""))
    &lt;script&gt; �[31m &#x27;a&#x27; &amp; &quot;b&quot;
    >>> print(quote("##[group]"))  # a command to GitHub's runner, which shows what a job prints
    ##&#91;group]
    """
    return escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)).replace("##[", "##&#91;")


def _contents(sections: Iterable[Section]) -> str:
    links = (f'<li><a href="#{section.key}">{quote(section.title)}</a></li>' for section in sections)
    return f'<nav aria-label="Sections"><ul>{"".join(links)}</ul></nav>'


def _sections(sections: Sequence[Section], pictures: Sequence[Picture]) -> list[str]:
    """All sections; those of tables alone share the width of the page, two and two."""
    drawn = {picture.section for picture in pictures if picture.svg is not None}
    small = [
        section.key
        for section in sections
        if section.key not in drawn and any(isinstance(block, Table) for block in section.blocks)
    ]
    pairs = set(small[: len(small) // 2 * 2])
    return [_section(section, pictures, half=section.key in pairs) for section in sections]


def _section(section: Section, pictures: Iterable[Picture], *, half: bool) -> str:
    basis = f' <span class="basis">{quote(section.basis)}</span>' if section.basis else ""
    mine = [picture for picture in pictures if picture.section == section.key]
    body = _beside([_block(block, section.title) for block in section.blocks], mine)
    kind = _class("half" if half else "")
    return f'<section id="{section.key}"{kind}>\n<h2>{quote(section.title)}{basis}</h2>\n{body}\n</section>'


def _beside(parts: Iterable[str], pictures: Sequence[Picture]) -> str:
    """Text, and to its right the plots there are."""
    drawn = [_drawn(picture, picture.svg) for picture in pictures if picture.svg is not None]
    absent = [_absent(picture) for picture in pictures if picture.svg is None]
    text = _lines([*parts, *absent])
    if not drawn:
        return text
    return f'<div class="beside"><div>{text}</div><div>{_lines(drawn)}</div></div>'


def _absent(picture: Picture) -> str:
    return f'<p class="soft"><b>{quote(picture.title)}</b>: no plot. {quote(picture.caption)}</p>'


def _drawn(picture: Picture, svg: str) -> str:
    label = quote(f"{picture.title}. {picture.numbers}")
    drawing = svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    basis = f'<span class="basis">{quote(picture.basis)}</span>'
    return (
        f"<figure>\n{drawing}\n<figcaption><b>{quote(picture.title)}</b> {basis}<br>"
        f"{quote(picture.caption)}</figcaption>\n</figure>"
    )


def _block(block: Block, title: str) -> str:
    match block:
        case Table():
            return _table(block, title)
        case Paragraph():
            return f"<p>{quote(block.text)}</p>"
        case Bullets():
            return _list("ul", block.items)
        case Figure():
            return f'<pre tabindex="0">{quote(block.text)}</pre>'


def _list(kind: str, items: Iterable[str]) -> str:
    return f"<{kind}>{''.join(f'<li>{quote(item)}</li>' for item in items)}</{kind}>"


def _table(table: Table, title: str) -> str:
    """A table that scrolls by itself where it is too wide, by keyboard as well.

    One of many columns becomes a list of cards on a telephone: below the first cell of a row stand the others, each
    after the name of its column.
    """
    stacks = len(table.columns) >= _STACKED
    # a name or a sentence that heads a card needs no heading
    labels = [
        column.name if stacks and (number or column.right) else ""
        for number, column in enumerate(table.columns)
    ]
    classes = [("right" if column.right else "wraps" if column.wraps else "") for column in table.columns]
    heads = (
        # a column without a name heads nothing
        f'<th scope="col"{_class(kind)}>{quote(column.name)}</th>' if column.name else "<td></td>"
        for column, kind in zip(table.columns, classes, strict=True)
    )
    rows = (_row(row, classes, labels) for row in table.rows)
    cut = f'<p class="soft">{quote(table.cut)}</p>' if table.cut else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{quote(title)}">'
        f"<table{_class('stacks' if stacks else '')}>\n"
        f"<thead><tr>{''.join(heads)}</tr></thead>\n<tbody>\n{_lines(rows)}\n</tbody></table></div>{cut}"
    )


def _row(row: tuple[str, ...], classes: Sequence[str], labels: Sequence[str]) -> str:
    first, *others = (
        f"{_class(kind)}{_label(label)}>{quote(cell)}"
        for cell, kind, label in zip(row, classes, labels, strict=True)
    )
    return f'<tr><th scope="row"{first}</th>{"".join(f"<td{cell}</td>" for cell in others)}</tr>'


def _label(name: str) -> str:
    return f' data-label="{quote(name)}"' if name else ""


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _variables(palette: dict[str, str]) -> str:
    return " ".join(f"--{role}: {colour};" for role, colour in palette.items())


_STYLE = f"""
:root {{ color-scheme: light dark; {_variables(dict(LIGHT))} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {_variables(dict(DARK))} }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0 auto; padding: 1.5rem 1.25rem 3rem; max-width: 76rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  overflow-wrap: anywhere; }}
h1 {{ margin: 0 0 .5rem; font-size: 1.6rem; line-height: 1.25; }}
h2 {{ margin: 0 0 .75rem; font-size: 1.15rem; line-height: 1.3; }}
.scroll + h2 {{ margin-top: 1.25rem; }}
p, ol, ul, pre, figure {{ margin: 0 0 .75rem; }}
ol, ul {{ padding-left: 1.4rem; }}
a {{ color: var(--blue); }}
main > section, header {{ margin-bottom: 1.25rem; }}
main > section {{ padding: 1.1rem 1.25rem .6rem; border: 1px solid var(--rule); border-radius: 8px; }}
.verdict {{ font-size: 1.1rem; margin: 0; }}
.verdict strong {{ display: inline-block; padding: 0 .5em; margin-right: .25em; border-radius: 4px;
  color: var(--paper); letter-spacing: .03em; }}
.green {{ background: var(--green); }} .orange {{ background: var(--orange); }} .red {{ background: var(--red); }}
.basis {{ color: var(--soft); font-size: .8rem; font-weight: 400; border: 1px solid var(--rule); border-radius: 4px;
  padding: 0 .4em; white-space: nowrap; }}
.soft, footer, figcaption {{ color: var(--soft); font-size: .875rem; }}
figcaption b, .soft b {{ color: var(--ink); }}
nav ul {{ display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; list-style: none; padding: 0; margin: 0 0 1.25rem; }}
.scroll {{ overflow-x: auto; margin-bottom: .75rem; }}
table {{ border-collapse: collapse; width: 100%; font-size: .925rem; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; vertical-align: top; padding: .28rem .75rem .28rem 0; border-bottom: 1px solid var(--rule);
  overflow-wrap: normal; }}
thead th {{ color: var(--soft); font-weight: 500; font-size: .85rem; vertical-align: bottom; }}
tbody th {{ font-weight: 400; }}
.right {{ text-align: right; white-space: nowrap; }}
.wraps {{ overflow-wrap: anywhere; min-width: 8em; }}
pre {{ overflow-x: auto; font-size: .8rem; line-height: 1.2; }}
svg {{ display: block; width: 100%; height: auto; max-width: 34rem; margin-bottom: .5rem; }}
@media (min-width: {_SIDE_BY_SIDE}px) {{
  main {{ display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); grid-auto-flow: dense;
    column-gap: 1.25rem; }}
  main > * {{ grid-column: 1 / -1; }}
  main > .half {{ grid-column: auto; }}
  main > section > p, main > section > ul {{ max-width: 60rem; }}
  .beside {{ display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: 2rem; }}
}}
@media (max-width: 480px) {{
  body {{ padding: 1rem .75rem 2rem; }}
  main > section {{ padding: .9rem .8rem .4rem; }}
  table {{ font-size: .85rem; }}
  th, td {{ padding-right: .5rem; }}
  .stacks, .stacks tbody {{ display: block; }}
  .stacks thead {{ display: none; }}
  .stacks tr {{ display: grid; grid-template-columns: 1fr 1fr; column-gap: 1.25rem; padding: .3rem 0;
    border-bottom: 1px solid var(--rule); }}
  .stacks th, .stacks td {{ display: flex; flex-wrap: wrap; justify-content: flex-end; column-gap: .75rem;
    padding: .1rem 0; border: 0; }}
  .stacks th {{ grid-column: 1 / -1; font-weight: 600; justify-content: flex-start; }}
  .stacks [data-label]::before {{ content: attr(data-label); color: var(--soft); font-weight: 400;
    margin-right: auto; }}
  .stacks th[data-label]::before {{ margin-right: 0; }}
}}
@media print {{
  html {{ font-size: 80%; }}
  body {{ max-width: none; padding: 0; font-size: 1rem; }}
  nav {{ display: none; }}
  main > section {{ border: 0; padding: 0; }}
  .scroll {{ overflow: visible; }}
  h2 {{ break-after: avoid; }}
  tr, figure, li {{ break-inside: avoid; }}
  svg {{ max-width: 12cm; }}
  .verdict strong {{ print-color-adjust: exact; }}
}}
"""
