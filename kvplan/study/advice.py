"""Settings of an engine that gain, tried by simulation on this profile.

Tried are shares of the memory that admission keeps free, and limits of the requests that run at once, on a replica that
does not recover at its offered rate, or serves less under a backlog than it could without evictions. What looks best
is measured once more, on requests that had no part in the choice.

Where a backlog does not drain, requests are also held back before they are admitted: at the gateway of an engine, which
passes them on evenly; in the papers' conventions by a cap on the admissions of an iteration (SIC 5.1), in groups of
WAIT's thresholds, within FC's budgets.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from kvplan.analysis.admission import rate_cap
from kvplan.analysis.cached_equilibrium import with_cold_cache
from kvplan.analysis.equilibrium import iteration_time, saturation, sustainable_rate
from kvplan.analysis.fleet import one_replica
from kvplan.analysis.wait import wait
from kvplan.model import Plan, Prefill, ServingModel
from kvplan.simulation.backlog import Backlog, Means, OpenRun
from kvplan.simulation.estimates import Ratio, Trend
from kvplan.simulation.experiments.runner import at_once
from kvplan.simulation.policies import POLICIES, engine_settings
from kvplan.simulation.policies.protocol import SEATS, Scenario, Settings
from kvplan.simulation.requests import saturated, with_drafts
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
CAP, THRESHOLDS, BUDGETS = (
    "rate-limited.beta",
    "wait.thresholds",
    "flow.budgets",
)  # of others; one for each class
GATEWAY = "gateway_rps"  # requests/s that are passed on to a replica
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
_LAYERED = 0.25  # of such runs, where every token of layers of several kinds takes work
_MOST_HELD = 5_000  # requests in memory: a score of runs, each with several times as many rows
_OBSERVE_S = 0.5  # counted work at the offered rate
_KNOWN, _SHOWN = 0.1, 0.25  # relative width of TTFT p95 at which runs end; beyond which it is not said
_SEED, _FRESH, _EVEN = (39, 1), (39, 2), (39, 3)
_CAPS = (1.0, 0.8, 0.6, 0.4, 0.2)  # of the way from what is offered to what memory sustains
_GATEWAYS = (0.8, 0.6, 0.4, 0.2)  # the same: in reach of what is sustainable a queue grows unseen
_PASSED_ON = (4_000, 100_000)  # requests, the second time to make sure
_MOST_PASSED = 1_000_000  # iterations of a run of them
_FEW = 0.001  # evictions of a completion that count as none


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

    An end to the collapse of a prefix cache comes first, where the offered rate can bring one about. `base` is served
    by one replica as it is, `point` measured at the offered rate. The best watermark of 39 replicas that may not
    recover gained 1.3 % in the median, 28 % at most.
    """
    alone, settings = with_cold_cache(one_replica(model)), engine_settings(model)
    limits = protection(model, plan)
    tried = [] if limits is None else [limits]
    if _may_gain(alone, base):
        tried += _tried(alone, settings, base, but_seats=limits is not None)
        if limits is None and (base.rate_rps or 0.0) < alone.total_rate_rps:
            tried = _in_order([*_held_back(alone, settings)], tried, engine=POLICIES[settings.policy].engine)
    return tuple(filter(None, (_advice(model, plan, settings, gained, point) for gained in tried)))


def _may_gain(alone: ServingModel, base: Recovery) -> bool:
    """Tell whether a replica does not recover, or loses much of its sustainable rate to evictions."""
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
    offered, kept = alone.total_rate_rps, []
    recovers = (base.rate_rps or 0.0) >= offered
    # the same for all, so that what chance does to one run it does to the other
    weights = weights_of(alone, Backlog(alone, Plan(), uncached(settings), [*_SEED]).means())
    for name, values in _knobs(alone, settings):
        if not values or (but_seats and name in SEATS):
            continue
        best = _best((alone, settings), name, values, weights)
        gain, _ = _gain((alone, settings), _with(alone, settings, (best,)), weights)
        gains = gain.value > max(_GAIN, _SURE * gain.standard_error)
        better = gain.value > _SURE * gain.standard_error  # else it is chance
        could = better and base.served_rps * (1 + gain.value + _SURE * gain.standard_error) >= offered
        if not gains and (recovers or not could):
            continue
        drains = could and sustains(*_with(alone, settings, (best,)))
        if gains or drains:
            kept.append(Gained((best,), gain.value, drains))
    return sorted(kept, key=lambda gained: (gained.sustains, gained.gain), reverse=True)


def _in_order(held_back: list[Gained], tried: list[Gained], *, engine: bool) -> list[Gained]:
    """Put an engine's settings before its gateway's, for they also end a collapse; those that sustain first.

    Of papers' ways that gain alike, that of their convention is first.
    """
    if engine:
        return sorted([*tried, *held_back], key=lambda gained: gained.sustains, reverse=True)
    return sorted([*held_back, *tried], key=lambda one: (one.sustains, round(one.gain, 2)), reverse=True)


def _held_back(alone: ServingModel, settings: Settings) -> Iterator[Gained]:
    """Yield ways to hold requests back before they are admitted, at which a backlog drains; none that serves less.

    In WAIT's convention its own way comes first, in SIC's the cap. These are for any load: at the rate that memory
    sustains, or beyond, one is yielded if it serves more.
    """
    engine = POLICIES[settings.policy].engine
    if engine and alone.total_rate_rps >= sustainable_rate(alone)[1]:
        return
    weights = weights_of(alone, Backlog(alone, Plan(), uncached(settings), [*_SEED]).means())
    if engine:
        yield from _at_gateway(alone, settings, weights)
        return
    ways = (_caps(alone), _thresholds(alone), _budgets(alone))
    for way in (ways[1], ways[0], ways[2]) if alone.replica.prefill is Prefill.INLINE else ways:
        if (chosen := _without_evictions(alone, settings, way, weights)) is None:
            continue
        without, variant = (alone, settings), _with(alone, settings, chosen)
        gain, served = _gain(without, variant, weights)
        drains = gain.value >= 0 and sustains(*variant)
        if drains or gain.value > max(_GAIN, _SURE * gain.standard_error):
            passed_on = (Setting(GATEWAY, float(f"{served.value:.4g}")),) if chosen[0].name == CAP else ()
            yield Gained((*chosen, *passed_on), gain.value, sustains=drains)


def _caps(alone: ServingModel) -> list[tuple[Setting, ...]]:
    """List caps from the most that memory allows down to little more than the arrivals of an iteration, if less."""
    most = saturation(alone).admissions_per_iteration
    coming = min(alone.total_rate_rps * (iteration_time(alone) or math.inf), most)
    caps = dict.fromkeys(float(f"{coming + part * (most - coming):.4g}") for part in _CAPS)
    return [(Setting(CAP, cap),) for cap in caps]


def _thresholds(alone: ServingModel) -> list[tuple[Setting, ...]]:
    plan = wait(alone)
    some = [n for n in (plan.max_thresholds, plan.thresholds) if n and plan.fits] or [plan.overload.whole]
    return [tuple(Setting(THRESHOLDS, n) for n in each) for each in some]


def _budgets(alone: ServingModel) -> list[tuple[Setting, ...]]:
    budgets = [c.integer_budget for c in rate_cap(alone).classes]
    return [tuple(Setting(BUDGETS, b) for b in budgets if b)] if all(budgets) else []


def _without_evictions(
    alone: ServingModel, settings: Settings, way: list[tuple[Setting, ...]], weights: Means
) -> tuple[Setting, ...] | None:
    """Return the first that serves the offer from a flood and evicts hardly anybody, else the one that serves most."""
    best, most = None, 0.0
    for chosen in way:
        flood = _Flood(_with(alone, settings, chosen), _SEED, _SEARCH)
        served = flood.rate(_SHORT, weights).value
        if served > most:
            best, most = chosen, served
        end = flood.run.mark()
        if served >= alone.total_rate_rps and end.evicted <= _FEW * end.completed:
            return chosen
    return best


def _at_gateway(alone: ServingModel, settings: Settings, weights: Means) -> Iterator[Gained]:
    """Yield the largest of some rates that the engine serves without evictions when they come evenly."""
    offered, most = alone.total_rate_rps, sustainable_rate(alone)[1]
    flooded = _Flood((alone, settings), _FRESH, _PAIR).rate(_SHORT, weights).value
    for part in _GATEWAYS:
        rate = float(f"{offered + part * (most - offered):.4g}")
        if (
            rate >= max(flooded, offered)
            and flooded > 0
            and all(_is_served(alone, settings, rate, n) for n in _PASSED_ON)
        ):
            yield Gained((Setting(GATEWAY, rate),), rate / flooded - 1, sustains=True)
            return


def _is_served(alone: ServingModel, settings: Settings, rate_rps: float, count: int) -> bool:
    """Tell whether so many requests, at even intervals, leave no queue and hardly anybody evicted."""
    count = min(count, math.ceil(_MOST_PASSED * rate_rps * (iteration_time(alone) or math.inf)))
    rng = np.random.default_rng(_EVEN)
    requests = replace(saturated(alone, rng, requests=count), arrival_s=np.arange(count) / rate_rps)
    if alone.drafts is not None:
        requests = with_drafts(requests, alone.drafts, rng)
    scenario = Scenario(alone, Plan(), requests, tuple(c.name for c in alone.classes))
    run = OpenRun(scenario, uncached(settings), count / rate_rps)
    run.on(count / rate_rps / 2)
    end = run.on(count / rate_rps * 0.99)
    return end.least == 0 and end.preempted <= _FEW * end.completed


def _advice(
    model: ServingModel, plan: Plan, settings: Settings, gained: Gained, point: OperatingPoint
) -> Advice | None:
    """Measure the cost of settings at the offered rate; None if they make the queue grow there."""

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
    """Return a replica with other settings; limits of seats go into the model, where analyses see them."""
    for name, value in changes:
        policy, _, parameter = name.partition(".")
        if name in SEATS:
            seats = model.replica.ranks * int(value)
            model = replace(model, replica=replace(model.replica, max_num_seqs=seats))
        elif parameter:
            settings = Settings(policy, {parameter: tuple(s.value for s in changes if s.name == name)})
        elif name != GATEWAY:
            settings = Settings(settings.policy, {**settings.given, name: (value,)})
    return model, settings


class _Flood:
    """A flooded replica, and its rate."""

    def __init__(self, variant: _Variant, seed: tuple[int, ...], completions: float) -> None:
        model, settings = variant
        part = 1.0 if model.replica.layout is None else _LAYERED
        wanted = min(iterations_wanted(model), part * completions / admissions_per_iteration(model))
        width = math.ceil(wanted / BATCHES / 2**_SHORT)
        self.start = Start("", Backlog(model, Plan(), uncached(settings), [*seed]), width)
        self.run, self._timing = self.start.run, model.timing

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
        served = at_once(lambda value: runs[value].rate(level, weights).value, some)
        rates.update(zip(some, served, strict=True))

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


def _gain(without: _Variant, variant: _Variant, weights: Means) -> tuple[Ratio, Ratio]:
    """Return the relative gain in rate from a flood, on requests that had no part in the choice, and the rate."""
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
    return Ratio(value, error, min(before.degrees, after.degrees)), after
