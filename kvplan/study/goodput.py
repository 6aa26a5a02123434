"""Goodput: the largest rate at which all objectives hold, and go on holding, found by runs at one rate after another.

An idle replica is tried first, then its capacity, then what lies between, where the excess points. Each rate has seeds
of its own, so that a rare event in some runs does not decide about all rates. From the rate where an objective begins
to be missed the search goes down until runs of a day last (`kvplan.study.lasting`).
"""

import math
from collections.abc import Sequence
from itertools import count, pairwise
from typing import NamedTuple

from kvplan.analysis.cached_equilibrium import users_of, with_part_of_users, with_rates_of_users
from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.analysis.fleet import one_replica
from kvplan.errors import UsageError
from kvplan.model import Plan, ServingModel
from kvplan.model.fleet import AT_RANDOM
from kvplan.simulation.estimates import QUANTILES, Trend
from kvplan.simulation.policies.protocol import Settings
from kvplan.study.lasting import MARGIN, trial
from kvplan.study.objectives import LONG, Decision, Objective, State, decisions, overall
from kvplan.study.operating_point import BUDGET_S, Latency, Observation, observe, operating_point
from kvplan.study.sample import Cliff

_IDLE = 0.01  # of what is sustainable
_MORE = 1.25  # times the rate, while all holds
_MOST = 40  # rates that are tried above what is sustainable
_PRECISE = 0.01  # relative width of the bracket
_BESIDE = (0.97, 1.04)  # times its lower end, where less is open
_NEAR = 0.8  # of a rate that misses, from which runs are long before all is said to hold: avalanches are rare
_PART = 0.3  # of the work of an operating point, for each rate
_LOWER = (0.99,) * 10 + (0.95,) * 20  # times a rate that does not last
_CURVE_SHARES = (0.05, 0.2, 0.35, 0.5, 0.65, 0.75, 0.85, 0.9, 0.95, 0.98)  # of what is sustainable
_CURVE_MORE, _CURVE_MOST = (
    1.1,
    12,
)  # times the last rate, while the queue does not grow; and how many such rates
_CURVE_PART = 0.15  # of the work of an operating point, for each rate


class Goodput(NamedTuple):
    """The largest rate at which all objectives hold, requests/s."""

    # held in four runs of `run_s` seconds at 1 % more; 0 where even an idle replica misses an objective; the mean of
    # schedules and traces
    rate_rps: float
    crossing_rps: float  # where short runs, interpolated, begin to miss an objective
    run_s: float | None  # None where there are none: of a trace, which is replayed as it is, or at no rate
    low: float  # the largest that was seen to hold
    high: float | None  # the least that was seen to miss
    binding: str  # objective that is missed first as the rate rises, or the limit of the sustainable rate
    cliff: Cliff | None = None  # that the binding figure sits on at that rate
    users: int | None = None  # of a closed population, who ask at that rate


class _Probe(NamedTuple):
    """Runs at a rate, and how the objectives stand there."""

    rate_rps: float  # of users as if they asked as often as those of the model
    served_rps: float
    decided: tuple[Decision, ...]
    seen: Observation

    @property
    def state(self) -> State:
        return overall(self.decided)

    @property
    def excess(self) -> float:
        """Excess of the objective that is used most; infinite where the queue grows."""
        if self.seen.trend is Trend.GROWING:
            return math.inf
        return max(d.excess for d in self.decided)


class _Search:
    """Rates tried so far."""

    def __init__(
        self, model: ServingModel, plan: Plan, settings: Settings, objectives: Sequence[Objective]
    ) -> None:
        self._model, self._plan, self._settings, self._objectives = model, plan, settings, objectives
        self.probes: list[_Probe] = []

    def __call__(self, rate_rps: float) -> _Probe:
        """Judge all objectives at a rate; of users, about there."""
        model = at_rate(self._model, rate_rps)
        asked_rps = self._asked_rps(model)
        if (known := next((p for p in self.probes if p.rate_rps == asked_rps), None)) is not None:
            return known
        is_near = self.high is not None and rate_rps > _NEAR * self.high

        def decided(seen: Observation) -> bool:
            state = overall(decisions(seen, self._objectives))
            long_enough = seen.sample.completed >= LONG or not is_near
            return state is State.MISSES or (state is State.HOLDS and long_enough)

        seen = observe(
            model,
            self._plan,
            self._settings,
            decided,
            stream=1 + len(self.probes),
            budget_s=_PART * BUDGET_S,
        )
        probe = _Probe(asked_rps, model.total_rate_rps, decisions(seen, self._objectives), seen)
        self.probes.append(probe)
        return probe

    def _asked_rps(self, model: ServingModel) -> float:
        """Return the key of a probe: the rate; of users the rate of their number by the model's rates.

        More users than a prefix cache has room for ask less often, so that their rate alone does not tell how many.
        """
        users = users_of(self._model)
        return self._model.total_rate_rps * users_of(model) / users if users else model.total_rate_rps

    def served_rps(self, rate_rps: float) -> float:
        """Return the rate of a probe by its key: of users the most that they, or fewer of them, ask at."""
        if not users_of(self._model) or rate_rps == 0:
            return rate_rps
        fewer = (p.served_rps for p in self.probes if p.rate_rps < rate_rps)
        return max(at_rate(self._model, rate_rps).total_rate_rps, *fewer, 0.0)

    def users(self, rate_rps: float) -> int | None:
        """Return the least number of whole users of a probe by its key; None: it has none."""
        asking = rate_rps * users_of(self._model) / self._model.total_rate_rps
        return math.floor(asking + 1e-9) if users_of(self._model) else None

    def lasting(self, rate_rps: float) -> tuple[float, float | None]:
        """Return the largest rate below this one that lasts, in steps of 1 % at first, and the runs' length."""
        if self._model.arrivals.trace is not None or rate_rps == 0:
            return rate_rps, None
        tried, run_s = None, None
        for lower in _LOWER:
            rate_rps *= lower
            there = at_rate(self._model, MARGIN * rate_rps)
            if there == tried:  # of few users one less is several per cent
                continue
            tried, (lasts, run_s) = there, trial(there, self._plan, self._settings, self._objectives)
            if lasts:
                return rate_rps, run_s
        return 0.0, run_s

    @property
    def low(self) -> float:
        """The largest rate that holds, below all where a limit was exceeded: short runs may miss what is rare."""
        exceeded = min((p.rate_rps for p in self.probes if p.excess > 0), default=math.inf)
        held = (p.rate_rps for p in self.probes if p.state is State.HOLDS)
        return max((rate for rate in held if rate < exceeded), default=0.0)

    @property
    def high(self) -> float | None:
        """The least rate that misses."""
        return min((p.rate_rps for p in self.probes if p.state is State.MISSES), default=None)

    @property
    def ends(self) -> "tuple[_Probe, _Probe | None]":
        """The largest rate without excess, and the least above it with some."""
        above = min((p for p in self.probes if p.excess > 0), key=_rate, default=None)
        below = (p for p in self.probes if above is None or p.rate_rps < above.rate_rps)
        return max(below, key=_rate), above


def _rate(probe: _Probe) -> float:
    return probe.rate_rps


def goodput(
    model: ServingModel, plan: Plan, settings: Settings, objectives: Sequence[Objective]
) -> Goodput | None:
    """Find the largest rate of this mix at which all objectives hold.

    None where there are none, or the engine does not run what the model has. All rates of the model grow alike. Of
    users there are more or fewer, whole ones, and the rate is what they ask at in equilibrium; a schedule keeps its
    shape, and a trace is replayed faster or slower. Replicas that get requests, or conversations, at random are alike:
    one of them is run.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> from kvplan.model.slo import parse_slo
    >>> chat = RequestClass("chat", 200, (100,), (1.0,), 5.0)
    >>> model = ServingModel((chat,), Timing(0.01, 1e-7, 5e-5), Replica(100_000))
    >>> goodput(model, Plan(), Settings("vllm", {}), [parse_slo("ttft_s.mean <= 1 ms")]).rate_rps
    0.0
    """
    if not objectives:
        return None
    fleet, times = model.fleet, 1
    if (
        fleet is not None
        and model.arrivals.trace is None
        and fleet.routing in AT_RANDOM
        and not fleet.is_split
    ):
        model, times = one_replica(model), fleet.size
    search = _Search(model, plan, settings, objectives)
    try:
        return _times(_searched(search, model), times)
    except UsageError:
        return None


def _times(goodput: Goodput, replicas: int) -> Goodput:
    high = None if goodput.high is None else goodput.high * replicas
    users = None if goodput.users is None else goodput.users * replicas
    return goodput._replace(
        rate_rps=goodput.rate_rps * replicas,
        crossing_rps=goodput.crossing_rps * replicas,
        low=goodput.low * replicas,
        high=high,
        users=users,
    )


def _searched(search: _Search, model: ServingModel) -> Goodput:
    limit, most = sustainable_rate(one_replica(model))
    most *= 1 if model.fleet is None else model.fleet.size
    if search(_IDLE * most).state is not State.MISSES:
        rate = most
        for _ in range(_MOST):
            if search(rate).state is State.MISSES:
                break
            rate *= _MORE
        _narrow(search)
        below, above = search.ends
        for times in () if above is None else _BESIDE:
            search(times * below.rate_rps)
    return _result(search, limit)


def _narrow(search: _Search) -> None:
    """Close in on the rate where a limit begins to be exceeded: by the excess, each third time by halves."""
    for turn in count(1):
        below, above = search.ends
        if above is None or above.rate_rps <= (1 + _PRECISE) * below.rate_rps:
            return
        rate = (below.rate_rps + above.rate_rps) / 2
        if turn % 3 and not math.isinf(below.excess) and not math.isinf(above.excess):
            there = _crossing((below, above))
            beyond = there * _PRECISE / 2  # so that the other end comes near, too
            rate = there + max(min(rate - there, beyond), -beyond)
        tried = len(search.probes)
        search(rate)
        if len(search.probes) == tried:  # there are no users between them
            return


def at_rate(model: ServingModel, rate_rps: float) -> ServingModel:
    """Return the mix at another rate, as `goodput` varies it; of users only about at that rate."""
    part = with_part_of_users(model, rate_rps / model.total_rate_rps)
    return with_rates_of_users(part) if users_of(part) else part


def _result(search: _Search, limit: str) -> Goodput:
    low, high = search.low, search.high
    bracket = sorted(
        (p for p in search.probes if low <= p.rate_rps <= (high or math.inf)), key=lambda p: p.rate_rps
    )
    last = bracket[-1]
    worst = max(last.decided, key=lambda d: d.excess)
    binding = worst.key if worst.excess > 0 else limit
    crossing = 0.0 if search.probes[0].state is State.MISSES else _crossing(bracket)
    rate, run_s = search.lasting(crossing)
    nearest = min(bracket, key=lambda p: abs(p.rate_rps - crossing))
    time, _, figure = binding.partition(".")
    cliff = nearest.seen.sample.cliff(time, figure) if figure in QUANTILES else None
    users = search.users(rate)
    most, above = search.served_rps(rate), None if high is None else search.served_rps(high)
    if above is not None and above <= most:  # so many users that they ask less often
        above = None
    return Goodput(
        most, search.served_rps(crossing), run_s, search.served_rps(low), above, binding, cliff, users
    )


def _crossing(bracket: Sequence[_Probe]) -> float:
    """Return where the excess passes 0, in the logarithm of the rate; the middle where one end has none."""
    for below, above in pairwise(bracket):
        if above.excess > 0:
            part = 0.5
            if below.excess > -math.inf and above.excess < math.inf:
                part = max(-below.excess / (above.excess - below.excess), 0.0)
            return below.rate_rps * math.exp(part * math.log(above.rate_rps / below.rate_rps))
    return bracket[-1].rate_rps


class LoadCurve(NamedTuple):
    """Latencies at ascending rates, requests/s, up to where the queue grows.

    `sustainable_rps` is the guaranteed rate where there is a prefix cache.
    """

    rates_rps: tuple[float, ...]
    latencies: tuple[Latency, ...]
    sustainable_rps: float


def load_curve(model: ServingModel, plan: Plan) -> LoadCurve:
    """Measure latencies of the mix of a profile at other rates."""
    most = sustainable_rate(one_replica(model))[1] * (1 if model.fleet is None else model.fleet.size)
    shares = [
        *_CURVE_SHARES,
        *(_CURVE_SHARES[-1] * _CURVE_MORE**power for power in range(1, _CURVE_MOST + 1)),
    ]
    known = []
    for share in shares:
        there = at_rate(model, share * most)
        latency = operating_point(there, plan, _CURVE_PART * BUDGET_S).latency
        if latency.ttft_s.mean is None:
            break
        known.append((there.total_rate_rps, latency))
    return LoadCurve(tuple(rate for rate, _ in known), tuple(latency for _, latency in known), most)
