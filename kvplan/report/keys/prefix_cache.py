"""Keys of the `prefix_cache` block."""

from kvplan.report.keys.record import Block, Kind, Record

_NEW = "new, theory of prefix caches: Che's approximation for least recently used pages"
_NOTHING = "Requests have nothing in common, or no state of a warm cache serves the offered rate."
_NO_COLLAPSE = "Requests have nothing in common, or no collapsed state exists at the offered rate."
_NOT_SHARED = "Requests have nothing in common."


def _state(name: str, meaning: str, formula: str, unit: str = "", absent: str = _NOTHING) -> Record:
    return Record(f"prefix_cache.{name}", meaning, formula=formula, source=_NEW, unit=unit, absent=absent)


PREFIX_CACHE = Block(
    "prefix_cache",
    "What the prefix cache finds, which rates it sustains, and whether it can collapse.",
    (
        _state(
            "hit_ratio", "Share of the prompt tokens that the warm cache finds.", "h/s̄, h = L̄q·F(T) + shared"
        ),
        _state(
            "reusable_ratio",
            "Share of the prompt tokens that a cache without end would find.",
            "the same at T = ∞",
            absent=_NOT_SHARED,
        ),
        _state(
            "characteristic_time_s",
            "After so long what nobody asked for again is gone from the cache.",
            "T: memory in use and what was left in the last T s and not asked for fill M",
            "s",
            "Everything fits, hits follow a measured curve, or there is no warm state.",
        ),
        _state("cached_tokens", "KV tokens kept of requests that are done.", "C(T) = ∫₀ᵀ Φ", "tokens"),
        _state(
            "kv_unique_tokens",
            "KV tokens of running requests, shared ones once.",
            "K = Σλ·S̄·τ − shared",
            "tokens",
        ),
        _state("prefill_tokens_per_s", "Prompt tokens computed per second.", "Σλ·(s̄ − h)", "tokens/s"),
        _state(
            "sustainable_rps.guaranteed",
            "Rate that is served whatever has happened before; one's own earlier turns do not raise it, shared prompts "
            "do.",
            "largest λ at which τ(K = M) does not exceed what the load allows",
            "requests/s",
            _NOT_SHARED,
        ),
        _state(
            "sustainable_rps.good",
            "Rate that a warm cache serves as long as nothing happens.",
            "max over x of x/τ(x), x admissions an iteration",
            "requests/s",
            _NOT_SHARED,
        ),
        _state(
            "loop_gain",
            "By how much a longer iteration lengthens the next through what is found; from 1 on the state is lost.",
            "K·τ·(d2/d0)·q·f(T)/(1 − q·F(T)) for private prefixes and a linear law",
        ),
        Record(
            "prefix_cache.collapse_possible",
            "Whether a burst can leave the replica, at the offered rate, in a state that it does not come out of.",
            formula="Σλ > guaranteed, or more than one stable state",
            source=_NEW,
            kind=Kind.TRUTH,
            absent=_NOT_SHARED,
        ),
        _state(
            "separatrix_in_flight",
            "Running requests beyond which the warm state is lost.",
            "λ·n̄·τ at the unstable state",
            "requests",
            "There is no unstable state at the offered rate.",
        ),
        _state(
            "collapsed.throughput_rps",
            "Rate that is served once the cache is empty for good.",
            "x/τ(x) where requests in flight fill memory",
            "requests/s",
            _NO_COLLAPSE,
        ),
        _state("collapsed.iteration_time_s", "Time of an iteration then.", "τ(K = M)", "s", _NO_COLLAPSE),
        _state(
            "streams_in_memory",
            "How many requests' private leavings memory holds; below 100 fluctuations count, below 50 only the "
            "guaranteed rate can be planned with.",
            "M/E[L]",
            absent="Requests reuse nothing of their own.",
        ),
        Record(
            "prefix_cache.preemption_recovered_share",
            "Share of what a preempted request had computed that it finds again; an upper estimate where decode "
            "lengths vary little.",
            formula="1 − (m/v)(1 − e^(−v/m)), m mean decode length, v mean prompt",
            source=_NEW,
            basis="estimated",
        ),
        Record(
            "prefix_cache.branches",
            "All states at the offered rate, by requests in flight.",
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
    ),
    absent="The engine keeps no prefixes: prefix_caching = false.",
    nullable=True,
)
