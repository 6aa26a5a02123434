"""An answer as figures by key, whatever computed it: what shows, judges or explains an answer reads it here.

Keys are paths through the records of an answer, or through a document read back: ``load.offered_rps``, of lists
``wait.classes[0].threshold``, ``wait.classes[chat].threshold`` and, of all entries, ``wait.classes[].threshold``.
"""

import json
import math
import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from kvplan.report.keys import BESIDE_CONTRACT, RECORDS, Record
from kvplan.report.words import Basis

_PART = re.compile(
    r'\.?([A-Za-z_][A-Za-z0-9_]*)|(\[\])|\[ *(?:(\d{1,9})|("(?:[^"\\]|\\.)*")|([^\]" ](?:[^\]"]*[^\]" ])?)) *\]',
    re.ASCII,
)


class Named(NamedTuple):
    """The entry of a list that has this name."""

    name: str


EVERY = Named("")  # entry of a list
KeyPath = tuple[str | int | Named, ...]


class Figure(NamedTuple):
    """A value, the interval that it lies in, how it is known, and from where; None and empty where there is none.

    An upper end of None beside a lower one is not known.
    """

    value: Any
    low: float | None
    high: float | None
    basis: Basis
    source: str


class Ledger:
    """The figures of an answer by key.

    Parameters
    ----------
    answer
        The records of its blocks as attributes, each looked at when a key asks for it, or a document.
    beside
        Figures that follow from those, by key.

    Examples
    --------
    >>> ledger = Ledger({"saturation": {"throughput_rps": 0.5}, "sources": {"saturation": {"kind": "computed"}}})
    >>> ledger["saturation.throughput_rps"]
    Figure(value=0.5, low=None, high=None, basis=<Basis.COMPUTED: 'computed'>, source='WAIT-s eq. 3-6')
    """

    def __init__(self, answer: Any, beside: Mapping[str, Any] | None = None) -> None:
        self.answer = answer
        self._beside = beside or {}

    def __getitem__(self, key: str) -> Figure:
        record = record_of(key)
        low, high = self._interval(key, record)
        return Figure(self.value(key), low, high, self.basis(key), record.source)

    def value(self, key: str) -> Any:
        """Return a value as JSON has it; None where there is none."""
        return self._beside[key] if key in self._beside else plain(at(self.answer, parsed(key)), key)

    def basis(self, key: str) -> Basis:
        """Return how a figure is known: as its record says, else as the report says of its block."""
        record = RECORDS.get(general(key))
        block = parsed(key)[0]
        known = (record and record.basis) or self.value(f"sources.{block}.kind") or Basis.SIMULATED
        return Basis(known)

    def rows(self, key: str) -> list[str]:
        """Return the keys of the entries of a list."""
        return [f"{key}[{i}]" for i in range(len(self.value(key) or ()))]

    def _interval(self, key: str, record: Record) -> tuple[float | None, float | None]:
        if not record.between:
            return None, None
        ends = [self.value(end) for end in record.between.split()]
        if isinstance(ends[0], Mapping):  # intervals by key
            ends = [ends[0].get(key.partition(".")[2])]
        low, high = ends if len(ends) == 2 else ends[0] or (None, None)
        return low, high


def record_of(key: str) -> Record:
    """Return what is known of a key."""
    return RECORDS[general(key)]


@lru_cache(maxsize=4096)
def general(key: str) -> str:
    """Write a key with no entry of its lists chosen.

    >>> general("wait.classes[0].threshold"), general("worst_cycle.danger_zone_rps[0]")
    ('wait.classes[].threshold', 'worst_cycle.danger_zone_rps')
    """
    written = "".join(f".{part}" if isinstance(part, str) else "[]" for part in parsed(key))[1:]
    return written if written in RECORDS else written.removesuffix("[]")


@lru_cache(maxsize=4096)
def parsed(key: str) -> KeyPath:
    """Return the path of a key that is one."""
    return path_of(key)[0]


def path_of(text: str) -> tuple[KeyPath, int]:
    """Return the key that a text begins with, and where it ends."""
    path: list[str | int | Named] = []
    end = 0
    while part := _PART.match(text, end):
        name, _, index, in_quotes, bare = part.groups()
        if name is not None and bool(path) != part[0].startswith("."):
            break  # a dot too many, or one missing
        if name is None and not path:
            break
        if in_quotes is not None:
            try:
                bare = str(json.loads(in_quotes))
            except ValueError:
                break
        path.append(name if name is not None else int(index) if index is not None else Named(bare or ""))
        end = part.end()
    return tuple(path), end


def named(name: str) -> str:
    """Write how a key chooses the entry of a list by its name.

    >>> named("chat"), named("7"), named("a]b")
    ('[chat]', '["7"]', '["a]b"]')
    """
    bare = _PART.fullmatch(f"[{name}]")
    return f"[{name}]" if bare and bare[5] == name else f"[{json.dumps(name, ensure_ascii=False)}]"


def at(answer: Any, path: KeyPath) -> Any:
    """Return what stands at a path through records or documents; None where nothing does."""
    for place, part in enumerate(path):
        if answer is None:
            return None
        if part == EVERY:
            return tuple(at(entry, path[place + 1 :]) for entry in answer)
        if isinstance(part, Named):
            answer = next((entry for entry in answer if at(entry, ("name",)) == part.name), None)
        elif isinstance(part, int):
            answer = answer[part] if part < len(answer) else None
        else:
            answer = answer.get(part) if isinstance(answer, Mapping) else getattr(answer, part, None)
    return answer


def plain(value: Any, path: str = "") -> Any:
    """Write what stands at a key as JSON has it, nested by its dots, without what stands beside the contract."""
    if hasattr(value, "_fields"):  # a NamedTuple
        paths = ((name, f"{path}.{name}" if path else name) for name in value._fields)
        return {name: plain(getattr(value, name), p) for name, p in paths if p not in BESIDE_CONTRACT}
    if isinstance(value, Mapping):
        return {key: plain(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, tuple):
        return [plain(item, f"{path}[]") for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, StrEnum):
        return str(value)
    return value
