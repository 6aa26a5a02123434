"""Settings of an engine that were tried by simulation on this profile, and that gain.

Tried are shares of the memory that admission keeps free, and limits of the requests that run at once, on a replica that
does not recover at its offered rate, or serves less under a backlog than it could without evictions. What looks best
is measured once more, on requests that had no part in the choice.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from kvplan.analysis.cached_equilibrium import with_cold_cache
from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.analysis.fleet import one_replica
from kvplan.model import Plan, ServingModel
from kvplan.simulation.backlog import Backlog, Means
from kvplan.simulation.experiments.runner import at_once
from kvplan.simulation.intervals import Ratio, Trend
from kvplan.simulation.policies import POLICIES, engine_settings
from kvplan.simulation.policies.protocol import SEATS, Settings
from kvplan.study.operating_point import Observation, OperatingPoint, Status, observe
from kvplan.study.recovery import (
    BATCHES,
    Recovery,
    Start,
    admissions_per_iteration,
    iterations_wanted,
    sustains,
    uncached,
    weights_of,
)
from kvplan.study.warm_cache import Gained, Setting, protection

WATERMARK, ADMISSION = "watermark", "admission"  # parameters of policies
_WHOLE_PROMPT = 0.0
_WATERMARKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
_SEATS = tuple(n / 10 for n in range(4, 14))  # of the requests that memory holds
_SINCE = {
    WATERMARK: "vLLM of June 2026 (pull request 44594)",
    ADMISSION: "vLLM of March 2026 (pull request 37307)",
}
_LOSS = 0.02  # of what is sustainable, beyond which settings are tried
_GAIN, _SURE = 0.02, 3.0  # that a setting has to bring, and by how many standard errors it has to be one
_SHORT = 2  # halvings of the first runs
_HALVINGS = 3  # of the steps about the best
_LONGER = 3  # doublings of the runs in pairs
_SEARCH = 6_000  # completions of a run while the best is looked for, at most
_PAIR, _PAIRS = 80_000, 200_000  # of a run in pairs at first; completions and evictions of all of those
_MOST_HELD = 5_000  # requests in memory: a score of runs, each with several times as many rows
_OBSERVE_S = 0.5  # counted work at the offered rate
_KNOWN, _SHOWN = 0.1, 0.25  # relative width of TTFT p95 at which runs end; beyond which it is not said
_SEED, _FRESH = (39, 1), (39, 2)


class Advice(NamedTuple):
    """Settings that gain something, together."""

    settings: tuple[Setting, ...]
    gain_backlogged: float  # of the rate that a replica under a backlog serves, relative
    sustains_offered: bool  # a backlog drains at the offered rate, from the worst of all starts
    needs_version: str | None  # of the engine; None: any
    # at the offered rate, by runs with the same arrivals; None where the queue grows, or it is not settled
    ttft_p95_s_without: float | None
    ttft_p95_s_with: float | None


_Variant = tuple[ServingModel, Settings]


def advice(model: ServingModel, plan: Plan, base: Recovery, point: OperatingPoint) -> tuple[Advice, ...]:
    """Find settings that serve more under a backlog, or let the replica recover at its rate, best first.

    What ends the collapse of a prefix cache comes first, where the offered rate can bring one about. `base` is what one
    replica serves as it is, `point` what is seen at the offered rate. The best watermark of 39 replicas that may not
    recover gained 1.3 % in the median, 28 % at most.
    """
    alone, settings = with_cold_cache(one_replica(model)), engine_settings(model)
    limits = protection(model, plan)
    tried = [] if limits is None else [limits]
    if _may_gain(alone, base):
        tried += _tried(alone, settings, base, but_seats=limits is not None)
    return tuple(filter(None, (_advice(model, plan, settings, gained, point) for gained in tried)))


def _may_gain(alone: ServingModel, base: Recovery) -> bool:
    """Return whether a replica does not recover, or loses much of what is sustainable to evictions."""
    if base.rate_rps is None or base.served_rps is None:
        return False
    admissions = admissions_per_iteration(alone)
    held = admissions * float(alone.mix.mean(alone.mix.stages))
    if held > _MOST_HELD or admissions * (BATCHES << _SHORT) > _PAIRS:  # no batch of theirs is short enough
        return False
    return base.rate_rps < alone.total_rate_rps or base.served_rps < (1 - _LOSS) * sustainable_rate(alone)[1]


def _tried(alone: ServingModel, settings: Settings, base: Recovery, *, but_seats: bool) -> list[Gained]:
    """Return the best value of each parameter, if it gains; best first."""
    assert base.served_rps is not None
    offered, found = alone.total_rate_rps, []
    recovers = (base.rate_rps or 0.0) >= offered
    # the same for all, so that what chance does to one run it does to the other
    weights = weights_of(alone, Backlog(alone, Plan(), uncached(settings), [*_SEED]).means())
    for name, values in _knobs(alone, settings):
        if not values or (but_seats and name in SEATS):
            continue
        best = _best((alone, settings), name, values, weights)
        gain = _gain((alone, settings), _with(alone, settings, (best,)), weights)
        gains = gain.value > max(_GAIN, _SURE * gain.standard_error)
        could = base.served_rps * (1 + gain.value + _SURE * gain.standard_error) >= offered
        if not gains and (recovers or not could):
            continue
        drains = could and sustains(*_with(alone, settings, (best,)))
        if gains or drains:
            found.append(Gained((best,), gain.value, drains))
    return sorted(found, key=lambda one: (one.sustains, one.gain), reverse=True)


def _advice(
    model: ServingModel, plan: Plan, settings: Settings, gained: Gained, point: OperatingPoint
) -> Advice | None:
    """Measure what settings cost at the offered rate; None where they are what makes the queue grow there."""

    def known(seen: Observation) -> bool:
        p95 = seen.sample.estimate("ttft_s", "p95")
        return seen.trend is Trend.STEADY and p95 is not None and p95.relative_width <= _KNOWN

    changed, given = _with(model, settings, gained.settings)
    seen = observe(changed, plan, given, known, budget_s=_OBSERVE_S)
    grows = seen.trend is Trend.GROWING
    if grows and point.latency.status is not Status.GROWING:
        return None
    p95 = seen.sample.estimate("ttft_s", "p95") if seen.trend is Trend.STEADY else None
    if p95 is not None and p95.relative_width > _SHOWN:
        p95 = None
    since = next((_SINCE[s.name] for s in gained.settings if s.name in _SINCE), None)
    return Advice(
        gained.settings,
        gained.gain,
        gained.sustains,
        since,
        point.latency.settled("ttft_s", "p95"),
        None if p95 is None else p95.value,
    )


def _knobs(model: ServingModel, settings: Settings) -> Iterator[tuple[str, list[float]]]:
    """Yield parameters that the policy has, and the values to begin with; of a data-parallel rank."""
    parameters = POLICIES[settings.policy].parameters
    if settings.given.get(ADMISSION, (_WHOLE_PROMPT,))[0] != _WHOLE_PROMPT:
        yield ADMISSION, [_WHOLE_PROMPT]
    if WATERMARK in parameters:
        yield WATERMARK, list(_WATERMARKS)
    for name in SEATS:
        if name in parameters:
            held = admissions_per_iteration(replace(model, replica=replace(model.replica, max_num_seqs=None)))
            held *= model.mix.mean(model.mix.stages)
            rank = model.replica.of_rank()
            most = rank.max_num_batched_tokens or math.inf
            now = rank.max_num_seqs
            seats = {max(1, round(share * held / model.replica.ranks)) for share in _SEATS}
            yield name, [float(n) for n in sorted(seats) if n <= most and n != now]


def _with(model: ServingModel, settings: Settings, changes: tuple[Setting, ...]) -> _Variant:
    """Return a replica with other settings; what limits its seats stands in the model, where analyses see it."""
    for name, value in changes:
        if name in SEATS:
            seats = model.replica.ranks * int(value)
            model = replace(model, replica=replace(model.replica, max_num_seqs=seats))
        else:
            settings = Settings(settings.policy, {**settings.given, name: (value,)})
    return model, settings


class _Flood:
    """A flooded replica, and what it serves."""

    def __init__(self, variant: _Variant, seed: tuple[int, ...], completions: float) -> None:
        model, settings = variant
        admissions = admissions_per_iteration(model)
        width = math.ceil(min(iterations_wanted(model), completions / admissions) / BATCHES / 2**_SHORT)
        self.start = Start("", Backlog(model, Plan(), uncached(settings), [*seed]), width)
        self._timing = model.timing

    def rate(self, level: int, weights: Means) -> Ratio:
        """Return the requests served in a second, by a run of this level."""
        self.start.reach(level)
        return self.start.rate(level, self._timing, weights)


def _best(replica: _Variant, name: str, values: list[float], weights: Means) -> Setting:
    """Return the value that serves most from a flood, all with the same requests."""
    if len(values) == 1:
        return Setting(name, values[0])
    runs: dict[float, _Flood] = {}  # of those that may go on: each takes megabytes
    rates: dict[float, float] = {}

    def measure(some: list[float], level: int) -> None:
        for value in [value for value in runs if value not in some]:
            del runs[value]
        for value in some:
            if value not in runs:
                runs[value] = _Flood(_with(*replica, (Setting(name, value),)), _SEED, _SEARCH)
        found = at_once(lambda value: runs[value].rate(level, weights).value, some)
        rates.update(zip(some, found, strict=True))

    left = values
    for level in range(_SHORT):
        measure(left, level)
        left = sorted(left, key=lambda value: rates[value], reverse=True)[: max(len(left) // 2, 2)]
    measure(left, _SHORT)
    known = {value: rates[value] for value in left}
    for _ in range(_HALVINGS):
        best = max(known, key=lambda value: known[value])
        near = _between(sorted({0.0, *rates}), best, whole=name in SEATS)
        measure(near, _SHORT)
        known |= {value: rates[value] for value in near}
    return Setting(name, max(known, key=lambda value: known[value]))


def _between(values: list[float], best: float, *, whole: bool) -> list[float]:
    """Return half way from the best to its neighbours."""
    place = values.index(best)
    middles = [(best + other) / 2 for other in (values[place - 1], *values[place + 1 : place + 2])]
    rounded = [float(round(v)) if whole else float(f"{v:.2g}") for v in middles]
    return [v for v in rounded if v not in (0.0, *values)]


def _gain(without: _Variant, variant: _Variant, weights: Means) -> Ratio:
    """Return what is served more from a flood, relative, on requests that had no part in the choice."""
    runs = [_Flood(each, _FRESH, _PAIR) for each in (without, variant)]
    for level in range(_SHORT, _SHORT + _LONGER + 1):
        before, after = at_once(partial(_Flood.rate, level=level, weights=weights), runs)
        value = after.value / before.value - 1 if before.value > 0 else math.inf if after.value > 0 else 0.0
        error = (1 + value) * math.hypot(
            *(r.standard_error / r.value if r.value > 0 else 0.0 for r in (before, after))
        )
        spent = sum(run.start.cost(level) for run in runs)
        if abs(value - _GAIN) > _SURE * error or 2 * spent > _PAIRS:
            break
    return Ratio(value, error, min(before.degrees, after.degrees))
