"""Load, equilibrium and saturation of a replica whose prefix cache finds what requests have in common (theory §8).

What can be sustained is the *guaranteed* rate: whatever has happened before, it is served. The equilibrium is that of a
warm cache, which can exist beyond it; saturation is where requests in flight fill memory and nothing else is kept.
"""

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from kvplan.analysis.cache_states import cached_replica
from kvplan.analysis.prefix_cache import full_memory, guaranteed_rates, population_of, prefix_cache
from kvplan.analysis.records import ClassOccupancy, Equilibrium, Load, Saturation, Sensitivity
from kvplan.model import ServingModel

_MORE = 1.1


def sustainable_rates(model: ServingModel) -> dict[str, float]:
    """Return the guaranteed rate under each limit that applies, requests/s, by the name of the limit."""
    cached = cached_replica(model)
    rates = guaranteed_rates(cached)
    full = full_memory(cached)
    x, hits = float(full.admissions[0]), float(full.hits[0])
    prompts = cached.prompts(x, cached.saves * hits)
    touching = cached.timing.tangent(x * cached.read, prompts, x * cached.stages)
    name = "compute" if full.iteration_time_s[0] > 2 * touching.fixed_s else "kv_memory"
    return {name: rates.pop("memory"), **rates}


# sensitivities and levers ask for the same changes, and those of a constant that is 0 change nothing
@lru_cache(maxsize=32)
def guaranteed_rate(model: ServingModel) -> float:
    """Return the least of the guaranteed rates, requests/s."""
    return min(guaranteed_rates(cached_replica(model)).values())


def rate_with(model: ServingModel, name: str, factor: float) -> float | None:
    """Return the guaranteed rate with a field of `Sensitivity` multiplied; None for a limit that there is not."""
    if hasattr(model.timing, name):
        changed = replace(model, timing=replace(model.timing, **{name: getattr(model.timing, name) * factor}))
    elif (limit := getattr(model.replica, name)) is None:
        return None
    else:
        changed = replace(model, replica=replace(model.replica, **{name: round(limit * factor)}))
    return guaranteed_rate(changed)


def load(model: ServingModel, *, sensitive: bool = True) -> Load:
    """Offered load against the guaranteed rate; work is counted without hits, and headroom in users where they ask.

    Not `sensitive`: without sensitivities, which take ten times as long as all else.
    """
    cached = cached_replica(model)
    rate = guaranteed_rate(model)
    offered = cached.rate_rps
    factor = rate / offered
    if cached.users is not None:
        factor = population_of(cached).guaranteed / cached.users
    mix = model.mix
    amounts = mix.read.footprint, mix.prefill_tokens, mix.stages.astype(np.float64)
    changes: list[float | None] = [None] * len(Sensitivity._fields)
    if sensitive:
        changes = [rate_with(model, name, _MORE) for name in Sensitivity._fields]
    return Load(
        offered_rps=offered,
        work_rate=offered * float(mix.mean(model.timing.work(*amounts))),
        load_factor_max=factor,
        headroom=factor - 1,
        sustainable_rps=rate,
        sustainable_rps_range=None,
        sustainable_decode_tokens_per_s=rate * cached.mean("decode"),
        sensitivity=Sensitivity(*(v if v is None else v / rate - 1 for v in changes)),  # type: ignore[arg-type]
    )


def equilibrium(model: ServingModel) -> Equilibrium:
    """Return the state that a warm cache keeps at the offered load; None of it where there is none."""
    cached = cached_replica(model)
    state, offered = prefix_cache(cached).expected, cached.rate_rps
    if state is None:
        nobody = tuple(ClassOccupancy(c.name, None, None) for c in model.classes)
        return Equilibrium(None, None, None, None, None, None, nobody)
    tau = state.iteration_time_s
    return Equilibrium(
        kv_tokens=state.kv_unique_tokens,
        kv_utilization=state.kv_unique_tokens / model.replica.capacity_tokens,
        iteration_time_s=tau,
        requests_in_flight=offered * cached.stages * tau,
        decode_tokens_per_s=offered * cached.mean("decode"),
        prompt_iterations_per_s=offered * cached.stages,
        classes=tuple(
            ClassOccupancy(c.name, c.rate_rps * tau, c.rate_rps * stream.stages * tau)
            for c, stream in zip(model.classes, cached.streams, strict=True)
        ),
    )


def saturation(model: ServingModel) -> Saturation:
    """Where requests in flight fill memory, and the cache finds what they have in common and nothing else."""
    full = full_memory(cached_replica(model))
    x, tau = float(full.admissions[0]), float(full.iteration_time_s[0])
    return Saturation(x, tau, x / tau if tau else math.inf)
