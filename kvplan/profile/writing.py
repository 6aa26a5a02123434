"""Profiles written: tables as TOML."""

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

_TABLES = (
    "provenance", "gpu", "engine", "timing", "speculative", "fleet", "workload", "classes", "sessions", "prefix",
    "slo", "cost", "plan", "gate",
)  # fmt: skip
_WITHIN = ("gpu", "kv")  # a list of tables written as such; other lists are in line


def document_text(tables: Mapping[str, Any]) -> str:
    """A whole profile.

    >>> print(document_text({"schema": 1, "name": "n", "gpu": {"memory_tokens": 5_000}}), end="")
    schema = 1
    name = "n"
    <BLANKLINE>
    [gpu]
    memory_tokens = 5_000
    """
    head = f"schema = {tables['schema']}\nname = {quoted(tables['name'])}"
    written = [table_text(name, tables[name]) for name in _TABLES if tables.get(name)]
    return "\n\n".join([head, *written]) + "\n"


def table_text(name: str, value: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    """A table, or each of a list of tables, written anew."""
    header, tables = (f"[{name}]", [value]) if isinstance(value, Mapping) else (f"[[{name}]]", value)
    written = []
    for table in tables:
        within = {k: v for k, v in table.items() if (name, k) == _WITHIN}
        lines = [f"{_key(k)} = {value_text(v)}" for k, v in table.items() if k not in within]
        written += ["\n".join([header, *lines]), *(table_text(f"{name}.{k}", v) for k, v in within.items())]
    return "\n\n".join(written)


def _key(key: str) -> str:
    return key if key.isascii() and key.replace("_", "").replace("-", "").isalnum() else value_text(key)


def value_text(value: Any) -> str:
    """A value in TOML: text, whole and other numbers, lists, and tables in line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:_}"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, list):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {value_text(v)}" for k, v in value.items()) + " }"
    return quoted(str(value))


def printable(text: str) -> str:
    """Text without what would end a comment, confuse a terminal, or be a command to GitHub's runner."""
    return "".join(c if c.isprintable() else "?" for c in text).replace("##[", "# #[")


def quoted(text: str) -> str:
    r"""A string of TOML; escaped too is what would confuse a terminal, or be a command to GitHub's runner.

    >>> print(quoted('a "word", \u202e and ##['))
    "a \"word\", \U0000202e and #\u0023["
    """
    written = json.dumps(text, ensure_ascii=False)
    shown = "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in written)
    return shown.replace("##[", "#\\u0023[")
