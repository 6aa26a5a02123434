"""Trials of a number of replicas: by short runs while many are compared, by long ones in the end.

A size is enough if two things hold. It meets the demand: every objective holds at the timing as it stands and with
iterations `slower`, which keeps away from cliffs; without objectives, the queue is steady there and not too near what
is sustainable. And it recovers: after a standard burst a replica is back to normal in time, in four of five runs.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from kvplan.analysis.cache_states import cached_replica
from kvplan.analysis.cached_equilibrium import users_of
from kvplan.analysis.equilibrium import equilibrium, sustainable_rate
from kvplan.analysis.fleet import one_replica
from kvplan.analysis.prefix_cache import population_of, sustainable_rates
from kvplan.analysis.split import sides, split_rps
from kvplan.model import ArrivalProcess, Plan, ServingModel, Timing
from kvplan.model.fleet import Fleet, Routing
from kvplan.ranges import MAX_MEMORY_TOKENS, MOST_REPLICAS
from kvplan.simulation.estimates import Trend
from kvplan.simulation.policies import engine_settings
from kvplan.solve import boundary
from kvplan.study.drain import ENOUGH, Drain, drain, recover_s
from kvplan.study.goodput import at_rate
from kvplan.study.objectives import LONG, Decision, State, decisions
from kvplan.study.operating_point import RUNS, Observation, observe
from kvplan.study.replicas import Kept, keeps, scaled, stand_in

_MOST_LOAD = 0.985  # of what is sustainable, slower, beyond which nothing is tried
_SHORT = 4_000  # requests of each of two runs, while many are compared
_FIRST = 1_500  # of them, which tell where they are far from an objective, and the load is less than that
_FIRST_LOAD = 0.85  # of what is sustainable: a queue near it needs time to grow
_FEW = 200  # of a replica that is idle, unless that is near an objective
_CLEAR = 0.5  # of the shares that are allowed: with less, or the inverse, few requests tell
_LONG = 15_000  # of conversations, in the runs that decide
_BUDGET_S = 5.0  # counted work of these: near an objective a fifth of it leaves long answers open that hold
_BRIEF_S = 0.5
# Near saturation a queue forgets slowly: nothing holds before so many requests over (1 - load)² were seen.
_FORGETS = 200
_CLOSE = 1e-6  # of token budgets, relative
_IDLE = 0.01  # of what is sustainable
_SEEN, _JUDGED, _ALONE = 101, 102, 103  # streams of seeds


class Missed(StrEnum):
    """Misses beside those of objectives."""

    LOAD = "load"
    QUEUE = "queue"
    RECOVERY = "recovery"


class Quick(NamedTuple):
    """Result of short runs, with iterations slower.

    `excess` is the largest of shares beyond a limit over those allowed: above 1 something is missed, infinite where the
    load is too much or the queue grows.
    """

    excess: float
    decided: tuple[Decision, ...]

    @property
    def passes(self) -> bool:
        """True where all is met, as far as short runs tell."""
        return self.excess <= 1

    @property
    def is_near(self) -> bool:
        """True where so few requests do not tell."""
        return _CLEAR < self.excess < 1 / _CLEAR

    @property
    def worst(self) -> str:
        """Key of the objective that is used most; empty where the queue grows, or there are none."""
        if math.isinf(self.excess) or not self.decided:
            return ""
        return max(self.decided, key=lambda d: d.share / d.allowed).key

    def without(self, keys: Collection[str]) -> "Quick":
        """Return the result for the other objectives by the same runs; there is one at least."""
        left = tuple(d for d in self.decided if d.key not in keys)
        growing = math.isinf(self.excess)
        return Quick(math.inf if growing else max(d.share / d.allowed for d in left), left)


class Recovers(NamedTuple):
    """Recovery of a replica, alone with its share, from a standard burst within so many seconds."""

    within_s: float
    drain: Drain
    model: ServingModel

    @property
    def state(self) -> State:
        """Open where the burst is too large for a run, or the engine does not run what the model has."""
        drain = self.drain
        if not drain.runs_s:
            return State.HOLDS if (drain.burst_requests or math.inf) < 1 else State.OPEN
        return State.HOLDS if drain.within(self.within_s) >= ENOUGH else State.MISSES


class Judged(NamedTuple):
    """Results of long runs at the timing as it stands, and slower; None where the load is too much.

    If the slower runs miss, or only the queue is asked for, no others are made, and these stand for both.

    `recovery` is None where it is not asked for, or the demand is not met anyway.
    """

    expected: Kept | None
    slower: Kept | None
    recovery: Recovers | None = None

    @property
    def state(self) -> State:
        """State of both: that the demand is met, and that a burst is recovered from."""
        if self.met is not State.HOLDS or self.recovery is None:
            return self.met
        return self.recovery.state

    @property
    def met(self) -> State:
        """State of all objectives together."""
        if self.expected is None or self.slower is None:
            return State.MISSES
        states = {self.expected.state, self.slower.state}
        return next((s for s in (State.MISSES, State.OPEN) if s in states), State.HOLDS)

    @property
    def missed(self) -> tuple[str, ...]:
        """Keys of the objectives that are missed, or what else is."""
        if self.expected is None or self.slower is None:
            return (Missed.LOAD,)
        keys = [
            d.key
            for kept in (self.expected, self.slower)
            for d in kept.decided
            if d.state is State.MISSES and kept.trend is not Trend.GROWING
        ]
        if Trend.GROWING in (self.expected.trend, self.slower.trend):
            keys.append(Missed.QUEUE)
        if self.recovery is not None and self.recovery.state is State.MISSES:
            keys.append(Missed.RECOVERY)
        return tuple(dict.fromkeys(keys))


@dataclass(frozen=True)
class Task:
    """A service on replicas of a kind.

    Attributes
    ----------
    model
        A replica, with the rates of the whole service.
    plan
        With the objectives.
    slower
        Share by which iterations may take longer.
    headroom
        Share that is added to the demand.
    times
        Iterations take so many times as long as the model says: ends of an error band.
    router
        None: each request goes to a replica at random, and the turns of a conversation with it.
    apart
        Replicas that prefill and others that decode, in the place of any number that do both.
    sustained
        Sustainable rates of a replica, by token budget and `slower`, computed once for all sizes.
    """

    model: ServingModel
    plan: Plan
    slower: float = 0.05
    headroom: float = 0.0
    times: float = 1.0
    router: Routing | None = None
    apart: Fleet | None = None
    sustained: dict[tuple[int | None, bool], float] = field(init=False, default_factory=dict, compare=False)

    @property
    def rate_rps(self) -> float:
        """Demand with headroom, requests/s."""
        return self.model.total_rate_rps * (1 + self.headroom)

    def at_rate(self, rate_rps: float) -> "Task":
        """Return the task of another demand; what a replica sustains stays, but for how often users ask."""
        task = replace(self, model=at_rate(self.model, rate_rps))
        if not users_of(self.model):
            task.sustained.update(self.sustained)
        return task

    def at(self, replicas: int, batched_tokens: int | None, *, slower: bool) -> ServingModel:
        """Return the model that stands for so many replicas."""
        timing = stretched(self.model.timing, self.times * (1 + self.slower * slower))
        replica = self.model.replica.with_budget(batched_tokens)
        model = replace(self.model, timing=timing, replica=replica, fleet=None)
        if self.apart is not None:
            return replace(scaled(model, self.rate_rps), fleet=self.apart)
        return stand_in(model, self.rate_rps, replicas, self.router)

    def sustainable_rps(self, batched_tokens: int | None, *, slower: bool = True) -> float:
        """Return the sustainable rate of a replica, that of a warm prefix cache where it has one.

        Of users the most that a replica is good for, as if they asked as often as those of the model: they ask less
        often the slower it is, so that their rate alone never tells how near they are to too many.
        """
        key = batched_tokens, slower
        if key not in self.sustained:
            alone = one_replica(self.at(1, batched_tokens, slower=slower))
            finds, users = alone.finds_prefixes, users_of(self.model)
            cached = cached_replica(alone) if finds or users else None
            if cached is not None and cached.users is not None:
                good = population_of(cached if finds else cached.uncached).good
                self.sustained[key] = good * self.model.total_rate_rps / users
            elif cached is not None and finds:
                self.sustained[key] = sustainable_rates(cached).good
            else:
                self.sustained[key] = sustainable_rate(alone)[1]
        return self.sustained[key]

    def bound(self, batched_tokens: int | None) -> int:
        """Replicas that are surely needed; more than there may be, where no rate is sustainable."""
        served = _MOST_LOAD * self.sustainable_rps(batched_tokens)
        return max(math.ceil(self.rate_rps / served - 1e-9), 1) if served > 0 else MOST_REPLICAS + 1

    def quick(self, replicas: int, batched_tokens: int | None) -> Quick:
        """Look at so many replicas, slower."""
        if self._is_too_much(replicas, batched_tokens):
            return Quick(math.inf, ())
        short = bool(self.plan.slos) and self._load(replicas, batched_tokens, slower=True) < _FIRST_LOAD
        return self._look(
            self.at(replicas, batched_tokens, slower=True), _SEEN, _FIRST if short else _SHORT, again=short
        )

    def idle(self, batched_tokens: int | None) -> Quick:
        """Look at a nearly idle replica, slower: one of so many that arrivals do not cluster."""
        model = replace(self.at(1, batched_tokens, slower=True), arrivals=ArrivalProcess())
        model = at_rate(model, _IDLE * sustainable_rate(one_replica(model))[1])
        look = self._look(model, _ALONE, _FEW, again=False)
        return self._look(model, _ALONE, _SHORT, again=False) if look.is_near else look

    def judge(self, replicas: int, batched_tokens: int | None) -> Judged:
        """Decide about so many replicas."""
        if self._is_too_much(replicas, batched_tokens):
            return Judged(None, None)
        slow = self.keeps(replicas, batched_tokens, slower=True)
        if slow.state is State.MISSES:  # whatever runs at the timing as it stands would say
            return Judged(slow, slow)
        expected = slow._replace(figures={})  # a queue that is steady is, too, where iterations are shorter
        if self.plan.slos:
            expected = self.keeps(replicas, batched_tokens, slower=False)
        judged = Judged(expected, slow)
        if judged.met is not State.HOLDS:
            return judged
        return judged._replace(recovery=self.recovers(replicas, batched_tokens))

    def judge_briefly(self, replicas: int, batched_tokens: int | None) -> Judged:
        """Decide by a tenth of the runs, all of them slower; what they leave open by the figures as they are."""
        if self._is_too_much(replicas, batched_tokens):
            return Judged(None, None)
        slow = self.keeps(replicas, batched_tokens, slower=True, budget_s=_BRIEF_S, doubt=False)
        if slow.state is not State.HOLDS:
            return Judged(slow, slow)
        return Judged(slow, slow, self.recovers(replicas, batched_tokens, briefly=True))

    def recovers(
        self, replicas: int, batched_tokens: int | None, *, briefly: bool = False
    ) -> Recovers | None:
        """Let a standard burst come upon one of so many replicas; None where nobody asks.

        None, too, if prefill and decode are apart, and of a trace.
        """
        if self.apart is not None or self.model.arrivals.trace is not None:
            return None
        task = self if self.router is None else replace(self, router=None)
        return recovers(task.at(replicas, batched_tokens, slower=False), self.plan, briefly=briefly)

    def even_budgets(self, replicas: int) -> list[int]:
        """List token budgets that keep iterations within the limit on gaps: .9 and .7 of what fits.

        Attention of a part of a prompt is counted as with half of the longest prompt before it.
        """
        limit = min((s.bound for s in self.plan.slos if s.key.startswith("itl_s.p")), default=None)
        model = self.at(replicas, None, slower=True)
        timing = model.timing
        if limit is None or not timing.minds_prompts:
            return []
        state = equilibrium(one_replica(model))
        held, running = state.kv_tokens or 0.0, state.requests_in_flight or 0.0
        context = model.mix.prefill_tokens.max() / 2

        def too_long(tokens: float) -> bool:
            return float(timing(held, tokens, running, tokens * context)) > limit

        if too_long(0.0) or not too_long(MAX_MEMORY_TOKENS):
            return []
        room = boundary(too_long, 0.0, MAX_MEMORY_TOKENS, close=_CLOSE)[0] / model.replica.ranks
        return [tokens for share in (0.9, 0.7) if (tokens := int(share * room) // 64 * 64) > 0]

    def _is_too_much(self, replicas: int, batched_tokens: int | None) -> bool:
        if self.apart is not None:
            halves = sides(self.at(replicas, batched_tokens, slower=True), self.apart)
            return self.rate_rps > _MOST_LOAD * split_rps(halves, self.apart.prefill, self.apart.decode)
        return self.rate_rps > _MOST_LOAD * replicas * self.sustainable_rps(batched_tokens)

    def _look(self, model: ServingModel, stream: int, requests: int, *, again: bool) -> Quick:
        """Look at a round of runs; where that is near an objective, `again` at one of twice as many requests."""

        def suffices(seen: Observation) -> bool:
            return not (again and len(seen.windows) == RUNS and self._judge(seen).is_near)

        budget_s = math.inf if again else 0.0
        seen = observe(
            model,
            self.plan,
            engine_settings(model),
            suffices,
            stream=stream,
            budget_s=budget_s,
            requests=requests,
        )
        return self._judge(seen)

    def _judge(self, seen: Observation) -> Quick:
        decided = decisions(seen, self.plan.slos)
        if seen.trend is Trend.GROWING:
            return Quick(math.inf, decided)
        if not decided:
            return Quick(0.0 if seen.trend is Trend.STEADY else 2.0, decided)
        return Quick(max(d.share / d.allowed for d in decided), decided)

    def keeps(
        self,
        replicas: int,
        batched_tokens: int | None,
        *,
        slower: bool,
        budget_s: float = _BUDGET_S,
        doubt: bool = True,
    ) -> Kept:
        """Decide about so many replicas at the timing as it stands, or slower, whatever their load."""
        model = self.at(replicas, batched_tokens, slower=slower)
        requests, least = _LONG if self.model.finds_prefixes else _SHORT, LONG
        if self.model.replica.layout is not None:  # which find no turns, and take long
            requests, least = _SHORT, LONG if self.plan.slos else 0
        return keeps(
            model,
            self.plan,
            engine_settings(model),
            self.plan.slos,
            stream=_JUDGED,
            budget_s=budget_s,
            requests=requests,
            least=max(least, self._seen_with(replicas, batched_tokens, slower=slower)),
            doubt=doubt,
        )

    def _seen_with(self, replicas: int, batched_tokens: int | None, *, slower: bool) -> int:
        """Requests without which nothing holds at so much load."""
        if self.apart is not None:
            return LONG
        return math.ceil(_FORGETS / (1 - self._load(replicas, batched_tokens, slower=slower)) ** 2)

    def _load(self, replicas: int, batched_tokens: int | None, *, slower: bool) -> float:
        """Return the load as a share of what is sustainable."""
        return self.rate_rps / (replicas * self.sustainable_rps(batched_tokens, slower=slower))


def recovers(model: ServingModel, plan: Plan, *, briefly: bool = False) -> Recovers | None:
    """Let a standard burst come upon a replica; None where nobody asks. `briefly`: without the final time.

    That is where `recover` is "never", or where there is neither an objective nor a prefix cache.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass
    >>> from kvplan.model.slo import parse_slo
    >>> model = ServingModel((RequestClass("a", 20, (5,), (1.0,), 10.0),), Timing(0.01), Replica(10_000))
    >>> seen = recovers(model, Plan(slos=(parse_slo("itl_s.mean <= 11 ms"),)))
    >>> seen.within_s, seen.state.value
    (900.0, 'holds')
    """
    within_s = recover_within_s(model, plan)
    if within_s is None:
        return None
    return Recovers(within_s, drain(model, plan, within_s=within_s if briefly else math.inf), model)


def recover_within_s(model: ServingModel, plan: Plan) -> float | None:
    """Return the seconds within which a replica has to recover; None where nobody asks."""
    if plan.recover_s is None:
        waits = model.finds_prefixes or any(not slo.deadline for slo in plan.slos)
        return recover_s(model) if waits else None
    return None if math.isinf(plan.recover_s) else plan.recover_s


def stretched(timing: Timing, times: float) -> Timing:
    """Return the law with every iteration so many times as long.

    Examples
    --------
    >>> stretched(Timing(0.01, 1e-6), 2.0)(1000, 0, 1)
    0.022
    """
    names = ("d0", "d1", "d2", "d3", "d4", "d5", "d6", "experts", "all_ranks", "d5_all_ranks")
    return replace(timing, **{name: getattr(timing, name) * times for name in names})
