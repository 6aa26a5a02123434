"""The plots of a report in words: title, basis, caption, and what somebody who does not see them should know."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from kvplan.analysis.cold_cache import with_cold_cache
from kvplan.analysis.fleet import between_tokens_s, one_replica
from kvplan.model import Plan, ServingModel
from kvplan.plots import data, fleet, prefix_cache
from kvplan.report.assembly import Report
from kvplan.report.words import Basis
from kvplan.units import format_number, format_percent, format_seconds, format_tokens

KEYS = (
    "rate-throughput",
    "equilibrium-kv",
    "cache-branches",
    "cache-hits",
    "fleet-rates",
    "roots",
    "nested-segments",
    "kv-density",
)


class Plot(NamedTuple):
    """One plot, or why there is none: then the caption says so. Its key names its file.

    A `section` of None is the first screen; `numbers` are the figures in it, for those who do not see it.
    """

    key: str
    section: str | None
    title: str
    basis: Basis
    caption: str
    numbers: str
    data: data.ReportData | None


def build(report: Report, model: ServingModel, plan: Plan) -> tuple[Plot, ...]:
    """Every plot of a report about a model, in the order of its sections.

    Examples
    --------
    >>> from kvplan.model import Prefill, Replica, RequestClass, Timing
    >>> from kvplan.report.assembly import analyze
    >>> one = RequestClass("tools", 2, (3,), (1.0,), 0.9)
    >>> model = ServingModel((one,), Timing(1.0), Replica(12, prefill=Prefill.DISAGGREGATED))
    >>> plots = build(analyze(model, name="small", sha256="5e6f"), model, Plan())
    >>> [plot.key for plot in plots if plot.data is not None]
    ['rate-throughput', 'equilibrium-kv', 'roots', 'kv-density']
    >>> plots[3].caption
    'All requests have one decode length, so there is one segment.'
    """
    whole, model = model, one_replica(model)
    cold = with_cold_cache(model)  # what the report's own figures below are about
    found = [
        rate_throughput(report),
        *(_cache(report, model) if shares(report) else [_equilibrium(report, model)]),
        *_fleet(report, whole, plan),
        _roots(report, cold),
        _segments(report, cold, plan),
        _density(report, cold),
    ]
    return tuple(found)


def shares(report: Report) -> bool:
    """Whether requests have something in common that a prefix cache finds."""
    return report.prefix_cache is not None and report.prefix_cache.reusable_ratio is not None


def rate_throughput(report: Report) -> Plot:
    """The plot of the first screen."""
    found = data.rate_throughput(report)
    own, most = _rps(found.offered_rps), _rps(found.sustainable_rps)
    said = ["With a cap nearly everything up to the sustainable rate is served."]
    numbers = [f"Offered {own}, sustainable {most}."]
    if found.danger_zone_rps is not None:
        said.append(
            "In the danger zone (shaded) the load fits, but a greedy replica that has collapsed and has a backlog is "
            "only sure to serve the lower line. Dotted: the worst cycle of very many requests."
        )
        low, high = map(format_number, found.danger_zone_rps)
        numbers.append(f"Danger zone from {low} to {high} requests/s.")
    else:
        said.append("There is no danger zone: greedy admission comes back to it by itself.")
    if not found.shows_offered:
        said.append(f"The offered rate, {own}, is far beyond the right edge.")
    kinds = (report.sources["load"].kind, report.sources["worst_cycle"].kind)
    said.append(f"Sustainable rate: {kinds[0].value}; worst cycle: {kinds[1].value}.")
    return Plot(
        "rate-throughput",
        None,
        "Throughput against offered rate",
        # what rests on less names the whole
        max(kinds, key=list(Basis).index),
        " ".join(said),
        " ".join(numbers),
        found,
    )


def _equilibrium(report: Report, model: ServingModel) -> Plot:
    found = data.equilibrium_curve(model, report)
    capacity, own = format_tokens(found.capacity_tokens), _rps(found.offered_rps)
    at = format_tokens(found.offered_kv_tokens)
    said = ["Memory held without preemptions, for the same mix at other rates."]
    if found.offered_kv_tokens is None:
        said.append(f"At the offered rate, {own}, no equilibrium exists.")
    elif not found.shows_offered:
        said.append(f"At the offered rate, {own}, it would be {at} tokens, far above the plot.")
    return Plot(
        "equilibrium-kv",
        "equilibrium",
        "KV tokens at the equilibrium against offered rate",
        report.sources["equilibrium"].kind,
        " ".join(said),
        f"Capacity {capacity} tokens, filled at {_rps(found.full_rps)}; at the offered {own}: {at} tokens.",
        found,
    )


def _cache(report: Report, model: ServingModel) -> Iterator[Plot]:
    branches = cache_branches(report, model)
    if branches is None:
        return
    yield branches
    assert isinstance(branches.data, prefix_cache.CacheBranches)
    yield _cache_hits(report, model, f"{format_number(branches.data.offered)} {branches.data.unit}")


def cache_branches(report: Report, model: ServingModel) -> Plot | None:
    """Running requests in every state against the load, of a model whose requests share something."""
    cache = report.prefix_cache
    assert cache is not None
    found = prefix_cache.cache_branches(model, cache)
    if found is None:
        return None
    offered, guaranteed, good = (
        f"{format_number(load)} {found.unit}" for load in (found.offered, found.guaranteed, found.good)
    )
    against = "users" if found.unit == "users" else "offered rate"
    warm, lost, full = (
        format_number(value, 3)
        for value in (found.warm_in_flight, found.separatrix_in_flight, found.full_in_flight)
    )
    over = "" if found.stable.all() else " that leads over the unstable branch"
    numbers = [f"Offered {offered}, guaranteed {guaranteed}, with a warm cache {good}."]
    if found.good > found.guaranteed:
        said = [
            f"Up to {guaranteed} no burst can empty the cache for good. Between that and the {good} of a warm cache, "
            f"one{over} leaves the replica on the upper line, where nothing of its own is found."
        ]
    else:
        said = ["A warm cache serves no more than is guaranteed: no burst can empty it for good."]
    if found.warm_in_flight is not None:
        numbers.append(f"Running at the offered load: {warm} from a warm cache.")
    if found.separatrix_in_flight is not None:
        numbers.append(f"Lost beyond {lost}, full at {full}.")
    if not found.shows_offered:
        said.append(f"What is offered, {offered}, is far beyond the right edge.")
    return Plot(
        "cache-branches",
        "prefix_cache",
        f"States of the prefix cache: running requests against {against}",
        report.sources["prefix_cache"].kind,
        " ".join(said),
        " ".join(numbers),
        found,
    )


def _cache_hits(report: Report, model: ServingModel, offered: str) -> Plot:
    cache = report.prefix_cache
    assert cache is not None
    key, section, title = "cache-hits", "prefix_cache", "Hit ratio against KV memory"
    kind = report.sources["prefix_cache"].kind
    found = prefix_cache.cache_hits(model, cache)
    if found is None:
        why = f"No memory within reach serves {offered} from a warm cache."
        return Plot(key, section, title, kind, why, "", None)
    said = [f"Prompt tokens found at {offered}, from an empty replica."]
    if np.isnan(found.hit_ratio[0]):
        said.append("With less than where the line begins, not even a warm cache serves them.")
    if found.collapse.any():
        said.append("Where it is dashed, one burst can empty the cache for good.")
    have = f"{format_tokens(found.own_tokens)} tokens find {format_percent(found.own_ratio)}"
    numbers = f"{have}, an infinite cache {format_percent(found.reusable_ratio)}."
    return Plot(key, section, title, kind, " ".join(said), numbers, found)


def _fleet(report: Report, model: ServingModel, plan: Plan) -> Iterator[Plot]:
    block = report.fleet
    found = None if block is None else fleet.fleet_rates(model, block, between_tokens_s(plan.limits))
    if block is None or found is None:
        return
    said = (
        "What the GPUs serve if iterations may last as long as the limit, until another limit binds. Dotted: split in "
        "the best proportion, if replicas came in parts."
    )
    own = "none" if found.own_itl_s is None else format_seconds(found.own_itl_s)
    even = "nowhere" if found.crossing_itl_s is None else f"at {format_seconds(found.crossing_itl_s)}"
    yield Plot(
        "fleet-rates",
        "fleet",
        "Split or together: requests/s against the limit on the time between tokens",
        report.sources["fleet"].kind,
        said,
        f"Even {even}; objective: {own}; a full prefill iteration takes {format_seconds(found.iteration_s)}.",
        found,
    )


def _roots(report: Report, model: ServingModel) -> Plot:
    found = data.roots(model, report)
    kind, radius = report.sources["stability"].kind, format_number(report.stability.spectral_radius, 6)
    title = "Roots of the survival polynomial"
    if found is None:
        why = "Requests stay for a single iteration: there is no polynomial, and nothing to be unstable."
        return Plot("roots", "stability", title, kind, why, "", None)
    said = "The equilibrium is stable when every root is inside the unit circle; those outside are marked."
    if found.roots.size < found.degree:
        shown, degree = format_tokens(found.roots.size), format_tokens(found.degree)
        said += f" The {shown} leading roots found, of {degree}."
    outside = report.stability.unstable_modes
    count = "not proved" if outside is None else format_tokens(outside)
    return Plot(
        "roots",
        "stability",
        title,
        kind,
        said,
        f"Spectral radius {radius}, roots outside the unit circle: {count}.",
        found,
    )


def _segments(report: Report, model: ServingModel, plan: Plan) -> Plot:
    found = data.segment_memory(model, report, plan)
    key, section, title = "nested-segments", "nested_wait", "Nested WAIT memory against number of segments"
    kind = report.sources["nested_wait"].kind
    if found is None:
        why = (
            "All requests have one decode length, so there is one segment."
            if report.nested_wait.feasible
            else "No thresholds exist at this load, with any number of segments."
        )
        return Plot(key, section, title, kind, why, "", None)
    capacity = format_tokens(found.capacity_tokens)
    least = format_tokens(report.nested_wait.required_kv_tokens)
    said = f"What must be there so that it suffices with probability {format_percent(1 - plan.delta, 6)}."
    if not found.shows_capacity:
        said += f" The capacity, {capacity} tokens, is far above the plot."
    numbers = f"{least} tokens with {_segments_text(found.chosen)}; capacity {capacity} tokens."
    return Plot(key, section, title, kind, said, numbers, found)


def _segments_text(count: int) -> str:
    return "1 segment" if count == 1 else f"{count} segments"


def _density(report: Report, model: ServingModel) -> Plot:
    found = data.usage_density(model, report)
    kind, title = report.sources["safety_buffer"].kind, "Spread of KV cache usage"
    if found is None:
        why = (
            "No equilibrium exists whose spread it could show."
            if report.safety_buffer.kv_std_tokens is None
            else "Usage has no spread to speak of."
        )
        return Plot("kv-density", "safety_buffer", title, kind, why, "", None)
    said = [
        "Before any preemption, for Poisson arrivals. Line: saddlepoint, which knows that full memory lengthens"
    ]
    said.append("iterations.")
    if found.without_feedback is not None:
        said.append("Steps: exact, at a constant iteration time.")
    capacity, required = format_tokens(found.capacity_tokens), format_tokens(found.required_tokens)
    if not found.shows_capacity:
        where = "below the plot"
        if found.has_room:
            times = format_number(found.capacity_tokens / found.high_tokens, 2)
            where = f"beyond the right edge: {times} times as much"
        said.append(f"The capacity, {capacity} tokens, is far {where}.")
    return Plot(
        "kv-density",
        "safety_buffer",
        title,
        kind,
        " ".join(said),
        f"Mean {format_tokens(found.mean_tokens)} tokens, required with the buffer {required}, capacity {capacity}.",
        found,
    )


def _rps(value: float) -> str:
    return f"{format_number(value)} requests/s"
