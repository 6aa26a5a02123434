"""What a number of the report means, with a profile's own figures put into its formula.

`find` looks a key up, `gather` collects the figures that formulas name, `explain` and `summarise` fill the table of
`kvplan.report.explanations` from them and from the report document.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvplan.analysis.equilibrium import per_request, sustainable_rate, sustainable_rates
from kvplan.analysis.overflow import flow_control
from kvplan.analysis.wait import class_means
from kvplan.analysis.worst_cycle import pulse_cycle
from kvplan.errors import UsageError, did_you_mean
from kvplan.model import Plan, Prefill, ServingModel
from kvplan.report.assembly import Report, to_document
from kvplan.report.explanations import (
    ABSENT_BLOCKS,
    BLOCKS,
    ENTRY_SYMBOLS,
    EXPLANATIONS,
    SYMBOLS,
    Explanation,
)
from kvplan.units import format_number

DIGITS = 6  # enough to follow a calculation
_MAX_ROWS = 20
_MAX_TERMS = 8  # of a sum or a list that is written out
_BY_KEY = {e.key: e for e in EXPLANATIONS}
_PLACE = re.compile(r"\{([<.@\w]+)(?::(\d+))?\}")
_SUM = re.compile(r"⟨([\w.]+): (.*?)⟩")

Value = float | int | bool | str | None
Entry = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Found:
    """What was asked for: one key, perhaps one entry of its list, or all keys of a block."""

    name: str
    explanations: tuple[Explanation, ...]
    is_block: bool
    entry: int | None = None


@dataclass(frozen=True)
class Inputs:
    """Figures of the model that formulas name.

    Attributes
    ----------
    values : mapping of str to value
        By the names of `kvplan.report.explanations.SYMBOLS`, and what cases are chosen by.
    entries : mapping of str to sequence of mappings
        For lists of the report, by their key, the figures of each entry (`ENTRY_SYMBOLS`).
    varying : bool
        Whether rates vary over time: figures of thresholds are then not those that the formulas name.
    """

    values: Entry
    entries: Mapping[str, tuple[Entry, ...]]
    varying: bool = False


# Where rates vary over time, these keys are about the worst window.
_OF_CONSTANT_RATES = frozenset(
    {
        "wait.feasible",
        "wait.thresholds[]",
        "wait.classes[].threshold",
        "wait.classes[].mean_wait_bound_s",
        "wait.classes[].latency_s",
        "wait.max_thresholds[]",
        "nested_wait.feasible",
        "nested_wait.segments[].rate_rps",
        "nested_wait.segments[].continue_probability",
        "nested_wait.segments[].threshold",
    }
)
_VARYING = (
    " Rates vary here: λ·ΔT is the most that arrives in any window of length ΔT, p_k the largest share of any time, "
    "and other rates are means over the period."
)


@dataclass(frozen=True, slots=True)
class Row:
    """A value; `name` where there is one per class, segment or block. `here` is its formula in numbers."""

    name: str
    value: str
    here: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol of the formula; `value` is empty where it differs from row to row, `meaning` for keys of the report."""

    symbol: str
    value: str
    meaning: str


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
    """The explanations of a key or of a block.

    Parameters
    ----------
    word : str
        A key as the contract writes it; ``[0]`` asks for one entry of a list. Or the name of a block.

    Raises
    ------
    UsageError
        There is no such key; names the nearest.

    Examples
    --------
    >>> found = find("worst_cycle.classes[1].loss")
    >>> found.explanations[0].key, found.entry
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
    for about in (_BY_KEY[key] for key in keys if key in _BY_KEY):
        return Found(about.key, (about,), is_block=False, entry=entry)
    below = tuple(e for e in EXPLANATIONS if e.key.startswith((f"{stem}.", f"{stem}[].")))
    if below:
        return Found(stem, below, is_block=True)
    raise UsageError(f"{_shown(word)} is no key of the report; {_nearest(stem)}")


def _nearest(word: str) -> str:
    from difflib import get_close_matches

    last = word[:100].rpartition(".")[2]
    close = [key for key in _BY_KEY if key.rpartition(".")[2] == last]
    close = close or get_close_matches(word[:100], [*BLOCKS, *_BY_KEY], n=3)
    if close:
        return f"did you mean {' or '.join(close[:5])}?"
    return did_you_mean(word, BLOCKS, "its blocks are")


def _shown(word: str) -> str:
    return word if word.isprintable() and 0 < len(word) <= 60 else repr(word[:60])


# ------------------------------------------------------------------------------------------ named figures


def gather(model: ServingModel, plan: Plan, report: Report) -> Inputs:
    """The figures of a model that formulas name, beside those of its report.

    Examples
    --------
    >>> from kvplan.model import Prefill, Replica, RequestClass, Timing
    >>> from kvplan.report.assembly import analyze
    >>> one = RequestClass("a", 2, (3,), (1.0,), 0.9)
    >>> model = ServingModel((one,), Timing(1.0), Replica(12, prefill=Prefill.DISAGGREGATED))
    >>> given = gather(model, Plan(), analyze(model, name="n", sha256=""))
    >>> given.values["M"], given.values["S_b"], given.entries["wait.classes"][0]["rate"]
    (12, 12.0, 0.9)
    """
    classes = tuple(_of_class(model, i, report) for i in range(len(model.classes)))
    lists = ("equilibrium.classes", "worst_cycle.classes", "rate_cap.classes", "wait.classes")
    entries: dict[str, tuple[Entry, ...]] = dict.fromkeys(
        (*lists, "wait.thresholds", "wait.max_thresholds"), classes
    )
    entries["nested_wait.segments"] = tuple(_of_segments(model, report))
    values = {**_of_model(model, report), **_of_plan(model, plan, report)}
    return Inputs(values, entries, varying=model.schedule is not None)


def _of_model(model: ServingModel, report: Report) -> dict[str, Value]:
    mix, timing, replica, cost = model.mix, model.timing, model.replica, per_request(model)
    longest = max(c.max_tokens for c in model.classes)
    shorter = mix.stages == mix.stages.min()
    two = bool((shorter | (mix.stages == mix.stages.max())).all() and not shorter.all())
    more = replace(replica, memory_tokens=replica.memory_tokens * 1.1)  # type: ignore[arg-type]
    return {
        "M": replica.memory_tokens,
        "A": model.total_rate_rps * cost.held,
        "d0": timing.d0,
        "d1": timing.d1,
        "d2": timing.d2,
        "d3": timing.d3,
        "rate": model.total_rate_rps,
        "S": cost.read,
        "S_b": cost.held,
        "s": cost.prefill_tokens,
        "input": float(mix.share @ mix.input_tokens),
        "n": cost.iterations,
        "a": float(mix.share @ model.mix.held.at_start),
        "c": cost.work_s,
        "t": cost.computed_tokens,
        "d": cost.decode_tokens,
        "B_max": replica.max_num_seqs,
        "T_b": replica.max_num_batched_tokens,
        "L": int(mix.stages.max()),
        "blocks": replica.memory_tokens // replica.block_tokens,
        "longest_blocks": -(-longest // replica.block_tokens),
        "half": (replica.block_tokens - 1) / 2,
        "B_w": _in_flight(model),
        "prefilled": _prefilled(
            model, report.worst_cycle.throughput_per_iteration, report.worst_cycle.evictions_per_iteration
        ),
        "tau_w": report.worst_cycle.throughput_per_iteration / report.worst_cycle.throughput_rps,
        "p": float(mix.share[shorter].sum()) if two else None,
        "shift": 1 if replica.prefill is Prefill.INLINE else 0,
        "after_memory": sustainable_rate(replace(model, replica=more))[1],
        "after_d0": sustainable_rate(replace(model, timing=replace(timing, d0=timing.d0 * 1.1)))[1],
        "after_d1": sustainable_rate(replace(model, timing=replace(timing, d1=timing.d1 * 1.1)))[1],
        "lengths": _listed(str(n) for n in np.unique(mix.stages)),
        "limits": ", ".join(f"{k} {format_number(v, DIGITS)}" for k, v in sustainable_rates(model).items()),
        "classes": "one class" if len(model.classes) == 1 else "several classes",
    }


def _of_class(model: ServingModel, index: int, report: Report) -> dict[str, Value]:
    mix, means, one = model.mix, class_means(model), model.classes[index]
    alone = replace(model, classes=(one,))
    cycle = report.worst_cycle.classes[index]
    tau = report.equilibrium.iteration_time_s
    waiting = report.wait.classes[index] if report.wait else None
    rate = one.rate_rps
    return {
        "rate": rate,
        "share": rate / model.total_rate_rps,
        "arrivals": None if tau is None else rate * tau,
        "n": float(means.iterations[index]),
        "S_b": float(means.held[index]),
        "a": float(model.mix.held.at_start[mix.class_index == index][0]),
        "c": float(means.work_s[index]),
        "input": one.input_tokens,
        "B_w": _in_flight(alone),
        "prefilled": _prefilled(model, cycle.throughput_per_iteration, cycle.evictions_per_iteration),
        "queue": waiting.queue_bound if waiting else None,
    }


def _of_segments(model: ServingModel, report: Report) -> Iterator[dict[str, Value]]:
    if report.nested_wait is None:
        return
    half, reached = (model.replica.block_tokens - 1) / 2, 0
    for k, segment in enumerate(report.nested_wait.segments):
        bound = segment.queue_bound
        yield {
            "tokens": segment.kv_tokens / segment.threshold,
            "w": segment.input_tokens + half + reached if k else 0,
            "excess": 0 if bound is None else bound - segment.threshold,
            "case": "first" if k == 0 else "unbounded" if segment.theta is None else "later",
        }
        reached = segment.upto_decode


def _of_plan(model: ServingModel, plan: Plan, report: Report) -> dict[str, Value]:
    nested, tails = report.nested_wait, report.safety_buffer
    tau = report.equilibrium.iteration_time_s
    budgets = [c.integer_budget for c in report.rate_cap.classes if c.integer_budget is not None]
    bound = None if tau is None else flow_control(model, max(1.0, plan.horizon_s / tau), budgets or None)
    return {
        "smooth_tail": getattr(tails, "saddlepoint_probability", None),
        "exact_tail": getattr(tails, "exact_pmf_probability", None),
        "horizon_iterations": bound and bound.iterations,
        "budget_mean": bound and bound.mean_tokens,
        "largest_budget": bound and bound.largest_budget,
        "longest_side": bound and bound.longest,
        "delta": plan.delta,
        "horizon": plan.horizon_s,
        "N": nested.iterations if nested else None,
        "dt_nested": nested.iteration_time_s if nested else None,
        "boundaries": max(len(nested.segments) - 1, 1) if nested else None,
    }


def _in_flight(model: ServingModel) -> float | None:
    """Requests in flight on the cycle of a closed form; None where the iteration counts share no divisor."""
    mix = model.mix
    if int(np.gcd.reduce(mix.stages)) == 1:
        return None
    memory = float(model.replica.memory_tokens)
    return pulse_cycle(mix.stages, model.mix.held.at_start, mix.share, memory).in_flight


def _prefilled(model: ServingModel, completed: float | None, evicted: float | None) -> float | None:
    if completed is None or evicted is None:
        return None
    return evicted if model.replica.prefill is Prefill.DISAGGREGATED else completed + evicted


def _listed(words: Iterable[str], between: str = ", ") -> str:
    """At most `_MAX_TERMS` words, with an ellipsis for the rest."""
    known = list(words)
    return between.join([*known[:_MAX_TERMS], "…"] if len(known) > _MAX_TERMS else known)


# ------------------------------------------------------------------------------------------------- filling


def explain(found: Found, document: Mapping[str, Any], inputs: Inputs) -> Explained:
    """One key with the numbers of a profile.

    Parameters
    ----------
    found : Found
        Of one key.
    document : dict
        The report, as `kvplan.report.assembly.to_document` returns it.
    inputs : Inputs

    Raises
    ------
    UsageError
        An entry was asked for that the list does not have.

    Examples
    --------
    >>> inputs = Inputs({"M": 12, "S_b": 12.0}, {})
    >>> document = {"saturation": {"admissions_per_iteration": 1.0}, "sources": {}}
    >>> explain(find("saturation.admissions_per_iteration"), document, inputs).rows[0]
    Row(name='', value='1 requests', here='12 / 12')
    """
    (about,) = found.explanations
    places = list(_places(about, document, inputs))
    if found.entry is not None and "[]" in about.key:
        if found.entry >= len(places):
            raise UsageError(f"{about.key} has {len(places)} entries here, counted from 0; not {found.entry}")
        places = [places[found.entry]]
    rows = tuple(Row(p.name, _written(p.value, about.unit), p.here) for p in places[:_MAX_ROWS])
    left_out = len(places) - len(rows)
    missing = not places or any(place.value is None for place in places)
    names = dict(item for place in places[:_MAX_ROWS] for item in place.names.items())
    return Explained(
        key=found.name if found.entry is None else about.key.replace("[]", f"[{found.entry}]"),
        meaning=about.meaning + (_VARYING if inputs.varying and about.key in _OF_CONSTANT_RATES else ""),
        rows=rows,
        cut=f"… {format_number(left_out)} more; see --format json of analyze" if left_out > 0 else "",
        formula=about.formula,
        symbols=tuple(_symbols(names, about.key, _Scope(document, inputs))),
        source=_source(about, document),
        absent=_why_absent(about, document) if missing else "",
    )


def page(found: Found, report: Report, model: ServingModel, plan: Plan) -> Explained | Summary:
    """What was asked for, about a report and the model and plan it was made from."""
    document, inputs = to_document(report), gather(model, plan, report)
    return (summarise if found.is_block else explain)(found, document, inputs)


def summarise(found: Found, document: Mapping[str, Any], inputs: Inputs) -> Summary:
    """The keys of a block with their values.

    Examples
    --------
    >>> document = {"saturation": {"iteration_time_s": 0.5}}
    >>> summarise(find("saturation"), document, Inputs({}, {})).keys[1][:2]
    ('saturation.iteration_time_s', '0.5 s')
    """
    keys = []
    for about in found.explanations:
        values = (_written(place.value, about.unit) for place in _places(about, document, inputs))
        keys.append((about.key, _listed(values) or "null", about.meaning))
    return Summary(found.name, BLOCKS.get(found.name, ""), tuple(keys))


@dataclass(frozen=True)
class _Scope:
    """Where the names of a template are looked up: at entry `k` of the list `head`, or outside of any."""

    document: Mapping[str, Any]
    inputs: Inputs
    head: str = ""
    k: int = -1

    def __getitem__(self, name: str) -> Value:
        value: Any = None
        if name[0] == "@":
            entries = self.inputs.entries.get(self.head, ())
            value = entries[self.k].get(name[1:]) if 0 <= self.k < len(entries) else None
        elif name[0] in ".<":
            at = self.k - (name[0] == "<")
            value = _at(_at(self.document, self.head)[at], name.lstrip("<.")) if at >= 0 else None
        elif "." in name:
            value = _at(self.document, name)
        else:
            value = self.inputs.values.get(name)
        assert value is None or isinstance(value, float | int | str), name
        return value

    def entries(self, head: str) -> list["_Scope"]:
        """The scope of each entry of a list of the report."""
        return [replace(self, head=head, k=k) for k in range(len(_at(self.document, head) or ()))]


@dataclass(frozen=True)
class _Place:
    """A value of the report, and the template of its formula; empty where there is none."""

    name: str
    value: Any
    template: str
    scope: _Scope

    @property
    def here(self) -> str:
        return "" if self.value is None else _filled(self.template, self.scope)

    @property
    def names(self) -> dict[str, int]:
        """What the template names, in its order, and to how many digits; nothing where a name has no number."""
        return {m[1]: int(m[2] or DIGITS) for m in _PLACE.finditer(self.template)} if self.here else {}


def _places(about: Explanation, document: Mapping[str, Any], inputs: Inputs) -> Iterator[_Place]:
    outside = _Scope(document, inputs)
    head, bracket, tail = about.key.partition("[]")
    if bracket:
        for scope in outside.entries(head):
            entry = _at(document, head)[scope.k]
            value = _at(entry, tail.removeprefix(".")) if tail else entry
            yield _Place(_entry_name(scope, entry), value, _template(about, scope), scope)
    elif about.key == "sources":
        for block, source in document["sources"].items():
            yield _Place(block, f"{source['kind']}: {source['source']}", "", outside)
    else:
        yield _Place("", _at(document, about.key), _template(about, outside), outside)


def _entry_name(scope: _Scope, entry: Any) -> str:
    if isinstance(entry, dict):
        return str(entry.get("name", f"segment {scope.k + 1}"))
    if scope.head.startswith("wait."):  # thresholds, in the order of the classes
        return str(scope.document["wait"]["classes"][scope.k]["name"])
    return ""


def _at(value: Any, path: str) -> Any:
    """What stands at a dotted path; None below None, and for keys that are not there."""
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _template(about: Explanation, scope: _Scope) -> str:
    if scope.inputs.varying and about.key in _OF_CONSTANT_RATES:
        return ""
    if isinstance(about.here, Mapping):
        return about.here.get(str(scope[about.case]), "")
    return about.here or ""


def _filled(template: str, scope: _Scope) -> str:
    """A template with numbers for its names; empty where one of them is null."""

    def total(match: re.Match[str]) -> str:
        terms = [_filled(match[2], entry) for entry in scope.entries(match[1])]
        return "{}" if not terms or "" in terms else _listed(terms, " + ")

    def number(match: re.Match[str]) -> str:
        value = scope[match[1]]
        return "{}" if value is None else _number(value, int(match[2] or DIGITS))

    text = _PLACE.sub(number, _SUM.sub(total, template))
    return "" if "{}" in text else text


def _number(value: Value, digits: int = DIGITS) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else format_number(value, digits)


def _written(value: Any, unit: str) -> str:
    if value is None:
        return "null"
    pair = isinstance(value, list)
    text = f"[{', '.join(map(_number, value))}]" if pair else _number(value)
    return f"{text} {unit}" if unit else text


def _symbols(names: Mapping[str, int], key: str, scope: _Scope) -> Iterator[Symbol]:
    for name, digits in names.items():
        if name[0] == "@":
            symbol, meaning = ENTRY_SYMBOLS[name[1:]]
            yield Symbol(symbol, "", meaning)
        elif name in SYMBOLS:
            symbol, meaning = SYMBOLS[name]
            yield Symbol(symbol, _number(scope[name], digits), meaning)
        elif name[0] not in ".<" and name != key:
            symbol, value = _BY_KEY[name].symbol, _number(scope[name], digits)
            yield Symbol(symbol, value, name) if symbol else Symbol(name, value, "")


def _source(about: Explanation, document: Mapping[str, Any]) -> str:
    if not about.source:
        return ""
    basis = about.basis or _at(document, f"sources.{about.key.partition('.')[0]}.kind")
    return f"{about.source} ({basis})" if basis else about.source


def _why_absent(about: Explanation, document: Mapping[str, Any]) -> str:
    block = about.key.partition(".")[0].removesuffix("[]")
    if document.get(block) is None:
        return ABSENT_BLOCKS.get(block, ABSENT_BLOCKS[""])
    return about.absent
