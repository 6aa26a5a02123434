"""Trials of a warm prefix cache where one burst can empty it: how long it lasts, measured.

Formulas say that a warm state exists at a rate above the guaranteed one, not for how long. Runs of the simulator that
knows every block show it: alone, and after a burst that fills memory once with what nobody has asked for before. They
are evidence beside the verdict, which rests on none of them.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from kvplan.analysis.cache_states import CachedReplica, cached_replica
from kvplan.analysis.equilibrium import per_request
from kvplan.analysis.fleet import steady_replica
from kvplan.analysis.prefix_cache import CacheState, full_memory, prefix_cache
from kvplan.model import FloatArray, Plan, ServingModel
from kvplan.simulation.experiments.load import Load, generate
from kvplan.simulation.experiments.runner import Job, Progress, at_once, run_to_the_end
from kvplan.simulation.initial_state import Spans
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.policies import engine_settings
from kvplan.simulation.policies.protocol import Policy, Scenario
from kvplan.simulation.requests import Requests, saturated
from kvplan.simulation.sessions import Burst, merged
from kvplan.simulation.state import Span
from kvplan.study.warm_up import life_s, typical_iteration_s, warm_up_s

RUNS = 5  # alone, and as many with a burst
_SEED = 70_000
_LENGTH_S, _LIVES = 10_000.0, 100  # of a run, whichever is longer
_BUDGET_S, _REQUEST_S, _ITERATION_S = 4.0, 1e-6, 20e-9  # counted work of all runs
_MOST_WARM_UP = 0.2  # of the length
_PARTS = 32  # of a run, each of which is warm or not
_LAST = _PARTS // 4  # of them, which tell how it ended
_SLACK, _SLACK_SHARE = (
    2.0,
    0.02,
)  # requests that may always wait in a part that is warm; share of its arrivals


class Trial(NamedTuple):
    """Runs of a replica whose warm cache can be lost: so many alone, and as many with a burst after the warm-up.

    Attributes
    ----------
    lasted, survived_burst
        Runs that were warm in the end: alone, and with a burst.
    hit_ratio
        Of the prompt tokens, in the runs alone that lasted; None where none did.
    seconds
        Length of a run after its warm-up.
    burst, of_sessions
        Sessions that begin at once, or requests that nobody asks for again: as many as leave a full memory.
    lasts_s
        Mean time until a warm cache is lost without a burst; None where all runs lasted, 0 where no run from an empty
        replica became warm.
    served_rps
        Once it is lost, requests/s; None where it never was.
    """

    runs: int
    lasted: int
    survived_burst: int
    hit_ratio: float | None
    seconds: float
    burst: int
    of_sessions: bool
    lasts_s: float | None
    served_rps: float | None


class _Warmth(NamedTuple):
    """From which hit ratio on a part of a run is warm, and how many may always wait in it."""

    hit_ratio: float
    waiting: float


class _Course(NamedTuple):
    """Parts of a run that were warm, whether it ended so, and what it found and served."""

    warm_parts: int
    lasted: bool
    hit_tokens: float
    prompt_tokens: float
    served: float  # in its last parts


class _Run(NamedTuple):
    """A run of which only its course is kept."""

    job: Job
    spans: Spans
    warmth: _Warmth

    @property
    def scenario(self) -> Scenario:
        return self.job.scenario

    @property
    def policy(self) -> Policy:
        return self.job.policy

    def run(
        self, watch: Callable[[int], bool], announce: Callable[[bool], None] | None, compile: bool | None
    ) -> _Course:
        outcome = self.job.run(watch, announce, compile)
        return _course(self.scenario.requests, outcome, self.spans, self.warmth)


def warm_cache(model: ServingModel, plan: Plan, progress: Progress | None = None) -> Trial | None:
    """Try at the offered rate how long a prefix cache stays warm that a burst can empty.

    A part of a run is warm if requests find more than half of what a warm cache finds beyond a cold one, and at some
    moment hardly anybody waits. A run lasts if most of its last quarter is warm. Of a fleet one replica with its share
    is looked at; rates are those of the classes, whatever a schedule makes of them, and where they are from a trace
    requests come at random. None where a burst cannot empty the cache, not even a warm one serves what is offered, or a
    hit curve was measured, of which no run knows what hits.
    """
    model = steady_replica(model)
    if not (model.finds_prefixes and model.is_plain) or model.hit_curve:
        return None
    cached = cached_replica(model)
    found = prefix_cache(cached)
    if not found.collapse_possible or found.warm is None:
        return None
    begin_s, length_s = _times(model, found.warm)
    spans, warmth = Spans(begin_s, length_s / _PARTS, _PARTS), _warmth(cached, found.warm, length_s)
    burst = burst_size(cached)
    seeds = range(_SEED, _SEED + RUNS)
    rows = [at_once(partial(_run, model, plan, spans, warmth, size), seeds) for size in (0, burst)]
    alone, after = run_to_the_end(rows, progress, compile=True)
    lasted, lost = [c for c in alone if c.lasted], [c for c in (*alone, *after) if not c.lasted]
    warm_s = spans.width_s * sum(course.warm_parts for course in alone)
    return Trial(
        runs=RUNS,
        lasted=len(lasted),
        survived_burst=sum(course.lasted for course in after),
        hit_ratio=sum(c.hit_tokens for c in lasted) / sum(c.prompt_tokens for c in lasted)
        if lasted
        else None,
        seconds=length_s,
        burst=burst,
        of_sessions=_begins_sessions(model),
        lasts_s=warm_s / (RUNS - len(lasted)) if len(lasted) < RUNS else None,
        served_rps=sum(c.served for c in lost) / (len(lost) * _LAST * spans.width_s) if lost else None,
    )


def _times(model: ServingModel, warm: CacheState) -> tuple[float, float]:
    """Return warm-up and length of a run, seconds, as long as the work allows."""
    gap = max((c.reuse.gap.mean_s for c in model.classes if c.reuse is not None), default=0.0)
    length = max(_LENGTH_S, _LIVES * (life_s(model) + gap))
    rate = model.total_rate_rps
    iterations = min(1 / typical_iteration_s(model), rate * per_request(model).iterations)
    length = min(length, _BUDGET_S / (2 * RUNS * (rate * _REQUEST_S + iterations * _ITERATION_S)))
    kept = warm.characteristic_time_s or 0.0
    return min(warm_up_s(model) + gap + kept, _MOST_WARM_UP * length), length


def _warmth(cached: CachedReplica, warm: CacheState, length_s: float) -> _Warmth:
    """Return the threshold half way from a cold cache to a warm one; of users some may wait at all times."""
    found = (float(full_memory(cached).hits[0]) + warm.hit_tokens) / 2
    waiting = max(_SLACK, _SLACK_SHARE * cached.rate_rps * length_s / _PARTS)
    return _Warmth(found / cached.mean("prompt"), waiting if cached.users is None else math.inf)


def burst_size(cached: CachedReplica) -> int:
    """Return the sessions, or requests that nobody asks for again, that fill memory once with what they leave."""
    return math.ceil(cached.replica.capacity_tokens / max(cached.left, cached.replica.block_tokens))


def _begins_sessions(model: ServingModel) -> bool:
    return any(c.sessions is not None and c.sessions.users is None for c in model.classes)


def with_burst(model: ServingModel, end_s: float, burst: int, at_s: float, seed: int) -> Requests:
    """Draw the requests until a time, with a burst among them: of new sessions, or else of strangers."""
    load, sessions = Load(requests=None, horizon_s=end_s), _begins_sessions(model)
    if sessions and burst:
        load = load._replace(burst_sessions=Burst(burst, at_s))
    requests = generate(model, load, seed)
    if not sessions and burst:
        strangers = saturated(model, np.random.default_rng([seed, 1]), requests=burst)
        requests = merged([requests, replace(strangers, arrival_s=np.full(burst, at_s))])
    return requests


def _run(model: ServingModel, plan: Plan, spans: Spans, warmth: _Warmth, burst: int, seed: int) -> _Run:
    end_s = spans.begin_s + spans.number * spans.width_s
    requests = with_burst(model, end_s, burst, spans.begin_s, seed)
    scenario = Scenario(model, plan, requests, tuple(c.name for c in model.classes), seed)
    return _Run(Job(engine_settings(model), scenario, end_s, spans), spans, warmth)


def _course(requests: Requests, run: Outcome, spans: Spans, warmth: _Warmth) -> _Course:
    assert run.spans is not None
    assert run.found is not None

    def by_part(time_s: FloatArray, amount: FloatArray) -> FloatArray:
        part = np.floor((time_s - spans.begin_s) / spans.width_s)
        inside = np.flatnonzero((part >= 0) & (part < spans.number))
        total = np.bincount(part[inside].astype(np.int64), amount[inside], spans.number)
        return np.asarray(total, dtype=np.float64)

    prompts = by_part(run.first_token_s, requests.input_tokens.astype(np.float64))
    hits = by_part(run.first_token_s, run.found.hit_tokens.astype(np.float64))
    warm = (hits >= warmth.hit_ratio * prompts) & (run.spans.sums[:, Span.LEAST_WAITING] <= warmth.waiting)
    return _Course(
        warm_parts=int(warm.sum()),
        lasted=int(warm[-_LAST:].sum()) > _LAST // 2,
        hit_tokens=float(hits.sum()),
        prompt_tokens=float(prompts.sum()),
        served=float(by_part(run.finish_s, np.ones(run.finish_s.size))[-_LAST:].sum()),
    )
