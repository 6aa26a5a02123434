"""A profile written out: some of its tables measured, the others as a base profile has them."""

import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import tomli

from kvplan.errors import ProfileError
from kvplan.model import Knowledge, MeasuredRange, Origin, RequestClass, Timing
from kvplan.model.drafts import Drafts
from kvplan.model.gaps import Quantiles
from kvplan.model.kv_layout import KvLayout
from kvplan.model.parallelism import Parallelism
from kvplan.model.sessions import Reuse, SharedPrompt
from kvplan.profile.reading import Profile, parse_profile
from kvplan.profile.writing import printable, table_text, value_text
from kvplan.ranges import LEAST_COST_S, LEAST_PAIR_S, LEAST_WEIGHT, MAX_SOURCE, MOST_WEIGHT
from kvplan.version import __version__

TRAFFIC_TABLES = ("workload", "classes", "sessions", "prefix")
_TABLES = ("gpu", "engine", "timing", "speculative", "fleet", "plan", "slo", "cost", "gate", *TRAFFIC_TABLES)
_MEMORY = ("memory_tokens", "memory", "kv_bytes_per_token", "kv_blocks", "kv")  # one way excludes the others
_PARALLEL = ("gpus", *(f"{kind.name}_parallel" for kind in fields(Parallelism)))  # and says all of it
_CONVENTIONS = ("block_tokens", "prefill")  # of the engine; no plan hangs on how they are known
_KNOWN_AS = {"gpu": "gpu", "timing": "timing", "classes": "workload"}  # in [provenance]
TIMES = ("d0", "d1", "d2", "d3", "d4", "d5", "experts", "all_ranks", "d5_all_ranks")  # of a timing, seconds
_ALWAYS = ("d0", "d1", "d2", "d3")  # of a timing
_WIDTH = 118
_POINTS_IN_LINE = 5  # of a curve
_TRAFFIC = ": traffic of "  # between the names of replica and traffic


class Part(NamedTuple):
    """A table of a profile that was found out: TOML with its header, and paragraphs about where it comes from.

    "classes" takes the place of all that tells of the traffic. `origin` says the same in a word, for ``[provenance]``;
    `kept` are keys of the table that are the base's, whose origin counts too.
    """

    table: str
    about: tuple[str, ...]
    body: str
    origin: Origin
    kept: tuple[str, ...] = ()


def composed(
    base: Profile | None,
    parts: Sequence[Part],
    *,
    source: str,
    replica: str | None = None,
    traffic: str | None = None,
    name: str | None = None,
) -> Profile:
    """A profile with some tables measured, and the others of `base`, with their comments where they can be kept.

    Without a base there are no others. Names of replica and traffic take the place of those in the name of `base`;
    `name` of all of it.

    Raises
    ------
    ProfileError
        The parts do not go together: a request is longer than the memory.

    Examples
    --------
    >>> from io import BytesIO
    >>> from kvplan.profile.reading import load_profile
    >>> base = load_profile("tool-calls-h100", stdin=BytesIO())
    >>> origin = Origin(Knowledge.MEASURED, "monday.csv")
    >>> part = Part("timing", ("Measured on Monday.",), timing_text(Timing(0.02)), origin)
    >>> profile = composed(base, [part], source="monday.csv")
    >>> profile.model.timing.d0, profile.model.classes == base.model.classes
    (0.02, True)
    >>> profile.model.provenance.timing.source
    'monday.csv'
    >>> composed(None, [part], source="monday.csv", replica="replica of monday.csv").missing
    ('gpu', 'classes')
    """
    measured = {part.table for part in parts}
    if "classes" in measured:
        measured.update(TRAFFIC_TABLES)
    about = f"Put together by kvplan {__version__}; every table says where it comes from."
    tables: dict[str, str] = {}
    if base is not None:
        parts = [_with_overhead(base, part) for part in parts]
        tables = _kept(base, [name for name in _TABLES if name not in measured])
        about = (
            f"Put together by kvplan {__version__}. What is not said to be measured: kept from "
            f"{base.source} ({base.name}; sha256 {base.sha256[:12]})."
        )
    tables |= {part.table: f"{comment(part.about)}\n{part.body}" for part in parts}
    own = _name("" if base is None else base.name, replica, traffic)
    text = [
        comment([about]),
        f"schema = 1\nname = {value_text(name or own or 'service')}",
        table_text("provenance", _provenance(base, parts)),
        *(tables[name] for name in _TABLES if name in tables),
    ]
    try:
        return parse_profile(("\n\n".join(text) + "\n").encode(), "<composed>")
    except ProfileError as error:
        rest = "the rest" if base is None else f"the rest of {base.source}"
        what = f"{error.key}: {error.message}" if error.key else error.message
        raise ProfileError(source, f"does not go with {rest}: {what}") from None


def replica_part(
    base: Profile | None,
    values: Mapping[str, Any],
    about: Iterable[str],
    origin: Origin,
    without: Collection[str] = (),
) -> Part:
    """The table [gpu] of `base`, where it has one, with some values found out, and `without` some keys."""
    old: dict[str, Any] = {} if base is None else base.tables.get("gpu", {})
    if any(key in values for key in _MEMORY):
        # bytes of a token, which memory no longer says
        loads = "offload" in old and "memory_tokens" in values
        old = {k: v for k, v in old.items() if k not in _MEMORY or (loads and k == "kv_bytes_per_token")}
    if "gpus" in without or any(key in values for key in _PARALLEL):
        old = {key: value for key, value in old.items() if key not in _PARALLEL}
    old = {key: value for key, value in old.items() if key not in values and key not in without}
    table, rest = {**values, **old}, list(old)
    kept = [f"Kept from {printable(base.source)}: {', '.join(rest)}."] if base and rest else []
    return Part(
        "gpu",
        (*about, *kept),
        table_text("gpu", table),
        origin,
        tuple(key for key in rest if key not in _CONVENTIONS),
    )


def kv_tables(layout: KvLayout) -> list[dict[str, Any]]:
    """Layers by kind, as ``[[gpu.kv]]`` has them."""
    tables = (
        {"kind": str(one.kind), "layers": one.count, "window": one.window, "bytes": one.bytes}
        for one in layout.layers
    )
    return [{key: value for key, value in table.items() if value is not None} for table in tables]


def classes_part(classes: Sequence[RequestClass], about: Iterable[str], origin: Origin) -> Part:
    """The tables [[classes]], each with its own rate."""
    return Part("classes", tuple(about), classes_text(classes), origin)


def classes_text(classes: Sequence[RequestClass]) -> str:
    """TOML of classes."""
    return "\n\n".join(map(_class, classes))


def prefix_text(curve: Sequence[tuple[int, float]]) -> str:
    """TOML of a hit curve.

    >>> print(prefix_text([(1_000_000, 0.054), (3_000_000, 0.139)]))
    [prefix]
    hit_curve = [
      [1_000_000, 0.054], [3_000_000, 0.139],
    ]
    """
    points = [value_text(list(point)) for point in curve]
    lines = (", ".join(points[i : i + _POINTS_IN_LINE]) for i in range(0, len(points), _POINTS_IN_LINE))
    return "\n".join(["[prefix]", "hit_curve = [", *(f"  {line}," for line in lines), "]"])


def caching_text(shared: Sequence[SharedPrompt], reuse: Reuse | None) -> list[str]:
    """Lines of TOML for a class: what its requests share, and what is asked for again after gaps known by quantiles.

    >>> some = Reuse(0.8, 0.9, Quantiles((1.5, 4.0)), from_arrival=True)
    >>> print("\\n".join(caching_text([SharedPrompt(3000, 0.6)], some)))
    shared = [{ tokens = 3_000, weight = 0.6 }]
    reuse = { tokens = 0.8, share = 0.9, gap = { law = "quantiles", values = ["1.5 s", "4 s"] }, from = "arrival" }
    """
    lines = []
    if shared:
        lines.append(
            f"shared = {value_text([{'tokens': one.tokens, 'weight': one.weight} for one in shared])}"
        )
    if reuse is not None and isinstance(reuse.gap, Quantiles):
        values = [f"{value:g} s" for value in reuse.gap.values_s]
        gap = {"law": "quantiles", "values": values}
        begins = "arrival" if reuse.from_arrival else "completion"
        table = {"tokens": reuse.tokens, "share": reuse.share, "gap": gap, "from": begins}
        lines.append(f"reuse = {value_text(table)}")
    return lines


def timing_table(
    timing: Timing, request_overhead_s: float = 0.0, measured: MeasuredRange | None = None
) -> dict[str, Any]:
    """The table [timing], four digits each; of what goes beyond d3 only what is not 0."""
    known = {name: _duration(getattr(timing, name)) for name in TIMES}
    table = {name: value for name, value in known.items() if value or name in _ALWAYS}
    if timing.d6 >= LEAST_PAIR_S:
        table["d6"] = f"{timing.d6 / 1e-9:.4g} ns"
    if "d5" in table:
        table["knee_tokens"] = round(timing.knee_tokens)
    if "experts" in table:
        table["chosen"] = timing.chosen
    if request_overhead_s > 0:
        table["request_overhead"] = _duration(request_overhead_s)
    if ranges := {f.name: value for f in fields(MeasuredRange) if (value := getattr(measured, f.name, None))}:
        table["measured"] = {name: list(map(_plain, value)) for name, value in ranges.items()}
    return table


def timing_text(
    timing: Timing, request_overhead_s: float = 0.0, measured: MeasuredRange | None = None
) -> str:
    """TOML of a timing."""
    return table_text("timing", timing_table(timing, request_overhead_s, measured))


def speculative_text(drafts: Drafts) -> str:
    """TOML of drafts."""
    table = {
        "tokens": drafts.tokens,
        "accepted": list(drafts.accepted),
        "draft_time": _duration(drafts.draft_s),
        "verify_time": _duration(drafts.verify_s),
        "overhead": _duration(drafts.overhead_s),
        "lookahead": drafts.lookahead,
    }
    return table_text("speculative", table)


def _with_overhead(base: Profile, part: Part) -> Part:
    """A timing keeps what a request of `base` takes outside the engine, unless it says that itself."""
    overhead = base.tables.get("timing", {}).get("request_overhead", 0)
    if part.table != "timing" or overhead == 0 or "request_overhead" in tomli.loads(part.body)["timing"]:
        return part
    about = f"Kept from {printable(base.source)}: request_overhead."
    body = f"{part.body}\nrequest_overhead = {value_text(overhead)}"
    return part._replace(about=(*part.about, about), body=body, kept=("request_overhead",))


def comment(paragraphs: Iterable[str]) -> str:
    """Paragraphs as lines of a comment."""
    lines = (line for text in paragraphs for line in textwrap.wrap(text, _WIDTH - 2, break_on_hyphens=False))
    return "\n".join(f"# {printable(line)}" for line in lines)


def _provenance(base: Profile | None, parts: Sequence[Part]) -> dict[str, object]:
    """How the tables that are there are known: as the parts say, and what is kept of `base` as it says."""
    known = {}
    for table, name in _KNOWN_AS.items():
        kept = None if base is None or table in base.missing else getattr(base.provenance, name)
        part = next((part for part in parts if part.table == table), None)
        if part is not None:
            known[name] = _together(part, kept, base.source) if base and kept and part.kept else part.origin
        elif kept is not None:
            known[name] = kept
    return {name: _origin(origin) for name, origin in known.items()}


def _together(part: Part, kept: Origin, base: str) -> Origin:
    """The weaker of two origins, with both sources."""
    own = part.origin
    if Knowledge.weakest(own.basis, kept.basis) is own.basis:
        return own
    return Origin(kept.basis, f"{', '.join(part.kept)} kept from {base}; the rest: {own.source}", own.date)


def _origin(origin: Origin) -> object:
    if not origin.source and origin.date is None:
        return str(origin.basis)
    source = printable(origin.source)
    short = source if len(source) <= MAX_SOURCE else f"{source[: MAX_SOURCE - 1]}…"
    table = {"basis": str(origin.basis), "source": short, "date": origin.date}
    return {key: value for key, value in table.items() if value}


def _plain(number: float) -> float:
    """A number of a range, whole where it is more than a few."""
    digits = float(f"{number:.4g}")
    return round(number) if number == round(number) or number >= 1000 else digits


def _name(base: str, replica: str | None, traffic: str | None) -> str:
    old_replica, joint, old_traffic = base.partition(_TRAFFIC)
    of = _TRAFFIC + traffic if traffic else joint + old_traffic
    name = printable(((replica or old_replica) + of).removeprefix(": "))
    return name if len(name) <= 200 else name[:199] + "…"


def _class(c: RequestClass) -> str:
    if len(c.decode_tokens) == 1:
        decode = str(c.decode_tokens[0])
    else:
        pairs = zip(c.decode_tokens, c.decode_weights, strict=True)
        decode = "{ " + ", ".join(f"{length} = {_weight(weight)}" for length, weight in pairs) + " }"
    rate = float(f"{c.rate_rps:.6g}")
    return f"[[classes]]\nname = {value_text(c.name)}\ninput = {c.input_tokens}\ndecode = {decode}\nrate = {rate!r}"


def _weight(weight: float) -> str:
    if weight.is_integer() and weight < MOST_WEIGHT:
        return f"{weight:.0f}"
    return repr(max(float(f"{weight:.6g}"), LEAST_WEIGHT))


def _duration(seconds: float) -> Any:
    """Four digits with a unit; 0 where it is less than any cost."""
    if seconds < LEAST_COST_S:
        return 0
    unit, size = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if seconds >= s), ("us", 1e-6))
    return f"{seconds / size:.4g} {unit}"


def _kept(base: Profile, names: Sequence[str]) -> dict[str, str]:
    """Tables of a base profile, by name: as written there if that stands for itself, else written anew."""
    document = tomli.loads(base.text)
    wanted = {key: document[key] for key in names if key in document}
    sections = _sections(base.text)
    verbatim = {key: sections[key] for key in wanted if key in sections}
    try:
        if tomli.loads("\n".join(verbatim.values())) == wanted:
            return verbatim
    except tomli.TOMLDecodeError:
        pass
    return {key: table_text(key, table) for key, table in wanted.items()}


def _sections(text: str) -> dict[str, str]:
    """Tables by name, each from the comment above a ``[name]`` to the comment above the next; those of one name, and
    the tables within them, together.
    """
    found: dict[str, list[str]] = {}
    name, section, remark = "", [""], [""]
    for line in [*text.split("\n"), "["]:
        if line.lstrip().startswith("["):
            found.setdefault(name, []).append("\n".join(section).strip("\n"))
            header = line.partition("#")[0].strip(" \t[]")
            name, section, remark = header.partition(".")[0], [*remark, line], []
        elif line.lstrip().startswith("#"):
            remark.append(line)
        else:
            section, remark = [*section, *remark, line], []
    return {name: "\n\n".join(texts) for name, texts in found.items()}
