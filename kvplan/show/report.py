"""The report of `kvplan analyze` for people: headline, key figures and actions, then a section for each block.

Built once from a `Report` by pure functions. Every figure carries its basis (`Basis`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType

from kvplan.analysis.equilibrium import is_time
from kvplan.analysis.nested import NestedWait
from kvplan.analysis.overflow import SafetyBuffer
from kvplan.analysis.records import Lever
from kvplan.analysis.speculative import Speculative
from kvplan.analysis.worst_cycle import ClassCycle, CycleKind
from kvplan.errors import UsageError
from kvplan.profile.reading import Profile
from kvplan.report.assembly import Report, to_document
from kvplan.report.inputs import headroom_range_text, range_text
from kvplan.report.keys import BLOCKS, CONTRACT
from kvplan.report.keys.record import probability
from kvplan.report.verdict import beside_spectrum
from kvplan.report.words import Basis
from kvplan.show.chart import Chart
from kvplan.show.page import (
    MAX_ROWS,
    Block,
    Bullets,
    Column,
    Document,
    Paragraph,
    Section,
    Table,
    number,
    origin,
    table,
    words,
)
from kvplan.show.view import View
from kvplan.study.operating_point import Distribution, Latency, Status, WorstPart
from kvplan.units import (
    ABSENT,
    format_bytes,
    format_number,
    format_percent,
    format_rate,
    format_seconds,
    format_tokens,
)

_CLASS = words("Class")
_BASIS = Column("Basis")
_NO_EQUILIBRIUM = "No equilibrium exists whose spread it could be: the work alone takes too long."
_NOT_BESIDE = "Not {} beside drafts or layers of several kinds."
_NO_WARM_CACHE = "No state of a warm cache lasts at the offered load."
_NO_THRESHOLDS = "None exist: the work alone takes longer than the time between arrivals, or all but as long."
_LEVERS = {
    "memory_tokens": "KV memory",
    "d0": "d0 (fixed time)",
    "d1": "d1 (KV reads)",
    "d2": "d2 (prefill)",
    "d3": "d3 (sequences)",
    "d4": "d4 (√sequences)",
    "d5": "d5 (beyond the knee)",
}
_MOST_LISTED = 8  # thresholds of the first screen


def build(report: Report, sections: Collection[str] | None = None) -> Document:
    """Lay a report out for people; below the first screen only the sections asked for, if any are.

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
    ('small', 'needs_cap', ['load', 'equilibrium', 'latency'])
    >>> document.summary.rows[0]
    ('Headroom', '+11.1%', 'theorem')
    """
    asked = {
        "kv_layout": report.kv_layout,
        "speculative": report.speculative,
        "fleet": report.fleet,
    }
    known = [key for key in SECTIONS if asked.get(key, key) is not None]
    for key in sections or ():
        if key not in known:
            raise UsageError(f"--section {key!r} does not exist; the sections are {', '.join(known)}")
    return Document(
        title=report.profile.name,
        status=report.verdict.status,
        headline=report.verdict.summary,
        summary=_summary(report),
        actions=report.actions,
        sections=tuple(_section(report, key) for key in known if not sections or key in sections),
        origin=origin(report.profile.sha256),
        caveat=report.caveat and f"Inputs: {report.caveat}.",
    )


def view(
    report: Report, profile: Profile, sections: Collection[str] | None = None, *, more: str = ""
) -> View:
    """Show a report of a profile; `more` ends the first screen where it is shown alone."""

    def screen(full: bool) -> Document:
        document = build(report, sections)
        if full or sections:
            return document
        return document._replace(sections=(), origin=document.origin + more)

    def draw() -> Sequence[Chart]:
        from kvplan.show.charts import of_report

        return of_report(report, profile.model, profile.plan)

    return View(lambda: to_document(report), screen, draw)


def _section(report: Report, key: str) -> Section:
    """A section, with its basis said once if its tables all give the same."""
    title, blocks_of = SECTIONS[key]
    basis = report.sources[key].kind if key in report.sources else Basis.SIMULATED
    blocks = tuple(blocks_of(report, basis))
    tables = [b for b in blocks if isinstance(b, Table) and _BASIS in b.columns]
    found = {row[t.columns.index(_BASIS)] for t in tables for row in t.rows} - {ABSENT}
    if len(found) > 1:
        return Section(key, title, blocks)
    kept = tuple(_without_basis(b) if b in tables else b for b in blocks)
    return Section(key, title, kept, found.pop() if found else None)


def _without_basis(block: Block) -> Block:
    assert isinstance(block, Table)
    at = block.columns.index(_BASIS)
    rows = tuple(row[:at] + row[at + 1 :] for row in block.rows)
    return block._replace(columns=block.columns[:at] + block.columns[at + 1 :], rows=rows)


def _summary(report: Report) -> Table:
    offered, sources = report.load, report.sources
    headroom = format_percent(offered.headroom, signed=True) + headroom_range_text(offered)
    rows = (
        ("Headroom", headroom, sources["load"].kind),
        ("Recovers up to", _rps(report.verdict.recovers_up_to_rps), sources["verdict"].kind),
        *latency_in_short(report),
        *_goodput_in_short(report),
        *_cost_in_short(report),
        *_kv_in_short(report),
        *_trial_in_short(report),
        *_fleet_in_short(report),
        *_after_a_burst(report),
        *_papers_in_short(report),
        ("Strongest lever", _lever(report.levers[0]), sources["load"].kind),
    )
    return table(_FIGURES, (_figure(*row) for row in rows))


def _kv_in_short(report: Report) -> Iterator[tuple[str, str, Basis]]:
    state, cache, drafts = report.equilibrium, report.prefix_cache, report.speculative
    if state.kv_utilization is not None:
        running = f"{format_number(state.requests_in_flight, 3)} running"
        value = f"{format_percent(state.kv_utilization)} used in equilibrium, {running}"
        yield "KV cache", value, report.sources["equilibrium"].kind
    if cache is not None and cache.reusable_ratio is not None:
        rates = cache.sustainable_rps
        hits = "no warm state" if cache.hit_ratio is None else f"{format_percent(cache.hit_ratio)} hits"
        value = f"{hits}; {format_number(rates.guaranteed)} guaranteed, {_rps(rates.good)} warm"
        yield "Prefix cache", value, report.sources["prefix_cache"].kind
    if drafts is not None:
        value = f"{format_number(drafts.tokens_per_iteration, 3)} tokens an iteration"
        yield "Drafts", value, report.sources["speculative"].kind


def _papers_in_short(report: Report) -> Iterator[tuple[str, str, Basis]]:
    """What the papers are about: worst cycle, rate cap, thresholds, safety buffer."""
    cycle, cap, sources = report.worst_cycle, report.rate_cap, report.sources
    if cycle.loss > 0:
        value = f"{format_percent(cycle.loss)} lost, down to {_rps(cycle.throughput_rps)}"
        if cycle.danger_zone_rps is not None:
            value += f"; danger from {format_number(cycle.danger_zone_rps[0])}"
        yield "Worst cycle", value, sources["worst_cycle"].kind
    each = f"{format_number(cap.per_iteration)} admissions an iteration"
    yield "Rate cap", f"{each}, {_rps(cap.per_second)}", sources["rate_cap"].kind
    yield "WAIT", _wait_in_short(report), sources["wait"].kind
    yield "Nested WAIT", _nested_in_short(report), sources["nested_wait"].kind
    buffer, there = report.safety_buffer, report.equilibrium.kv_tokens
    if buffer.required_kv_tokens is not None and there is not None:
        value = (
            f"{format_tokens(buffer.required_kv_tokens)} tokens keep an overflow as rare as the plan wants"
        )
        yield "Safety buffer", value, Basis.ESTIMATED


def _wait_in_short(report: Report) -> str:
    plan = report.wait
    if plan.thresholds is None:
        return "no thresholds keep up"
    if not plan.fits:
        return f"does not fit: {format_tokens(plan.kv_tokens)} tokens"
    return _listed("thresholds", [format_number(n) for n in plan.thresholds])


def _nested_in_short(report: Report) -> str:
    plan = report.nested_wait
    if report.kv_layout is not None or report.speculative is not None:
        return "not modelled beside drafts or layers of several kinds"
    if not plan.feasible:
        return "no thresholds keep up"
    if not plan.fits:
        return f"does not fit: {format_tokens(plan.required_kv_tokens)} tokens"
    return _listed("thresholds", [format_number(segment.threshold) for segment in plan.segments])


def _listed(what: str, values: list[str]) -> str:
    more = f" and {len(values) - _MOST_LISTED} more" if len(values) > _MOST_LISTED else ""
    return f"{what} {', '.join(values[:_MOST_LISTED])}{more}"


def latency_in_short(report: Report) -> Iterator[tuple[str, str, Basis]]:
    """A line for each time of the operating point, or why there is none."""
    found, basis = report.latency, report.sources["latency"].kind
    if found.reason is not None:
        yield "Latency", found.reason, basis
        return
    for name, key, one in _times(found):
        if one.mean is not None:
            figures = (f"{figure} {_known(found, key, figure)}" for figure in ("mean", "p95", "p99"))
            yield name, ", ".join(figures), basis
    worst = found.worst_part
    if worst is not None:
        when = f"{format_seconds(worst.begin_s)} to {format_seconds(worst.end_s)}"
        ttft = f"mean {format_seconds(worst.ttft_s.mean)}, p95 {format_seconds(worst.ttft_s.p95)}"
        yield "Worst 24th", f"{when}: TTFT {ttft}", basis


def _trial_in_short(report: Report) -> Iterator[tuple[str, str, Basis]]:
    cache = report.prefix_cache
    if cache is not None and cache.trial.summary is not None:
        yield "Warm cache, tried", cache.trial.summary, Basis.SIMULATED


def _known(found: Latency, key: str, figure: str) -> str:
    """A figure, with its interval where that is wide."""
    value = format_seconds(getattr(getattr(found, key), figure))
    if f"{key}.{figure}" not in found.unsettled:
        return value
    low, high = found.ci95[f"{key}.{figure}"]
    return (
        f"{value} ({format_seconds(low)} to {ABSENT if high is None else format_seconds(high)}: not settled)"
    )


def _goodput_in_short(report: Report) -> Iterator[tuple[str, str, Basis]]:
    found = report.goodput
    if found is not None:
        between = (
            ""
            if found.high is None
            else f", between {format_number(found.low)} and {format_number(found.high)}"
        )
        value = f"{_rps(found.rate_rps)} by {found.binding}{between}"
        yield "Goodput", value, report.sources["goodput"].kind


def _after_a_burst(report: Report) -> Iterator[tuple[str, str, Basis]]:
    found = report.verdict.drain
    if found.burst_requests is None:
        return
    burst = f"of {format_number(found.burst_requests, 3)} requests"
    if found.burst_requests < 1:
        yield "After a burst", found.reason, Basis.SIMULATED
        return
    if found.seconds is None:
        yield "After a burst", f"{burst}: {found.reason}", Basis.SIMULATED
        return
    low, high = format_seconds(found.low), "more" if found.high is None else format_seconds(found.high)
    value = f"{burst}: normal in {format_seconds(found.seconds)} ({low} to {high})"
    yield "After a burst", value, Basis.SIMULATED


def _fleet_in_short(report: Report) -> Iterator[tuple[str, str, Basis]]:
    found = report.fleet
    if found is not None and found.split.rate_rps is not None and found.together.rate_rps is not None:
        one, other = format_number(found.split.rate_rps), _rps(found.together.rate_rps)
        split = f"{found.split.prefill} + {found.split.decode} apart {one}"
        value = f"{split}, {found.together.replicas} together {other}; more: {found.winner}"
        yield "Fleet", value, report.sources["fleet"].kind


def _cost_in_short(report: Report) -> Iterator[tuple[str, str, Basis]]:
    found = report.cost
    if found is not None:
        said = f"{format_number(found.per_hour, 3)}/h"
        for at, one in (("now", found.offered), ("at capacity", found.sustainable)):
            if one.per_million_output_tokens is not None:
                said += f", {format_number(one.per_million_output_tokens, 3)}/M output tokens {at}"
        yield "Cost", said, report.sources["cost"].kind


def _times(found: Latency | WorstPart) -> tuple[tuple[str, str, Distribution], ...]:
    return (
        ("TTFT", "ttft_s", found.ttft_s),
        ("ITL", "itl_s", found.itl_s),
        ("TPOT", "tpot_s", found.tpot_s),
        ("E2E", "e2e_s", found.e2e_s),
    )


def _lever(lever: Lever) -> str:
    """What to change, as an operator would: limits are raised, times shortened."""
    how = "shorter" if is_time(lever.name) else "more"
    return f"10% {how} {_LEVERS.get(lever.name, lever.name)} serves {format_percent(lever.gain, signed=True)}"


def _load(report: Report, basis: Basis) -> Iterator[Block]:
    first = (
        "load.offered_rps",
        "load.sustainable_rps",
        "verdict.binding",
        "load.sustainable_decode_tokens_per_s",
        "load.load_factor_max",
        "load.work_rate",
    )
    rate = _rps(report.load.sustainable_rps) + range_text(report.load.sustainable_rps_range)
    idle = {
        f"load.sensitivity.{name}": ""
        for name, change in report.load.sensitivity._asdict().items()
        if not change
    }
    yield _figures(report, basis, "load", first, {"load.sustainable_rps": rate, **idle})


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
        yield _rows(
            (_CLASS, number("Per stage"), number("Running")),
            basis,
            ((c.name, format_number(c.per_stage), format_number(c.in_flight)) for c in state.classes),
        )


def _latency(report: Report, basis: Basis) -> Iterator[Block]:
    found = report.latency
    if found.reason is not None:
        yield Paragraph(f"None: {found.reason}.")
        return
    if found.status is Status.UNDECIDED:
        yield Paragraph("The runs cannot tell whether the queue is steady: too close to saturation.")
    yield _rows((Column("Time"), *map(number, Distribution._fields)), basis, _time_rows(found))
    if found.unsettled:
        wide = (f"{key} {' to '.join(map(format_seconds, found.ci95[key]))}" for key in found.unsettled)
        yield Paragraph(f"Not settled, by their 95 % intervals: {'; '.join(wide)}.")
    for cliff in found.cliffs:
        low, high = format_seconds(cliff.low_s), format_seconds(cliff.high_s)
        yield Paragraph(f"{cliff.key} sits on a cliff: {low} to {high}.")
    if found.worst_part is not None:
        begin, end = format_seconds(found.worst_part.begin_s), format_seconds(found.worst_part.end_s)
        yield Paragraph(f"In the worst 24th part, {begin} to {end}:")
        yield _rows((Column("Time"), *map(number, Distribution._fields)), basis, _time_rows(found.worst_part))
    if len(found.classes) > 1:
        yield Paragraph("By class:")
        yield _rows(
            (_CLASS, Column("Time"), *map(number, Distribution._fields)),
            basis,
            (
                (c.name, name, *map(format_seconds, one))
                for c in found.classes
                for name, one in (("TTFT", c.ttft_s), ("TPOT", c.tpot_s), ("E2E", c.e2e_s))
                if one.mean is not None
            ),
        )
    yield _figures(report, basis, "latency", ("latency.running", "latency.waiting", "latency.kv_tokens_mean"))


def _time_rows(found: Latency | WorstPart) -> Iterator[tuple[str, ...]]:
    for name, _, one in _times(found):
        if one.mean is not None:
            yield name, *map(format_seconds, one)


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
    yield _rows(
        (words("Layers"), *map(number, ("Count", "Groups", "Block", "Window"))),
        basis,
        ((one.kind, *map(format_number, one[1:4]), format_tokens(one.window_tokens)) for one in found.groups),
    )


def _fleet(report: Report, basis: Basis) -> Iterator[Block]:
    found = report.fleet
    assert found is not None
    split, joined = found.split, found.together
    apart = ABSENT if split.prefill is None else f"{split.prefill} + {split.decode}"
    yield _rows(
        (_FIGURE, number("Split"), number("Together")),
        basis,
        (
            ("Replicas", apart, format_number(joined.replicas)),
            ("GPUs", format_number(split.gpus), format_number(joined.gpus)),
            ("Rate", _rps(split.rate_rps), _rps(joined.rate_rps)),
            ("Goodput", _rps(split.goodput_rps), _rps(joined.goodput_rps)),
            ("Mean TTFT", format_seconds(split.ttft_s), format_seconds(joined.ttft_s)),
            ("Mean ITL", format_seconds(split.itl_s), format_seconds(joined.itl_s)),
        ),
    )
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
        yield _rows(
            (
                Column("State"),
                number("Running"),
                number("Iteration"),
                number("Hit ratio"),
                number("KV cache usage"),
            ),
            basis,
            (
                (
                    "stable" if state.stable else "unstable",
                    format_number(state.requests_in_flight),
                    format_seconds(state.iteration_time_s),
                    format_percent(state.hit_ratio),
                    format_percent(state.kv_unique_tokens / cache.capacity_tokens),
                )
                for state in cache.branches
            ),
        )
    yield _table(Basis.ESTIMATED, recovered)


def _worst_cycle(report: Report, basis: Basis) -> Iterator[Block]:
    cycle = report.worst_cycle
    yield _figures(report, basis, "worst_cycle")
    if any(c.kind for c in cycle.classes):
        full = report.sources["saturation"].kind
        yield Paragraph("Each class on a replica of its own:")
        yield _cut(
            (_CLASS, Column("Cycle"), number("Loss"), number("Requests/s"), _BASIS),
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
    rate = f"{_rps(cap.engine_sustainable_rps)} ({format_percent(cost, signed=True)})"
    yield _figures(
        report, basis, "rate_cap", ("rate_cap.per_second",), {"rate_cap.engine_sustainable_rps": rate}
    )
    yield Paragraph(
        "Admissions per iteration by class; no budgets of whole requests fit this load."
        if cap.budgets_are_optimal is None
        else "Admissions per iteration by class: the fluid cap, whole requests, and the mean wait these cause."
    )
    yield _rows(
        (_CLASS, number("Cap"), number("Budget"), number("Mean wait")),
        basis,
        (
            (
                c.name,
                format_number(c.per_iteration),
                format_number(c.integer_budget),
                format_seconds(c.mean_wait_s),
            )
            for c in cap.classes
        ),
    )


def _wait(report: Report, basis: Basis) -> Iterator[Block]:
    plan = report.wait
    if plan.thresholds is None:
        yield Paragraph(_NO_THRESHOLDS)
        return
    if not plan.fits:
        yield Paragraph(_does_not_fit(plan.kv_tokens, report))
        return
    largest = plan.max_thresholds or (None,) * len(plan.classes)
    bound = "" if len(plan.classes) == 1 and not plan.worst_window else ", at most"
    yield _figures(report, basis, "wait")
    yield Paragraph(
        "Requests of a class kept at every stage: the smallest that keep up, the largest that fit in memory."
    )
    numbers = ("Smallest", "Largest", f"Mean wait{bound}", f"Latency{bound}")
    yield _rows(
        (_CLASS, *map(number, numbers)),
        basis,
        (
            (
                c.name,
                format_number(c.threshold),
                format_number(most),
                format_seconds(c.mean_wait_bound_s),
                format_seconds(c.latency_s),
            )
            for c, most in zip(plan.classes, largest, strict=True)
        ),
    )
    if plan.dial:
        yield Paragraph("The throughput-latency dial, thresholds in proportion to the rates:")
        yield _rows(
            map(number, ("Interval", "Iteration", "KV tokens", "Requests/s", "Latency")),
            basis,
            (
                (
                    format_seconds(row.interval_s),
                    format_seconds(row.iteration_time_s),
                    format_tokens(row.kv_tokens),
                    format_number(row.throughput_rps),
                    format_seconds(row.latency_s),
                )
                for row in plan.dial
            ),
        )


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
    yield _rows(
        map(number, ("Up to", "Requests/s", "Go on", "Threshold", "Theta", "Parked", "Queue")),
        basis,
        (
            (
                format_tokens(s.upto_decode),
                format_number(s.rate_rps),
                format_percent(s.continue_probability),
                format_number(s.threshold),
                format_number(s.theta),
                format_number(s.parked_bound),
                format_number(s.queue_bound),
            )
            for s in plan.segments
        ),
    )


def _does_not_fit(kv_tokens: float | None, report: Report) -> str:
    state = report.equilibrium.requests_in_flight
    running = (
        ""
        if state is None
        else f" It suits far more than the {format_number(state, 3)} requests that run here."
    )
    return f"Does not fit: whole requests at every stage would take {_unit(kv_tokens, 'tokens')} of KV cache.{running}"


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
    rows = ((key, source.kind.value, source.source) for key, source in report.sources.items())
    yield _cut((Column("Block"), _BASIS, words("Source")), rows)


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
_FIGURES = (_FIGURE, words("Value"), _BASIS)


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
    rest = (record.key for record in BLOCKS[block].records if record.label and record.key not in first)
    rows = []
    for row in (*first, *rest, *last):
        if not isinstance(row, str):
            rows.append(_figure(*row, basis))
        elif said.get(row) != "":
            record = CONTRACT[row]
            value = said.get(row) or record.written(attrgetter(row)(report))
            rows.append(_figure(record.label, value, Basis(record.basis or basis)))
    return table(_FIGURES, rows)


def _table(basis: Basis, *rows: tuple[str, str]) -> Table:
    """Build a table of figures that have no record."""
    return table(_FIGURES, (_figure(name, value, basis) for name, value in rows))


def _figure(name: str, value: str, basis: Basis) -> tuple[str, str, str]:
    """A row of such a table; what does not exist has no basis either."""
    return name, value, ABSENT if value == ABSENT else basis.value


def _rows(columns: Iterable[Column], basis: Basis, rows: Iterable[tuple[str, ...]]) -> Table:
    """A table of rows that are all known in one way."""
    return _cut((*columns, _BASIS), ((*row, basis.value) for row in rows))


def _cut(columns: Iterable[Column], rows: Iterable[tuple[str, ...]]) -> Table:
    return table(columns, rows, MAX_ROWS, "… {} more; see --format json")


def _rps(value: float | None) -> str:
    return format_rate(value, "requests")


def _unit(value: float | None, unit: str) -> str:
    return ABSENT if value is None else f"{format_number(value)} {unit}"
