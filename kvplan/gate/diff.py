"""Differences between two profiles or reports, key by key: inputs and figures."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, NamedTuple

from kvplan.errors import UsageError
from kvplan.gate.check import read_report
from kvplan.gate.requirement import Key, parse_key
from kvplan.profile.reading import parse_profile
from kvplan.report import assembly as report
from kvplan.report.keys import SCREENS, Kind
from kvplan.report.ledger import named
from kvplan.units import parse_bytes, parse_seconds

LEAST_PROBABILITY = 1e-12  # the methods say nothing about less
NOISE = 1e-9  # relative; the last digits of a float differ between processors

Leaf = float | int | str | bool | list[Any] | None
_ANSWER = SCREENS["diff"].split()[:5]
_IDENTITY = frozenset({"schema_version", "kvplan_version", "profile.name", "profile.sha256"})


@dataclass(frozen=True, slots=True)
class Side:
    """A report, and where it came from; `inputs` are the tables of its profile, None where that is not known."""

    source: str
    document: Mapping[str, Any]
    inputs: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """The name of the profile that it reports on."""
        profile = self.document.get("profile")
        return str(profile.get("name") if isinstance(profile, dict) else None)


@dataclass(frozen=True, slots=True)
class Change:
    """A key that differs: None where there is no value, or no such key.

    `relative` is after/before - 1; None also from 0, or so near to it that no float holds the change.
    """

    key: str
    before: Leaf
    after: Leaf
    relative: float | None
    unit: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two reports, and their differences: the answer first, then the largest effect.

    `inputs` are differences between their profiles, in the order written; None where one of them is not known.
    """

    before: Side
    after: Side
    inputs: tuple[Change, ...] | None
    changes: tuple[Change, ...]


class Row(NamedTuple):
    """A change, or the same relative change of all entries of a list, `entries` of them."""

    change: Change
    entries: int


def read_side(data: bytes, source: str) -> Side:
    """Read a report as it is, or make one of a profile."""
    if data.lstrip().startswith(b"{"):  # as no TOML begins
        return Side(source, read_report(data, source))
    profile = parse_profile(data, source)
    made = report.analyze(profile.model, name=profile.name, sha256=profile.sha256, plan=profile.plan)
    return Side(source, report.to_document(made), profile.tables)


def compare(before: Side, after: Side) -> Comparison:
    """Compare two reports.

    Verdict, headroom and rates come first, then other words, numbers by how far they moved, sentences, what only one
    has, and sources.

    Examples
    --------
    >>> old = Side("old", {"load": {"offered_rps": 0.5, "work_rate": 0.1}, "verdict": {"status": "stable"}})
    >>> new = Side("new", {"load": {"offered_rps": 0.4, "work_rate": 0.2}, "verdict": {"status": "stable"}})
    >>> [(change.key, round(change.relative, 3)) for change in compare(old, new).changes]
    [('load.offered_rps', -0.2), ('load.work_rate', 1.0)]
    """
    inputs = None
    if before.inputs is not None and after.inputs is not None:
        old, new = dict(_inputs(before.inputs)), dict(_inputs(after.inputs))
        inputs = tuple(_differences(old, new))
    old, new = dict(_leaves(before.document)), dict(_leaves(after.document))
    changes = sorted(  # stable: in the order of the report where the effect is equal
        _differences(old, new), key=lambda c: _rank(c, c.key in old and c.key in new)
    )
    return Comparison(before, after, inputs, tuple(changes))


def folded(changes: Sequence[Change], document: Mapping[str, Any]) -> list[Row]:
    """Return the changes, those that move all entries of a list alike in one row, where the first of them stands.

    `document` says how many entries a list has.
    """
    there = Counter(_general(key) for key, _ in _leaves(document))
    groups: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        moved = change.key if change.relative is None else f"{change.relative:.6g}"
        groups.setdefault((_general(change.key), moved), []).append(change)
    rows = []
    for (general, _), group in groups.items():
        if len(group) == 1 or len(group) != there[general]:
            rows += [Row(change, 1) for change in group]
            continue
        key = general.replace("[]", f"[all {len(group)}]", 1)
        rows.append(Row(replace(group[0], key=key), len(group)))
    return rows


def _general(key: str) -> str:
    """Return the key with no entry of its list chosen."""
    head, bracket, rest = key.partition("[")
    if not bracket:
        return key
    return f"{head}[]{rest[rest.rindex(']') + 1 :]}"


def _differences(old: Mapping[str, Leaf], new: Mapping[str, Leaf]) -> Iterator[Change]:
    for key in (*old, *(key for key in new if key not in old)):
        both = key in old and key in new
        if key not in _IDENTITY and not (both and _same(key, old[key], new[key])):
            yield _change(key, old.get(key), new.get(key))


def _inputs(tables: Mapping[str, Any]) -> Iterator[tuple[str, Leaf]]:
    """Yield the inputs of a profile to the formulas, key by key; the lengths of a class as one list."""
    for key, value in _leaves(
        {
            **{name: table for name, table in tables.items() if name not in ("schema", "name")},
            **{
                kind: [
                    {
                        k: [f"{d} = {w}" for d, w in v.items()] if isinstance(v, dict) else v
                        for k, v in table.items()
                    }
                    for table in tables[kind]
                ]
                for kind in ("classes", "sessions")
                if kind in tables
            },
        }
    ):
        if not key.endswith("].name"):
            yield key, value


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Leaf]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and path != "notes" and not all(isinstance(item, str) for item in value):
        names = [item.get("name") if isinstance(item, dict) else None for item in value]
        for i, (item, name) in enumerate(zip(value, names, strict=True)):
            own = isinstance(name, str) and names.count(name) == 1
            yield from _leaves(item, path + (named(str(name)) if own else f"[{i}]"))
    else:
        yield path, value.isoformat() if isinstance(value, date) else value


def _is_number(value: Leaf) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(key: str, old: Leaf, new: Leaf) -> bool:
    a, b = _amount(old), _amount(new)
    if a is None or b is None:
        return type(old) is type(new) and old == new
    vanishing = "probability" in key and max(abs(a), abs(b)) < LEAST_PROBABILITY
    return vanishing or math.isclose(a, b, rel_tol=NOISE)


def _amount(value: Leaf) -> float | None:
    """Return a number, or a quantity with a unit as profiles have it, in seconds or bytes."""
    if _is_number(value):
        assert isinstance(value, int | float)
        return value
    if isinstance(value, str):
        for parse in (parse_seconds, parse_bytes):
            with suppress(UsageError):
                return parse(value)
    return None


def _relative(old: Leaf, new: Leaf) -> float | None:
    a, b = _amount(old), _amount(new)
    if a is None or b is None or a == 0:
        return None
    change = (b - a) / abs(a)
    return change if math.isfinite(change) else None


def _rank(change: Change, in_both: bool) -> tuple[int, float]:
    """Rank a change: the answer, words, numbers by their effect, sentences, keys only one has, sources."""
    key, old, new = change.key, change.before, change.after
    if key in _ANSWER:
        return 0, _ANSWER.index(key)
    if key.startswith("sources."):
        return 5, 0.0
    if not in_both:
        return 4, 0.0
    if _is_number(old) or _is_number(new):
        return 2, -_effect(change)
    sentence = isinstance(old, list) or isinstance(new, list) or " " in f"{old}{new}"
    return (3 if sentence else 1), 0.0


def _effect(change: Change) -> float:
    """Return the relative change; of a probability in orders of magnitude, as a share of those known."""
    if change.relative is None:
        return math.inf
    if "probability" in change.key:
        a, b = (max(abs(_amount(v) or 0.0), LEAST_PROBABILITY) for v in (change.before, change.after))
        return abs(math.log(b / a) / math.log(LEAST_PROBABILITY))
    return abs(change.relative)


def _change(key: str, old: Leaf, new: Leaf) -> Change:
    known = _known(key)
    unit = known.unit if known is not None and known.kind is Kind.NUMBER else ""
    return Change(key, old, new, _relative(old, new), unit)


def _known(key: str) -> Key | None:
    try:
        return parse_key(key)
    except UsageError:
        return None
