"""The verdict in words: a sentence with the numbers, and what to do."""

import math

from kvplan.analysis.admission import RateCap
from kvplan.analysis.concurrency import engine_never_evicts, eviction_is_impossible, never_grows
from kvplan.analysis.equilibrium import per_request, running_at_most, saturation
from kvplan.analysis.goodput import Goodput
from kvplan.analysis.overflow import SafetyBuffer
from kvplan.analysis.records import Load
from kvplan.analysis.recovery import Recovery
from kvplan.analysis.stability import UNCERTIFIED, Stability
from kvplan.analysis.worst_window import Peak
from kvplan.model import Plan, ServingModel
from kvplan.report.inputs import sustainable_text
from kvplan.report.prefix_cache import CacheBlock, collapse_summary, overload_summary, users_summary
from kvplan.report.words import Status
from kvplan.units import format_number, format_percent, format_seconds, format_tokens

FEW_REQUESTS = 50  # below so many in memory, whole-request effects dominate the fluid figures (theory §3)
_CAPPED = (
    0.97  # of the sustainable rate, served under the cap by large replicas of random mixes in the median
)
_NO_OBJECTIVES = Goodput()
_NOTHING = "Nothing"  # to be done, begins an action that says so


def summary(
    status: Status,
    binding: str,
    offered: Load,
    recovers: Recovery,
    confirmed_up_to_rps: float | None,
    model: ServingModel,
    cache: CacheBlock | None = None,
) -> str:
    """A sentence with the numbers, and the reason where admissions need a cap."""
    if cache is not None and cache.reusable_ratio is not None:
        if status is Status.OVERLOADED:
            return overload_summary(cache, offered)
        if cache.collapse_possible:
            return collapse_summary(cache, offered)
        if cache.users is not None and status is Status.NEEDS_CAP:
            return users_summary(cache)
    rates = (
        f"{format_number(offered.offered_rps)} requests/s offered, {sustainable_text(offered, 'sustainable')}"
    )
    if status is Status.OVERLOADED:
        excess = offered.offered_rps / offered.sustainable_rps - 1
        return f"{rates}: {format_percent(excess)} more than {binding} allows, whatever the policy."
    fits = f"{rates}, limited by {binding}"
    if status is Status.STABLE:
        return f"{fits}; greedy admission recovers from a collapse by itself."
    if recovers.reason is not None:
        return (
            f"{fits}; but it is not known that greedy admission recovers from a collapse: {recovers.reason}."
        )
    low, cause = recovers.rate_rps, "preemptions can go on for ever"
    if confirmed_up_to_rps is not None and confirmed_up_to_rps < (low or 0.0):
        low, cause = confirmed_up_to_rps, "so it is in a simulation of whole requests"
    elif recovers.fluctuations is not None and recovers.fluctuations.outweigh(model.replica.capacity_tokens):
        cause = f"memory holds only about {format_number(requests_in_memory(model), 2)} requests"
    return f"{fits}; but once collapsed, greedy admission is sure to recover only up to {format_number(low)}: {cause}."


def beside_spectrum(status: Status, local: Stability, drains_up_to_rps: float | None) -> str | None:
    """Why the status is not what the spectrum says; None where it is, or where too much is offered anyway.

    The spectrum is that of the full equilibrium in the fluid model, the status is about the offered rate.
    """
    if status is Status.OVERLOADED or (status is Status.STABLE) == local.stable:
        return None
    drains = "greedy admission is not known to drain"
    if drains_up_to_rps is not None:
        sure = "drains" if status is Status.STABLE else "is sure to drain only"
        drains = f"greedy admission {sure} up to {format_number(drains_up_to_rps)} requests/s"
    return (
        f"The status is {status} all the same: this is about small disturbances of a full replica, the status about "
        f"any backlog at the offered rate, which {drains}."
    )


def requests_in_memory(model: ServingModel) -> float:
    """Mean number of running requests when memory is full, n*·n."""
    return saturation(model).admissions_per_iteration * per_request(model).iterations


def running_beside_spread(model: ServingModel, kv_std_tokens: float | None) -> int:
    """How many requests fit on average beside one standard deviation of KV cache usage."""
    spread = 0.0 if kv_std_tokens is None else kv_std_tokens
    return math.floor(requests_in_memory(model) * (1 - spread / model.replica.memory_tokens))


def actions(
    status: Status,
    model: ServingModel,
    offered: Load,
    local: Stability,
    cap: RateCap,
    plan: Plan,
    buffer: SafetyBuffer,
    varying: Peak | None,
    recovers: Recovery,
    against_collapse: tuple[str, ...] = (),
    *,
    good: Goodput = _NO_OBJECTIVES,
    warm: bool = False,
) -> tuple[str, ...]:
    """What to do, most important first; each fits a line or two of the first screen.

    `warm`: a prefix cache holds less than the buffer is for, which counts every prompt as a stranger's.
    """
    held = None if warm else buffer
    usual = against_collapse or _at_these_rates(status, model, offered, local, cap, plan, held, recovers)
    first = None if varying is None else _at_peak(varying, status, cap, recovers.rate_rps or 0.0)
    urgent = [action for action in (first, _for_objectives(good, offered, status)) if action is not None]
    if not urgent:
        return usual
    return *urgent, *(action for action in usual if not action.startswith(_NOTHING))


def _for_objectives(good: Goodput, offered: Load, status: Status) -> str | None:
    """What to do about an objective that is missed at the offered rate; an overloaded replica misses them anyway."""
    if status is Status.OVERLOADED or good.rate_rps is None or not good.missed_at(offered.offered_rps):
        return None
    if good.rate_rps == 0:
        return f"Loosen {good.binding}, or shorten iterations: even an empty replica misses it."
    replicas = math.ceil(offered.offered_rps / good.rate_rps)
    return (
        f"Bring the load below {format_number(good.rate_rps)} requests/s, above which {good.binding} is missed, or "
        f"serve it with {replicas} replicas (kvplan size tests it)."
    )


def drained_under_cap(offered: Load, recovers: Recovery) -> float | None:
    """Rate that whole requests were mostly seen to be served at where admissions are capped at n*, requests/s."""
    if recovers.capped_rps is None:
        return None
    return min(_CAPPED * offered.sustainable_rps, recovers.capped_rps)


def _at_these_rates(
    status: Status,
    model: ServingModel,
    offered: Load,
    local: Stability,
    cap: RateCap,
    plan: Plan,
    buffer: SafetyBuffer | None,
    recovers: Recovery,
) -> tuple[str, ...]:
    found: list[str] = []
    limit = f"{format_number(min(cap.per_second, offered.sustainable_rps))} requests/s"
    if cap.per_second <= offered.sustainable_rps * (
        1 + 1e-9
    ):  # else an engine limit binds before memory does
        limit += f" ({format_number(cap.per_iteration)} an iteration)"
    if status is Status.OVERLOADED:
        replicas = math.ceil(1 / (offered.load_factor_max or 1.0))
        found.append(
            f"Bring the load below {format_number(offered.sustainable_rps)} requests/s, or serve it with at least "
            f"{replicas} replicas."
        )
        if not eviction_is_impossible(model):
            found.append(
                f"Until then cap admissions at {limit}: the excess waits, and preemptions grow rare."
            )
    elif status is Status.NEEDS_CAP:
        found.append(_cap(model, buffer, limit, drained_under_cap(offered, recovers)))
        if local.stabilising_change is not None:
            found.append(f"Or remove the cause. {local.stabilising_change}.")
        elif not local.certified:
            found.append(f"Stability is {UNCERTIFIED}; the cap is safe either way.")
    elif engine_never_evicts(model):
        found.append(
            f"{_NOTHING}: max_num_seqs requests fit in memory at their longest, so none is ever preempted."
        )
    elif never_grows(model):
        found.append(
            f"{_NOTHING}: no request takes more memory than at its admission, so none is ever preempted."
        )
    elif eviction_is_impossible(model):
        found.append(
            f"{_NOTHING} under greedy admission, which never preempts: max_num_seqs requests at their longest fill "
            "memory exactly. vLLM keeps a block for itself and can: one sequence less or one block more excludes that."
        )
    elif buffer is not None and (buffer.overflow_probability_horizon or 0) > plan.delta:
        found.append(
            f"Expect preemptions now and then: about {format_percent(buffer.overflow_probability_horizon)} for any "
            f"within {format_seconds(plan.horizon_s)}; {format_tokens(buffer.required_kv_tokens)} tokens of memory "
            f"would keep that to {format_percent(plan.delta)}."
        )
    elif local.recovery_iterations is not None:
        time = format_seconds(local.recovery_iterations * saturation(model).iteration_time_s)
        iterations = format_number(local.recovery_iterations, 3)
        found.append(
            f"{_NOTHING}. Even at full load a disturbance decays e-fold in {time}: {iterations} iterations."
        )
    else:
        found.append(
            f"{_NOTHING} at this load. Above {format_number(recovers.rate_rps)} requests/s cap admissions at {limit}."
        )
    if offered.headroom is not None and 0 <= offered.headroom < 0.1:
        found.append(f"Headroom is only {format_percent(offered.headroom)}: a burst fills memory for long.")
    held = requests_in_memory(model)
    if held < FEW_REQUESTS:
        found.append(
            f"Memory holds about {format_number(held, 2)} requests: with so few, whole-request effects add to the loss."
        )
    return tuple(found)


def _cap(model: ServingModel, buffer: SafetyBuffer | None, limit: str, drained_rps: float | None) -> str:
    """What keeps preemptions from going on for ever, and the flag that does it or comes nearest."""
    most = running_at_most(model)
    if most is not None:
        return (
            f"Cap running requests at {format_number(most, 3)}{_flag(model, math.floor(most), ' (')}: beyond that, "
            "iterations grow faster than what they serve, and a cap on admissions alone does not hold the sustainable "
            "rate."
        )
    nearest = running_beside_spread(model, buffer and buffer.kv_std_tokens)
    return (
        f"Cap admissions at {limit}{_flag(model, nearest, ', or nearly so (')}: preemptions then grow rare, and a "
        f"backlog drains up to about {format_number(drained_rps)} requests/s."
    )


def _flag(model: ServingModel, running: int, opening: str) -> str:
    """A cap on running requests as a flag; nothing where there is a stricter one already."""
    if not 1 <= running < (model.replica.max_num_seqs or math.inf):
        return ""
    return f"{opening}vLLM --max-num-seqs {running}; kvplan emit tests it)"


def _at_peak(varying: Peak, status: Status, cap: RateCap, recovers_up_to_rps: float) -> str | None:
    """What to do about the heaviest load of a schedule; None if nothing beyond what is done anyway."""
    period = format_seconds(varying.period_s)
    rate, limit = format_number(varying.offered_rps), format_number(varying.sustainable_rps)
    if varying.offered_rps > varying.sustainable_rps:
        replicas = math.ceil(varying.offered_rps / varying.sustainable_rps)
        return (
            f"At its peak the schedule offers {rate} requests/s where {limit} are sustainable: for "
            f"{format_seconds(varying.overloaded_s)} of every {period} a backlog grows. Serve that with at least "
            f"{replicas} replicas, or cap admissions and let it wait."
        )
    if status is Status.STABLE and varying.same_mix and varying.most_rps > recovers_up_to_rps:
        seconds = varying.course.time_above(recovers_up_to_rps / varying.most_rps * varying.course.peak)
        return (
            f"At its peak the schedule offers {rate} requests/s: for {format_seconds(seconds)} of every {period} more "
            f"than the {format_number(recovers_up_to_rps)} up to which greedy admission is sure to recover. Cap "
            f"admissions at {format_number(min(cap.per_second, varying.sustainable_rps))} requests/s."
        )
    return None
