"""Loads played through the simulator: which iterations a request waits for, and so what its times are made of.

A client's TTFT is no iteration, and of its C requests not all decode. So each point of a sweep is run as the engine
would schedule it, and TTFT, TPOT and E2E come out as sums over iterations. What each constant of the law adds to them
is the difference between two runs. In a closed loop the order of iterations does not depend on how long they take, so
times are linear in the constants; where requests arrive at a rate, or clients take time of their own between two, they
are nearly so, and loads are played again at the law just found.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kvplan.errors import ProfileError
from kvplan.ingest.timing.equations import Equations, Kind
from kvplan.ingest.timing.sweep import Point, Range, Sweep
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
_OVERHEAD = "overhead"
_STEP = 0.01  # of a constant, against d0
_KINDS = (Kind.TTFT, Kind.TPOT, Kind.E2E, Kind.INTERVAL)


class _Load(NamedTuple):
    """A point as it is played, by the law of the scenario's model."""

    point: Point
    file: str
    source: int
    scenario: Scenario
    settings: Settings

    def job(self, law: Law) -> Job:
        model = replace(self.scenario.model, timing=law.timing, request_overhead_s=law.request_overhead_s)
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
    >>> from kvplan.ingest.timing.sweep import Deployment
    >>> alone = Point(line=1, inputs=(100, 100), outputs=(11, 11), concurrency=1)
    >>> (times,) = foretold([Sweep("", "", Deployment(), (alone,))], Law(Timing(0.01, d2=1e-4), 0.005))
    >>> [round(times[kind], 6) for kind in (Kind.TTFT, Kind.TPOT, Kind.E2E)]
    [0.025, 0.01, 0.125]
    """
    loads = [
        _load(number, point, sweep, replica) for number, sweep in enumerate(sweeps) for point in sweep.points
    ]
    times = _times(loads, [[law]] * len(loads), progress, announce)
    return [dict(zip(_KINDS, mine[0].tolist(), strict=False)) for mine in times]


def by_littles_law(sweeps: Sequence[Sweep]) -> Equations:
    """Loads at a rate as mean iterations: of λ requests a second, λ·(E2E - TTFT) decode. A first guess."""
    rows = [point for sweep in sweeps for point in sweep.points if point.rate_rps is not None]
    kv, prefill, batch, seconds = (
        np.array(column) for column in zip(*(_mean_iteration(point) for point in rows), strict=True)
    )
    line = np.array([point.line for point in rows])
    none = np.zeros_like(seconds)
    return Equations(
        amounts=np.column_stack([np.ones_like(kv), kv, prefill, batch, np.sqrt(batch)]),
        knees=np.zeros(0),
        beyond=np.zeros((kv.size, 0)),
        overhead=none,
        offset=none,
        seconds=seconds,
        kind=np.full(kv.size, Kind.TPOT.value),
        group=np.arange(kv.size),
        source=np.zeros_like(line),
        line=line,
        kv_tokens=kv,
        prefill_tokens=prefill,
        sequences=batch,
        prefill_peak=np.full(kv.size, np.nan),
    )


def _mean_iteration(point: Point) -> tuple[float, float, float, float]:
    """KV tokens, prefill tokens, sequences and seconds."""
    prompt, output = sum(point.inputs) / 2, sum(point.outputs) / 2
    rate, later = point.rate_rps or 0.0, max(output - 1, 1.0)
    seconds = point.tpot_s or max((point.e2e_s or 0.0) - (point.ttft_s or 0.0), 0.0) / later
    if seconds == 0:  # a rate and TTFT alone: the upper limit of what an iteration took
        seconds = (point.ttft_s or 1.0 / rate) / 2
    batch = rate * later * seconds
    return batch * (prompt + output / 2), rate * prompt * seconds, max(batch, 1.0), seconds


class _Row(NamedTuple):
    load: _Load
    kind: Kind
    seconds: float
    offset: float
    amounts: FloatArray  # of d0 … d4, of the overhead, and of d5 for each knee
    state: FloatArray  # mean KV tokens, prefill tokens, sequences
    peak: float  # most prefill tokens of an iteration


def play(
    sweeps: Sequence[Sweep],
    replica: Replica = UNLIMITED,
    law: Law = UNIT,
    *,
    progress: Progress | None = None,
    announce: Announce | None = None,
) -> Equations:
    """The equations of load sweeps, one for each time that was measured.

    E2E says of the time after the first token what TPOT says, and so does the time between completions; of the three
    the first that was measured counts, TPOT before E2E.

    Parameters
    ----------
    replica
        What the engine has and allows.
    law
        By which they are played.
    """
    loads = [
        _load(number, point, sweep, replica) for number, sweep in enumerate(sweeps) for point in sweep.points
    ]
    first = _times(loads, [[law]] * len(loads), None, announce)
    steps = [_steps(load, law, times[0]) for load, times in zip(loads, first, strict=True)]
    laws = [[_more(law, *step) for step in mine] for mine in steps]
    others = _times(loads, laws, progress, announce)
    rows: list[_Row] = []
    for load, mine, (base,), changed in zip(loads, steps, first, others, strict=True):
        slopes = (changed - base) / np.array([step for _, _, step in mine])[:, None]
        rows += _rows(load, law, base, slopes)
    knees = np.array([knee for name, knee, _ in steps[0] if name == "d5"])
    return _equations(rows, knees)


def requests_of(point: Point) -> Requests:
    """The requests of a point, lengths drawn where they have a range; the same each time.

    Examples
    --------
    >>> some = requests_of(Point(line=1, inputs=(80, 100), outputs=(5, 5), concurrency=8, tpot_s=0.01))
    >>> some.clients, some.arrival_s.size, set(some.decode_tokens.tolist())
    (8, 80, {5})
    """
    rng = np.random.default_rng(0)
    size = point.requests or _EACH * (point.concurrency or _MOST)
    size = min(max(size, _LEAST), _MOST)
    clients, arrival = point.concurrency, np.zeros(size)
    if point.rate_rps is not None:
        gaps = np.ones(size) if point.evenly else rng.standard_exponential(size)
        clients, arrival = None, np.cumsum(gaps) / point.rate_rps
    none = np.zeros(size, dtype=np.int64)
    return Requests(arrival, _drawn(rng, point.inputs, size), _drawn(rng, point.outputs, size), none, clients)


def _drawn(rng: np.random.Generator, lengths: Range, size: int) -> IntArray:
    return rng.integers(max(lengths[0], 1), max(lengths[1], 1), size, endpoint=True)


def _load(number: int, point: Point, sweep: Sweep, replica: Replica) -> _Load:
    nobody = RequestClass("", 1, (1,), (1.0,), 0.0)
    scenario = Scenario(ServingModel((nobody,), UNIT.timing, replica), Plan(), requests_of(point), ("",))
    return _Load(
        point, sweep.source, number, scenario, Settings(_POLICY.get(sweep.deployment.engine, "vllm"), {})
    )


def _times(
    loads: Sequence[_Load],
    laws: Sequence[Sequence[Law]],
    progress: Progress | None,
    announce: Announce | None,
) -> list[FloatArray]:
    """Mean times of each load at each of its laws, seconds, and its peak of prefill tokens: (n_laws, n_kinds + 1)."""
    jobs = [[load.job(law) for law in mine] for load, mine in zip(loads, laws, strict=True)]
    outcomes = run_to_the_end(jobs, progress, announce, compile=True)
    return [
        np.array([_of_run(load, run) for run in runs]) for load, runs in zip(loads, outcomes, strict=True)
    ]


def _of_run(load: _Load, run: Outcome) -> tuple[float, ...]:
    if not run.finished:
        tokens = load.scenario.model.replica.memory_tokens
        message = f"its requests do not fit a memory of {tokens:,} tokens, --capacity or that of --base"
        raise ProfileError(load.file, message, line=load.point.line)
    ttft, e2e = run.ttft_s, run.e2e_s
    later = load.scenario.requests.decode_tokens - 1
    tpot = (e2e - ttft)[later > 0] / later[later > 0]
    return ttft.mean(), tpot.mean() if tpot.size else 0.0, e2e.mean(), run.end_s / ttft.size, run.prefill_peak


def _steps(load: _Load, law: Law, times: FloatArray) -> list[tuple[str, float, float]]:
    """Constants to change, the knee of each and by how much: about a hundredth of an iteration."""
    point, (_, _, e2e, interval, _) = load.point, times
    sequences = max(float(e2e / interval), 1.0)
    prompt, output = sum(point.inputs) / 2, sum(point.outputs) / 2
    computed = max(sequences * (prompt + output) / max(output, 1.0), 1.0)
    amounts = {
        "d0": 1.0,
        "d1": sequences * (prompt + output / 2),
        "d2": max(computed - sequences, 1.0),
        "d3": sequences,
        "d4": sequences**0.5,
    }
    step = _STEP * law.timing.d0
    linear = [(name, 0.0, step / amount) for name, amount in amounts.items()]
    knees = (law.timing.knee_tokens,) if law.timing.d5 > 0 else _KNEES
    return [*linear, (_OVERHEAD, 0.0, step), *(("d5", knee, step / computed) for knee in knees)]


def _more(law: Law, name: str, knee: float, step: float) -> Law:
    if name == _OVERHEAD:
        return law._replace(request_overhead_s=law.request_overhead_s + step)
    kept = law.timing.knee_tokens if knee == 0 else knee
    more = {name: getattr(law.timing, name) + step, "knee_tokens": kept}
    return law._replace(timing=replace(law.timing, **more))


def _rows(load: _Load, law: Law, base: FloatArray, slopes: FloatArray) -> Iterator[_Row]:
    """What was measured of a point, as the slopes of its times by the constants."""
    point = load.point
    seconds = (point.ttft_s, point.tpot_s, point.e2e_s, point.throughput_rps and 1 / point.throughput_rps)
    known = [kind for kind, time in zip(_KINDS, seconds, strict=True) if time is not None]
    counted = [kind for kind in known if kind is Kind.TTFT] + [
        kind for kind in known if kind is not Kind.TTFT
    ][:1]
    linear = (*law.timing.constants[:5], law.request_overhead_s)
    constants = np.array([*linear, *[law.timing.d5] * (len(slopes) - len(linear))])
    interval = _KINDS.index(Kind.INTERVAL)
    state = slopes[1:4, interval] / slopes[0, interval]
    for kind in counted:
        column = _KINDS.index(kind)
        amounts, time = slopes[:, column], seconds[column]
        assert time is not None
        offset = float(base[column] - amounts @ constants)
        yield _Row(load, kind, time, offset, amounts, state, float(base[-1]))


def _equations(rows: Sequence[_Row], knees: FloatArray) -> Equations:
    amounts, state = (np.array([getattr(row, name) for row in rows]) for name in ("amounts", "state"))
    lines = [(row.load.source, row.load.point.line) for row in rows]
    levels = np.array([float(row.load.point.concurrency or row.load.point.rate_rps or 0) for row in rows])
    if np.ptp(levels) == 0:  # one load: each shape of request for itself
        levels = np.unique(np.array(lines), axis=0, return_inverse=True)[1].reshape(-1)
    group = np.unique(levels, return_inverse=True)[1]
    return Equations(
        amounts=amounts[:, :5],
        knees=knees,
        beyond=amounts[:, 6:],
        overhead=amounts[:, 5],
        offset=np.array([row.offset for row in rows]),
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
