"""A running service against its plan: counters of its requests, each with what the plan allows.

A mean length of n requests scatters by σ/√n. It is outside where it is further off than its tolerance and than three
standard errors. A window is long enough where 95 % of those with lengths that drift by a share δ are outside:
n ≥ ((3 + 1.645(1 + δ))cv/δ)², 620 cv² for 20 % (new); and where it is ten times as long as requests stay.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from kvplan.engine import EngineName
from kvplan.errors import UsageError
from kvplan.gate.check import Outcome
from kvplan.ingest.metrics import ServerMetrics
from kvplan.model import RequestClass
from kvplan.model.context import sample
from kvplan.model.lengths import Lengths
from kvplan.profile.reading import Profile
from kvplan.report.figures import Figures
from kvplan.study.goodput import at_rate

LEAST_REQUESTS = 100
DRIFT = 0.2  # relative, of a mean length, that a window must find
_ERRORS, _POWER, _HALF_WIDTH = 3.0, 1.645, 1.96  # standard errors
_LENGTH, _ITL, _AT_BATCH = 0.05, 0.15, 0.125  # relative tolerances
_HITS = 0.1
_STAYS = 10.0  # of requests, end to end: a window counts those that end in it
_TIMES, _MORE = 3.0, 10.0  # preemptions: so many times as planned, and so many more


class Verdict(StrEnum):
    """Verdict on a figure of the service."""

    INSIDE = "inside"
    OUTSIDE = "outside"
    OPEN = "not judged"


class Compared(NamedTuple):
    """A figure of the service, the plan's, and the allowed; None where there is no such limit."""

    key: str
    label: str
    unit: str
    measured: float | None
    planned: float | None = None
    low: float | None = None
    high: float | None = None
    needed: int = 0  # requests that a window must have
    why: str = ""  # it is not judged

    @property
    def verdict(self) -> Verdict:
        """Open where something says why."""
        if self.why or self.measured is None:
            return Verdict.OPEN
        high = math.inf if self.high is None else self.high
        return Verdict.INSIDE if (self.low or 0.0) <= self.measured <= high else Verdict.OUTSIDE


_SECONDARY = {"hit_ratio", "preemptions", "rate_rps"}


class Drift(NamedTuple):
    """A service beside its plan; figures and rate are those of one of so many replicas."""

    metrics: ServerMetrics
    replicas: float
    rate_rps: float | None  # None: no time is known
    figures: tuple[Compared, ...]

    @property
    def needed(self) -> int:
        """Requests of all replicas that a window must have."""
        return max(LEAST_REQUESTS, *(figure.needed for figure in self.figures))

    @property
    def needed_s(self) -> float | None:
        """Seconds in which nearly always so many come at this rate; None where that is not known."""
        enough = self.needed + _ERRORS * math.sqrt(self.needed)
        return enough / (self.rate_rps * self.replicas) if self.rate_rps else None

    @property
    def is_short(self) -> bool:
        """Tell whether a figure is open for want of requests."""
        open_ = (figure.needed for figure in self.figures if figure.verdict is Verdict.OPEN)
        return max(open_, default=0) > self.metrics.requests

    @property
    def outcome(self) -> Outcome:
        """Failed where any figure is outside; else unusable where the window is too short, or too little is judged.

        A service whose counters show neither lengths nor times is not compared with its plan by its rate alone.
        """
        if any(figure.verdict is Verdict.OUTSIDE for figure in self.figures):
            return Outcome.FAILED
        judged = {figure.key for figure in self.figures if figure.verdict is not Verdict.OPEN}
        return Outcome.UNUSABLE if self.is_short or judged <= _SECONDARY else Outcome.PASSED


def compare(profile: Profile, metrics: ServerMetrics) -> Drift:
    """Compare the counters of a service with its profile, at the rate of the service and for each of its replicas.

    Raises
    ------
    UsageError
        No request ended; the profile names another engine; or prefill and decode are apart, and count the same
        requests twice.
    """
    model, plan, fleet = replace(profile.model, schedule=None), profile.plan, profile.model.fleet
    if fleet is not None and fleet.is_split:
        raise UsageError(
            f"{profile.source}: prefill and decode apart; --metrics is about replicas that do both"
        )
    served = metrics.engine.lower().replace("tensorrt-llm", EngineName.TRTLLM)
    if model.engine is not None and served in set(EngineName) - {model.engine.name}:
        raise UsageError(
            f"{metrics.source}: counters of {metrics.engine}; [engine] of {profile.source} is {model.engine.name}"
        )
    if not metrics.requests:
        raise UsageError(f"{metrics.source}: no request ended in this time; there is nothing to compare")
    size = 1 if fleet is None else fleet.size
    replicas = metrics.engines / model.replica.ranks
    rate = metrics.requests / metrics.seconds / replicas if metrics.seconds else None
    there = Figures(at_rate(model, rate * size) if rate else model, plan)
    figures = [*_lengths(there, metrics), *_times(there, metrics, rate), *_hits(there, metrics)]
    figures += [_preemptions(there, metrics), _rate(Figures(model, plan), metrics, rate, size)]
    return Drift(metrics, replicas, rate, tuple(_judged(figure, metrics) for figure in figures))


def _judged(figure: Compared, metrics: ServerMetrics) -> Compared:
    """Leave a figure open if no counter tells it, or if it is inside by too few requests to be sure."""
    needed = max(figure.needed, LEAST_REQUESTS)
    if figure.measured is None and not figure.why:
        return figure._replace(why=f"{metrics.engine} exports no counter of it here")
    few = metrics.requests < LEAST_REQUESTS or figure.verdict is Verdict.INSIDE
    if metrics.requests < needed and few:
        return figure._replace(needed=needed, why=figure.why or "the window is too short")
    return figure


def _lengths(there: Figures, metrics: ServerMetrics) -> Iterator[Compared]:
    """Compare mean lengths with the laws of the classes."""
    mix, model = there.model.mix, there.model
    means = mix.mean(mix.input_tokens), mix.mean(mix.decode_tokens)
    inputs = [_of_prompts(c, means[0]) for c in model.classes]
    outputs = [_square(c.outputs, means[1]) for c in model.classes]
    for key, label, measured, mean, squares in (
        ("input_tokens", "Input tokens", metrics.mean_input, means[0], inputs),
        ("output_tokens", "Output tokens", metrics.mean_decode, means[1], outputs),
    ):
        cv = math.sqrt(model.class_rates_rps @ squares / model.total_rate_rps) / mean if mean else 0.0
        width = max(_LENGTH, _ERRORS * cv / math.sqrt(metrics.requests))
        needed = math.ceil(((_ERRORS + _POWER * (1 + DRIFT)) * cv / DRIFT) ** 2)
        ends = max(1 - width, 0.0) * mean, (1 + width) * mean
        yield Compared(key, label, "tokens", measured, mean, *ends, needed)


def _square(law: Lengths, mean: float) -> float:
    return float(law.probabilities @ (law.values - mean) ** 2)


def _of_prompts(c: RequestClass, mean: float) -> float:
    """Return the variance of n prompts' mean about another, times n.

    Turns carry those before them: of sessions it is E[(Σ_j (s_j - mean))²]/E[turns].
    """
    if c.sessions is None:
        return _square(c.inputs, mean)
    if c.sessions.limit is not None:
        session, inputs, *_ = sample(c.sessions)
        return float((np.bincount(session, inputs - mean) ** 2).sum()) / inputs.size
    some, turns = c.sessions, c.sessions.turns.values.astype(np.float64)
    first, grown = some.first, sum(law.mean for law in some.grows)
    sums = turns * (some.shared + first.mean - mean) + turns * (turns - 1) / 2 * grown
    added = sum(_square(law, law.mean) for law in some.grows)
    scatter = turns**2 * _square(first, first.mean) + (turns - 1) * turns * (2 * turns - 1) / 6 * added
    return float(some.turns.probabilities @ (sums**2 + scatter)) / some.turns.mean


def _times(there: Figures, metrics: ServerMetrics, rate_rps: float | None) -> Iterator[Compared]:
    """Compare the time between tokens with runs at this rate, and with the timing at the batch that counters show.

    Requests feel the first, which varies with the load. The second is the timing alone: its law at the mean batch,
    times the ratio of runs to the law at their batch.
    """
    of_rate = Compared("itl_s", "Time between tokens", "s", metrics.itl_s)
    of_batch = Compared("itl_at_batch_s", "Iterations at this batch", "s", metrics.itl_s)
    model, itl = there.model, there.latency.itl_s.mean
    if not rate_rps or itl is None or metrics.itl_s is None or metrics.decoding_s is None:
        why = "" if metrics.itl_s is None else _no_figure(there) if rate_rps else "no rate to compare at"
        yield from (of_rate._replace(why=why), of_batch._replace(why=why))
        return
    mix, drafts, band = model.mix, model.drafts, model.measured.band or (1.0, 1.0)
    tokens = drafts.mean if drafts is not None and metrics.itl_of_tokens else 1.0
    context = mix.mean(mix.context) / mix.mean(mix.iterations)
    hits, prompts = _planned_hits(there) or 0.0, mix.mean(mix.prefill_tokens)
    pairs = mix.mean(mix.prefill_pairs) / max(prompts, 1.0)  # of a prompt's token

    def law(prompts_per_s: float, decoding: float, itl_s: float) -> float:
        prefill = prompts_per_s * itl_s
        return float(model.timing(decoding * context, prefill, decoding, prefill * pairs))

    rate = model.total_rate_rps
    runs = itl / law(rate * prompts * (1 - hits), rate * mix.mean(mix.stages - 1) * itl, itl)
    longer = (metrics.mean_input or 0.0) / mix.mean(mix.input_tokens)
    seen_hits = hits if metrics.hit_ratio is None else metrics.hit_ratio
    decoding = metrics.decoding_s * rate_rps / metrics.requests
    now = law(rate_rps * longer * prompts * (1 - seen_hits), decoding, metrics.itl_s * tokens)
    low, high = there.latency.ci95.get("itl_s.mean", (itl, itl))
    error = (
        ((high or low) - low)
        / 2
        / _HALF_WIDTH
        / itl
        * math.sqrt(there.operating_point.requests / metrics.requests)
    )
    needed = math.ceil(
        _STAYS * metrics.requests / (metrics.seconds or 1.0) * (there.latency.e2e_s.mean or 0.0)
    )
    for figure, planned, width in (
        (of_rate, itl, max(_ITL, _ERRORS * error)),
        (of_batch, runs * now, _AT_BATCH),
    ):
        least, most = max(min(1 - width, band[0]), 0.0), max(1 + width, band[1])
        planned /= tokens
        yield figure._replace(planned=planned, low=least * planned, high=most * planned, needed=needed)


def _no_figure(there: Figures) -> str:
    return there.latency.reason or "the plan has no such figure at this rate"


def _planned_hits(there: Figures) -> float | None:
    """Return the hits of a warm cache; of a fleet, those that its router allows."""
    of_runs, cache = there.operating_point.hit_ratio, there.prefix_cache
    return (
        cache.hit_ratio if cache is not None and (there.whole.fleet is None or of_runs is None) else of_runs
    )


def _hits(there: Figures, metrics: ServerMetrics) -> Iterator[Compared]:
    if there.model.finds_prefixes:
        planned = _planned_hits(there)
        least = None if planned is None else max(planned - _HITS, 0.0)
        why = "no warm cache lasts at this rate" if planned is None else ""
        yield Compared("hit_ratio", "Prefix cache hits", "%", metrics.hit_ratio, planned, least, why=why)


def _preemptions(there: Figures, metrics: ServerMetrics) -> Compared:
    figure = Compared("preemptions", "Preemptions", "", metrics.preemptions)
    if there.latency.preemptions_per_request is None:
        return figure._replace(why=_no_figure(there))
    planned = there.latency.preemptions_per_request * metrics.requests
    return figure._replace(planned=planned, high=max(_TIMES * planned, planned + _MORE))


def _rate(steady: Figures, metrics: ServerMetrics, rate_rps: float | None, size: int) -> Compared:
    """Compare the rate with the goodput, as closely as so many arrivals tell it."""
    figure = Compared("rate_rps", "Requests", "requests/s", rate_rps, steady.model.total_rate_rps)
    if rate_rps is None:
        return figure._replace(why="no time, so no rate")
    chance = 1 + _ERRORS * steady.whole.arrivals.cv / math.sqrt(metrics.requests)
    return figure._replace(high=most_rps(steady) / size * chance)


def most_rps(steady: Figures) -> float:
    """Return the goodput of all replicas, or their sustainable rate without objectives."""
    if steady.goodput is not None:
        return steady.goodput.rate_rps
    cache, size = steady.prefix_cache, 1 if steady.whole.fleet is None else steady.whole.fleet.size
    return size * ((cache and cache.sustainable_rps.good) or steady.load.sustainable_rps)
