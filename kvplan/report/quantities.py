"""Quantities of a model and a plan that the formulas of the report name, beside the report's own keys."""

from collections.abc import Callable, Mapping
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvplan.analysis.cache_states import CachedReplica, cached_replica
from kvplan.analysis.concurrency import computed_blocks, longest_blocks
from kvplan.analysis.equilibrium import PerRequest, per_request, sustainable_rates
from kvplan.analysis.wait import ClassMeans, class_means
from kvplan.model import Plan, ServingModel
from kvplan.report.inputs import source_text
from kvplan.units import format_number

DIGITS = 6  # enough to follow a calculation
_MOST_LISTED = 8

Value = float | int | str | None


class Given:
    """A model and a plan, and what follows from them for several quantities."""

    def __init__(self, model: ServingModel, plan: Plan) -> None:
        self.model, self.plan = model, plan
        self.mix, self.replica, self.classes = model.mix, model.replica, model.classes

    @cached_property
    def cached(self) -> CachedReplica | None:
        """The replica with its prefix cache, where that finds something."""
        return cached_replica(self.model) if self.model.finds_prefixes else None

    @cached_property
    def cost(self) -> PerRequest:
        """Mean amounts of a request; with a prefix cache by the exact moments of sessions, before anything is found."""
        cost, warm = per_request(self.model), self.cached
        if warm is None:
            return cost
        return cost._replace(
            held=warm.held,
            read=warm.read,
            prefill_tokens=warm.prefill,
            prefill_pairs=warm.prefill_pairs,
            iterations=warm.stages,
            work_s=warm.work_s,
        )

    @cached_property
    def means(self) -> ClassMeans:
        return class_means(self.model)


class Quantity(NamedTuple):
    """A number that formulas name; `value` gives one for each class, in a tuple, where it is of classes."""

    symbol: str
    meaning: str
    value: Callable[[Given], Value | tuple[Value, ...]]


def listed(words: list[str]) -> str:
    """At most eight words, with an ellipsis for the rest."""
    return ", ".join([*words[:_MOST_LISTED], "…"] if len(words) > _MOST_LISTED else words)


def _of_cache(symbol: str, meaning: str, value: Callable[[CachedReplica], Value]) -> Quantity:
    return Quantity(symbol, meaning, lambda g: None if g.cached is None else value(g.cached))


def _constant(name: str, meaning: str) -> Quantity:
    return Quantity(name, meaning, lambda g: getattr(g.model.timing, name) or None)


def _origin(name: str) -> Quantity:
    value = attrgetter(f"model.provenance.{name}")
    return Quantity("", f"source of {name}", lambda g: source_text(value(g)) or None)


def _fixed(g: Given) -> Value:
    timing = g.model.timing
    if timing.is_linear:
        return timing.d0
    woken = " + experts·E[1 − (1 − chosen)^(P + B)]" if timing.experts else ""
    return f"d0 + d4·√B + d5·E[max(0, P + B − knee_tokens)]{woken}"


def _lengths(stages: NDArray[np.int64]) -> str:
    return listed([str(n) for n in np.unique(stages)])


def _limits(g: Given) -> Value:
    return ", ".join(f"{k} {format_number(v, DIGITS)}" for k, v in sustainable_rates(g.model).items())


def _load_time(g: Given) -> Value:
    return None if g.replica.offload is None else g.replica.offload.load_s


def _band(g: Given) -> Value:
    band = g.model.measured.band
    return band and " to ".join(format_number(end, DIGITS) for end in band)


def _reuse(cached: CachedReplica) -> float:
    return sum(one.reused for one in cached.private) / cached.left if cached.left else 0.0


def _shared(cached: CachedReplica) -> float:
    share, tokens, _ = cached.shared
    return float(share @ tokens)


QUANTITIES: Mapping[str, Quantity] = {
    # traffic
    "rate": Quantity("Σλ", "arrivals of all classes, requests/s", lambda g: g.model.total_rate_rps),
    "users": _of_cache("users", "closed population", lambda cached: cached.users),
    "footprint": Quantity(
        "S̄", "mean KV token-iterations of a request, in whole pages", lambda g: g.cost.held
    ),
    "context": Quantity(
        "S̄", "mean KV token-iterations of a request, as time counts it", lambda g: g.cost.read
    ),
    "prefill": Quantity("s̄", "mean tokens computed for prompts", lambda g: g.cost.prefill_tokens),
    "pairs": Quantity("q̄", "mean pairs of these with their context", lambda g: g.cost.prefill_pairs),
    "iterations": Quantity("n̄", "mean iterations that a request stays", lambda g: g.cost.iterations),
    "computed": Quantity("t̄", "mean tokens computed for a request", lambda g: g.cost.computed_tokens),
    "input_tokens": Quantity("s̄", "mean input length, tokens", lambda g: g.mix.mean(g.mix.input_tokens)),
    "decode": Quantity("d̄", "mean decode length, tokens", lambda g: g.mix.mean(g.mix.decode_tokens)),
    "work": Quantity(
        "c̄",
        "mean time that a request adds to iterations, s: d1·S̄ + d2·s̄ + d3·n̄ + d6·q̄",
        lambda g: g.cost.work_s,
    ),
    "first": Quantity(
        "ā", "mean KV tokens at the first stage", lambda g: float(g.mix.share @ g.mix.held.at_start)
    ),
    "longest": Quantity("L", "iterations of the longest request", lambda g: int(g.mix.stages.max())),
    "lengths": Quantity("n_i", "iterations of requests", lambda g: _lengths(g.mix.stages)),
    # classes
    "class_rate": Quantity(
        "λ_i", "arrivals of the class, requests/s", lambda g: tuple(c.rate_rps for c in g.classes)
    ),
    "class_share": Quantity(
        "p_i",
        "share of the class in all requests",
        lambda g: tuple(c.rate_rps / g.model.total_rate_rps for c in g.classes),
    ),
    "class_iterations": Quantity(
        "n̄_i", "mean iterations that one of the class stays", lambda g: tuple(g.means.iterations.tolist())
    ),
    "class_footprint": Quantity(
        "S_i", "mean KV token-iterations of the class, in whole pages", lambda g: tuple(g.means.held.tolist())
    ),
    "class_work": Quantity(
        "c_i",
        "mean time that one of the class adds to iterations, s",
        lambda g: tuple(g.means.work_s.tolist()),
    ),
    "class_lengths": Quantity(
        "n_i",
        "iterations of requests of the class",
        lambda g: tuple(_lengths(g.mix.stages[g.mix.class_index == i]) for i in range(len(g.classes))),
    ),
    # replica
    "memory": Quantity(
        "M", "KV tokens that memory holds, in whole pages", lambda g: g.replica.capacity_tokens
    ),
    "max_num_seqs": Quantity("B_max", "requests that run at once", lambda g: g.replica.max_num_seqs),
    "max_num_batched_tokens": Quantity(
        "T_b", "tokens computed in an iteration, at most", lambda g: g.replica.max_num_batched_tokens
    ),
    "limits": Quantity("", "largest total rate under each limit, requests/s", _limits),
    "pages": Quantity(
        "⌊M/b⌋", "pages of memory", lambda g: g.replica.memory_tokens // g.replica.block_tokens
    ),
    "longest_pages": Quantity(
        "⌈max(s + d)/b⌉", "pages of the longest request", lambda g: longest_blocks(g.model)
    ),
    "computed_pages": Quantity(
        "⌈(max(s + d) − 1)/b⌉", "pages of it that vLLM computes", lambda g: computed_blocks(g.model)
    ),
    "overhead": Quantity(
        "request_overhead", "time outside the engine, s", lambda g: g.model.request_overhead_s or None
    ),
    # iteration time
    "fixed": Quantity(
        "F", "time beside what adds up over requests, s; B sequences, P prefill tokens", _fixed
    ),
    "d0": _constant("d0", "fixed time of an iteration, s"),
    "d1": _constant("d1", "time per KV token, s"),
    "d2": _constant("d2", "time per prefill token, s"),
    "d3": _constant("d3", "time per sequence, s"),
    "d4": _constant("d4", "time per √sequences, s"),
    "d5": _constant("d5", "time per token beyond the knee, s"),
    "knee_tokens": _constant("knee_tokens", "tokens from which d5 counts"),
    "d6": _constant("d6", "time per pair of a prefill token and its context, s"),
    "experts": _constant("experts", "time to read all experts, s"),
    "chosen": _constant("chosen", "share of the experts that a token chooses"),
    "band": Quantity("band", "times what the timing says, as measured", _band),
    # prefix cache
    "prompt": _of_cache("s̄", "mean prompt tokens", lambda cached: cached.mean("prompt")),
    "left": _of_cache(
        "L̄", "mean tokens that a request leaves in full pages, no shared prompts", lambda cached: cached.left
    ),
    "reuse": _of_cache("q", "share of them asked for again", _reuse),
    "common": _of_cache("Σ p_g·c_g", "mean tokens of shared prompts", _shared),
    "reach": _of_cache("M₂", "KV tokens that GPU and host keep", lambda cached: cached.reach_tokens),
    "load_time": Quantity("dx", "time of the link for a token, s", _load_time),
    # plan
    "delta": Quantity("δ", "accepted probability of any overflow in the horizon", lambda g: g.plan.delta),
    "horizon": Quantity("T", "horizon, s", lambda g: g.plan.horizon_s),
    "gpu_hour": Quantity("gpu_hour", "price of a GPU for an hour", lambda g: g.plan.gpu_hour),
    **{f"origin_{name}": _origin(name) for name in ("gpu", "timing", "workload")},
}
