"""Columns of a sweep: keys of the report, and of the simulation by policy.

``simulation.POLICY.KEY`` are the keys of `kvplan simulate`; all others are those of `kvplan analyze`.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from kvplan.errors import UsageError, did_you_mean
from kvplan.gate.requirement import parse_key
from kvplan.report.keys import SCREENS, Kind, gateable
from kvplan.report.ledger import KeyPath, Named, at, named, plain
from kvplan.simulation.metrics import CLASS_KEYS, KEYS

DEFAULT = tuple(SCREENS["sweep"].split())
DEFAULT_BESIDE_SIMULATED = tuple(SCREENS["sweep_beside_simulated"].split())
DEFAULT_SIMULATED = tuple(SCREENS["sweep_simulated"].split())


@dataclass(frozen=True, slots=True)
class Column:
    """A figure under its key: of a block of the report, or of a policy, the block then being ``simulation``.

    The path has names of fields and numbers of entries, from there on.
    """

    name: str
    block: str
    policy: str
    path: KeyPath
    kind: Kind

    def of(self, result: object) -> int | float | str | bool | None:
        """Return the figure in a block, or in the result of a policy; None where it does not exist."""
        value = at(result, self.path)
        if type(value) is float:  # most are, and there are many
            return value if math.isfinite(value) else None
        return plain(value)  # type: ignore[no-any-return]


def expand(patterns: Iterable[str], classes: Sequence[str], policies: Sequence[str]) -> tuple[Column, ...]:
    """Return the columns that keys and patterns name, in their order, each once.

    Such as ``rate_cap.classes[chat].integer_budget``, with ``*`` for anything and ``[]`` for every class.

    >>> [column.name for column in expand(["saturation.*", "wait.classes[].threshold"], ["a", "b c"], [])][-3:]
    ['saturation.throughput_rps', 'wait.classes[a].threshold', 'wait.classes[b c].threshold']
    """
    every = dict([*_of_report(classes), *_of_simulation(classes, policies)])
    columns: dict[str, Column] = {}
    for text in patterns:
        for name in _matching(text.strip(), every, bool(policies)):
            columns.setdefault(name, _column(name, classes))
    if not columns:
        raise UsageError(f"--columns: at least one key of the report, such as {SCREENS['usual']}")
    return tuple(columns.values())


def _matching(text: str, every: dict[str, str], simulated: bool) -> Iterable[str]:
    if text.startswith("simulation") and not simulated:
        raise UsageError(f"--columns {text[:80]!r}: needs --simulate")
    if "*" in text:
        # a part, once found, stays where it is: nothing is tried twice
        first, *between, last = map(re.escape, text.split("*"))
        pattern = re.compile(f"{first}{''.join(f'(?>.*?{part})' for part in between)}.*{last}")
        names = [
            name for name, general in every.items() if pattern.fullmatch(name) or pattern.fullmatch(general)
        ]
    else:
        names = [name for name, general in every.items() if text in (name, general)]
    if not names and "*" in text:
        raise UsageError(f"--columns {text[:80]!r}: no key of the report is like that")
    if not names and text.startswith("simulation"):
        nearest = get_close_matches(text[:100], every, n=1, cutoff=0)
        raise UsageError(f"--columns {text[:80]!r}: unknown key; did you mean {nearest[0]}?")
    return names or [text]


def _of_report(classes: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Yield keys that every point has, and their general form; not those of lists that differ from point to point."""
    for key, record in gateable().items():
        pair = key.removesuffix("[]")
        for each in [f"{pair}[{i}]" for i in range(2)] if record.kind is Kind.PAIR else [key]:
            head, bracket, rest = each.partition("[]")
            if not bracket:
                yield each, key
            elif record.is_by_class and not rest:
                yield from ((f"{head}[{i}]", key) for i in range(len(classes)))
            elif record.is_by_class and rest != ".name":
                yield from ((f"{head}{named(name)}{rest}", key) for name in classes)


def _of_simulation(classes: Sequence[str], policies: Sequence[str]) -> Iterable[tuple[str, str]]:
    for policy in policies:
        keys = [
            ("status", "status"),
            *((key, key) for key in KEYS),
            *((f"ci95.{key}[{i}]", f"ci95.{key}[]") for key in KEYS for i in range(2)),
            *((f"classes{named(name)}.{key}", f"classes[].{key}") for name in classes for key in CLASS_KEYS),
        ]
        yield from ((f"simulation.{policy}.{key}", f"simulation.{policy}.{general}") for key, general in keys)


_ENTRY = re.compile(r"classes(\[.*\])\.(.*)")


def _column(name: str, classes: Sequence[str]) -> Column:
    if name.startswith("simulation."):
        return _simulated(name, classes)
    try:
        key = parse_key(name)
    except UsageError as error:
        raise UsageError(f"--columns: {error}") from None
    block, *rest = key.path
    path: list[str | int | Named] = []
    for part in rest:
        if isinstance(part, Named) and part.name not in classes:
            what = did_you_mean(part.name, classes, "the classes are")
            raise UsageError(f"--columns {name[:80]!r}: no class has that name; {what}")
        if isinstance(part, int) and rest[0] == "classes" and part >= len(classes):
            raise UsageError(f"--columns {name[:80]!r}: there are {len(classes)} classes, counted from 0")
        path.append(part)
    return Column(name, str(block), "", tuple(path), key.kind)


def _simulated(name: str, classes: Sequence[str]) -> Column:
    _, policy, key = name.split(".", 2)
    kind = Kind.TEXT if key == "status" else Kind.NUMBER
    if entry := _ENTRY.fullmatch(key):
        which = next(Named(c) for c in classes if named(c) == entry[1])
        return Column(name, "simulation", policy, ("classes", which, "figures", entry[2]), kind)
    if key.startswith("ci95."):
        figure, end = key.removeprefix("ci95.")[:-1].split("[")
        return Column(name, "simulation", policy, ("ci95", figure, int(end)), kind)
    return Column(name, "simulation", policy, ("status",) if key == "status" else ("figures", key), kind)
