"""Load, sustainable rate, eviction-free equilibrium and saturation of a replica (theory §2).

All of it is linear in the traffic: a request of the mix costs so many KV token-iterations of memory and so many
seconds of work, and an iteration of fixed cost d0 serves everything in flight.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kvplan.model import FloatArray, Prefill, Replica, ServingModel, Timing, sum_by


class Sensitivity(NamedTuple):
    """Relative change of the sustainable rate for +10 % of each parameter."""

    memory_tokens: float
    d0: float
    d1: float


class Load(NamedTuple):
    """What is offered against what can be sustained; the keys of the report's `load` block.

    `load_factor_max` α scales every rate until the first limit is met; None where it overflows a float.
    """

    offered_rps: float
    work_rate: float
    load_factor_max: float | None
    headroom: float | None
    sustainable_rps: float
    sustainable_decode_tokens_per_s: float
    sensitivity: Sensitivity


class ClassOccupancy(NamedTuple):
    """Requests of one class at the equilibrium, per stage and in flight; None where Λ >= 1."""

    name: str
    per_stage: float | None
    in_flight: float | None


class Equilibrium(NamedTuple):
    """The eviction-free equilibrium at the offered load; every number None where Λ >= 1."""

    kv_tokens: float | None
    kv_utilization: float | None
    iteration_time_s: float | None
    requests_in_flight: float | None
    decode_tokens_per_s: float | None
    prompt_iterations_per_s: float | None
    classes: tuple[ClassOccupancy, ...]


class Saturation(NamedTuple):
    """The equilibrium that exactly fills memory: n*, τ(M), n*/τ(M)."""

    admissions_per_iteration: float
    iteration_time_s: float
    throughput_rps: float


class PerRequest(NamedTuple):
    """Mean costs of one request of the mix.

    Attributes
    ----------
    held : float
        KV token-iterations of memory, half-filled blocks included (A_b over Σλ).
    work_s : float
        Seconds added to iterations by KV reads, prefill and sequences (Λ over Σλ).
    iterations : float
        Iterations it stays, n.
    computed_tokens : float
        Tokens the engine computes for it: prompt (unless ready-made) and decode steps.
    decode_tokens : float
    """

    held: float
    work_s: float
    iterations: float
    computed_tokens: float
    decode_tokens: float


def held_footprint(model: ServingModel) -> FloatArray:
    """KV token-iterations of memory of one request per row of the mix: S + n(b-1)/2 (theory §2)."""
    return model.mix.footprint + model.mix.stages * ((model.replica.block_tokens - 1) / 2)


def per_request(model: ServingModel) -> PerRequest:
    """Mean costs of one request (theory §1, §2).

    Examples
    --------
    >>> from kvplan.model import Prefill, Replica, RequestClass, Timing
    >>> one = RequestClass("a", 1, (2,), (1.0,), 1.0)
    >>> per_request(ServingModel((one,), Timing(0.5, d1=0.1), Replica(9, prefill=Prefill.INLINE))).held
    6.0
    """
    return _costs(model, model.timing)


def _costs(model: ServingModel, timing: Timing) -> PerRequest:
    """The same with another timing."""
    mix = model.mix
    work = timing.d1 * mix.footprint + timing.d2 * model.prefill_tokens + timing.d3 * mix.stages
    # s + n - 1: the iteration that ends a prefill computes no token beyond the prompt, but never none at all
    prompt = 0 if model.replica.prefill is Prefill.DISAGGREGATED else np.maximum(mix.input_tokens - 1, 0)
    return PerRequest(
        held=float(mix.share @ held_footprint(model)),
        work_s=float(mix.share @ work),
        iterations=float(mix.share @ mix.stages),
        computed_tokens=float(mix.share @ (prompt + mix.stages)),
        decode_tokens=float(mix.share @ mix.decode_tokens),
    )


def sustainable_rates(model: ServingModel) -> dict[str, float]:
    """Largest total rate under each limit that applies, requests/s, by the name of the limit.

    Where memory is the limit it is called `compute` if reading and computing take most of an iteration even then
    (M·Λ > A·d0), since more memory would buy little, else `kv_memory`.

    References
    ----------
    WAIT-s eq. 3-6; engine limits new, theory §2.
    """
    return _rates(per_request(model), model.timing.d0, model.replica)


def _rates(cost: PerRequest, d0: float, replica: Replica) -> dict[str, float]:
    memory = "compute" if replica.memory_tokens * cost.work_s > cost.held * d0 else "kv_memory"
    rates = {memory: replica.memory_tokens / (cost.held * d0 + replica.memory_tokens * cost.work_s)}
    for name, limit, need in (
        ("max_num_seqs", replica.max_num_seqs, cost.iterations),
        ("max_num_batched_tokens", replica.max_num_batched_tokens, cost.computed_tokens),
    ):
        if limit is not None:
            rates[name] = limit / (need * d0 + limit * cost.work_s)
    return rates


def sustainable_rate(model: ServingModel) -> tuple[str, float]:
    """The binding limit and the rate it allows, requests/s.

    Examples
    --------
    >>> from kvplan.model import Prefill, Replica, RequestClass, Timing
    >>> classes = (RequestClass("a", 1, (1,), (1.0,), 1.0), RequestClass("b", 1, (2,), (1.0,), 1.0))
    >>> sustainable_rate(ServingModel(classes, Timing(0.5, d1=1 / 18), Replica(9, prefill=Prefill.INLINE)))
    ('kv_memory', 2.0)
    """
    rates = sustainable_rates(model)
    binding = min(rates, key=lambda name: rates[name])
    return binding, rates[binding]


def load(model: ServingModel) -> Load:
    """Offered load against the sustainable rate (WAIT-s eq. 3-6; general law new, theory §2)."""
    offered, cost = model.total_rate_rps, per_request(model)
    sustainable = min(_rates(cost, model.timing.d0, model.replica).values())
    factor = sustainable / offered if offered > sustainable / 1e300 else None
    return Load(
        offered_rps=offered,
        work_rate=offered * cost.work_s,
        load_factor_max=factor,
        headroom=None if factor is None else factor - 1,
        sustainable_rps=sustainable,
        sustainable_decode_tokens_per_s=sustainable * cost.decode_tokens,
        sensitivity=_sensitivity(model, cost),
    )


def sensitivity(model: ServingModel) -> Sensitivity:
    """What +10 % of memory, d0 or d1 does to the sustainable rate, every limit considered."""
    return _sensitivity(model, per_request(model))


def _sensitivity(model: ServingModel, cost: PerRequest) -> Sensitivity:
    timing, replica = model.timing, model.replica
    base = min(_rates(cost, timing.d0, replica).values())

    def change(cost: PerRequest, d0: float, replica: Replica) -> float:
        return min(_rates(cost, d0, replica).values()) / base - 1

    # A tenth more tokens need not be whole: the formulas are continuous in M.
    more_memory = replace(replica, memory_tokens=replica.memory_tokens * 1.1)  # type: ignore[arg-type]
    more_d1 = _costs(model, replace(timing, d1=timing.d1 * 1.1))
    return Sensitivity(
        memory_tokens=change(cost, timing.d0, more_memory),
        d0=change(cost, timing.d0 * 1.1, replica),
        d1=change(more_d1, timing.d0, replica),
    )


def iteration_time(model: ServingModel) -> float | None:
    """Iteration time at the eviction-free equilibrium, τ* = d0/(1 - Λ), seconds; None where Λ >= 1."""
    work_rate = model.total_rate_rps * per_request(model).work_s
    return model.timing.d0 / (1 - work_rate) if work_rate < 1 else None


def equilibrium(model: ServingModel) -> Equilibrium:
    """The eviction-free equilibrium (WAIT-s eq. 3-6; Λ >= 1 is unstable at any memory, WAIT Prop. 1)."""
    tau = iteration_time(model)
    if tau is None:
        nothing = tuple(ClassOccupancy(c.name, None, None) for c in model.classes)
        return Equilibrium(None, None, None, None, None, None, nothing)
    mix, cost, offered = model.mix, per_request(model), model.total_rate_rps
    in_flight = sum_by(mix.class_index, mix.rate_rps * mix.stages) * tau
    kv_tokens = offered * cost.held * tau
    return Equilibrium(
        kv_tokens=kv_tokens,
        kv_utilization=kv_tokens / model.replica.memory_tokens,
        iteration_time_s=tau,
        requests_in_flight=offered * cost.iterations * tau,
        decode_tokens_per_s=offered * cost.decode_tokens,
        prompt_iterations_per_s=offered * cost.iterations,
        classes=tuple(
            ClassOccupancy(c.name, c.rate_rps * tau, float(n))
            for c, n in zip(model.classes, in_flight, strict=True)
        ),
    )


def saturation(model: ServingModel) -> Saturation:
    """Admissions n* = M/Σ p_i S_i that keep memory exactly full, and the iteration time there (theory §2)."""
    cost = per_request(model)
    admissions = model.replica.memory_tokens / cost.held
    tau = model.timing.d0 + admissions * cost.work_s
    return Saturation(admissions, tau, admissions / tau)
