"""Requirements on a report: what `[gate] require` and ``--require`` say, and whether a report meets it.

A requirement is ``KEY OPERATOR VALUE``. The key is one of the JSON report; an entry of a list is chosen by its number
or its name: ``rate_cap.classes[0].integer_budget``, ``rate_cap.classes[chat].per_iteration``,
``rate_cap.classes["a]b"].per_iteration``. Numbers may have ``_``, ``%`` or a unit that fits the key.

Whatever cannot be judged is refused, never passed: unknown keys, units that do not fit, null.
"""

import json
import operator
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any, NamedTuple

from kvplan.analysis.worst_cycle import CycleKind
from kvplan.errors import UsageError
from kvplan.report.assembly import SCHEMA_VERSION, Analyses, Basis, ProfileIdentity, Status, plain
from kvplan.report.explanations import BLOCKS, EXPLANATIONS
from kvplan.units import TIME_UNITS, rounded

MAX_LENGTH = 1000  # of a requirement, characters

Value = float | str | bool


class Kind(StrEnum):
    """What a key of the report holds."""

    NUMBER = "a number"
    TEXT = "text"
    TRUTH = "true or false"


class Named(NamedTuple):
    """The entry of a list that has this name."""

    name: str


KeyPath = tuple[str | int | Named, ...]


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the report, one entry of a list included.

    Attributes
    ----------
    text : str
        As written.
    path : tuple
        Names of keys, numbers of entries, and names of entries.
    kind : Kind
    unit : str
        Unit of a number; empty for a ratio or a count.
    allowed : tuple of str
        All that a text can be; empty where it can be anything.
    """

    text: str
    path: KeyPath
    kind: Kind
    unit: str
    allowed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a report must meet.

    Attributes
    ----------
    text : str
        As written.
    key : Key
    symbol : str
        ``<``, ``<=``, ``==``, ``!=``, ``>=`` or ``>``.
    bound : str
        The right-hand side as written.
    wanted : float, str or bool
        In the unit of the key.
    """

    text: str
    key: Key
    symbol: str
    bound: str
    wanted: Value


@dataclass(frozen=True, slots=True)
class Judgement:
    """A requirement against a report.

    Attributes
    ----------
    got : float, str or bool
    margin : float or None
        What is to spare, negative where it fails, in the unit of the key; None except for numbers.
    passed : bool
    doubt : str
        Why the number proves nothing; such a requirement never passes. Empty where it does.
    """

    got: Value
    margin: float | None
    passed: bool
    doubt: str = ""


class Subject:
    """The report that requirements are about, block by block as they are asked for.

    Parameters
    ----------
    identity : ProfileIdentity
    analyses : Analyses
    """

    def __init__(self, identity: ProfileIdentity, analyses: Analyses) -> None:
        self.identity = identity
        self.analyses = analyses
        self._blocks: dict[str, Any] = {}

    def block(self, name: str) -> Any:
        """One block of the report as the contract has it."""
        if name not in self._blocks:
            from kvplan.version import __version__

            fixed = {
                "schema_version": SCHEMA_VERSION,
                "kvplan_version": __version__,
                "profile": self.identity,
            }
            found = fixed[name] if name in fixed else getattr(self.analyses, name)
            self._blocks[name] = plain(found, name)
        return self._blocks[name]

    def value(self, key: Key) -> Value:
        """The value of a key, with no more computed than that takes.

        Raises
        ------
        UsageError
            It has none.
        """
        match key.path:
            case ("verdict", "status"):
                return str(self.analyses.status)
            case ("verdict", "binding"):
                return self.analyses.binding
        return value_of(key, self.block)

    def doubt(self, key: Key) -> str:
        """Why the value of a key proves nothing; empty where it does."""
        if key.path[0] != "stability" or key.path[-1] not in _CERTIFIED:
            return ""
        local = self.analyses.stability
        if not local.certified:
            return "stability is too close to call in floating point"
        if key.path[-1] in _RADIUS and not local.radius_certified:
            return "the value of the spectral radius is not certified"
        return ""


_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_RADIUS = frozenset({"spectral_radius", "recovery_iterations"})
_CERTIFIED = _RADIUS | {"stable", "unstable_modes"}

_BINDINGS = ("kv_memory", "compute", "max_num_seqs", "max_num_batched_tokens")
_WORDS: Mapping[str, tuple[str, ...]] = {
    "verdict.status": tuple(Status),
    "verdict.binding": _BINDINGS,
    "worst_cycle.kind": tuple(CycleKind),
    "worst_cycle.classes[].kind": tuple(CycleKind),
}
_TEXTS = frozenset(
    {
        "kvplan_version",
        "profile.name",
        "profile.sha256",
        "verdict.summary",
        "equilibrium.classes[].name",
        "worst_cycle.classes[].name",
        "rate_cap.classes[].name",
        "wait.classes[].name",
        "stability.advice",
        "notes[]",
    }
)
_TRUTHS = frozenset(
    {
        "stability.stable",
        "stability.certified",
        "wait.feasible",
        "wait.fits",
        "nested_wait.feasible",
        "nested_wait.fits",
    }
)
_COUNTS = frozenset({"schema_version", "stability.gcd", "stability.unstable_modes"})
_HAVE_SOURCES = tuple(
    b for b in BLOCKS if b not in ("schema_version", "kvplan_version", "profile", "simulation")
)
_KNOWN: Mapping[str, str] = {
    **{
        e.key: e.unit
        for e in EXPLANATIONS
        if e.key not in ("simulation", "sources", "worst_cycle.danger_zone_rps")
    },
    "worst_cycle.danger_zone_rps[]": "requests/s",
    **{
        f"sources.{b}.{k}": ""
        for b in _HAVE_SOURCES
        if b not in ("sources", "notes")
        for k in ("source", "kind")
    },
}
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

_PART = re.compile(r'\.?([A-Za-z_][A-Za-z0-9_]*)|\[ *(?:(\d{1,9})|("(?:[^"\\]|\\.)*")|([^\]"]+?)) *\]')
_OPERATOR = re.compile(r" *(<=|>=|==|!=|<|>) *")
_NUMBER = re.compile(
    r"([+-]?\d(?:_?\d){0,39}(?:\.\d(?:_?\d){0,39})?(?:[eE][+-]?\d{1,3})?) *(\D.*)?", re.ASCII
)
_SHAPE = "KEY OPERATOR VALUE, such as 'load.headroom >= 0.2'"


# ------------------------------------------------------------------------------------------------- reading


def parse(text: str) -> Requirement:
    """Read a requirement.

    Raises
    ------
    UsageError
        It is not ``KEY OPERATOR VALUE``, no report has the key, or the value is nothing that the key can be.

    Examples
    --------
    >>> found = parse("equilibrium.iteration_time_s <= 50 ms")
    >>> found.key.path, found.symbol, found.wanted
    (('equilibrium', 'iteration_time_s'), '<=', 0.05)
    >>> parse("load.headroom > 20%").wanted, parse("wait.fits == true").wanted
    (0.2, True)
    """
    if not text.isprintable() or len(text) > MAX_LENGTH:
        raise UsageError(
            f"must be {_SHAPE}, printable and at most {MAX_LENGTH} characters, not {_quoted(text)}"
        )
    stripped = text.strip()
    path, end = _path(stripped)
    found = _OPERATOR.match(stripped, end)
    if not path or found is None or found.end() == len(stripped):
        raise UsageError(f"must be {_SHAPE}, with one of < <= == != >= >, not {_quoted(text)}")
    key = _key(stripped[:end], path)
    symbol, bound = found[1], stripped[found.end() :]
    if key.kind is not Kind.NUMBER and symbol not in ("==", "!="):
        raise UsageError(f"{key.text} is {key.kind}, which only == and != compare, not {symbol}")
    return Requirement(stripped, key, symbol, bound, _value(key, bound))


def named(name: str) -> str:
    """How a requirement chooses the entry of a list by its name.

    Examples
    --------
    >>> named("chat"), named("7"), named("a]b")
    ('[chat]', '["7"]', '["a]b"]')
    """
    bare = _PART.fullmatch(f"[{name}]")
    return f"[{name}]" if bare and bare[4] == name else f"[{json.dumps(name, ensure_ascii=False)}]"


def parse_key(text: str) -> Key:
    """Read a key of the report.

    Raises
    ------
    UsageError
        No report has it; names the nearest.

    Examples
    --------
    >>> parse_key("rate_cap.classes[chat].integer_budget").path
    ('rate_cap', 'classes', Named(name='chat'), 'integer_budget')
    """
    path, end = _path(text)
    if not path or end != len(text) or not text.isprintable():
        raise UsageError(f"{_quoted(text)} is not a key of the report, such as load.headroom")
    return _key(text, path)


def known_keys() -> tuple[str, ...]:
    """Every key of the report that has a value, in its order; entries of lists as ``[]``.

    Examples
    --------
    >>> "rate_cap.classes[].integer_budget" in known_keys()
    True
    """
    return tuple(_KNOWN)


def _path(text: str) -> tuple[KeyPath, int]:
    """The key that a text begins with, and where it ends."""
    path: list[str | int | Named] = []
    end = 0
    while part := _PART.match(text, end):
        name, index, quoted, bare = part.groups()
        if name is not None and bool(path) != part[0].startswith("."):
            break  # a dot too many, or one missing
        if name is None and not path:
            break
        if quoted is not None:
            try:
                bare = str(json.loads(quoted))
            except ValueError:
                break
        path.append(name if name is not None else int(index) if index is not None else Named(bare))
        end = part.end()
    return tuple(path), end


def _key(text: str, path: KeyPath) -> Key:
    general = ""
    for part in path:
        general += ("." * bool(general) + part) if isinstance(part, str) else "[]"
    if general not in _KNOWN:
        raise UsageError(_unknown(text, general))
    if general in _WORDS or (general.startswith("sources.") and general.endswith(".kind")):
        return Key(text, path, Kind.TEXT, "", _WORDS.get(general, tuple(Basis)))
    if general in _TEXTS or general.startswith("sources."):
        return Key(text, path, Kind.TEXT, "", ())
    if general in _TRUTHS:
        return Key(text, path, Kind.TRUTH, "", ())
    return Key(text, path, Kind.NUMBER, "count" if general in _COUNTS else _KNOWN[general], ())


def _unknown(text: str, general: str) -> str:
    from difflib import get_close_matches

    if general.partition(".")[0] == "simulation":
        return f"{_quoted(text)}: check runs no simulation, so nothing below simulation has a value"
    if f"{general}[]" in _KNOWN:
        return f"{text} is a list; choose one of its entries, such as {text}[0]"
    nearest = get_close_matches(general[:100], _KNOWN, n=1)
    if nearest:
        return f"unknown key {_quoted(text)}; did you mean {nearest[0].replace('[]', '[0]')}?"
    return f"unknown key {_quoted(text)}; the blocks are {', '.join(BLOCKS)}, and `kvplan explain BLOCK` lists keys"


def _value(key: Key, bound: str) -> Value:
    match key.kind:
        case Kind.NUMBER:
            return parse_number(key, bound)
        case Kind.TRUTH:
            if bound not in ("true", "false"):
                raise UsageError(f"{key.text} is true or false, not {_quoted(bound)}")
            return bound == "true"
        case Kind.TEXT:
            return _text(key, bound)


def parse_number(key: Key, text: str) -> float:
    """A number with a unit that fits the key, in the unit of the report, rounded once from the decimals written.

    Raises
    ------
    UsageError
        It is not a number, or its unit does not fit.

    Examples
    --------
    >>> parse_number(parse_key("load.headroom"), "20 %"), parse_number(parse_key("wait.kv_tokens"), "41_408")
    (0.2, 41408.0)
    """
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise UsageError(f"{key.text} is a number, which {_quoted(text)} is not")
    number, unit = found[1].replace("_", ""), (found[2] or "").rstrip()
    units = _UNITS.get(key.unit, {})
    if unit and unit not in units:
        fits = f"write {' or '.join(units)}, or nothing" if units else "write no unit"
        raise UsageError(f"the unit {_quoted(unit)} does not fit {key.text}; {fits}")
    try:
        return float(Fraction(number) * (units[unit] if unit else 1))
    except OverflowError:
        raise UsageError(f"{_quoted(text)} is too large a number") from None


def _text(key: Key, bound: str) -> str:
    quoted = len(bound) > 1 and bound[0] in "\"'" and bound[-1] == bound[0]
    if not quoted and _NUMBER.fullmatch(bound):
        raise UsageError(f"{key.text} is text, and {_quoted(bound)} is a number; as text, write it in quotes")
    word = bound[1:-1] if quoted else bound
    if key.allowed and word not in key.allowed:
        raise UsageError(f"{key.text} is one of {', '.join(key.allowed)}, never {_quoted(word)}")
    return word


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


# ------------------------------------------------------------------------------------------------- judging


def value_of(key: Key, block: Callable[[str], Any]) -> Value:
    """The value of a key.

    Parameters
    ----------
    key : Key
    block : callable
        Gives the block of a report by its name.

    Raises
    ------
    UsageError
        The list has no such entry, the value is null, or not what the contract says.

    Examples
    --------
    >>> value_of(parse_key("wait.thresholds[1]"), {"wait": {"thresholds": [3, 5]}}.__getitem__)
    5
    """
    first, *rest = key.path
    assert isinstance(first, str)
    value = block(first)
    for part in rest:
        if value is None:
            break
        value = _entry(key, value, part)
    if value is None:
        raise UsageError(
            f"{key.text} is null in this report{_why_null(key)}; nothing can be compared with it"
        )
    if not _is(value, key.kind):
        raise UsageError(f"{key.text} is not {key.kind} in this report")
    return value  # type: ignore[no-any-return]


def _entry(key: Key, value: Any, part: str | int | Named) -> Any:
    if isinstance(part, str):
        if not isinstance(value, dict) or part not in value:
            raise UsageError(f"{key.text} is not in this report")
        return value[part]
    if not isinstance(value, list):
        raise UsageError(f"{key.text} is not a list in this report")
    if isinstance(part, int):
        if part >= len(value):
            raise UsageError(f"{key.text}: the list has {len(value)} entries, counted from 0")
        return value[part]
    names = [item.get("name") if isinstance(item, dict) else None for item in value]
    if part.name not in names:
        there = (
            ", ".join(_quoted(str(name)) for name in names[:10] if name is not None)
            or "entries without names"
        )
        raise UsageError(f"{key.text}: no entry is called {_quoted(part.name)}; there are {there}")
    return value[names.index(part.name)]


def _is(value: Any, kind: Kind) -> bool:
    if kind is Kind.TRUTH:
        return isinstance(value, bool)
    if kind is Kind.TEXT:
        return isinstance(value, str)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and -sys.float_info.max <= value <= sys.float_info.max


def _why_null(key: Key) -> str:
    general = "".join(f".{part}" if isinstance(part, str) else "[]" for part in key.path)[1:]
    absent = next((e.absent for e in EXPLANATIONS if e.key == general), "")
    return f" ({absent.rstrip('.')})" if absent else ""


def judge(requirement: Requirement, subject: Subject) -> Judgement:
    """Whether a report meets a requirement.

    Raises
    ------
    UsageError
        The key has no value in this report.

    Examples
    --------
    >>> from kvplan.model import Plan, Replica, RequestClass, ServingModel, Timing
    >>> one = RequestClass("a", 5, (1,), (1.0,), 1.0)
    >>> model = ServingModel((one,), Timing(1.0), Replica(60))
    >>> subject = Subject(ProfileIdentity("small", ""), Analyses(model, Plan()))
    >>> judge(parse("load.sustainable_rps >= 12"), subject)
    Judgement(got=10.0, margin=-2.0, passed=False, doubt='')
    """
    wanted = requirement.wanted
    if requirement.key.path == ("verdict", "status") and wanted == Status.OVERLOADED:
        # the load alone tells; which of the other two words it is can take a simulation
        overloaded = subject.analyses.overloaded
        said = str(Status.OVERLOADED) if overloaded else f"not {Status.OVERLOADED}"
        return Judgement(said, None, overloaded == (requirement.symbol == "=="))
    doubt = subject.doubt(requirement.key)
    if doubt and subject.block("stability")[requirement.key.path[-1]] is None:
        return Judgement("uncertified", None, False, doubt)  # null because nothing is proved
    got = subject.value(requirement.key)
    passed = _COMPARE[requirement.symbol](got, wanted) and not doubt
    if isinstance(got, bool | str) or isinstance(wanted, bool | str):
        return Judgement(got, None, passed, doubt)
    return Judgement(got, _margin(requirement.symbol, got, wanted), passed, doubt)


def _margin(symbol: str, got: float, wanted: float) -> float:
    if symbol in ("<", "<="):
        return wanted - got
    if symbol in (">", ">="):
        return got - wanted
    return -abs(got - wanted) if symbol == "==" else abs(got - wanted)


def holds(requirement: Requirement, subject: Subject) -> bool:
    """Whether a requirement is met; not where it cannot be judged."""
    try:
        return judge(requirement, subject).passed
    except UsageError:
        return False


def telling_digits(requirement: Requirement, got: float, least: int = 4) -> int:
    """Significant digits at which a number, as shown, is on the side of the bound where it is.

    Examples
    --------
    >>> telling_digits(parse("load.headroom >= 0.2"), 0.1999999)
    7
    """
    compare, wanted = _COMPARE[requirement.symbol], requirement.wanted
    verdict = compare(got, wanted)
    return next((d for d in range(least, 17) if compare(rounded(got, d), wanted) == verdict), 17)
