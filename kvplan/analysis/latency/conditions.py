"""Where no closed form of latencies holds, and why (theory §9)."""

import math

import numpy as np

from kvplan.analysis.concurrency import RESERVED_BLOCKS
from kvplan.analysis.kv_cumulants import alike_in_one, cluster_grid
from kvplan.analysis.kv_tail import refined, saddlepoint_table, saddlepoint_tail
from kvplan.analysis.latency.feedback import Feedback
from kvplan.analysis.latency.gamma import gamma_above
from kvplan.analysis.latency.traffic import Traffic
from kvplan.analysis.overflow import usage_scale
from kvplan.model import Prefill, ServingModel, sum_by

_SELDOM = 0.002  # of arrivals that have to wait for memory, or for a sequence to end
_ALWAYS = 0.99  # what is as good as all
_MOST_PROMPT_WORK = 0.78
MOST_OF_PROMPTS_ALONE = 0.9  # of time, and of a token budget, where requests stay for their prompt only
_MOST_WORK = 0.98  # beyond, excursions last so long that no run would settle
_MOST_CORRECTED = 0.1  # of the fixed time: so much less a request is taken to add at first, and more at last
_FULL = 2e-4  # of iterations with more tokens than the budget
_PROMPTS = 8
_FINENESS = 10  # of the recursion for memory in use
_MOST_CLASSES = 256  # each of which has laws of its own: seconds
_MOST_STAGES = 1 << 17  # beside layers of several kinds, which have a table of what is held at each stage
_NEVER = math.log(_SELDOM / 100)


def not_covered(model: ServingModel) -> str | None:
    """Why a model has no closed form, whatever its load; None where it may have one."""
    if model.schedule is not None and model.schedule.moves_rates:
        return "rates that vary over time are not covered"
    if model.replica.prefill is not Prefill.FUSED:
        return f"prefill {model.replica.prefill.value} is not covered"
    if not model.arrivals.is_poisson:
        return "arrivals that are not Poisson are not covered"
    if len(model.classes) > _MOST_CLASSES:
        return f"more than {_MOST_CLASSES} classes are not covered"
    if model.finds_prefixes:
        return "traffic that finds something in the prefix cache is not covered"
    if model.replica.layout is not None and _longest(model) > _MOST_STAGES:
        return (
            f"requests of more than {_MOST_STAGES:,} iterations, prompts in parts by max_num_batched_tokens, are not "
            "covered beside layers of several kinds"
        )
    return None


def _longest(model: ServingModel) -> int:
    """Iterations of the longest request, those of its prompt included, if it is computed in parts."""
    budget = model.replica.max_num_batched_tokens or math.inf
    return max(
        int((prompt.tokens - 1) // budget) + max(c.decode_tokens) for c in model.classes for prompt in c.kinds
    )


def too_much_work(traffic: Traffic) -> str | None:
    """Why a load is too high for the time that it takes; None where it is not."""
    if traffic.work > _MOST_WORK:
        return f"requests take {_percent(traffic.work)} of all time, above {_percent(_MOST_WORK)}"
    most = _MOST_PROMPT_WORK if traffic.longest > 1 else MOST_OF_PROMPTS_ALONE
    if traffic.prompt_work > most:
        return f"prompts take {_percent(traffic.prompt_work)} of all time, above {_percent(most)}"
    if traffic.stage_s.min() < -_MOST_CORRECTED * traffic.fixed_s:  # as if iterations read less than nothing
        return "layers that read less context than there is are not covered where a token of it takes so long (d1)"
    return None


def waits(model: ServingModel, traffic: Traffic, feedback: Feedback) -> str | None:
    """Why requests do not run at once where they stand; None where they do."""
    most = f"above {_percent(_SELDOM)}"
    if (share := _no_memory(model)) > _SELDOM:
        return (
            "memory is full"
            if share > _ALWAYS
            else f"{_percent(share)} of requests have to wait for memory, {most}"
        )
    if (limit := model.replica.max_num_seqs) is not None:
        running, ratio = traffic.in_flight, feedback.variance_ratio
        # Poisson in steps of the ratio: at least so many where a gamma variable of that shape is below the mean
        if (share := 1 - gamma_above(limit / ratio, running / limit)) > _SELDOM:
            return f"max_num_seqs is reached {_percent(share)} of the time, {most}"
    return None


def budget_binds(model: ServingModel, traffic: Traffic) -> bool:
    """Whether prompts are computed in parts, or wait, because of max_num_batched_tokens.

    Examples
    --------
    >>> from kvplan.analysis.latency.traffic import traffic_of
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> def binds(budget: int) -> bool:
    ...     replica = Replica(10**6, max_num_batched_tokens=budget)
    ...     model = ServingModel((RequestClass("a", 1000, (100,), (1.0,), 1.0),), Timing(0.01, d2=1e-5), replica)
    ...     return budget_binds(model, traffic_of(model))
    >>> binds(1000), binds(8192)
    (True, False)
    """
    budget = model.replica.max_num_batched_tokens
    if budget is None:
        return False
    tau, rate, prompt = traffic.iteration_s, traffic.rate_rps, traffic.prompt_tokens
    of_one = 1 if model.drafts is None else 1 + model.drafts.tokens
    decoding = tau * float(rate @ (traffic.stages - 1)) * of_one
    room = budget - decoding
    if float(prompt.max()) > room - 3 * math.sqrt(decoding):
        return True
    mean, square = tau * float(rate @ prompt), tau * float(rate @ prompt**2)
    if mean < _FULL * room:  # then it is so by Markov's inequality
        return False
    return gamma_above(mean**2 / square, room / mean) > _FULL


def _no_memory(model: ServingModel) -> float:
    """Share of requests whose prompt finds no room for its KV."""
    mix, replica = model.mix, model.replica
    grid, at = cluster_grid(model, _FINENESS), usage_scale(model)
    lattice, page = mix.held.lattice_tokens, replica.block_tokens
    prompts = mix.input_tokens.astype(np.float64)
    alike = alike_in_one(prompts, mix.share, _PROMPTS)
    share = sum_by(alike, mix.share)
    prompt = replica.held_first(np.ceil(sum_by(alike, mix.share * prompts) / share).astype(np.int64))
    level = ((replica.capacity_tokens - RESERVED_BLOCKS * page - prompt) // lattice + 0.5) * lattice
    if at.std_without_feedback < 1e-140:
        return float(share @ (level < at.mean))
    table = saddlepoint_table(grid, at, with_left=bool((level < at.mean).any()))
    if not table.theta.size or (not table.theta.any() and level.min() < at.mean):  # floats do not reach
        return 1.0
    # Chernoff's bound of what lies beyond the level, seen from the mean
    most = (table.value[0] - table.theta * level[:, None]).min(axis=1)

    tails = (level < at.mean).astype(np.float64)
    for i in np.flatnonzero((most > _NEVER) & (level > 0)).tolist():
        table = refined(table, level[i])  # for the levels that follow, too: they are close
        tails[i] = math.exp(saddlepoint_tail(table, level[i], ()).log_probability)
    return float(share @ tails)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
