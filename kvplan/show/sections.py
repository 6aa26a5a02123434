"""Sections of a report for people, one function a block; `SECTIONS` has them in their order."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import Any, TypeVar

from kvplan.analysis.nested import NestedWait
from kvplan.analysis.overflow import SafetyBuffer
from kvplan.analysis.prefix_cache import CacheState
from kvplan.analysis.speculative import Speculative
from kvplan.analysis.worst_cycle import ClassCycle, CycleKind
from kvplan.report.assembly import Report
from kvplan.report.first_screen import rate_text, times_of
from kvplan.report.inputs import range_text
from kvplan.report.keys import BLOCKS, CONTRACT, Kind, probability
from kvplan.report.notes import Source
from kvplan.report.verdict import beside_spectrum
from kvplan.report.words import PAPERS, Basis
from kvplan.show.page import (
    MAX_ROWS,
    Block,
    Bullets,
    Column,
    Columns,
    Paragraph,
    Table,
    number,
    table,
    tabulate,
    words,
)
from kvplan.study.operating_point import Distribution, Status
from kvplan.units import (
    ABSENT,
    format_bytes,
    format_number,
    format_percent,
    format_seconds,
    format_tokens,
)

_Row = TypeVar("_Row")
_CLASS = words("Class")
BASIS = Column("Basis")
_NO_EQUILIBRIUM = "No equilibrium exists whose spread it could be: the work alone takes too long."
_NOT_BESIDE = "Not {} beside drafts or layers of several kinds."
_NO_WARM_CACHE = "No state of a warm cache lasts at the offered load."
_NO_THRESHOLDS = "None exist: the work alone takes longer than the time between arrivals, or all but as long."


def _times(begin: int = 0) -> Columns[tuple[Any, ...]]:
    """Make the columns of a time that stands in a row from `begin` on."""
    figures = {
        number(name): lambda row, i=i: format_seconds(row[begin + 2][i])
        for i, name in enumerate(Distribution._fields)
    }
    return {Column("Time"): lambda row: row[begin], **figures}


def _load(report: Report, basis: Basis) -> Iterator[Block]:
    first = (
        "load.offered_rps",
        "load.sustainable_rps",
        "verdict.binding",
        "load.sustainable_decode_tokens_per_s",
        "load.load_factor_max",
        "load.work_rate",
        "verdict.backlog_growth_rps",
    )
    rate = rate_text(report.load.sustainable_rps) + range_text(report.load.sustainable_rps_range)
    idle = {
        f"load.sensitivity.{name}": ""
        for name, change in report.load.sensitivity._asdict().items()
        if not change
    }
    steady = {"verdict.backlog_growth_rps": ""} if report.verdict.backlog_growth_rps is None else {}
    yield _figures(report, basis, "load", first, {"load.sustainable_rps": rate, **idle, **steady})


def _equilibrium(report: Report, basis: Basis) -> Iterator[Block]:
    state = report.equilibrium
    if state.kv_utilization is None:
        cached = report.prefix_cache is not None and report.prefix_cache.reusable_ratio is not None
        why = "None exists: the work alone takes longer than the time between arrivals."
        yield Paragraph(_NO_WARM_CACHE if cached else why)
    elif state.kv_utilization > 1:
        yield Paragraph("It does not fit: what the offered load would hold in memory without preemptions.")
    yield _figures(report, basis, "equilibrium")
    if state.kv_utilization is not None:
        yield _entries(report, basis, "equilibrium.classes")


def _latency(report: Report, basis: Basis) -> Iterator[Block]:
    found = report.latency
    if found.reason is not None:
        yield Paragraph(f"None: {found.reason}.")
        return
    if found.status is Status.UNDECIDED:
        yield Paragraph("The runs cannot tell whether the queue is steady: too close to saturation.")
    yield _rows(_times(), basis, times_of(found))
    if found.unsettled:
        wide = (f"{key} {' to '.join(map(format_seconds, found.ci95[key]))}" for key in found.unsettled)
        yield Paragraph(f"Not settled, by their 95 % intervals: {'; '.join(wide)}.")
    for cliff in found.cliffs:
        low, high = format_seconds(cliff.low_s), format_seconds(cliff.high_s)
        yield Paragraph(f"{cliff.key} sits on a cliff: {low} to {high}.")
    if found.worst_part is not None:
        begin, end = format_seconds(found.worst_part.begin_s), format_seconds(found.worst_part.end_s)
        yield Paragraph(f"In the worst 24th part, {begin} to {end}:")
        yield _rows(_times(), basis, times_of(found.worst_part))
    if len(found.classes) > 1:
        yield Paragraph("By class:")
        of_classes = [(c.name, *time) for c in found.classes for time in times_of(c)]
        yield _rows({_CLASS: lambda row: row[0], **_times(1)}, basis, of_classes)
    yield _figures(report, basis, "latency", ("latency.running", "latency.waiting", "latency.kv_tokens_mean"))


def _goodput(report: Report, basis: Basis) -> Iterator[Block]:
    found = report.goodput
    if found is None:
        yield Paragraph("No objectives are set: [slo] in the profile, or --slo.")
        return
    yield _figures(report, basis, "goodput")
    if found.cliff is not None:
        low, high = map(format_seconds, found.cliff)
        yield Paragraph(f"{found.binding} sits on a cliff there: {low} to {high}.")


def _cost(report: Report, basis: Basis) -> Iterator[Block]:
    if report.cost is None:
        yield Paragraph("No price: gpu_hour in [cost] of the profile.")
        return
    yield _figures(report, basis, "cost")


def _speculative(report: Report, basis: Basis) -> Iterator[Block]:
    assert report.speculative is not None
    yield _figures(report, basis, "speculative", said={"speculative.pays": _pays(report.speculative)})


def _pays(found: Speculative) -> str:
    if found.break_even_sequences is None:
        return f"{found.pays}, whatever runs"
    return f"{found.pays} {format_number(found.break_even_sequences)} running requests"


def _kv_layout(report: Report, basis: Basis) -> Iterator[Block]:
    found = report.kv_layout
    assert found is not None
    block = f"{format_tokens(found.block_tokens)} tokens, {format_bytes(found.block_bytes)}"
    yield _figures(report, basis, "kv_layout", said={"kv_layout.block_tokens": block})
    yield _entries(report, basis, "kv_layout.groups")


def _fleet(report: Report, basis: Basis) -> Iterator[Block]:
    found = report.fleet
    assert found is not None
    split, joined = found.split, found.together
    apart = ABSENT if split.prefill is None else f"{split.prefill} + {split.decode}"
    rows = (
        ("Replicas", apart, format_number(joined.replicas)),
        ("GPUs", format_number(split.gpus), format_number(joined.gpus)),
        ("Rate", rate_text(split.rate_rps), rate_text(joined.rate_rps)),
        ("Goodput", rate_text(split.goodput_rps), rate_text(joined.goodput_rps)),
        ("Mean TTFT", format_seconds(split.ttft_s), format_seconds(joined.ttft_s)),
        ("Mean ITL", format_seconds(split.itl_s), format_seconds(joined.itl_s)),
    )
    columns = (_FIGURE, number("Split"), number("Together"))
    yield _rows({column: itemgetter(i) for i, column in enumerate(columns)}, basis, rows)
    yield Paragraph(found.reason)


def _saturation(report: Report, basis: Basis) -> Iterator[Block]:
    yield _figures(report, basis, "saturation")


def _prefix_cache(report: Report, basis: Basis) -> Iterator[Block]:
    cache = report.prefix_cache
    if cache is None:
        modelled = report.kv_layout is None and report.speculative is None
        yield Paragraph("None: the engine keeps no prefixes." if modelled else _NOT_BESIDE.format("modelled"))
        return
    recovered = ("Recovered after a preemption", format_percent(cache.preemption_recovered_share))
    if cache.reusable_ratio is None:
        yield _table(Basis.ESTIMATED, recovered)
        yield Paragraph(
            "Requests have nothing in common, so that it finds only what a preempted request left."
        )
        return
    if cache.hit_ratio is None:
        yield Paragraph(_NO_WARM_CACHE)
    first = (
        "sustainable_rps.guaranteed",
        "sustainable_rps.good",
        "sustainable_rps_without_host.good",
        "collapse_possible",
        "hit_ratio",
        "reusable_ratio",
        "characteristic_time_s",
        "kv_unique_tokens",
    )
    of_host = ("prefix_cache.host.", "prefix_cache.sustainable_rps_without_host.")
    has_host = cache.host.recovers_up_to_rps is not None
    hidden = {} if has_host else {key: "" for key in CONTRACT if key.startswith(of_host)}
    yield _figures(report, basis, "prefix_cache", [f"prefix_cache.{name}" for name in first], hidden)
    if len(cache.branches) > 1:
        yield Paragraph("States at the offered rate, by running requests, without fluctuations:")
        capacity = cache.capacity_tokens
        columns: Columns[CacheState] = {
            Column("State"): lambda state: "stable" if state.stable else "unstable",
            number("Running"): lambda state: format_number(state.requests_in_flight),
            number("Iteration"): lambda state: format_seconds(state.iteration_time_s),
            number("Hit ratio"): lambda state: format_percent(state.hit_ratio),
            number("KV cache usage"): lambda state: format_percent(state.kv_unique_tokens / capacity),
        }
        yield _rows(columns, basis, cache.branches)
    yield _table(Basis.ESTIMATED, recovered)


def _worst_cycle(report: Report, basis: Basis) -> Iterator[Block]:
    cycle = report.worst_cycle
    yield _figures(report, basis, "worst_cycle")
    if any(c.kind for c in cycle.classes):
        full = report.sources["saturation"].kind
        yield Paragraph("Each class on a replica of its own:")
        columns: Columns[ClassCycle] = {
            _CLASS: lambda c: c.name,
            Column("Cycle"): lambda c: c.kind.value if c.kind else ABSENT,
            number("Loss"): lambda c: format_percent(c.loss),
            number("Requests/s"): lambda c: format_number(c.throughput_rps),
            BASIS: lambda c: _class_cycle_basis(c, full),
        }
        yield _cut(columns, cycle.classes)


def _class_cycle_basis(cycle: ClassCycle, full: Basis) -> str:
    # The report gives no basis per class: outside pulses the closed form is as good as the law of full memory.
    if cycle.kind is None:
        return ABSENT
    return (Basis.COMPUTED if cycle.kind is CycleKind.PULSE else full).value


def _stability(report: Report, basis: Basis) -> Iterator[Block]:
    local = report.stability
    margin = 1 - local.spectral_radius
    verdict = ("stable" if local.stable else "unstable") if local.certified else "too close to call"
    first = (
        ("Full equilibrium", f"{verdict}, proved" if local.certified else verdict),
        "stability.spectral_radius",
        ("Margin below 1" if margin >= 0 else "Excess over 1", format_number(abs(margin), 3)),
        "stability.unstable_modes",
    )
    yield _figures(report, basis, "stability", first)
    yield Paragraph(local.advice)
    if (why := beside_spectrum(report.verdict.status, local, report.verdict.recovers_up_to_rps)) is not None:
        yield Paragraph(why)


def _rate_cap(report: Report, basis: Basis) -> Iterator[Block]:
    cap = report.rate_cap
    cost = cap.engine_sustainable_rps / report.load.sustainable_rps - 1
    rate = f"{rate_text(cap.engine_sustainable_rps)} ({format_percent(cost, signed=True)})"
    yield _figures(
        report, basis, "rate_cap", ("rate_cap.per_second",), {"rate_cap.engine_sustainable_rps": rate}
    )
    yield Paragraph(
        "Admissions per iteration by class; no budgets of whole requests fit this load."
        if cap.budgets_are_optimal is None
        else "Admissions per iteration by class: the fluid cap, whole requests, and the mean wait these cause."
    )
    waits = [format_seconds(c.mean_wait_s) for c in cap.classes]
    yield _entries(report, basis, "rate_cap.classes", (number("Mean wait"), waits))


def _wait(report: Report, basis: Basis) -> Iterator[Block]:
    plan = report.wait
    if plan.thresholds is None:
        yield Paragraph(_NO_THRESHOLDS)
    elif not plan.fits:
        yield Paragraph(_does_not_fit(plan.kv_tokens, report))
    unused = [
        key for key in CONTRACT if plan.overload.thresholds is None and key.startswith("wait.overload.")
    ]
    hidden = dict.fromkeys(["wait.overload.simulated_rps_ci95", *unused], "")
    yield _figures(report, basis, "wait", said=hidden)
    yield Paragraph(
        "Requests of a class kept at every stage: the smallest that keep up, the largest that fit in memory."
    )
    largest = list(map(format_number, plan.max_thresholds or plan.overload.thresholds or ()))
    yield _entries(report, basis, "wait.classes", (number("Largest"), largest))
    if plan.dial:
        yield Paragraph("The throughput-latency dial, thresholds in proportion to the rates:")
        yield _entries(report, basis, "wait.dial")


def _nested_wait(report: Report, basis: Basis) -> Iterator[Block]:
    plan = report.nested_wait
    if report.kv_layout is not None or report.speculative is not None:
        yield Paragraph(_NOT_BESIDE.format("computed"))
        return
    if plan.printed is None:
        yield Paragraph(_NO_THRESHOLDS)
        return
    if not plan.fits:
        yield Paragraph(_does_not_fit(plan.required_kv_tokens, report))
        return
    yield _figures(
        report,
        basis,
        "nested_wait",
        ("nested_wait.required_kv_tokens",),
        last=(
            ("Required with the smallest thresholds", _unit(plan.smallest_thresholds_kv_tokens, "tokens")),
            ("Iteration time", format_seconds(plan.iteration_time_s)),
        ),
    )
    yield Paragraph(_printed(plan))
    yield Paragraph(
        "Segments by decode length: who reaches them, the threshold, and how many wait at their start while a batch "
        "runs (Parked) and before it takes some (Queue), exceeded with at most the accepted probability:"
        if len(plan.segments) > 1
        else "A single segment: nobody waits with KV held."
    )
    yield _entries(report, basis, "nested_wait.segments")


def _does_not_fit(kv_tokens: float | None, report: Report) -> str:
    state = report.equilibrium.requests_in_flight
    running = f" It suits far more than the {format_number(state, 3)} requests that run here."
    needed = (
        f"Does not fit: whole requests at every stage would take {_unit(kv_tokens, 'tokens')} of KV cache."
    )
    return needed if state is None else needed + running


def _printed(plan: NestedWait) -> str:
    base, printed = plan.base_kv_tokens, plan.printed
    assert base is not None
    assert printed is not None

    def beside(tokens: float) -> str:
        return f"{format_tokens(tokens)} ({format_percent(tokens / base - 1, signed=True)})"

    return (
        f"For the filled segments the papers print other formulas: WAIT-s eq. 13 gives {beside(printed.eq_13)}, the "
        f"segment design {beside(printed.segment_design)}. kvplan uses neither."
    )


def _safety_buffer(report: Report, basis: Basis) -> Iterator[Block]:
    buffer = report.safety_buffer
    if buffer.kv_std_tokens is None:
        yield Paragraph(_NO_EQUILIBRIUM)
        return
    free = buffer.watermark_fraction
    too_much = free is None or free + (report.equilibrium.kv_utilization or 0) > 1
    watermark = "more than memory has" if too_much else format_percent(free)
    yield _figures(
        report,
        basis,
        "safety_buffer",
        said={"safety_buffer.watermark_fraction": watermark},
        last=(
            ("Per iteration, by saddlepoint", _probability(buffer.saddlepoint_probability)),
            ("Per iteration, by compound Poisson", _probability(buffer.exact_pmf_probability)),
        ),
    )
    yield Paragraph(
        "The saddlepoint knows that full memory lengthens iterations; the compound Poisson law is exact but for that, "
        f"and counts where it is all; else the larger does. {_theorem_bound(buffer)}"
    )


def _probability(value: float | None) -> str:
    return ABSENT if value is None else probability(value)


def _theorem_bound(buffer: SafetyBuffer) -> str:
    if buffer.theorem_bound is None:
        return "FC Theorem 3.6 says nothing: the mean does not fit."
    vacuous = ", near-vacuous" if buffer.theorem_bound_is_vacuous else ""
    bound = format_number(buffer.theorem_bound, 3)
    return f"FC Theorem 3.6 bounds the overflows in the horizon by {bound} ({Basis.THEOREM.value}{vacuous})."


def _sources(report: Report, _: Basis) -> Iterator[Block]:
    columns: Columns[tuple[str, Source]] = {
        Column("Block"): lambda row: row[0],
        BASIS: lambda row: row[1].kind.value,
        words("Source"): lambda row: row[1].source,
    }
    yield _cut(columns, report.sources.items())
    cited = " ".join(source.source for source in report.sources.values())
    yield Bullets(
        tuple(f"{key}: {title}" for key, title in PAPERS.items() if re.search(rf"\b{key}\b", cited))
    )


def _notes(report: Report, _: Basis) -> Iterator[Block]:
    yield Bullets(report.notes)


SECTIONS: Mapping[str, tuple[str, Callable[[Report, Basis], Iterator[Block]]]] = {
    "load": ("Load", _load),
    "equilibrium": ("Equilibrium", _equilibrium),
    "latency": ("Latency", _latency),
    "goodput": ("Goodput", _goodput),
    "fleet": ("Fleet: split or together", _fleet),
    "cost": ("Cost", _cost),
    "saturation": ("Saturation", _saturation),
    "prefix_cache": ("Prefix cache", _prefix_cache),
    "speculative": ("Speculative decoding", _speculative),
    "kv_layout": ("KV layout", _kv_layout),
    "worst_cycle": ("Worst cycle", _worst_cycle),
    "stability": ("Stability", _stability),
    "rate_cap": ("Rate cap", _rate_cap),
    "wait": ("WAIT thresholds", _wait),
    "nested_wait": ("Nested WAIT", _nested_wait),
    "safety_buffer": ("Safety buffer", _safety_buffer),
    "sources": ("Sources", _sources),
    "notes": ("Notes", _notes),
}
_FIGURE = words("Figure")
FIGURES = (_FIGURE, words("Value"), BASIS)


def _figures(
    report: Report,
    basis: Basis,
    block: str,
    first: Sequence[str | tuple[str, str]] = (),
    said: Mapping[str, str] = MappingProxyType({}),
    last: Sequence[tuple[str, str]] = (),
) -> Table:
    """Build the table of the figures of a block that have a label.

    `first` are keys, or labels with values, that come before the rest; `said` has values in place of those of keys,
    empty for a figure that is left out.
    """
    rest = (
        record.key
        for record in BLOCKS[block].records
        if record.label and not record.list_key and record.key not in first
    )
    rows = []
    for row in (*first, *rest, *last):
        if not isinstance(row, str):
            rows.append(figure_row(*row, basis))
        elif said.get(row) != "":
            record = CONTRACT[row]
            value = said.get(row) or record.written(attrgetter(row)(report))
            rows.append(figure_row(record.label, value, Basis(record.basis or basis)))
    return table(FIGURES, rows)


def _table(basis: Basis, *rows: tuple[str, str]) -> Table:
    """Build a table of figures that have no record."""
    return table(FIGURES, (figure_row(name, value, basis) for name, value in rows))


def figure_row(name: str, value: str, basis: Basis) -> tuple[str, str, str]:
    """A row of such a table; what does not exist has no basis either."""
    return name, value, ABSENT if value == ABSENT else basis.value


def _rows(columns: Columns[_Row], basis: Basis, rows: Iterable[_Row]) -> Table:
    """Build a table of rows that are all known in one way."""
    return _cut({**columns, BASIS: lambda _: basis.value}, rows)


def _entries(report: Report, basis: Basis, key: str, *beside: tuple[Column, Sequence[str]]) -> Table:
    """Build a table of the entries of a list, of their figures that have a label; `beside` are columns more."""
    records = [record for record in CONTRACT.values() if record.list_key == key and record.label]
    columns = [words(r.label) if r.kind is Kind.TEXT else number(r.label) for r in records]
    entries = attrgetter(key)(report)
    cells = ([r.written(getattr(entry, r.key.rpartition(".")[2])) for entry in entries] for r in records)
    rows = list(zip(*cells, *(more for _, more in beside), strict=True))
    every = (*columns, *(column for column, _ in beside))
    return _rows({column: itemgetter(i) for i, column in enumerate(every)}, basis, rows)


def _cut(columns: Columns[_Row], rows: Iterable[_Row]) -> Table:
    return tabulate(columns, rows, MAX_ROWS, "… {} more; see --format json")


def _unit(value: float | None, unit: str) -> str:
    return ABSENT if value is None else f"{format_number(value)} {unit}"
