"""Where classes that were fitted to a trace come from, and what they distort, in sentences."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from kvplan.ingest.facts import Fact, Part, class_tables, facts, numeral
from kvplan.ingest.lengths import BINS, POINTS
from kvplan.ingest.trace.bursts import LEAST, MOST, Bursts
from kvplan.ingest.trace.fit import SLOTS, Distortion, bursts, describe, moment_errors
from kvplan.ingest.trace.prefixes import Prefixes
from kvplan.ingest.trace.traffic import Traffic
from kvplan.model import Knowledge, Origin, RequestClass, ServingModel
from kvplan.model.gaps import Quantiles
from kvplan.profile.writing import value_text
from kvplan.units import format_number, format_percent, format_rate, format_seconds, format_tokens
from kvplan.version import __version__

_DATED_S = 1e9  # a clock that shows more than this counts from 1970


def traffic_parts(
    traffic: Traffic,
    classes: Sequence[RequestClass],
    like: ServingModel | None,
    *,
    distortion: Distortion | None = None,
    reference: str | None = None,
) -> list[Part]:
    """Make classes fitted to traffic, with [workload] and [prefix].

    Parameters
    ----------
    like
        Replica and timing, by which it is told how arrivals cluster while a request is served; None: not known, and
        arrivals are replayed.
    reference
        How the profile refers to the trace where arrivals have to be replayed; None: it can not.
    """
    told = like is not None or traffic.start_s is None  # a description needs no replica
    burst = bursts(traffic, tuple(classes), like or SLOTS) if told else None
    origin = _origin(traffic, burst is not None and not burst.enough and reference is None)
    notes = list(traffic.notes)
    if traffic.prefixes is not None:
        notes.append(hit_note(traffic.prefixes, None if like is None else like.replica.memory_tokens))
    if distortion is not None:
        notes.append(describe(distortion))
    workload: dict[str, Any] = {} if burst is None else workload_table(burst, reference)
    if not told:
        notes.append("how arrivals cluster is told once [gpu] and [timing] are known; they are replayed")
        workload = {} if reference is None else {"trace": reference}
    lengths = f"{format_tokens(traffic.mean_input)} tokens in, {format_tokens(traffic.mean_decode)} out"
    part = Part(
        "classes",
        {"classes": Fact(class_tables(classes), origin)} | facts("workload", workload, origin),
        traffic.path.name,
        traffic.format,
        f"{format_tokens(round(traffic.count.sum()))} requests, {format_rate(traffic.rate_rps)}, {lengths}",
        (
            f"Classes and rates: fitted by kvplan {__version__} to {traffic.path} ({traffic.format}, "
            f"{format_tokens(traffic.rows)} rows).",
            f"sha256 {traffic.sha256}",
            _when(traffic),
            f"Lengths: {lengths}, on average.",
            _classes(traffic, classes, like, distortion),
            *arrivals_notes(burst, reference),
        ),
        tuple(notes),
    )
    return [
        part,
        *([prefix_part(traffic.prefixes, origin)] if traffic.prefixes and traffic.prefixes.curve else []),
    ]


def arrivals_notes(bursts: Bursts | None, reference: str | None) -> Iterable[str]:
    """Say how much of the variance of arrivals a schedule and cv explain, and what follows."""
    if bursts is None:
        return
    steps = bursts.course.factors.size
    schedule = f"a schedule of {steps} steps" if steps > 1 else "a constant rate"
    if bursts.scale_s is None:
        yield f"Split of arrivals: {schedule} and gaps of cv {bursts.cv:.3g}, as the windows are described."
        return
    yield (
        f"Split of arrivals: {schedule} (slow, in steps of ten stays and more that differ by four standard errors) and "
        f"gamma gaps of cv {bursts.cv:.3g} (clusters, at {format_seconds(bursts.scale_s)}, the time scale of a stay)."
    )
    if not bursts.windows:
        yield "The trace is too short to tell how much of the variance of counts they explain."
        return
    shares = ", ".join(
        f"{format_percent(window.share, 2)} in {format_seconds(window.window_s)}" for window in bursts.windows
    )
    yield f"They explain, of the variance of counts in windows: {shares}."
    limits = f"{format_percent(LEAST)} to {format_percent(MOST)}, but for chance"
    if bursts.enough:
        yield f"That is enough ({limits}): commands simulate these arrivals."
    elif reference is not None:
        yield f"That is not enough ({limits}): commands replay the trace, at the rate of the classes."
    else:
        yield f"That is not enough ({limits}): save the trace, and refer to it by trace in [workload]."


def workload_table(bursts: Bursts, reference: str | None) -> dict[str, Any]:
    """Make [workload]: cv, schedule, and the trace where these explain too little; empty for Poisson arrivals.

    >>> import numpy as np
    >>> from kvplan.model.schedule import StepCourse
    >>> course = StepCourse(20.0, np.array([0.0, 5.0]), np.array([0.4, 1.2]))
    >>> workload_table(Bursts(course, 2.0, 5.0, ()), None)
    {'cv': 2, 'period': 20, 'schedule': [{'at': 0, 'factor': 0.4}, {'at': 5, 'factor': 1.2}]}
    """
    table: dict[str, Any] = {} if bursts.cv == 1 else {"cv": numeral(bursts.cv, 4)}
    if not bursts.enough and reference is not None:
        table["trace"] = reference
    if (course := bursts.course).factors.size > 1:
        steps = zip(course.starts_s.tolist(), course.factors.tolist(), strict=True)
        table["period"] = numeral(course.period_s, 12)
        table["schedule"] = [{"at": numeral(at, 12), "factor": numeral(factor, 6)} for at, factor in steps]
    return table


def prefix_part(prefixes: Prefixes, origin: Origin) -> Part:
    """Make [prefix]: with where its curve comes from, and what to write in place of it."""
    whose = "known by hashes" if prefixes.hashed else "known by their conversations"
    about = [
        "hit_curve: share of the prompt tokens that a prefix cache of so many tokens, in use or not, finds. From LRU "
        f"stack distances of {prefixes.requests:,} requests in order of arrival, in blocks of {prefixes.block_tokens} "
        f"tokens {whose}."
    ]
    if not prefixes.complete:
        about.append("They are the first of the trace; there was no room for more.")
    if not prefixes.hashed:
        about.append(
            "Estimated: a turn is taken to repeat all that came before it, wherever its prompt is long enough."
        )
    if instead := caching(prefixes):
        about.append(
            "To tell what other iteration times do, put into each class, in place of this table (of what is shared "
            "what fits into its input; gaps are between arrivals):"
        )
        about += [f"  {key} = {value_text(value)}" for key, value in instead.items()]
    curve = {"hit_curve": [list(point) for point in prefixes.curve]}
    return Part("prefix", facts("prefix", curve, origin), about=tuple(about))


def caching(prefixes: Prefixes) -> dict[str, Any]:
    """Keys of a class: what its requests share, and what is asked for again after gaps known by quantiles."""
    keys: dict[str, Any] = {}
    if prefixes.shared:
        keys["shared"] = [{"tokens": prompt.tokens, "weight": prompt.weight} for prompt in prefixes.shared]
    if (reuse := prefixes.reuse) is not None and isinstance(reuse.gap, Quantiles):
        gap = {"law": "quantiles", "values": [f"{value:g} s" for value in reuse.gap.values_s]}
        begins = "arrival" if reuse.from_arrival else "completion"
        keys["reuse"] = {"tokens": reuse.tokens, "share": reuse.share, "gap": gap, "from": begins}
    return keys


def hit_note(prefixes: Prefixes, memory_tokens: int | None) -> str:
    """Say in one sentence what a prefix cache finds.

    >>> hit_note(Prefixes(((1000, 0.2), (3000, 0.3)), (), None, 9, True, 16, True), 2000)
    'a prefix cache finds 25% of the prompt tokens in 2,000 tokens of memory, 30% in any that is large enough (3,000)'
    """
    if not prefixes.curve:
        return "no prompt begins as an earlier one did: a prefix cache finds nothing"
    size = format_tokens(prefixes.curve[-1][0])
    reusable = format_percent(prefixes.reusable)
    if memory_tokens is None:
        return f"a prefix cache finds {reusable} of the prompt tokens in memory that is large enough ({size})"
    return (
        f"a prefix cache finds {format_percent(prefixes.found_by(memory_tokens))} of the prompt tokens in "
        f"{format_tokens(memory_tokens)} tokens of memory, {reusable} in any that is large enough ({size})"
    )


def _origin(traffic: Traffic, unexplained: bool) -> Origin:
    begin = _begin(traffic)
    assumed = traffic.prefixes is not None and traffic.prefixes.curve and not traffic.prefixes.hashed
    basis = Knowledge.ESTIMATED if assumed or unexplained or traffic.assumed else Knowledge.MEASURED
    source = (
        f"{traffic.path.name}, more bursts than cv and schedule explain" if unexplained else traffic.path.name
    )
    return Origin(basis, source, None if begin is None else begin.date())


def _begin(traffic: Traffic) -> datetime | None:
    """Say when requests began, where the clock of the trace shows dates."""
    if traffic.start_s is None or not _DATED_S < traffic.start_s < 1e11:
        return None
    return datetime.fromtimestamp(traffic.start_s, UTC)


def _classes(
    traffic: Traffic,
    classes: Sequence[RequestClass],
    like: ServingModel | None,
    distortion: Distortion | None,
) -> str:
    if distortion is not None:
        return "Each class: one decode length, the mean of those it stands for."
    footprint, variance = moment_errors(traffic, tuple(classes), like or SLOTS)
    ranges = f"{len(classes)} ranges" if len(classes) > 1 else "one range"
    return (
        f"Each class: the mean of a range of input lengths ({ranges}, at most {BINS}), and the decode lengths "
        f"seen with them, gathered into at most {POINTS}. Error of the mean footprint: {_error(footprint)}; of the "
        f"variance of KV usage: {_error(variance)}."
    )


def _error(relative: float) -> str:
    return format_percent(relative, 2, signed=True) if abs(relative) >= 1e-4 else "below 0.01%"


def _when(traffic: Traffic) -> str:
    assert traffic.span_s is not None
    span = format_number(traffic.span_s) if traffic.span_s < 1000 else format_tokens(traffic.span_s)
    rate = f"{span} s, {format_rate(traffic.rate_rps)}"
    begin = _begin(traffic)
    if begin is None:
        return f"Time: {rate}."
    end = begin + timedelta(seconds=traffic.span_s)
    return f"Time: {begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC, {rate}."
