"""Drain time of a burst: the time until the queue that it leaves is gone, measured.

A standard burst comes upon a replica that serves its offered rate: four times that rate for a minute, or for the mean
stay in a full replica where that is longer. With sessions three times as many new sessions as come in two minutes begin
at once; users of a closed population all ask at once. Afterwards requests come at the offered rate again.
"""

import math
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from kvplan.analysis.cached_equilibrium import users_of
from kvplan.analysis.equilibrium import per_request, saturation, sustainable_rate
from kvplan.analysis.fleet import steady_replica
from kvplan.model import Plan, ServingModel
from kvplan.model.schedule import Steps
from kvplan.simulation.backlog import OpenRun
from kvplan.simulation.experiments.load import Load, generate
from kvplan.simulation.experiments.runner import at_once
from kvplan.simulation.policies import engine_settings
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Requests, with_drafts
from kvplan.simulation.sessions import Burst, merged, stream_of_sessions
from kvplan.study.operating_point import as_run
from kvplan.study.windows import life_s, typical_iteration_s

DAY_S = 86_400.0
SEEDS, ENOUGH = 5, 4  # runs, and how many of them have to be back to normal in time
_AT_ONCE = 2  # of them, where it matters alone whether so many are
_RECOVER_S, _RECOVER_STAYS = (
    900.0,
    3.0,
)  # that a burst may be felt, at least; mean stays in a full replica, or lives
_TIMES, _LEAST_S = 4.0, 60.0  # the offered rate while the burst lasts, and how long at least
_SESSIONS_S, _SESSIONS_TIMES = 120.0, 3.0  # sessions of so many seconds, so many times, at once
_MOST_REQUESTS = 1_000_000  # of a run
_MOST_BURST = 2_000_000  # requests until it ends
_WORK_S, _REQUEST_S, _ITERATION_S = 1.0, 1e-6, 20e-9  # of a run, counted
_STEPS = 8  # looks at the queue in the time for which it has to be empty
_NEAR = 0.85  # the highest load of which the first horizon is guessed
_LONGER = 4.0  # times so long is the next one
# after the burst, before the queue is judged: mean stays, times for which it has to be empty, requests
_LOOK_STAYS, _LOOK_QUIET, _LOOK_REQUESTS = 20.0, 4.0, 2_000.0
_PIECES, _ERRORS = 16, 3.0  # of the time in which it is judged; standard errors of its slope


class Drain(NamedTuple):
    """Time from the end of a standard burst until its queue is gone."""

    burst_requests: float | None  # expected, that come in the burst itself: of sessions their first turns
    # the median of the runs, the least and the most of them; None: not within what was simulated
    seconds: float | None
    low: float | None
    high: float | None
    reason: str = ""  # why there is no time
    preempted: int | None = None  # from the burst's begin until it is gone, the median of the runs
    of_sessions: bool = False  # the requests of the burst begin sessions
    runs_s: tuple[float, ...] = ()  # of each run, ascending; infinite where it does not end

    def within(self, seconds: float) -> int:
        """Return the number of runs that were back to normal by then."""
        return sum(run_s <= seconds for run_s in self.runs_s)


class _Course(NamedTuple):
    """Begin and end of the burst, the time for which the queue has to be empty, and its fastest decrease."""

    begin_s: float
    end_s: float
    quiet_s: float
    step_s: float
    sessions: int
    fastest_rps: float
    of_users: bool = False  # all users of a closed population


class _Run(NamedTuple):
    """Seconds after the burst, infinite where the queue is not gone, and those simulated."""

    drained_s: float
    simulated_s: float
    grows: bool
    preempted: int


def drain(model: ServingModel, plan: Plan, first_seed: int = 0, within_s: float = math.inf) -> Drain:
    """Measure the time until the queue of a standard burst stays empty for a mean stay, or for a session's life.

    The time is the end of the step in which the queue was first seen empty. Of a fleet one replica with its share is
    looked at; rates are those of the classes, whatever a schedule makes of them; requests of a trace come at random. A
    queue is empty if it is found empty eight times in that time: a request that waits for an iteration, or for the
    prompt before it, is no queue. Below .9 of what a saturated replica serves the time is the queue over the
    difference of the rates. Runs go on until it is known whether the time is more than `within_s`, and there are only
    as many of them as tell whether enough are in time.
    """
    return _drain(as_run(steady_replica(model)), plan, first_seed, within_s)


@lru_cache(maxsize=8)  # verdict, long runs and headroom ask alike
def _drain(alone: ServingModel, plan: Plan, first_seed: int, within_s: float) -> Drain:
    course = _course(alone)
    burst = _requests(alone, course)
    if burst < 1:
        return Drain(burst, None, None, None, "less than a request comes in such a burst")
    if (coming := burst + alone.total_rate_rps * course.begin_s) > _MOST_BURST:
        reason = (
            f"{coming:,.0f} requests come until the burst ends, and at most {_MOST_BURST:,} are simulated"
        )
        return Drain(burst, None, None, None, reason)
    drained_of = partial(_drained, alone, plan, engine_settings(alone), course, course.end_s + within_s)
    runs: list[_Run] = []
    while len(runs) < SEEDS and not (math.isfinite(within_s) and _is_known(runs, within_s)):
        more = _AT_ONCE if math.isfinite(within_s) else SEEDS
        begin = first_seed + len(runs)
        runs += at_once(drained_of, range(begin, min(begin + more, first_seed + SEEDS)))
    times = sorted(run.drained_s for run in runs)
    middle = times[len(runs) // 2]
    seconds, low, high = (None if math.isinf(t) else t for t in (middle, times[0], times[-1]))
    drained = Drain(burst, seconds, low, high, of_sessions=course.sessions > 0, runs_s=tuple(times))
    if seconds is None:
        return drained._replace(reason=_reason(runs))
    return drained._replace(preempted=sorted(run.preempted for run in runs)[len(runs) // 2])


def _is_known(runs: list[_Run], within_s: float) -> bool:
    """Tell whether enough runs are normal in time, or too many are not."""
    late = sum(run.drained_s > within_s for run in runs)
    return late > SEEDS - ENOUGH or len(runs) - late >= ENOUGH


def recover_s(model: ServingModel) -> float:
    """Return the time for which a burst may be felt where nobody says: 15 minutes, or three stays, or session lives."""
    return max(_RECOVER_S, _RECOVER_STAYS * _course(as_run(steady_replica(model))).quiet_s)


def _course(model: ServingModel) -> _Course:
    full = saturation(model)
    stay_s = full.iteration_time_s * per_request(model).iterations
    begin_s = life_s(model)
    kinds = [(c, c.sessions) for c in model.classes if c.sessions is not None]
    if not kinds:
        return _Course(
            begin_s, begin_s + max(_LEAST_S, stay_s), stay_s, stay_s / _STEPS, 0, full.throughput_rps
        )
    turn_s = typical_iteration_s(model) * per_request(model).iterations
    life = max(s.turns.mean * (s.think.mean_s + turn_s) for _, s in kinds)
    quiet_s, step_s = max(stay_s, life), stay_s / _STEPS
    if len(kinds) == len(model.classes) and (users := users_of(model)):
        return _Course(0.0, 0.0, quiet_s, step_s, users, full.throughput_rps, of_users=True)
    rate = sum(c.rate_rps / s.turns.mean for c, s in kinds if not s.name)
    sessions = round(_SESSIONS_TIMES * _SESSIONS_S * rate)
    return _Course(begin_s, begin_s, quiet_s, step_s, sessions, full.throughput_rps)


def _requests(model: ServingModel, course: _Course) -> float:
    return course.sessions or _TIMES * model.total_rate_rps * (course.end_s - course.begin_s)


def _reason(runs: list[_Run]) -> str:
    if sum(run.grows for run in runs) > SEEDS // 2:
        return "the queue does not become shorter, or too slowly for a day"
    hours = min(run.simulated_s for run in runs if math.isinf(run.drained_s)) / 3600
    return "not within a day" if hours > 23.9 else f"not within the {hours:.2g} h that were simulated"


def _drained(
    model: ServingModel, plan: Plan, settings: Settings, course: _Course, by_s: float, seed: int
) -> _Run:
    rate = model.total_rate_rps
    most_s = min(course.end_s + DAY_S, max(_MOST_REQUESTS / rate, course.end_s + 2 * course.quiet_s))
    most_s = min(most_s, by_s + 2 * course.quiet_s)
    horizon_s = course.end_s + _first_s(model, course)
    while True:
        horizon_s = min(horizon_s, most_s)
        requests = _drawn(model, course, horizon_s, seed)
        names = tuple(c.name for c in model.classes)
        run = OpenRun(Scenario(model, plan, requests, names, seed), settings, horizon_s)
        seen = _watched(run, course, rate)
        if seen.drained_s < math.inf or seen.grows or horizon_s == most_s or run.stuck:
            return seen
        if requests.arrival_s.size > _MOST_REQUESTS:  # of users as many are drawn as they could send
            return seen
        if seen.simulated_s < horizon_s - course.end_s - course.quiet_s:  # the work is used up
            return seen
        horizon_s = course.end_s + _LONGER * (horizon_s - course.end_s)


def _first_s(model: ServingModel, course: _Course) -> float:
    """Guess the time if nothing is lost to evictions, and half as long again."""
    load = min(model.total_rate_rps / sustainable_rate(model)[1], _NEAR)
    burst_s = course.end_s - course.begin_s or _SESSIONS_TIMES * _SESSIONS_S
    return 2 * course.quiet_s + 1.5 * burst_s * max(_TIMES * load - 1, 0.0) / (1 - load)


def _drawn(model: ServingModel, course: _Course, horizon_s: float, seed: int) -> Requests:
    load = Load(requests=None, horizon_s=horizon_s)
    kinds = [(i, c.sessions) for i, c in enumerate(model.classes) if c.sessions is not None]
    if course.of_users:
        drawn = generate(model, load, seed)
        return replace(drawn, arrival_s=np.where(np.isnan(drawn.arrival_s), math.nan, course.begin_s))
    burst = Burst(course.sessions, course.begin_s)
    if any(s.users is None for _, s in kinds):
        return generate(model, load._replace(burst_sessions=burst), seed)
    if kinds:  # all of users, who are joined by others
        others, rng = [replace(s, users=None) for _, s in kinds], np.random.default_rng([seed, 2])
        rates = [model.classes[i].rate_rps / s.turns.mean for i, s in kinds]
        more = stream_of_sessions(others, rates, rng, requests=None, horizon_s=0.0, burst=burst)
        more = replace(more, class_index=np.array([i for i, _ in kinds])[more.class_index])
        joined = merged([generate(replace(model, drafts=None), load, seed), more])
        return joined if model.drafts is None else with_drafts(joined, model.drafts, rng)
    own = len(model.classes)
    steps = ((1.0,) * own, (_TIMES,) * own, (1.0,) * own)
    schedule = Steps(horizon_s, (0.0, course.begin_s, course.end_s), steps)
    return generate(replace(model, schedule=schedule), load, seed)


def _watched(run: OpenRun, course: _Course, rate: float) -> _Run:
    """Go on until the queue is gone, or surely stays."""
    before_burst = run.on(course.begin_s).preempted
    queue = run.on(course.end_s)
    empty_s: float | None = None  # since when it is
    first = course.sessions > 0  # step, in which all of them come: the queue was empty before
    times, least = [queue.end_s], [queue.waiting]
    look_s = max(_LOOK_STAYS * _STEPS * course.step_s, _LOOK_QUIET * course.quiet_s, _LOOK_REQUESTS / rate)
    doubts = 0
    while not run.ended:
        before = queue
        wide = max(course.step_s, before.waiting / (_STEPS * course.fastest_rps))
        queue = run.on(before.end_s + wide)
        if queue.least > 0 or (first and queue.waiting > 0):
            empty_s = None
        elif empty_s is None:
            empty_s = queue.end_s
        first = False
        if empty_s is not None and queue.end_s - empty_s >= course.quiet_s:
            passed, preempted = queue.end_s - course.end_s, queue.preempted - before_burst
            return _Run(max(empty_s - course.end_s, 0.0), passed, False, preempted)
        times.append(queue.end_s)
        least.append(queue.least)
        passed = queue.end_s - course.end_s
        if queue.completed * _REQUEST_S + queue.iterations * _ITERATION_S > _WORK_S:
            break
        if passed >= look_s:
            look_s *= 2
            doubts = doubts + 1 if _stays(times, least, course.end_s + DAY_S) else 0
            if doubts == 2:
                return _Run(math.inf, passed, True, 0)
    return _Run(math.inf, queue.end_s - course.end_s, run.stuck, 0)


def _stays(times: list[float], least: list[int], end_s: float) -> bool:
    """Tell whether the queue lasts until then, even if it falls as fast as is plausible by the second half."""
    begin, now = (times[0] + times[-1]) / 2, times[-1]
    at = np.interp(np.linspace(begin, now, _PIECES + 1), times, least)
    more = np.diff(at)
    fastest = float(more.mean() - _ERRORS * more.std(ddof=1) / math.sqrt(_PIECES))
    return float(at[-1]) + fastest * (end_s - now) * _PIECES / (now - begin) > 0
