"""Quantities of a model and a plan that the formulas of the report name, beside the report's own keys."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from kvplan.analysis.cache_states import CachedReplica, cached_replica
from kvplan.analysis.concurrency import computed_blocks, longest_blocks
from kvplan.analysis.equilibrium import per_request, sustainable_rates
from kvplan.analysis.wait import ClassMeans, class_means
from kvplan.model import Plan, ServingModel
from kvplan.report.inputs import source_text
from kvplan.units import format_number

DIGITS = 6  # enough to follow a calculation

Value = float | int | str | None


class Quantity(NamedTuple):
    """A number that formulas name; `value` gives one for each class, in a tuple, where it is of classes."""

    symbol: str
    meaning: str
    value: "Callable[[Given], Value | tuple[Value, ...]]"


class PerRequest(NamedTuple):
    """Mean amounts of a request; with a prefix cache before anything is found, by the exact moments of sessions."""

    footprint: float
    context: float
    prefill: float
    iterations: float
    work_s: float


@dataclass(frozen=True)
class Given:
    """What quantities are taken from.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> given = Given(ServingModel((RequestClass("a", 2, (3,), (1.0,), 0.5),), Timing(1.0), Replica(12)), Plan())
    >>> QUANTITIES["memory"].value(given), QUANTITIES["class_rate"].value(given)
    (12, (0.5,))
    """

    model: ServingModel
    plan: Plan

    @cached_property
    def cached(self) -> CachedReplica | None:
        """The replica with its prefix cache, where that finds something."""
        return cached_replica(self.model) if self.model.finds_prefixes else None

    @cached_property
    def cost(self) -> PerRequest:
        """Mean amounts of a request."""
        if self.cached is not None:
            warm = self.cached
            return PerRequest(warm.held, warm.read, warm.prefill, warm.stages, warm.work_s)
        cold = per_request(self.model)
        return PerRequest(cold.held, cold.read, cold.prefill_tokens, cold.iterations, cold.work_s)

    @cached_property
    def means(self) -> ClassMeans:
        """Mean amounts of a request of each class."""
        return class_means(self.model)

    def of_cache(self, value: Callable[[CachedReplica], Value]) -> Value:
        """A quantity of the prefix cache; None where it finds nothing."""
        return None if self.cached is None else value(self.cached)


def _fixed(given: Given) -> Value:
    timing = given.model.timing
    return timing.d0 if timing.is_linear else "d0 + d4·√B + d5·E[max(0, P + B − knee_tokens)]"


def _constant(name: str, meaning: str) -> Quantity:
    return Quantity(name, meaning, lambda given: getattr(given.model.timing, name) or None)


def _origin(name: str) -> Quantity:
    return Quantity(
        "", f"source of {name}", lambda given: source_text(getattr(given.model.provenance, name)) or None
    )


def _lengths(stages: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> str:
    return listed([str(n) for n in np.unique(stages)])


def _limits(given: Given) -> Value:
    return ", ".join(f"{k} {format_number(v, DIGITS)}" for k, v in sustainable_rates(given.model).items())


def _reuse(cached: CachedReplica) -> float:
    return sum(one.reused for one in cached.private) / cached.left if cached.left else 0.0


def _shared(cached: CachedReplica) -> float:
    share, tokens, _ = cached.shared
    return float(share @ tokens)


QUANTITIES: Mapping[str, Quantity] = {
    # traffic
    "rate": Quantity("Σλ", "arrivals of all classes, requests/s", lambda g: g.model.total_rate_rps),
    "users": Quantity("users", "closed population", lambda g: g.of_cache(lambda c: c.users)),
    "footprint": Quantity(
        "S̄",
        "mean footprint of a request, KV token-iterations, in whole pages",
        lambda g: g.cost.footprint,
    ),
    "context": Quantity(
        "S̄", "mean footprint of a request, KV token-iterations, as time counts it", lambda g: g.cost.context
    ),
    "prefill": Quantity(
        "s̄",
        "mean prefill work of a request, tokens; 0 where prefill is disaggregated",
        lambda g: g.cost.prefill,
    ),
    "iterations": Quantity("n̄", "mean iterations that a request stays", lambda g: g.cost.iterations),
    "computed": Quantity(
        "t̄", "mean tokens computed for a request", lambda g: per_request(g.model).computed_tokens
    ),
    "input_tokens": Quantity(
        "s̄", "mean input length, tokens", lambda g: g.model.mix.mean(g.model.mix.input_tokens)
    ),
    "decode": Quantity(
        "d̄", "mean decode length, tokens", lambda g: g.model.mix.mean(g.model.mix.decode_tokens)
    ),
    "work": Quantity(
        "c̄",
        "mean time that a request adds to iterations in all, s: d1·S̄ + d2·s̄ + d3·n̄",
        lambda g: g.cost.work_s,
    ),
    "first": Quantity(
        "ā",
        "mean KV tokens held at the first stage, in whole pages",
        lambda g: float(g.model.mix.share @ g.model.mix.held.at_start),
    ),
    "longest": Quantity("L", "iterations of the longest request", lambda g: int(g.model.mix.stages.max())),
    "lengths": Quantity("n_i", "iterations of requests", lambda g: _lengths(g.model.mix.stages)),
    # classes
    "class_rate": Quantity(
        "λ_i", "arrivals of the class, requests/s", lambda g: tuple(c.rate_rps for c in g.model.classes)
    ),
    "class_share": Quantity(
        "p_i",
        "share of the class in the total rate",
        lambda g: tuple(c.rate_rps / g.model.total_rate_rps for c in g.model.classes),
    ),
    "class_iterations": Quantity(
        "n̄_i",
        "mean iterations that a request of the class stays",
        lambda g: tuple(g.means.iterations.tolist()),
    ),
    "class_footprint": Quantity(
        "S_i",
        "mean footprint of the class, KV token-iterations, in whole pages",
        lambda g: tuple(g.means.held.tolist()),
    ),
    "class_work": Quantity(
        "c_i",
        "mean time that a request of the class adds to iterations in all, s",
        lambda g: tuple(g.means.work_s.tolist()),
    ),
    "class_lengths": Quantity(
        "n_i",
        "iterations of requests of the class",
        lambda g: tuple(
            _lengths(g.model.mix.stages[g.model.mix.class_index == i]) for i in range(len(g.model.classes))
        ),
    ),
    # replica
    "memory": Quantity(
        "M", "KV tokens that memory holds, in whole pages", lambda g: g.model.replica.capacity_tokens
    ),
    "max_num_seqs": Quantity(
        "B_max", "requests that the engine runs at once", lambda g: g.model.replica.max_num_seqs
    ),
    "max_num_batched_tokens": Quantity(
        "T_b",
        "tokens that the engine computes in an iteration",
        lambda g: g.model.replica.max_num_batched_tokens,
    ),
    "limits": Quantity("", "largest total rate under each limit, requests/s", _limits),
    "pages": Quantity(
        "⌊M/b⌋", "pages of memory", lambda g: g.model.replica.memory_tokens // g.model.replica.block_tokens
    ),
    "longest_pages": Quantity(
        "⌈max(s + d)/b⌉", "pages of the longest request", lambda g: longest_blocks(g.model)
    ),
    "computed_pages": Quantity(
        "⌈(max(s + d) − 1)/b⌉", "pages of it that vLLM computes", lambda g: computed_blocks(g.model)
    ),
    "overhead": Quantity(
        "request_overhead",
        "time of a request outside the engine, s",
        lambda g: g.model.request_overhead_s or None,
    ),
    # iteration time
    "fixed": Quantity(
        "F",
        "time of an iteration beside what adds up over requests, s; of B sequences and P prefill tokens",
        _fixed,
    ),
    "d0": _constant("d0", "fixed time of an iteration, s"),
    "d1": _constant("d1", "time per KV token, s"),
    "d2": _constant("d2", "time per prefill token, s"),
    "d3": _constant("d3", "time per sequence, s"),
    "d4": _constant("d4", "time per √sequences, s"),
    "d5": _constant("d5", "time per token beyond the knee, s"),
    "knee_tokens": _constant("knee_tokens", "tokens from which d5 counts"),
    "band": Quantity(
        "band",
        "that iterations took against what the timing says",
        lambda g: (
            g.model.measured.band and " to ".join(format_number(end, DIGITS) for end in g.model.measured.band)
        ),
    ),
    # prefix cache
    "prompt": Quantity(
        "s̄", "mean prompt tokens of a request", lambda g: g.of_cache(lambda c: c.mean("prompt"))
    ),
    "left": Quantity(
        "L̄",
        "mean tokens that a request leaves in full pages, shared prompts not counted",
        lambda g: g.of_cache(lambda c: c.left),
    ),
    "reuse": Quantity("q", "share of them asked for again", lambda g: g.of_cache(_reuse)),
    "common": Quantity(
        "Σ p_g·c_g", "mean tokens of shared prompts in a request", lambda g: g.of_cache(_shared)
    ),
    "reach": Quantity(
        "M₂",
        "KV tokens that GPU and host keep, in use or not",
        lambda g: g.of_cache(lambda c: c.reach_tokens),
    ),
    "load_time": Quantity(
        "dx",
        "time of the link for a token, s",
        lambda g: None if g.model.replica.offload is None else g.model.replica.offload.load_s,
    ),
    # plan
    "delta": Quantity("δ", "accepted probability of any overflow within the horizon", lambda g: g.plan.delta),
    "horizon": Quantity("T", "horizon, s", lambda g: g.plan.horizon_s),
    "gpu_hour": Quantity("gpu_hour", "price of a GPU for an hour", lambda g: g.plan.gpu_hour),
    "origin_gpu": _origin("gpu"),
    "origin_timing": _origin("timing"),
    "origin_workload": _origin("workload"),
}
_MOST_LISTED = 8


def listed(words: list[str]) -> str:
    """At most eight words, with an ellipsis for the rest."""
    return ", ".join([*words[:_MOST_LISTED], "…"] if len(words) > _MOST_LISTED else words)
