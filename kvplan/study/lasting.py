"""Test of a rate that has to last: runs of a day at a little more, since what ends a replica is rare.

The hazard falls tenfold with each per cent of the rate, so that a day at 1 % more stands for many at the rate itself.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from kvplan.analysis.fleet import one_replica
from kvplan.model import Plan, ServingModel
from kvplan.simulation.estimates import Trend, trend
from kvplan.simulation.experiments.runner import at_once
from kvplan.simulation.initial_state import Spans
from kvplan.simulation.policies.protocol import Settings
from kvplan.study.objectives import Decision, Objective, decisions
from kvplan.study.operating_point import (
    Observation,
    as_run,
    counted_work_s,
    period_s,
    run_window,
    work_factor,
)
from kvplan.study.sample import Sample
from kvplan.study.windows import life_s, warm_up_s

MARGIN = 1.01  # times the rate that is to last
_DAY_S = 86_400.0
_SEEDS, _AT_ONCE = 4, 2
_MOST_REQUESTS, _FEWEST = 500_000, 2_500  # of a run
_MOST_SPLIT = 125_000  # of a run whose prefill and decode replicas both keep a row for every request
_MOST_WORK_S = 0.5  # counted, of a run
_LONG = 4  # times what a request, or a session, stays, at least
_AT_FIRST = 0.125  # of the length, to see soon what does not last for long
_LEFT_OUT = 0.05  # of a run, at its start
_BATCHES = 48
_STREAM = 500_000  # seeds that nothing else has


class Trial(NamedTuple):
    """Verdict on all runs at a rate, and the length of each, seconds."""

    lasts: bool
    run_s: float


class Course(NamedTuple):
    """A run: trend of its queue, number of requests done, and state of each objective."""

    grows: bool
    completed: int
    decided: tuple[Decision, ...]


def trial(model: ServingModel, plan: Plan, settings: Settings, objectives: Sequence[Objective]) -> Trial:
    """Run the model at its rates for a day, four times, and tell whether the objectives hold over all runs.

    Runs are shorter where a day has more than half a million requests, of prefill and decode apart a quarter, or
    more iterations than is affordable.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> from kvplan.model.slo import parse_slo
    >>> model = ServingModel((RequestClass("a", 20, (5,), (1.0,), 0.05),), Timing(0.01), Replica(10_000))
    >>> trial(model, Plan(), Settings("vllm", {}), [parse_slo("itl_s.mean <= 11 ms")])
    Trial(lasts=True, run_s=86400.0)
    """
    length, least = _length_s(model, settings)
    for run_s in (max(least, _AT_FIRST * length), length):
        seen: list[Course] = []
        while len(seen) < _SEEDS:
            first = _STREAM + len(seen)
            seen += runs(model, plan, settings, objectives, range(first, first + _AT_ONCE), run_s)
            if any(course.grows for course in seen) or (run_s == length and _is_missed(seen)):
                return Trial(False, length)
    return Trial(True, length)


def runs(
    model: ServingModel,
    plan: Plan,
    settings: Settings,
    objectives: Sequence[Objective],
    seeds: Sequence[int],
    run_s: float | None = None,
) -> list[Course]:
    """Run the model at its rates with each seed, for `run_s`; None: a day, or what is affordable."""
    model = as_run(model)
    run_s = run_s or _length_s(model, settings)[0]
    begin_s = max(_LEFT_OUT * run_s, warm_up_s(one_replica(model)))
    spans = Spans(begin_s, run_s / _BATCHES, _BATCHES)
    return at_once(partial(_course, model, plan, settings, objectives, spans), seeds)


def _length_s(model: ServingModel, settings: Settings) -> tuple[float, float]:
    """Return the length of runs, and the least that will do."""
    alone, rate = one_replica(model), model.total_rate_rps
    work_s = work_factor(model, settings) * counted_work_s(alone, rate, _DAY_S)
    least = max(_FEWEST / rate, _LONG * life_s(alone))
    requests = _MOST_SPLIT if model.fleet is not None and model.fleet.is_split else _MOST_REQUESTS
    most = min(_DAY_S, requests / rate, _DAY_S * _MOST_WORK_S / work_s)
    length, period = max(least, most), period_s(model)
    if period is None:
        return length, least
    length = max(1, round(length / period)) * period
    return length, length


def _course(
    model: ServingModel,
    plan: Plan,
    settings: Settings,
    objectives: Sequence[Objective],
    spans: Spans,
    seed: int,
) -> Course:
    seen = run_window(model, plan, settings, spans, seed)
    judged = Trend.GROWING if seen.stuck else trend(seen.least, model.total_rate_rps * spans.width_s)
    observed = Observation(Sample((seen,)), judged, (), 0.0)
    return Course(judged is Trend.GROWING, seen.batch.size, decisions(observed, objectives))


def _is_missed(seen: Sequence[Course]) -> bool:
    """Tell whether an objective is missed over all runs, even if the rest had nothing beyond it."""
    completed = sum(course.completed for course in seen) * _SEEDS / len(seen)
    by_objective = zip(*(course.decided for course in seen), strict=True)
    return any(
        sum(decision.share * course.completed for decision, course in zip(decided, seen, strict=True))
        > decided[0].allowed * completed
        for decided in by_objective
    )
