"""Hits of a prefix cache, the rates it sustains, and where it can collapse (theory §8, §13).

All of it is read off one curve, the rate λ(x) that is served at x admissions an iteration (`cache_states`). Reuse of
one's own earlier turns lifts the middle of the curve but not its end, where requests in flight fill memory: above the
rate there, one burst can empty the cache for good. A prompt that all share is always in use, and lifts the end too.

A host tier has two characteristic times: what was left less than T ago is on the GPU, less than T2 ago on the host. Its
hits survive a GPU full of requests in flight, so a replica that was just filled recovers at rates at which it would
collapse without. They do not survive a queue: turns that wait longer than T2 find nothing of theirs. What is
served *whatever has happened* is what the GPU alone serves; a bound on the wait keeps what the tier adds.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvplan.analysis.cache_states import FOREVER_S, CachedReplica, States
from kvplan.model import FloatArray, IntArray
from kvplan.model.gaps import normal
from kvplan.solve import falling_root

_POINTS = 64  # of the curve, at equal ratios, over ...
_SPAN = 1e-3  # ... at least this much of what fills memory
_POINTS_CONVEX = 24  # each takes a transform where the law has a knee
_ZOOM, _ZOOMS = 9, 3  # points on either side of the peak, so many times
_AGES = np.geomspace(1e-3, 1e3, 121)  # over the characteristic time, for what fluctuations do
_TIMES = 33  # iteration times at which the least with fluctuations is looked for
FLUCTUATING_STREAMS = 500  # in memory, below which fluctuations count
_WAITS = 17  # in a queue that are looked at
_SAME = 1e-9
_STEP = 1e-4  # relative, for slopes


class SustainableRates(NamedTuple):
    """Requests/s: what is served whatever has happened, and what a warm cache serves as long as nothing happens."""

    guaranteed: float
    good: float


class Collapsed(NamedTuple):
    """The state that a burst can end in for good: memory full of requests in flight, nothing found."""

    throughput_rps: float
    iteration_time_s: float


class CacheState(NamedTuple):
    """A state of the replica at one rate."""

    rate_rps: float  # λ
    admissions_per_iteration: float  # x = λτ
    iteration_time_s: float  # τ
    requests_in_flight: float  # x·n
    # T, after which what nobody asks for is gone; None where everything fits
    characteristic_time_s: float | None
    hit_tokens: float  # prompt tokens of a request that are found, on average
    hit_ratio: float  # of the prompt tokens
    prefill_tokens_per_s: float
    kv_unique_tokens: float  # K, referenced KV tokens, shared ones once
    cached_tokens: float  # KV tokens left by requests that are done, and kept
    # by how much a longer iteration lengthens the next ones through what is found, below 1 in a stable state; None
    # where iterations lengthen themselves even with the same hits, as they can where the law is convex
    loop_gain: float | None
    stable: bool  # the curve λ(x) rises there
    host_hit_ratio: float  # of the prompt tokens, part of the hit ratio
    host_time_s: float | None  # T2, after which the host has nothing left either; T without a host tier
    link_utilization: float  # share of the time in which it loads


class PrefixCache(NamedTuple):
    """The prefix cache at the offered load."""

    sustainable_rps: SustainableRates
    reusable_ratio: float  # share of the prompt tokens that an infinite cache finds
    warm: CacheState | None  # that traffic reaches from an empty replica
    # the same with fluctuations, where memory holds fewer than `FLUCTUATING_STREAMS` releases and requests come at a
    # rate; None where they leave no state
    expected: CacheState | None
    states: tuple[CacheState, ...]  # by requests in flight: stable, unstable, stable, …
    separatrix_in_flight: float | None  # requests in flight beyond which the warm state is lost
    collapse_possible: bool  # the offered rate is above the guaranteed one, or a second stable state exists
    collapsed: Collapsed | None
    # releases that memory holds, M/E[L]; None where nothing private is reused. Below some 100 fluctuations count, and
    # near the good rate a warm cache is lost by itself.
    streams_in_memory: float | None


def prefix_cache(cached: CachedReplica) -> PrefixCache:
    """States, rates and dangers of a prefix cache at the offered load.

    References
    ----------
    New, theory §8.

    Examples
    --------
    A prompt that all share raises the guaranteed rate, from 9.223 to 24.225 requests/s:

    >>> from kvplan.model import Replica, RequestClass, ServingModel, Timing
    >>> from kvplan.analysis.cache_states import cached_replica
    >>> from kvplan.model.sessions import SharedPrompt
    >>> def rates(**caching):
    ...     one = RequestClass("a", 1000, (200,), (1.0,), 8.0, **caching)
    ...     model = ServingModel((one,), Timing(0.012, 1e-7, 60e-6), Replica(100_000))
    ...     return [round(rate, 4) for rate in prefix_cache(cached_replica(model)).sustainable_rps]
    >>> rates(), rates(shared=(SharedPrompt(800),))
    ([9.2232, 9.2232], [24.2247, 24.2247])
    """
    curve = _curve(cached, _most(_ends(cached)))
    if cached.users is None:
        guaranteed, good = _open_rates(cached, curve)
        danger = cached.rate_rps > guaranteed * (1 + _SAME)
        passes = _passes(cached, curve, cached.rate_rps)
    else:
        population = _population(cached, curve)
        guaranteed, good = population.guaranteed_rps, population.good_rps
        danger = cached.users > float(_users(cached, curve)[-1]) * (1 + _SAME)
        passes = _passes_of_users(cached, curve, cached.users)
    states = tuple(_state(cached, at, rising) for at, rising in passes)
    stable = [state for state in states if state.stable]
    beyond = [state for state in states if not state.stable]
    alone = cached.on_gpu_alone
    end = alone.states(np.array([min(_ends(alone).values())]), warm=False)
    # how many requests' KV memory holds where they are asked for again
    capacity = cached.replica.of_rank().capacity_tokens
    streams = capacity / cached.left if cached.private and cached.left else None
    warm = stable[0] if stable else None
    few = warm is not None and streams is not None and streams < FLUCTUATING_STREAMS and cached.users is None
    return PrefixCache(
        sustainable_rps=SustainableRates(guaranteed, good),
        reusable_ratio=cached.reusable / cached.mean("prompt"),
        warm=warm,
        expected=with_fluctuations(cached) if few else warm,
        states=states,
        separatrix_in_flight=beyond[0].requests_in_flight if stable and beyond else None,
        collapse_possible=danger or len(stable) > 1,
        collapsed=Collapsed(float(end.rate_rps[0]), float(end.iteration_time_s[0])) if danger else None,
        streams_in_memory=streams,
    )


def sustainable_rates(cached: CachedReplica) -> SustainableRates:
    """Return those of `prefix_cache`, of open arrivals: the same at whatever rate they come."""
    return _open_rates(cached, _curve(cached, _most(_ends(cached))))


def _open_rates(cached: CachedReplica, curve: States) -> SustainableRates:
    guaranteed = min(guaranteed_rates(cached).values())
    return SustainableRates(guaranteed, max(float(_served(cached, curve).max()), guaranteed))


def guaranteed_rates(cached: CachedReplica) -> dict[str, float]:
    """Guaranteed rate under each limit alone, requests/s, by the limit's name; of users, under all of them."""
    if cached.users is not None:
        return {"memory": population_of(cached).guaranteed_rps}
    alone = cached.on_gpu_alone
    rates = {name: _fastest(alone, x) for name, x in _ends(alone).items()}
    tier = cached.replica.offload
    if tier is not None and tier.load_s > cached.timing.d2:  # loads can take longer than what they save
        rates["memory"] = min(rates["memory"], full_rate(cached))
    return rates


def full_rate(cached: CachedReplica) -> float:
    """Rate at which requests leave where those in flight fill the replica and others wait, requests/s.

    The host tier still has what was left in the last T2 seconds; what requests wait, `cached.wait_s`, is part of it.
    """
    return min(_fastest(cached, x) for x in _ends(cached).values())


class Population(NamedTuple):
    """Users whose replica cannot collapse, or has a warm state at least; and the largest rates that they ask at."""

    guaranteed: float
    good: float
    guaranteed_rps: float
    good_rps: float
    busiest: float  # users who ask at the guaranteed rate, more or fewer ask less


@lru_cache(maxsize=128)  # the verdict, headroom and goodput ask of the same replicas
def population_of(cached: CachedReplica, part: float = 1.0) -> Population:
    """Count the users that a replica is good for; guaranteed are `part` of those that are safe.

    They are a load that gives way: a slower replica is asked less. With x admissions an iteration there are n·x of
    them waiting for answers and λ(x)·think thinking; states are where that is their number, and stable where it rises.
    """
    return _population(cached, _curve(cached, _most(_ends(cached))), part)


def _population(cached: CachedReplica, curve: States, part: float = 1.0) -> Population:
    rates = _served(cached, curve)
    exists = rates > 0  # beyond the token budget there are no states, but a queue
    if not exists.any():
        return Population(0.0, 0.0, 0.0, 0.0, 0.0)
    users, rates = _users(cached, curve)[exists], rates[exists]
    falls = np.flatnonzero(np.diff(users) < 0)
    peak = int(falls[0]) if falls.size else users.size - 1
    least = min(float(users[peak:].min()), _least_waiting_users(cached), _least_users_of_budget(cached))
    good, guaranteed = float(users[peak]), part * least
    upto = rates[: peak + 1]
    safe = np.where(users[: peak + 1] <= guaranteed, upto, 0.0)
    return Population(
        guaranteed, good, float(safe.max()), float(upto.max()), busiest=float(users[np.argmax(safe)])
    )


def _least_waiting_users(cached: CachedReplica) -> float:
    """Find the fewest users of whom some wait: fewer than a full replica's if waits make the host tier find less."""
    if cached.replica.offload is None:
        return math.inf
    running = min(_ends(cached).values()) * cached.stages
    waits: list[float] = np.linspace(0.0, _wait_without_hits_s(cached), _WAITS).tolist()
    return min(running + full_rate(replace(cached, wait_s=w)) * (w + cached.think_s) for w in waits)


def _least_users_of_budget(cached: CachedReplica) -> float:
    """Find the fewest users who use up the token budget where only what is in use is found."""
    admissions = _ends(cached).get("max_num_batched_tokens")
    if admissions is None:
        return math.inf
    return float(_users(cached, cached.states(np.array([admissions]), warm=False))[0])


def _wait_without_hits_s(cached: CachedReplica) -> float:
    """Return a wait in the queue of a full replica after which its host tier finds nothing for those waiting."""
    forever = replace(cached, wait_s=FOREVER_S)
    return float(forever.states(np.array([_ends(forever)["memory"]]), warm=False).reaches_s[0])


class HostTier(NamedTuple):
    """The host tier at the offered load."""

    hit_ratio: float | None  # share of the prompt tokens that are loaded from it
    characteristic_time_s: float | None  # T2; None where everything fits
    link_utilization: float | None  # share of the time in which it loads
    # rate up to which a replica full of requests, with none waiting, gets warm again
    recovery_rps: float
    # seconds of waiting from which it comes back at the offered rate; None: from any, or from none
    longest_wait_s: float | None
    without: SustainableRates  # that the GPU alone serves


def host_tier(cached: CachedReplica, warm: CacheState | None) -> HostTier | None:
    """Describe the host tier at the offered load, given the state of a `warm` cache; None without a tier."""
    if cached.replica.offload is None:
        return None
    alone = cached.on_gpu_alone
    if cached.users is None:
        without = sustainable_rates(alone)
    else:
        population = population_of(alone)
        without = SustainableRates(population.guaranteed_rps, population.good_rps)
    return HostTier(
        hit_ratio=warm and warm.host_hit_ratio,
        characteristic_time_s=warm and warm.host_time_s,
        link_utilization=warm and warm.link_utilization,
        recovery_rps=full_rate(cached),
        longest_wait_s=_longest_wait_s(cached),
        without=without,
    )


def _longest_wait_s(cached: CachedReplica) -> float | None:
    """Find the longest wait with which a full replica serves more than is offered; None: any wait, or none.

    With a wait W gaps that begin with an answer are W longer.
    """

    def more(wait_s: float) -> float:
        return full_rate(replace(cached, wait_s=wait_s)) - cached.rate_rps

    longest = _wait_without_hits_s(cached)
    if more(0.0) <= 0 or more(longest) > 0:
        return None
    wait = falling_root(lambda w: np.array([more(float(w[0]))]), np.zeros(1), np.array([longest]))
    return float(wait[0])


def _users(cached: CachedReplica, states: States) -> FloatArray:
    """Count the users of each state."""
    return np.asarray(states.admissions * cached.stages + _served(cached, states) * cached.think_s)


def _passes_of_users(cached: CachedReplica, curve: States, users: int) -> list[tuple[States, bool]]:
    """Find states of so many users, and whether each is stable."""
    crossings, rising, sign = _crossings(_users(cached, curve) >= users)
    if not crossings.size:
        return []

    def short_of(x: FloatArray) -> FloatArray:
        return sign * (users - _users(cached, cached.states(x)))

    x = falling_root(short_of, curve.admissions[crossings], curve.admissions[crossings + 1])
    return _each(cached.states(x), rising)


def full_memory(cached: CachedReplica) -> States:
    """Return the state in which requests in flight fill memory, and only what they have in common is found.

    So it is with a host tier as well, once a queue has outlasted what that keeps.
    """
    alone = cached.on_gpu_alone
    return alone.states(np.array([_ends(alone)["memory"]]), warm=False)


def _state(cached: CachedReplica, at: States, stable: bool) -> CacheState:
    x, tau, age = at.admissions, at.iteration_time_s, at.keeps_s
    hits, rate = float(at.hits[0]), float(at.rate_rps[0])
    in_flight = float(cached.memory(x, tau, np.zeros(1))[0][0])
    kept = float(cached.memory(x, tau, age)[0][0])

    def until_gone(seconds: float) -> float | None:
        return None if seconds >= FOREVER_S or cached.hit_curve else seconds

    return CacheState(
        rate_rps=rate,
        admissions_per_iteration=float(x[0]),
        iteration_time_s=float(tau[0]),
        requests_in_flight=float(x[0]) * cached.stages,
        characteristic_time_s=until_gone(float(age[0])),
        hit_tokens=hits,
        hit_ratio=hits / cached.mean("prompt"),
        prefill_tokens_per_s=rate * (cached.prefill - cached.saves * hits),
        kv_unique_tokens=in_flight,
        cached_tokens=kept - in_flight,
        loop_gain=0.0 if cached.hit_curve else loop_gain(cached, at),
        stable=stable,
        host_hit_ratio=float(at.loads[0]) / cached.mean("prompt"),
        host_time_s=until_gone(float(at.reaches_s[0])),
        link_utilization=float(link_utilization(cached, at)[0]),
    )


def loop_gain(cached: CachedReplica, state: States) -> float | None:
    """Slope of the map τ → K → T → hits → τ' at one state and its rate.

    For private streams and a linear law it is K·τ·(d2/d0)·q·f(T)/(1 - q·F(T)), f the density of the gaps (new, theory
    §8; shared prompts, gaps from arrivals and other laws of the iteration time here).
    """
    x, tau = state[:2]
    rate = float(state.rate_rps[0])
    of_gpu, of_all = (_hits_by_tau(cached, x, tau, age) for age in (state.keeps_s, state.reaches_s))
    # and an iteration, at this rate, on what it reads and on what is found: exact where the law is linear
    by_tau = _slope(lambda t: cached.seconds(rate * t, state.hits.repeat(2)), float(tau[0]), float(tau[0]))
    by_tau += rate * float(state.loads[0]) * cached.load_s
    by_hits = _slope(lambda h: cached.seconds(x.repeat(2), h), float(state.hits[0]), cached.reusable)
    if by_tau >= 1:
        return None
    by_loads = float(x[0]) * cached.load_s
    gain = (by_hits * of_all + by_loads * (of_all - of_gpu)) / (1 - by_tau)
    return gain if abs(gain) > _SAME else 0.0


def _hits_by_tau(cached: CachedReplica, x: FloatArray, tau: FloatArray, age: FloatArray) -> float:
    """Return the slope of hits in τ at the same rate; `age` keeps memory full, and so depends on τ."""
    rate = float(x[0]) / float(tau[0])
    share, tokens, stages = cached.shared
    window = float(age[0]) + np.array([part.stages * float(tau[0]) for part in cached.private])
    memory_by_tau, hits_by_tau, hits_by_age = rate * cached.held, 0.0, 0.0
    for part, until in zip(cached.private, window.tolist(), strict=True):
        density = part.reused * part.gap.density(until)
        hits_by_age += density
        hits_by_tau += part.stages * density
        memory_by_tau -= rate * part.reused * part.stages * float(part.gap.until(until)[0])
    if share.size:
        gone = np.exp(-rate * share * (stages * float(tau[0]) + float(age[0])))
        once, within = cached.in_common
        memory_by_tau -= float(once @ (rate * share * (within - stages * gone)))
        slope = share * tokens * rate * share * gone
        hits_by_age += float(slope.sum())
        hits_by_tau += float(slope @ stages)
    if 0 < age[0] < FOREVER_S:
        hits_by_tau -= hits_by_age * memory_by_tau / float(cached.memory(x, tau, age)[1][0])
    return hits_by_tau


def _slope(f: Callable[[FloatArray], FloatArray], at: float, scale: float) -> float:
    """Slope of a function, from two values a small part of a scale away."""
    step = scale * _STEP
    low, high = f(np.array([at - step, at + step])).tolist()
    return float(high - low) / (2 * step) if step else 0.0


def with_fluctuations(cached: CachedReplica) -> CacheState | None:
    """Find the warm state at the offered rate where memory is kept for a random time instead of T.

    A piece left g ago is found with probability N((M - K - ℓ - C(g))/σ(g)): C(g) what was left since and is not in
    use, σ² its variance and that of KV usage, ℓ = E[L²]/(2E[L]) the part of its own release that goes before it.

    None where no state is left (new, theory §8, "Second order"; Var K at a constant iteration time).
    """
    rate, capacity = cached.rate_rps, cached.replica.capacity_tokens
    ranks = cached.replica.ranks  # whose memories fluctuate each for itself
    before = ranks * cached.mean("left_squares") / (2 * cached.left) if cached.left else 0.0

    def hits(tau: FloatArray, kept: FloatArray, capacity: int) -> FloatArray:
        age = np.minimum(kept, FOREVER_S / _AGES[-1])[:, None] * np.append(0.0, _AGES)
        x, tau = (np.broadcast_to(values[:, None], age.shape) for values in (rate * tau, tau))
        total = cached.memory(x, tau, age)[0]
        spread = np.sqrt(ranks * (x * cached.mean("held_squares") + cached.stock_variance(x, tau, age)))
        kept_yet = normal((capacity - before - total) / spread)
        stages = cached.hits(x, tau, age)
        passed = np.diff(stages, axis=1) * (kept_yet[:, 1:] + kept_yet[:, :-1]) / 2
        return np.asarray(stages[:, 0] + passed.sum(axis=1))

    def states(tau: FloatArray) -> States:
        sharp = cached.found(rate * tau, tau, np.zeros(tau.shape), np.zeros(tau.shape))
        here = hits(tau, sharp.keeps_s, capacity)
        if cached.reach_tokens == capacity:
            return sharp._replace(hits=here)
        everywhere = np.maximum(hits(tau, sharp.reaches_s, cached.reach_tokens), here)
        return sharp._replace(hits=everywhere, loads=everywhere - here)

    def longer(tau: FloatArray) -> FloatArray:
        return cached.next_seconds(states(tau)) - tau

    least = float(cached.seconds(np.zeros(1), np.zeros(1))[0])
    most = float(cached.states(np.array([_ends(cached)["memory"]]), warm=False).iteration_time_s[0])
    tau = np.geomspace(least, most, _TIMES)
    settled = np.flatnonzero(longer(tau) <= 0)
    if not settled.size:
        return None
    i = max(int(settled[0]), 1)
    return _state(cached, states(falling_root(longer, tau[i - 1 : i], tau[i : i + 1])), True)


def recovered_share(decode_tokens: float, victim_tokens: float) -> float:
    """Share of what a preempted request had computed, `victim_tokens` on average, that it finds when readmitted.

    Until a running request completes and makes room, those running take one token each an iteration from the victim's
    pages: with memoryless lengths an exponential number of tokens of mean `decode_tokens`. An upper estimate where
    decode lengths vary little (new, theory §8).

    Examples
    --------
    >>> round(recovered_share(652.5, 919.0), 2)  # the recorded RTX 4090 run: .38 simulated
    0.46
    """
    ratio = victim_tokens / decode_tokens
    return 1.0 + math.expm1(-ratio) / ratio


@lru_cache(maxsize=64)  # several times of each replica; under a law with a knee it takes a tenth of a second
def _ends(cached: CachedReplica) -> Mapping[str, float]:
    """Admissions an iteration at which each limit is reached where nothing is kept that is not referenced."""
    replica = cached.replica

    def used(x: FloatArray) -> FloatArray:
        cold = cached.states(x, warm=False)
        return np.asarray(cached.memory(x, cold.iteration_time_s, np.zeros(x.shape))[0])

    def computed(x: FloatArray) -> FloatArray:
        return x * (cached.computed - cached.saves * cached.states(x, warm=False).hits)

    share, tokens, stages = cached.shared
    overlap = float((share * tokens) @ stages) + sum(part.reused * part.stages for part in cached.private)
    # each step takes a transform where the law has a knee
    reached = _reached_by_few_steps if cached.timing.is_convex else _reached
    ends = {"memory": reached(used, replica.capacity_tokens, cached.held, overlap)}
    if replica.max_num_seqs is not None:
        ends["max_num_seqs"] = replica.max_num_seqs / cached.stages
    if (budget := replica.max_num_batched_tokens) is not None:
        saved = cached.saves * cached.reusable
        ends["max_num_batched_tokens"] = reached(computed, budget, cached.computed, saved)
    return ends


def _most(ends: Mapping[str, float]) -> float:
    """Admissions an iteration at most; what the token budget allows depends on what is found."""
    return min(x for name, x in ends.items() if name != "max_num_batched_tokens")


def _reached(amount: Callable[[FloatArray], FloatArray], limit: float, need: float, saved: float) -> float:
    """Find where an amount reaches a limit; it grows by `need` for each x, less `saved` at most."""
    low, high = limit / need, limit / (need - saved)
    while saved and high - low > 1e-14 * high:
        x = np.linspace(low, high, 65)
        above = int(np.argmax(np.append(amount(x[1:-1]) >= limit, True)))
        if (low, high) == (x[above], x[above + 1]):
            break
        low, high = float(x[above]), float(x[above + 1])
    return low


def _reached_by_few_steps(
    amount: Callable[[FloatArray], FloatArray], limit: float, need: float, saved: float
) -> float:
    """Find where an amount growing with x meets a limit."""
    low, high = np.array([limit / need]), np.array([limit / (need - saved)])
    if not saved or float(amount(low)[0]) >= limit:
        return float(low[0])
    return float(falling_root(lambda x: limit - amount(x), low, high)[0])


def _fastest(cached: CachedReplica, end: float) -> float:
    """Largest rate served without anything kept, at up to so many admissions an iteration."""

    def rates(x: FloatArray) -> FloatArray:
        states = cached.states(x, warm=False)
        return np.asarray(states.rate_rps / np.maximum(link_utilization(cached, states), 1.0))

    if not cached.timing.is_convex:
        return float(rates(np.array([end]))[0])
    x = end * np.geomspace(_SPAN, 1.0, _POINTS_CONVEX)
    for _ in range(_ZOOMS):
        served = rates(x)
        best = int(np.argmax(served))
        x = np.linspace(x[max(best - 1, 0)], x[min(best + 1, x.size - 1)], _ZOOM)
    return float(served.max())


def _curve(cached: CachedReplica, most: float) -> States:
    """Trace λ(x) up to the most admissions an iteration, from below where the offered rate is served alone.

    Around its peak closer and closer: a rate just below passes the curve twice there.
    """
    points = _POINTS_CONVEX if cached.timing.is_convex else _POINTS
    alone = cached.rate_rps * float(cached.seconds(np.zeros(1), np.zeros(1))[0])
    curve = cached.states(np.geomspace(min(most * _SPAN, alone * (1 - _SAME)), most, points))
    for _ in range(_ZOOMS):
        x, best = curve.admissions, int(np.argmax(_served(cached, curve)))
        low, peak, high = x[max(best - 1, 0)], x[best], x[min(best + 1, x.size - 1)]
        closer = np.unique(np.concatenate([np.linspace(low, peak, _ZOOM), np.linspace(peak, high, _ZOOM)]))
        further = cached.states(np.setdiff1d(closer, x))
        together = States(*map(np.concatenate, zip(curve, further, strict=True)))
        curve = together.at(np.argsort(together.admissions))
    return curve


def _served(cached: CachedReplica, states: States) -> FloatArray:
    """Rates of states that the token budget and the link to the host allow, else 0."""
    budget = cached.replica.max_num_batched_tokens
    computed = states.admissions * (cached.computed - cached.saves * states.hits)
    too_much = computed > (budget or math.inf) * (1 + _SAME)
    return np.where(too_much | (link_utilization(cached, states) > 1 + _SAME), 0.0, states.rate_rps)


def link_utilization(cached: CachedReplica, states: States) -> FloatArray:
    """Share of the time in which the link to the host loads, dx·H2 (new, theory §13); 0 without one."""
    tier = cached.replica.offload
    return states.rate_rps * states.loads * (0.0 if tier is None else tier.load_s)


def _crossings(above: NDArray[np.bool_]) -> tuple[IntArray, NDArray[np.bool_], FloatArray]:
    """Points after which a curve passes a level, whether it rises there, and the sign that makes it fall."""
    crossings = np.flatnonzero(above[1:] != above[:-1])
    rising = above[crossings + 1]
    return crossings, rising, np.where(rising, 1.0, -1.0)


def _each(states: States, rising: NDArray[np.bool_]) -> list[tuple[States, bool]]:
    return [(states.at(slice(i, i + 1)), bool(up)) for i, up in enumerate(rising)]


def _passes(cached: CachedReplica, curve: States, rate: float) -> list[tuple[States, bool]]:
    """Find states where the curve passes a rate, and whether it rises there."""
    crossings, rising, sign = _crossings(_served(cached, curve) >= rate)
    if not crossings.size:
        return []
    low, high = curve.at(crossings), curve.at(crossings + 1)
    kept, reach = np.minimum(low.keeps_s, high.keeps_s), np.minimum(low.reaches_s, high.reaches_s)

    def longer(tau: FloatArray) -> FloatArray:  # than τ itself, at this rate: theory's map
        return sign * (cached.next_seconds(cached.found(rate * tau, tau, kept, reach)) - tau)

    def short_of(x: FloatArray) -> FloatArray:
        return sign * (rate - _served(cached, cached.states(x)))

    states = cached.states(rate * falling_root(longer, low.iteration_time_s, high.iteration_time_s))
    if (np.abs(states.rate_rps - rate) > _SAME * rate).any():  # the map need not pass where the curve does
        states = cached.states(falling_root(short_of, low.admissions, high.admissions))
    return _each(states, rising)
