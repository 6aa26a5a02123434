"""The prefix cache in the report: its block, and what the verdict and the actions say of a collapse (theory §8)."""

import math
from dataclasses import replace
from typing import NamedTuple

from kvplan.analysis.cache_states import cached_replica
from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.analysis.prefix_cache import (
    CacheState,
    host_tier,
    population_of,
    prefix_cache,
    recovered_share,
    sustainable_rates,
)
from kvplan.model import ServingModel
from kvplan.solve import boundary
from kvplan.study.warm_cache import Trial
from kvplan.units import format_number, format_percent, format_seconds

_MOST_MEMORY = 64  # times what there is


class SustainableRps(NamedTuple):
    """Requests/s: whatever has happened, and as long as the cache stays warm."""

    guaranteed: float | None = None
    good: float | None = None


class HostState(NamedTuple):
    """What a host tier finds at the offered rate, and from what it brings a full replica back."""

    hit_ratio: float | None = None
    characteristic_time_s: float | None = None
    link_utilization: float | None = None
    recovers_up_to_rps: float | None = None
    longest_wait_s: float | None = None


class CollapsedState(NamedTuple):
    """What is served once the cache is empty for good."""

    throughput_rps: float | None = None
    iteration_time_s: float | None = None


class TrialState(NamedTuple):
    """What runs of a warm cache at the offered rate showed, where they were asked for; `summary` in words."""

    runs: int | None = None
    lasted: int | None = None
    survived_burst: int | None = None
    hit_ratio: float | None = None
    summary: str | None = None


class CacheBlock(NamedTuple):
    """The report's `prefix_cache`: all None but the recovered share where requests have nothing in common.

    `branches` are all states at the offered rate without fluctuations, `capacity_tokens` what they share; `users` are
    those of a closed population, `good_users` how many have a warm state.
    """

    hit_ratio: float | None = None
    reusable_ratio: float | None = None
    characteristic_time_s: float | None = None
    cached_tokens: float | None = None
    kv_unique_tokens: float | None = None
    prefill_tokens_per_s: float | None = None
    sustainable_rps: SustainableRps = SustainableRps()
    loop_gain: float | None = None
    collapse_possible: bool | None = None
    separatrix_in_flight: float | None = None
    collapsed: CollapsedState = CollapsedState()
    streams_in_memory: float | None = None
    preemption_recovered_share: float = 0.0
    host: HostState = HostState()
    sustainable_rps_without_host: SustainableRps = SustainableRps()
    trial: TrialState = TrialState()
    branches: tuple[CacheState, ...] = ()
    capacity_tokens: int = 0
    users: int | None = None
    good_users: float | None = None


def good_rps(model: ServingModel) -> float:
    """Compute what a warm cache sustains of open arrivals, in half the time of the block."""
    return sustainable_rates(cached_replica(model)).good


def cache_block(model: ServingModel) -> CacheBlock | None:
    """Build the block of the report; None where there is no prefix cache, or it is not modelled.

    Victims of a preemption are those admitted last, and have computed little beyond their prompt.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> one = RequestClass("a", 857, (652,), (1.0,), 1.0)
    >>> found = cache_block(ServingModel((one,), Timing(0.01), Replica(40_000, 16)))
    >>> found.hit_ratio, round(found.preemption_recovered_share, 2)
    (None, 0.44)
    """
    if not (model.replica.prefix_caching and model.is_plain) and not model.finds_prefixes:
        return None
    mix = model.mix
    recovered = recovered_share(mix.mean(mix.decode_tokens), max(mix.mean(mix.input_tokens), 1.0))
    if not model.finds_prefixes:
        return CacheBlock(preemption_recovered_share=recovered)
    cached = cached_replica(model)
    found = prefix_cache(cached)
    state = found.expected
    tier = host_tier(cached, state)
    return CacheBlock(
        hit_ratio=state and state.hit_ratio,
        reusable_ratio=found.reusable_ratio,
        characteristic_time_s=state and state.characteristic_time_s,
        cached_tokens=state and state.cached_tokens,
        kv_unique_tokens=state and state.kv_unique_tokens,
        prefill_tokens_per_s=state and state.prefill_tokens_per_s,
        sustainable_rps=SustainableRps(*found.sustainable_rps),
        loop_gain=state and state.loop_gain,
        collapse_possible=found.collapse_possible,
        separatrix_in_flight=found.separatrix_in_flight,
        collapsed=CollapsedState(*(found.collapsed or (None, None))),
        streams_in_memory=found.streams_in_memory,
        preemption_recovered_share=recovered,
        host=HostState() if tier is None else HostState(*tier[:-1]),
        sustainable_rps_without_host=SustainableRps() if tier is None else SustainableRps(*tier.without),
        branches=found.states,
        capacity_tokens=model.replica.capacity_tokens,
        users=cached.users,
        good_users=None if cached.users is None else population_of(cached).good,
    )


def with_trial(cache: CacheBlock, trial: Trial | None) -> CacheBlock:
    """Add what runs showed; None: there was nothing to try."""
    if trial is None:
        return cache
    return cache._replace(trial=TrialState(*trial[:4], summary=trial_summary(trial)))


def trial_summary(trial: Trial) -> str:
    """Say what runs showed, in a clause."""
    runs, length = trial.runs, f"{trial.seconds:,.0f} s"
    then = f"{format_number(trial.served_rps)} requests/s"
    ended = f"{trial.lasted} of {runs} runs of {length} ended warm"
    if trial.lasts_s == 0:
        return f"from empty the cache does not become warm, and the replica serves {then}; {ended}"
    if trial.lasts_s is not None:
        lasts = f"a warm cache lasts about {format_seconds(trial.lasts_s, 2)}"
        return f"{lasts}, then the replica serves {then}; {ended}"
    served = f"served {length} at hit ratio {format_percent(trial.hit_ratio)} in {runs} of {runs} runs"
    burst = f"burst of {trial.burst:,} {'sessions' if trial.of_sessions else 'requests that nobody asks for again'}"
    ends = runs - trial.survived_burst
    if not ends:
        return f"{served}, and after a {burst}"
    return f"{served}; one {burst} ends it{f' in {ends} of {runs}' * (ends < runs)}: then {then} are served"


def enough_memory(model: ServingModel) -> int | None:
    """Least memory in tokens, to one part in a hundred, with which no collapse is possible; None where none is."""

    def is_safe(factor: float) -> bool:
        memory = round(model.replica.memory_tokens * factor)
        larger = replace(model, replica=replace(model.replica, memory_tokens=memory))
        if sustainable_rate(larger)[1] < model.total_rate_rps:
            return False
        return not prefix_cache(cached_replica(larger)).collapse_possible

    if not is_safe(_MOST_MEMORY):
        return None
    _, times = boundary(is_safe, 1.0, _MOST_MEMORY, close=0.01, geometric=True)
    return math.ceil(model.replica.memory_tokens * times)
