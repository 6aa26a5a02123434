"""Facts, what a source says of the keys of a profile; and the one merge that makes a profile of them.

Whatever is read or estimated yields a `Part`: facts of a table. Of several sources of a table the surest counts:
measured, else stated, else estimated. What it leaves open is the base's.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import tomli

from kvplan.errors import ProfileError
from kvplan.model import Knowledge, MeasuredRange, Origin, RequestClass, Timing
from kvplan.model.kv_layout import KvLayout
from kvplan.model.parallelism import Parallelism
from kvplan.profile.reading import Profile, parse_profile
from kvplan.profile.writing import TABLES, document_text, printable
from kvplan.ranges import LEAST_COST_S, LEAST_PAIR_S, LEAST_WEIGHT, MAX_SOURCE, MOST_WEIGHT
from kvplan.units import format_seconds, format_tokens
from kvplan.version import __version__

TRAFFIC_TABLES = ("workload", "classes", "sessions", "prefix")
TIMES = (
    "d0",
    "d1",
    "d2",
    "d3",
    "d4",
    "d5",
    "d6",
    "experts",
    "all_ranks",
    "d5_all_ranks",
)  # of a timing, seconds
_ALWAYS = ("d0", "d1", "d2", "d3")  # of a timing
_MEMORY = {"memory_tokens", "memory", "kv_bytes_per_token", "kv_blocks", "kv"}
_PARALLEL = {"gpus", *(f"{kind.name}_parallel" for kind in fields(Parallelism))}
_CONVENTIONS = ("block_tokens", "prefill")  # of the engine; no plan hangs on how they are known
_KNOWN_AS = {"gpu": "gpu", "timing": "timing", "classes": "workload"}  # in [provenance]
_SURENESS = list(Knowledge)
_TRAFFIC = ": traffic of "  # between the names of replica and traffic
_LONGEST_NAME = 200
_HEADER = re.compile(rf"^(?:[ \t]*#.*\n)*[ \t]*\[+[ \t]*({'|'.join(TABLES)})\b", re.MULTILINE)


class Fact(NamedTuple):
    """A value as TOML has it, or None where a key is not to be set, whatever a base says; and how that is known."""

    value: Any
    origin: Origin = Origin()
    said: str = ""  # in the comment of its table, behind the keys: "stated by vLLM in serve.log, line 7"


Facts = Mapping[str, Fact]  # by key: "gpu.memory_tokens", "classes"


class Part(NamedTuple):
    """Facts of one source about a table; shown in a row on the screen where there is a `kind`.

    Further paragraphs of the comment are in `about`; `notes` are for both.
    """

    table: str
    facts: Facts
    source: str = ""
    kind: str = ""
    figures: str = ""
    about: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def values(self) -> dict[str, Any]:
        """The table, where it is one."""
        every = {key.partition(".")[2]: fact.value for key, fact in self.facts.items()}
        return {name: value for name, value in every.items() if name and value is not None}

    @property
    def origin(self) -> Origin:
        """Origin of its first fact."""
        return next(iter(self.facts.values())).origin

    @property
    def row(self) -> dict[str, str]:
        """Row on the screen; without `figures` it lists all whole numbers."""
        whole = (f"{k} {format_tokens(v)}" for k, v in self.values.items() if type(v) is int)
        figures = self.figures or ", ".join(whole)
        return {"source": self.source, "kind": self.kind, "table": self.table, "figures": figures}


def facts(table: str, values: Mapping[str, Any], origin: Origin, said: str = "") -> dict[str, Fact]:
    """Make facts of one origin; values that are None are not known."""
    return {f"{table}.{key}": Fact(value, origin, said) for key, value in values.items() if value is not None}


def surest(parts: Iterable[Part | None]) -> Part | None:
    """Choose what counts of several sources of one table: measured before stated before estimated, else the first."""
    return min(filter(None, parts), key=lambda part: _SURENESS.index(part.origin.basis), default=None)


def nested(known: Facts) -> dict[str, Any]:
    """Tables of facts, by name."""
    tables: dict[str, Any] = {}
    for key, fact in known.items():
        table, within, name = key.partition(".")
        if not within:
            tables[table] = fact.value
        elif fact.value is not None:
            tables.setdefault(table, {})[name] = fact.value
    return tables


def kept_of(base: Profile, table: str) -> Origin:
    """Return the origin of values kept from a base."""
    known = getattr(base.provenance, _KNOWN_AS.get(table, ""), Origin())
    return Origin(known.basis, f"kept from {printable(base.source)}")


def completed(part: Part, base: Profile | None) -> Part:
    """Add the other keys of a base's table; to a timing only what a request takes outside the engine.

    Keys that exclude each other, or that say one thing together, come from one source.
    """
    table: Any = None if base is None else base.tables.get(part.table)
    if base is None or not isinstance(table, dict):
        return part
    told = {key.partition(".")[2] for key in part.facts}
    for together in (_MEMORY, _PARALLEL) if part.table == "gpu" else ():
        told |= together if told & together else set()
    if "offload" in table and "memory_tokens" in part.values:
        told.discard("kv_bytes_per_token")  # which memory no longer says
    rest = {key: value for key, value in table.items() if key not in told}
    if part.table == "timing":
        rest = {key: value for key, value in rest.items() if key == "request_overhead" and value}
    kept = kept_of(base, part.table)
    return part._replace(facts={**part.facts, **facts(part.table, rest, kept, kept.source)})


def merged(base: Profile | None, parts: Sequence[Part], *, source: str, name: str | None = None) -> Profile:
    """Make a profile of parts; the other tables are those of `base`, with their comments where they can be kept.

    Names of replica and traffic take the place of those in the name of `base`; `name` of all of it.

    Raises
    ------
    ProfileError
        The parts do not go together: a request is longer than the memory.

    Examples
    --------
    >>> from io import BytesIO
    >>> from kvplan.profile.reading import load_profile
    >>> base = load_profile("tool-calls-h100", stdin=BytesIO())
    >>> measured = Origin(Knowledge.MEASURED, "monday.csv")
    >>> part = Part("timing", facts("timing", timing_table(Timing(0.02)), measured), "monday.csv")
    >>> profile = merged(base, [part], source="monday.csv")
    >>> profile.model.timing.d0, profile.model.classes == base.model.classes
    (0.02, True)
    >>> profile.model.provenance.timing.source
    'monday.csv'
    >>> merged(None, [part], source="monday.csv").missing
    ('gpu', 'classes')
    """
    parts = [completed(part, base) for part in parts]
    replaced = {key.partition(".")[0] for part in parts for key in part.facts} | {"provenance"}
    replaced |= set(TRAFFIC_TABLES) if "classes" in replaced else set()
    about = f"Put together by kvplan {__version__}; every table says where it comes from."
    tables: dict[str, Any] = {}
    if base is not None:
        tables = {key: table for key, table in base.tables.items() if key not in replaced}
        about = (
            f"Put together by kvplan {__version__}. What is not said to be measured: kept from "
            f"{base.source} ({base.name}; sha256 {base.sha256[:12]})."
        )
    written = {} if base is None else _sections(base.text, tables)
    tables |= {
        "schema": 1,
        "name": name or _name("" if base is None else base.name, parts, base) or "service",
    }
    known = {} if base is None else {of: getattr(base.provenance, of) for of in _known(base.tables)}
    for part in parts:
        tables |= nested(part.facts)
        if part.table in _KNOWN_AS:
            known[_KNOWN_AS[part.table]] = _weakest(part.facts)
    tables["provenance"] = {of: _origin(known[of]) for of in _known(tables)}
    comments = {
        "": [about],
        **{min(nested(part.facts), key=TABLES.index): _comment(part, base) for part in parts},
    }
    text = document_text(tables, comments, written)
    try:
        return parse_profile(text.encode(), "<composed>")
    except ProfileError as error:
        rest = "the rest" if base is None else f"the rest of {base.source}"
        what = f"{error.key}: {error.message}" if error.key else error.message
        raise ProfileError(source, f"does not go with {rest}: {what}") from None


def _known(tables: Mapping[str, Any]) -> list[str]:
    """List the keys of [provenance] for the tables that are there."""
    has_traffic = {"classes", "sessions"} & tables.keys()
    return [
        known for table, known in _KNOWN_AS.items() if table in tables or (table == "classes" and has_traffic)
    ]


def _weakest(known: Facts) -> Origin:
    """Return the weakest origin; it names its keys where the first origin is surer."""
    keys: dict[Origin, list[str]] = {}
    for key, fact in known.items():
        name = key.partition(".")[2]
        if fact.value is not None and not (keys and name in _CONVENTIONS):
            keys.setdefault(fact.origin, []).append(name)
    first, basis = next(iter(keys)), Knowledge.weakest(*(origin.basis for origin in keys))
    if first.basis is basis:
        return first
    weak = next(origin for origin in keys if origin.basis is basis)
    return Origin(basis, f"{', '.join(keys[weak])} {weak.source}; the rest: {first.source}", first.date)


def _origin(origin: Origin) -> Any:
    if not origin.source and origin.date is None:
        return str(origin.basis)
    source = printable(origin.source)
    short = source if len(source) <= MAX_SOURCE else f"{source[: MAX_SOURCE - 1]}…"
    table = {"basis": str(origin.basis), "source": short, "date": origin.date}
    return {key: value for key, value in table.items() if value}


def _comment(part: Part, base: Profile | None) -> list[str]:
    old = {} if base is None else base.tables.get(part.table, {})
    said: dict[str, list[str]] = {}
    for key, fact in part.facts.items():
        name = key.partition(".")[2]
        if fact.said and (fact.value is not None or name in old):
            said.setdefault(fact.said, []).append(name)
    lines = [f"{', '.join(keys)}: {what}." for what, keys in said.items()]
    return [*lines, *part.about, *(f"Note: {note}." for note in part.notes)]


def _name(base: str, parts: Sequence[Part], kept: Profile | None) -> str:
    old_replica, joint, old_traffic = base.partition(_TRAFFIC)
    named = {part.table: part for part in parts if part.source and part.kind != "option"}
    of = named.get("gpu") or (named.get("timing") if kept is None else None)
    replica = old_replica if of is None else of.source if of.kind == "estimate" else f"replica of {of.source}"
    traffic = _TRAFFIC + named["classes"].source if "classes" in named else joint + old_traffic
    name = printable((replica + traffic).removeprefix(": "))
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _sections(text: str, wanted: Mapping[str, Any]) -> dict[str, str]:
    """Cut tables out of a text, each with the comment above it; none where they do not parse to `wanted`."""
    headers = list(_HEADER.finditer(text))
    ends = [*(header.start() for header in headers[1:]), len(text)]
    sections: dict[str, str] = {}
    for header, end in zip(headers, ends, strict=False):
        if header[1] in wanted:
            before = f"{sections[header[1]]}\n\n" if header[1] in sections else ""
            sections[header[1]] = before + text[header.start() : end].strip("\n")
    try:
        read = tomli.loads("\n".join(sections.values()))
    except tomli.TOMLDecodeError:
        return {}
    return sections if read == {key: wanted[key] for key in TABLES if key in wanted} else {}


# -- tables -----------------------------------------------------------------------------------------------------------


def numeral(number: float, digits: int) -> float:
    """Round to so many digits; a whole number stays as it is."""
    short = number if number == round(number) and abs(number) < MOST_WEIGHT else float(f"{number:.{digits}g}")
    return int(short) if short == round(short) else short


def duration(seconds: float) -> Any:
    """Four digits with a unit; 0 where it is less than any cost."""
    if seconds < LEAST_COST_S:
        return 0
    unit, size = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if seconds >= s), ("us", 1e-6))
    return f"{seconds / size:.4g} {unit}"


def timing_table(
    timing: Timing, request_overhead_s: float = 0.0, measured: MeasuredRange | None = None
) -> dict[str, Any]:
    """Make [timing], four digits each; constants beyond d3 only if they are not 0."""
    known = {name: duration(getattr(timing, name)) for name in TIMES}
    table = {name: value for name, value in known.items() if value or name in _ALWAYS}
    if timing.d6 >= LEAST_PAIR_S:
        table["d6"] = f"{timing.d6 / 1e-9:.4g} ns"
    if "d5" in table:
        table["knee_tokens"] = round(timing.knee_tokens)
    if "experts" in table:
        table["chosen"] = timing.chosen
    if request_overhead_s > 0:
        table["request_overhead"] = duration(request_overhead_s)
    if ranges := {f.name: value for f in fields(MeasuredRange) if (value := getattr(measured, f.name, None))}:
        table["measured"] = {
            name: [round(end) if end >= 1000 else numeral(end, 4) for end in ends]
            for name, ends in ranges.items()
        }
    return table


def constants(timing: Timing) -> str:
    """Name those that are not 0."""
    names = (name for name in TIMES if getattr(timing, name) > 0)
    return ", ".join(f"{name} {format_seconds(getattr(timing, name))}" for name in names)


def layout_keys(layout: KvLayout) -> dict[str, Any]:
    """Keys of ``[gpu]`` that say which layers there are, and what they hold."""
    tables = (
        {"kind": str(layer.kind), "layers": layer.count, "window": layer.window, "bytes": layer.bytes}
        for layer in layout.layers
    )
    kv = [{key: value for key, value in table.items() if value is not None} for table in tables]
    hybrid = {} if layout.hybrid else {"hybrid_kv_cache": False}
    return {"block_tokens": layout.block_tokens, **hybrid, "kv": kv}


def class_tables(classes: Iterable[RequestClass]) -> list[dict[str, Any]]:
    """Make [[classes]], each with its own rate."""
    return [
        {
            "name": c.name,
            "input": c.input_tokens,
            "decode": c.decode_tokens[0]
            if len(c.decode_tokens) == 1
            else {
                str(length): max(numeral(weight, 6), LEAST_WEIGHT)
                for length, weight in zip(c.decode_tokens, c.decode_weights, strict=True)
            },
            "rate": numeral(c.rate_rps, 6),
        }
        for c in classes
    ]
