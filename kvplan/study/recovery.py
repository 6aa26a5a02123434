"""Rate up to which a replica recovers from any backlog: the least it serves once saturated.

A backlog in random order drains iff what a saturated replica serves exceeds what is offered. That is measured from the
worst of several collapsed states: a flood that finds the replica empty, requests at the ages of a stationary replica,
and pulses of requests at the same age. Preempted requests find nothing of themselves in a prefix cache.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from kvplan.analysis.concurrency import RESERVED_BLOCKS, all_fit, engine_never_evicts
from kvplan.analysis.equilibrium import saturation, sustainable_rate, tangent
from kvplan.errors import UsageError
from kvplan.model import FloatArray, IntArray, Plan, ServingModel, Timing
from kvplan.model.weights import stage_count
from kvplan.simulation.backlog import AGED, Backlog, Mark, Means, blocks_needed
from kvplan.simulation.estimates import Ratio, ratio
from kvplan.simulation.experiments.runner import at_once
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Settings
from kvplan.simulation.requests import Requests, chosen, saturated, with_drafts

_FEWEST, _STAYS, _FILLS = 4_000, 20, 4  # completions, longest stays and fillings of memory in a run at first
BATCHES = 20  # of a run, of which the first half is dropped
_BUDGET = 3_000_000  # completions and evictions of all runs
_MOST_STEPS = 20_000_000  # of requests with drafts, each of which is kept
_ITERATIONS = 20_000_000  # of their first lengths
_PRECISE, _STEADY = 0.0025, 0.003  # standard error of a settled start; how far apart two quarters may be
_LAYERED = 2.0, 0.25  # times the standard error, and the first length, where every token of a run takes work
_AGREE, _ERRORS = 0.015, 4.0  # how near to the least a start has to be to count with it
_MARGIN, _SURE = 0.005, 3.0  # below what was measured, relative and in standard errors
_GLANCES = ((1 / 8, 0.1), (1.0, 0.015))  # at parts of the first length: how far the offered rate has to be
_MOST_HELD = 10_000  # requests in memory: of as many, six starts take 200 MB
_SAMPLE, _ENOUGH = 1 << 12, 2  # requests from which residents are drawn; times those that memory holds
_DRAWS = 8  # of ages where there is one length
_LONGEST = 0.9999  # quantile of the stays that counts as the longest
_MEMORY = ("kv_memory", "compute")  # what binds where memory is full
_SEED = (39,)


class Recovery(NamedTuple):
    """Rate up to which a backlog drains, and the rate measured of a saturated replica."""

    # at most the sustainable rate, and below `served_rps` by three standard errors, half a per cent at least
    rate_rps: float | None
    served_rps: float | None = None  # from the worst start; None where no run was needed
    standard_error_rps: float = 0.0
    start: str = ""  # its name
    settled: bool = True  # whether the budget sufficed
    reason: str | None = None  # why there is no rate


def recovery(model: ServingModel, settings: Settings) -> Recovery:
    """Return the largest offered rate at which a replica recovers from a backlog, whatever state it is in.

    `model` is of one replica, whose requests have nothing in common. By Little's law for KV, the served rate is
    measured by the memory that its tokens needed, which fluctuates least (new).

    Examples
    --------
    >>> from kvplan.model import Prefill, Replica, RequestClass
    >>> mix = tuple(RequestClass(str(s), s, (d,), (1.0,), r) for s, d, r in ((50, 40, 3.0), (60, 80, 7.0)))
    >>> model = ServingModel(mix, Timing(0.01, 1e-7), Replica(30_000, prefill=Prefill.INLINE))
    >>> least = recovery(model, Settings("greedy", {}))
    >>> 285 < least.rate_rps < 292 and least.settled  # 353 are sustainable
    True
    """
    if never_evicts(model, settings):
        return Recovery(sustainable_rate(model)[1])
    held = admissions_per_iteration(model) * float(model.mix.mean(model.mix.stages))
    if held > _MOST_HELD:
        return Recovery(
            None, settled=False, reason=f"memory holds some {held:,.0f} requests, more than are simulated"
        )
    try:
        saturated = _saturated(_mix_alone(model), settings.policy, tuple(sorted(settings.given.items())))
    except UsageError as refused:
        return Recovery(None, reason=str(refused))
    return saturated.recovery(model)


def flooded(model: ServingModel, settings: Settings) -> Ratio:
    """Return the rate of a replica with a backlog; preempted requests find themselves in a prefix cache.

    Not if they go behind all who wait, for then nothing of them is left.
    """
    kept = settings if settings.policy in AGED else uncached(settings)
    run, most = Backlog(model, Plan(), kept, [*_SEED]), _BUDGET / admissions_per_iteration(model)
    flood = Start("", run, math.ceil(min(iterations_wanted(model), most, _ITERATIONS) / BATCHES))
    flood.reach(1)
    return flood.rate(1, model.timing, weights_of(model, run.means()))


def sustains(model: ServingModel, settings: Settings) -> bool:
    """Tell whether `recovery` is at least what a model offers, mostly decided by shorter runs."""
    offered = model.total_rate_rps
    if offered > sustainable_rate(model)[1]:
        return False
    if never_evicts(model, settings):
        return True
    for part, near in _GLANCES:
        if (sure := Saturated(model, settings, part).far_from(model, near)) is not None:
            return sure
    return (recovery(model, settings).rate_rps or 0.0) >= offered


def never_evicts(model: ServingModel, settings: Settings) -> bool:
    """Tell whether formulas suffice: the most that run at once fit at their longest, and prompts in an iteration.

    They do not where iterations or prompts wait.
    """
    if model.formulas_bound:
        return False
    fits = engine_never_evicts(model) if POLICIES[settings.policy].engine else all_fit(model)
    seats, budget = model.replica.max_num_seqs or 0, model.replica.max_num_batched_tokens
    return fits and (budget is None or seats * max(c.inputs.longest for c in model.classes) <= budget)


def _mix_alone(model: ServingModel) -> ServingModel:
    """Keep what the runs of a saturated replica depend on: all but rates, and of timing what bends it.

    With drafts the timing stays, since their cost differs from sequence to sequence; so it does with data-parallel
    ranks, which wait for the busiest.
    """
    total, timing = model.total_rate_rps, model.timing
    bends = Timing(1.0, knee_tokens=timing.knee_tokens, chosen=timing.chosen)
    return ServingModel(
        classes=tuple(replace(c, rate_rps=float(f"{c.rate_rps / total:.12g}")) for c in model.classes),
        timing=timing if model.drafts or model.replica.ranks > 1 else bends,
        replica=model.replica,
        engine=model.engine,
        drafts=model.drafts,
    )


@lru_cache(maxsize=8)
def _saturated(
    model: ServingModel, policy: str, given: tuple[tuple[str, tuple[float, ...]], ...]
) -> "Saturated":
    return Saturated(model, Settings(policy, dict(given)))


class Saturated:
    """Runs of a saturated replica from several starts, continued until the least is known.

    They depend on lengths, shares, memory and limits, but not on rates, nor on timing except for what bends it. Runs
    made for one model do not change what another one sees.
    """

    def __init__(self, model: ServingModel, settings: Settings, part: float = 1.0) -> None:
        coarser, shorter = _LAYERED if model.replica.layout is not None else (1.0, 1.0)
        self._precise = coarser * _PRECISE
        admissions, wanted = admissions_per_iteration(model), part * shorter * iterations_wanted(model)
        starts = list(_starts(model, settings.policy))
        most = min(_BUDGET / admissions, _ITERATIONS) / len(starts)
        self._cut = wanted > most
        width = math.ceil(min(wanted, most) / BATCHES)
        self._starts = [
            Start(name, Backlog(model, Plan(), uncached(settings), [*_SEED, place], *running), width)
            for place, (name, running) in enumerate(starts)
        ]

    def recovery(self, model: ServingModel) -> Recovery:
        """Return the rate at the timing of a model that has this mix."""
        weights, timing = weights_of(model, self._starts[0].run.means()), model.timing
        levels, most = [0] * len(self._starts), float(_BUDGET)
        if model.drafts is not None:
            most = min(most, _MOST_STEPS / float(model.mix.mean(model.mix.stages)))
        at_once(lambda start: start.reach(0), self._starts)
        while True:
            pairs = list(zip(self._starts, levels, strict=True))
            rates = [start.rate(level, timing, weights) for start, level in pairs]
            near = _near_least(rates)
            unsettled = [
                i for i in near if not pairs[i][0].is_settled(levels[i], timing, weights, self._precise)
            ]
            spent = sum(start.cost(level) for start, level in pairs)
            doubled = spent + sum(self._starts[i].cost(levels[i]) for i in unsettled)
            if not unsettled or self._cut or doubled > most:
                break
            for i in unsettled:
                levels[i] += 1
            at_once(lambda i: self._starts[i].reach(levels[i]), unsettled)
        least = min(near, key=lambda i: rates[i].value)
        agree = [i for i in near if rates[i].value <= (1 + _AGREE) * rates[least].value]
        parts = [self._starts[i].batches(levels[i], timing, weights) for i in agree]
        served = ratio([amounts for amounts, _ in parts], [seconds for _, seconds in parts])
        below = max(_SURE * served.standard_error, _MARGIN * served.value)
        return Recovery(
            max(min(sustainable_rate(model)[1], served.value - below), 0.0),
            served.value,
            served.standard_error,
            self._starts[least].name,
            settled=not unsettled and not self._cut,
        )

    def far_from(self, model: ServingModel, near: float) -> bool | None:
        """Tell whether runs of the first length serve more than a model offers, from every start, or less from some.

        None if unsure, or if the served rate is nearer to the offer than the share `near`.
        """
        at_once(lambda start: start.reach(0), self._starts)
        weights, offered = weights_of(model, self._starts[0].run.means()), model.total_rate_rps
        rates = [start.rate(0, model.timing, weights) for start in self._starts]
        if any(r.value + _SURE * r.standard_error < (1 - near) * offered for r in rates):
            return False
        clear = all(r.value - _SURE * r.standard_error > (1 + near) * offered for r in rates)
        return True if clear else None


class Start:
    """A run, cut into batches of equally many iterations at each of its lengths, which double level by level."""

    def __init__(self, name: str, run: Backlog, width: int) -> None:
        self.name, self.run, self._width = name, run, width
        self._marks: dict[int, Mark] = {}
        self._last = 0  # place of the last

    def reach(self, level: int) -> None:
        """Run on until there are the batches of a level."""
        for place in self._places(level):
            if place > self._last and not self.run.stuck:
                self._marks[place] = self.run.on((place - self._last) * self._width)
                self._last = place

    def cost(self, level: int) -> int:
        """Return the completions and evictions until then."""
        end = self._marks.get(BATCHES << level, self._marks[self._last])
        return end.completed + end.evicted

    def batches(self, level: int, timing: Timing, weights: Means) -> tuple[FloatArray, FloatArray]:
        """Return, of the second half of the batches of a level, requests served, and seconds."""
        if self.run.stuck and self._last <= BATCHES << level:
            return np.zeros(BATCHES // 2), np.ones(BATCHES // 2)
        sums = np.diff(np.array([self._marks[place] for place in self._places(level)]), axis=0)
        return sums[:, : len(weights)] @ np.array(weights), self.run.seconds(sums, timing)

    @staticmethod
    def _places(level: int) -> range:
        """Return the range of a level's batches that count, in batches of the first level."""
        return range(BATCHES << level >> 1, (BATCHES << level) + 1, 1 << level)

    def rate(self, level: int, timing: Timing, weights: Means) -> Ratio:
        """Return the requests served in a second."""
        amounts, times = self.batches(level, timing, weights)
        return ratio([amounts], [times])

    def is_settled(self, level: int, timing: Timing, weights: Means, precise: float = _PRECISE) -> bool:
        """Tell whether the rate is known well enough, and does not change from one quarter to the next."""
        amounts, times = self.batches(level, timing, weights)
        known = ratio([amounts], [times])
        halves = zip(np.split(amounts, 2), np.split(times, 2), strict=True)
        first, second = (float(a.sum() / t.sum()) for a, t in halves)
        near = max(2 * _SURE * known.standard_error, _STEADY * known.value)
        return known.standard_error <= precise * known.value and abs(first - second) <= near


def _near_least(rates: Sequence[Ratio]) -> list[int]:
    """Return which of the rates may be the least."""
    least = min(rates, key=lambda r: r.value)
    return [
        i
        for i, r in enumerate(rates)
        if r.value - least.value <= _ERRORS * math.hypot(r.standard_error, least.standard_error)
    ]


def admissions_per_iteration(model: ServingModel) -> float:
    """Return the admissions that memory or the seats allow."""
    stages, seats = float(model.mix.mean(model.mix.stages)), model.replica.max_num_seqs or math.inf
    return min(saturation(model).admissions_per_iteration, seats / stages)


def iterations_wanted(model: ServingModel) -> float:
    """Return the iterations of a run from one start, at first."""
    mix = model.mix
    longest = _quantile(mix.stages, mix.share, _LONGEST)
    stages = float(mix.mean(mix.stages))
    return max(_FEWEST / admissions_per_iteration(model), _STAYS * longest, _FILLS * stages)


def weights_of(model: ServingModel, means: Means) -> Means:
    """Return the share of a request that a block-iteration, an emitted and a prompt token are; one has `means` of them.

    One share of the time goes into prompts, the other into service while memory, or the seats, are full.
    """
    full, mix = saturation(model), model.mix
    law = tangent(model)
    prompt_s = mix.mean(law.prefill_s(mix.prefill_tokens, mix.prefill_pairs))
    share = 0.0
    if means.prompt_tokens > 0:
        share = min(full.admissions_per_iteration * prompt_s / full.iteration_time_s, 1.0)
    of_prompts = share / means.prompt_tokens if share else 0.0
    if sustainable_rate(model)[0] in _MEMORY:
        return Means((1 - share) / means.footprint, 0.0, of_prompts)
    return Means(0.0, (1 - share) / means.tokens, of_prompts)


def uncached(settings: Settings) -> Settings:
    """Return the settings without a prefix cache, as if preempted requests found nothing of themselves: pessimistic."""
    if "prefix_caching" not in POLICIES[settings.policy].parameters:
        return settings
    return Settings(settings.policy, {**settings.given, "prefix_caching": (0.0,)})


def _starts(model: ServingModel, policy: str) -> Iterator[tuple[str, tuple[Requests, IntArray] | tuple[()]]]:
    """Yield states to begin with, by name: who runs, oldest first, and for how many iterations already."""
    yield "a flood", ()
    if policy not in AGED:
        return
    stages = model.mix.stages
    for draw in range(_DRAWS if np.unique(stages).size == 1 and model.drafts is None else 1):
        if (running := _aged(model, np.random.default_rng([*_SEED, 100 + draw]), policy)) is not None:
            yield "requests of all ages", running
    mean, longest = round(model.mix.mean(stages)), int(stages.max())
    for period in sorted({int(np.gcd.reduce(stages)), mean, longest // 2}):
        if not 1 < period < longest:
            continue
        pulses = _aged(model, np.random.default_rng([*_SEED, 200, period]), policy, period)
        if pulses is not None:
            yield f"pulses every {period:,} iterations", pulses


def _sample(model: ServingModel, rng: np.random.Generator, count: int) -> tuple[Requests, IntArray]:
    """Draw so many requests by share, and the iterations of each."""
    requests = saturated(model, rng, requests=count)
    if model.drafts is not None:
        requests = with_drafts(requests, model.drafts, rng)
    return requests, stage_count(model.replica.prefill, requests.iterations())


def _aged(
    model: ServingModel, rng: np.random.Generator, policy: str, period: int = 1
) -> tuple[Requests, IntArray] | None:
    """Draw as many requests as fit, each at any of its ages 1, 1 + period, … alike; None where all leave too early."""
    requests, stages = _sample(model, rng, _SAMPLE)
    ages_open = (stages - 2) // period + 1  # how many ages a request can have
    if ages_open.max() < 1:
        return None
    held = admissions_per_iteration(model) * float(model.mix.mean(model.mix.stages))
    which = rng.choice(stages.size, size=_ENOUGH * int(held) + _SAMPLE, p=ages_open / ages_open.sum())
    ages = 1 + period * rng.integers(0, ages_open[which])
    return _fitting(model, chosen(requests, which), ages, policy)


def _fitting(
    model: ServingModel, requests: Requests, ages: IntArray, policy: str
) -> tuple[Requests, IntArray]:
    """Return the first of them, as many as fit; oldest first."""
    replica = model.replica
    held = np.cumsum(blocks_needed(model, requests, ages, engine=POLICIES[policy].engine))
    fit = int(
        np.searchsorted(held, replica.memory_tokens // replica.block_tokens - RESERVED_BLOCKS, side="right")
    )
    fit = min(fit, replica.max_num_seqs or fit)
    order = np.argsort(-ages[:fit], kind="stable")
    return chosen(requests, order), ages[order]


def _quantile(values: IntArray, share: FloatArray, at: float) -> int:
    order = np.argsort(values, kind="stable")
    place = int(np.searchsorted(np.cumsum(share[order]), at))
    return int(values[order][min(place, order.size - 1)])
