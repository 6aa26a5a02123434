"""The keys of the report's contract, and the keys that a document has."""

from collections.abc import Iterator
from typing import Any

from kvplan.report.keys import BLOCKS as REGISTERED
from kvplan.report.keys import CONTRACT, Kind

KEYS = [*CONTRACT]
BLOCKS = [*REGISTERED]


def keys_of(document: dict[str, Any]) -> set[str]:
    """The keys of a document as the contract writes them; what is empty or null counts with all that it could hold."""
    found, unknown = set[str](), set[str]()
    for path, value in _leaves(document):
        known = [key for key in KEYS if key in (path, f"{path}[]")]
        if not known and not value and value != 0:
            known = [key for key in KEYS if key.startswith((f"{path}.", f"{path}[]"))]
        found.update(known)
        unknown.update([] if known else [path])
    return found | unknown


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    kind = CONTRACT[path].kind if path in CONTRACT else None
    if isinstance(value, dict) and path != "sources" and kind is not Kind.TABLE:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list) and value and kind is not Kind.PAIR:
        for item in value:
            yield from _leaves(item, f"{path}[]")
    else:
        yield path, value
