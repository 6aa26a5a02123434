"""Figures that the formulas of the report's keys name and the report does not hold."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kvplan.analysis.cold_cache import with_cold_cache
from kvplan.analysis.concurrency import computed_blocks, longest_blocks
from kvplan.analysis.equilibrium import (
    equilibrium,
    load,
    per_request,
    prompts_of,
    rate_with_more,
    saturation,
    sustainable_rate,
    sustainable_rates,
)
from kvplan.analysis.fleet import one_replica
from kvplan.analysis.fluid_map import Cycle
from kvplan.analysis.overflow import flow_control
from kvplan.analysis.records import Sensitivity
from kvplan.analysis.wait import class_means
from kvplan.analysis.worst_cycle import ClassCycle, CycleKind, WorstCycle, closed_form
from kvplan.model import Plan, Prefill, ServingModel
from kvplan.report.assembly import Report, plain
from kvplan.report.cache_figures import cache_figures
from kvplan.report.inputs import source_text
from kvplan.report.keys import CONTRACT, law_text
from kvplan.report.keys.evidence import DIGITS, Figure, listed
from kvplan.units import format_number

Figures = Mapping[str, Figure]
_COLD_BLOCKS = ("load", "equilibrium", "saturation")  # that say another thing of a warm cache


@dataclass(frozen=True)
class Inputs:
    """What formulas name, by name.

    Attributes
    ----------
    model
        Figures of the model as a whole.
    entries
        For lists of the report, by their key, the figures of each entry.
    is_linear
        Whether the iteration-time law is.
    varying
        Whether rates vary over time: figures of thresholds are then not those that the formulas name.
    warm
        Figures of a prefix cache that finds something, in place of those in `model`, for blocks that are about it;
        None where there is none. All else is then of a replica that finds what is always in use and nothing more.
    cold
        Blocks of the report of that replica, by name, in place of those of the warm one.
    """

    model: Figures
    entries: Mapping[str, tuple[Figures, ...]]
    is_linear: bool = True
    varying: bool = False
    warm: Figures | None = None
    cold: Mapping[str, Any] = field(default_factory=dict)


def gather(model: ServingModel, plan: Plan, report: Report) -> Inputs:
    """The figures of a model that formulas name, beside those of its report.

    Examples
    --------
    >>> from kvplan.model import Prefill, Replica, RequestClass, Timing
    >>> from kvplan.report.assembly import analyze
    >>> one = RequestClass("a", 2, (3,), (1.0,), 0.9)
    >>> model = ServingModel((one,), Timing(1.0), Replica(12, prefill=Prefill.DISAGGREGATED))
    >>> given = gather(model, Plan(), analyze(model, name="n", sha256=""))
    >>> given.model["M"].value, given.model["S_b"].value, given.entries["wait.classes"][0]["rate"].value
    (12, 12.0, 0.9)
    """
    model = one_replica(model)
    whole = model
    warm: Figures | None = None
    cold: Mapping[str, Any] = {}
    if model.finds_prefixes:
        warm = {**_of_mix(model), **_of_replica(model), **cache_figures(model, report)}
        model = with_cold_cache(model)
        report = report._replace(
            load=load(model), equilibrium=equilibrium(model), saturation=saturation(model)
        )
        cold = {name: plain(getattr(report, name), name) for name in _COLD_BLOCKS}
    classes = tuple(_of_class(model, i, report) for i in range(len(model.classes)))
    entries = {record.list_key: classes for record in CONTRACT.values() if record.is_by_class}
    entries["nested_wait.segments"] = tuple(_of_segments(report))
    figures = {
        **_of_mix(model),
        **_of_replica(model),
        **_of_provenance(model),
        **dict(_after_changes(whole)),
        "v": _victim(whole),
        **_of_cycle(model, report),
        **_of_plan(model, plan, report),
        **({} if model.timing.is_linear else _of_law(model, report)),
    }
    return Inputs(
        figures, entries, model.timing.is_linear, varying=model.schedule is not None, warm=warm, cold=cold
    )


def _of_mix(model: ServingModel) -> dict[str, Figure]:
    mix, cost = model.mix, per_request(model)
    shorter = mix.stages == mix.stages.min()
    two = bool((shorter | (mix.stages == mix.stages.max())).all() and not shorter.all())
    held, lengths = model.total_rate_rps * cost.held, [str(n) for n in np.unique(mix.stages)]
    footprint = "mean footprint of a request, KV token-iterations"
    stays = "mean iterations that a request stays"
    return {
        "A": Figure("A", "KV token-iterations of memory demanded per second, Σλ·S̄", held),
        "rate": Figure("Σλ", "arrivals of all classes, requests/s", model.total_rate_rps),
        "S": Figure("S̄", f"{footprint}, as time counts it", cost.read),
        "S_b": Figure("S̄", f"{footprint}, in whole pages", cost.held),
        "s": Figure(
            "s̄",
            "mean prefill work of a fresh request, tokens; 0 where prefill is disaggregated",
            cost.prefill_tokens,
        ),
        "n": Figure("n̄", stays, cost.iterations),
        "counted": Figure(
            "n̄",
            stays if model.drafts is None else f"{stays}, as d3 counts them: a prompt verifies no drafts",
            float(mix.mean(mix.sequences)),
        ),
        "a": Figure(
            "ā",
            "mean KV tokens held at the first stage, in whole pages",
            float(mix.share @ mix.held.at_start),
        ),
        "c": Figure(
            "c̄",
            f"mean time that a request adds to iterations in all, s: {law_text.work('S̄', 's̄', 'n̄')}",
            cost.work_s,
        ),
        "t": Figure("t̄", "mean tokens computed for a request", cost.computed_tokens),
        "d": Figure("d̄", "mean decode length, tokens", cost.decode_tokens),
        **({} if model.timing.is_linear else {"steepest": _steepest(cost.steepest_s)}),
        "L": Figure("L", "iterations of the longest request", int(mix.stages.max())),
        "p": Figure(
            "p", "share of the shorter decode length", float(mix.share[shorter].sum()) if two else None
        ),
        "lengths": Figure("n_i", "iterations by class and decode length", listed(lengths)),
    }


def _steepest(work_s: float) -> Figure:
    return Figure("", "mean time that a request adds to iterations beyond the knee in all, s", work_s)


def _victim(model: ServingModel) -> Figure:
    tokens = max(model.mix.mean(model.mix.input_tokens), 1.0)
    return Figure("v", "mean prompt tokens of a victim of preemption", tokens)


def _of_replica(model: ServingModel) -> dict[str, Figure]:
    timing, replica = model.timing, model.replica
    limits = ", ".join(f"{k} {format_number(v, DIGITS)}" for k, v in sustainable_rates(model).items())
    inline = 1 if replica.prefill is Prefill.INLINE else 0
    return {
        **{
            name: Figure(name, meaning, getattr(timing, name)) for name, meaning in law_text.CONSTANTS.items()
        },
        "M": Figure("M", "KV tokens that memory holds, in whole pages", replica.capacity_tokens),
        "B_max": Figure("max_num_seqs", "requests that the engine runs at once", replica.max_num_seqs),
        "T_b": Figure(
            "max_num_batched_tokens",
            "tokens that the engine computes in an iteration",
            replica.max_num_batched_tokens,
        ),
        "limits": Figure("", "largest total rate under each limit, requests/s", limits),
        "blocks": Figure("⌊M/b⌋", "pages of memory", replica.memory_tokens // replica.block_tokens),
        "longest_blocks": Figure("⌈max(s+d)/b⌉", "pages of the longest request", longest_blocks(model)),
        "computed_blocks": Figure(
            "⌈(max(s+d)−1)/b⌉", "pages of it that vLLM computes", computed_blocks(model)
        ),
        "overhead": Figure(
            "request_overhead", "time of a request outside the engine, s", model.request_overhead_s
        ),
        "shift": Figure("", "1 where prefill is inline, else 0", inline),
    }


def _of_provenance(model: ServingModel) -> dict[str, Figure]:
    least, most = model.measured.band or (None, None)
    took = "that iterations took against what the timing says"
    origins = {name: getattr(model.provenance, name) for name in ("gpu", "timing", "workload")}
    return {
        "band_least": Figure("band[0]", f"least {took}", least),
        "band_most": Figure("band[1]", f"most {took}", most),
        **{
            f"origin_{name}": Figure("", "the source, as [provenance] has it", source_text(origin) or None)
            for name, origin in origins.items()
        },
    }


def _after_changes(model: ServingModel) -> Iterator[tuple[str, Figure]]:
    """The sustainable rate with a tenth more of each parameter that `load.sensitivity` is about."""
    for name in Sensitivity._fields:
        meaning = f"sustainable rate with a tenth more {name}, requests/s"
        yield f"after_{name}", Figure("", meaning, rate_with_more(model, name))


def _of_cycle(model: ServingModel, report: Report) -> dict[str, Figure]:
    cycle = report.worst_cycle
    return {
        **_of_pulse(model),
        "tau_w": Figure(
            "τ_w",
            "mean iteration time of the cycle, s",
            cycle.throughput_per_iteration / cycle.throughput_rps if cycle.throughput_rps else None,
        ),
    }


def _of_pulse(model: ServingModel) -> dict[str, Figure]:
    """Figures of the cycle of a closed form; without values where there is none."""
    cycle, mix = _closed_cycle(model), model.mix
    g = int(np.gcd.reduce(mix.stages))
    weight = mix.held.survival(mix.share)
    prompts = older = None
    if cycle is not None:
        prompts = cycle.prefill_tokens(mix)
        older = g * cycle.throughput * float(weight[g::g].sum())
    return {
        "g": Figure("g", "greatest common divisor of the iteration counts", g),
        "W": Figure(
            "ΣW_(g−1+jg)",
            "KV tokens that pulses of one request hold at their last",
            float(weight[g - 1 :: g].sum()),
        ),
        "K_old": Figure("K_old", "KV tokens that earlier pulses hold when one is admitted", older),
        "K_w": Figure(
            "K",
            "mean context read in an iteration of the cycle, tokens",
            cycle.read_tokens if cycle else None,
        ),
        "P_w": Figure(
            "P",
            "mean prefill tokens computed in an iteration of the cycle, recomputed ones included",
            prompts,
        ),
        "B_w": Figure("B", "mean running requests on the cycle", cycle.in_flight if cycle else None),
    }


def _closed_cycle(model: ServingModel) -> Cycle | None:
    found = closed_form(model)
    return found[1] if found is not None else None


def _of_law(model: ServingModel, report: Report) -> dict[str, Figure]:
    """What takes the place of d0 where the law is not linear."""
    cost, replica = per_request(model), model.replica
    tau, thresholds = report.equilibrium.iteration_time_s, report.wait.thresholds
    binding, sustainable = sustainable_rate(model)
    limits = {
        "max_num_seqs": (replica.max_num_seqs, cost.iterations),
        "max_num_batched_tokens": (replica.max_num_batched_tokens, cost.computed_tokens),
    }
    limit, need = limits.get(binding, (replica.memory_tokens, cost.held))
    at_limit = (limit or 0) / need

    def rest(admissions: float) -> float:
        prompts = prompts_of(model.mix, replica, admissions)
        return float(model.timing.fixed(prompts, admissions * cost.iterations))

    is_met = math.isclose(at_limit / (rest(at_limit) + at_limit * cost.work_s), sustainable, rel_tol=1e-9)
    waiting = (
        None if thresholds is None else class_means(model).fixed_s(np.array(thresholds, dtype=np.float64))
    )
    states = {
        "F_equilibrium": None if tau is None else rest(model.total_rate_rps * tau),
        "F_saturation": rest(report.saturation.admissions_per_iteration),
        "F_limit": rest(at_limit),
        "F_wait": waiting,
        "F_cycle": _rest_of_cycle(model, report.worst_cycle, cost.work_s),
    }
    return {
        **{name: Figure("F", law_text.REST, value) for name, value in states.items()},
        "x": Figure("x", "admissions per iteration at which the limit is met", at_limit if is_met else None),
        "proportional": Figure(
            "Σλ·c̄", "time added to iterations per second, in proportion", model.total_rate_rps * cost.work_s
        ),
    }


def _rest_of_cycle(model: ServingModel, cycle: WorstCycle | ClassCycle, work_s: float) -> float | None:
    """The mean time of an iteration of a cycle, less what adds up."""
    completed, rate = cycle.throughput_per_iteration, cycle.throughput_rps
    if completed is None or rate is None:
        return None
    if cycle.kind is CycleKind.NONE:
        return completed / rate - completed * work_s
    found = _closed_cycle(model)
    if found is None:
        return None
    prompts = found.prefill_tokens(model.mix)
    return completed / rate - float(model.timing.linear(found.read_tokens, prompts, found.in_flight))


def _of_plan(model: ServingModel, plan: Plan, report: Report) -> dict[str, Figure]:
    nested, tails = report.nested_wait, report.safety_buffer
    inputs, several = nested.input_bound, len(nested.segments) > 1
    tau = report.equilibrium.iteration_time_s
    budgets = [c.integer_budget for c in report.rate_cap.classes if c.integer_budget is not None]
    bound = None if tau is None else flow_control(model, max(1.0, plan.horizon_s / tau), budgets or None)
    return {
        "delta": Figure("δ", "accepted probability of any overflow within the horizon", plan.delta),
        "horizon": Figure("T", "horizon, s", plan.horizon_s),
        "N": Figure("N", "iterations within the horizon, ⌈T/ΔT⌉", nested.iterations),
        "halves": Figure(
            "h", "2 where queues and inputs that differ share δ, else 1", 2 if inputs and several else 1
        ),
        "theta_inputs": Figure(
            "θ", "at which the bound for inputs that differ is least, per token", inputs and inputs.theta
        ),
        "log_transform": Figure(
            "G", "Σ R_k·ln E_k e^(θ(w − w̄)) at that θ, w in whole pages", inputs and inputs.log_transform
        ),
        "boundaries": Figure("m − 1", "boundaries between segments", max(len(nested.segments) - 1, 1)),
        "dt_nested": Figure("ΔT", "iteration time with every segment filled, s", nested.iteration_time_s),
        "smooth_tail": Figure(
            "", "P(K > M) by the saddlepoint, with feedback", tails.saddlepoint_probability
        ),
        "exact_tail": Figure(
            "", "P(K > M) by the exact law at constant iteration time", tails.exact_pmf_probability
        ),
        "passage_rate": Figure(
            "rate", "passages of KV cache usage over memory, per iteration spent below it", tails.passage_rate
        ),
        "horizon_iterations": Figure(
            "T", "iterations within the horizon, at least one", bound and bound.iterations
        ),
        "budget_mean": Figure("", "mean KV tokens under the budgets", bound and bound.mean_tokens),
        "largest_budget": Figure("A", "largest budget", bound and bound.largest_budget),
        "longest_side": Figure("C", "longest input or decode length, tokens", bound and bound.longest),
    }


def _of_class(model: ServingModel, index: int, report: Report) -> Figures:
    mix, means, one = model.mix, class_means(model), model.classes[index]
    cycle, tau = report.worst_cycle.classes[index], report.equilibrium.iteration_time_s
    alone = replace(model, classes=(one,))
    rest = _rest_of_cycle(alone, cycle, float(means.work_s[index]))
    rate, mine = one.rate_rps, mix.class_index == index
    first = float(np.average(mix.held.at_start[mine], weights=mix.share[mine]))
    return {
        "rate": Figure("λ_i", "arrivals of the class, requests/s", rate),
        "share": Figure("p_i", "share of the class in the total rate", rate / model.total_rate_rps),
        "arrivals": Figure(
            "λ_i·τ*", "mean arrivals of the class per iteration", None if tau is None else rate * tau
        ),
        "n": Figure(
            "n̄_i", "mean iterations that a request of the class stays", float(means.iterations[index])
        ),
        "S_b": Figure(
            "S_i",
            "mean footprint of the class, KV token-iterations, in whole pages",
            float(means.held[index]),
        ),
        "a": Figure("a_i", "mean KV tokens held at the first stage, in whole pages", first),
        "c": Figure(
            "c_i",
            f"time that a request of the class adds to iterations in all, s: {law_text.work('S', 's', 'n')}",
            float(means.work_s[index]),
        ),
        **({} if model.timing.is_linear else {"F_cycle": Figure("F", law_text.REST, rest)}),
        **_of_pulse(alone),
        "batch_wait": Figure(
            "w", "mean wait of a full batch for those before it, s", _batch_wait_s(report, index)
        ),
        "dispersion": Figure(
            "I_i",
            "variance over mean of the arrivals of the class in long times, 1 at least for several classes",
            report.wait.classes[index].dispersion,
        ),
    }


def _batch_wait_s(report: Report, index: int) -> float | None:
    found, rate = report.wait.classes[index], report.load.offered_rps
    if found.mean_wait_bound_s is None or found.threshold is None or len(report.wait.classes) > 1:
        return None
    return found.mean_wait_bound_s - (found.threshold - 1) / (2 * rate)


def _of_segments(report: Report) -> Iterator[Figures]:
    for segment in report.nested_wait.segments:
        tokens = segment.kv_tokens / segment.threshold
        excess = 0 if segment.parked_bound is None else segment.parked_bound - segment.threshold
        yield {
            "tokens": Figure("", "KV tokens of the segment's stages per unit of its threshold", tokens),
            "w": Figure(
                "w_k",
                "KV tokens of a request that waits at the segment's start; 0 for the first",
                segment.parked_kv_tokens,
            ),
            "excess": Figure("c_k − n_k", "requests by which the queue exceeds the threshold", excess),
        }
