"""Whether a running service still does what its plan says: counters of its requests, each with what the plan allows.

A mean of n requests scatters by σ/√n. It is outside where it is further off than its tolerance and than three standard
errors. A window is long enough where 95 % of those with a drift Δ are outside: n ≥ ((3σ + 1.645σ')/Δ)² and
n ≥ (1.645σ'/(Δ - tolerance))², σ' with the drift; 620 cv² requests for lengths that drift by 20 % (new).
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from kvplan.errors import UsageError
from kvplan.gate.check import Outcome
from kvplan.ingest.metrics import ServerMetrics
from kvplan.model import RequestClass
from kvplan.model.lengths import Lengths
from kvplan.profile.reading import Profile
from kvplan.report.figures import Figures
from kvplan.study.goodput import at_rate

LEAST_REQUESTS = 100
DRIFT = 0.2  # relative, of a mean length, that a window must find
_ERRORS, _POWER, _HALF_WIDTH = 3.0, 1.645, 1.96  # standard errors
_LENGTH, _ITL, _AT_BATCH = 0.05, 0.15, 0.125  # relative tolerances
_HITS, _LOST_HITS = 0.1, 0.15  # tolerance, and what a window must find
_TIMES, _MORE = 3.0, 10.0  # preemptions: so many times as planned, and so many more


class Verdict(StrEnum):
    """How a figure stands to the plan."""

    INSIDE = "inside"
    OUTSIDE = "outside"
    OPEN = "not judged"


class Compared(NamedTuple):
    """A figure of the service, the plan's, and what is allowed; None where there is no such limit."""

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
        """Whether some figure is open for want of requests."""
        return any(f.verdict is Verdict.OPEN and f.needed > self.metrics.requests for f in self.figures)

    @property
    def outcome(self) -> Outcome:
        """Unusable where the window is too short, or no figure is judged; else failed where any is outside."""
        verdicts = {figure.verdict for figure in self.figures}
        if self.is_short or verdicts == {Verdict.OPEN}:
            return Outcome.UNUSABLE
        return Outcome.FAILED if Verdict.OUTSIDE in verdicts else Outcome.PASSED


def compare(profile: Profile, metrics: ServerMetrics) -> Drift:
    """Compare the counters of a service with its profile, at the rate of the service and for each of its replicas.

    Raises
    ------
    UsageError
        The profile lacks a part, or has prefill and decode apart, which count the same requests twice.
    """
    model, plan, fleet = replace(profile.model, schedule=None), profile.plan, profile.model.fleet
    if fleet is not None and fleet.is_split:
        raise UsageError(
            f"{profile.source}: prefill and decode apart; --metrics is about replicas that do both"
        )
    size = 1 if fleet is None else fleet.size
    replicas = metrics.engines / model.replica.ranks
    rate = metrics.requests / metrics.seconds / replicas if metrics.seconds else None
    there = Figures(at_rate(model, rate * size) if rate else model, plan)
    figures = [*_lengths(there, metrics), *_times(there, metrics, rate), *_hits(there, metrics)]
    figures += [_preemptions(there, metrics), _rate(Figures(model, plan), metrics, rate, size)]
    return Drift(metrics, replicas, rate, tuple(_judged(figure, metrics) for figure in figures))


def _judged(figure: Compared, metrics: ServerMetrics) -> Compared:
    """Leave a figure open that no counter tells, or that too few requests are inside of to be sure."""
    needed = max(figure.needed, LEAST_REQUESTS)
    if figure.measured is None and not figure.why:
        return figure._replace(why=f"{metrics.engine} exports no counter of it here")
    few = metrics.requests < LEAST_REQUESTS or figure.verdict is Verdict.INSIDE
    if metrics.requests < needed and few:
        return figure._replace(needed=needed, why=figure.why or f"{needed:,} requests are needed")
    return figure


class _Scatter(NamedTuple):
    """Standard deviations of a figure of one request, as planned and with the drift that is to be found."""

    planned: float
    drifted: float
    drift: float
    tolerance: float

    def width(self, requests: float) -> float:
        """Return how far off a mean of so many requests may be."""
        return max(self.tolerance, _ERRORS * self.planned / math.sqrt(max(requests, 1.0)))

    @property
    def needed(self) -> int:
        apart = (_ERRORS * self.planned + _POWER * self.drifted) / self.drift
        return math.ceil(max(apart, _POWER * self.drifted / (self.drift - self.tolerance)) ** 2)


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
        scatter = _Scatter(cv, (1 + DRIFT) * cv, DRIFT, _LENGTH)
        width = scatter.width(metrics.requests)
        ends = mean * max(1 - width, 0.0), mean * (1 + width)
        yield Compared(key, label, "tokens", measured, mean, *ends, scatter.needed)


def _square(law: Lengths, mean: float) -> float:
    return float(law.probabilities @ (law.values - mean) ** 2)


def _of_prompts(c: RequestClass, mean: float) -> float:
    """Return the variance of n prompts' mean about another, times n.

    Turns carry those before them: of sessions it is E[(Σ_j (s_j - mean))²]/E[turns].
    """
    if c.sessions is None:
        return _square(c.inputs, mean)
    some, turns = c.sessions, c.sessions.turns.values.astype(np.float64)
    first, user, decode = some.first, some.user, some.decode
    sums = turns * (some.shared + first.mean - mean) + turns * (turns - 1) / 2 * (user.mean + decode.mean)
    added = _square(user, user.mean) + _square(decode, decode.mean)
    scatter = turns**2 * _square(first, first.mean) + (turns - 1) * turns * (2 * turns - 1) / 6 * added
    return float(some.turns.probabilities @ (sums**2 + scatter)) / some.turns.mean


def _times(there: Figures, metrics: ServerMetrics, rate_rps: float | None) -> Iterator[Compared]:
    """Compare the time between tokens with runs at this rate, and with the timing at the batch that counters show.

    The first is what requests feel, and varies with the load. The second is the timing alone: its law at the mean
    batch, times what runs take longer than the law at theirs.
    """
    of_rate = Compared("itl_s", "Time between tokens", "s", metrics.itl_s)
    of_batch = Compared("itl_at_batch_s", "… in batches as large", "s", metrics.itl_s)
    model, itl = there.model, there.latency.itl_s.mean
    if not rate_rps or itl is None or metrics.itl_s is None or metrics.decoding_s is None:
        why = "" if metrics.itl_s is None else _no_figure(there) if rate_rps else "no rate to compare at"
        yield from (of_rate._replace(why=why), of_batch._replace(why=why))
        return
    mix, drafts, band = model.mix, model.drafts, model.measured.band or (1.0, 1.0)
    tokens = drafts.mean if drafts is not None and metrics.itl_of_tokens else 1.0
    context = mix.mean(mix.context) / mix.mean(mix.iterations)
    hits, prompts = _planned_hits(there) or 0.0, mix.mean(mix.prefill_tokens)

    def law(prompts_per_s: float, decoding: float, itl_s: float) -> float:
        return float(model.timing(decoding * context, prompts_per_s * itl_s, decoding))

    rate = model.total_rate_rps
    runs = itl / law(rate * prompts * (1 - hits), rate * mix.mean(mix.stages - 1) * itl, itl)
    longer = (metrics.mean_input or 0.0) / mix.mean(mix.input_tokens)
    found = hits if metrics.hit_ratio is None else metrics.hit_ratio
    decoding = metrics.decoding_s * rate_rps / metrics.requests
    now = law(rate_rps * longer * prompts * (1 - found), decoding, metrics.itl_s * tokens)
    error = _ERRORS * _error(there, there.latency.ci95.get("itl_s.mean")) / itl / math.sqrt(metrics.requests)
    for figure, planned, width in ((of_rate, itl, max(_ITL, error)), (of_batch, runs * now, _AT_BATCH)):
        least, most = max(min(1 - width, band[0]), 0.0), max(1 + width, band[1])
        planned /= tokens
        yield figure._replace(planned=planned, low=least * planned, high=most * planned)


def _no_figure(there: Figures) -> str:
    return there.latency.reason or "the plan has no such figure at this rate"


def _error(there: Figures, ends: tuple[float, float | None] | None) -> float:
    """Return the standard error of a mean of runs, times √n."""
    if ends is None or ends[1] is None:
        return 0.0
    return (ends[1] - ends[0]) / 2 / _HALF_WIDTH * math.sqrt(there.operating_point.requests)


def _planned_hits(there: Figures) -> float | None:
    """Return what a warm cache finds; of a fleet, what its router lets it find."""
    of_runs, cache = there.operating_point.hit_ratio, there.prefix_cache
    if there.whole.fleet is not None and of_runs is not None:
        return of_runs.value
    return None if cache is None else cache.hit_ratio


def _hits(there: Figures, metrics: ServerMetrics) -> Iterator[Compared]:
    if not there.model.finds_prefixes:
        return
    planned, of_runs = _planned_hits(there), there.operating_point.hit_ratio
    figure = Compared("hit_ratio", "Prefix cache hits", "%", metrics.hit_ratio, planned)
    if planned is None:
        yield figure._replace(why="no warm cache lasts at this rate")
        return
    error = 0.0 if of_runs is None else _error(there, of_runs.interval)
    scatter = _Scatter(error, error, _LOST_HITS, _HITS)
    yield figure._replace(low=max(planned - scatter.width(metrics.requests), 0.0), needed=scatter.needed)


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
    chance = 1 + _ERRORS * steady.whole.arrivals.cv / math.sqrt(max(metrics.requests, 1.0))
    return figure._replace(high=most_rps(steady) / size * chance)


def most_rps(steady: Figures) -> float:
    """Return the goodput of all replicas, or what they sustain where there are no objectives."""
    if steady.goodput is not None:
        return steady.goodput.rate_rps
    cache, size = steady.prefix_cache, 1 if steady.whole.fleet is None else steady.whole.fleet.size
    return size * ((cache and cache.sustainable_rps.good) or steady.load.sustainable_rps)
