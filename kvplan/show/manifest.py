"""Manifests as YAML with comments. Every text that could be read as anything else is quoted."""

import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from kvplan.emit.service import Embedded, Manifest, Noted, number
from kvplan.model import Plan
from kvplan.show import page
from kvplan.study.operations import Operations
from kvplan.units import format_percent, format_seconds

_COLUMNS = 110
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*", re.ASCII)
_WORD = re.compile("true|false|yes|no|on|off|y|n|null|nan|inf", re.IGNORECASE)  # of YAML 1.1


def text(title: str, manifest: Manifest, *, name: str, sha256: str, said: Iterable[str]) -> str:
    """Write documents, after comments that say what they are for and what they rest on."""
    lines = [f"{title} for: {name}", page.origin(sha256), *said, *manifest.notes]
    head = "".join(f"{line}\n" for words in lines for line in _comment(words, ""))
    return head + "---\n".join(write(document) for document in manifest.documents)


def basis(operations: Operations, plan: Plan) -> Iterator[str]:
    """Say what all numbers rest on."""
    yield f"Objectives: {'; '.join(slo.text for slo in plan.slos)}"
    yield (
        f"Goodput: {number(operations.goodput_rps)} requests/s a replica, simulated in a fleet of "
        f"{operations.peak_replicas} behind its router"
    )
    how = "as asked for"
    if operations.worst_within is not None:
        how = f"{format_percent(operations.worst_within)} within the objectives in the worst of the simulated days"
    yield f"Headroom: {operations.headroom:g}, {how}; {format_seconds(operations.load_s)} until a new replica serves"


def write(document: dict[str, Any]) -> str:
    """Write a mapping.

    >>> print(write({"a": Noted(2.5, "why"), "b": ["x y", {"c": True}]}), end="")
    a: 2.5  # why
    b:
      - 'x y'
      - c: true
    """
    return "".join(f"{line}\n" for line in _mapping(document, ""))


def _mapping(values: dict[str, Any], indent: str) -> Iterator[str]:
    for key, noted in values.items():
        value, why = noted if isinstance(noted, Noted) else (noted, "")
        inner = [*_inner(value, indent)]
        line = f"{indent}{key}: {_scalar(value)}" if not inner else f"{indent}{key}:"
        if isinstance(value, Embedded):
            line += " |"
        beside = f"{line}  # {_line(why)}"
        if why and len(beside) <= _COLUMNS:
            line = beside
        elif why:
            yield from _comment(why, indent)
        yield line
        yield from inner


def _inner(value: Any, indent: str) -> Iterator[str]:
    """Yield lines below a key: of a mapping, a list, or YAML in a text."""
    if isinstance(value, dict):
        yield from _mapping(value, f"{indent}  ")
    elif isinstance(value, Embedded):
        yield from _mapping(value.document, f"{indent}  ")
    elif isinstance(value, list):
        for item in value:
            first, *rest = (
                [*_mapping(item, f"{indent}    ")]
                if isinstance(item, dict)
                else [f"{indent}    {_scalar(item)}"]
            )
            yield f"{indent}  - {first.lstrip()}"
            yield from rest


def _scalar(value: Any) -> str:
    """Write a value on a line.

    >>> _scalar("NaN"), _scalar("don't"), _scalar("a\\x85b"), _scalar("apps/v1"), _scalar(2.0)
    ("'NaN'", "'don''t'", '"a\\\\U00000085b"', 'apps/v1', '2')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return number(value)
    if not isinstance(value, str):
        return str(value)
    if _PLAIN.fullmatch(value) and not _WORD.fullmatch(value):
        return value
    if value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    signs = (f"\\{c}" if c in '"\\' else c if c.isprintable() else f"\\U{ord(c):08x}" for c in value)
    return '"' + "".join(signs) + '"'


def _line(words: str) -> str:
    return page.printable(" ".join(words.split()))


def _comment(words: str, indent: str) -> list[str]:
    return textwrap.wrap(
        _line(words),
        _COLUMNS,
        initial_indent=f"{indent}# ",
        subsequent_indent=f"{indent}#   ",
        break_on_hyphens=False,
    )
