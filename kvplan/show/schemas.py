"""JSON Schemas of the commands' JSON, drawn from documents.toml, a line for a key."""

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import tomli

_TYPES: Mapping[str, dict[str, Any]] = {
    "number": {"type": "number"},
    "integer": {"type": "integer"},
    "text": {"type": "string"},
    "truth": {"type": "boolean"},
    "table": {"type": "object", "properties": {}, "required": []},
    "list": {"type": "array", "items": {}},
    "texts": {"type": "array", "items": {"type": "string"}},
    "numbers": {"type": "array", "items": {"type": "number"}},
    "pair": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
    "any": {},
}
_SEVERAL = re.compile(r"\{([^}]*)\}")


@cache
def documents() -> Mapping[str, Mapping[str, str]]:
    """Descriptions of documents, by the command that writes them."""
    known: dict[str, dict[str, str]] = tomli.loads(
        Path(__file__).with_name("documents.toml").read_text("utf-8")
    )
    return known


def json_schema(command: str) -> dict[str, Any]:
    """Draw the JSON Schema of what a command writes with `--format json`. Later versions may add keys.

    Examples
    --------
    >>> json_schema("mix")["properties"]["search"]["properties"]["complete"]
    {'type': 'boolean', 'description': 'All were looked at'}
    """
    root = _described("table", "")
    for line in documents()[command]["keys"].splitlines():
        if line:
            paths, kind, meaning = line.split(" ", 2)
            for path in _each(paths.removeprefix("-")):
                _put(root, path.split("."), _described(kind, meaning), required=line[0] != "-")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": documents()[command]["title"],
        "description": "What it writes with --format json. Where a number does not exist there is null.",
        **root,
    }


def _each(paths: str) -> Iterator[str]:
    """Yield the paths that one stands for.

    >>> list(_each("a.{b,c}.d"))
    ['a.b.d', 'a.c.d']
    """
    several = _SEVERAL.search(paths)
    for word in several[1].split(",") if several else ():
        yield from _each(_SEVERAL.sub(word, paths, count=1))
    if several is None:
        yield paths


def _described(kind: str, meaning: str) -> dict[str, Any]:
    name = kind.removesuffix("?")
    words = name.split("|")
    leaf = {"type": "string", "enum": words} if words[1:] else deepcopy(_TYPES[name])
    if name != kind:
        leaf |= {"type": [leaf["type"], "null"]}
    return {**leaf, "description": meaning} if meaning else leaf


def _put(table: dict[str, Any], path: list[str], leaf: dict[str, Any], *, required: bool) -> None:
    """Add what stands at a path below a table; one that has no line of its own is as sure as what it has."""
    part, *rest = path
    name = part.removesuffix("[]")
    known = table["properties"]
    if name not in known:
        known[name] = _described("table", "") if rest else leaf
        if required:
            table["required"].append(name)
    if rest:
        inner = known[name]
        if name != part:
            inner["items"] = inner["items"] or _described("table", "")
            inner = inner["items"]
        _put(inner, rest, leaf, required=required)
