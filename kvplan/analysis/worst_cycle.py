"""What greedy admission loses once it has collapsed (theory §3).

Closed forms where they exist: a gap-vector cycle of one class, its worst case of a single cohort, and the pulse
cycle of classes whose iteration counts share a divisor. Otherwise the fluid map is iterated and the result is
labelled as simulated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from kvplan.analysis.concurrency import eviction_is_impossible
from kvplan.analysis.equilibrium import Saturation, saturation, sustainable_rate
from kvplan.analysis.fluid_map import (
    Attractor,
    eviction_free_state,
    find_attractor,
    fluid_map,
    state_by_stage,
)
from kvplan.analysis.roots import largest_root
from kvplan.analysis.stability import Stability, rounding_error
from kvplan.model import FloatArray, IntArray, Prefill, Prompts, ServingModel, survival, survival_weights
from kvplan.model.weights import page_padding

_DISTURBANCE = 0.1
_SHARE_DIGITS = 13


class CycleKind(StrEnum):
    """How a worst cycle is known."""

    HOMOGENEOUS = "homogeneous"
    PULSE = "pulse"
    SIMULATED = "simulated"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Cycle:
    """A limit cycle of the saturated fluid map: means an iteration over one period, in requests.

    `throughput` is that of the mix as offered; `completions` counts everything, which is more where evictions have
    changed the mix. `phases` are the requests in flight in each iteration of a pulse cycle, whose admissions all come
    in the first; empty where they are not known.
    """

    throughput: float
    completions: float
    evictions: float
    in_flight: float
    period: int | None
    phases: tuple[float, ...] = ()


class ClassCycle(NamedTuple):
    """The worst cycle of one class on a replica of its own; kind and numbers None where no closed form exists."""

    name: str
    kind: CycleKind | None
    throughput_per_iteration: float | None
    throughput_rps: float | None
    loss: float | None
    evictions_per_iteration: float | None
    period: int | None


class WorstCycle(NamedTuple):
    """The worst cycle of the mix; the keys of the report's `worst_cycle` block.

    `iterations` is how long the fluid map ran and `settled` whether it ended on a repeating pattern, both None
    where a closed form was used.
    """

    kind: CycleKind
    throughput_per_iteration: float
    throughput_rps: float
    loss: float
    evictions_per_iteration: float
    period: int | None
    danger_zone_rps: tuple[float, float] | None
    classes: tuple[ClassCycle, ...]
    iterations: int | None
    settled: bool | None


def gap_cycle_throughput(stages: int, first_weight: float, capacity: float, gaps: Sequence[int]) -> float:
    """Completions per iteration of one class whose cohorts follow each other at the given gaps.

    Parameters
    ----------
    stages
        Iterations n of a request.
    first_weight
        KV tokens a at stage 0 (s + 1, or s for `inline`).
    capacity
        KV tokens.
    gaps
        Iterations between successive cohorts around one period; they sum to `stages`.

    Raises
    ------
    ValueError
        If the gaps do not sum to `stages`.

    References
    ----------
    SIC eq. 25: x = M/(s·d + (d² + Σg²)/2). One gap d is the worst cycle, all gaps 1 the equilibrium.

    Examples
    --------
    >>> [round(360 / gap_cycle_throughput(4, 3.0, 360.0, g)) for g in ((1, 1, 1, 1), (2, 1, 1), (2, 2), (3, 1), (4,))]
    [18, 19, 20, 21, 24]
    """
    if sum(gaps) != stages:
        raise ValueError(f"gaps sum to {sum(gaps)}, not to the {stages} stages")
    return capacity / ((first_weight - 1) * stages + (stages**2 + sum(g * g for g in gaps)) / 2)


def pulse_cycle(stages: IntArray, first_weight: FloatArray, share: FloatArray, capacity: float) -> Cycle:
    """The cycle in which everything is admitted once every g iterations, g the gcd of the iteration counts.

    x = M/Σp_i((a_i - 1)n_i + n_i(n_i + g)/2); evicted x(g - 1)Σp_i n_i/(g Σp_i a_i). With g = 1 it is the
    eviction-free equilibrium, with one class SIC's worst cycle M/(d(s + d)).

    References
    ----------
    SIC 3 (one class); several classes new, theory §3 ("Pulse cycle"). The amount in flight is new: memory is full
    after every iteration, which gives the youngest cohort's mass as it is trimmed.

    Examples
    --------
    Decode lengths 2 and 4, input 4 (`disaggregated`):

    >>> cycle = pulse_cycle(np.array([2, 4]), np.array([5.0, 5.0]), np.array([0.5, 0.5]), 10_000.0)
    >>> round(cycle.throughput, 9), round(cycle.evictions, 9), cycle.period
    (500.0, 150.0, 2)
    """
    g = int(np.gcd.reduce(stages))
    x = capacity / float(share @ ((first_weight - 1) * stages + stages * (stages + g) / 2))
    weight = survival_weights(stages, first_weight, share).reshape(-1, g)
    present = survival(stages, share).reshape(-1, g)
    older_kv, older_count = x * g * weight[1:].sum(axis=0), x * g * present[1:].sum(axis=0)
    youngest = (capacity - older_kv) / weight[0]  # one pulse, iteration by iteration
    in_flight = older_count + youngest * present[0]
    return Cycle(
        throughput=x,
        completions=x,
        evictions=x * (g - 1) * float(share @ stages) / (g * float(share @ first_weight)),
        in_flight=float(in_flight.mean()),
        period=g,
        phases=tuple(in_flight.tolist()),
    )


def pulse_is_stable(weight: FloatArray, g: int, relative_error: float = 0.0) -> bool:
    """Whether the pulse cycle attracts its neighbourhood: all roots of Σ_j W_(g-1+jg) z^(L/g-1-j) inside, proved.

    Parameters
    ----------
    weight : ndarray, shape (L,), tokens
        Survival weights W_k.
    g
        Divides L.

    References
    ----------
    New, theory §3.

    Examples
    --------
    Lengths 2 and 4, half each, are stable iff the input exceeds 0:

    >>> [pulse_is_stable(np.array([s + 1, s + 2, (s + 3) / 2, (s + 4) / 2]), 2) for s in (0.0, 1.0)]
    [False, True]
    """
    root = largest_root(weight[g - 1 :: g], relative_error=relative_error)
    return root.certified and root.modulus < 1 - 1e-9


def cycle_throughput_rps(model: ServingModel, cycle: Cycle) -> float:
    """Requests per second of a saturated cycle: completions over its mean iteration time.

    Memory is full in every iteration, and whatever completes or is evicted is admitted, and prefilled, again. A law
    that is not linear is averaged over the iterations of a pulse cycle, or over prompts that come one by one.

    References
    ----------
    New, theory §3 ("Wall clock").
    """
    mix, replica, timing = model.mix, model.replica, model.timing
    padding = page_padding(replica.block_tokens)
    fresh = 0.0 if replica.prefill is Prefill.DISAGGREGATED else cycle.completions
    prompts = Prompts(
        (fresh + cycle.evictions) * mix.of_classes(mix.share),
        np.array([c.input_tokens for c in model.classes], dtype=np.float64),
    )
    if cycle.phases and not timing.is_linear:
        sequences = np.array(cycle.phases)
        prefill = np.zeros(sequences.size)
        prefill[0] = prompts.mean * sequences.size
        return cycle.throughput / float(
            timing(replica.memory_tokens - padding * sequences, prefill, sequences).mean()
        )
    kv_tokens = replica.memory_tokens - padding * cycle.in_flight
    return cycle.throughput / timing.mean(kv_tokens, prompts, cycle.in_flight)


def worst_cycle(model: ServingModel, stability: Stability) -> WorstCycle:
    """The cycle greedy admission can be stuck in, from a closed form where one applies, else from the fluid map."""
    full = saturation(model)
    kind, cycle, attractor = mixed_cycle(model, stable=stability.stable and stability.certified)
    per_iteration, rps = full.admissions_per_iteration, full.throughput_rps
    if cycle is not None:
        per_iteration, rps = cycle.throughput, cycle_throughput_rps(model, cycle)
    _, sustainable = sustainable_rate(model)
    return WorstCycle(
        kind=kind,
        throughput_per_iteration=per_iteration,
        throughput_rps=rps,
        loss=_loss(per_iteration, full),
        evictions_per_iteration=cycle.evictions if cycle else 0.0,
        period=cycle.period if cycle else None,
        danger_zone_rps=(rps, sustainable) if cycle is not None and rps < sustainable else None,
        classes=tuple(class_cycle(model, i) for i in range(len(model.classes))),
        iterations=attractor.iterations if attractor else None,
        settled=attractor.settled if attractor else None,
    )


def _loss(per_iteration: float, full: Saturation) -> float:
    return max(0.0, 1 - per_iteration / full.admissions_per_iteration)


def _closed_form(model: ServingModel) -> tuple[CycleKind, Cycle | None] | None:
    """The cycle of a mix where a formula gives it; None where only the map or the spectrum can tell."""
    mix, first_weight = model.mix, model.mix.held.at_start
    stages = mix.stages
    longest = int(stages.max())
    if longest == 1 or eviction_is_impossible(model):
        return CycleKind.NONE, None
    g = int(np.gcd.reduce(stages))
    if g == 1:
        return None
    homogeneous = int(stages.min()) == longest
    if not homogeneous:
        weight = mix.held.survival(mix.share)
        if not pulse_is_stable(weight, g, rounding_error(stages)):
            return None
    cycle = pulse_cycle(stages, first_weight, mix.share, float(model.replica.memory_tokens))
    return CycleKind.HOMOGENEOUS if homogeneous else CycleKind.PULSE, cycle


def mixed_cycle(
    model: ServingModel,
    *,
    stable: bool,
    max_iterations: int | None = None,
    compile_above: int | None = None,
) -> tuple[CycleKind, Cycle | None, Attractor | None]:
    """The worst cycle of the mix, and where the fluid map settled if that is where it comes from.

    Parameters
    ----------
    stable
        Whether the eviction-free equilibrium is proved stable: then nothing else is taken to attract.
    max_iterations, compile_above
        As for `kvplan.analysis.fluid_map.find_attractor`.

    Returns
    -------
    CycleKind
    Cycle or None
        None where nothing is lost.
    Attractor or None

    Examples
    --------
    >>> from kvplan.model import RequestClass, Replica, Timing
    >>> alone = ServingModel((RequestClass("a", 2, (3,), (1.0,), 1.0),), Timing(1.0), Replica(12))
    >>> kind, cycle, _ = mixed_cycle(alone, stable=False)
    >>> str(kind), cycle.throughput
    ('homogeneous', 0.8)
    """
    known = _closed_form(model)
    if known is not None:
        return (*known, None)
    if stable:
        return CycleKind.NONE, None, None
    worst = simulate_worst(model, max_iterations, compile_above=compile_above)
    cycle = Cycle(worst.mix_throughput, worst.throughput, worst.evictions, worst.in_flight, worst.period)
    return CycleKind.SIMULATED, cycle, worst


def simulate_worst(
    model: ServingModel, max_iterations: int | None = None, *, compile_above: int | None = None
) -> Attractor:
    """Where the fluid map settles, from a disturbed equilibrium and from empty; the lower throughput of the two.

    Without evictions memory is full of admissions that are n* on average, whatever their pattern; a run that has
    not settled is then given that mean, not the one of its window. The map has no scale of its own: it is run with
    one token of memory, once for all replicas and rates of a mix, and what is in flight grows with memory.
    """
    mix, memory = model.mix, model.replica.memory_tokens
    part, exponent = np.frexp(mix.share)  # the last digits of a float are not to make it another mix
    share = np.ldexp(part.round(_SHARE_DIGITS), exponent)
    arrays = (a.tobytes() for a in (mix.stages, mix.held.at_start, share))
    worst = _settled(*arrays, max_iterations, compile_above)
    return worst._replace(
        throughput=worst.throughput * memory,
        mix_throughput=worst.mix_throughput * memory,
        evictions=worst.evictions * memory,
        in_flight=worst.in_flight * memory,
    )


@lru_cache(maxsize=256)
def _settled(
    stages: bytes, first_weight: bytes, share: bytes, max_iterations: int | None, compile_above: int | None
) -> Attractor:
    """The same for a token of memory; the bytes of three arrays, which unlike arrays can be looked up."""
    system = fluid_map(
        np.frombuffer(stages, np.int64), np.frombuffer(first_weight), np.frombuffer(share), 1.0
    )
    starts = (
        eviction_free_state(system, disturbance=_DISTURBANCE),
        state_by_stage(np.zeros(system.weight.size)),
    )
    found = [find_attractor(system, start, max_iterations, compile_above=compile_above) for start in starts]
    worst = min(found, key=lambda attractor: attractor.mix_throughput)
    if worst.evictions == 0:
        full = system.eviction_free_throughput
        return worst._replace(throughput=full, mix_throughput=full)
    return worst


def class_cycle(model: ServingModel, index: int) -> ClassCycle:
    """The closed form for one class alone: what a replica that serves nothing else would lose."""
    alone = replace(model, classes=(model.classes[index],))
    name = model.classes[index].name
    known = _closed_form(alone)
    if known is None:
        return ClassCycle(name, None, None, None, None, None, None)
    kind, cycle = known
    full = saturation(alone)
    if cycle is None:
        return ClassCycle(name, kind, full.admissions_per_iteration, full.throughput_rps, 0.0, 0.0, None)
    return ClassCycle(
        name=name,
        kind=kind,
        throughput_per_iteration=cycle.throughput,
        throughput_rps=cycle_throughput_rps(alone, cycle),
        loss=_loss(cycle.throughput, full),
        evictions_per_iteration=cycle.evictions,
        period=cycle.period,
    )
