"""Loads played through the simulator: which iterations a request waits for, and so what its times are made of.

A client's TTFT is no iteration, and of its C requests not all decode. So each point of a sweep is run as the engine
would schedule it, and TTFT, TPOT and E2E come out as sums over iterations. What each constant of the law adds to them
is the difference between two runs.

- In a closed loop the order of iterations does not depend on how long they take, so times are linear in the constants.
- Where requests arrive at a rate, by Little's law so many of them run as in a closed loop of that size, which was
  measured: TPOT is taken from there.
- There a request comes in the midst of an iteration and waits for its end. `corrected` plays the loads as they were
  and has what that adds to TTFT at a law; the closed loop of that size has nobody wait.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kvplan.errors import ProfileError
from kvplan.ingest.timing.equations import Equations, Kind
from kvplan.ingest.timing.samples import Point, Range, RequestLog, Sweep
from kvplan.model import FloatArray, IntArray, Plan, Prefill, Replica, RequestClass, ServingModel, Timing
from kvplan.simulation.experiments.runner import Announce, Job, Progress, run_to_the_end
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Requests


class Law(NamedTuple):
    """Law that plays loads: the iteration time, and what a request takes outside the engine, seconds."""

    timing: Timing
    request_overhead_s: float = 0.0


UNLIMITED = Replica(2**40, 16, Prefill.FUSED, max_num_batched_tokens=8192)  # vLLM's budget on large GPUs

KNEES = (64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0)
_POLICY = {"sglang": "sglang", "trtllm": "trtllm-no-evict"}  # of an engine; others schedule as vLLM does
_EACH, _LEAST, _MOST = 10, 40, 20_000  # requests for each in flight where a file does not say; of a point
_LEAST_AT_A_RATE = 3000  # when a request comes within an iteration is chance; many even it out
_ITERATIONS = 1_000_000  # of a closed loop, about
_FEWEST_WAVES = 2  # requests for each in flight, at least
_KINDS = (Kind.TTFT, Kind.TPOT, Kind.E2E, Kind.INTERVAL)
_SOON = 0.25  # quantile of TTFT
_NOBODY = RequestClass("", 1, (1,), (1.0,), 0.0)
_UNIT = Law(Timing(1.0))  # to play closed loops by, where any will do
_ONE_MORE = ("d0", "d1", "d2", "d3", "d4", "d6", "experts")  # in turn a second; times are linear in them


class _Load(NamedTuple):
    """A point as it is played, by the law of the scenario's model."""

    point: Point
    file: str
    source: int
    scenario: Scenario
    settings: Settings

    @property
    def alike(self) -> Hashable:
        """The same for loads that are played alike."""
        bare = replace(self.point, line=0, ttft_s=None, tpot_s=None, e2e_s=None, throughput_rps=None)
        return bare, self.settings.policy, self.scenario.model.replica

    def job(self, law: Law) -> Job:
        """Play what a request computes; what it found in the cache costs d1 in every iteration all the same."""
        timing = replace(law.timing, d3=law.timing.d3 + self.point.cached_tokens * law.timing.d1)
        model = replace(self.scenario.model, timing=timing, request_overhead_s=law.request_overhead_s)
        return Job(self.settings, self.scenario._replace(model=model))


def foretold(sweeps: Sequence[Sweep], law: Law, replica: Replica = UNLIMITED) -> list[dict[Kind, float]]:
    """Foretell mean times of each point by a law, seconds; what was measured of them is not looked at.

    Examples
    --------
    >>> from kvplan.ingest.timing.samples import Deployment
    >>> alone = Point(line=1, inputs=(100, 100), outputs=(11, 11), concurrency=1)
    >>> (times,) = foretold([Sweep("", "", Deployment(), (alone,))], Law(Timing(0.01, d2=1e-4), 0.005))
    >>> [round(times[kind], 6) for kind in (Kind.TTFT, Kind.TPOT, Kind.E2E)]
    [0.025, 0.01, 0.125]
    """
    times = _times(_loads(sweeps, replica), [law])
    return [dict(zip(_KINDS, mine[0].tolist(), strict=False)) for mine in times]


def corrected(
    equations: Equations,
    sweeps: Sequence[Sweep],
    law: Law,
    at_once_s: FloatArray,
    replica: Replica = UNLIMITED,
) -> Equations:
    """Add what waiting for an iteration under way adds to TTFT at a rate, by a law that has other times `at_once_s`."""
    points = [point for sweep in sweeps for point in sweep.points]
    ttft = [
        times[Kind.TTFT] if point.rate_rps is not None and kind is Kind.TTFT else math.nan
        for point, times in zip(points, foretold(sweeps, law, replica), strict=True)
        for kind, _ in measured_times(point)
    ]
    waits = np.array(ttft) - at_once_s
    return replace(equations, offset=np.where(np.isnan(waits), equations.offset, waits))


def play(
    sweeps: Sequence[Sweep],
    replica: Replica = UNLIMITED,
    *,
    knees: Sequence[float] = KNEES,
    attention: float = 0.0,
    chosen: float = 0.0,
    progress: Progress | None = None,
    announce: Announce | None = None,
) -> Equations:
    """Make the equations of load sweeps, one for each time that was measured, as if no request had to wait.

    Lengths of prompts hardly tell their attention from the rest: d6 stays at so much of d5, `attention`.
    E2E says of the time after the first token what TPOT says, and so does the time between completions; of the three
    the first that was measured counts, TPOT before E2E.
    """
    loads = _loads(sweeps, replica, _as_loop)
    unit = Timing(1.0, chosen=chosen)
    more = [replace(unit, **{name: getattr(unit, name) + 1}) for name in _ONE_MORE]
    more += [replace(unit, d5=1.0, knee_tokens=knee) for knee in knees]
    played = _times(loads, [Law(timing) for timing in (unit, *more)], progress, announce)
    rows = [
        (load, kind, seconds, times)
        for load, times in zip(loads, played, strict=True)
        for kind, seconds in measured_times(load.point)
    ]
    # by the constants: (n, n_constants, n_kinds + 1)
    slopes = np.array([times[1:] - times[0] for *_, times in rows])
    amounts = np.array(
        [mine[:, _KINDS.index(kind)] for mine, (_, kind, _, _) in zip(slopes, rows, strict=True)]
    )
    interval = slopes[:, :, _KINDS.index(Kind.INTERVAL)]
    state = interval[:, 1:4] / interval[:, :1]
    with_ttft = any(kind is Kind.TTFT for _, kind, _, _ in rows)
    lines = np.array([(load.source, load.point.line) for load, *_ in rows])
    levels = np.array([float(load.point.concurrency or 0) for load, *_ in rows])
    if np.ptp(levels) == 0:  # one load: each shape of request for itself
        levels = np.unique(lines, axis=0, return_inverse=True)[1].reshape(-1)
    return Equations(
        amounts=amounts[:, :5],
        knees=np.array(knees),
        has_overhead=with_ttft,
        overlap=1.0,
        attention=attention,
        pairs=amounts[:, 5],
        beyond=amounts[:, 7:],
        woken=amounts[:, 6],
        # Of E2E alone it cannot be told from the time of the tokens.
        overhead=np.array([float(kind in (Kind.TTFT, Kind.E2E) and with_ttft) for _, kind, _, _ in rows]),
        offset=np.zeros(len(rows)),
        seconds=np.array([seconds for _, _, seconds, _ in rows]),
        kind=np.array([kind.value for _, kind, _, _ in rows]),
        group=np.unique(levels, return_inverse=True)[1],
        source=lines[:, 0],
        line=lines[:, 1],
        kv_tokens=state[:, 0],
        prefill_tokens=state[:, 1],
        sequences=state[:, 2],
        prefill_peak=np.array([times[0, -1] for *_, times in rows]),
    )


def measured_times(point: Point) -> list[tuple[Kind, float]]:
    """List what was measured of a point: TTFT, and the first of TPOT, E2E and time between completions."""
    between = point.throughput_rps and 1 / point.throughput_rps
    times = (point.ttft_s, point.tpot_s, point.e2e_s, between)
    measured = [(kind, time) for kind, time in zip(_KINDS, times, strict=True) if time is not None]
    return measured[: 1 if point.ttft_s is None else 2]


def _as_loop(point: Point) -> Point:
    """Return a closed loop in which as many requests run together as at a rate, those that wait left out."""
    if point.rate_rps is None:
        return point
    output = sum(point.outputs) / 2
    tpot = point.tpot_s or ((point.e2e_s or 0.0) - (point.ttft_s or 0.0)) / max(output - 1, 1.0)
    size = max(1, round(point.rate_rps * output * tpot))
    return replace(point, concurrency=size, rate_rps=None, in_midst=True)


def requests_of(point: Point) -> Requests:
    """Draw the requests of a point with what they compute; the same each time.

    Examples
    --------
    >>> some = requests_of(Point(line=1, inputs=(80, 100), outputs=(5, 5), concurrency=8, tpot_s=0.01))
    >>> some.clients, some.arrival_s.size, set(some.decode_tokens.tolist())
    (8, 80, {5})
    """
    rng = np.random.default_rng(0)
    at_a_rate = point.rate_rps is not None or point.in_midst
    size = point.requests or _EACH * (point.concurrency or _MOST)
    size = min(max(size, _LEAST_AT_A_RATE if at_a_rate else _LEAST), _MOST)
    waves = max(_FEWEST_WAVES, _ITERATIONS // max(point.outputs[1], 1))
    size = min(size, waves * (point.concurrency or size))
    clients, arrival = point.concurrency, np.zeros(size)
    if point.rate_rps is not None:
        gaps = np.ones(size) if point.evenly else rng.standard_exponential(size)
        clients, arrival = None, np.cumsum(gaps) / point.rate_rps

    def drawn(lengths: Range) -> IntArray:
        return rng.integers(max(lengths[0], 1), max(lengths[1], 1), size, endpoint=True)

    outputs = drawn(point.outputs)
    if point.in_midst:
        running = slice(0, clients)
        outputs[running] = rng.integers(1, outputs[running], endpoint=True)
    inputs = np.maximum(drawn(point.inputs) - point.cached_tokens, 1)
    classes = np.zeros(size, dtype=np.int64)
    return Requests(arrival, inputs, outputs, classes, clients, at_once=point.in_midst)


def _loads(
    sweeps: Sequence[Sweep], replica: Replica, change: Callable[[Point], Point] = lambda point: point
) -> list[_Load]:
    loads = []
    for number, sweep in enumerate(sweeps):
        policy = _POLICY.get(sweep.deployment.engine, "vllm")
        for point in map(change, sweep.points):
            budget = point.max_num_batched_tokens or replica.max_num_batched_tokens
            on = replace(replica, max_num_batched_tokens=budget)
            model = ServingModel((_NOBODY,), _UNIT.timing, on)
            waits = {name: (float(value),) for name, value in point.waits._asdict().items()}
            known = POLICIES[policy].parameters.keys()
            settings = Settings(policy, {name: waits[name] for name in waits.keys() & known})
            scenario = Scenario(model, Plan(), requests_of(point), ("",))
            loads.append(_Load(point, sweep.source, number, scenario, settings))
    return loads


_PLAYED: dict[tuple[Hashable, Law], tuple[float, ...]] = {}  # times of what ran: as long as the process lives


def _times(
    loads: Sequence[_Load],
    laws: Sequence[Law],
    progress: Progress | None = None,
    announce: Announce | None = None,
) -> list[FloatArray]:
    """Play each load at each law: mean times, seconds, and the peak of prefill tokens; (n_laws, n_kinds + 1)."""
    runs = [[(load.alike, law) for law in laws] for load in loads]
    wanted = {run: load for load, mine in zip(loads, runs, strict=True) for run in mine if run not in _PLAYED}
    jobs = [[load.job(law)] for (_, law), load in wanted.items()]
    outcomes = run_to_the_end(jobs, progress, announce, compile=True) if jobs else []
    for (run, load), (outcome,) in zip(wanted.items(), outcomes, strict=True):
        if not outcome.finished:
            tokens = load.scenario.model.replica.memory_tokens
            message = f"its requests do not fit a memory of {tokens:,} tokens, --capacity or that of --base"
            raise ProfileError(load.file, message, line=load.point.line)
        _PLAYED[run] = *mean_times(load.scenario.requests, outcome).values(), outcome.prefill_peak
    return [np.array([_PLAYED[run] for run in mine]) for mine in runs]


def outside_engine_s(log: RequestLog, timing: Timing, replica: Replica) -> float:
    """Estimate the wait outside the engine: how much later than by a law the soonest first tokens came.

    Of requests that queue it would measure the law instead.
    """
    inputs = np.maximum(log.input_tokens - log.cached_tokens, 1)
    classes = np.zeros(inputs.size, dtype=np.int64)
    requests = Requests(log.arrival_s, inputs, np.maximum(log.output_tokens, 1), classes)
    scenario = Scenario(ServingModel((_NOBODY,), timing, replica), Plan(), requests, ("",))
    ((run,),) = run_to_the_end([[Job(Settings("vllm", {}), scenario)]], compile=True)
    if not run.finished:
        return 0.0
    soon = run.ttft_s <= np.quantile(run.ttft_s, _SOON)
    return max(float(np.median((log.first_token_s - log.arrival_s - run.ttft_s)[soon])), 0.0)


def mean_times(requests: Requests, run: Outcome) -> dict[Kind, float]:
    """Tell what a client would have measured of a run that came to its end, seconds."""
    ttft, e2e = run.ttft_s, run.e2e_s
    later = requests.decode_tokens - 1
    tpot = (e2e - ttft)[later > 0] / later[later > 0]
    means = ttft.mean(), tpot.mean() if tpot.size else 0.0, e2e.mean(), run.end_s / ttft.size
    return dict(zip(_KINDS, means, strict=True))
