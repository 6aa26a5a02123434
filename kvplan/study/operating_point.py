"""Latency, memory and queue of a profile at its own rates, measured: the same figures in every command.

Runs are of what the profile says: its arrivals, engine, sessions, prefix cache, drafts, layers, fleet, schedule or
trace. They are made in rounds of two with seeds of their own, each round twice as long as the one before, until the
figures are known well enough or the work is used up. Work is counted, not timed, so that the same profile gives the
same bytes everywhere.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from kvplan.analysis.cached_equilibrium import users_of, with_cold_cache
from kvplan.analysis.equilibrium import per_request, sustainable_rate
from kvplan.analysis.fleet import FleetFigures, JoinedFleet, SplitFleet, one_replica, winner
from kvplan.analysis.wait import Overload
from kvplan.analysis.worst_window import at_rates
from kvplan.errors import UsageError
from kvplan.model import Plan, ServingModel
from kvplan.simulation.estimates import FIGURES, QUANTILES, Estimate, Trend, together, trend
from kvplan.simulation.experiments.load import Load, generate
from kvplan.simulation.experiments.runner import Job, at_once
from kvplan.simulation.initial_state import Spans
from kvplan.simulation.metrics import MAY_GROW
from kvplan.simulation.policies import engine_settings
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.state import Span
from kvplan.study.sample import OVER_TIME, Sample
from kvplan.study.windows import BATCHES, LATENCIES, Window, life_s, typical_iteration_s, warm_up_s, window

# counted work of all runs; of the other way of a fleet, of which means are told; of a run with WAIT thresholds
BUDGET_S, _OTHER_S, _WAIT_S = 1.0, 0.5, 0.1
_MOST_DRAWN = 500_000  # requests of users, who are drawn all that they could send
RUNS = 2  # of a round
_REQUESTS, _FEW_REQUESTS = 2_500, 300  # in the first round; few where many would take an eighth of the budget
_CUT = 0.2  # of the window, before it, at least
_IN_A_BATCH = 2.0  # iterations, at least: a batch in which none begins sees no queue
_PARTS = 24  # of a day
_MOST_IN_PARTS = 20  # periods of a run: each batch takes 200 kB
_PARTS_S = (86_400.0, 3_600.0, 600.0)  # of a schedule that is too long
_MOST_REQUESTS, _MOST_OF_PERIOD = 2_000_000, 1_000_000  # of a run; of a period that is run as a whole
_MOST_SPLIT = 400_000  # of a run whose prefill and decode replicas both keep a row for every request
_MANY_REPLICAS = 32
_MEETING = 1e-4  # share of requests that meet another, so few that latencies are those of each alone
_BEYOND = 1 + 1e-6  # a little more than to the last completion
_AGREE = 0.01  # relative, of rates
_FAR = 1.5  # of what is sustainable, from which a run is not needed to say that the queue grows
_GOLDEN = (math.sqrt(5) - 1) / 2
_REQUEST_S, _ITERATION_S = 1e-6, 20e-9  # counted
_DRAFTS, _LAYERS, _SGLANG = 8.0, 3.0, 3.0  # times as much work
_LAYERS_TOKENS = 100.0  # of answers, that take a request of layers of several kinds another time as much
_WIDTH, _TAIL_WIDTH = 0.1, 0.2  # relative, of intervals; of p99
_OF_E2E = 0.01  # half width of a mean, of the mean E2E
_SHARES = {
    "p50": 0.01,
    "p90": 0.01,
    "p95": 0.005,
    "p99": 0.002,
}  # half widths of the shares below percentiles


class Status(StrEnum):
    """State of a replica at these rates."""

    STEADY = "steady"
    GROWING = "growing"
    UNDECIDED = "undecided"
    UNSETTLED = "unsettled"


class Observation(NamedTuple):
    """Sample of runs, and their judgement of the queue."""

    sample: Sample
    trend: Trend
    windows: tuple[Window, ...]
    work_s: float
    is_replay: bool = False  # of a trace: nobody knows how it would have come otherwise


class Distribution(NamedTuple):
    """Seconds; None where there is none. Percentiles as `numpy.quantile` has them; those of ITL to 0.2 %."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


class ClassLatency(NamedTuple):
    """Latencies of the requests of a class."""

    name: str
    ttft_s: Distribution
    tpot_s: Distribution
    e2e_s: Distribution


class FlatRange(NamedTuple):
    """A percentile that sits on a cliff: it moves from one end to the other for a per cent of the requests."""

    key: str
    low_s: float
    high_s: float


class WorstPart(NamedTuple):
    """The 24th part of a schedule's period, or of a trace, in which requests wait longest."""

    begin_s: float
    end_s: float
    ttft_s: Distribution
    itl_s: Distribution
    tpot_s: Distribution
    e2e_s: Distribution


class Latency(NamedTuple):
    """The `latency` block of a report, whole fleet and all classes; times in seconds.

    `ci95` has an interval for every figure, by key, whose upper end is None where the runs do not show it; figures of a
    trace have none. `running`, `waiting` and `kv_tokens_mean` are means over time.
    """

    status: Status
    reason: str | None = None
    ttft_s: Distribution = Distribution()
    itl_s: Distribution = Distribution()
    tpot_s: Distribution = Distribution()
    e2e_s: Distribution = Distribution()
    classes: tuple[ClassLatency, ...] = ()
    ci95: Mapping[str, tuple[float, float | None]] = {}
    unsettled: tuple[str, ...] = ()
    cliffs: tuple[FlatRange, ...] = ()
    worst_part: WorstPart | None = None
    preemptions_per_request: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_tokens_mean: float | None = None

    def settled(self, time: str, figure: str) -> float | None:
        """Return a figure of a time; None if not known well."""
        value: float | None = getattr(getattr(self, time), figure)
        return None if f"{time}.{figure}" in self.unsettled else value


class OperatingPoint(NamedTuple):
    """A profile at its own rates.

    `served` is in requests/s, `iteration_s` the mean time of an iteration; `requests` came in all runs together. The
    policy is that of the profile's engine, `arrivals` is the kind of arrivals, `busy` the share of the time that a
    replica computes.
    """

    policy: str
    arrivals: str
    latency: Latency
    served: Estimate | None
    iteration_s: Estimate | None
    requests: int
    runs: int
    hit_ratio: float | None = None  # of a prefix cache that runs know
    replicas: int = 1
    busy: float | None = None

    def figures(self) -> Iterator[tuple[str, float | None, tuple[float, float | None] | None]]:
        """Yield keys, values and 95 % intervals of all figures of the whole; KV tokens are those of a replica."""
        latency = self.latency
        for key, estimate in (("throughput_rps", self.served), ("iteration_time_s", self.iteration_s)):
            if estimate is not None:
                yield key, estimate.value, None if math.isinf(estimate.high) else estimate.interval
        for time in LATENCIES:
            for figure in FIGURES:
                key = f"{time}.{figure}"
                yield key, getattr(getattr(latency, time), figure), latency.ci95.get(key)
        for key in ("preemptions_per_request", "running", "waiting"):
            yield key, getattr(latency, key), latency.ci95.get(key)
        if (held := latency.kv_tokens_mean) is not None:
            low, high = latency.ci95.get("kv_tokens_mean", (None, None))
            ends = None if low is None else (low / self.replicas, high and high / self.replicas)
            yield "kv_tokens.mean", held / self.replicas, ends


def operating_point(model: ServingModel, plan: Plan, budget_s: float = BUDGET_S) -> OperatingPoint:
    """Measure a profile at its own rates, with so much counted work.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> model = ServingModel((RequestClass("a", 20, (5,), (1.0,), 10.0),), Timing(0.01), Replica(10_000))
    >>> point = operating_point(model, Plan())
    >>> point.latency.status.value, round(point.latency.itl_s.mean, 3)
    ('steady', 0.01)
    """

    def settled(seen: Observation) -> bool:
        return seen.trend is Trend.STEADY and not unsettled(seen.sample)

    settings, arrivals = engine_settings(model), Load().on(model).name
    try:
        seen = observe(model, plan, settings, settled, budget_s=budget_s)
    except UsageError as refused:
        times = model.total_rate_rps / sustainable_rate(model)[1] if model.fleet is None else 0.0
        latency = Latency(Status.UNDECIDED, str(refused))
        if times > _FAR:
            latency = Latency(
                Status.GROWING, f"the queue grows: {times:.3g} times what is sustainable is offered"
            )
        return OperatingPoint(settings.policy, arrivals, latency, None, None, 0, 0)
    sample, replicas = seen.sample, 1 if model.fleet is None else model.fleet.size
    return OperatingPoint(
        settings.policy,
        arrivals,
        _latency(seen, model),
        sample.rate(),
        sample.iteration_s(),
        sample.work[0],
        len(seen.windows),
        sample.hit_ratio(),
        replicas,
        sample.over_time(Span.BUSY_S).value / replicas,
    )


def observe(
    model: ServingModel,
    plan: Plan,
    settings: Settings,
    enough: Callable[[Observation], bool],
    *,
    stream: int = 0,
    budget_s: float = BUDGET_S,
    requests: int | None = None,
    runs: int = RUNS,
) -> Observation:
    """Run a profile in rounds until enough is known, the queue grows, or the work is used up.

    `enough` is asked after each round; runs of different streams have different seeds, `budget_s` is the counted work
    of all. The first round has at least so many requests in each of its `runs`; None: as many as the budget makes
    reasonable.
    """
    model = as_run(model)
    if model.arrivals.trace is not None:
        return _replayed(model, plan, settings, 1 if model.arrivals.share == 1 else runs)
    alone, rate = one_replica(model), model.total_rate_rps
    warm, period, life = warm_up_s(alone), period_s(model), life_s(alone)
    heavy, least = (
        work_factor(model, settings),
        max(2 * life, _IN_A_BATCH * BATCHES * typical_iteration_s(alone)),
    )
    length = max((requests or _REQUESTS) / rate, least)
    if requests is None and heavy * runs * counted_work_s(alone, rate, warm + length) > budget_s / 8:
        length = max(_FEW_REQUESTS / rate, least)
    if period is not None:
        length = math.ceil(length / period) * period
    most = _MOST_SPLIT if model.fleet is not None and model.fleet.is_split else _MOST_REQUESTS
    if rate * (warm + length) > most:
        raise UsageError(f"{rate * (warm + length):.3g} requests in a run; {most:,} is the most")
    windows: list[Window] = []
    work = 0.0
    while True:
        width, batches = _batches(length, period)
        spans = _spans(max(warm, _CUT * length), width, batches, aligned=period is not None)
        first = 1_000 * stream + len(windows)
        # replicas have arrays of their own, and those apart all requests: such runs take memory one after the other
        threads = (
            1
            if model.fleet is not None and (model.fleet.size > _MANY_REPLICAS or model.fleet.is_split)
            else None
        )
        made = at_once(
            partial(run_window, model, plan, settings, spans),
            range(first, first + runs),
            threads,
        )
        windows += made
        last = heavy * sum(_REQUEST_S * w.arrived + _ITERATION_S * w.iterations for w in made)
        work += last
        may_grow = len(windows) > 2 * runs or min(w.arrived for w in made) >= MAY_GROW
        judged = together([trend(w.least, rate * w.width_s, may_grow=may_grow) for w in made])
        if any(w.stuck for w in made):
            judged = Trend.GROWING
        elif judged is Trend.GROWING and model.schedule is not None and period != model.schedule.period_s:
            judged = Trend.UNDECIDED  # a part of a period may well grow
        seen = Observation(
            Sample.of(windows, max(spans.width_s, period or 0.0)), judged, tuple(windows), work
        )
        if judged is Trend.GROWING or work + 2 * last > budget_s or enough(seen):
            return seen
        length *= 2


def period_s(model: ServingModel) -> float | None:
    """Return the time seen as a whole: a schedule's period, or a part if it has too many requests."""
    if model.schedule is None:
        return None
    period = model.schedule.period_s
    parts = [period, *(part for part in _PARTS_S if part < period and (period / part).is_integer())]
    return next((part for part in parts if model.total_rate_rps * part <= _MOST_OF_PERIOD), parts[-1])


def _seen_from(model: ServingModel, seed: int) -> ServingModel:
    """Return the model from a time of its schedule on, if that is not run as a whole: evenly spread over seeds."""
    if model.schedule is None or (part := period_s(model)) is None or part == model.schedule.period_s:
        return model
    place = int(seed * _GOLDEN % 1 * (model.schedule.period_s / part))
    return replace(model, schedule=model.schedule.later(place * part))


def counted_work_s(model: ServingModel, rate_rps: float, seconds: float) -> float:
    """Estimate the counted work of a run: iterations are those of full replicas, or of requests alone."""
    requests = rate_rps * seconds
    replicas = rate_rps / model.total_rate_rps
    iterations = min(
        replicas * seconds / typical_iteration_s(model), requests * per_request(model).iterations
    )
    return _REQUEST_S * requests + _ITERATION_S * iterations


def work_factor(model: ServingModel, settings: Settings) -> float:
    """Return the work of an iteration over that of `vllm` with plain requests."""
    if model.drafts is not None:
        return _DRAFTS
    factor = _SGLANG if settings.policy == "sglang" else 1.0
    if model.replica.layout is not None:
        factor *= max(_LAYERS, model.mix.mean(model.mix.decode_tokens) / _LAYERS_TOKENS)
    return factor


def _batches(length_s: float, period_s: float | None) -> tuple[float, int]:
    """Return width and number of the batches of a run: parts of periods, or whole ones where there are many."""
    if period_s is None:
        return length_s / BATCHES, BATCHES
    periods = round(length_s / period_s)
    if periods <= _MOST_IN_PARTS:
        return length_s / (_PARTS * periods), _PARTS * periods
    each = math.ceil(periods / (_PARTS * _MOST_IN_PARTS))
    return each * period_s, periods // each


def _spans(begin_s: float, width_s: float, count: int, *, aligned: bool) -> Spans:
    """Return the spans from `begin_s` on; `aligned`, from the next multiple of the width on."""
    return Spans(math.ceil(begin_s / width_s) * width_s if aligned else begin_s, width_s, count)


def as_run(model: ServingModel) -> ServingModel:
    """Return the model to run: no run knows who hits by a measured curve, so prompts take less time instead."""
    return with_cold_cache(model) if model.hit_curve and model.arrivals.trace is None else model


def run_window(model: ServingModel, plan: Plan, settings: Settings, spans: Spans, seed: int) -> Window:
    """Run a model as `as_run` gives it, with requests closer together where they never meet."""
    if (faster := _hastening(model)) == 1:
        return _window(model, plan, settings, spans, seed)
    hastened = at_rates(model, [faster * c.rate_rps for c in model.classes])
    shorter = Spans(spans.begin_s / faster, spans.width_s / faster, spans.number)
    seen = _window(hastened, plan, settings, shorter, seed)
    return replace(seen, begin_s=spans.begin_s, width_s=spans.width_s)


def _hastening(model: ServingModel) -> float:
    """Return the factor on its rate at which a nearly idle replica still serves requests one by one.

    At 1e-9 requests/s the clock of a run reaches 1e13 s, of which a float tells milliseconds. Where a request meets
    another once in ten thousand times its latency is that of one alone, and only idle time is longer at a lower rate.
    Arrivals that cluster, recorded ones, schedules and users who ask again keep their times.
    """
    sessions = any(c.sessions is not None and c.sessions.users for c in model.classes)
    if sessions or model.schedule is not None or model.arrivals.trace is not None or model.arrivals.cv > 1:
        return 1.0
    stay_s = life_s(one_replica(model)) + max(
        (c.reuse.gap.mean_s for c in model.classes if c.reuse), default=0.0
    )
    return max(_MEETING / (model.total_rate_rps * stay_s), 1.0)


def _window(model: ServingModel, plan: Plan, settings: Settings, spans: Spans, seed: int) -> Window:
    end_s = spans.begin_s + spans.number * spans.width_s
    model = _seen_from(model, seed)
    load = Load(requests=None, horizon_s=end_s).on(model)
    names = tuple(c.name for c in model.classes) if load.trace is None else ("trace",)
    requests = generate(model, load, seed)
    job = Job(settings, Scenario(model, plan, requests, names, seed), end_s, spans)
    return window(requests, job.run(), spans)


def _replayed(model: ServingModel, plan: Plan, settings: Settings, runs: int) -> Observation:
    """Replay a trace once, to its last completion; a part of it at random several times."""
    load = Load().on(model)
    assert load.trace is not None
    last_s = float(load.trace.arrival_s[-1])
    ends_s = at_once(partial(_end_s, model, plan, settings), range(runs))
    width_s = _BEYOND * max(*ends_s, last_s, 1e-9) / _PARTS
    made = at_once(partial(_window, model, plan, settings, Spans(0.0, width_s, _PARTS)), range(runs))
    arriving = max(math.ceil(last_s / width_s), 4)  # batches: after the last arrival every queue drains
    judged = together([trend(w.least[:arriving], model.total_rate_rps * width_s) for w in made])
    if any(w.stuck for w in made):
        judged = Trend.GROWING
    return Observation(Sample.of(made, width_s * _PARTS), judged, tuple(made), 0.0, is_replay=True)


def _end_s(model: ServingModel, plan: Plan, settings: Settings, seed: int) -> float:
    """Return the time when the last request of a trace is done."""
    requests = generate(model, Load().on(model), seed)
    job = Job(settings, Scenario(model, plan, requests, ("trace",), seed))
    return job.run().end_s


def unsettled(sample: Sample) -> tuple[str, ...]:
    """Return the keys of the latencies that are not known well enough, such as ``ttft_s.p99``.

    Known well are a mean to 10 %, or to 1 % of the mean E2E; a percentile to 10 %, p99 to 20 %, or where the share of
    values below it is known to 1 % (p50, p90), .5 % (p95) or .2 % (p99).
    """
    whole = sample.estimate("e2e_s", "mean")
    if whole is None:
        return tuple(f"{time}.{figure}" for time in LATENCIES for figure in FIGURES)
    return tuple(
        f"{time}.{figure}"
        for time in LATENCIES
        for figure in FIGURES
        if (seen := sample.estimate(time, figure)) is not None and not _is_known(seen, figure, whole.value)
    )


def _is_known(estimate: Estimate, figure: str, mean_e2e_s: float) -> bool:
    if math.isinf(estimate.high):
        return False
    if estimate.relative_width <= (_TAIL_WIDTH if figure == "p99" else _WIDTH):
        return True
    if figure == "mean":
        return estimate.high - estimate.value <= _OF_E2E * mean_e2e_s
    return estimate.share_width <= _SHARES[figure]


def _latency(seen: Observation, model: ServingModel) -> Latency:
    sample, by_chance = seen.sample, model.arrivals.trace is None
    evictions = sample.evictions()
    if seen.trend is Trend.GROWING or evictions is None:
        served = sample.rate().value
        stuck = any(w.stuck for w in seen.windows)
        reason = (
            "nothing can complete any more"
            if stuck
            else f"the queue grows: {served:.4g} requests/s are served"
        )
        return Latency(Status.GROWING, reason)
    names = [c.name for c in model.classes] if by_chance else []
    open_ = unsettled(sample) if by_chance else ()
    status = Status(seen.trend.value)
    if status is Status.STEADY and open_:
        status = Status.UNSETTLED
    return Latency(
        status,
        ttft_s=_distribution(sample, "ttft_s"),
        itl_s=_distribution(sample, "itl_s"),
        tpot_s=_distribution(sample, "tpot_s"),
        e2e_s=_distribution(sample, "e2e_s"),
        classes=tuple(_of_class(sample.of_class(i), name) for i, name in enumerate(names)),
        ci95=dict(_intervals(sample)) if by_chance else {},
        unsettled=open_,
        cliffs=tuple(_cliffs(sample)),
        worst_part=_worst_part(seen, model),
        preemptions_per_request=evictions.value,
        running=sample.over_time(OVER_TIME["running"]).value,
        waiting=sample.over_time(OVER_TIME["waiting"]).value,
        kv_tokens_mean=sample.over_time(OVER_TIME["kv_tokens_mean"]).value,
    )


def _distribution(sample: Sample, time: str) -> Distribution:
    return Distribution(*map(sample.times(time).value, FIGURES))


def _of_class(sample: Sample, name: str) -> ClassLatency:
    return ClassLatency(name, *(_distribution(sample, time) for time in ("ttft_s", "tpot_s", "e2e_s")))


def _intervals(sample: Sample) -> Iterator[tuple[str, tuple[float, float | None]]]:
    keys = [f"{time}.{figure}" for time in LATENCIES for figure in FIGURES]
    for key in (*keys, "preemptions_per_request", *OVER_TIME):
        if (estimate := sample.figure(key)) is not None:
            yield key, estimate.interval


def _cliffs(sample: Sample) -> Iterator[FlatRange]:
    for time in LATENCIES:
        for figure in QUANTILES:
            if (cliff := sample.cliff(time, figure)) is not None:
                yield FlatRange(f"{time}.{figure}", *cliff)


def _worst_part(seen: Observation, model: ServingModel) -> WorstPart | None:
    """Return the 24th part with the longest mean TTFT; None where rates do not vary, or too fast."""
    if model.schedule is None and model.arrivals.trace is None:
        return None
    period = period_s(model)
    windows = [w for w in seen.windows if period is None or w.width_s < period]
    if not windows:
        return None
    parts = [Sample(tuple(w.only(_place(w, model, part), _PARTS) for w in windows)) for part in range(_PARTS)]
    means = [part.estimate("ttft_s", "mean") for part in parts]
    worst = max(range(_PARTS), key=lambda i: -math.inf if (mean := means[i]) is None else mean.value)
    width = windows[0].width_s
    begin = worst * width + (windows[0].begin_s if model.schedule is None else 0.0)
    return WorstPart(begin, begin + width, *(_distribution(parts[worst], time) for time in LATENCIES))


def _place(of: Window, model: ServingModel, part: int) -> int:
    """Return the first batch of a part in a window; parts of a schedule's period count from its start."""
    begun = 0 if model.schedule is None else round(of.begin_s / of.width_s)
    return (part - begun) % _PARTS


_Side = TypeVar("_Side", SplitFleet, JoinedFleet)


def timed(
    figures: FleetFigures | None,
    model: ServingModel,
    plan: Plan,
    own: Latency,
    good_rps: float | None = None,
) -> FleetFigures | None:
    """Add mean TTFT and ITL at the offered rate, simulated, to both ways of a fleet.

    `own` is measured of the model's fleet, `good_rps` the rate up to which it keeps all objectives.
    """
    fleet = model.fleet
    if figures is None or fleet is None:
        return figures
    split, joined = figures.split, figures.together
    if fleet.is_split:
        together = replace(fleet, prefill=0, decode=0, replicas=joined.replicas)
        joined = _with_runs(joined, _simulated(replace(model, fleet=together), plan))
        split = _with_runs(split, own, good_rps)
    else:
        joined = _with_runs(joined, own, good_rps)
        if split.prefill and split.decode:
            apart = replace(fleet, prefill=split.prefill, decode=split.decode, replicas=0)
            split = _with_runs(split, _simulated(replace(model, fleet=apart), plan))
    return figures._replace(split=split, together=joined, winner=winner(split, joined))


def _simulated(model: ServingModel, plan: Plan) -> Latency | None:
    try:
        return operating_point(model, plan, _OTHER_S).latency
    except UsageError:  # not modelled so
        return None


def _with_runs(side: _Side, seen: Latency | None, good_rps: float | None = None) -> _Side:
    ttft, itl = (None, None) if seen is None else (seen.ttft_s.mean, seen.itl_s.mean)
    return type(side)._make((*side[:-3], good_rps, ttft, itl))


def tried(overload: Overload, model: ServingModel, plan: Plan) -> Overload:
    """Add WAIT's rate at the offered rates with those thresholds, whole and at least 1, and shares of classes.

    Runs double until their second halves agree: pausing requests stay long, and short ones are done first.
    """
    if overload.thresholds is None:
        return overload
    settings = Settings("wait", {"thresholds": tuple(map(float, overload.whole))})
    model, before, settled = as_run(model), math.inf, False
    length_s = max(4 * warm_up_s(model), _FEW_REQUESTS / model.total_rate_rps)
    if counted_work_s(model, model.total_rate_rps, length_s) > BUDGET_S:
        return overload
    try:
        while not settled:
            seen = run_window(
                model, plan, settings, _spans(length_s / 2, length_s / 2 / BATCHES, BATCHES, aligned=False), 0
            )
            served = Sample.of([seen], seen.width_s).rate()
            work = work_factor(model, settings) * (_REQUEST_S * seen.arrived + _ITERATION_S * seen.iterations)
            alike = before > 0 and abs(served.value / before - 1) < _AGREE
            agree = alike and served.relative_width < 2 * _AGREE
            drawn = users_of(model) and model.total_rate_rps * length_s  # all that they could send
            settled = agree or seen.stuck or work > _WAIT_S or drawn > _MOST_DRAWN
            before = served.value
            length_s *= 2
    except UsageError:  # layers of several kinds, drafts, or a trace of several classes
        return overload
    done = np.bincount(seen.class_index, minlength=len(model.classes))
    return overload._replace(
        simulated_rps=served.value,
        simulated_rps_ci95=None if math.isinf(served.high) else (served.low, served.high),
        simulated_shares=tuple((done / max(done.sum(), 1)).tolist()),
    )
