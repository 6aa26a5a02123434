"""The verdict in words: a sentence with the numbers, and what to do."""

import math
from collections.abc import Iterator

from kvplan.analysis.concurrency import engine_never_evicts, never_grows
from kvplan.analysis.equilibrium import per_request, saturation
from kvplan.analysis.records import Load
from kvplan.analysis.stability import Stability
from kvplan.analysis.worst_window import Peak
from kvplan.model import ServingModel
from kvplan.report.figures import Figures
from kvplan.report.inputs import sustainable_text
from kvplan.report.prefix_cache import collapse_actions, collapse_summary, overload_summary, users_summary
from kvplan.report.words import Status
from kvplan.study.advice import ADMISSION, Advice
from kvplan.study.goodput import Goodput
from kvplan.study.warm_cache import Setting
from kvplan.units import format_number, format_percent, format_seconds, format_tokens

_SECONDS = "shed_after"  # a setting in seconds
_NOTHING = "Nothing"  # to be done, begins an action that says so


def summary(figures: Figures) -> str:
    """Say the verdict in a sentence with the numbers, and the reason where a collapsed replica may stay collapsed."""
    words = _summary(figures)
    fleet = figures.whole.fleet
    return words if fleet is None else f"One of {fleet.size} replicas, prefill and decode together: {words}"


def _summary(figures: Figures) -> str:
    status, offered, recovers, cache = figures.status, figures.load, figures.recovery, figures.prefix_cache
    if cache is not None and cache.reusable_ratio is not None:
        if status is Status.OVERLOADED:
            return overload_summary(cache, offered)
        if cache.collapse_possible:
            return collapse_summary(cache, offered)
        if cache.users is not None and status is Status.NEEDS_CAP:
            return users_summary(cache)
    rates = (
        f"{format_number(offered.offered_rps)} requests/s offered, {sustainable_text(offered, 'sustainable')}"
    )
    if status is Status.OVERLOADED:
        excess = offered.offered_rps / offered.sustainable_rps - 1
        return f"{rates}: {format_percent(excess)} more than {figures.binding} allows, whatever the policy."
    fits = f"{rates}, limited by {figures.binding}"
    if status is Status.STABLE:
        return f"{fits}; any backlog in random order drains by itself."
    if recovers.rate_rps is None:
        return f"{fits}; whether a backlog drains is not known: {recovers.reason}."
    return (
        f"{fits}; but under a backlog no more than {format_number(recovers.rate_rps)} are sure to be served, so that "
        "once collapsed the replica can stay collapsed."
    )


def beside_spectrum(status: Status, local: Stability, recovery_rps: float | None) -> str | None:
    """Say why the status is not what the spectrum says; None where it is, or where too much is offered anyway.

    The spectrum is that of the full equilibrium in the fluid model, the status is about the offered rate.
    """
    if status is Status.OVERLOADED or (status is Status.STABLE) == local.stable:
        return None
    drains = "is not known to drain"
    if recovery_rps is not None:
        sure = "drains" if status is Status.STABLE else "is sure to drain only"
        drains = f"{sure} up to {format_number(recovery_rps)} requests/s"
    return (
        f"The status is {status} all the same: this is about small disturbances of a full replica, the status about "
        f"any backlog at the offered rate, which {drains}."
    )


def requests_in_memory(model: ServingModel) -> float:
    """Compute the mean number of running requests when memory is full, n*·n."""
    return saturation(model).admissions_per_iteration * per_request(model).iterations


def actions(figures: Figures) -> tuple[str, ...]:
    """Say what to do, most important first; each fits a line or two of the first screen."""
    status, recovers = figures.status, figures.recovery
    tried = (*advice_actions(figures.advice, recovers=status is Status.STABLE), *_against_collapse(figures))
    usual = tuple(_at_these_rates(figures, tried=bool(tried)))
    at_peak = None if figures.peak is None else _at_peak(figures.peak, status, recovers.rate_rps or 0.0)
    goodput = None if figures.whole.fleet is not None else figures.goodput
    urgent = [at_peak, _for_objectives(goodput, figures.load, status), *tried]
    first = tuple(action for action in urgent if action is not None)
    return first + tuple(action for action in usual if not (first and action.startswith(_NOTHING)))


def _against_collapse(figures: Figures) -> Iterator[str]:
    cache = figures.prefix_cache
    if cache is not None and cache.collapse_possible and figures.status is Status.NEEDS_CAP:
        yield from collapse_actions(figures.model, figures.load)


def _for_objectives(goodput: Goodput | None, offered: Load, status: Status) -> str | None:
    """Say what to do about an objective that is missed at the offered rate; an overloaded replica misses all."""
    if goodput is None or status is Status.OVERLOADED or offered.offered_rps <= goodput.rate_rps:
        return None
    if goodput.rate_rps == 0:
        return f"Loosen {goodput.binding}, or shorten iterations: even an idle replica misses it."
    return (
        f"Bring the load below {format_number(goodput.rate_rps)} requests/s, above which {goodput.binding} is missed, "
        "or serve it with more replicas: kvplan plan finds how many."
    )


def _at_these_rates(figures: Figures, *, tried: bool) -> Iterator[str]:
    status, offered, recovers = figures.status, figures.load, figures.recovery
    plan, model = figures.plan, figures.cold
    # a cache holds less than it is for
    buffer = None if figures.model.finds_prefixes else figures.safety_buffer
    if status is Status.OVERLOADED:
        replicas = math.ceil(1 / (offered.load_factor_max or 1.0))
        yield (
            f"Bring the load below {format_number(offered.sustainable_rps)} requests/s, or serve it with at least "
            f"{replicas} replicas."
        )
    elif status is Status.NEEDS_CAP:
        if recovers.rate_rps is None:
            yield f"Whether a backlog drains is not known: {recovers.reason}."
        elif not tried:
            yield "No setting tried sustains this load under a backlog; lower the rate or add memory."
        if (change := figures.stability.stabilising_change) is not None:
            yield f"Or remove the cause. {change}."
    elif engine_never_evicts(model):
        yield f"{_NOTHING}: max_num_seqs requests fit in memory at their longest, so none is ever preempted."
    elif never_grows(model):
        yield f"{_NOTHING}: no request takes more memory than at its admission, so none is ever preempted."
    elif buffer is not None and (buffer.overflow_probability_horizon or 0) > plan.delta:
        yield (
            f"Expect preemptions now and then: about {format_percent(buffer.overflow_probability_horizon)} for any "
            f"within {format_seconds(plan.horizon_s)}; {format_tokens(buffer.required_kv_tokens)} tokens of memory "
            f"would keep that to {format_percent(plan.delta)}."
        )
    else:
        yield f"{_NOTHING}: up to {format_number(recovers.rate_rps)} requests/s any backlog drains by itself."
    if 0 <= offered.headroom < 0.1:
        yield f"Headroom is only {format_percent(offered.headroom)}: a burst fills memory for long."


def _at_peak(varying: Peak, status: Status, recovery_rps: float) -> str | None:
    """Say what to do about the heaviest load of a schedule; None if nothing beyond what is done anyway."""
    period = format_seconds(varying.period_s)
    rate, limit = format_number(varying.offered_rps), format_number(varying.sustainable_rps)
    if varying.offered_rps > varying.sustainable_rps:
        replicas = math.ceil(varying.offered_rps / varying.sustainable_rps)
        return (
            f"At its peak the schedule offers {rate} requests/s where {limit} are sustainable: for "
            f"{format_seconds(varying.overloaded_s)} of every {period} a backlog grows. Serve that with at least "
            f"{replicas} replicas, or let it wait."
        )
    if status is Status.STABLE and varying.same_mix and varying.most_rps > recovery_rps:
        seconds = varying.course.time_above(recovery_rps / varying.most_rps * varying.course.peak)
        return (
            f"At its peak the schedule offers {rate} requests/s: for {format_seconds(seconds)} of every {period} more "
            f"than the {format_number(recovery_rps)} up to which a backlog is sure to drain."
        )
    return None


# ------------------------------------------------------------------------------------------ settings that were tried


def advice_actions(tried: tuple[Advice, ...], *, recovers: bool) -> tuple[str, ...]:
    """Write an action for each, best first; `recovers` says that the offered rate drains without any."""
    return tuple(
        f"{'Or set' if i else 'Set'} {' and '.join(map(_written, advice.settings))}: "
        f"{effect(advice, recovers=recovers)}{f' Needs {advice.needs_version}.' if advice.needs_version else ''}"
        for i, advice in enumerate(tried)
    )


def effect(advice: Advice, *, recovers: bool) -> str:
    """Say what trying it showed."""
    gains = f"{format_percent(advice.gain_backlogged, signed=True)} under a backlog"
    sustains = "the offered rate then drains" if advice.sustains_offered else "a backlog still does not drain"
    if recovers:
        sustains = "the offered rate drains without it"
    text = f"tried, {gains}; {sustains}"
    if advice.ttft_p95_s_without is not None and advice.ttft_p95_s_with is not None:
        before, after = format_seconds(advice.ttft_p95_s_without), format_seconds(advice.ttft_p95_s_with)
        text += f"; TTFT p95 at the offered rate {before} without, {after} with"
    return f"{text}."


def _written(setting: Setting) -> str:
    if setting.name == ADMISSION:
        return "admission = whole-prompt"
    value = format_seconds(setting.value) if setting.name == _SECONDS else format_number(setting.value)
    return f"{setting.name} = {value}"
