"""What differs between two reports, key by key."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvplan import report
from kvplan.check import read_report
from kvplan.errors import UsageError
from kvplan.gate import Key, Kind, named, parse_key
from kvplan.profile import parse_profile

NOISE = 1e-9  # relative; the last digits of a float differ between processors

Leaf = float | int | str | bool | list[Any] | None
_IDENTITY = frozenset({"schema_version", "kvplan_version", "profile.name", "profile.sha256"})


@dataclass(frozen=True, slots=True)
class Side:
    """A report, and where it came from."""

    source: str
    document: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of the profile that it reports on."""
        profile = self.document.get("profile")
        return str(profile.get("name") if isinstance(profile, dict) else None)


@dataclass(frozen=True, slots=True)
class Change:
    """A key that differs.

    Attributes
    ----------
    key : str
    before, after : number, text, bool, list or None
        None where there is no value, or no such key.
    relative : float or None
        after/before - 1; None where that does not exist.
    unit : str
    """

    key: str
    before: Leaf
    after: Leaf
    relative: float | None
    unit: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two reports, and what differs between them, the largest effect first."""

    before: Side
    after: Side
    changes: tuple[Change, ...]


def read_side(data: bytes, source: str) -> Side:
    """A report, read as it is or made of a profile.

    Raises
    ------
    UsageError
        It is neither.

    Examples
    --------
    >>> read_side(b'{"schema_version": 1, "profile": {"name": "chat"}}', "old.json").name
    'chat'
    """
    if data.lstrip().startswith(b"{"):  # as no TOML begins
        return Side(source, read_report(data, source))
    profile = parse_profile(data, source)
    made = report.analyze(profile.model, name=profile.name, sha256=profile.sha256, plan=profile.plan)
    return Side(source, report.to_document(made))


def compare(before: Side, after: Side) -> Comparison:
    """What differs: words and yes or no first, then numbers by how far they moved; sentences, then what only one has.

    Examples
    --------
    >>> old = Side("old", {"load": {"headroom": 0.5, "work_rate": 0.1}, "verdict": {"status": "stable"}})
    >>> new = Side("new", {"load": {"headroom": 0.4, "work_rate": 0.2}, "verdict": {"status": "stable"}})
    >>> [(change.key, round(change.relative, 3)) for change in compare(old, new).changes]
    [('load.work_rate', 1.0), ('load.headroom', -0.2)]
    """
    old, new = dict(_leaves(before.document)), dict(_leaves(after.document))
    keys = [*old, *(key for key in new if key not in old)]
    changes = [
        (
            _rank(old[key], new[key]) if key in old and key in new else (3, 0.0),
            _change(key, old.get(key), new.get(key)),
        )
        for key in keys
        if key not in _IDENTITY and not (key in old and key in new and _same(old[key], new[key]))
    ]
    changes.sort(key=lambda pair: pair[0])  # stable: in the order of the report where the effect is equal
    return Comparison(before, after, tuple(change for _, change in changes))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Leaf]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and path != "notes":
        names = [item.get("name") if isinstance(item, dict) else None for item in value]
        for i, (item, name) in enumerate(zip(value, names, strict=True)):
            own = isinstance(name, str) and names.count(name) == 1
            yield from _leaves(item, path + (named(str(name)) if own else f"[{i}]"))
    else:
        yield path, value


def _is_number(value: Leaf) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(old: Leaf, new: Leaf) -> bool:
    if isinstance(old, bool | str | list) or isinstance(new, bool | str | list) or old is None or new is None:
        return type(old) is type(new) and old == new
    return math.isclose(old, new, rel_tol=NOISE)


def _relative(old: Leaf, new: Leaf) -> float | None:
    if not (_is_number(old) and _is_number(new)) or old == 0:
        return None
    assert isinstance(old, int | float)
    assert isinstance(new, int | float)
    return (new - old) / abs(old)


def _rank(old: Leaf, new: Leaf) -> tuple[int, float]:
    if _is_number(old) or _is_number(new):
        relative = _relative(old, new)
        return 1, -math.inf if relative is None else -abs(relative)
    sentence = isinstance(old, list) or isinstance(new, list) or " " in f"{old}{new}"
    return (2 if sentence else 0), 0.0


def _change(key: str, old: Leaf, new: Leaf) -> Change:
    known = _known(key)
    unit = known.unit if known is not None and known.kind is Kind.NUMBER else ""
    return Change(key, old, new, _relative(old, new), unit)


def _known(key: str) -> Key | None:
    try:
        return parse_key(key)
    except UsageError:
        return None
