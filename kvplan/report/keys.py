"""The keys of the report: a record for each, read from keys.toml, in the order of the contract.

The gate, `kvplan explain`, completion, the columns of a sweep, the tables of a report and its JSON Schema are drawn
from here. A new key of the report is its computation and its record. Nothing heavy is imported: completion reads this.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import tomli

from kvplan.report.words import Basis
from kvplan.units import (
    ABSENT,
    format_bytes,
    format_number,
    format_percent,
    format_rate,
    format_seconds,
    format_tokens,
)

Format = Callable[[Any], str]

_ENDINGS = (  # of a key, with the unit that they say
    ("tokens_per_s", "tokens/s"),
    ("_rps", "requests/s"),
    ("_s", "s"),
    ("tokens", "tokens"),
    ("iterations", "iterations"),
    ("bytes", "bytes"),
)
_MAX_DIGITS = 12  # beyond these the digits of a float's decimal expansion are its rounding
_LEAST_PROBABILITY = 1e-12  # the methods say nothing about less
_SYMBOL = re.compile(r"(\S+) = ")


class Kind(StrEnum):
    """Kind of a key's value."""

    NUMBER = "a number"
    TEXT = "text"
    TRUTH = "true or false"
    PAIR = "two numbers"
    TABLE = "a table"  # with keys of its own that have no records


class Warm(NamedTuple):
    """Formula and inputs in place of a record's own where a prefix cache finds what requests have in common."""

    formula: str
    inputs: str = ""


class Record(NamedTuple):
    """A figure of the report.

    Attributes
    ----------
    key
        As the contract writes it; entries of lists as ``[]``.
    meaning
        One sentence.
    formula
        With the symbols of the papers; empty where there is nothing to compute.
    inputs
        What the formula rests on, apart by blanks: keys of the report, and names of `kvplan.report.explain`.
    source
        Paper key and equation, or ``new``.
    label, format
        Name and form of the figure in the tables of text, Markdown and HTML; without a label it is in none, or in one
        of its own. The format follows from the unit where none is given.
    unit
        Of a number; empty for a ratio and for a count of nothing in particular. In keys.toml by default what the key
        ends in.
    absent
        Why the value can be null; empty where it never is.
    kind, allowed
        What it holds; and all words that a text can be, where that is not anything.
    whole
        The number is whole.
    least, most
        Between which a number lies in every report.
    basis
        How it is known, where that is not what the report says of its block.
    by_class
        A list with an entry for each class, in the order of the profile; so is every list called ``classes``.
    warm
        Formula and inputs with a prefix cache that finds something; None: the same.
    shown
        In tables, where that is more than the value: texts with keys in braces (`kvplan.report.wording`), of which the
        first counts that has all it names.
    rare
        Left out of tables where there is none, or it is 0.
    beside
        Shown to people, and not part of the contract.
    between
        Keys of the ends of its interval, or of what holds them.
    alone
        Where the figures of a model have it without the rest of its block, which takes longer.
    proof
        Key that says whether the value is proved; a requirement is not met without.
    """

    key: str
    meaning: str
    formula: str = ""
    inputs: str = ""
    source: str = ""
    label: str = ""
    format: Format | None = None
    unit: str = ""
    absent: str = ""
    kind: Kind = Kind.NUMBER
    allowed: tuple[str, ...] = ()
    whole: bool = False
    least: float = 0.0
    most: float = math.inf
    basis: str = ""
    by_class: bool = False
    warm: Warm | None = None
    shown: tuple[str, ...] = ()
    rare: bool = False
    beside: bool = False
    between: str = ""
    alone: str = ""
    proof: str = ""

    @property
    def block(self) -> str:
        """The block of the report that it belongs to."""
        return _block_of(self.key)

    @property
    def list_key(self) -> str:
        """The list that it is, or is in the entries of; empty outside of any."""
        head, bracket, _ = self.key.partition("[]")
        return head if bracket else ""

    @property
    def is_by_class(self) -> bool:
        """Tell whether its list has an entry for each class."""
        return self.by_class or self.list_key.endswith(".classes")

    @property
    def symbol(self) -> str:
        """Symbol of the figure: the left-hand side of its formula; empty where that has none."""
        match = _SYMBOL.match(self.formula)
        return match[1] if match else ""

    def written(self, value: Any) -> str:
        """Write the value as tables show it.

        Examples
        --------
        >>> CONTRACT["load.offered_rps"].written(2.5), CONTRACT["worst_cycle.loss"].written(0.5)
        ('2.5 requests/s', '50%')
        """
        if value is None:
            return ABSENT
        if self.kind is Kind.PAIR:
            return f"{format_number(value[0])} to {self._format(value[1])}"
        return self._format(value)

    def _format(self, value: Any) -> str:
        if self.format is not None:
            return self.format(value)
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, str):
            return str(value)
        return _FORMATS.get(self.unit, format_number)(value)


def _block_of(key: str) -> str:
    return key.partition(".")[0].removesuffix("[]")


def _unit_of(key: str) -> str:
    """Tell the unit that a key ends in, or the table that it is in.

    >>> _unit_of("wait.kv_tokens"), _unit_of("latency.ttft_s.mean"), _unit_of("load.work_rate")
    ('tokens', 's', '')
    """
    for part in reversed(key.replace("[]", "").split(".")[1:]):
        for ending, unit in _ENDINGS:
            if part.endswith(ending):
                return unit
    return ""


_FORMATS: dict[str, Format] = {
    "s": format_seconds,
    "bytes": format_bytes,
    "requests/s": lambda value: format_rate(value, "requests"),
    "tokens/s": lambda value: format_rate(value, "tokens"),
    "iterations/s": format_rate,
    "tokens": lambda value: f"{format_number(value)} tokens",
    "iterations": lambda value: f"{format_number(value)} iterations",
}


def near_one(radius: float) -> str:
    """Write a number with the digits that tell it from 1: two of the difference, and at least four.

    >>> near_one(0.9999634), near_one(1.0), near_one(0.43218), near_one(1.0005834)
    ('0.999963', '1', '0.4322', '1.00058')
    """
    distance = abs(1 - radius)
    if not 0 < distance < 1:
        return format_number(radius)
    # above 1 the leading digit takes one more
    digits = 1 - math.floor(math.log10(distance)) + (radius > 1)
    return format_number(radius, min(max(4, digits), _MAX_DIGITS))


def probability(value: float) -> str:
    """Write a probability, as far as the methods can tell.

    >>> probability(0.0123456), probability(1e-15)
    ('0.0123', 'below 1e-12')
    """
    return f"below {_LEAST_PROBABILITY:g}" if value < _LEAST_PROBABILITY else format_number(value, 3)


class Block(NamedTuple):
    """A block of the report with the records of its keys, in the order of the contract.

    `absent` says why the block as a whole can be null, `nullable` that it can in this version; `sources` how its
    numbers are known, each a basis and a text, of which the first counts that does; without any, `has_source` is False.
    `beside` are keys of the results that are neither shown nor in the contract.
    """

    name: str
    meaning: str
    records: tuple[Record, ...]
    absent: str = "This version of kvplan does not compute the block."
    has_source: bool = True
    sources: Sequence[tuple[str, str]] = ()
    nullable: bool = False
    beside: Sequence[str] = ()


# ------------------------------------------------------------------------------------------------ the records


def _few(values: Sequence[float], most: int = 8) -> str:
    """Write the first of several numbers, and how many more there are."""
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return f"{', '.join(map(format_number, values[:most]))}{more}"


def _admissions(each: float) -> str:
    """Write admissions of an iteration, or in how many iterations there is one.

    >>> _admissions(35.765), _admissions(0.1583)
    ('35.77 an iteration', '1 in 6.317 iterations')
    """
    return (
        f"{format_number(each)} an iteration" if each >= 1 else f"1 in {format_number(1 / each)} iterations"
    )


FORMATS: Mapping[str, Format] = {
    "percent": format_percent,
    "change": lambda value: format_percent(value, signed=True),
    "changes": lambda ends: " to ".join(format_percent(end, signed=True) for end in ends),
    "number": format_number,
    "numbers": lambda ends: " to ".join(map(format_number, ends)),
    "few": _few,
    "admissions": _admissions,
    "longest": lambda times: format_seconds(max(times)),
    "shares": lambda values: ", ".join(map(format_percent, values)),
    "probability": probability,
    "short": lambda value: format_number(value, 3),
    "two": lambda value: format_number(value, 2),
    "time": format_seconds,
    "near_one": near_one,
    "tokens": format_tokens,
    "replicas": lambda count: f"{count:,} replica{'s' * (count != 1)}",
    "growth": lambda stable: "stable" if stable else "unstable",
}
_WORD = re.compile(r"\{(\w+)\}")


def _read(tables: dict[str, Any]) -> dict[str, Block]:
    """Read all blocks with their records."""
    words, blocks = tables.pop("words"), tables.pop("blocks")
    records: dict[str, list[Record]] = {name: [] for name in blocks}
    for pattern, table in tables.items():
        name = _block_of(pattern)
        for key, texts in _entries(pattern, words):
            records[name].append(_record(key, {**blocks[name].get("each", {}), **table}, texts))
    return {name: _block(name, table, tuple(records[name]), words) for name, table in blocks.items()}


def _entries(pattern: str, words: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the key, or one for each entry of the words that it names, with the words of its texts."""
    family = _WORD.search(pattern)
    if family is None:
        yield pattern, words
        return
    for name, word in words[family[1]].items():
        yield pattern.replace(family[0], name), {**words, family[1]: word}


def _record(key: str, table: Mapping[str, Any], words: Mapping[str, Any]) -> Record:
    fields = {name: _text(value, words) for name, value in table.items()}
    kind = Kind[fields.pop("kind", "number").upper()]
    if kind is Kind.NUMBER:
        fields.setdefault("unit", _unit_of(key))
    if "format" in fields:
        template = fields["format"]
        fields["format"] = FORMATS.get(template) or _filled(template)
    if "warm" in fields:
        fields["warm"] = Warm(**{name: _text(value, words) for name, value in fields["warm"].items()})
    for name in ("allowed", "shown"):
        if name in fields:
            fields[name] = (fields[name],) if isinstance(fields[name], str) else tuple(fields[name])
    return Record(key, kind=kind, **fields)


def _block(
    name: str, table: Mapping[str, Any], records: tuple[Record, ...], words: Mapping[str, Any]
) -> Block:
    fields = {field: _text(value, words) for field, value in table.items() if field != "each"}
    return Block(name, records=records, **fields)


def _text(value: Any, words: Mapping[str, Any]) -> Any:
    """Join the lines of a text and put the words in that it names; other values stay."""
    if not isinstance(value, str):
        return value
    if "\n" in value:
        value = " ".join(value.split())
    return _WORD.sub(lambda match: _text(words[match[1]], words), value) if "{" in value else value


def _filled(template: str) -> Format:
    return lambda value: template.format(format_number(value))


_TABLES = tomli.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SCREENS: Mapping[str, Any] = _TABLES.pop("screens")
SIMULATION: Mapping[str, tuple[str, str]] = _TABLES.pop("simulation")  # label and form of figures of policies
QUANTITY_WORDS: Mapping[str, tuple[str, str]] = _TABLES.pop("quantities")  # symbol and meaning
WORDS: Mapping[str, Any] = _TABLES["words"]
BLOCKS: Mapping[str, Block] = _read(_TABLES)
RECORDS: Mapping[str, Record] = {record.key: record for block in BLOCKS.values() for record in block.records}
CONTRACT: Mapping[str, Record] = {key: record for key, record in RECORDS.items() if not record.beside}
BESIDE_CONTRACT = frozenset(
    [
        *("levers", "actions", "caveat", "room", "promised"),
        *(key for block in BLOCKS.values() for key in block.beside),
        *(key for key, record in RECORDS.items() if record.beside),
    ]
)
SOURCE_KEYS: Mapping[str, Record] = {
    record.key: record
    for block in BLOCKS.values()
    if block.has_source
    for record in (
        Record(f"sources.{block.name}.source", "Where the numbers of the block come from.", kind=Kind.TEXT),
        Record(f"sources.{block.name}.kind", "How they are known.", kind=Kind.TEXT, allowed=tuple(Basis)),
    )
}  # what stands below `sources`


@cache
def gateable() -> Mapping[str, Record]:
    """Find the record of every key that a requirement can be about, entries of lists and pairs as ``[]``."""
    of_their_own = {
        f"{key}[]" if record.kind is Kind.PAIR else key: record
        for key, record in CONTRACT.items()
        if record.kind is not Kind.TABLE
    }
    return {**of_their_own, **SOURCE_KEYS}


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
    """Let tables below be null of which every value can be null."""
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
