"""A replica with a prefix cache as other analyses see it: its equilibrium, the rate of its users, and the cold replica.

What can be sustained is the *guaranteed* rate: whatever has happened before, it is served. The equilibrium is that of a
warm cache, which can exist beyond it; saturation is where requests in flight fill memory and nothing else is kept.

The rate of a closed population follows from the stay, λ = users/(nτ + think), so that a slower replica is asked less.

A cold cache is as empty as it can be. What is in use all the time is always found: a prompt that enough requests share.
It takes memory once, and no request holds or computes it, though all read it. Nothing else is sure to be found once
requests in flight fill memory (theory §8).
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from kvplan.analysis.cache_states import CachedReplica, cached_replica, hit_ratio
from kvplan.analysis.prefix_cache import full_memory, guaranteed_rates, population_of, prefix_cache
from kvplan.analysis.records import ClassOccupancy, Equilibrium, Load, Saturation, Sensitivity
from kvplan.model import Prompt, RequestClass, ServingModel, Timing
from kvplan.model.streams import Stream
from kvplan.solve import boundary

_TIMES = 64  # iteration times tried for the least that lasts
_ROUNDING = 1e-9


def users_of(model: ServingModel) -> int:
    """Users of closed populations in the traffic."""
    return sum(c.sessions.users or 0 for c in model.classes if c.sessions is not None)


def with_part_of_users(model: ServingModel, factor: float) -> ServingModel:
    """Return the model with all rates and users times a factor, users whole and not fewer.

    Rates are as if none waited longer.
    """
    classes = []
    for c in model.classes:
        sessions = c.sessions
        if sessions is not None and sessions.users is not None:
            sessions = replace(sessions, users=max(1, math.ceil(sessions.users * factor * (1 - _ROUNDING))))
        classes.append(replace(c, rate_rps=c.rate_rps * factor, sessions=sessions))
    return replace(model, classes=tuple(classes))


@lru_cache(maxsize=128)  # every look at a size begins with them
def with_rates_of_users(model: ServingModel) -> ServingModel:
    """Return the model with the rates that its users have at the equilibrium of a warm cache.

    Where they do not fit, those that they would have in a full replica if none of them had to wait. Without a cache, or
    beside layers of several kinds, those of prompts that are computed whole.
    """
    asking = [c.sessions for c in model.classes]
    if not users_of(model):
        return model
    if model.fleet is not None:  # each replica has its part of the users
        size = model.fleet.size
        alone = with_rates_of_users(replace(with_part_of_users(model, 1 / size), fleet=None))
        all_rates = ((c, size * part.rate_rps) for c, part in zip(model.classes, alone.classes, strict=True))
        return replace(model, classes=tuple(replace(c, rate_rps=rate) for c, rate in all_rates))
    # beside layers of several kinds no formula has what conversations find
    caches = model.replica.prefix_caching and model.replica.layout is None
    start = cached_replica(replace(model, replica=replace(model.replica, prefix_caching=caches)))
    start = start if caches else start.uncached

    def at(tau: float) -> CachedReplica:
        """Traffic where iterations take so long."""
        streams = tuple(
            stream
            if sessions is None or sessions.users is None
            else replace(stream, rate_rps=sessions.users / (stream.stages * tau + sessions.think.mean_s))
            for stream, sessions in zip(start.streams, asking, strict=True)
        )
        return replace(start, streams=streams)

    def longer(tau: float) -> float:
        """Excess of the time that an iteration then takes."""
        cached, time, none = at(tau), np.array([tau]), np.zeros(1)
        x = cached.rate_rps * time
        if cached.memory(x, time, none)[0][0] > cached.replica.capacity_tokens:
            return np.inf
        return float(cached.next_seconds(cached.found(x, time, none, none))[0]) - tau

    least = float(start.seconds(np.zeros(1), np.zeros(1))[0])
    # of the mix that they ask for, whatever else comes
    most = float(full_memory(at(least)).iteration_time_s[0])
    tried = np.geomspace(least, most, _TIMES).tolist()
    after = next((i for i, tau in enumerate(tried) if longer(tau) <= 0), None)
    tau = most
    if after is not None:
        tau = boundary(lambda tau: longer(tau) <= 0, tried[max(after - 1, 0)], tried[after])[1]
    rates = (stream.rate_rps for stream in at(tau).streams)
    return replace(
        model, classes=tuple(replace(c, rate_rps=rate) for c, rate in zip(model.classes, rates, strict=True))
    )


_MORE = 1.1


def sustainable_rates(model: ServingModel) -> dict[str, float]:
    """Return the guaranteed rate under each limit that applies, requests/s, by the name of the limit."""
    cached = cached_replica(model)
    rates = guaranteed_rates(cached)
    full, cached = full_memory(cached), cached.on_gpu_alone
    x, hits = float(full.admissions[0]), float(full.hits[0])
    prompts = cached.prompts(x, cached.saves * hits)
    touching = cached.timing.tangent(prompts, x * cached.stages)
    name = "compute" if full.iteration_time_s[0] > 2 * touching.fixed_s else "kv_memory"
    return {name: rates.pop("memory"), **rates}


# sensitivities and levers ask for the same changes, and those of a constant that is 0 change nothing
@lru_cache(maxsize=32)
def guaranteed_rate(model: ServingModel) -> float:
    """Return the least of the guaranteed rates, requests/s."""
    return min(guaranteed_rates(cached_replica(model)).values())


def rate_with(model: ServingModel, name: str, factor: float) -> float | None:
    """Return the guaranteed rate with a field of `Sensitivity` multiplied; None for a limit that there is not."""
    if hasattr(model.timing, name):
        changed = replace(model, timing=replace(model.timing, **{name: getattr(model.timing, name) * factor}))
    elif (limit := getattr(model.replica, name)) is None:
        return None
    else:
        changed = replace(model, replica=replace(model.replica, **{name: round(limit * factor)}))
    return guaranteed_rate(changed)


def load(model: ServingModel, *, sensitive: bool = True) -> Load:
    """Offered load against the guaranteed rate; work is counted without hits, and headroom in users where they ask.

    Not `sensitive`: without sensitivities, which take ten times as long as all else.
    """
    cached = cached_replica(model)
    rate = guaranteed_rate(model)
    offered = cached.rate_rps
    factor = rate / offered
    if cached.users is not None:
        factor = population_of(cached).guaranteed / cached.users
    mix = model.mix
    amounts = mix.context, mix.prefill_tokens, mix.iterations.astype(np.float64), mix.prefill_pairs
    changes: list[float | None] = [None] * len(Sensitivity._fields)
    if sensitive:
        changes = [rate_with(model, name, _MORE) for name in Sensitivity._fields]
    return Load(
        offered_rps=offered,
        work_rate=offered * float(mix.mean(model.timing.work(*amounts))),
        load_factor_max=factor,
        headroom=factor - 1,
        sustainable_rps=rate,
        sustainable_rps_range=None,
        sustainable_decode_tokens_per_s=rate * cached.mean("decode"),
        sensitivity=Sensitivity(*(v if v is None else v / rate - 1 for v in changes)),  # type: ignore[arg-type]
    )


def equilibrium(model: ServingModel) -> Equilibrium:
    """Return the state that a warm cache keeps at the offered load; None of it where there is none."""
    cached = cached_replica(model)
    state, offered = prefix_cache(cached).expected, cached.rate_rps
    if state is None:
        nobody = tuple(ClassOccupancy(c.name, None, None) for c in model.classes)
        return Equilibrium(None, None, None, None, None, None, nobody)
    tau = state.iteration_time_s
    return Equilibrium(
        state.kv_unique_tokens,
        state.kv_unique_tokens / model.replica.capacity_tokens,
        iteration_time_s=tau,
        requests_in_flight=offered * cached.stages * tau,
        decode_tokens_per_s=offered * cached.mean("decode"),
        prompt_iterations_per_s=offered * cached.stages,
        classes=tuple(
            ClassOccupancy(c.name, c.rate_rps * tau, c.rate_rps * stream.stages * tau)
            for c, stream in zip(model.classes, cached.streams, strict=True)
        ),
    )


def saturation(model: ServingModel) -> Saturation:
    """Describe memory full of requests in flight, where the cache finds only what they have in common."""
    full = full_memory(cached_replica(model))
    x, tau = float(full.admissions[0]), float(full.iteration_time_s[0])
    return Saturation(x, tau, x / tau if tau else math.inf)


_SURE = 1e-3  # probability that nobody uses it, below which a prompt counts as always in use
_NOBODY = 1e-12  # share of a class


def with_cold_cache(model: ServingModel) -> ServingModel:
    """Return the model without common prefixes that costs what a full replica costs; itself if it has none.

    Tokens that are always found are taken off the prompts and off memory. Reading them is part of the time per
    sequence, their pairs with the rest of a prompt part of that per prefill token, which is exact in the mean. Hits of
    a measured curve make prefill shorter, as if sequences were few beside prompt tokens where a law bends (new, theory
    §8: M - c, A - λcn, Λ - d2λc for a prompt that all share).
    """
    if not model.finds_prefixes:
        return model
    if model.hit_curve:
        alone = _strangers(model, [[(1.0, 0)] for _ in model.classes])
        missed = 1 - hit_ratio(model.hit_curve, model.replica.capacity_tokens)
        return replace(alone, timing=_with_shorter_prompts(model.timing, missed), hit_curve=())
    cached = cached_replica(model)
    if model.replica.layout is not None:
        return _strangers(model, [[(1.0, 0)] for _ in model.classes])
    x = float(full_memory(cached).admissions[0])
    parts = [
        list(_parts(c, stream, x * share / model.replica.ranks))
        for c, stream, share in zip(model.classes, cached.streams, cached.shares, strict=True)
    ]
    cold = _strangers(model, parts)
    rank = cold.replica.of_rank()
    if max(c.max_tokens for c in cold.classes) + rank.block_tokens > rank.capacity_tokens:
        return _strangers(model, [[(1.0, 0)] for _ in parts])
    read = sum(
        rate * stream.stages * share * hits
        for rate, stream, own in zip(cached.shares, cached.streams, parts, strict=True)
        for share, hits in own
    )
    prefill = cached.prefill - cached.saves * sum(
        rate * share * hits for rate, own in zip(cached.shares, parts, strict=True) for share, hits in own
    )
    timing = cold.timing
    more = cached.saves * _pairs_with_found(model, cached.shares, parts) / prefill if prefill > 0 else 0.0
    d2, d3 = timing.d2 + timing.d6 * more, timing.d3 + timing.d1 * read / cached.stages
    return replace(cold, timing=replace(timing, d2=d2, d3=d3))


def _with_shorter_prompts(timing: Timing, part: float) -> Timing:
    """Return the law of prompts of which only the last `part` is computed."""
    if not part:
        return replace(timing, d2=0.0, d5=0.0, d6=0.0)
    return replace(
        timing,
        d2=timing.d2 * part,
        d5=timing.d5 * part,
        knee_tokens=timing.knee_tokens / part,
        d6=timing.d6 * part * (2 - part),
        chosen=1 - (1 - timing.chosen) ** part,
    )


def _pairs_with_found(
    model: ServingModel, shares: tuple[float, ...], parts: list[list[tuple[float, int]]]
) -> float:
    """Pairs of the prompt tokens that a request computes with what it always finds before them."""
    return sum(
        rate * share * kind.share * hits * (kind.tokens - hits)
        for rate, c, own in zip(shares, model.classes, parts, strict=True)
        for share, hits in own
        for kind in c.kinds
    )


def _parts(c: RequestClass, stream: Stream, admissions: float) -> Iterator[tuple[float, int]]:
    """Shares of a class, at so many admissions an iteration, and the tokens that each always finds."""
    alone = 1.0
    for prompt in stream.shared:
        if math.exp(-admissions * prompt.weight * stream.stages) < _SURE:
            alone -= prompt.weight
            yield prompt.weight, prompt.tokens
    if alone > _NOBODY:
        yield alone, 0


def _strangers(model: ServingModel, parts: list[list[tuple[float, int]]]) -> ServingModel:
    classes = tuple(_stranger(c, own) for c, own in zip(model.classes, parts, strict=True))
    pages = sum(hits for own in parts for _, hits in own)
    memory = model.replica.memory_tokens - model.replica.ranks * pages
    replica = replace(model.replica, memory_tokens=memory)
    return replace(model, classes=classes, replica=replica)


def _stranger(c: RequestClass, parts: list[tuple[float, int]]) -> RequestClass:
    prompts = tuple(
        Prompt(kind.tokens - hits, kind.share * share, kind.variance, kind.decode)
        for share, hits in parts
        for kind in c.kinds
    )
    mean = round(sum(p.share * p.tokens for p in prompts))
    own = prompts if len(prompts) > 1 else ()
    least = min(hits for _, hits in parts)
    strange = replace(c, shared=(), reuse=None, sessions=None, input_law=None, most=c.most and c.most - least)
    return replace(strange, input_tokens=mean, prompts=own, longest=c.max_tokens - least)
