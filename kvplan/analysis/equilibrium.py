"""Load, sustainable rate, eviction-free equilibrium and saturation of a replica (theory §2).

A request of the mix costs so many KV token-iterations of memory and so many seconds of iterations. At x admissions an
iteration, K = x·S̄, P = x·s̄ and B = x·n̄ on average, and an iteration takes τ(x), whatever the law. The equilibrium at
a rate λ is the least x = λ·τ(x); memory is full at x = n*; and no rate above the largest x/τ(x) can be sustained.

Where a prefix cache finds what requests have in common, `kvplan.analysis.cached_equilibrium` answers instead.

A prompt longer than the token budget keeps a seat and memory while it is computed (`kvplan.model.partial`).

Every formula works on one model and on many side by side alike (`kvplan.model.serving`): there it is a column of
numbers, rounded as each of them alone.
"""

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, reduce
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from kvplan.analysis import cached_equilibrium
from kvplan.analysis.records import ClassOccupancy, Equilibrium, Lever, Load, Saturation, Sensitivity
from kvplan.model import Mix, Prompts, Replica, ServingModel, SideBySide, Tangent, Timing, side_by_side
from kvplan.model.arrays import FloatArray
from kvplan.solve import boundary, first_of_steps, peak

Number = Any  # a float of one model; of many side by side, an array of shape (n_models, 1)
Model = ServingModel | SideBySide
Result = TypeVar("Result")

_STEPS = 200  # of the equilibrium's iteration from below, which ends at once where the law is linear ...
_GROWTH = 1.02  # ... and after those a search upwards in such steps
_LONGEST_S = 1e15
_MORE, _LESS = 1.1, 0.9  # a tenth more or less of a parameter, for sensitivities and levers
_NEAR = 1.25  # times the least rate, beyond which a tenth of anything but the knee makes no limit bind
_PEAK = 3e-5  # relative, of where a rate is highest: beside it the rate itself is lower by the square
# requests in flight, and the factor between those tried, where fewer may be served faster
_FEWEST, _STEP = 0.1, 1.4


class PerRequest(NamedTuple):
    """Mean costs of one request of the mix."""

    held: float  # KV token-iterations of memory, in whole pages (A_b over Σλ)
    read: float  # KV token-iterations of context
    prefill_tokens: float  # computed for it; none where prompts arrive ready-made
    prefill_pairs: float  # of these with their context
    work_s: float  # that it adds to iterations in proportion to what it reads and computes
    steepest_s: float  # that it adds to very large iterations (Λ over Σλ); `work_s` where the law is linear
    iterations: float  # n, those with parts of a prompt longer than the token budget included, as above
    computed_tokens: float  # prompt, unless ready-made, and decode steps
    decode_tokens: float


def per_request(model: ServingModel) -> PerRequest:
    """Mean costs of one request (theory §1, §2)."""
    return _costs(model.mix, model.timing)


def _amounts(mix: Mix) -> tuple[Any, Any, Any, Any]:
    """KV tokens read, prefill tokens, sequences and prefill pairs that each row adds to iterations."""
    return mix.context, mix.prefill_tokens, mix.sequences, mix.prefill_pairs


def _costs(mix: Mix, timing: Timing) -> PerRequest:
    work = mix.mean(timing.linear(*_amounts(mix)))
    return PerRequest(
        held=mix.mean(mix.footprint),
        read=mix.mean(mix.context),
        prefill_tokens=mix.mean(mix.prefill_tokens),
        prefill_pairs=mix.mean(mix.prefill_pairs),
        work_s=work,
        steepest_s=work if timing.is_linear else mix.mean(timing.work(*_amounts(mix))),
        iterations=mix.mean(mix.iterations),
        computed_tokens=mix.mean(mix.computed_tokens),
        decode_tokens=mix.mean(mix.decode_tokens),
    )


def prompts_of(mix: Mix, replica: Replica, admissions: Any) -> Prompts:
    """Prefill tokens of an iteration that admits so many requests on average, each with its own prompt."""
    room = replica.max_num_batched_tokens
    sequences = admissions * float(mix.share @ mix.iterations)
    share, tokens = mix.prompt_law
    most = math.inf if room is None else np.maximum(room - sequences, 0.0)
    return Prompts(np.multiply.outer(admissions, share), tokens, most)


def _fixed_time(mix: Mix, timing: Timing, replica: Replica, cost: PerRequest, admissions: Number) -> Number:
    """Seconds of an iteration beside what its requests add in proportion."""
    if timing.is_linear:
        return timing.d0
    return timing.fixed(prompts_of(mix, replica, admissions), admissions * cost.iterations)


def _rate_using(
    mix: Mix, timing: Timing, replica: Replica, cost: PerRequest, used: Number, need: Number
) -> Number:
    """Return the rate x/τ(x) of an equilibrium that uses so much of a limit: x = used/need."""
    fixed = _fixed_time(mix, timing, replica, cost, used / need)
    return used / (need * fixed + used * cost.work_s)


def _fastest(
    mix: Mix, timing: Timing, replica: Replica, cost: PerRequest, limit: Number, need: Number
) -> Number:
    """Return the use of a limit at which the rate x/τ(x) is highest; a request needs `need` of it.

    Past the knee of a convex law an iteration can grow faster than what it serves: fewer at a time are faster (new).
    """
    if not timing.is_convex:
        return limit

    def rates(used: FloatArray) -> FloatArray:
        return np.asarray(_rate_using(mix, timing, replica, cost, used, need))

    fewest = _FEWEST / cost.iterations * need
    between = math.ceil(math.log(max(limit / fewest, 1.0)) / math.log(_STEP))
    tried = np.append(fewest * _STEP ** np.arange(between), limit)
    best = int(np.argmax(rates(tried)))
    if best == between:
        return limit
    return peak(rates, float(tried[max(best - 1, 0)]), float(tried[best + 1]), close=_PEAK)


def _limits(replica: Replica, cost: PerRequest, memory: float) -> Iterator[tuple[str, Number, Number]]:
    """Yield each limit, its amount, and the need of a request; `memory` multiplies the amount of memory."""
    yield "memory", replica.capacity_tokens * memory, cost.held
    if replica.max_num_seqs is not None:
        yield "max_num_seqs", replica.max_num_seqs, cost.iterations
    if replica.max_num_batched_tokens is not None:
        yield "max_num_batched_tokens", replica.max_num_batched_tokens, cost.computed_tokens


def _rates(
    mix: Mix,
    timing: Timing,
    replica: Replica,
    cost: PerRequest,
    memory: float = 1.0,
    among: Container[str] | None = None,
) -> dict[str, Number]:
    return {
        name: _rate_using(mix, timing, replica, cost, _fastest(mix, timing, replica, cost, limit, need), need)
        for name, limit, need in _limits(replica, cost, memory)
        if among is None or name in among
    }


def _least(rates: dict[str, Number]) -> Number:
    values = list(rates.values())
    if isinstance(values[0], np.ndarray):
        return reduce(np.fmin, values)  # passes over limits that a model does not have
    return min(values)


def most_admissions(model: ServingModel) -> float:
    """Admissions per iteration at which the first limit is met: n*, where that is memory."""
    limits = _limits(model.replica, per_request(model), 1.0)
    return float(min(limit / need for _, limit, need in limits))


def time_alone(model: ServingModel) -> float:
    """Seconds that the iterations of a request take that is alone on the replica, on average (new)."""
    timing, cost, mix = model.timing, per_request(model), model.mix
    usual = timing.fixed(0.0, 1.0)
    prompt = timing.fixed(mix.prefill_tokens, np.ones(mix.share.size)) - usual
    return float(cost.iterations * usual + cost.work_s + mix.mean(np.broadcast_to(prompt, mix.share.shape)))


def sustainable_rates(model: ServingModel) -> dict[str, float]:
    """Largest total rate under each limit that applies, requests/s, by the name of the limit.

    Where memory is the limit it is called `compute` if what an iteration holds takes most of its time even then (more
    than what is fixed, d0: M·Λ > A·d0), since more memory would buy little, else `kv_memory`.

    References
    ----------
    WAIT-s eq. 3-6; engine limits and other laws new, theory §1, §2.
    """
    if model.finds_prefixes:
        return cached_equilibrium.sustainable_rates(model)
    return dict(_plain_rates(model) if model.timing.is_linear else _bent_rates(model))


def _plain_rates(model: ServingModel) -> dict[str, float]:
    cost = per_request(model)
    rates = _rates(model.mix, model.timing, model.replica, cost)
    full = _saturation(model, cost)
    touching = _tangent(model, cost, full.admissions_per_iteration)
    name = "compute" if full.iteration_time_s > 2 * touching.fixed_s else "kv_memory"
    return {name: rates.pop("memory"), **rates}


_bent_rates = lru_cache(maxsize=16)(_plain_rates)  # models keep their tables


def sustainable_rate(model: ServingModel) -> tuple[str, float]:
    """Return the binding limit and the rate it allows, requests/s."""
    rates = sustainable_rates(model)
    binding = min(rates, key=lambda name: rates[name])
    return binding, rates[binding]


def backlog_growth(model: ServingModel) -> float | None:
    """Least growth of the backlog under any policy, requests/s; None where no limit is exceeded, or it is not known.

    Of a limit that holds c of what an iteration has, a request of which it has w takes v = d0·w/c and its work of
    every second: (Σλv - 1)/max v are left over even if they are the largest. One second an iteration and no work make
    it δ/w_max, δ = Σλw - M. Only of a linear law, and not where a prefix cache finds what nobody knows.

    References
    ----------
    FC A.1, A.3; engine limits and iteration times that depend on what is held new.
    """
    mix, timing = model.mix, model.timing
    if model.finds_prefixes or not timing.is_linear:
        return None
    needs = (mix.footprint, mix.iterations, mix.computed_tokens)
    limits = (model.replica.capacity_tokens, model.replica.max_num_seqs, model.replica.max_num_batched_tokens)
    work = timing.linear(*_amounts(mix))
    taken = [timing.d0 * need / limit + work for need, limit in zip(needs, limits, strict=True) if limit]
    growth = max(float((mix.rate_rps @ v - 1) / v.max()) for v in taken)
    return growth if growth > 0 else None


def load(model: ServingModel, *, sensitive: bool = True) -> Load:
    """Offered load against the sustainable rate (WAIT-s eq. 3-6; other laws new, theory §1, §2).

    Not `sensitive`: without sensitivities, where they would take long.
    """
    if model.finds_prefixes:
        return _with_range(cached_equilibrium.load(model, sensitive=sensitive), model)
    return _with_range(_single(_load(model, per_request(model))), model)


def _with_range(load: Load, model: ServingModel) -> Load:
    """Add the range of the rate by the timing's error band: where times are f times as long, it is 1/f."""
    if model.measured.band is None:
        return load
    shortest, longest = model.measured.band
    rate = load.sustainable_rps
    return load._replace(sustainable_rps_range=(rate / longest, rate / shortest))


def _load(model: Model, cost: PerRequest) -> Load:
    offered: Any = model.total_rate_rps
    rates = _rates(model.mix, model.timing, model.replica, cost)
    sustainable = _least(rates)
    factor = sustainable / offered
    return Load(
        offered_rps=offered,
        work_rate=offered * cost.steepest_s,
        load_factor_max=factor,
        headroom=factor - 1,
        sustainable_rps=sustainable,
        sustainable_rps_range=None,
        sustainable_decode_tokens_per_s=sustainable * cost.decode_tokens,
        sensitivity=_sensitivity(model, cost, rates),
    )


def load_times(load: Load, factor: float) -> Load:
    """Scale the offered load; what can be sustained stays."""
    offered = load.offered_rps * factor
    most = load.sustainable_rps / offered
    work = load.work_rate * factor
    return load._replace(offered_rps=offered, work_rate=work, load_factor_max=most, headroom=most - 1)


def _sensitivity(model: Model, cost: PerRequest, rates: dict[str, Number]) -> Sensitivity:
    base = _least(rates)
    changes = {
        name: _where(after == after, lambda after=after: after / base - 1)
        for name in Sensitivity._fields
        for after in [_rate_with(model, cost, rates, name, _MORE)]
    }
    return Sensitivity(**changes)


def strongest_levers(model: ServingModel) -> tuple[Lever, Lever]:
    """Find the time and the limit with which a tenth raises the sustainable rate most, the stronger of the two first.

    Of a linear law a tenth less d0 always gains a little more than a tenth more of any limit, so that the limit, which
    is easier to change, would never be named if there were only one (new, from WAIT-s eq. 3-6).
    """
    cost, rates = per_request(model), sustainable_rates(model)
    base = min(rates.values())
    rates = {"memory": rates.get("compute", rates.get("kv_memory", math.inf)), **rates}

    def rate(name: str) -> Number:
        factor = _LESS if is_time(name) else _MORE
        if model.finds_prefixes:
            return cached_equilibrium.rate_with(model, name, factor)
        return _rate_with(model, cost, rates, name, factor)

    names = [name for name in Sensitivity._fields if getattr(model.replica, name, 0) is not None]
    # gains that differ by rounding are the same: which is named must not depend on the machine
    levers = [Lever(name, round(float(rate(name) / base - 1), 12)) for name in names]
    kinds = ([lever for lever in levers if is_time(lever.name) is time] for time in (True, False))
    first, second = (max(kind, key=lambda lever: lever.gain) for kind in kinds)
    return (first, second) if first.gain >= second.gain else (second, first)


def is_time(name: str) -> bool:
    """Tell whether a field of `Sensitivity` is a time; the others are limits, and better larger."""
    return name in Timing.__slots__ and name != "knee_tokens"


def _rate_with(model: Model, cost: PerRequest, rates: dict[str, Number], name: str, factor: float) -> Number:
    """Return the least of `rates` with a parameter multiplied; NaN where there is no such limit."""
    mix, timing, replica = model.mix, model.timing, model.replica
    base = _least(rates)
    near = {limit for limit, rate in rates.items() if name == "knee_tokens" or np.any(rate <= _NEAR * base)}
    if name == "memory_tokens":  # as if a tenth more were whole pages: the formulas are continuous in them
        return _least(_rates(mix, timing, replica, cost, factor, near))
    if hasattr(timing, name):
        if not np.any(constant := getattr(timing, name)):
            return base
        timing = replace(timing, **{name: constant * factor})
        cost = cost._replace(work_s=mix.mean(timing.linear(*_amounts(mix))))
        return _least(_rates(mix, timing, replica, cost, among=near))
    limit = getattr(replica, name)
    if limit is None:
        return math.nan
    rate = _least(_rates(mix, timing, replace(replica, **{name: limit * factor}), cost, among=near))
    return np.where(np.isnan(limit), np.nan, rate) if isinstance(limit, np.ndarray) else rate


def iteration_time(model: ServingModel) -> float | None:
    """Iteration time at the eviction-free equilibrium, seconds; None where there is none.

    The least τ = fixed(λτ) + λτ·c, c what a request adds in proportion: d0/(1 - Λ) where the law is linear (WAIT-s
    eq. 3-6; other laws new, theory §1).
    """
    if model.timing.is_linear:
        return _least_time(model)
    return _bent_time(model)


def _least_time(model: ServingModel) -> float | None:
    tau: float | None = _single(_iteration_time(model, per_request(model)))
    return tau


_bent_time = lru_cache(maxsize=16)(_least_time)  # where a law bends, each is searched for


def tangent(model: ServingModel) -> Tangent:
    """Linear law that touches the iteration time at the equilibrium, or with memory full where there is none."""
    cost, tau = per_request(model), iteration_time(model)
    full = model.replica.capacity_tokens / cost.held
    return _tangent(model, cost, full if tau is None else model.total_rate_rps * tau)


def _tangent(model: ServingModel, cost: PerRequest, admissions: float) -> Tangent:
    prompts = prompts_of(model.mix, model.replica, admissions)
    return model.timing.tangent(prompts, admissions * cost.iterations)


def _iteration_time(model: Model, cost: PerRequest) -> Number:
    rate: Any = model.total_rate_rps
    work = rate * cost.work_s
    if model.timing.is_linear:
        return _where(work < 1, lambda: model.timing.d0 / (1 - work))
    if not work < 1:
        return math.nan

    def next_time(tau: float) -> float:
        fixed = _fixed_time(model.mix, model.timing, model.replica, cost, rate * tau)
        return float(fixed / (1 - work))

    before = model.timing.d0 / (1 - work)
    tau = after_before = next_time(before)
    after = next_time(tau)
    for _ in range(_STEPS):  # from below, and never beyond the least solution
        if after <= tau * (1 + 1e-15):
            return after
        if after > _LONGEST_S:
            return math.nan
        rise = (after - after_before) / (tau - before)
        before, after_before = tau, after
        if rise < 1:  # a convex law lies above its secant, and so does its solution
            tau += (after - tau) / (1 - rise)
        if rise >= 1 or (after := next_time(tau)) < tau:
            tau, after = after_before, next_time(after_before)

    def lasts(tau: float) -> bool:
        return next_time(tau) <= tau

    high = first_of_steps(lasts, tau, _GROWTH, _LONGEST_S)
    return math.nan if high is None else boundary(lasts, max(tau, high / _GROWTH), high)[1]


def equilibrium(model: ServingModel) -> Equilibrium:
    """Eviction-free equilibrium (WAIT-s eq. 3-6; Λ >= 1 is unstable at any memory, WAIT Prop. 1)."""
    if model.finds_prefixes:
        return cached_equilibrium.equilibrium(model)
    return _single(_equilibrium(model, per_request(model), [c.name for c in model.classes]))


def _equilibrium(model: Model, cost: PerRequest, names: Sequence[str]) -> Equilibrium:
    mix, offered, tau = model.mix, model.total_rate_rps, _iteration_time(model, cost)
    exists = tau == tau
    kv_tokens = offered * cost.held * tau
    in_flight = mix.of_classes(mix.rate_rps * mix.iterations) * tau
    per_stage = model.class_rates_rps * tau
    return Equilibrium(
        kv_tokens=kv_tokens,
        kv_utilization=kv_tokens / model.replica.capacity_tokens,
        iteration_time_s=tau,
        requests_in_flight=offered * cost.iterations * tau,
        decode_tokens_per_s=_where(exists, lambda: offered * cost.decode_tokens),
        prompt_iterations_per_s=_where(exists, lambda: offered * cost.iterations),
        classes=tuple(
            ClassOccupancy(name, per_stage[..., i : i + 1], in_flight[..., i : i + 1])
            for i, name in enumerate(names)
        ),
    )


def saturation(model: ServingModel) -> Saturation:
    """Admissions n* = M/Σ p_i S_i that keep memory exactly full, and the iteration time there (theory §2)."""
    if model.finds_prefixes:
        return cached_equilibrium.saturation(model)
    return _single(_saturation(model, per_request(model)))


def _saturation(model: Model, cost: PerRequest) -> Saturation:
    admissions = model.replica.capacity_tokens / cost.held
    fixed = _fixed_time(model.mix, model.timing, model.replica, cost, admissions)
    tau = fixed + admissions * cost.work_s
    return Saturation(admissions, tau, admissions / tau)


class Blocks(NamedTuple):
    """Blocks of one model's report that are computed for many at once; fields named as there."""

    load: Load
    equilibrium: Equilibrium
    saturation: Saturation


def blocks(models: Sequence[ServingModel]) -> list[Blocks]:
    """Load, equilibrium and saturation of each model, the same to the last bit as one by one.

    All have the same number of decode lengths in each class, and one prefill convention.
    """
    alike = all(model.timing.is_linear and not model.finds_prefixes and _alike(model) for model in models)
    if not (models and alike):
        return [Blocks(load(model), equilibrium(model), saturation(model)) for model in models]
    many, names = side_by_side(models), [c.name for c in models[0].classes]
    with np.errstate(all="ignore"):  # beyond a float is inf, as in plain arithmetic
        cost = _costs(many.mix, many.timing)
        columns = Blocks(_load(many, cost), _equilibrium(many, cost, names), _saturation(many, cost))
    each = zip(_each(columns, len(models)), models, strict=True)
    return [block._replace(load=_with_range(block.load, model)) for block, model in each]


def _alike(model: ServingModel) -> bool:
    """Tell whether requests of each class have one prompt, computed whole, and weigh a token more at each stage."""
    most = model.replica.of_rank().max_num_batched_tokens
    whole = most is None or all(c.input_tokens <= most for c in model.classes)
    return model.is_plain and whole and not any(c.prompts or c.most for c in model.classes)


def _where(condition: Any, value: Any) -> Any:
    """`value()` where the condition holds, NaN elsewhere; for numbers and columns."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, value(), np.nan)
    return value() if condition else math.nan


def _each(result: Any, count: int) -> list[Any]:
    """Split a result of columns into one for each model, None for NaN."""
    if isinstance(result, tuple):
        parts = zip(*(_each(part, count) for part in result), strict=True)
        make = getattr(type(result), "_make", tuple)
        return [make(part) for part in parts]
    if result is None or isinstance(result, str):
        return [result] * count
    values = result.ravel().tolist() if isinstance(result, np.ndarray) else [result]
    return [None if value != value else value for value in values]


def _single(result: Result) -> Result:
    return cast(Result, _each(result, 1)[0])
