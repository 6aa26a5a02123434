"""Losses of greedy admission once it has collapsed (theory §3).

Closed forms where they exist: a gap-vector cycle of one class, its worst case of a single cohort, and the pulse
cycle of classes whose iteration counts share a divisor. Otherwise the fluid map is iterated from several collapsed
states, and the result is labelled as simulated.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from kvplan.analysis.concurrency import eviction_is_impossible
from kvplan.analysis.equilibrium import saturation, sustainable_rate
from kvplan.analysis.fluid_map import Cycle, collapsed_starts, find_attractor, fluid_map
from kvplan.analysis.records import Saturation
from kvplan.analysis.roots import MOST, count_outside
from kvplan.analysis.stability import Stability, nothing_else_attracts, survival_error
from kvplan.model import FloatArray, Prompts, ServingModel, StageWeights, attention_pairs, survival

MOST_STAGES = 1 << 22  # of all classes, whose closed forms look at one after the other: about a second
_SHARE_DIGITS = 13
_NOTHING = 1e-9  # evictions a completion, that rounding makes


class CycleKind(StrEnum):
    """How a worst cycle is known."""

    HOMOGENEOUS = "homogeneous"
    PULSE = "pulse"
    SIMULATED = "simulated"
    NONE = "none"


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
    """The worst cycle of the mix: the report's `worst_cycle` block."""

    kind: CycleKind
    throughput_per_iteration: float
    throughput_rps: float
    loss: float
    evictions_per_iteration: float
    period: int | None
    danger_zone_rps: tuple[float, float] | None
    classes: tuple[ClassCycle, ...]
    iterations: int | None  # that the fluid map ran; None where a closed form was used
    settled: bool  # it came to rest


def gap_cycle_throughput(stages: int, first_weight: float, capacity: float, gaps: Sequence[int]) -> float:
    """Completions per iteration of one class of `stages` whose cohorts follow each other at gaps that sum to these.

    Weights grow by a token from `first_weight` (s + 1, or s for `inline`); one gap d is the worst cycle, all gaps 1 the
    equilibrium. x = M/(s·d + (d² + Σg²)/2) (SIC eq. 25).
    """
    if sum(gaps) != stages:
        raise ValueError(f"gaps sum to {sum(gaps)}, not to the {stages} stages")
    return capacity / ((first_weight - 1) * stages + (stages**2 + sum(g * g for g in gaps)) / 2)


def pulse_cycle(
    held: StageWeights,
    read: StageWeights,
    share: FloatArray,
    prompt: FloatArray,
    capacity: float,
    seats: float = math.inf,
) -> Cycle:
    """Return the cycle in which everything is admitted once every g iterations, g the gcd of the iteration counts.

    x = M/(g·Σ_j W_(g-1+jg)), without pages M/Σp_i((a_i - 1)n_i + n_i(n_i + g)/2): memory is full when a pulse is about
    to leave. With g = 1 it is the eviction-free equilibrium, with one class SIC's worst cycle M/(d(s + d)). Arguments
    are as in `FluidMap`, with weights that never fall; so many seats fill memory with a pulse that is about to leave,
    if not when it comes.

    References
    ----------
    SIC 3 (one class); several classes new, theory §3 ("Pulse cycle"), and §10 for any weights that never fall. Memory
    is full after every iteration, which gives the youngest cohort's mass as it is trimmed: what is evicted and what is
    in flight are new.

    Examples
    --------
    Decode lengths 2 and 4, input 4 (`disaggregated`):
    """
    g = int(np.gcd.reduce(held.stages))
    weight = held.survival(share).reshape(-1, g)
    pulse = capacity / float(weight[:, -1].sum())  # what is left of each when it stops being the youngest
    present = survival(held.stages, share).reshape(-1, g)
    older = pulse * weight[1:].sum(axis=0)
    youngest = (capacity - older) / weight[0]  # one pulse, iteration by iteration
    youngest = np.minimum(youngest, (seats - pulse * float(present[1:, 0].sum())) / float(present[0, 0]))
    amount = np.concatenate([youngest[None], np.full((len(weight) - 1, g), pulse)])
    in_flight = (amount * present).sum(axis=0)
    context = (amount * read.survival(share).reshape(-1, g)).sum(axis=0)
    evictions = max(0.0, float(youngest[0] - pulse) / g)  # rounding leaves less than nothing
    return Cycle(
        throughput=pulse / g,
        evictions=evictions,
        evicted_prompts=evictions * float(share @ prompt),
        evicted_pairs=evictions * float(share @ attention_pairs(prompt)),
        in_flight=float(in_flight.mean()),
        read_tokens=float(context.mean()),
        period=g,
        phases=np.stack([in_flight, context]),
    )


def pulse_is_stable(weight: FloatArray, g: int, relative_error: float = 0.0) -> bool:
    """Tell whether the pulse cycle attracts its neighbourhood, proved: all roots of Σ_j W_(g-1+jg) z^(L/g-1-j) inside.

    `weight` are survival weights W_k, tokens, of shape (L,), and g divides L (new, theory §3).

    Examples
    --------
    Lengths 2 and 4, half each, are stable iff the input exceeds 0:

    >>> [pulse_is_stable(np.array([s + 1, s + 2, (s + 3) / 2, (s + 4) / 2]), 2) for s in (0.0, 1.0)]
    [False, True]
    """
    return count_outside(weight[g - 1 :: g], 1 - 1e-9, relative_error=relative_error) == 0


def cycle_throughput_rps(model: ServingModel, cycle: Cycle) -> float:
    """Requests per second of a saturated cycle: completions over its mean iteration time (theory §3, "Wall clock").

    A law that is not linear is averaged over the iterations of a pulse cycle, or over prompts that come one by one.
    """
    timing, (tokens, prefill_pairs) = model.timing, cycle.prefill(model.mix)
    if cycle.phases is not None and not timing.is_linear:
        sequences, context = cycle.phases
        prefill = np.zeros(sequences.size)
        prefill[0] = tokens * sequences.size
        return cycle.throughput / float(timing(context, prefill, sequences, prefill_pairs).mean())
    time = mean_iteration_time(model, cycle.read_tokens, tokens, cycle.in_flight, prefill_pairs)
    return cycle.throughput / time


def mean_iteration_time(
    model: ServingModel, kv_tokens: float, prefill_tokens: float, sequences: float, prefill_pairs: float
) -> float:
    """Seconds of an iteration on average whose prefill tokens come as the prompts of the mix, one by one (new)."""
    mix = model.mix
    shares, inputs = mix.of_classes(mix.share), mix.of_classes(mix.share * mix.input_tokens)
    prompts = Prompts(shares * (prefill_tokens / (float(inputs.sum()) or 1.0)), inputs / shares)
    return model.timing.mean(kv_tokens, prompts, sequences, prefill_pairs)


def worst_cycle(model: ServingModel, stability: Stability, recovery_rps: float | None) -> WorstCycle:
    """Find the cycle greedy admission can be stuck in, from a closed form where one applies, else from the fluid map.

    Above the rate up to which a backlog drains lies the danger zone (`kvplan.study.recovery`).
    """
    full = saturation(model)
    kind, cycle = mixed_cycle(model, stable=attracts_all(model, stability))
    per_iteration, rps = full.admissions_per_iteration, full.throughput_rps
    if cycle is not None:
        # the cycle admits whole prompts, which is more where the token budget is less than one
        per_iteration = min(cycle.throughput, full.admissions_per_iteration)
        rps = 0.0  # where what is admitted is evicted again before it is done
        if cycle.throughput > 0:
            rps = cycle_throughput_rps(model, cycle) * (per_iteration / cycle.throughput)
    _, sustainable = sustainable_rate(model)
    low = recovery_rps or 0.0
    return WorstCycle(
        kind=kind,
        throughput_per_iteration=per_iteration,
        throughput_rps=rps,
        loss=_loss(per_iteration, full),
        evictions_per_iteration=cycle.evictions if cycle else 0.0,
        period=cycle.period if cycle else None,
        danger_zone_rps=(low, sustainable) if low < sustainable else None,
        classes=tuple(class_cycle(model, i) for i in range(len(model.classes))),
        iterations=cycle.iterations if cycle else None,
        settled=cycle is None or cycle.settled,
    )


def _loss(per_iteration: float, full: Saturation) -> float:
    return max(0.0, 1 - per_iteration / full.admissions_per_iteration)


def closed_form(model: ServingModel, most: int = MOST) -> tuple[CycleKind, Cycle | None] | None:
    """Return the cycle of a mix where a formula gives it, or that there is none; None where only a run can tell.

    Pulses that return more than `most` times to the longest request are not proved to attract.
    """
    mix, held, seats = model.mix, model.mix.held, model.replica.max_num_seqs
    if eviction_is_impossible(model):
        return CycleKind.NONE, None
    if held.falls:  # memory is full at some other stage than the last
        return None
    g = int(np.gcd.reduce(held.stages))
    if g == 1:
        return None
    homogeneous = bool((held.stages == g).all())
    if not homogeneous and held.stages.max() // g > most:
        return None
    if not homogeneous and not pulse_is_stable(held.survival(mix.share), g, survival_error(model)):
        return None
    prompt, capacity = mix.input_tokens.astype(np.float64), float(model.replica.capacity_tokens)
    limit = math.inf if seats is None else float(seats)
    cycle = pulse_cycle(held, mix.read, mix.share, prompt, capacity, limit)
    if g * cycle.throughput * float(survival(held.stages, mix.share)[g - 1 :: g].sum()) > limit:
        return None  # too few run to fill memory
    return CycleKind.HOMOGENEOUS if homogeneous else CycleKind.PULSE, cycle


def mixed_cycle(model: ServingModel, *, stable: bool) -> tuple[CycleKind, Cycle | None]:
    """Return the worst cycle of the mix, None where nothing is lost.

    `stable`: nothing but the eviction-free equilibrium is taken to attract (`attracts_all`).
    """
    known = closed_form(model)
    if known is not None:
        return known
    if stable:
        return CycleKind.NONE, None
    worst = min(simulate_collapsed(model), key=lambda cycle: cycle.throughput)
    if worst.settled and worst.evictions <= _NOTHING * worst.throughput:
        return CycleKind.NONE, None
    return CycleKind.SIMULATED, worst


def attracts_all(model: ServingModel, stability: Stability) -> bool:
    """Tell whether the equilibrium is taken to be all that collapsed states end in."""
    stable, certified, radius = stability.stable, stability.certified, stability.spectral_radius
    return nothing_else_attracts(model.mix.stages, stable=stable, certified=certified, radius=radius)


def simulate_collapsed(model: ServingModel) -> list[Cycle]:
    """Run the fluid map from each of several collapsed states to where it settles.

    The map has no scale of its own: it is run with one token of memory, once for all rates and timings of a mix, and
    what is in flight grows with memory.
    """
    mix, memory, seats = model.mix, model.replica.capacity_tokens, model.replica.max_num_seqs
    part, exponent = np.frexp(mix.share)  # the last digits of a float are not to make it another mix
    share = np.ldexp(part.round(_SHARE_DIGITS), exponent)
    each = np.inf if seats is None else seats / memory
    arrays = mix.input_tokens.tobytes(), share.tobytes()
    return [cycle.of_memory(memory) for cycle in _settled(mix.held, mix.read, *arrays, each)]


@lru_cache(maxsize=256)
def _settled(
    held: StageWeights, read: StageWeights, prompt: bytes, share: bytes, seats: float
) -> list[Cycle]:
    """Attractors for a token of memory; the bytes of arrays, which unlike arrays can be looked up."""
    prompts = np.frombuffer(prompt, np.int64).astype(np.float64)
    system = fluid_map(held, np.frombuffer(share), prompts, 1.0, seats, read=read)
    return [find_attractor(system, start) for start in collapsed_starts(system)]


def class_cycle(model: ServingModel, index: int) -> ClassCycle:
    """Return the closed form for one class alone: what a replica that serves nothing else would lose."""
    alone = replace(model, classes=(model.classes[index],))
    name = model.classes[index].name
    together = len(model.classes)
    short = together * alone.mix.held.stages.max() <= MOST_STAGES
    known = closed_form(alone, MOST // together) if short else None
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
