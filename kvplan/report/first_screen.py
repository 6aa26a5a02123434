"""The first screen of a report: rows of what there is to say, with its numbers and how these are known."""

from collections.abc import Iterator

from kvplan.analysis.equilibrium import is_time
from kvplan.analysis.records import Lever
from kvplan.report.assembly import Report
from kvplan.report.inputs import headroom_range_text
from kvplan.report.words import Basis
from kvplan.study.operating_point import ClassLatency, Distribution, Latency, WorstPart
from kvplan.units import ABSENT, format_number, format_percent, format_rate, format_seconds, format_tokens

Row = tuple[str, str, Basis]
Time = tuple[str, str, Distribution]

_MOST_LISTED = 8  # thresholds
_MUCH_MORE = 1.02  # times the goodput
_LEVERS = {
    "memory_tokens": "KV memory",
    "d0": "d0 (fixed time)",
    "d1": "d1 (KV reads)",
    "d2": "d2 (prefill)",
    "d3": "d3 (sequences)",
    "d4": "d4 (√sequences)",
    "d5": "d5 (beyond the knee)",
    "d6": "d6 (attention of prompts)",
    "experts": "reading of experts",
}


def rows(report: Report) -> Iterator[Row]:
    """Yield the rows; nothing of what this profile does not have."""
    offered, sources = report.load, report.sources
    headroom = format_percent(offered.headroom, signed=True) + headroom_range_text(offered)
    yield "Headroom", headroom, sources["load"].kind
    yield "Recovers up to", rate_text(report.verdict.recovers_up_to_rps), sources["verdict"].kind
    if (growth := report.verdict.backlog_growth_rps) is not None:
        yield "Backlog grows", f"by {rate_text(growth)} at least", sources["load"].kind
    for rows_of in (latency_rows, _goodput, _cost, _kv, _trial, _fleet, _after_a_burst, _papers):
        yield from rows_of(report)
    yield "Strongest lever", _lever(report.levers[0]), sources["load"].kind


def rate_text(value: float | None) -> str:
    return format_rate(value, "requests")


def times_of(found: Latency | WorstPart | ClassLatency) -> list[Time]:
    """List the times that there are: name, key, and what is known of it."""
    gaps = Distribution() if isinstance(found, ClassLatency) else found.itl_s
    times = (
        ("TTFT", "ttft_s", found.ttft_s),
        ("ITL", "itl_s", gaps),
        ("TPOT", "tpot_s", found.tpot_s),
        ("E2E", "e2e_s", found.e2e_s),
    )
    return [time for time in times if time[2].mean is not None]


def _lever(lever: Lever) -> str:
    """What to change, as an operator would: limits are raised, times shortened."""
    how = "shorter" if is_time(lever.name) else "more"
    return f"10% {how} {_LEVERS.get(lever.name, lever.name)} serves {format_percent(lever.gain, signed=True)}"


def _kv(report: Report) -> Iterator[Row]:
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


def _papers(report: Report) -> Iterator[Row]:
    """What the papers are about: worst cycle, rate cap, thresholds, safety buffer."""
    cycle, cap, sources = report.worst_cycle, report.rate_cap, report.sources
    if cycle.loss > 0:
        value = f"{format_percent(cycle.loss)} lost, down to {rate_text(cycle.throughput_rps)}"
        if cycle.danger_zone_rps is not None:
            value += f"; danger from {format_number(cycle.danger_zone_rps[0])}"
        yield "Worst cycle", value, sources["worst_cycle"].kind
    each = f"{format_number(cap.per_iteration)} admissions an iteration"
    yield "Rate cap", f"{each}, {rate_text(cap.per_second)}", sources["rate_cap"].kind
    yield "WAIT", _wait(report), sources["wait"].kind
    yield "Nested WAIT", _nested(report), sources["nested_wait"].kind
    buffer, there = report.safety_buffer, report.equilibrium.kv_tokens
    if buffer.required_kv_tokens is not None and there is not None:
        needed = format_tokens(buffer.required_kv_tokens)
        value = f"{needed} tokens keep an overflow as rare as the plan wants"
        yield "Safety buffer", value, Basis.ESTIMATED


def _wait(report: Report) -> str:
    plan = report.wait
    held = plan.overload
    if held.thresholds is not None:
        seen = "" if held.simulated_rps is None else f", {format_number(held.simulated_rps, 3)} simulated"
        most = _listed("at most", list(dict.fromkeys(format_number(n, 2) for n in held.thresholds)))
        return f"{most} of a class at each stage fit: {rate_text(held.throughput_rps)}{seen}"
    return _listed("thresholds", [format_number(n) for n in plan.thresholds or ()])


def _nested(report: Report) -> str:
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


def latency_rows(report: Report) -> Iterator[Row]:
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


def _trial(report: Report) -> Iterator[Row]:
    cache = report.prefix_cache
    if cache is not None and cache.trial.summary is not None:
        yield "Warm cache, tried", cache.trial.summary, Basis.SIMULATED


def _known(found: Latency, key: str, figure: str) -> str:
    """A figure, with its interval where that is wide."""
    value = format_seconds(getattr(getattr(found, key), figure))
    if f"{key}.{figure}" not in found.unsettled:
        return value
    low, high = found.ci95[f"{key}.{figure}"]
    most = ABSENT if high is None else format_seconds(high)
    return f"{value} ({format_seconds(low)} to {most}: not settled)"


def _goodput(report: Report) -> Iterator[Row]:
    found = report.goodput
    if found is not None:
        is_more = found.crossing_rps >= _MUCH_MORE * found.rate_rps
        minutes = f"; {format_number(found.crossing_rps)} for minutes" if is_more else ""
        run = "" if found.run_s is None else f", in runs of {format_seconds(found.run_s)}"
        lasts = report.verdict.recovers_up_to_rps
        ended = report.fleet is None and lasts is not None and lasts < found.rate_rps
        for_good = f"; above {format_number(lasts)} a burst can end it for good" if ended else ""
        value = f"{rate_text(found.rate_rps)} by {found.binding}{run}{minutes}{for_good}"
        yield "Goodput", value, report.sources["goodput"].kind


def _after_a_burst(report: Report) -> Iterator[Row]:
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


def _fleet(report: Report) -> Iterator[Row]:
    found = report.fleet
    if found is not None and found.split.rate_rps is not None and found.together.rate_rps is not None:
        one, other = format_number(found.split.rate_rps), rate_text(found.together.rate_rps)
        split = f"{found.split.prefill} + {found.split.decode} apart {one}"
        value = f"{split}, {found.together.replicas} together {other}; more: {found.winner}"
        yield "Fleet", value, report.sources["fleet"].kind


def _cost(report: Report) -> Iterator[Row]:
    found = report.cost
    if found is not None:
        said = f"{format_number(found.per_hour, 3)}/h"
        for at, one in (("now", found.offered), ("at capacity", found.sustainable)):
            if one.per_million_output_tokens is not None:
                said += f", {format_number(one.per_million_output_tokens, 3)}/M output tokens {at}"
        yield "Cost", said, report.sources["cost"].kind
