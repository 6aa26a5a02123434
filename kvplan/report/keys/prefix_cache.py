"""Keys of the `prefix_cache` block."""

import math
from collections.abc import Callable

from kvplan.report.keys import law_text
from kvplan.report.keys.evidence import ByLaw, Evidence
from kvplan.report.keys.load import GUARANTEED, guaranteed_here
from kvplan.report.keys.record import Block, Kind, Record

_NEW = "new, theory of prefix caches: Che's approximation for least recently used pages"
_NOTHING = "Requests have nothing in common, or no state of a warm cache serves the offered rate."
_NO_COLLAPSE = "Requests have nothing in common, or no collapsed state exists at the offered rate."
_NOT_SHARED = "Requests have nothing in common."
_NO_HOST = "The profile has no host tier, or requests have nothing in common"
_NOT_TRIED = (
    "Nobody asked for it: kvplan analyze --trial, or a requirement that kvplan check judges. Or no burst can empty the "
    "cache at the offered rate, a warm one does not serve it either, or hits follow a measured curve."
)
_RUNS = "new, runs of the block-exact simulator"
_TWO_TIERS = "new, theory of host tiers: two characteristic times"


def _state(
    name: str,
    meaning: str,
    formula: str | ByLaw,
    here: Callable[[Evidence], str] | None,
    unit: str = "",
    absent: str = _NOTHING,
    symbol: str = "",
    most: float = math.inf,
) -> Record:
    key = f"prefix_cache.{name}"
    return Record(key, meaning, formula, here, _NEW, symbol=symbol, unit=unit, absent=absent, most=most)


def _host(
    name: str,
    meaning: str,
    formula: str,
    here: Callable[[Evidence], str] | None = None,
    unit: str = "",
    absent: str = f"{_NO_HOST}, or no state of a warm cache serves the offered rate.",
    symbol: str = "",
) -> Record:
    return Record(
        f"prefix_cache.{name}", meaning, formula, here, _TWO_TIERS, symbol=symbol, unit=unit, absent=absent
    )


def _trial(name: str, meaning: str, absent: str = _NOT_TRIED, *, whole: bool = True) -> Record:
    key, most = f"prefix_cache.trial.{name}", math.inf if whole else 1.0
    return Record(
        key, meaning, source=_RUNS, unit="", absent=absent, whole=whole, most=most, basis="simulated"
    )


def _hosted_here(e: Evidence) -> str:
    private = f"{e('left', 9)}·{e('q', 9)}·({e('F', 9)} − {e('F_gpu', 9)})"
    return f"({private} + {e('common_hits', 9)} − {e('common_gpu', 9)}) / {e('s_exact', 9)}"


def _host_time_here(e: Evidence) -> str:
    return (
        f"({e('M_reach', 9)} − {e('prefix_cache.kv_unique_tokens', 9)} − {e('asked_for_host', 9)} − "
        f"{e('common_kept_host', 9)}) / ({e('rate', 9)}·{e('left', 9)}·(1 − {e('q', 9)}))"
    )


def _utilization_here(e: Evidence) -> str:
    return f"{e('rate', 9)}·{e('s_exact', 9)}·{e('prefix_cache.host.hit_ratio', 9)}·{e('load_s', 9)}"


def _reusable_here(e: Evidence) -> str:
    return f"({e('left', 9)}·{e('q', 9)} + {e('common', 9)}) / {e('s_exact', 9)}"


def _collapse_here(e: Evidence) -> str:
    offered, most = (
        e.document["load"]["offered_rps"],
        e.document["prefix_cache"]["sustainable_rps"]["guaranteed"],
    )
    names = "load.offered_rps", "prefix_cache.sustainable_rps.guaranteed"
    if (users := e.figures["users"].value) is not None:
        offered, most, names = users, e.figures["users_guaranteed"].value, ("users", "users_guaranteed")
    number, guaranteed = (e(name) for name in names)
    return f"{number} {'>' if offered > most else '≤'} {guaranteed} guaranteed; {e('stable_states')} stable states"


PREFIX_CACHE = Block(
    "prefix_cache",
    "What the prefix cache finds, which rates it sustains, and whether it can collapse.",
    (
        _state(
            "hit_ratio",
            "Share of the prompt tokens that the warm cache finds.",
            "h/s̄, h = L̄·q·F(T) + Σ p_g·c_g·(1 − e^(−λ_g·(R + T))), T₂ in place of T with a host tier; or the measured "
            "curve at M",
            lambda e: f"({e('left', 9)}·{e('q', 9)}·{e('F', 9)} + {e('common_hits', 9)}) / {e('s_exact', 9)}",
            most=1.0,
        ),
        _state(
            "reusable_ratio",
            "Share of the prompt tokens that a cache without end would find.",
            "(L̄·q + Σ p_g·c_g)/s̄; or the last point of the measured curve",
            _reusable_here,
            absent=_NOT_SHARED,
            most=1.0,
        ),
        _state(
            "characteristic_time_s",
            "After so long what nobody asked for again is gone from the cache.",
            "T = (M − K − C_a − C_g)/(Σλ·L̄·(1 − q)): what is left for nobody fills the rest of memory",
            lambda e: (
                f"({e('M', 9)} − {e('prefix_cache.kv_unique_tokens', 9)} − {e('asked_for', 9)} − "
                f"{e('common_kept', 9)}) / ({e('rate', 9)}·{e('left', 9)}·(1 − {e('q', 9)}))"
            ),
            "s",
            "Everything fits, hits follow a measured curve, or there is no warm state.",
            "T",
        ),
        _state(
            "cached_tokens",
            "KV tokens kept of requests that are done.",
            "C(T) = ∫₀ᵀ Φ = M − K where not everything fits",
            lambda e: f"{e('M_filled', 9)} − {e('prefix_cache.kv_unique_tokens', 9)}",
            "tokens",
        ),
        _state(
            "kv_unique_tokens",
            "KV tokens of running requests, shared ones once.",
            "K = Σλ·S̄·τ* − D, D what running requests have in common beyond once",
            lambda e: f"{e('rate', 9)}·{e('S_b', 9)}·{e('equilibrium.iteration_time_s', 9)} − {e('D', 9)}",
            "tokens",
            symbol="K",
        ),
        _state(
            "prefill_tokens_per_s",
            "Prompt tokens computed per second.",
            "Σλ·(s̄ − h)",
            lambda e: f"{e('rate')}·({e('prompt_work', 9)} − {e('saved', 9)})",
            "tokens/s",
        ),
        _state(
            "sustainable_rps.guaranteed",
            "Rate that is served whatever has happened before; one's own earlier turns do not raise it, shared prompts "
            "do.",
            GUARANTEED,
            guaranteed_here,
            "requests/s",
            _NOT_SHARED,
            "guaranteed",
        ),
        _state(
            "sustainable_rps.good",
            "Rate that a warm cache serves as long as nothing happens.",
            "max over x of x/τ(x), x admissions an iteration",
            None,
            "requests/s",
            _NOT_SHARED,
        ),
        _state(
            "loop_gain",
            "By how much a longer iteration lengthens the next through what is found; from 1 on the state is lost.",
            "K·τ*·(d2/d0)·q·f(T)/(1 − q·F(T)), f = F', for private prefixes of one law of gaps and a linear law",
            lambda e: (
                f"{e('prefix_cache.kv_unique_tokens', 9)}·{e('equilibrium.iteration_time_s', 9)}·({e('d2')}/{e('d0')})"
                f"·{e('q', 9)}·{e('f', 9)} / (1 − {e('q', 9)}·{e('F', 9)})"
            ),
        ),
        Record(
            "prefix_cache.collapse_possible",
            "Whether a burst can leave the replica, at the offered rate, in a state that it does not come out of.",
            formula="Σλ > guaranteed, or more than one stable state",
            here=_collapse_here,
            source=_NEW,
            kind=Kind.TRUTH,
            absent=_NOT_SHARED,
        ),
        _state(
            "separatrix_in_flight",
            "Running requests beyond which the warm state is lost.",
            "λ·n̄·τ at the unstable state",
            lambda e: f"{e('rate_unstable', 9)}·{e('n', 9)}·{e('tau_unstable', 9)}",
            "requests",
            "There is no unstable state at the offered rate.",
        ),
        _state(
            "collapsed.throughput_rps",
            "Rate that is served once the cache is empty for good.",
            "x/τ(x) where running requests fill memory",
            lambda e: f"{e('x_limit', 9)} / {e('prefix_cache.collapsed.iteration_time_s', 9)}",
            "requests/s",
            _NO_COLLAPSE,
        ),
        _state(
            "collapsed.iteration_time_s",
            "Time of an iteration then.",
            law_text.WARM_SATURATION,
            lambda e: law_text.warm_saturation_here(e, "x_full"),
            "s",
            _NO_COLLAPSE,
        ),
        _state(
            "streams_in_memory",
            "How many requests' private leavings memory holds; below 100 fluctuations count, and near the good rate a "
            "warm cache is lost by itself.",
            "M/L̄",
            lambda e: f"{e('M', 9)} / {e('left', 9)}",
            absent="Requests reuse nothing of their own.",
        ),
        Record(
            "prefix_cache.preemption_recovered_share",
            "Share of what a preempted request had computed that it finds again; an upper estimate where decode "
            "lengths vary little.",
            formula="1 − (m/v)·(1 − e^(−v/m)), m mean decode length, v mean prompt",
            here=lambda e: f"1 − ({e('d', 9)}/{e('v', 9)})·(1 − exp(−{e('v', 9)}/{e('d', 9)}))",
            source=_NEW,
            most=1.0,
            basis="estimated",
        ),
        _host(
            "host.hit_ratio",
            "Share of the prompt tokens that are loaded from the host, part of the hit ratio.",
            "h₂/s̄ = (h(T₂) − h(T))/s̄, h(T) what a cache finds that keeps everything for T",
            _hosted_here,
            symbol="h₂/s̄",
        ),
        _host(
            "host.characteristic_time_s",
            "After so long what nobody asked for again is gone from the host, too.",
            "as T, with the memory of the host where every block is written to it, of both where only victims are",
            _host_time_here,
            unit="s",
            absent=f"{_NO_HOST}, everything fits, hits follow a measured curve, or there is no warm state.",
            symbol="T₂",
        ),
        _host(
            "host.link_utilization",
            "Share of the time in which the link loads from the host.",
            "Σλ·h₂·dx, dx = bytes of a token/bandwidth",
            _utilization_here,
        ),
        _host(
            "host.recovers_up_to_rps",
            "Rate up to which a replica full of requests, none of them waiting, comes back to its warm cache.",
            "x/τ(x) where x admissions an iteration fill memory, and the host still has what was left within T₂",
            unit="requests/s",
            absent=f"{_NO_HOST}.",
        ),
        _host(
            "host.longest_wait_s",
            "The longest wait in a queue from which it comes back at the offered rate: what a turn waits is added to "
            "the gap, and outlasts what the host keeps.",
            "the wait W at which that rate, with gaps longer by W, is Σλ",
            unit="s",
            absent=f"{_NO_HOST}, or it comes back from every queue, or from none.",
        ),
        _host(
            "sustainable_rps_without_host.guaranteed",
            "The guaranteed rate of the GPU alone: no host tier raises it.",
            GUARANTEED,
            guaranteed_here,
            unit="requests/s",
            absent=f"{_NO_HOST}.",
        ),
        _host(
            "sustainable_rps_without_host.good",
            "Rate that a warm cache on the GPU alone serves.",
            "max over x of x/τ(x), x admissions an iteration",
            unit="requests/s",
            absent=f"{_NO_HOST}.",
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
        ),
        Record(
            "prefix_cache.trial.summary",
            "What the runs showed, in words.",
            kind=Kind.TEXT,
            absent=_NOT_TRIED,
            in_contract=False,
        ),
        Record(
            "prefix_cache.branches",
            "All states at the offered rate, by running requests.",
            kind=Kind.TABLE,
            in_contract=False,
        ),
        Record(
            "prefix_cache.capacity_tokens",
            "KV tokens that memory holds, in whole pages.",
            unit="tokens",
            whole=True,
            in_contract=False,
        ),
        Record(
            "prefix_cache.users",
            "Users of a closed population.",
            whole=True,
            absent="Requests come at a rate.",
            in_contract=False,
        ),
        Record(
            "prefix_cache.good_users",
            "Users that have a warm state.",
            absent="Requests come at a rate.",
            in_contract=False,
        ),
    ),
    absent="The engine keeps no prefixes: prefix_caching = false. Or it is not modelled: beside drafts, and layers of "
    "several kinds.",
    nullable=True,
)
