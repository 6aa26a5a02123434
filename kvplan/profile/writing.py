"""Profiles written: tables as TOML."""

import datetime
import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

TABLES = (
    "provenance", "model", "gpu", "engine", "timing", "speculative", "fleet", "workload", "classes", "sessions",
    "prefix", "slo", "cost", "plan", "gate",
)  # fmt: skip
_WITHIN = ("gpu", "kv")  # a list of tables written as such; other lists are in line
_WIDTH = 118


def document_text(
    tables: Mapping[str, Any],
    comments: Mapping[str, Iterable[str]] = {},
    written: Mapping[str, str] = {},
) -> str:
    """Write a profile.

    `comments` are paragraphs above tables, those of "" above all; `written` are tables that stay as they stand.

    >>> print(document_text({"schema": 1, "name": "n", "gpu": {"memory_tokens": 5_000}}, {"gpu": ["Mine."]}), end="")
    schema = 1
    name = "n"
    <BLANKLINE>
    # Mine.
    [gpu]
    memory_tokens = 5_000
    """
    parts = [comment(comments.get("", ())), f"schema = {tables['schema']}\nname = {quoted(tables['name'])}"]
    for name in TABLES:
        if name in written:
            parts.append(written[name])
        elif tables.get(name):
            parts.append(f"{comment(comments.get(name, ()))}\n{table_text(name, tables[name])}".lstrip("\n"))
    return "\n\n".join(filter(None, parts)) + "\n"


def comment(paragraphs: Iterable[str]) -> str:
    """Paragraphs as lines of a comment; an indented one stays as it is."""
    lines = (
        line
        for text in paragraphs
        for line in ([text] if text[:1] == " " else textwrap.wrap(text, _WIDTH - 2, break_on_hyphens=False))
    )
    return "\n".join(f"# {printable(line)}" for line in lines)


def table_text(name: str, value: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    """Write a table, or each of a list of tables."""
    header, tables = (f"[{name}]", [value]) if isinstance(value, Mapping) else (f"[[{name}]]", value)
    written = []
    for table in tables:
        within = {k: v for k, v in table.items() if (name, k) == _WITHIN}
        lines = [_line(_key(k), v) for k, v in table.items() if k not in within]
        written += ["\n".join([header, *lines]), *(table_text(f"{name}.{k}", v) for k, v in within.items())]
    return "\n\n".join(written)


def _line(key: str, value: Any) -> str:
    """Write a key and its value, a long list in several lines."""
    text = f"{key} = {value_text(value)}"
    if not isinstance(value, list) or len(text) <= _WIDTH:
        return text
    lines = [""]
    for item in map(value_text, value):
        if len(lines[-1]) + len(item) > _WIDTH:
            lines.append("")
        lines[-1] += f" {item},"
    return "\n".join([f"{key} = [", *(f" {line}" for line in lines), "]"])


def _key(key: str) -> str:
    return key if key.isascii() and key.replace("_", "").replace("-", "").isalnum() else value_text(key)


def value_text(value: Any) -> str:
    """Write a value in TOML: text, numbers, lists, and tables in line."""
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
    r"""Quote a TOML string; escape what would confuse a terminal, or be a command to GitHub's runner.

    >>> print(quoted('a "word", \u202e and ##['))
    "a \"word\", \U0000202e and #\u0023["
    """
    written = json.dumps(text, ensure_ascii=False)
    shown = "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in written)
    return shown.replace("##[", "#\\u0023[")
