"""JSON as result files have it: an object a line, an object over many lines, several of them, or a list."""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain

from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.cells import json_object, shown
from kvplan.ingest.timing.format import Document

_LONGEST = 64_000_000  # characters
_BEGINS = re.compile(r"\s*(\{|\[\s*(\{|\]|$))")  # a line of a log may begin with a bracket too
_SPACE = re.compile(r"[ \t\r\n\ufeff]*")


def is_json(first: str) -> bool:
    """Whether a file that begins with this line is JSON.

    Examples
    --------
    >>> is_json('{"a": 1}'), is_json("["), is_json("[2026-04-08 14:05:20] Decode batch")
    (True, True, False)
    """
    return _BEGINS.match(first) is not None


def documents(source: str, number: int, first: str, lines: Iterator[str]) -> Iterator[Document | int]:
    """The objects of a file that begins with the line `first`, and the number of a last line that is cut off.

    Raises
    ------
    ProfileError
        Something is no object, but for a last line without its end.

    Examples
    --------
    >>> [found.value for found in documents("a.json", 1, "[\\n", iter(['{"a": 1},\\n', '{"a": 2}]']))]
    [{'a': 1}, {'a': 2}]
    """
    if json_object(first) is not None:
        yield from _by_line(source, enumerate(chain([first], lines), number))
    else:
        yield from _in_text(source, number, _joined(source, chain([first], lines)))


def _by_line(source: str, numbered: Iterable[tuple[int, str]]) -> Iterator[Document | int]:
    for line, text in numbered:
        if not text.strip():
            continue
        value = json_object(text)
        if value is not None:
            yield Document(source, line, value)
        elif text.endswith(("\n", "\r")):
            message = f"not a JSON object: {shown(text)}; is the file cut off?"
            raise ProfileError(source, message, line=line)
        else:
            yield line


def _in_text(source: str, line: int, text: str) -> Iterator[Document]:
    decoder, counted, in_list = json.JSONDecoder(), 0, False
    at = _SPACE.match(text).end()  # type: ignore[union-attr]
    while at < len(text):
        line += text.count("\n", counted, at)
        counted = at
        if text[at] in ("]" if in_list else "["):
            in_list, end = not in_list, at + 1
        else:
            try:
                value, end = decoder.raw_decode(text, at)
            except json.JSONDecodeError as error:
                wrong = line + text.count("\n", at, error.pos)
                message = f"not JSON: {error.msg}; is the file cut off?"
                raise ProfileError(source, message, line=wrong) from None
            except (ValueError, RecursionError):
                raise ProfileError(source, "JSON too deep, or a number too long", line=line) from None
            if not isinstance(value, dict):
                raise ProfileError(source, f"not a JSON object: {shown(text[at:end])}", line=line)
            yield Document(source, line, value)
        at = _SPACE.match(text, end).end()  # type: ignore[union-attr]
        if in_list and at < len(text) and text[at] == ",":
            at = _SPACE.match(text, at + 1).end()  # type: ignore[union-attr]
    if in_list:
        raise ProfileError(source, "not JSON: the list has no end; is the file cut off?", line=line)


def _joined(source: str, lines: Iterable[str]) -> str:
    """All the text, which must not be too long."""
    parts, length = [], 0
    for text in lines:
        parts.append(text)
        length += len(text)
        if length > _LONGEST:
            raise UsageError(f"{source}: a JSON document of more than {_LONGEST // 1_000_000} MB")
    return "".join(parts)
