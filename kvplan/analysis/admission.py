"""Rate cap, integer admission budgets and the waits they cause (theory §4).

Admissions capped at n* an iteration fill memory on average: in proportions p they end evictions within L - 1 iterations
(SIC 5.1), but evicted requests return and are longer, so that evictions only grow rare. Real engines admit whole
requests: per class, FC's budgets b_i keep Σ b_i S_i < M and the queues stable.
"""

import heapq
import math
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from kvplan.analysis.concurrency import engine_max_num_seqs
from kvplan.analysis.equilibrium import iteration_time, saturation, sustainable_rate
from kvplan.model import FloatArray, ServingModel, sum_by

_NEGLIGIBLE_QUEUE = 1e-9  # requests; a larger budget would gain nothing anybody can see
_SPITZER_BELOW = 1e-4  # requests; the root formula has lost too many digits there
_MAX_FRONTIER = 20_000  # undominated combinations kept by the exact search ...
_MAX_SEARCHED = 2_000_000  # ... and combinations looked at in one step
_MAX_BUDGET = 500  # admissions of one class an iteration up to which queues are worth computing


class ClassCap(NamedTuple):
    """Admissions of one class: its share of the cap, and its integer budget with the mean wait it causes."""

    name: str
    per_iteration: float
    integer_budget: int | None
    mean_wait_s: float | None


class RateCap(NamedTuple):
    """Admission limits against evictions: the report's `rate_cap` block."""

    per_iteration: float
    per_second: float
    transient_iterations: int  # within which what ran before has gone
    classes: tuple[ClassCap, ...]
    engine_max_num_seqs: int
    engine_sustainable_rps: float  # with that `max_num_seqs`, which holds requests back
    budgets_are_optimal: bool | None  # False: too many combinations to search them all; None without budgets


class Budgets(NamedTuple):
    """Integer admissions per iteration and class, and the mean queue of each; None where budgets are too large."""

    admissions: tuple[int, ...]
    mean_queue: tuple[float | None, ...]
    optimal: bool


@lru_cache(maxsize=64)
def mean_queue(arrivals: float, budget: int) -> float:
    """Mean number E[Q] left waiting when Poisson arrivals meet at most `budget` admissions per iteration.

    They come at a mean rate per iteration below `budget`: Q' = (Q + Poisson(arrivals) - budget)⁺.

    References
    ----------
    FC 3: E[Q] = Σ_n E[(Poi(nλ) - nb)⁺]/n, which converges slowly near saturation. There the same number is Σ_k 1/(1 -
    z_k) - (b(b-1) - λ²)/(2(b-λ)) over the b - 1 roots z_k ≠ 1 of z^b = e^(λ(z-1)) in the unit disc (derived from the
    generating function of Q; new).
    """
    if not arrivals < budget:
        raise ValueError(f"arrivals of {arrivals} an iteration overwhelm a budget of {budget}")
    queue = _mean_queue_by_roots(arrivals, budget)
    return queue if queue > _SPITZER_BELOW * max(1, budget / 100) else _mean_queue_by_sum(arrivals, budget)


def _mean_queue_by_roots(arrivals: float, budget: int) -> float:
    k = np.arange(1, budget)
    turn = np.exp(2j * math.pi * k / budget)
    ratio = arrivals / budget
    z = np.zeros(budget - 1, dtype=np.complex128)
    last = math.inf
    for _ in range(100):  # Newton on z = turn·e^(ratio(z-1)), a contraction
        image = turn * np.exp(ratio * (z - 1))
        step = (z - image) / (1 - ratio * image)
        z = z - step
        largest = float(np.abs(step).max(initial=0.0))
        if largest < 1e-15 or last <= largest < 1e-9:  # of many roots, some keep moving by their last digits
            break
        last = largest
    total = float((1 / (1 - z)).real.sum())
    return total - (budget * (budget - 1) - arrivals**2) / (2 * (budget - arrivals))


def _mean_queue_by_sum(arrivals: float, budget: int) -> float:
    total = 0.0
    for n in range(1, 100_000):
        term = _poisson_excess(n * arrivals, n * budget) / n
        total += term
        if term <= 1e-12 * total:
            break
    return total


def _poisson_excess(mean: float, level: int) -> float:
    """E[(Poisson(mean) - level)⁺] for level >= mean, summed outwards from the level."""
    if mean == 0:
        return 0.0
    probability = math.exp((level + 1) * math.log(mean) - mean - math.lgamma(level + 2))
    total, above = 0.0, 1
    while probability * above > 1e-17 * total:
        total += above * probability
        above += 1
        probability *= mean / (level + above)
    return total


def integer_budgets(arrivals: FloatArray, footprint: FloatArray, memory_tokens: float) -> Budgets | None:
    """Choose whole admissions per iteration, b_i > λ_i and Σ b_i S_i < M, with the smallest mean queues Σ E[Q_i].

    `arrivals` are the mean ones per iteration λ_i τ*, `footprint` the KV token-iterations S_i of one request. None
    where Σ(⌊λ_i⌋ + 1)S_i >= M: no budgets exist.

    References
    ----------
    FC Prop. 3.2, Theorem 3.3; the choice among feasible budgets is new, theory §4.
    """
    fewest = np.floor(arrivals) + 1
    slack = memory_tokens - float(fewest @ footprint)
    if slack <= 0:
        return None
    smallest = fewest.astype(np.int64)
    if smallest.max() > _MAX_BUDGET:
        return Budgets(tuple(smallest.tolist()), (None,) * smallest.size, optimal=False)
    rows = zip(arrivals.tolist(), smallest.tolist(), footprint.tolist(), strict=True)
    queues = [_queues(mean, least, slack / size) for mean, least, size in rows]
    extra = _best_extra(queues, footprint, slack)
    optimal = extra is not None
    if extra is None:
        extra = _greedy_extra(queues, footprint, slack)
    return Budgets(
        admissions=tuple(int(b) + e for b, e in zip(smallest, extra, strict=True)),
        mean_queue=tuple(q[e] for q, e in zip(queues, extra, strict=True)),
        optimal=optimal,
    )


def _queues(arrivals: float, smallest: int, most_extra: float) -> list[float]:
    """Mean queue for the smallest budget, one more, and so on, until it is negligible or memory is spent."""
    queues = [mean_queue(arrivals, smallest)]
    while queues[-1] > _NEGLIGIBLE_QUEUE and len(queues) < most_extra:
        queues.append(mean_queue(arrivals, smallest + len(queues)))
    return queues


def _best_extra(queues: list[list[float]], footprint: FloatArray, slack: float) -> list[int] | None:
    """Exact minimum by adding one class at a time and keeping the undominated (memory, queue) pairs."""
    memory, queue = np.zeros(1), np.zeros(1)
    steps: list[tuple[np.ndarray, np.ndarray]] = []  # per class: predecessor and choice of each kept pair
    for options, size in zip(queues, footprint.tolist(), strict=True):
        if memory.size * len(options) > _MAX_SEARCHED:
            return None
        total_memory = (memory[:, None] + size * np.arange(len(options))).ravel()
        total_queue = (queue[:, None] + np.array(options)).ravel()
        order = np.lexsort((total_queue, total_memory))
        order = order[total_memory[order] < slack]
        best_before = np.minimum.accumulate(np.concatenate([[np.inf], total_queue[order][:-1]]))
        kept = order[total_queue[order] < best_before]
        if kept.size > _MAX_FRONTIER:
            return None
        memory, queue = total_memory[kept], total_queue[kept]
        steps.append((kept // len(options), kept % len(options)))
    position = int(queue.argmin())
    extra: list[int] = []
    for predecessor, choice in reversed(steps):
        extra.append(int(choice[position]))
        position = int(predecessor[position])
    return extra[::-1]


def _greedy_extra(queues: list[list[float]], footprint: FloatArray, slack: float) -> list[int]:
    """Spend memory where a token of it shortens the queues most."""
    extra = [0] * len(queues)

    def gain(i: int) -> tuple[float, int]:
        options, chosen = queues[i], extra[i]
        if chosen + 1 == len(options):
            return 0.0, i
        return -(options[chosen] - options[chosen + 1]) / float(footprint[i]), i

    heap = [gain(i) for i in range(len(queues))]
    heapq.heapify(heap)
    while heap and heap[0][0] < 0:
        _, i = heapq.heappop(heap)
        if footprint[i] < slack:
            slack -= float(footprint[i])
            extra[i] += 1
            heapq.heappush(heap, gain(i))
    return extra


def rate_cap(model: ServingModel, *, arrivals_known: bool = True) -> RateCap:
    """Admission limits for the mix: the fluid cap n* and its integer form (SIC 5.1, FC Theorem 3.3).

    Waits are those of Poisson arrivals: there are none for others, nor where arrivals are not known.
    """
    full, tau, mix = saturation(model), iteration_time(model), model.mix
    poisson = arrivals_known and model.arrivals.is_poisson
    concurrency = engine_max_num_seqs(model)
    capped = replace(model, replica=replace(model.replica, max_num_seqs=concurrency))
    rates = np.array([c.rate_rps for c in model.classes])
    shares = rates / rates.sum()
    footprint = sum_by(mix.class_index, mix.share * mix.footprint) / shares
    budgets = None if tau is None else integer_budgets(rates * tau, footprint, model.replica.capacity_tokens)
    classes = []
    for i, (c, share) in enumerate(zip(model.classes, shares.tolist(), strict=True)):
        queue = budgets.mean_queue[i] if budgets and poisson else None
        budget = budgets.admissions[i] if budgets else None
        wait_s = None if queue is None else queue / c.rate_rps  # Little's law
        classes.append(ClassCap(c.name, full.admissions_per_iteration * share, budget, wait_s))
    return RateCap(
        per_iteration=full.admissions_per_iteration,
        per_second=full.throughput_rps,
        transient_iterations=int(mix.stages.max()) - 1,
        classes=tuple(classes),
        engine_max_num_seqs=concurrency,
        engine_sustainable_rps=min(sustainable_rate(model)[1], sustainable_rate(capped)[1]),
        budgets_are_optimal=budgets.optimal if budgets else None,
    )
