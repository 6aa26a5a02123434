"""Loads played through the simulator: which iterations a request waits for, and so what its times are made of.

A client's TTFT is no iteration, and of its C requests not all decode. So each point of a sweep is run as the engine
would schedule it, and TTFT, TPOT and E2E come out as sums over iterations. What each constant of the law adds to them
is the difference between two runs.

- In a closed loop the order of iterations does not depend on how long they take, so times are linear in the constants.
- Where requests arrive at a rate, by Little's law so many of them run as in a closed loop of that size, which was
  measured: TPOT is taken from there.
- There a request comes in the midst of an iteration and waits for its end. `corrected` plays the loads as they were
  and has what that adds to TTFT at a law. In closed loops that is left to the overhead of a request: telling the two
  apart made what was foretold of other loads worse.
"""

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kvplan.errors import ProfileError
from kvplan.ingest.timing.equations import Equations, Kind, Terms
from kvplan.ingest.timing.samples import Point, Range, Sweep
from kvplan.model import FloatArray, IntArray, Plan, Prefill, Replica, RequestClass, ServingModel, Timing
from kvplan.simulation.experiments.runner import Announce, Job, Progress, run_to_the_end
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Requests


class Law(NamedTuple):
    """What loads are played by: the iteration time, and what a request takes outside the engine, seconds."""

    timing: Timing
    request_overhead_s: float = 0.0


UNIT = Law(Timing(1.0))  # to play closed loops by, where any will do
UNLIMITED = Replica(2**40, 16, Prefill.FUSED, max_num_batched_tokens=8192)  # vLLM's budget on large GPUs

_KNEES = (64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0)
_POLICY = {"sglang": "sglang"}  # of an engine; others schedule as vLLM does
_EACH, _LEAST, _MOST = 10, 40, 20_000  # requests for each in flight where a file does not say; of a point
_LEAST_AT_A_RATE = 3000  # when a request comes within an iteration is chance; many even it out
_ITERATIONS = 1_000_000  # of a closed loop, about
_FEWEST_WAVES = 2  # requests for each in flight, at least
_KINDS = (Kind.TTFT, Kind.TPOT, Kind.E2E, Kind.INTERVAL)
# Each constant in turn a second more; times are linear in them, so that any step would do.
_ONE_MORE = [
    Law(replace(UNIT.timing, **{name: getattr(UNIT.timing, name) + 1}))
    for name in ("d0", "d1", "d2", "d3", "d4")
]
_ONE_MORE += [Law(replace(UNIT.timing, d5=1.0, knee_tokens=knee)) for knee in _KNEES]


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
        """What a request found is no part of the prompt that is played; it costs d1 in every iteration all the same."""
        timing = replace(law.timing, d3=law.timing.d3 + self.point.cached_tokens * law.timing.d1)
        model = replace(self.scenario.model, timing=timing, request_overhead_s=law.request_overhead_s)
        return Job(self.settings, self.scenario._replace(model=model))


def foretold(
    sweeps: Sequence[Sweep],
    law: Law,
    replica: Replica = UNLIMITED,
    *,
    progress: Progress | None = None,
    announce: Announce | None = None,
) -> list[dict[Kind, float]]:
    """Mean times of each point by a law, seconds; what was measured of them is not looked at.

    Examples
    --------
    >>> from kvplan.ingest.timing.samples import Deployment
    >>> alone = Point(line=1, inputs=(100, 100), outputs=(11, 11), concurrency=1)
    >>> (times,) = foretold([Sweep("", "", Deployment(), (alone,))], Law(Timing(0.01, d2=1e-4), 0.005))
    >>> [round(times[kind], 6) for kind in (Kind.TTFT, Kind.TPOT, Kind.E2E)]
    [0.025, 0.01, 0.125]
    """
    loads = [
        _load(number, point, sweep, replica) for number, sweep in enumerate(sweeps) for point in sweep.points
    ]
    times = _times(loads, [law], progress, announce)
    return [dict(zip(_KINDS, mine[0].tolist(), strict=False)) for mine in times]


def corrected(
    equations: Equations,
    sweeps: Sequence[Sweep],
    terms: Terms,
    constants: FloatArray,
    replica: Replica = UNLIMITED,
) -> Equations:
    """The equations with what waiting for an iteration under way adds to TTFT at a rate, by a law."""
    law = Law(*equations.law(terms, constants))
    points = [point for sweep in sweeps for point in sweep.points]
    ttft = [
        times[Kind.TTFT] if point.rate_rps is not None and kind is Kind.TTFT else math.nan
        for point, times in zip(points, foretold(sweeps, law, replica), strict=True)
        for kind, _ in seen(point)
    ]
    waits = np.array(ttft) - equations.design(terms) @ constants
    return replace(equations, offset=np.where(np.isnan(waits), 0.0, waits))


class _Row(NamedTuple):
    load: _Load
    kind: Kind
    seconds: float
    amounts: FloatArray  # of d0 … d4, and of d5 for each knee
    state: FloatArray  # mean KV tokens, prefill tokens, sequences
    peak: float  # most prefill tokens of an iteration


def play(
    sweeps: Sequence[Sweep],
    replica: Replica = UNLIMITED,
    *,
    progress: Progress | None = None,
    announce: Announce | None = None,
) -> Equations:
    """The equations of load sweeps, one for each time that was measured, as if no request had to wait.

    E2E says of the time after the first token what TPOT says, and so does the time between completions; of the three
    the first that was measured counts, TPOT before E2E.
    """
    loads = [
        _load(number, _as_loop(point), sweep, replica)
        for number, sweep in enumerate(sweeps)
        for point in sweep.points
    ]
    rows: list[_Row] = []
    for load, times in zip(loads, _times(loads, [UNIT, *_ONE_MORE], progress, announce), strict=True):
        rows += _rows(load, times[1:] - times[0], peak=float(times[0, -1]))
    return _equations(rows)


def _as_loop(point: Point) -> Point:
    """A closed loop in which as many requests run together as at a rate, those that wait left out."""
    if point.rate_rps is None:
        return point
    output = sum(point.outputs) / 2
    tpot = point.tpot_s or ((point.e2e_s or 0.0) - (point.ttft_s or 0.0)) / max(output - 1, 1.0)
    size = max(1, round(point.rate_rps * output * tpot))
    return replace(point, concurrency=size, rate_rps=None, in_midst=True)


def requests_of(point: Point) -> Requests:
    """The requests of a point with what they compute, lengths drawn where they have a range; the same each time.

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
    none = np.zeros(size, dtype=np.int64)
    outputs = _drawn(rng, point.outputs, size)
    if point.in_midst:
        running = slice(0, clients)
        outputs[running] = rng.integers(1, outputs[running], endpoint=True)
    inputs = np.maximum(_drawn(rng, point.inputs, size) - point.cached_tokens, 1)
    return Requests(arrival, inputs, outputs, none, clients)


def _drawn(rng: np.random.Generator, lengths: Range, size: int) -> IntArray:
    return rng.integers(max(lengths[0], 1), max(lengths[1], 1), size, endpoint=True)


def _load(number: int, point: Point, sweep: Sweep, replica: Replica) -> _Load:
    nobody = RequestClass("", 1, (1,), (1.0,), 0.0)
    scenario = Scenario(ServingModel((nobody,), UNIT.timing, replica), Plan(), requests_of(point), ("",))
    return _Load(
        point, sweep.source, number, scenario, Settings(_POLICY.get(sweep.deployment.engine, "vllm"), {})
    )


_PLAYED: dict[tuple[Hashable, Law], tuple[float, ...]] = {}  # times of what ran: as long as the process lives


def _times(
    loads: Sequence[_Load],
    laws: Sequence[Law],
    progress: Progress | None,
    announce: Announce | None,
) -> list[FloatArray]:
    """Mean times of each load at each law, seconds, and its peak of prefill tokens: (n_laws, n_kinds + 1)."""
    runs = [[(load.alike, law) for law in laws] for load in loads]
    wanted = {run: load for load, mine in zip(loads, runs, strict=True) for run in mine if run not in _PLAYED}
    jobs = [[load.job(law)] for (_, law), load in wanted.items()]
    outcomes = run_to_the_end(jobs, progress, announce, compile=True) if jobs else []
    for (run, load), (outcome,) in zip(wanted.items(), outcomes, strict=True):
        _PLAYED[run] = _of_run(load, outcome)
    return [np.array([_PLAYED[run] for run in mine]) for mine in runs]


def _of_run(load: _Load, run: Outcome) -> tuple[float, ...]:
    if not run.finished:
        tokens = load.scenario.model.replica.memory_tokens
        message = f"its requests do not fit a memory of {tokens:,} tokens, --capacity or that of --base"
        raise ProfileError(load.file, message, line=load.point.line)
    return *mean_times(load.scenario.requests, run).values(), run.prefill_peak


def mean_times(requests: Requests, run: Outcome) -> dict[Kind, float]:
    """What a client would have measured of a run that came to its end, seconds."""
    ttft, e2e = run.ttft_s, run.e2e_s
    later = requests.decode_tokens - 1
    tpot = (e2e - ttft)[later > 0] / later[later > 0]
    means = ttft.mean(), tpot.mean() if tpot.size else 0.0, e2e.mean(), run.end_s / ttft.size
    return dict(zip(_KINDS, means, strict=True))


def seen(point: Point) -> list[tuple[Kind, float]]:
    """What was measured of a point: TTFT, and the first of TPOT, E2E and time between completions."""
    between = point.throughput_rps and 1 / point.throughput_rps
    times = zip(_KINDS, (point.ttft_s, point.tpot_s, point.e2e_s, between), strict=True)
    (first, ttft), *others = [(kind, time) for kind, time in times]
    known = [(kind, time) for kind, time in others if time is not None][:1]
    return known if ttft is None else [(first, ttft), *known]


def _rows(load: _Load, slopes: FloatArray, peak: float) -> Iterator[_Row]:
    """What was measured of a point, as the slopes of its times by the constants."""
    interval = _KINDS.index(Kind.INTERVAL)
    state = slopes[1:4, interval] / slopes[0, interval]
    for kind, time in seen(load.point):
        yield _Row(load, kind, time, slopes[:, _KINDS.index(kind)], state, peak)


def _equations(rows: Sequence[_Row]) -> Equations:
    amounts, state = (np.array([getattr(row, name) for row in rows]) for name in ("amounts", "state"))
    with_ttft = any(row.kind is Kind.TTFT for row in rows)
    lines = [(row.load.source, row.load.point.line) for row in rows]
    levels = np.array([float(row.load.point.concurrency or 0) for row in rows])
    if np.ptp(levels) == 0:  # one load: each shape of request for itself
        levels = np.unique(np.array(lines), axis=0, return_inverse=True)[1].reshape(-1)
    group = np.unique(levels, return_inverse=True)[1]
    return Equations(
        amounts=amounts[:, :5],
        knees=np.array(_KNEES),
        beyond=amounts[:, 5:],
        # Of E2E alone it cannot be told from the time of the tokens.
        overhead=np.array([float(row.kind.of_client and with_ttft) for row in rows]),
        offset=np.zeros(len(rows)),
        seconds=np.array([row.seconds for row in rows]),
        kind=np.array([row.kind.value for row in rows]),
        group=group,
        source=np.array([source for source, _ in lines]),
        line=np.array([line for _, line in lines]),
        kv_tokens=state[:, 0],
        prefill_tokens=state[:, 1],
        sequences=state[:, 2],
        prefill_peak=np.array([row.peak for row in rows]),
    )
