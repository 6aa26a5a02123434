"""The report of `kvplan analyze` for people: headline, key figures and actions, then a section for each block.

Built once from a `Report` by pure functions. Every figure carries its basis (`Basis`).
"""

from collections.abc import Collection, Iterator, Sequence

from kvplan.errors import UsageError
from kvplan.profile.reading import Profile
from kvplan.report.assembly import Report, to_document
from kvplan.report.inputs import headroom_range_text
from kvplan.report.words import Basis
from kvplan.show.chart import Chart
from kvplan.show.page import Block, Document, Section, Table, origin, table
from kvplan.show.sections import BASIS, FIGURES, SECTIONS, figure_row, lever_text, rate_text, times_of
from kvplan.show.view import View
from kvplan.study.operating_point import Latency
from kvplan.units import ABSENT, format_number, format_percent, format_seconds, format_tokens

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
    asked = {"kv_layout": report.kv_layout, "speculative": report.speculative, "fleet": report.fleet}
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
    tables = [b for b in blocks if isinstance(b, Table) and BASIS in b.columns]
    found = {row[t.columns.index(BASIS)] for t in tables for row in t.rows} - {ABSENT}
    if len(found) > 1:
        return Section(key, title, blocks)
    kept = tuple(_without_basis(b) if b in tables else b for b in blocks)
    return Section(key, title, kept, found.pop() if found else None)


def _without_basis(block: Block) -> Block:
    assert isinstance(block, Table)
    at = block.columns.index(BASIS)
    rows = tuple(row[:at] + row[at + 1 :] for row in block.rows)
    return block._replace(columns=block.columns[:at] + block.columns[at + 1 :], rows=rows)


def _summary(report: Report) -> Table:
    offered, sources = report.load, report.sources
    headroom = format_percent(offered.headroom, signed=True) + headroom_range_text(offered)
    rows = (
        ("Headroom", headroom, sources["load"].kind),
        ("Recovers up to", rate_text(report.verdict.recovers_up_to_rps), sources["verdict"].kind),
        *latency_in_short(report),
        *_goodput_in_short(report),
        *_cost_in_short(report),
        *_kv_in_short(report),
        *_trial_in_short(report),
        *_fleet_in_short(report),
        *_after_a_burst(report),
        *_papers_in_short(report),
        ("Strongest lever", lever_text(report.levers[0]), sources["load"].kind),
    )
    return table(FIGURES, (figure_row(*row) for row in rows))


def _kv_in_short(report: Report) -> Iterator[tuple[str, str, Basis]]:
    state, cache, drafts = report.equilibrium, report.prefix_cache, report.speculative
    if state.kv_utilization is not None:
        running = f"{format_number(state.requests_in_flight, 3)} running"
        value = f"{format_percent(state.kv_utilization)} used in equilibrium, {running}"
        yield "KV cache", value, report.sources["equilibrium"].kind
    if cache is not None and cache.reusable_ratio is not None:
        rates = cache.sustainable_rps
        hits = "no warm state" if cache.hit_ratio is None else f"{format_percent(cache.hit_ratio)} hits"
        value = f"{hits}; {format_number(rates.guaranteed)} guaranteed, {rate_text(rates.good)} warm"
        yield "Prefix cache", value, report.sources["prefix_cache"].kind
    if drafts is not None:
        value = f"{format_number(drafts.tokens_per_iteration, 3)} tokens an iteration"
        yield "Drafts", value, report.sources["speculative"].kind


def _papers_in_short(report: Report) -> Iterator[tuple[str, str, Basis]]:
    """What the papers are about: worst cycle, rate cap, thresholds, safety buffer."""
    cycle, cap, sources = report.worst_cycle, report.rate_cap, report.sources
    if cycle.loss > 0:
        value = f"{format_percent(cycle.loss)} lost, down to {rate_text(cycle.throughput_rps)}"
        if cycle.danger_zone_rps is not None:
            value += f"; danger from {format_number(cycle.danger_zone_rps[0])}"
        yield "Worst cycle", value, sources["worst_cycle"].kind
    each = f"{format_number(cap.per_iteration)} admissions an iteration"
    yield "Rate cap", f"{each}, {rate_text(cap.per_second)}", sources["rate_cap"].kind
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
    for name, key, _ in times_of(found):
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
        value = f"{rate_text(found.rate_rps)} by {found.binding}{between}"
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
        one, other = format_number(found.split.rate_rps), rate_text(found.together.rate_rps)
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
