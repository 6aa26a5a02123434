"""Requirements on a report, as `[gate] require` and ``--require`` write them.

A requirement is ``KEY OPERATOR VALUE``, or ``plan.holds``. The key is one of the JSON report; an entry of a list is
chosen by its number or its name: ``rate_cap.classes[0].integer_budget``, ``rate_cap.classes[chat].per_iteration``,
``rate_cap.classes["a]b"].per_iteration``. Numbers may have ``_``, ``%`` or a unit that fits the key.

Unknown keys and units that do not fit are refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from kvplan.errors import UsageError
from kvplan.report.keys import BLOCKS, SCREENS, Kind, Record, gateable
from kvplan.report.ledger import EVERY, KeyPath, path_of
from kvplan.units import TIME_UNITS

MAX_LENGTH = 1000  # of a requirement, characters

Value = float | str | bool


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the report as written, one entry of a list included, with its record."""

    text: str
    path: KeyPath
    record: Record

    @property
    def kind(self) -> Kind:
        """Kind of the key's value; a pair stands for each of its numbers."""
        return Kind.NUMBER if self.record.kind is Kind.PAIR else self.record.kind

    @property
    def unit(self) -> str:
        """Unit of a number; empty for a ratio."""
        return "count" if self.record.whole and not self.record.unit else self.record.unit


@dataclass(frozen=True, slots=True)
class Requirement:
    """An operator, the right-hand side as written, and its value in the unit of the key."""

    text: str
    key: Key
    symbol: str
    bound: str
    wanted: Value


# The one requirement without an operator: the replicas of the profile are enough, as `kvplan plan` decides.
PLAN_HOLDS = Key("plan.holds", ("plan", "holds"), Record("plan.holds", "", kind=Kind.TRUTH))
_PER = {f"/{unit}": 1 / TIME_UNITS[unit] for unit in ("s", "min", "h")}
_UNITS: Mapping[str, Mapping[str, Fraction]] = {
    "s": TIME_UNITS,
    "": {"%": Fraction(1, 100)},
    "requests/s": {
        **{f"{noun}{per}": part for noun in ("requests", "req", "") for per, part in _PER.items()},
        "rps": Fraction(1),
    },
    **{unit: {unit: Fraction(1)} for unit in ("tokens", "requests", "iterations")},
    **{
        f"{noun}/s": {f"{noun}{per}": part for per, part in _PER.items()} for noun in ("tokens", "iterations")
    },
}

_OPERATOR = re.compile(r" *(<=|>=|==|!=|<|>) *")
_NUMBER = re.compile(
    r"([+-]?\d(?:_?\d){0,39}(?:\.\d(?:_?\d){0,39})?(?:[eE][+-]?\d{1,2})?) *(\D.*)?", re.ASCII
)
_SHAPE = f"KEY OPERATOR VALUE, such as '{SCREENS['usual']} >= 0.2'"


def parse(text: str) -> Requirement:
    """Read a requirement.

    Raises
    ------
    UsageError
        It is not ``KEY OPERATOR VALUE``, no report has the key, or the value is nothing that the key can be.

    Examples
    --------
    >>> requirement = parse("equilibrium.iteration_time_s <= 50 ms")
    >>> requirement.key.path, requirement.symbol, requirement.wanted
    (('equilibrium', 'iteration_time_s'), '<=', 0.05)
    >>> parse("worst_cycle.loss < 20%").wanted, parse("wait.fits == true").wanted
    (0.2, True)
    """
    if not text.isprintable() or len(text) > MAX_LENGTH:
        raise UsageError(
            f"must be {_SHAPE}, printable and at most {MAX_LENGTH} characters, not {quoted(text)}"
        )
    stripped = text.strip()
    if stripped == PLAN_HOLDS.text:
        return Requirement(stripped, PLAN_HOLDS, "==", "true", True)
    path, end = path_of(stripped)
    match = _OPERATOR.match(stripped, end)
    if not path or EVERY in path or match is None or match.end() == len(stripped):
        raise UsageError(f"must be {_SHAPE}, with one of < <= == != >= >, not {quoted(text)}")
    key = _key(stripped[:end], path)
    symbol, bound = match[1], stripped[match.end() :]
    if key.kind is not Kind.NUMBER and symbol not in ("==", "!="):
        raise UsageError(f"{key.text} is {key.kind}, which only == and != compare, not {symbol}")
    wanted = _value(key, bound)
    if key.kind is Kind.NUMBER:
        _refuse_beyond(key, symbol, bound, float(wanted))
    return Requirement(stripped, key, symbol, bound, wanted)


def parse_key(text: str) -> Key:
    """Read a key of the report; a UsageError names the nearest where there is none.

    >>> parse_key("rate_cap.classes[chat].integer_budget").path
    ('rate_cap', 'classes', Named(name='chat'), 'integer_budget')
    """
    path, end = path_of(text)
    if not path or EVERY in path or end != len(text) or not text.isprintable():
        raise UsageError(f"{quoted(text)} is not a key of the report, such as {SCREENS['usual']}")
    return _key(text, path)


def _key(text: str, path: KeyPath) -> Key:
    general = "".join(f".{part}" if isinstance(part, str) else "[]" for part in path).removeprefix(".")
    if general not in gateable():
        raise UsageError(_unknown(text, general))
    return Key(text, path, gateable()[general])


def _unknown(text: str, general: str) -> str:
    from difflib import get_close_matches

    if general.partition(".")[0] == "simulation":
        return f"{quoted(text)}: check runs no simulation, so nothing below simulation has a value"
    if f"{general}[]" in gateable():
        return f"{text} is a list; choose one of its entries, such as {text}[0]"
    nearest = get_close_matches(general[:100], gateable(), n=1)
    if nearest:
        return f"unknown key {quoted(text)}; did you mean {nearest[0].replace('[]', '[0]')}?"
    return f"unknown key {quoted(text)}; the blocks are {', '.join(BLOCKS)}, and `kvplan explain BLOCK` lists keys"


def _value(key: Key, bound: str) -> Value:
    if key.kind is Kind.NUMBER:
        return parse_number(key, bound)
    if key.kind is Kind.TEXT:
        return _text(key, bound)
    if bound not in ("true", "false"):
        raise UsageError(f"{key.text} is true or false, not {quoted(bound)}")
    return bound == "true"


def _refuse_beyond(key: Key, symbol: str, bound: str, wanted: float) -> None:
    """Refuse a bound that no report comes near, so that it demands nothing or can never be met."""
    least, most = key.record.least, key.record.most
    if least <= wanted <= most:
        return
    idle = symbol in ("!=", *(("<", "<=") if wanted > most else (">", ">=")))
    end = f"at most {most:g}" if wanted > most else f"at least {least:g}"
    share = most == 1 and wanted <= 100 and not bound.endswith("%")
    raise UsageError(
        f"{key.text} is {end} in every report, so that {symbol} {bound} can never {'fail' if idle else 'hold'}"
        + (f"; did you mean {bound}%?" if share else "")
    )


def parse_number(key: Key, text: str) -> float:
    """Read a number with a unit that fits the key, in the unit of the report, rounded once from the decimals written.

    >>> parse_number(parse_key("worst_cycle.loss"), "20 %"), parse_number(parse_key("wait.kv_tokens"), "41_408")
    (0.2, 41408.0)
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise UsageError(f"{key.text} is a number, which {quoted(text)} is not")
    number, unit = match[1].replace("_", ""), (match[2] or "").rstrip()
    units = _UNITS.get(key.unit, {})
    if unit and unit not in units:
        fits = f"write {' or '.join(units)}, or nothing" if units else "write no unit"
        raise UsageError(f"the unit {quoted(unit)} does not fit {key.text}; {fits}")
    return float(Fraction(number) * (units[unit] if unit else 1))


def _text(key: Key, bound: str) -> str:
    in_quotes = len(bound) > 1 and bound[0] in "\"'" and bound[-1] == bound[0]
    if not in_quotes and _NUMBER.fullmatch(bound):
        raise UsageError(f"{key.text} is text, and {quoted(bound)} is a number; as text, write it in quotes")
    word, allowed = bound[1:-1] if in_quotes else bound, key.record.allowed
    if allowed and word not in allowed:
        raise UsageError(f"{key.text} is one of {', '.join(allowed)}, never {quoted(word)}")
    return word


def quoted(text: str) -> str:
    """Quote what was written, for a message."""
    return repr(text if len(text) <= 80 else text[:77] + "...")
