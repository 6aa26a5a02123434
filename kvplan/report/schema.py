"""JSON Schema of the report, for programs that read it: drawn from the records of its keys."""

from typing import Any

from kvplan.report.keys import BLOCKS, CONTRACT, SOURCE_KEYS, Kind, Record

_TYPES = {
    Kind.NUMBER: "number",
    Kind.TEXT: "string",
    Kind.TRUTH: "boolean",
    Kind.PAIR: "array",
    Kind.TABLE: "object",
}


def json_schema() -> dict[str, Any]:
    """Draw the JSON Schema of what `kvplan analyze --format json` writes. Later versions may add keys.

    Examples
    --------
    >>> json_schema()["properties"]["load"]["properties"]["work_rate"]["type"]
    'number'
    """
    root = _table()
    for record in (*CONTRACT.values(), *SOURCE_KEYS.values()):
        _put(root, record.key.split("."), record)
    for name, block in BLOCKS.items():
        described = root["properties"][name]
        _let_be_null(described)
        described.setdefault("description", block.meaning)
        if block.nullable:
            described["type"] = ["object", "null"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kvplan report",
        "description": "What kvplan analyze --format json writes. Where a number does not exist there is null.",
        **root,
    }


def _put(table: dict[str, Any], path: list[str], record: Record) -> None:
    """Add what stands at a path below a table."""
    part, *rest = path
    name = part.removesuffix("[]")
    known = table["properties"]
    if name not in known:
        table["required"].append(name)
    if rest:
        inner = known.setdefault(name, {"type": "array", "items": _table()} if name != part else _table())
        _put(inner["items"] if name != part else inner, rest, record)
    elif name != part:
        known[name] = {**_leaf(record, "array"), "items": {"type": _type(record)}}
    elif record.kind is Kind.PAIR:
        known[name] = {**_leaf(record, "array"), "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    elif record.kind is Kind.TABLE:
        known[name] = {**_table(), **_leaf(record, "object")}
    else:
        known[name] = _leaf(record, _type(record))


def _let_be_null(table: dict[str, Any]) -> None:
    """Tables below this one of which all can be null can be null themselves."""
    for inner in table.get("properties", {}).values():
        if inner["type"] == "object" and inner["properties"]:
            _let_be_null(inner)
            if all("null" in described["type"] for described in inner["properties"].values()):
                inner["type"] = ["object", "null"]


def _table() -> dict[str, Any]:
    return {"type": "object", "properties": {}, "required": []}


def _leaf(record: Record, kind: str) -> dict[str, Any]:
    unit = f" Unit: {record.unit}." if record.unit else ""
    leaf: dict[str, Any] = {"description": record.meaning + unit, "type": kind}
    allowed: list[str | None] = list(record.allowed)
    if record.absent:
        leaf["type"] = [kind, "null"]
        allowed += [None] if allowed else []
    return {**leaf, "enum": allowed} if allowed else leaf


def _type(record: Record) -> str:
    return "integer" if record.whole else _TYPES[record.kind]
