"""What a report shows to people, before any format: headline, key figures, actions, sections.

Built once from a `Report` by pure functions. All strings are plain text, names from the profile included: a format
quotes them and interprets nothing. Every figure carries its basis: theorem, computed, simulated or assumption.
"""

import math
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from kvplan.analysis.nested import NestedWait
from kvplan.analysis.overflow import SafetyBuffer
from kvplan.analysis.wait import Wait
from kvplan.analysis.worst_cycle import ClassCycle, CycleKind, WorstCycle
from kvplan.errors import UsageError
from kvplan.report.assembly import SIMULATED_OVERFLOW, Report
from kvplan.report.words import Basis, Status
from kvplan.units import ABSENT, format_number, format_percent, format_rate, format_seconds, format_tokens

MAX_ROWS = 20  # of a table of classes; programs read the JSON, people do not read a thousand rows
_MAX_DIGITS = 12  # beyond these the digits of a float's decimal expansion are its rounding


class Column(NamedTuple):
    """A table column: numbers compared down the column stand right; names and sentences wrap where space is short.

    Attributes
    ----------
    name : str
    right, wraps : bool
    least : int
        Characters that it is given at least where it wraps.
    dotted : bool
        Its cells are keys of the report, which wrap at their dots.
    optional : bool
        Left out where space is short.
    outcome : bool
        Its cells say PASS or FAIL.
    """

    name: str
    right: bool = False
    wraps: bool = False
    least: int = 16
    dotted: bool = False
    optional: bool = False
    outcome: bool = False


class Table(NamedTuple):
    """Rows of formatted strings; `cut` says what was left out."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    cut: str | None = None


class Paragraph(NamedTuple):
    """A few sentences."""

    text: str


class Bullets(NamedTuple):
    """Sentences that stand each for itself."""

    items: tuple[str, ...]


class Figure(NamedTuple):
    """Lines of characters, to be shown as they are."""

    text: str


Block = Table | Paragraph | Bullets | Figure


class Section(NamedTuple):
    """One block of the report; `key` is its name in the JSON contract.

    Where all its figures have one basis, `basis` says so once and the tables have no column for it.
    """

    key: str
    title: str
    blocks: tuple[Block, ...]
    basis: str | None = None


class Document(NamedTuple):
    """A report for people: the first screen (up to `actions`), then the details."""

    title: str
    status: Status
    headline: str
    summary: Table
    actions: tuple[str, ...]
    sections: tuple[Section, ...]
    origin: str


_CLASS = Column("Class", wraps=True)
_BASIS = Column("Basis")
_NO_EQUILIBRIUM = "No equilibrium exists whose spread it could be: the work alone takes too long."
_NO_THRESHOLDS = "None exist: the work alone takes longer than the time between arrivals, or all but as long."
_LEAST_PROBABILITY = 1e-12  # the methods say nothing about less


def build(report: Report, sections: Collection[str] | None = None) -> Document:
    """Lay a report out for people.

    Parameters
    ----------
    report : Report
    sections : collection of str, optional
        Keys of the sections to keep below the first screen; all if None or empty.

    Raises
    ------
    UsageError
        A key that no section has.

    Examples
    --------
    >>> from kvplan.model import Prefill, Replica, RequestClass, ServingModel, Timing
    >>> from kvplan.report.assembly import analyze
    >>> one = RequestClass("tools", 2, (3,), (1.0,), 0.9)
    >>> model = ServingModel((one,), Timing(1.0), Replica(12, prefill=Prefill.DISAGGREGATED))
    >>> document = build(analyze(model, name="small", sha256="5e6f"))
    >>> document.title, str(document.status), [section.key for section in document.sections][:3]
    ('small', 'needs_cap', ['load', 'equilibrium', 'saturation'])
    >>> document.summary.rows[0]
    ('Offered load', '0.9 requests/s', 'assumption')
    """
    return Document(
        title=report.profile.name,
        status=report.verdict.status,
        headline=report.verdict.summary,
        summary=_summary(report),
        actions=report.actions,
        sections=_chosen(
            tuple(
                _with_one_basis(section(report))
                for section in _SECTIONS
                if section is not _simulation or report.simulation is not None
            ),
            sections or (),
        ),
        origin=f"kvplan {report.kvplan_version}, profile {report.profile.sha256[:12]} (sha256)",
    )


def _with_one_basis(section: Section) -> Section:
    """The section with its basis said once, if its tables all give the same."""
    tables = [b for b in section.blocks if isinstance(b, Table) and _BASIS in b.columns]
    found = {row[t.columns.index(_BASIS)] for t in tables for row in t.rows} - {ABSENT}
    if len(found) > 1:
        return section
    blocks = tuple(_without_basis(b) if b in tables else b for b in section.blocks)
    return section._replace(blocks=blocks, basis=found.pop() if found else section.basis)


def _without_basis(table: Table) -> Table:
    at = table.columns.index(_BASIS)
    rows = tuple(row[:at] + row[at + 1 :] for row in table.rows)
    return table._replace(columns=table.columns[:at] + table.columns[at + 1 :], rows=rows)


def _chosen(sections: tuple[Section, ...], keys: Collection[str]) -> tuple[Section, ...]:
    known = [section.key for section in sections]
    for key in keys:
        if key not in known:
            raise UsageError(f"--section {key!r} does not exist; the sections are {', '.join(known)}")
    return tuple(section for section in sections if not keys or section.key in keys)


def _summary(report: Report) -> Table:
    offered, cycle = report.load, report.worst_cycle
    loss = format_percent(cycle.loss)
    if cycle.loss > 0:
        loss += f" per iteration, down to {_rps(cycle.throughput_rps)}"
    return _figures(
        ("Offered load", _rps(offered.offered_rps), Basis.ASSUMPTION),
        ("Sustainable rate", _rps(offered.sustainable_rps), _basis(report, "load")),
        ("Headroom", format_percent(offered.headroom, signed=True), _basis(report, "load")),
        ("Binding constraint", report.verdict.binding, _basis(report, "load")),
        ("Worst-cycle loss", loss, _basis(report, "worst_cycle")),
        ("Spectral radius", format_radius(report.stability.spectral_radius), _basis(report, "stability")),
        ("Rate cap", _rps(report.rate_cap.per_second), _basis(report, "rate_cap")),
    )


def _load(report: Report) -> Section:
    offered, basis = report.load, _basis(report, "load")
    change = offered.sensitivity
    return Section(
        "load",
        "Load",
        (
            _figures(
                ("Sustainable decode", _tokens_rate(offered.sustainable_decode_tokens_per_s), basis),
                ("Largest load factor", format_number(offered.load_factor_max), basis),
                ("Work rate", format_number(offered.work_rate), basis),
                ("Rate for +10% memory", format_percent(change.memory_tokens, signed=True), basis),
                ("Rate for +10% d0", format_percent(change.d0, signed=True), basis),
                ("Rate for +10% d1", format_percent(change.d1, signed=True), basis),
            ),
        ),
    )


def _equilibrium(report: Report) -> Section:
    state, basis = report.equilibrium, _basis(report, "equilibrium")
    figures = _figures(
        ("KV tokens", format_tokens(state.kv_tokens), basis),
        ("KV utilization", format_percent(state.kv_utilization), basis),
        ("Iteration time", format_seconds(state.iteration_time_s), basis),
        ("Requests in flight", format_number(state.requests_in_flight), basis),
        ("Decode throughput", _tokens_rate(state.decode_tokens_per_s), basis),
        ("Prompt iterations", format_rate(state.prompt_iterations_per_s), basis),
    )
    classes = _table(
        (_CLASS, _number("Per stage"), _number("In flight"), _BASIS),
        (
            (c.name, format_number(c.per_stage), format_number(c.in_flight), basis.value)
            for c in state.classes
        ),
    )
    if state.kv_utilization is None:
        why = "None exists: the work alone takes longer than the time between arrivals."
        return Section("equilibrium", "Equilibrium", (Paragraph(why), figures))
    if state.kv_utilization > 1:
        why = "It does not fit: what the offered load would hold in memory without evictions."
        return Section("equilibrium", "Equilibrium", (Paragraph(why), figures, classes))
    return Section("equilibrium", "Equilibrium", (figures, classes))


def _saturation(report: Report) -> Section:
    full, basis = report.saturation, _basis(report, "saturation")
    return Section(
        "saturation",
        "Saturation",
        (
            _figures(
                ("Admissions per iteration", format_number(full.admissions_per_iteration), basis),
                ("Iteration time", format_seconds(full.iteration_time_s), basis),
                ("Throughput", _rps(full.throughput_rps), basis),
            ),
        ),
    )


def _worst_cycle(report: Report) -> Section:
    cycle, basis = report.worst_cycle, _basis(report, "worst_cycle")
    zone = cycle.danger_zone_rps
    blocks: list[Block] = [
        _figures(
            ("Kind", cycle.kind.value, basis),
            ("Throughput per iteration", format_number(cycle.throughput_per_iteration), basis),
            ("Throughput", _rps(cycle.throughput_rps), basis),
            ("Loss", format_percent(cycle.loss), basis),
            ("Evictions per iteration", format_number(cycle.evictions_per_iteration), basis),
            ("Period", _unit(cycle.period, "iterations"), basis),
            (
                "Danger zone",
                ABSENT if zone is None else f"{format_number(zone[0])} to {_rps(zone[1])}",
                basis,
            ),
        ),
    ]
    if any(c.kind for c in cycle.classes):
        blocks.append(Paragraph("Each class on a replica of its own:"))
        blocks.append(_class_cycles(cycle, _basis(report, "saturation")))
    return Section("worst_cycle", "Worst cycle", tuple(blocks))


def _class_cycles(cycle: WorstCycle, full: Basis) -> Table:
    return _table(
        (_CLASS, Column("Cycle"), _number("Loss"), _number("Requests/s"), _BASIS),
        (
            (
                c.name,
                c.kind.value if c.kind else ABSENT,
                format_percent(c.loss),
                format_number(c.throughput_rps),
                _class_cycle_basis(c, full),
            )
            for c in cycle.classes
        ),
    )


def _class_cycle_basis(cycle: ClassCycle, full: Basis) -> str:
    # The report gives no basis per class: outside pulses the closed form is as good as the law of full memory.
    if cycle.kind is None:
        return ABSENT
    return (Basis.COMPUTED if cycle.kind is CycleKind.PULSE else full).value


def _stability(report: Report) -> Section:
    local, basis = report.stability, _basis(report, "stability")
    margin = 1 - local.spectral_radius
    verdict = ("stable" if local.stable else "unstable") if local.certified else "too close to call"
    recovery = local.recovery_iterations
    smallest = local.min_stable_input_tokens
    return Section(
        "stability",
        "Stability",
        (
            _figures(
                ("Equilibrium", f"{verdict}, proved" if local.certified else verdict, basis),
                ("Spectral radius", format_radius(local.spectral_radius), basis),
                ("Margin below 1" if margin >= 0 else "Excess over 1", format_number(abs(margin), 3), basis),
                ("Unstable modes", format_number(local.unstable_modes), basis),
                ("Common divisor of lengths", format_number(local.gcd), basis),
                ("Recovery", _unit(recovery, "iterations"), basis),
                ("Smallest stable input", _unit(smallest.exact, "tokens"), basis),
                ("Smallest stable input, asymptotic", _unit(smallest.asymptotic, "tokens"), basis),
            ),
            Paragraph(local.advice),
        ),
    )


def _rate_cap(report: Report) -> Section:
    cap, basis = report.rate_cap, _basis(report, "rate_cap")
    figures = _figures(
        ("Admissions", _rps(cap.per_second), basis),
        ("Admissions per iteration", format_number(cap.per_iteration), basis),
        ("Engine max_num_seqs", format_number(cap.engine_max_num_seqs), basis),
    )
    columns = (_CLASS, _number("Cap"), _number("Budget"), _number("Mean wait"), _BASIS)
    rows = (
        (
            c.name,
            format_number(c.per_iteration),
            format_number(c.integer_budget),
            format_seconds(c.mean_wait_s),
            basis.value,
        )
        for c in cap.classes
    )
    caption = (
        "Admissions per iteration by class: the fluid cap, whole requests, and the mean wait these cause."
    )
    if cap.budgets_are_optimal is None:
        caption = "Admissions per iteration by class; no budgets of whole requests fit this load."
    return Section("rate_cap", "Rate cap", (figures, Paragraph(caption), _table(columns, rows)))


def _wait(report: Report) -> Section:
    plan, basis = report.wait, _basis(report, "wait")
    if plan.thresholds is None:
        return Section("wait", "WAIT thresholds", (Paragraph(_NO_THRESHOLDS),))
    largest = plan.max_thresholds or (None,) * len(plan.classes)
    alone = len(plan.classes) == 1 and not plan.worst_window
    figures = _figures(
        ("Iteration time", format_seconds(plan.iteration_time_s), basis),
        ("Memory", _unit(plan.kv_tokens, "tokens"), basis),
        ("Fits", "yes" if plan.fits else "no", basis),
    )
    classes = _table(
        (
            _CLASS,
            _number("Smallest"),
            _number("Largest"),
            _number("Mean wait" if alone else "Mean wait, at most"),
            _number("Latency" if alone else "Latency, at most"),
            _BASIS,
        ),
        (
            (
                c.name,
                format_number(c.threshold),
                format_number(most),
                format_seconds(c.mean_wait_bound_s),
                format_seconds(c.latency_s),
                basis.value,
            )
            for c, most in zip(plan.classes, largest, strict=True)
        ),
    )
    caption = (
        "Requests of a class kept at every stage: the smallest that keep up, the largest that fit in memory."
    )
    blocks: list[Block] = [figures, Paragraph(caption), classes]
    if plan.dial:
        blocks.append(Paragraph("The throughput-latency dial, thresholds in proportion to the rates:"))
        blocks.append(_dial(plan, basis))
    return Section("wait", "WAIT thresholds", tuple(blocks))


def _dial(plan: Wait, basis: Basis) -> Table:
    numbers = ("Interval", "Iteration", "KV tokens", "Requests/s", "Latency")
    return _table(
        (*map(_number, numbers), _BASIS),
        (
            (
                format_seconds(row.interval_s),
                format_seconds(row.iteration_time_s),
                format_tokens(row.kv_tokens),
                format_number(row.throughput_rps),
                format_seconds(row.latency_s),
                basis.value,
            )
            for row in plan.dial
        ),
    )


def _nested_wait(report: Report) -> Section:
    plan, basis = report.nested_wait, _basis(report, "nested_wait")
    if plan.printed is None:
        return Section("nested_wait", "Nested WAIT", (Paragraph(_NO_THRESHOLDS),))
    figures = _figures(
        ("Required memory", _unit(plan.required_kv_tokens, "tokens"), basis),
        ("Fits", "yes" if plan.fits else "no", basis),
        ("Filled segments", _unit(plan.base_kv_tokens, "tokens"), basis),
        ("Waiting at boundaries", _unit(plan.boundary_kv_tokens, "tokens"), basis),
        ("Buffer for their queues", _unit(plan.high_probability_kv_tokens, "tokens"), basis),
        ("Required with the smallest thresholds", _unit(plan.smallest_thresholds_kv_tokens, "tokens"), basis),
        ("Iteration time", format_seconds(plan.iteration_time_s), basis),
    )
    numbers = ("Up to", "Requests/s", "Go on", "Threshold", "Theta", "Queue")
    rows = (
        (
            format_tokens(s.upto_decode),
            format_number(s.rate_rps),
            format_percent(s.continue_probability),
            format_number(s.threshold),
            format_number(s.theta),
            format_number(s.queue_bound),
            basis.value,
        )
        for s in plan.segments
    )
    caption = (
        "Segments by decode length: who reaches them, the threshold, and the queue at their start that is exceeded "
        "with at most the accepted probability:"
        if len(plan.segments) > 1
        else "A single segment: nobody waits with KV held."
    )
    table = _table((*map(_number, numbers), _BASIS), rows)
    return Section(
        "nested_wait", "Nested WAIT", (figures, Paragraph(_printed(plan)), Paragraph(caption), table)
    )


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


def _safety_buffer(report: Report) -> Section:
    buffer, basis = report.safety_buffer, _basis(report, "safety_buffer")
    if buffer.kv_std_tokens is None:
        return Section("safety_buffer", "Safety buffer", (Paragraph(_NO_EQUILIBRIUM),))
    too_much = (buffer.watermark_fraction or 0) + (report.equilibrium.kv_utilization or 0) > 1
    watermark = "more than memory has" if too_much else format_percent(buffer.watermark_fraction)
    figures = _figures(
        ("Spread of KV usage", _unit(buffer.kv_std_tokens, "tokens"), basis),
        ("Overflow, per iteration", _probability(buffer.overflow_probability_per_iteration), basis),
        ("Overflow, whole horizon", _probability(buffer.overflow_probability_horizon), basis),
        ("Required memory", _unit(buffer.required_kv_tokens, "tokens"), basis),
        ("Watermark", watermark, basis),
        ("Per iteration, by saddlepoint", _probability(buffer.saddlepoint_probability), basis),
        ("Per iteration, by compound Poisson", _probability(buffer.exact_pmf_probability), basis),
    )
    caption = (
        "The saddlepoint knows that full memory lengthens iterations; the compound Poisson law is exact but for that. "
        f"The larger counts. {_theorem_bound(buffer)}"
    )
    return Section("safety_buffer", "Safety buffer", (figures, Paragraph(caption)))


def _probability(value: float | None) -> str:
    if value is not None and value < _LEAST_PROBABILITY:
        return f"below {_LEAST_PROBABILITY:g}"
    return format_number(value, 3)


def _theorem_bound(buffer: SafetyBuffer) -> str:
    if buffer.theorem_bound is None:
        return "FC Theorem 3.6 says nothing: the mean does not fit."
    vacuous = ", near-vacuous" if buffer.theorem_bound_is_vacuous else ""
    bound = format_number(buffer.theorem_bound, 3)
    return f"FC Theorem 3.6 bounds the overflows in the horizon by {bound} ({Basis.THEOREM.value}{vacuous})."


def _simulation(report: Report) -> Section:
    simulation = report.simulation
    assert simulation is not None
    agreement = {True: "agrees", False: "differs", None: ABSENT}
    columns = (
        Column("Figure", wraps=True),
        *map(_number, ("Formula", "Simulated", "95% interval")),
        Column(""),
    )
    rows = (
        (
            row["figure"],
            (_probability if row["figure"] == SIMULATED_OVERFLOW else format_number)(row["formula"]),
            format_number(row["simulated"]),
            ABSENT if row["ci95"] is None else " to ".join(map(format_number, row["ci95"])),
            agreement[row["agrees"]],
        )
        for row in simulation["comparison"]
    )
    requests = format_number(simulation["arrivals"]["requests"])
    caption = (
        f"{requests} requests at the offered rates, Poisson, and as many all at once; seed {simulation['seeds'][0]}. "
        "A figure differs where the formula is outside the interval and off by more than 5%."
    )
    return Section(
        "simulation", "Simulation", (_table(columns, rows), Paragraph(caption)), Basis.SIMULATED.value
    )


def _sources(report: Report) -> Section:
    rows = ((key, source.kind.value, source.source) for key, source in report.sources.items())
    return Section(
        "sources", "Sources", (_table((Column("Block"), _BASIS, Column("Source", wraps=True)), rows),)
    )


def _notes(report: Report) -> Section:
    return Section("notes", "Notes", (Bullets(report.notes),))


_SECTIONS: tuple[Callable[[Report], Section], ...] = (
    _load,
    _equilibrium,
    _saturation,
    _worst_cycle,
    _stability,
    _rate_cap,
    _wait,
    _nested_wait,
    _safety_buffer,
    _simulation,
    _sources,
    _notes,
)


def _figures(*rows: tuple[str, str, Basis]) -> Table:
    """A table of single figures; what does not exist has no basis either."""
    return _table(
        (Column("Figure", wraps=True), Column("Value", wraps=True), _BASIS),
        ((name, value, ABSENT if value == ABSENT else basis.value) for name, value, basis in rows),
    )


def _table(columns: tuple[Column, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    """A table of at most `MAX_ROWS` rows."""
    all_rows = tuple(rows)
    left_out = len(all_rows) - MAX_ROWS
    cut = f"… {format_number(left_out)} more; see --format json" if left_out > 0 else None
    return Table(columns, all_rows[:MAX_ROWS], cut)


def _number(name: str) -> Column:
    return Column(name, right=True)


def _basis(report: Report, block: str) -> Basis:
    return report.sources[block].kind


def _rps(value: float) -> str:
    return f"{format_number(value)} requests/s"


def _tokens_rate(value: float | None) -> str:
    return _unit(value, "tokens/s")


def _unit(value: float | None, unit: str) -> str:
    return ABSENT if value is None else f"{format_number(value)} {unit}"


def format_radius(radius: float) -> str:
    """A spectral radius with the digits that tell it from 1: two of the difference, and at least four.

    >>> format_radius(0.9999634), format_radius(1.0), format_radius(0.43218), format_radius(1.0005834)
    ('0.999963', '1', '0.4322', '1.00058')
    """
    distance = abs(1 - radius)
    if not 0 < distance < 1:
        return format_number(radius)
    # above 1 the leading digit takes one more
    digits = 1 - math.floor(math.log10(distance)) + (radius > 1)
    return format_number(radius, min(max(4, digits), _MAX_DIGITS))
