"""The report as GitHub Markdown, to be pasted as it is: key figures first, details folded."""

import re
from collections.abc import Iterable

from kvplan.show.page import (
    Block,
    Bullets,
    Document,
    Figure,
    Paragraph,
    Section,
    Table,
    printable,
    without_commands,
)

_BREAK = "<!-- -->"  # ends what GitHub would take for a mention, an issue or an emoji
_QUOTED = str.maketrans(
    {
        "&": "&amp;",
        "<": "&lt;",
        ">": "&gt;",
        "$": "<span>$</span>",  # GitHub's way to keep it from starting a formula
        "@": "@" + _BREAK,
        "#": "\\#" + _BREAK,
        **{c: "\\" + c for c in "\\`*[]~|"},
    }
)
_LONE_UNDERSCORE = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_LIST_MARK = re.compile(r"^[-+](?=\s|$)|(?<=^\d)[.)](?=\s|$)")
_COLON = re.compile(r":(?=[\w+-]+:|//)")  # an emoji's name or a link


def render(document: Document) -> str:
    """Return the Markdown text; below the first screen of a report, sections are folded."""
    if document.status is None:
        parts = [part for section in document.sections for part in _unfolded(section)]
    else:
        word = document.status.replace("_", " ").upper()
        parts = [
            f"## {quote(document.title)}",
            f"**{word}** {quote(document.headline)}",
            *([quote(document.caveat)] if document.caveat else []),
            _table(document.summary),
            "**What to do**",
            _lines(f"{n}. {quote(action)}" for n, action in enumerate(document.actions, 1)),
            *map(_folded, document.sections),
        ]
    return without_commands(printable("\n\n".join([*parts, f"<sub>{quote(document.origin)}</sub>"]) + "\n"))


def quote(text: str) -> str:
    r"""Quote a text so that Markdown, HTML and GitHub show it as it is.

    >>> print(quote("kv_memory of _x_ <script> [a](b) @team :tada:"))
    kv_memory of \_x\_ &lt;script&gt; \[a\](b) @<!-- -->team :<!-- -->tada:
    """
    text = _LONE_UNDERSCORE.sub(r"\_", text.translate(_QUOTED))
    text = _LIST_MARK.sub(r"\\\g<0>", text)
    return _COLON.sub(":" + _BREAK, text)


def _unfolded(section: Section) -> list[str]:
    return [f"## {quote(section.title)}", *map(_block, section.blocks)]


def _folded(section: Section) -> str:
    # without the blank lines GitHub takes what is inside for HTML
    blocks = "\n\n".join(map(_block, section.blocks))
    title = f"{section.title} ({section.basis})" if section.basis else section.title
    return f"<details><summary>{title}</summary>\n\n{blocks}\n\n</details>"


def _block(block: Block) -> str:
    match block:
        case Table():
            return _table(block)
        case Paragraph():
            return quote(block.text)
        case Bullets():
            return _lines(f"- {quote(item)}" for item in block.items)
        case Figure():
            return f"```text\n{block.text}\n```"


def _table(table: Table) -> str:
    rows = [
        [quote(column.name) for column in table.columns],
        ["---:" if column.right else ":---" for column in table.columns],
        *(map(quote, row) for row in table.rows),
    ]
    text = _lines(f"| {' | '.join(row)} |" for row in rows)
    return f"{text}\n\n{quote(table.cut)}" if table.cut else text


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)
