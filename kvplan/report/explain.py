"""What a number of the report means, with a profile's own figures put into its formula.

`find` looks a key up in the registry (`kvplan.report.keys`), `explain` and `summarise` fill its record with the
numbers of a report and the figures that `kvplan.report.figures.gather` collects.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from kvplan.errors import UsageError, did_you_mean
from kvplan.model import Plan, ServingModel
from kvplan.report.assembly import Report, to_document
from kvplan.report.figures import Inputs, gather
from kvplan.report.keys import BLOCKS, CONTRACT, Record
from kvplan.report.keys.evidence import Evidence, NoNumberError, Symbol, at, listed, written
from kvplan.units import format_number

MANY, FEW = 20, 8  # values of a key that are shown, and on a first screen
_SYMBOLS = {record.key: record.symbol for record in CONTRACT.values()}
_VARYING = (
    " Rates vary here: λ·ΔT is the most that arrives in any window of length ΔT, p_k the largest share of any time, "
    "and other rates are means over the period."
)


_WARM = frozenset({"verdict", "load", "equilibrium", "saturation", "prefix_cache"})  # blocks that count hits
_COLD = (
    " Here the prefix cache finds what is always in use and nothing else, as in a collapse: M, λ, S̄, τ* and the like "
    "are those of such a replica."
)


@dataclass(frozen=True, slots=True)
class Found:
    """What was asked for: one key, perhaps one entry of its list, or all keys of a block."""

    name: str
    records: tuple[Record, ...]
    is_block: bool
    entry: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A value; `name` where there is one per class, segment or block. `here` is its formula in numbers."""

    name: str
    value: str
    here: str


@dataclass(frozen=True, slots=True)
class Explained:
    """One key with the numbers of a profile; empty strings for what does not apply."""

    key: str
    meaning: str
    rows: tuple[Row, ...]
    cut: str
    formula: str
    symbols: tuple[Symbol, ...]
    source: str
    absent: str


@dataclass(frozen=True, slots=True)
class Summary:
    """The keys of a block, each with its value and what it means."""

    name: str
    meaning: str
    keys: tuple[tuple[str, str, str], ...]


# ------------------------------------------------------------------------------------------------- look-up


def find(word: str) -> Found:
    """The records of a key, as the contract writes it, or of a block; ``[0]`` asks for one entry of a list.

    Raises
    ------
    UsageError
        There is no such key; names the nearest.

    Examples
    --------
    >>> found = find("worst_cycle.classes[1].loss")
    >>> found.records[0].key, found.entry
    ('worst_cycle.classes[].loss', 1)
    >>> find("saturation").is_block
    True
    """
    indices = re.findall(r"\[(\d{1,6})\]", word)
    entry = int(indices[0]) if indices else None
    stem = re.sub(r"\[\d{1,6}\]", "[]", word).removesuffix("[]")
    first = stem.partition(".")[0]
    # whatever stands below `sources` or `simulation` is explained there
    keys = (stem, f"{stem}[]", first if first in ("sources", "simulation") else stem)
    for record in (CONTRACT[key] for key in keys if key in CONTRACT):
        return Found(record.key, (record,), is_block=False, entry=entry)
    below = tuple(r for key, r in CONTRACT.items() if key.startswith((f"{stem}.", f"{stem}[].")))
    if below:
        return Found(stem, below, is_block=True)
    raise UsageError(f"{_shown(word)} is no key of the report; {_nearest(stem)}")


def _nearest(word: str) -> str:
    from difflib import get_close_matches

    last = word[:100].rpartition(".")[2]
    close = [key for key in CONTRACT if key.rpartition(".")[2] == last]
    close = close or get_close_matches(word[:100], [*BLOCKS, *CONTRACT], n=3)
    if close:
        return f"did you mean {' or '.join(close[:5])}?"
    return did_you_mean(word, BLOCKS, "its blocks are")


def _shown(word: str) -> str:
    return word if word.isprintable() and 0 < len(word) <= 60 else repr(word[:60])


# ------------------------------------------------------------------------------------------------- filling


def explain(found: Found, document: Mapping[str, Any], inputs: Inputs, most: int = MANY) -> Explained:
    """One key with the numbers of a profile, so many at most; `document` is its report, as `to_document` returns it.

    Raises
    ------
    UsageError
        An entry was asked for that the list does not have.

    Examples
    --------
    >>> from kvplan.report.keys.evidence import Figure
    >>> inputs = Inputs({"M": Figure("M", "memory", 12), "S_b": Figure("S̄", "footprint", 12.0)}, {})
    >>> document = {"saturation": {"admissions_per_iteration": 1.0}, "sources": {}}
    >>> explain(find("saturation.admissions_per_iteration"), document, inputs).rows[0]
    Row(name='', value='1 requests', here='12 / 12')
    """
    (record,) = found.records
    places = list(places_of(record, document, inputs))
    if found.entry is not None and record.list_key:
        if found.entry >= len(places):
            raise UsageError(
                f"{record.key} has {len(places)} entries here, counted from 0; not {found.entry}"
            )
        places = [places[found.entry]]
    shown = places[:most]
    left_out = len(places) - len(shown)
    where = "--full" if most < MANY else "--format json of analyze"
    missing = not places or any(place.value is None for place in places)
    symbols = {
        name: symbol for place in shown for name, symbol in place.symbols.items() if name != record.key
    }
    record = _as_it_is_here(record, inputs)
    about = record.meaning
    if inputs.varying and record.of_worst_window:
        about += _VARYING
    if inputs.warm is not None and record.here is not None and record.block not in _WARM:
        about += _COLD
    return Explained(
        key=found.name if found.entry is None else record.key.replace("[]", f"[{found.entry}]"),
        meaning=about,
        rows=tuple(Row(place.name, _with_unit(place.value, record.unit), place.here) for place in shown),
        cut=f"… {format_number(left_out)} more; see {where}" if left_out > 0 else "",
        formula=record.formula if isinstance(record.formula, str) else record.formula[not inputs.is_linear],
        symbols=tuple(symbols.values()),
        source=_source(record, document),
        absent=_why_absent(record, document) if missing else "",
    )


def page(
    found: Found, report: Report, model: ServingModel, plan: Plan, *, full: bool = True
) -> Explained | Summary:
    """What was asked for, about a report and the model and plan it was made from."""
    document = to_document(report)
    if found.is_block:
        return summarise(found, document)
    return explain(found, document, gather(model, plan, report), MANY if full else FEW)


def summarise(found: Found, document: Mapping[str, Any]) -> Summary:
    """The keys of a block with their values.

    Examples
    --------
    >>> document = {"saturation": {"iteration_time_s": 0.5}}
    >>> summarise(find("saturation"), document).keys[1][:2]
    ('saturation.iteration_time_s', '0.5 s')
    """
    keys = []
    for record in found.records:
        values = [_with_unit(value, record.unit) for _, value in _values(record, document)]
        keys.append((record.key, listed(values) or "null", record.meaning))
    block = BLOCKS.get(found.name)
    return Summary(found.name, block.meaning if block else "", tuple(keys))


class Place(NamedTuple):
    """A value of the report, with the numbers of its formula and what those are; empty where there are none."""

    name: str
    value: Any
    here: str = ""
    symbols: Mapping[str, Symbol] = {}


def places_of(record: Record, document: Mapping[str, Any], inputs: Inputs) -> Iterator[Place]:
    """Every value that a key has in a report, with its formula in numbers."""
    record, figures, known = _as_it_is_here(record, inputs), inputs.model, document
    if inputs.varying and record.of_worst_window:
        record = replace(record, here=None)
    if inputs.warm is not None and record.block in _WARM:
        figures = {**inputs.model, **inputs.warm}
    elif inputs.warm is not None:
        known = {**document, **inputs.cold}
    evidence = Evidence(known, figures, inputs.entries, _SYMBOLS, inputs.is_linear, record.list_key)
    for k, (name, value) in enumerate(_values(record, document)):
        yield Place(name, value, *_filled(record, value, replace(evidence, k=k, named={})))


def _as_it_is_here(record: Record, inputs: Inputs) -> Record:
    """The record with what it says of a prefix cache, where that finds something."""
    if inputs.warm is None or record.warm is None:
        return record
    formula, here, absent = record.warm
    return replace(record, formula=formula, here=here, absent=absent or record.absent)


def _values(record: Record, document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """One value without a name, or one for each entry of a list with the entry's name."""
    if record.key == "sources":
        for block, source in document["sources"].items():
            yield block, f"{source['kind']}: {source['source']}"
    elif not record.list_key:
        value = at(document, record.key)
        yield from _leaves(value) if isinstance(value, dict) else [("", value)]
    else:
        field = record.key.partition("[]")[2].removeprefix(".")
        for k, entry in enumerate(at(document, record.list_key) or ()):
            yield _entry_name(record, document, k, entry), _of_entry(entry, field)


def _of_entry(entry: Any, field: str) -> Any:
    """A field of an entry; of a list within it, that of each."""
    inner, _, rest = field.partition("[].")
    value = at(entry, inner) if inner else entry
    return [at(item, rest) for item in value] if rest else value


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _entry_name(record: Record, document: Mapping[str, Any], k: int, entry: Any) -> str:
    if isinstance(entry, dict):
        one = record.list_key.rpartition(".")[2].removesuffix("s")
        return str(entry.get("name", f"{one} {k + 1}"))
    return str(document[record.block]["classes"][k]["name"]) if record.is_by_class else ""


def _filled(record: Record, value: Any, evidence: Evidence) -> tuple[str, Mapping[str, Symbol]]:
    """The formula in numbers and what it names; nothing where it has none, or a number of it is null."""
    if value is None or record.here is None:
        return "", {}
    try:
        text = record.here(evidence)
    except NoNumberError:
        return "", {}
    return text, evidence.named if text else {}


def _with_unit(value: Any, unit: str) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        text = f"[{', '.join('null' if end is None else written(end) for end in value)}]"
    else:
        text = written(value)
    return f"{text} {unit}" if unit else text


def _source(record: Record, document: Mapping[str, Any]) -> str:
    if not record.source:
        return ""
    basis = record.basis or at(document, f"sources.{record.block}.kind")
    return f"{record.source} ({basis})" if basis else record.source


def _why_absent(record: Record, document: Mapping[str, Any]) -> str:
    return BLOCKS[record.block].absent if document.get(record.block) is None else record.absent
