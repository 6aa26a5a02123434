"""The keys of the report's contract, and the keys that a document has."""

from collections.abc import Iterator
from typing import Any

from kvplan.report.keys import BLOCKS as REGISTERED
from kvplan.report.keys import CONTRACT, Kind

KEYS = [*CONTRACT]
BLOCKS = [*REGISTERED]


def keys_of(document: dict[str, Any]) -> set[str]:
    """The keys of a document as the contract writes them; a list that is empty or null counts with its items."""
    found = {key for path in _leaves(document) for key in KEYS if path in (key, key.removesuffix("[]"))}
    lists = {key.partition("[]")[0] for key in KEYS if "[]" in key}
    blocks = {name for name, block in REGISTERED.items() if block.nullable and document.get(name, 0) is None}
    absent = {path for path in _leaves(document) if path in lists | blocks}
    found |= {key for key in KEYS if key.partition("[]")[0] in absent or key.partition(".")[0] in blocks}
    unknown = {path for path in _leaves(document) if path not in absent and path not in found}
    return found | unknown


def _leaves(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict) and path != "sources":
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list) and value and CONTRACT.get(path, CONTRACT["sources"]).kind is not Kind.PAIR:
        for item in value:
            yield from _leaves(item, f"{path}[]")
    else:
        yield path
