"""Commands, to a terminal or to GitHub's runner, which no name in a text is to become.

The runner takes a line that begins with ``::`` for a command, after blanks too, and ``##[`` wherever it stands.
"""

import re

_COMMAND = re.compile(r"^(\s*:)(?=:)|(#)(?=#\[)", re.MULTILINE)
_NOTHING = "\u200b"  # a space of no width


def without_commands(text: str) -> str:
    """The text with nothing that the runner would take for a command.

    Examples
    --------
    >>> without_commands(" ::error::no, a::b ##[group]").replace(_NOTHING, "~")
    ' :~:error::no, a::b #~#[group]'
    """
    return _COMMAND.sub(lambda match: match[0] + _NOTHING, text)


def printable(text: str) -> str:
    r"""The text with what would move a terminal's cursor, or turn a line around, as Python writes it; line ends stay.

    Examples
    --------
    >>> print(printable("red \x1b[31m\nand \u202e"))
    red \x1b[31m
    and \u202e
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def json_without_commands(text: str) -> str:
    r"""The same of a JSON text, where two spellings are the same string.

    Examples
    --------
    >>> print(json_without_commands('"##[group]"'))
    "#\u0023[group]"
    """
    return text.replace("##[", "#\\u0023[")
