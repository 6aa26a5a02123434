"""JSON documents of commands, read as their JSON Schemas describe them."""

import json
from functools import cache
from typing import Any

import jsonschema  # type: ignore[import-untyped]

from kvplan.show.schemas import json_schema


def read(command: str, text: str) -> Any:
    """Read what a command wrote, every key of which the schema has."""
    document = json.loads(text)
    _validator(command).validate(document)
    assert _unknown(document, json_schema(command)) == []
    return document


@cache
def _validator(command: str) -> Any:
    return jsonschema.Draft202012Validator(json_schema(command))


def _unknown(value: Any, schema: dict[str, Any], path: str = "") -> list[str]:
    if isinstance(value, list):
        return [key for item in value for key in _unknown(item, schema.get("items", {}), path)]
    known = schema.get("properties")
    if not isinstance(value, dict) or not known:
        return []
    return [
        key
        for name, item in value.items()
        for key in (_unknown(item, known[name], f"{path}.{name}") if name in known else [f"{path}.{name}"])
    ]
