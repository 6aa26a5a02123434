"""Positions of keys in a TOML text: the parser gives values without lines, messages need lines.

The text is valid: it is split into statements at line ends, into key and value at ``=``, into elements at commas,
outside of strings, comments and brackets. What a key means (quotes, dots, escapes) is left to the TOML parser.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

import tomli

KeyPath = tuple[str | int, ...]

# Strings and comments come first: separators and brackets inside them are not seen.
_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\])*"'
    r"|'[^']*'"
    r"|#[^\n]*"
    r"|[\[\]{}=,\n]",
    re.DOTALL,
)
_BLANK = re.compile(r"(?:\s|#.*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]{1,60}")


def offsets(text: str, paths: Sequence[KeyPath]) -> list[int]:
    """Return offsets of keys in valid TOML with ``\\n`` line ends, or of the nearest table around, or else 0.

    >>> text = "[gpu]\\nblock_tokens = 16\\n[[classes]]\\n[[classes]]\\ndecode = {10 = 1, 20 = 1}"
    >>> paths = [("gpu", "block_tokens"), ("gpu", "memory"), ("classes", 1, "decode", "20")]
    >>> [text[offset:].split()[0] for offset in offsets(text, paths)]
    ['block_tokens', '[gpu]', '20']
    """
    parents = {path[:n] for path in paths for n in range(len(path))}
    wanted = parents.union(paths, [()])
    offset_of: dict[KeyPath, int] = {(): 0}
    for path, offset in _keys(text, parents):
        # A dotted key or header also marks the first appearance of the tables that it names.
        for n in range(1, len(path) + 1):
            if path[:n] in wanted:
                offset_of.setdefault(path[:n], offset)
        if len(offset_of) == len(wanted):
            break
    return [next(offset_of[p[:n]] for n in range(len(p), -1, -1) if p[:n] in offset_of) for p in paths]


def line_at(text: str, offset: int) -> int:
    r"""Line of an offset, counted from 1.

    >>> line_at("a\nb", 2)
    2
    """
    return text.count("\n", 0, offset) + 1


def written(path: KeyPath) -> str:
    """Write a key path as people do.

    >>> written(("classes", 0, "decode")), written(("gpu", "a b"))
    ('classes[0].decode', "gpu.'a b'")
    """
    out = ""
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        else:
            bare = _BARE_KEY.fullmatch(part)
            out += "." * bool(out) + (part if bare else repr(part if len(part) <= 60 else part[:57] + "..."))
    return out


def _keys(text: str, parents: set[KeyPath]) -> Iterator[tuple[KeyPath, int]]:
    """Yield headers and keys with offsets, in file order; inside a value only where `parents` lead."""
    table: KeyPath = ()
    latest: dict[KeyPath, int] = {}  # index of the open element of each [[list]]
    for start, end in _pieces(text, 0, "\n"):
        if text[start] != "[":
            yield from _pair(text, start, table, parents)
            continue
        parts = _parts(text[start:end])
        table = ()
        for depth, part in enumerate(parts, start=1):
            table += (part,)
            if depth == len(parts) and text.startswith("[[", start):
                latest[table] = latest.get(table, -1) + 1
            if table in latest:
                table += (latest[table],)
        yield table, start


def _pair(text: str, start: int, table: KeyPath, parents: set[KeyPath]) -> Iterator[tuple[KeyPath, int]]:
    _, end = next(_pieces(text, start, "="))
    path = table + _parts(text[start:end] + "=0")
    yield path, start
    yield from _inside(text, end + 1, path, parents)


def _inside(text: str, start: int, path: KeyPath, parents: set[KeyPath]) -> Iterator[tuple[KeyPath, int]]:
    if path not in parents:
        return
    start = _skip_blank(text, start, len(text))
    if text[start] == "[":
        for index, (element, _) in enumerate(_pieces(text, start + 1, ",")):
            yield (*path, index), element
            yield from _inside(text, element, (*path, index), parents)
    elif text[start] == "{":
        for pair, _ in _pieces(text, start + 1, ","):
            yield from _pair(text, pair, path, parents)


def _pieces(text: str, start: int, separator: str) -> Iterator[tuple[int, int]]:
    """Spans between separators, without leading blanks, up to the bracket that closes around them."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        mark = token[0]
        if mark == "[" or mark == "{":
            depth += 1
        elif mark == "]" or mark == "}":
            depth -= 1
        at_end = depth < 0
        if at_end or (mark == separator and depth == 0):
            begin = _skip_blank(text, start, token.start())
            if begin < token.start():
                yield begin, token.start()
            if at_end:
                return
            start = token.end()
    begin = _skip_blank(text, start, len(text))
    if begin < len(text):
        yield begin, len(text)


def _skip_blank(text: str, start: int, end: int) -> int:
    match = _BLANK.match(text, start, end)
    return match.end() if match else start


@lru_cache(maxsize=256)
def _parts(statement: str) -> tuple[str, ...]:
    """Key parts of one header or pair, as the TOML parser reads them."""
    parts: list[str] = []
    node = tomli.loads(statement)
    while node:
        ((part, inner),) = node.items()
        parts.append(part)
        node = inner[0] if isinstance(inner, list) else inner
    return tuple(parts)
