"""The verdict in words: a sentence with the numbers, and what to do."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from kvplan.analysis.concurrency import engine_never_evicts, never_grows
from kvplan.analysis.equilibrium import per_request, saturation
from kvplan.model import ServingModel
from kvplan.report.blocks import enough_memory
from kvplan.report.figures import Figures
from kvplan.report.keys import SCREENS, WORDS
from kvplan.report.ledger import Ledger
from kvplan.report.wording import sentence, sentences
from kvplan.report.words import Status
from kvplan.study.advice import ADMISSION, BUDGETS, CAP, GATEWAY, THRESHOLDS, Advice
from kvplan.study.headroom import Headroom
from kvplan.study.warm_cache import Setting
from kvplan.units import format_number, format_percent, format_seconds

_SECONDS = "shed_after"  # a setting in seconds


def summary(figures: Figures) -> str:
    """Say the verdict in a sentence with the numbers, and the reason where a collapsed replica may stay collapsed."""
    words = sentence(SCREENS["verdict"], _ledger(figures, _beyond(figures)))
    assert words is not None
    fleet = figures.whole.fleet
    if fleet is None:
        return words
    which = "The one replica" if fleet.size == 1 else f"One of {fleet.size} replicas"
    return f"{which}, prefill and decode together: {words}"


def _ledger(figures: Figures, about: Iterable[tuple[str, Any]]) -> Ledger:
    return Ledger(figures, {f"about.{name}": value for name, value in about})


def _beyond(figures: Figures) -> Iterator[tuple[str, Any]]:
    """Yield what is offered, with the users who ask, and by how much it is too much."""
    offered, cache = figures.load, figures.prefix_cache
    rate, whose = offered.offered_rps, ""
    if cache is not None and cache.users:
        whose, point = f" of {format_number(cache.users)} users", figures.operating_point
        rate = rate if point.served is None else point.served.value / point.replicas
    yield "offered", f"{format_number(rate)} requests/s{whose}"
    yield "beyond_sustainable", offered.offered_rps / offered.sustainable_rps - 1
    if cache is not None and cache.sustainable_rps.good is not None:
        yield "beyond_good", offered.offered_rps / cache.sustainable_rps.good - 1
    if figures.recovers is not None and figures.drain.runs_s:
        yield "late", len(figures.drain.runs_s) - figures.drain.within(figures.recovers.within_s)
        if figures.drain.seconds is not None:
            yield "over_after", format_seconds(figures.drain.seconds)


def headroom_ends(headroom: Headroom | None) -> str | None:
    """Say what is missed if the demand grows by more."""
    if headroom is None or headroom.at_least:
        return None
    missed = f"{headroom.limit.replace('_s.', ' ')} is missed"
    return str(WORDS["limit"].get(headroom.limit, missed))


def requests_in_memory(model: ServingModel) -> float:
    """Compute the mean number of running requests when memory is full, n*·n."""
    return saturation(model).admissions_per_iteration * per_request(model).iterations


def actions(figures: Figures, *, trial: bool = False) -> tuple[str, ...]:
    """Say what to do, most important first, each in a few lines of the first screen; `trial`: with what runs showed."""
    status, cache = figures.status, figures.prefix_cache
    may_collapse = cache is not None and cache.collapse_possible and status is Status.NEEDS_CAP
    ledger = _ledger(figures, _about(figures, may_collapse=bool(may_collapse)))

    recovers = status is Status.STABLE
    worth = tuple(each for each in figures.advice if not recovers or _shortens_waits(each))
    tried = [*advice_actions(worth, recovers=recovers)]
    tried += capping(figures) if trial and not recovers else []
    tried += sentences("against_collapse", ledger) if may_collapse else []
    urgent = sentences("urgent", ledger)
    usual = sentences(
        "usual_actions", _ledger(figures, (*_about(figures, may_collapse=False), ("tried", bool(tried))))
    )
    nothing = sentence(SCREENS["nothing_to_do"], ledger) if status is Status.STABLE else None
    if nothing is not None and not urgent:  # one setting shows what there is to gain
        return (nothing, *tried[:1], *usual)
    return (*urgent, *tried, *usual)


def _about(figures: Figures, *, may_collapse: bool) -> Iterator[tuple[str, Any]]:
    """Yield what actions say beside figures."""
    yield "headroom_ends", headroom_ends(figures.headroom)
    status, offered, varying = figures.status, figures.load, figures.peak
    replicas = math.ceil(1 / (offered.load_factor_max or 1.0))
    yield "replicas", replicas
    if varying is not None:
        yield "replicas_at_peak", math.ceil(varying.offered_rps / varying.sustainable_rps)
        rate = figures.recovery.rate_rps or 0.0
        if status is Status.STABLE and varying.same_mix and varying.most_rps > rate:
            yield (
                "beyond_recovery_s",
                varying.course.time_above(rate / varying.most_rps * varying.course.peak),
            )
    if may_collapse:
        yield "replicas_whose_caches_last", replicas if replicas > 1 else None
        yield "has_sessions", any(c.sessions is not None for c in figures.model.classes)
        yield "enough_memory", enough_memory(figures.model)
    if status is Status.STABLE:
        never, grows = engine_never_evicts(figures.cold), not never_grows(figures.cold)
        likely = figures.safety_buffer.overflow_probability_horizon or 0.0
        yield "never_preempts", never
        yield "never_grows", not grows
        # a cache holds less than it is for
        plain = not figures.model.finds_prefixes
        yield "expects_preemptions", not never and grows and plain and likely > figures.plan.delta


# ------------------------------------------------------------------------------------------ settings that were tried


def advice_actions(tried: tuple[Advice, ...], *, recovers: bool) -> tuple[str, ...]:
    """Write an action for each, best first; `recovers` says that the offered rate drains without any."""
    return tuple(
        f"{f'Or {to_do(advice)}' if i else to_do(advice)[:1].upper() + to_do(advice)[1:]}: "
        f"{effect(advice, recovers=recovers)}{f' Needs {advice.needs_version}.' if advice.needs_version else ''}"
        for i, advice in enumerate(tried)
    )


def capping(figures: Figures) -> Iterator[str]:
    """Say which cap on conversations in flight ends a collapse, where one does."""
    if (capped := figures.session_cap) is not None:
        without, within = format_seconds(capped.ttft_s_without), format_seconds(capped.ttft_s_with)
        yield (
            f"Cap conversations in flight at {capped.cap:,} (policy session-cap): tried from the collapsed state, "
            f"{format_percent(capped.gain, signed=True)} with a warm cache; in the end TTFT mean {without} without, "
            f"{within} with."
        )


def _shortens_waits(advice: Advice) -> bool:
    """Tell whether first tokens come sooner by a twentieth at the offered rate, which a gain under a backlog is not."""
    before, after = advice.ttft_p95_s_without, advice.ttft_p95_s_with
    return before is not None and after is not None and after < 0.95 * before


def to_do(advice: Advice) -> str:
    """Say what to set, or at how much to hold requests back before they are admitted."""
    values = {
        name: ", ".join(format_number(s.value) for s in advice.settings if s.name == name)
        for name in (CAP, GATEWAY, THRESHOLDS, BUDGETS)
    }
    if values[GATEWAY]:
        cap = f"{values[CAP]} admissions an iteration ({CAP})" if values[CAP] else "before it has a backlog"
        return f"cap the gateway at {values[GATEWAY]} requests/s a replica, {cap}"
    if values[THRESHOLDS]:
        return f"admit in groups of {values[THRESHOLDS]} ({THRESHOLDS})"
    if values[BUDGETS]:
        return f"admit at most {values[BUDGETS]} an iteration, by class ({BUDGETS})"
    return f"set {' and '.join(map(_written, advice.settings))}"


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
