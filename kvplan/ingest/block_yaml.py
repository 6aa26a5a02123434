"""Nested mappings in YAML as programs write it: a key a line, in blocks, without anchors, tags and folded text.

Items of a list are a mapping by their number. What has another form is passed over: a value is there or is missing,
and never another one.
"""

import json
from collections.abc import Iterable
from typing import Any

_DEEPEST = 50


def mapping(lines: Iterable[str]) -> dict[str, Any]:
    """Read a document.

    >>> mapping(["load:", "  rate: 2.5", "stack:", "- role: decode", "  tp: 8", "- role: prefill", "x: 'a: b'"])
    {'load': {'rate': 2.5}, 'stack': {'0': {'role': 'decode', 'tp': 8}, '1': {'role': 'prefill'}}, 'x': 'a: b'}
    """
    document: dict[str, Any] = {}
    blocks = [
        (-1, document)
    ]  # by how far their keys are indented; items stand half a step behind the key of a list
    for line in lines:
        text, indent = line.strip(), 2 * (len(line) - len(line.lstrip()))
        while text.startswith("- "):
            block = _block_at(blocks, indent + 1)
            item = block[str(len(block))] = {}
            blocks.append((indent + 1, item))
            indent += 2 * (len(text) - len(text := text[2:].lstrip()))
        key, colon, value = text.partition(":")
        if not colon or value[:1].strip() or text[0] == "#":
            continue
        block = _block_at(blocks, indent)
        if value.strip():
            block[key] = _scalar(value.strip())
        elif len(blocks) <= _DEEPEST:
            block[key] = {}
            blocks.append((indent, block[key]))
    return document


def _block_at(blocks: list[tuple[int, dict[str, Any]]], indent: int) -> dict[str, Any]:
    while blocks[-1][0] >= indent:
        blocks.pop()
    return blocks[-1][1]


def _scalar(text: str) -> Any:
    """Read a number or a word as JSON has them; else it is text."""
    try:
        return text.strip(text[0]) if text[0] in "'\"" else json.loads(text)
    except (ValueError, RecursionError):
        return text
