"""Trials of a prefix cache that a burst can empty: the time it stays warm, and limits that end its collapse.

Formulas say that a warm state exists at a rate above the guaranteed one, not for how long. Runs of the simulator that
knows every block show it: alone, and after a burst that fills memory once with what nobody has asked for before. They
are evidence beside the verdict, which rests on none of them.

A burst leaves memory full of requests in flight, which all miss. A limit on running requests leaves room for what the
next ones ask for, one on waiting ends the queue. Neither ends a collapse alone; where the replica has a limit on
running requests, a bound on waiting is tried beside it.
"""

import math
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from kvplan.analysis.cache_states import CachedReplica, cached_replica
from kvplan.analysis.equilibrium import per_request
from kvplan.analysis.fleet import steady_replica
from kvplan.analysis.prefix_cache import PrefixCache, full_memory, prefix_cache
from kvplan.model import FloatArray, Plan, ServingModel
from kvplan.simulation.experiments.load import Load, generate
from kvplan.simulation.experiments.runner import Job, Progress, at_once, run_to_the_end
from kvplan.simulation.initial_state import Spans
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.policies import POLICIES, engine_settings
from kvplan.simulation.policies.protocol import SEATS, SHED_AFTER, Scenario, Settings
from kvplan.simulation.requests import saturated
from kvplan.simulation.sessions import Burst, merged
from kvplan.simulation.state import Span
from kvplan.study.windows import life_s, typical_iteration_s, warm_up_s

RUNS = 5  # alone, and as many with a burst
_SEED = 70_000
_LENGTH_S, _LIVES = 10_000.0, 100  # of a run, whichever is longer
_BUDGET_S, _REQUEST_S, _ITERATION_S = 4.0, 1e-6, 20e-9  # counted work of all runs
_MOST_WARM_UP = 0.2  # of the length
_PARTS = 32  # of a run, each of which is warm or not
_LAST = _PARTS // 4  # of them, which tell how it ended
_SLACK, _SLACK_SHARE = 2.0, 0.02  # requests that may always wait in a warm part; share of its arrivals

_LIMITED_SEEDS = range(80_000, 80_002)
_LIMITED_BURST = 3  # times as much as fills memory once
_OF_SEPARATRIX = 0.75  # running requests
_PATIENCE = 1 / 8  # of the time after which what nobody asks for is gone
_LIMITED_LIVES, _END = 8.0, 0.75  # length of a run in lives of sessions; from where its end counts
_CAPS = (0.25, 0.5, 0.75, 1.0, 1.25)  # of the conversations that fill memory with what they leave
_GIVEN_UP = 0.01  # share of the arrivals that may still be
_TIE = 0.02  # caps with which users are served within so much of the most differ by chance


class Trial(NamedTuple):
    """Runs of a replica whose warm cache can be lost: alone, and as many with a burst after the warm-up."""

    runs: int
    # runs that were warm in the end: alone, and with a burst
    lasted: int
    survived_burst: int
    hit_ratio: float | None  # of the prompt tokens, in the runs alone that lasted
    seconds: float  # length of a run after its warm-up
    # sessions that begin at once, or requests that nobody asks for again: as many as leave a full memory
    burst: int
    of_sessions: bool
    # mean time until a warm cache is lost without a burst; None where all runs lasted, 0 where none became warm
    lasts_s: float | None
    served_rps: float | None  # once it is lost


class Setting(NamedTuple):
    """A parameter of the engine's policy, and its value."""

    name: str
    value: float


class Gained(NamedTuple):
    """Settings, their relative gain in the rate under a backlog, and whether that sustains the offered rate."""

    settings: tuple[Setting, ...]
    gain: float
    sustains: bool


class Capped(NamedTuple):
    """A cap on conversations in flight, what it gains from the collapsed state, relative, and mean TTFT there."""

    cap: int
    gain: float
    ttft_s_without: float
    ttft_s_with: float


class _End(NamedTuple):
    """The end of a run: whether it is warm for all who come, the requests that it serves, and their mean TTFT."""

    warm: bool
    served: int
    ttft_s: float


class _Replica(NamedTuple):
    """A replica whose prefix cache a burst can empty."""

    model: ServingModel
    cached: CachedReplica
    state: PrefixCache

    @property
    def half_hits(self) -> float:
        """Tokens found of a request half way from a cold cache to a warm one, or one without end where none is."""
        warm = self.cached.reusable if self.state.warm is None else self.state.warm.hit_tokens
        return (float(full_memory(self.cached).hits[0]) + warm) / 2

    @property
    def keeps_s(self) -> float | None:
        """Time for which a warm cache keeps what nobody asks for; None if everything fits."""
        assert self.state.warm is not None
        return self.state.warm.characteristic_time_s

    @property
    def gap_s(self) -> float:
        """The longest mean time after which requests are asked for again."""
        return max((c.reuse.gap.mean_s for c in self.model.classes if c.reuse is not None), default=0.0)

    @property
    def burst(self) -> int:
        """Sessions, or requests that nobody asks for again, that fill memory once with what they leave."""
        replica = self.cached.replica
        return math.ceil(replica.capacity_tokens / max(self.cached.left, replica.block_tokens))

    @property
    def begins_sessions(self) -> bool:
        return any(c.sessions is not None and c.sessions.users is None for c in self.model.classes)

    def job(
        self,
        plan: Plan,
        settings: Settings,
        end_s: float,
        burst: Burst,
        seed: int,
        spans: Spans | None = None,
    ) -> Job:
        """Return a run with a burst among its requests: of new sessions, or else of strangers."""
        load, model = Load(requests=None, horizon_s=end_s), self.model
        if self.begins_sessions and burst.sessions:
            load = load._replace(burst_sessions=burst)
        requests = generate(model, load, seed)
        if not self.begins_sessions and burst.sessions:
            strangers = saturated(model, np.random.default_rng([seed, 1]), requests=burst.sessions)
            at_s = np.full(burst.sessions, burst.at_s)
            requests = merged([requests, replace(strangers, arrival_s=at_s)])
        scenario = Scenario(model, plan, requests, tuple(c.name for c in model.classes), seed)
        return Job(settings, scenario, end_s, spans)


class _Course(NamedTuple):
    """Warm parts of a run, its state at the end, and its hits and served rate."""

    warm_parts: int
    lasted: bool
    hit_tokens: float
    prompt_tokens: float
    served: float  # in its last parts


def _collapsible(model: ServingModel, *, cold: bool = False) -> _Replica | None:
    """Return one replica with its share; None if a burst cannot empty its cache, or no rate keeps it warm.

    Of users, who ask less often where they wait, it may always be `cold`. Rates are those of the classes, whatever a
    schedule makes of them, and where they are from a trace requests come at random. Measured hit curves do not say
    what hits.
    """
    model = steady_replica(model)
    if not model.finds_prefixes or model.drafts is not None or model.hit_curve:
        return None
    cached = cached_replica(model)
    state = prefix_cache(cached)
    lasts = state.warm is not None or (cold and cached.users is not None)
    return _Replica(model, cached, state) if state.collapse_possible and lasts else None


def warm_cache(model: ServingModel, plan: Plan, progress: Progress | None = None) -> Trial | None:
    """Measure how long a prefix cache that a burst can empty stays warm at the offered rate; None without one.

    A part of a run is warm if requests find more than half of what a warm cache finds beyond a cold one, and at some
    moment hardly anybody waits. A run lasts if most of its last quarter is warm.
    """
    replica = _collapsible(model)
    if replica is None:
        return None
    spans = _spans(replica)
    end_s = spans.begin_s + spans.number * spans.width_s
    bursts = Burst(0), Burst(replica.burst, spans.begin_s)
    settings, seeds = engine_settings(model), range(_SEED, _SEED + RUNS)
    rows = [
        at_once(partial(replica.job, plan, settings, end_s, burst, spans=spans), seeds) for burst in bursts
    ]
    alone, after = run_to_the_end(rows, progress, compile=True, kept=partial(_course, replica, spans))
    lasted, lost = [c for c in alone if c.lasted], [c for c in (*alone, *after) if not c.lasted]
    warm_s = spans.width_s * sum(course.warm_parts for course in alone)
    hits, prompts = (sum(getattr(c, name) for c in lasted) for name in ("hit_tokens", "prompt_tokens"))
    return Trial(
        runs=RUNS,
        lasted=len(lasted),
        survived_burst=sum(course.lasted for course in after),
        hit_ratio=hits / prompts if lasted else None,
        seconds=spans.number * spans.width_s,
        burst=replica.burst,
        of_sessions=replica.begins_sessions,
        lasts_s=warm_s / (RUNS - len(lasted)) if len(lasted) < RUNS else None,
        served_rps=sum(c.served for c in lost) / (len(lost) * _LAST * spans.width_s) if lost else None,
    )


def _spans(replica: _Replica) -> Spans:
    """Return the parts of a run after its warm-up, as long as the work allows."""
    model, rate = replica.model, replica.model.total_rate_rps
    length_s = max(_LENGTH_S, _LIVES * (life_s(model) + replica.gap_s))
    iterations = min(1 / typical_iteration_s(model), rate * per_request(model).iterations)
    length_s = min(length_s, _BUDGET_S / (2 * RUNS * (rate * _REQUEST_S + iterations * _ITERATION_S)))
    begin_s = warm_up_s(model) + replica.gap_s + (replica.keeps_s or 0.0)
    return Spans(min(begin_s, _MOST_WARM_UP * length_s), length_s / _PARTS, _PARTS)


def _course(replica: _Replica, spans: Spans, job: Job, run: Outcome) -> _Course:
    """Tell which parts of a run were warm; of users some may wait at all times."""
    assert run.spans is not None
    assert run.found is not None
    requests, cached = job.scenario.requests, replica.cached
    waiting = (
        max(_SLACK, _SLACK_SHARE * cached.rate_rps * spans.width_s) if cached.users is None else math.inf
    )

    def by_part(time_s: FloatArray, amount: FloatArray) -> FloatArray:
        part = np.floor((time_s - spans.begin_s) / spans.width_s)
        inside = np.flatnonzero((part >= 0) & (part < spans.number))
        total = np.bincount(part[inside].astype(np.int64), amount[inside], spans.number)
        return np.asarray(total, dtype=np.float64)

    prompts = by_part(run.first_token_s, requests.input_tokens.astype(np.float64))
    hits = by_part(run.first_token_s, run.found.hit_tokens.astype(np.float64))
    enough = replica.half_hits / cached.mean("prompt")
    warm = (hits >= enough * prompts) & (run.spans.sums[:, Span.LEAST_WAITING] <= waiting)
    return _Course(
        warm_parts=int(warm.sum()),
        lasted=int(warm[-_LAST:].sum()) > _LAST // 2,
        hit_tokens=float(hits.sum()),
        prompt_tokens=float(prompts.sum()),
        served=float(by_part(run.finish_s, np.ones(run.finish_s.size))[-_LAST:].sum()),
    )


def protection(model: ServingModel, plan: Plan) -> Gained | None:
    """Try, from the collapsed state, whether limits end the collapse of a prefix cache at the offered rate (theory §8).

    None without such a cache or such limits, or if a run recovers without them, or fails to with them.
    """
    replica, settings = _collapsible(model), engine_settings(model)
    seats = next((name for name in SEATS if name in POLICIES[settings.policy].parameters), None)
    if replica is None or seats is None or replica.keeps_s is None:
        return None
    lost = replica.state.separatrix_in_flight
    if lost is None and replica.model.replica.max_num_seqs is None:
        return None
    chosen = [Setting(SHED_AFTER, float(f"{_PATIENCE * replica.keeps_s:.2g}"))]
    if lost is not None:  # else the replica's own limit lies below
        chosen.insert(0, Setting(seats, max(1, int(_OF_SEPARATRIX * lost))))
    limits = {setting.name: (float(setting.value),) for setting in chosen}
    limited = settings._replace(given={**settings.given, **limits})
    jobs = [(given, seed) for given in (settings, limited) for seed in _LIMITED_SEEDS]
    ends = at_once(lambda job: _end(replica, plan, *job), jobs)
    without, within = ends[: len(_LIMITED_SEEDS)], ends[len(_LIMITED_SEEDS) :]
    if any(end.warm for end in without) or not all(end.warm for end in within):
        return None
    gain = sum(end.served for end in within) / sum(end.served for end in without) - 1
    return Gained(tuple(chosen), gain, sustains=True)


def session_cap(model: ServingModel, plan: Plan) -> Capped | None:
    """Find the cap on conversations in flight with the least mean TTFT from the collapsed state; None: none ends it.

    Tried are shares of the conversations that fill memory with what each leaves, by the policy `session-cap`; the gain
    is on what is served without, from the same state: after a burst, or where all users ask at once. Of users it is one
    of those that serve most.
    """
    replica, settings = _collapsible(model, cold=True), engine_settings(model)
    if replica is None or settings.policy != "vllm" or model.by_priority:
        return None
    users = replica.cached.users is not None
    if not users and not replica.begins_sessions:
        return None
    caps = sorted({max(1, round(share * replica.burst)) for share in _CAPS})
    tried = [settings, *(Settings("session-cap", {**settings.given, "cap": (float(n),)}) for n in caps)]
    without, *within = at_once(
        lambda given: _end(replica, plan, given, _LIMITED_SEEDS[0], together=users), tried
    )
    found = [
        (end, cap)
        for end, cap in zip(within, caps, strict=True)
        if end.warm and end.served > without.served and end.ttft_s < without.ttft_s
    ]
    if not found:
        return None
    # more than comes at a rate is served while a backlog drains, and counts for nothing; users ask for more
    least = (1 - _TIE) * max(end.served for end, _ in found) if users else 0.0
    end, cap = min((each for each in found if each[0].served >= least), key=lambda each: each[0].ttft_s)
    return Capped(cap, end.served / max(without.served, 1) - 1, without.ttft_s, end.ttft_s)


def _end(replica: _Replica, plan: Plan, settings: Settings, seed: int, *, together: bool = False) -> _End:
    """Look at the end of a run after a burst; or of one in which all users begin `together`."""
    end_s = _LIMITED_LIVES * (life_s(replica.model) + replica.gap_s)
    burst = Burst(0 if together else _LIMITED_BURST * replica.burst, 0.0)
    job = replica.job(plan, settings, end_s, burst, seed)
    if together:
        requests = job.scenario.requests
        at_s = np.where(np.isnan(requests.arrival_s), math.nan, 0.0)
        job = job._replace(scenario=job.scenario._replace(requests=replace(requests, arrival_s=at_s)))
    run, inputs = job.run(), job.scenario.requests.input_tokens
    assert run.found is not None
    late, came = run.first_token_s >= _END * end_s, run.arrival_s >= _END * end_s
    given_up = 0 if run.shed is None else int((run.shed & came).sum())
    hits = run.found.hit_tokens[late].sum() * replica.cached.mean("prompt")
    warm = hits > replica.half_hits * inputs[late].sum() and given_up <= _GIVEN_UP * came.sum()
    served = int((run.finish_s >= _END * end_s).sum())
    return _End(bool(warm), served, float(run.ttft_s[late].mean()) if late.any() else math.inf)
