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
from kvplan.report.keys import QUANTITY_WORDS
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


Measure = Callable[[Given], Value | tuple[Value, ...]]


class Quantity(NamedTuple):
    """A number that formulas name; `value` gives one for each class, in a tuple, where it is of classes."""

    symbol: str
    meaning: str
    value: Measure


def listed(words: list[str]) -> str:
    """At most eight words, with an ellipsis for the rest."""
    return ", ".join([*words[:_MOST_LISTED], "…"] if len(words) > _MOST_LISTED else words)


def _of_cache(value: Callable[[CachedReplica], Value]) -> Measure:
    return lambda g: None if g.cached is None else value(g.cached)


def _unless_zero(name: str) -> Measure:
    return lambda g: attrgetter(name)(g.model) or None


def _origin(name: str) -> Measure:
    return lambda g: source_text(getattr(g.model.provenance, name)) or None


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


def _band(g: Given) -> Value:
    band = g.model.measured.band
    return band and " to ".join(format_number(end, DIGITS) for end in band)


def _reuse(cached: CachedReplica) -> float:
    return sum(one.reused for one in cached.private) / cached.left if cached.left else 0.0


def _shared(cached: CachedReplica) -> float:
    share, tokens, _ = cached.shared
    return float(share @ tokens)


_CONSTANTS = ("d0", "d1", "d2", "d3", "d4", "d5", "knee_tokens", "d6", "experts", "chosen")
_MEASURES: Mapping[str, Measure] = {
    "rate": attrgetter("model.total_rate_rps"),
    "users": _of_cache(attrgetter("users")),
    "footprint": attrgetter("cost.held"),
    "context": attrgetter("cost.read"),
    "prefill": attrgetter("cost.prefill_tokens"),
    "pairs": attrgetter("cost.prefill_pairs"),
    "iterations": attrgetter("cost.iterations"),
    "computed": attrgetter("cost.computed_tokens"),
    "input_tokens": lambda g: g.mix.mean(g.mix.input_tokens),
    "decode": lambda g: g.mix.mean(g.mix.decode_tokens),
    "work": attrgetter("cost.work_s"),
    "first": lambda g: float(g.mix.share @ g.mix.held.at_start),
    "longest": lambda g: int(g.mix.stages.max()),
    "lengths": lambda g: _lengths(g.mix.stages),
    "class_rate": lambda g: tuple(c.rate_rps for c in g.classes),
    "class_share": lambda g: tuple(c.rate_rps / g.model.total_rate_rps for c in g.classes),
    "class_iterations": lambda g: tuple(g.means.iterations.tolist()),
    "class_footprint": lambda g: tuple(g.means.held.tolist()),
    "class_work": lambda g: tuple(g.means.work_s.tolist()),
    "class_lengths": lambda g: tuple(
        _lengths(g.mix.stages[g.mix.class_index == i]) for i in range(len(g.classes))
    ),
    "memory": attrgetter("replica.capacity_tokens"),
    "max_num_seqs": attrgetter("replica.max_num_seqs"),
    "max_num_batched_tokens": attrgetter("replica.max_num_batched_tokens"),
    "limits": _limits,
    "pages": lambda g: g.replica.memory_tokens // g.replica.block_tokens,
    "longest_pages": lambda g: longest_blocks(g.model),
    "computed_pages": lambda g: computed_blocks(g.model),
    "overhead": _unless_zero("request_overhead_s"),
    "fixed": _fixed,
    **{name: _unless_zero(f"timing.{name}") for name in _CONSTANTS},
    "band": _band,
    "prompt": _of_cache(lambda cached: cached.mean("prompt")),
    "left": _of_cache(attrgetter("left")),
    "reuse": _of_cache(_reuse),
    "common": _of_cache(_shared),
    "reach": _of_cache(attrgetter("reach_tokens")),
    "load_time": lambda g: None if g.replica.offload is None else g.replica.offload.load_s,
    "delta": attrgetter("plan.delta"),
    "horizon": attrgetter("plan.horizon_s"),
    "gpu_hour": attrgetter("plan.gpu_hour"),
    "power": attrgetter("plan.watts"),
    **{f"origin_{name}": _origin(name) for name in ("gpu", "timing", "workload")},
}
QUANTITIES: Mapping[str, Quantity] = {
    name: Quantity(*words, _MEASURES[name]) for name, words in QUANTITY_WORDS.items()
}
