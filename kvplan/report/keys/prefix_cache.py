"""Keys of the `prefix_cache` block."""

import math
from functools import partial

from kvplan.report.keys.fluid import GUARANTEED, UNIQUE, WARM_SATURATION
from kvplan.report.keys.record import Block, Kind, Record, percent
from kvplan.units import format_number, format_tokens

_NOTHING = "Requests have nothing in common, or no state of a warm cache serves the offered rate."
_NO_COLLAPSE = "Requests have nothing in common, or no collapsed state exists at the offered rate."
_NOT_SHARED = "Requests have nothing in common."
_NO_TIER = "The profile has no host tier, or requests have nothing in common"
_NO_HOST = f"{_NO_TIER}."
_NOT_TRIED = (
    "Nobody asked for it: kvplan analyze --trial, or a requirement that kvplan check judges. Or no burst can empty the "
    "cache at the offered rate, a warm one does not serve it either, or hits follow a measured curve."
)

_state = partial(
    Record,
    source="new, theory of prefix caches: Che's approximation for least recently used pages",
    absent=_NOTHING,
)
_host = partial(
    Record,
    source="new, theory of host tiers: two characteristic times",
    absent=f"{_NO_TIER}, or no state of a warm cache serves the offered rate.",
)


def _trial(
    name: str, meaning: str, absent: str = _NOT_TRIED, *, whole: bool = True, most: float = math.inf
) -> Record:
    return Record(
        f"prefix_cache.trial.{name}",
        meaning,
        source="new, runs of the block-exact simulator",
        absent=absent,
        whole=whole,
        most=most,
        basis="simulated",
    )


PREFIX_CACHE = Block(
    "prefix_cache",
    "What the prefix cache finds, which rates it sustains, and whether it can collapse.",
    (
        _state(
            "prefix_cache.hit_ratio",
            "Share of the prompt tokens that the warm cache finds.",
            "h/s̄, h = L̄·q·F(T) + Σ p_g·c_g·(1 − e^(−λ_g·(R + T))), F(T) the share of the gaps up to T, T₂ in "
            "place of T with a host tier; or the measured curve at M",
            "prompt left reuse common prefix_cache.characteristic_time_s prefix_cache.host.characteristic_time_s",
            label="Hit ratio",
            format=percent,
            most=1.0,
        ),
        _state(
            "prefix_cache.reusable_ratio",
            "Share of the prompt tokens that a cache without end would find.",
            "(L̄·q + Σ p_g·c_g)/s̄; or the last point of the measured curve",
            "prompt left reuse common",
            label="Hit ratio of a cache without end",
            format=percent,
            absent=_NOT_SHARED,
            most=1.0,
        ),
        _state(
            "prefix_cache.characteristic_time_s",
            "After so long what nobody asked for again is gone from the cache.",
            "T = (M − K − C_a − C_g)/(Σλ·L̄·(1 − q)): what is left for nobody fills the rest of memory, C_a "
            "tokens that will be asked for again, C_g those of shared prompts not in use",
            "memory prefix_cache.kv_unique_tokens rate left reuse",
            label="Characteristic time",
            absent="Everything fits, hits follow a measured curve, or there is no warm state.",
        ),
        _state(
            "prefix_cache.cached_tokens",
            "KV tokens kept of requests that are done.",
            "C(T) = ∫₀ᵀ Φ = M − K where not everything fits",
            "memory prefix_cache.kv_unique_tokens",
            label="KV tokens cached",
            format=format_tokens,
        ),
        _state(
            "prefix_cache.kv_unique_tokens",
            "KV tokens of running requests, shared ones once.",
            UNIQUE,
            "rate footprint equilibrium.iteration_time_s",
            label="KV tokens in use",
            format=format_tokens,
        ),
        _state(
            "prefix_cache.prefill_tokens_per_s",
            "Prompt tokens computed per second.",
            "Σλ·(s̄ − h), h prompt tokens found of a request",
            "rate prefill prefix_cache.hit_ratio",
            label="Prefill",
        ),
        _state(
            "prefix_cache.sustainable_rps.guaranteed",
            "Rate that is served whatever has happened before; one's own earlier turns do not raise it, shared "
            "prompts do.",
            GUARANTEED,
            "memory footprint fixed work",
            label="Guaranteed rate",
            absent=_NOT_SHARED,
        ),
        _state(
            "prefix_cache.sustainable_rps.good",
            "Rate that a warm cache serves as long as nothing happens.",
            "max over x of x/τ(x), x admissions an iteration",
            "memory footprint work",
            label="Rate of a warm cache",
            absent=_NOT_SHARED,
        ),
        _state(
            "prefix_cache.loop_gain",
            "By how much a longer iteration lengthens the next through what is found; from 1 on the state is "
            "lost.",
            "K·τ*·(d2/d0)·q·f(T)/(1 − q·F(T)), f = F', for private prefixes of one law of gaps and a linear law",
            "prefix_cache.kv_unique_tokens equilibrium.iteration_time_s d2 d0 reuse "
            "prefix_cache.characteristic_time_s",
            label="Loop gain",
        ),
        _state(
            "prefix_cache.collapse_possible",
            "Whether a burst can leave the replica, at the offered rate, in a state that it does not come out of.",
            "Σλ > guaranteed, or more than one stable state",
            "rate prefix_cache.sustainable_rps.guaranteed users",
            label="Collapse possible",
            absent=_NOT_SHARED,
            kind=Kind.TRUTH,
        ),
        _state(
            "prefix_cache.separatrix_in_flight",
            "Running requests beyond which the warm state is lost.",
            "λ·n̄·τ at the unstable state",
            "rate iterations",
            label="Lost beyond",
            format=lambda value: f"{format_number(value)} running requests",
            unit="requests",
            absent="There is no unstable state at the offered rate.",
        ),
        _state(
            "prefix_cache.collapsed.throughput_rps",
            "Rate that is served once the cache is empty for good.",
            "x/τ(x) where running requests fill memory",
            "prefix_cache.collapsed.iteration_time_s",
            label="Collapsed throughput",
            absent=_NO_COLLAPSE,
        ),
        _state(
            "prefix_cache.collapsed.iteration_time_s",
            "Time of an iteration then.",
            WARM_SATURATION,
            "fixed work d2",
            label="Collapsed iteration time",
            absent=_NO_COLLAPSE,
        ),
        _state(
            "prefix_cache.streams_in_memory",
            "How many requests' private leavings memory holds; below 100 fluctuations count, and near the good "
            "rate a warm cache is lost by itself.",
            "M/L̄",
            "memory left",
            label="Streams in memory",
            format=lambda value: format_number(value, 3),
            absent="Requests reuse nothing of their own.",
        ),
        _state(
            "prefix_cache.preemption_recovered_share",
            "Share of what a preempted request had computed that it finds again; an upper estimate where decode "
            "lengths vary little.",
            "1 − (m/v)·(1 − e^(−v/m)), m mean decode length, v mean prompt",
            "decode input_tokens",
            format=percent,
            absent="",
            most=1.0,
            basis="estimated",
        ),
        _host(
            "prefix_cache.host.hit_ratio",
            "Share of the prompt tokens that are loaded from the host, part of the hit ratio.",
            "h₂/s̄ = (h(T₂) − h(T))/s̄, h(T) what a cache finds that keeps everything for T",
            "prompt left reuse prefix_cache.characteristic_time_s prefix_cache.host.characteristic_time_s",
            label="Loaded from the host",
            format=percent,
        ),
        _host(
            "prefix_cache.host.characteristic_time_s",
            "After so long what nobody asked for again is gone from the host, too.",
            "as T, with the memory of the host where every block is written to it, of both where only victims are",
            "reach prefix_cache.kv_unique_tokens rate left reuse",
            label="Characteristic time of the host",
            absent=f"{_NO_TIER}, everything fits, hits follow a measured curve, or there is no warm state.",
        ),
        _host(
            "prefix_cache.host.link_utilization",
            "Share of the time in which the link loads from the host.",
            "Σλ·h₂·dx, dx = bytes of a token/bandwidth",
            "rate prompt prefix_cache.host.hit_ratio load_time",
            label="Link to the host busy",
            format=percent,
        ),
        _host(
            "prefix_cache.host.recovers_up_to_rps",
            "Rate up to which a replica full of requests, none of them waiting, comes back to its warm cache.",
            "x/τ(x) where x admissions an iteration fill memory, and the host still has what was left within T₂",
            "memory prefix_cache.host.characteristic_time_s",
            label="A full replica recovers up to",
            absent=_NO_HOST,
        ),
        _host(
            "prefix_cache.host.longest_wait_s",
            "The longest wait in a queue from which it comes back at the offered rate: what a turn waits is added "
            "to the gap, and outlasts what the host keeps.",
            "the wait W at which that rate, with gaps longer by W, is Σλ",
            "rate prefix_cache.host.recovers_up_to_rps",
            label="Longest wait that it survives",
            absent=f"{_NO_TIER}, or it comes back from every queue, or from none.",
        ),
        _host(
            "prefix_cache.sustainable_rps_without_host.guaranteed",
            "The guaranteed rate of the GPU alone: no host tier raises it.",
            GUARANTEED,
            "memory footprint fixed work",
            unit="requests/s",
            absent=_NO_HOST,
        ),
        _host(
            "prefix_cache.sustainable_rps_without_host.good",
            "Rate that a warm cache on the GPU alone serves.",
            "max over x of x/τ(x), x admissions an iteration",
            "memory footprint work",
            label="Rate of a warm cache, GPU alone",
            unit="requests/s",
            absent=_NO_HOST,
        ),
        _trial("runs", "Runs of a warm cache at the offered rate, and as many with a burst."),
        _trial("lasted", "Of them, how many without a burst were warm in the end."),
        _trial(
            "survived_burst",
            "How many were warm in the end in spite of a burst of new sessions, or of requests that nobody asks for "
            "again, that fill memory once.",
        ),
        _trial(
            "hit_ratio",
            "Share of the prompt tokens found in the runs that lasted without a burst.",
            f"{_NOT_TRIED} Or no run lasted.",
            whole=False,
            most=1.0,
        ),
    ),
    absent="The engine keeps no prefixes: prefix_caching = false. Or it is not modelled: beside drafts, and layers of "
    "several kinds.",
    nullable=True,
    beside=(
        "prefix_cache.trial.summary",
        "prefix_cache.branches",
        "prefix_cache.capacity_tokens",
        "prefix_cache.users",
        "prefix_cache.good_users",
    ),
)
