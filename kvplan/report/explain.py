"""Pages that explain a number of the report: formula and source, its value, and the values that it rests on.

Formulas name figures of the report, and quantities beside it; of those symbol and meaning are in `keys.toml`. `find`
looks a key up in the registry (`kvplan.report.keys`); `explain` and `summarise` add the numbers of a report.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvplan.analysis.cache_states import CachedReplica, cached_replica
from kvplan.analysis.cached_equilibrium import with_cold_cache
from kvplan.analysis.concurrency import computed_blocks, longest_blocks
from kvplan.analysis.equilibrium import (
    PerRequest,
    equilibrium,
    load,
    per_request,
    saturation,
    sustainable_rates,
)
from kvplan.analysis.fleet import one_replica
from kvplan.analysis.wait import ClassMeans, class_means
from kvplan.errors import UsageError, did_you_mean
from kvplan.model import Plan, ServingModel
from kvplan.report.inputs import source_text
from kvplan.report.keys import BLOCKS, CONTRACT, QUANTITY_WORDS, Record
from kvplan.report.ledger import Ledger, at
from kvplan.units import format_number

DIGITS = 6  # enough to follow a calculation
_MOST_LISTED = 8

Value = float | int | str | None


class Given:
    """A model and a plan, and what follows from them for several quantities."""

    def __init__(self, model: ServingModel, plan: Plan) -> None:
        self.model, self.plan = model, plan
        self.mix, self.replica, self.classes = model.mix, model.replica, model.classes

    @cached_property
    def cached(self) -> CachedReplica | None:
        """The replica with its prefix cache, where that finds something."""
        return cached_replica(self.model) if self.model.finds_prefixes else None

    @cached_property
    def cost(self) -> PerRequest:
        """Mean amounts of a request; with a prefix cache by the exact moments of sessions, before anything is found."""
        cost, warm = per_request(self.model), self.cached
        if warm is None:
            return cost
        return cost._replace(
            held=warm.held,
            read=warm.read,
            prefill_tokens=warm.prefill,
            prefill_pairs=warm.prefill_pairs,
            iterations=warm.stages,
            work_s=warm.work_s,
        )

    @cached_property
    def means(self) -> ClassMeans:
        return class_means(self.model)


Measure = Callable[[Given], Value | tuple[Value, ...]]


class Quantity(NamedTuple):
    """A number that formulas name; `value` gives one for each class, in a tuple, where it is of classes."""

    symbol: str
    meaning: str
    value: Measure


def listed(words: list[str]) -> str:
    """List up to eight words, with an ellipsis for more."""
    return ", ".join([*words[:_MOST_LISTED], "…"] if len(words) > _MOST_LISTED else words)


def _of_cache(value: Callable[[CachedReplica], Value]) -> Measure:
    return lambda g: None if g.cached is None else value(g.cached)


def _unless_zero(name: str) -> Measure:
    return lambda g: attrgetter(name)(g.model) or None


def _fixed(g: Given) -> Value:
    timing = g.model.timing
    if timing.is_linear:
        return timing.d0
    woken = " + experts·E[1 − (1 − chosen)^(P + B)]" if timing.experts else ""
    return f"d0 + d4·√B + d5·E[max(0, P + B − knee_tokens)]{woken}"


def _lengths(stages: NDArray[np.int64]) -> str:
    return listed([str(n) for n in np.unique(stages)])


def _band(g: Given) -> Value:
    band = g.model.measured.band
    return band and " to ".join(format_number(end, DIGITS) for end in band)


def _shared(cached: CachedReplica) -> float:
    share, tokens, _ = cached.shared
    return float(share @ tokens)


_CONSTANTS = ("d0", "d1", "d2", "d3", "d4", "d5", "knee_tokens", "d6", "experts", "chosen")
_MEASURES: Mapping[str, Measure] = {
    "rate": attrgetter("model.total_rate_rps"),
    "users": _of_cache(attrgetter("users")),
    "footprint": attrgetter("cost.held"),
    "context": attrgetter("cost.read"),
    "prefill": attrgetter("cost.prefill_tokens"),
    "pairs": attrgetter("cost.prefill_pairs"),
    "iterations": attrgetter("cost.iterations"),
    "computed": attrgetter("cost.computed_tokens"),
    "input_tokens": lambda g: g.mix.mean(g.mix.input_tokens),
    "decode": lambda g: g.mix.mean(g.mix.decode_tokens),
    "work": attrgetter("cost.work_s"),
    "first": lambda g: float(g.mix.share @ g.mix.held.at_start),
    "longest": lambda g: int(g.mix.stages.max()),
    "lengths": lambda g: _lengths(g.mix.stages),
    "class_rate": lambda g: tuple(c.rate_rps for c in g.classes),
    "class_share": lambda g: tuple(c.rate_rps / g.model.total_rate_rps for c in g.classes),
    "class_iterations": lambda g: tuple(g.means.iterations.tolist()),
    "class_footprint": lambda g: tuple(g.means.held.tolist()),
    "class_work": lambda g: tuple(g.means.work_s.tolist()),
    "class_lengths": lambda g: tuple(
        _lengths(g.mix.stages[g.mix.class_index == i]) for i in range(len(g.classes))
    ),
    "memory": attrgetter("replica.capacity_tokens"),
    "max_num_seqs": attrgetter("replica.max_num_seqs"),
    "max_num_batched_tokens": attrgetter("replica.max_num_batched_tokens"),
    "limits": lambda g: ", ".join(
        f"{k} {format_number(v, DIGITS)}" for k, v in sustainable_rates(g.model).items()
    ),
    "pages": lambda g: g.replica.memory_tokens // g.replica.block_tokens,
    "longest_pages": lambda g: longest_blocks(g.model),
    "computed_pages": lambda g: computed_blocks(g.model),
    "overhead": _unless_zero("request_overhead_s"),
    "fixed": _fixed,
    **{name: _unless_zero(f"timing.{name}") for name in _CONSTANTS},
    "band": _band,
    "prompt": _of_cache(lambda cached: cached.mean("prompt")),
    "left": _of_cache(attrgetter("left")),
    "reuse": _of_cache(lambda c: sum(s.reused for s in c.private) / c.left if c.left else 0.0),
    "common": _of_cache(_shared),
    "reach": _of_cache(attrgetter("reach_tokens")),
    "load_time": lambda g: None if g.replica.offload is None else g.replica.offload.load_s,
    "delta": attrgetter("plan.delta"),
    "horizon": attrgetter("plan.horizon_s"),
    "gpu_hour": attrgetter("plan.gpu_hour"),
    "power": attrgetter("plan.watts"),
    "origin_gpu": lambda g: source_text(g.model.provenance.gpu) or None,
    "origin_timing": lambda g: source_text(g.model.provenance.timing) or None,
    "origin_workload": lambda g: source_text(g.model.provenance.workload) or None,
}
QUANTITIES: Mapping[str, Quantity] = {
    name: Quantity(*words, _MEASURES[name]) for name, words in QUANTITY_WORDS.items()
}


MANY, FEW = 20, 8  # values of a key that are shown, and on a first screen
_WORST_WINDOW = frozenset({"wait", "nested_wait"})
_VARYING = (
    " Rates vary here: λ·ΔT is the most that arrives in any window of length ΔT, p_k the largest share of any time, "
    "and other rates are means over the period."
)
_WARM = frozenset({"verdict", "load", "equilibrium", "saturation", "prefix_cache"})  # blocks that count hits
_OF_PROFILE = "the profile"  # a source that needs no basis
_COLD = (
    " Here the prefix cache finds what is always in use and nothing else, as in a collapse: M, λ, S̄, τ* and the like "
    "are those of such a replica."
)


class Found(NamedTuple):
    """Keys that were asked for: one, perhaps one entry of its list, or all of a block."""

    name: str
    records: tuple[Record, ...]
    is_block: bool
    entry: int | None = None


class Row(NamedTuple):
    """A value; `name` where there is one per class, segment or block."""

    name: str
    value: str


class Input(NamedTuple):
    """An input of a formula; `meaning` is a key where it is a figure of the report, `symbol` may be empty."""

    symbol: str
    value: str
    meaning: str


class Explained(NamedTuple):
    """One key with the numbers of a profile; empty strings for what does not apply."""

    key: str
    meaning: str
    rows: tuple[Row, ...]
    cut: str
    formula: str
    inputs: tuple[Input, ...]
    source: str
    absent: str


class Summary(NamedTuple):
    """The keys of a block, each with its value and what it means."""

    name: str
    meaning: str
    keys: tuple[tuple[str, str, str], ...]


class _Cold:
    """An answer with some blocks of a cold prefix cache in place of its own."""

    def __init__(self, answer: Any, cold: Mapping[str, Any]) -> None:
        self._answer, self._cold = answer, cold

    def __getattr__(self, block: str) -> Any:
        return self._cold[block] if block in self._cold else at(self._answer, (block,))


class Ground(NamedTuple):
    """Formula and inputs of a figure, where these come from, and what is to be said of them."""

    formula: str
    inputs: tuple[str, ...]
    ledger: Ledger
    given: Given
    remark: str


def find(word: str) -> Found:
    """Find the records of a key, as the contract writes it, or of a block; ``[0]`` asks for one entry of a list.

    Raises
    ------
    UsageError
        There is no such key; names the nearest.

    Examples
    --------
    >>> asked = find("worst_cycle.classes[1].loss")
    >>> asked.records[0].key, asked.entry
    ('worst_cycle.classes[].loss', 1)
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
    shown = word if word.isprintable() and 0 < len(word) <= 60 else repr(word[:60])
    raise UsageError(f"{shown} is no key of the report; {_nearest(stem)}")


def _nearest(word: str) -> str:
    from difflib import get_close_matches

    last = word[:100].rpartition(".")[2]
    close = [key for key in CONTRACT if key.rpartition(".")[2] == last]
    close = close or get_close_matches(word[:100], [*BLOCKS, *CONTRACT], n=3)
    if close:
        return f"did you mean {' or '.join(close[:5])}?"
    return did_you_mean(word, BLOCKS, "its blocks are")


def page(
    asked: Found, answer: Any, model: ServingModel, plan: Plan, *, full: bool = True
) -> Explained | Summary:
    """Explain a key or a block of a report, beside the model and plan it was made from.

    `answer` has the blocks of the report as attributes, of which those are looked at that the page names, or by name.

    Raises
    ------
    UsageError
        An entry was asked for that the list does not have.
    """
    if asked.is_block:
        return summarise(asked, answer)
    return explain(asked, answer, model, plan, MANY if full else FEW)


def explain(asked: Found, answer: Any, model: ServingModel, plan: Plan, most: int = MANY) -> Explained:
    """Explain one key with so many of its values at most; `answer` is the report of the model and plan.

    Raises
    ------
    UsageError
        An entry was asked for that the list does not have.

    Examples
    --------
    >>> from kvplan.model import Prefill, Replica, RequestClass, Timing
    >>> requests = RequestClass("a", 2, (3,), (1.0,), 0.9)
    >>> model = ServingModel((requests,), Timing(1.0), Replica(12, prefill=Prefill.DISAGGREGATED))
    >>> document = {"saturation": {"admissions_per_iteration": 1.0}, "sources": {}}
    >>> page = explain(find("saturation.admissions_per_iteration"), document, model, Plan())
    >>> page.formula, page.rows, [(given.symbol, given.value) for given in page.inputs]
    ('n* = M/Σ p_i·S_i = M/S̄', (Row(name='', value='1 requests'),), [('M', '12'), ('S̄', '12')])
    """
    (record,) = asked.records
    ledger = Ledger(answer)
    values = list(_values(record, ledger))
    if asked.entry is not None and record.list_key:
        if asked.entry >= len(values):
            raise UsageError(
                f"{record.key} has {len(values)} entries here, counted from 0; not {asked.entry}"
            )
        values = [values[asked.entry]]
    left_out = len(values) - most
    where = "--full" if most < MANY else "--format json of analyze"
    missing = not values or any(value is None for _, value in values)
    absent = BLOCKS[record.block].absent if ledger.value(record.block) is None else record.absent
    rests = ground(record, answer, model, plan)
    return Explained(
        key=asked.name if asked.entry is None else record.key.replace("[]", f"[{asked.entry}]"),
        meaning=record.meaning + rests.remark,
        rows=tuple(Row(name, _with_unit(value, record.unit)) for name, value in values[:most]),
        cut=f"… {format_number(left_out)} more; see {where}" if left_out > 0 else "",
        formula=rests.formula,
        inputs=tuple(_inputs(rests, asked.entry)),
        source=_source(record, ledger),
        absent=absent if missing else "",
    )


def ground(record: Record, answer: Any, model: ServingModel, plan: Plan) -> Ground:
    """Choose the formula of a record and where its inputs come from; with a prefix cache, whether that is warm."""
    model, formula, names, remark = one_replica(model), record.formula, record.inputs, ""
    if model.schedule is not None and record.block in _WORST_WINDOW and formula:
        remark = _VARYING
    if model.finds_prefixes and record.block in _WARM:
        formula, names = record.warm or (formula, names)
    elif model.finds_prefixes and formula:
        model, remark = with_cold_cache(model), remark + _COLD
        answer = _Cold(
            answer, {"load": load(model), "equilibrium": equilibrium(model), "saturation": saturation(model)}
        )
    return Ground(formula, tuple(names.split()), Ledger(answer), Given(model, plan), remark)


def values_of(name: str, rests: Ground) -> list[Any]:
    """List all values of an input: one, or one for each entry of a list or class."""
    if name in CONTRACT:
        return [value for _, value in _values(CONTRACT[name], rests.ledger)]
    value = QUANTITIES[name].value(rests.given)
    return list(value) if isinstance(value, tuple) else [value]


def _inputs(rests: Ground, entry: int | None) -> Iterator[Input]:
    """Write the inputs that exist here, of lists the entry asked for or all."""
    for name in rests.inputs:
        record = CONTRACT.get(name)
        symbol, meaning = (record.symbol, name) if record else QUANTITIES[name][:2]
        unit = record.unit if record else ""
        values = values_of(name, rests)
        if entry is not None and len(values) > 1:
            values = values[entry : entry + 1]
        if any(value is not None for value in values):
            yield Input(symbol, f"{listed([_with_unit(v, '') for v in values])} {unit}".rstrip(), meaning)


def summarise(asked: Found, answer: Any) -> Summary:
    """List the keys of a block with their values."""
    keys, ledger = [], Ledger(answer)
    for record in asked.records:
        values = [_with_unit(value, record.unit) for _, value in _values(record, ledger)]
        keys.append((record.key, listed(values) or "null", record.meaning))
    block = BLOCKS.get(asked.name)
    return Summary(asked.name, block.meaning if block else "", tuple(keys))


def _values(record: Record, ledger: Ledger) -> Iterator[tuple[str, Any]]:
    """Yield one value without a name, or one for each entry of a list with its name."""
    if record.key == "sources":
        for block, source in ledger.value("sources").items():
            yield block, f"{source['kind']}: {source['source']}"
    elif not record.list_key:
        value = ledger.value(record.key)
        yield from _leaves(value) if isinstance(value, dict) else [("", value)]
    else:
        for k, row in enumerate(ledger.rows(record.list_key)):
            yield _entry_name(record, ledger, row, k), ledger.value(record.key.replace("[]", f"[{k}]", 1))


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _entry_name(record: Record, ledger: Ledger, row: str, k: int) -> str:
    entry = ledger.value(row)
    if isinstance(entry, dict):
        singular = record.list_key.rpartition(".")[2].removesuffix("s")
        return str(entry.get("name", f"{singular} {k + 1}"))
    return str(ledger.value(f"{record.block}.classes[{k}].name")) if record.is_by_class else ""


def _with_unit(value: Any, unit: str) -> str:
    if isinstance(value, list):
        text = f"[{', '.join(_with_unit(end, '') for end in value)}]"
    elif value is None:
        return "null"
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = value if isinstance(value, str) else format_number(value, DIGITS)
    return f"{text} {unit}" if unit else text


def _source(record: Record, ledger: Ledger) -> str:
    if not record.source or record.source == _OF_PROFILE:
        return record.source
    basis = record.basis or ledger.value(f"sources.{record.block}.kind")
    return f"{record.source} ({basis})" if basis else record.source
