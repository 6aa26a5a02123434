"""Blocks of the report beside those of formulas: a replica, a fleet, and the prefix cache (theory §8)."""

import math
from dataclasses import replace
from typing import NamedTuple

from kvplan.analysis.cache_states import cached_replica
from kvplan.analysis.cached_equilibrium import users_of
from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.analysis.fleet import FleetFigures, JoinedFleet, SplitFleet, Winner
from kvplan.analysis.prefix_cache import (
    CacheState,
    host_tier,
    population_of,
    prefix_cache,
    recovered_share,
    sustainable_rates,
)
from kvplan.analysis.records import Load
from kvplan.analysis.split import COMPUTE, ITL, LINK, Served
from kvplan.model import ServingModel
from kvplan.model.kv_layout import Attention, KvLayout
from kvplan.model.streams import class_streams
from kvplan.report.ledger import Ledger
from kvplan.report.wording import sentences
from kvplan.solve import boundary
from kvplan.study.warm_cache import Trial
from kvplan.units import format_number, format_percent, format_rate, format_seconds

_MILLION = 1e6
_HOUR_S = 3600.0


class PerTokens(NamedTuple):
    """Cost of a million output tokens, and of a million tokens in and out; None where the rate is not served.

    Also the most energy of an output token, where the power of a GPU is known: it draws that all the time.
    """

    per_million_output_tokens: float | None = None
    per_million_tokens: float | None = None
    joules_per_output_token: float | None = None


class Cost(NamedTuple):
    """Cost of one replica, in the currency of the price of a GPU; the keys of the report's `cost` block."""

    gpus_per_replica: int
    per_hour: float | None
    offered: PerTokens
    sustainable: PerTokens


def cost(
    model: ServingModel,
    gpu_hour: float | None,
    offered: Load,
    *,
    overloaded: bool,
    watts: float | None = None,
) -> Cost:
    """Compute the cost of a replica, paid whether it is busy or not.

    Examples
    --------
    An hour of a request a second, each of 300 tokens of which 100 are generated, is 360,000 output tokens:

    >>> from kvplan.analysis.equilibrium import load
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> requests = RequestClass("a", 200, (100,), (1.0,), 1.0)
    >>> model = ServingModel((requests,), Timing(0.01), Replica(30_000, gpus=2))
    >>> price = cost(model, 1.80, load(model), overloaded=False, watts=350)
    >>> price.per_hour, round(price.offered.per_million_output_tokens, 9), round(price.offered.per_million_tokens, 9)
    (3.6, 10.0, 3.333333333)
    >>> price.offered.joules_per_output_token
    7.0
    """
    mix, replica = model.mix, model.replica
    per_hour = None if gpu_hour is None else replica.gpus * gpu_hour
    output = mix.mean(mix.decode_tokens)
    both = output + mix.mean(mix.input_tokens)

    def at(rate_rps: float) -> PerTokens:
        joules = None if watts is None else replica.gpus * watts / (rate_rps * output)
        if per_hour is None:
            return PerTokens(joules_per_output_token=joules)
        per_request = per_hour / _HOUR_S / rate_rps * _MILLION
        return PerTokens(per_request / output, per_request / both, joules)

    now = PerTokens() if overloaded else at(offered.offered_rps)
    return Cost(replica.gpus, per_hour, now, at(offered.sustainable_rps))


class Context(NamedTuple):
    """Tokens of requests, prompt and answer together; the keys of the report's `context` block."""

    limit: int | None
    mean: float
    largest: int
    turns: float | None
    rejected_share: float


def context(model: ServingModel) -> Context:
    """Build the block; `rejected_share` is of the requests asked for, of conversations of those that begin one."""
    tokens = sum(stream.rate_rps * (stream.prompt + stream.decode) for stream in class_streams(model))
    of_turns = [(c.rate_rps, c.sessions.turns.mean) for c in model.classes if c.sessions is not None]
    begun = sum(rate / mean for rate, mean in of_turns)
    rejected = sum(c.rate_rps * c.rejected for c in model.classes)
    return Context(
        limit=model.max_model_len,
        mean=tokens / model.total_rate_rps,
        largest=max(c.max_tokens for c in model.classes),
        turns=sum(rate for rate, _ in of_turns) / begun if begun else None,
        rejected_share=rejected / (rejected + model.total_rate_rps),
    )


class GroupOfLayers(NamedTuple):
    """Layers of one kind, in so many groups."""

    kind: Attention
    layers: int
    groups: int
    block_tokens: int
    window_tokens: int | None


class LayoutBlock(NamedTuple):
    """The keys of the report's `kv_layout` block."""

    groups: tuple[GroupOfLayers, ...]
    block_tokens: int
    block_bytes: int
    bytes_per_token: int
    fixed_tokens_per_request: int


def layout_block(layout: KvLayout | None) -> LayoutBlock | None:
    """Build the block; None where one kind of attention says all.

    Examples
    --------
    >>> from kvplan.model.kv_layout import Layers
    >>> states, full = Layers(Attention.STATE, 48, 3_207_168), Layers(Attention.FULL, 16, 4096)
    >>> block = layout_block(KvLayout((states, full), 784))
    >>> block.block_bytes, block.bytes_per_token, block.fixed_tokens_per_request
    (51380224, 65536, 2352)
    """
    if layout is None:
        return None
    groups = tuple(
        GroupOfLayers(layers.kind, layers.count, group.copies, group.block_tokens, layers.window)
        for layers, group in zip(layout.held, layout.groups, strict=True)
    )
    return LayoutBlock(
        groups, layout.block_tokens, layout.block_bytes, layout.bytes_per_token, layout.fixed_tokens
    )


_BOUND_BY = {
    "kv_memory": "KV memory",
    ITL: "the time between tokens",
    LINK: "transfers",
    COMPUTE: "computing alone",
}


class FleetBlock(NamedTuple):
    """The keys of the report's `fleet` block."""

    split: SplitFleet
    together: JoinedFleet
    winner: Winner | None
    crossing_itl_s: float | None
    reason: str


def fleet_block(figures: FleetFigures | None, *, proved: bool) -> FleetBlock | None:
    """Build the block; `proved`: replicas are equal and their iteration times linear, as the theorem has them."""
    if figures is None:
        return None
    crossing = None if figures.crossing is None else figures.crossing.itl_s
    return FleetBlock(figures.split, figures.together, figures.winner, crossing, _reason(figures, proved))


def _reason(figures: FleetFigures, proved: bool) -> str:
    if figures.uncovered is not None:
        return f"No formula covers {figures.uncovered} with prefill and decode apart."
    split, joined = figures.split, figures.together
    assert figures.prefill is not None
    assert figures.decode is not None
    assert figures.both is not None
    if split.prefill is None or split.decode is None:
        return "There are too few GPUs for a replica of each kind."
    about = {
        "prefill": _serve(split.prefill, "prefill", figures.prefill),
        "decode": _serve(split.decode, "decode", figures.decode),
        "both": _serve(joined.replicas, "", figures.both),
        "proved": proved,
        "by_link": figures.prefill.binding == LINK,
        "more_than": (split.rate_rps or 0.0) * (1 + 1e-9),
    }
    return " ".join(sentences("fleet_reason", Ledger({"fleet": figures, "about": about})))


def _serve(replicas: int, kind: str, side: Served) -> str:
    """Say what so many replicas serve, and why not more."""
    named = f"{replicas} {kind + ' ' if kind else ''}replica{'s' * (replicas != 1)}"
    if side.rate_rps == math.inf:
        return f"{named} ha{'s' if replicas == 1 else 've'} nothing to do"
    limit = _BOUND_BY.get(side.binding, side.binding)
    return f"{named} serve{'s' * (replicas == 1)} {format_rate(replicas * side.rate_rps, 'requests')} (limit: {limit})"


_MOST_MEMORY = 64  # times what there is


class SustainableRps(NamedTuple):
    """Requests/s: whatever has happened, and as long as the cache stays warm."""

    guaranteed: float | None = None
    good: float | None = None


class HostState(NamedTuple):
    """Hits of a host tier at the offered rate, and the rate from which it brings a full replica back."""

    hit_ratio: float | None = None
    characteristic_time_s: float | None = None
    link_utilization: float | None = None
    recovers_up_to_rps: float | None = None
    longest_wait_s: float | None = None


class CollapsedState(NamedTuple):
    """Rates once the cache is empty for good."""

    throughput_rps: float | None = None
    iteration_time_s: float | None = None


class TrialState(NamedTuple):
    """Outcome of runs of a warm cache at the offered rate, where they were asked for; `summary` in words."""

    runs: int | None = None
    lasted: int | None = None
    survived_burst: int | None = None
    hit_ratio: float | None = None
    summary: str | None = None


class CacheBlock(NamedTuple):
    """The report's `prefix_cache`: all None but the recovered share where requests have nothing in common.

    `branches` are all states at the offered rate without fluctuations, `capacity_tokens` what they share; `users` are
    those of a closed population, `good_users` how many have a warm state, `busiest_users` with how many the guaranteed
    rate is asked for.
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
    busiest_users: float | None = None


def good_rps(model: ServingModel) -> float:
    """Compute what a warm cache sustains of open arrivals, in half the time of the block."""
    return sustainable_rates(cached_replica(model)).good


def cache_block(model: ServingModel) -> CacheBlock | None:
    """Build the block of the report; None where there is no prefix cache, or it is not modelled.

    Victims of a preemption are those admitted last, and have computed little beyond their prompt.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> requests = RequestClass("a", 857, (652,), (1.0,), 1.0)
    >>> block = cache_block(ServingModel((requests,), Timing(0.01), Replica(40_000, 16)))
    >>> block.hit_ratio, round(block.preemption_recovered_share, 2)
    (None, 0.44)
    """
    if not (model.replica.prefix_caching and model.is_plain) and not model.finds_prefixes:
        return None
    mix = model.mix
    recovered = recovered_share(mix.mean(mix.decode_tokens), max(mix.mean(mix.input_tokens), 1.0))
    if not model.finds_prefixes:
        return CacheBlock(preemption_recovered_share=recovered)
    cached = cached_replica(model)
    cache = prefix_cache(cached)
    state = cache.expected
    tier = host_tier(cached, state)
    return CacheBlock(
        hit_ratio=state and state.hit_ratio,
        reusable_ratio=cache.reusable_ratio,
        characteristic_time_s=state and state.characteristic_time_s,
        cached_tokens=state and state.cached_tokens,
        kv_unique_tokens=state and state.kv_unique_tokens,
        prefill_tokens_per_s=state and state.prefill_tokens_per_s,
        sustainable_rps=SustainableRps(*cache.sustainable_rps),
        loop_gain=state and state.loop_gain,
        collapse_possible=cache.collapse_possible,
        separatrix_in_flight=cache.separatrix_in_flight,
        collapsed=CollapsedState(*(cache.collapsed or (None, None))),
        streams_in_memory=cache.streams_in_memory,
        preemption_recovered_share=recovered,
        host=HostState() if tier is None else HostState(*tier[:-1]),
        sustainable_rps_without_host=SustainableRps() if tier is None else SustainableRps(*tier.without),
        branches=cache.states,
        capacity_tokens=model.replica.capacity_tokens,
        users=cached.users,
        good_users=None if cached.users is None else population_of(cached).good,
        busiest_users=None if cached.users is None else population_of(cached).busiest,
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
        if not users_of(model) and sustainable_rate(larger)[1] < model.total_rate_rps:
            return False
        return not prefix_cache(cached_replica(larger)).collapse_possible

    if not is_safe(_MOST_MEMORY):
        return None
    _, times = boundary(is_safe, 1.0, _MOST_MEMORY, close=0.01, geometric=True)
    return math.ceil(model.replica.memory_tokens * times)
