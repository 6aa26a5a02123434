"""Where the numbers of a report come from, and what was assumed or not modelled."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from kvplan.analysis.concurrency import eviction_is_impossible, never_grows
from kvplan.analysis.dispersion import excess_dispersion, stay_s
from kvplan.analysis.equilibrium import saturation
from kvplan.analysis.overflow import clusters_held, has_doubtful_tail
from kvplan.analysis.records import Equilibrium
from kvplan.analysis.stability import UNCERTIFIED
from kvplan.analysis.worst_cycle import MOST_STAGES, CycleKind, WorstCycle
from kvplan.model import Prefill, ServingModel
from kvplan.report.figures import Figures
from kvplan.report.fleet import fleet_notes
from kvplan.report.inputs import band_notes, extrapolations, origins_note, states
from kvplan.report.prefix_cache import cache_notes
from kvplan.report.verdict import FEW_REQUESTS, requests_in_memory
from kvplan.report.words import Basis
from kvplan.study.operating_point import OperatingPoint
from kvplan.units import format_number, format_seconds, format_tokens

_LITTLE = 0.02  # by which a formula may be off runs
_FEW_CLUSTERS = 2  # in memory at a time; below, the law of their usage was never near that simulated


class Source(NamedTuple):
    """Where the numbers of a block come from."""

    source: str
    kind: Basis


def sources(model: ServingModel, cycle: WorstCycle) -> dict[str, Source]:
    """Say where the numbers of each block come from, by its name."""
    replica, timing = model.replica, model.timing
    limited = replica.max_num_seqs is not None or replica.max_num_batched_tokens is not None
    paged = replica.block_tokens > 1
    beyond_papers = timing.goes_beyond_papers or paged or limited or not model.is_plain
    basis = Basis.COMPUTED if beyond_papers else Basis.THEOREM
    terms = ["d2, d3" if timing.is_linear else "d2 to d6"]
    terms += ["drafts"] * (model.drafts is not None) + ["layers of several kinds"] * (
        replica.layout is not None
    )
    extension = f"; {', '.join(terms)}, pages and engine limits: new" if beyond_papers else ""
    equilibrium_source = Source(f"WAIT-s eq. 3-6, WAIT Prop. 1, 2{extension}", basis)
    cycle_source = {
        CycleKind.HOMOGENEOUS: Source(f"SIC eq. 25, worst cycle of one decode length{extension}", basis),
        CycleKind.PULSE: Source("new: pulse cycle, its local stability proved", Basis.COMPUTED),
        CycleKind.SIMULATED: Source(
            "fluid map iterated (SIC 2.2, saturated; what is preempted rejoins first: new)", Basis.SIMULATED
        ),
        CycleKind.NONE: (
            Source(
                "greedy admission never preempts: no request grows, or max_num_seqs always fit", Basis.THEOREM
            )
            if eviction_is_impossible(model)
            else Source(
                "SIC eq. 10, or no collapsed start of the fluid map goes on preempting; observed, not proved",
                Basis.ASSUMPTION,
            )
        ),
    }[cycle.kind]
    waits = "queue bounds for several classes" if len(model.classes) > 1 else "exact queue of one class"
    windows = ""
    if model.schedule is not None:
        waits, windows = "queue bounds", "; worst window of rates that vary (WAIT 7.1, WAIT-s eq. 10)"
    cached = (
        Source("new: states of a cache of least recently used pages; the guaranteed rate", Basis.COMPUTED)
        if model.finds_prefixes
        else equilibrium_source
    )
    return {
        "verdict": Source(
            "the load against what a saturated replica serves from the worst of several collapsed states: new",
            Basis.SIMULATED,
        ),
        "load": cached,
        "equilibrium": cached,
        "saturation": cached,
        "worst_cycle": cycle_source,
        "stability": (
            Source(
                "Eneström-Kakeya: no request grows, so no root is outside the unit circle; its radius is computed",
                Basis.THEOREM,
            )
            if never_grows(model) and model.drafts is None
            else Source(
                "SIC eq. 9-13, Theorem 3; root count certified in floating point (new)", Basis.COMPUTED
            )
        ),
        "rate_cap": Source(f"SIC 5.1; FC Prop. 3.2, Theorem 3.3 for integer budgets{extension}", basis),
        "wait": Source(
            f"WAIT-s eq. 7, Theorem 4.1{windows}; smallest and largest whole thresholds, {waits}: new",
            Basis.COMPUTED,
        ),
        "nested_wait": Source(
            f"WAIT-s Theorem 5.1, D.2{windows}; tokens per segment corrected (the printed forms are wrong), "
            "whole pages, inputs that differ: new",
            Basis.COMPUTED,
        ),
        "safety_buffer": Source(
            "new: Poisson cluster law of KV cache usage, saddlepoint tail; theorem_bound: FC Theorem 3.6",
            Basis.COMPUTED,
        ),
        "latency": Source(
            "runs at the offered rate after a warm-up, intervals by batches of them: new", Basis.SIMULATED
        ),
        "goodput": Source(
            "runs at one rate after another, objectives decided by shares: new", Basis.SIMULATED
        ),
        "advice": Source(
            "tried by simulation on this profile, remeasured on fresh requests: new", Basis.SIMULATED
        ),
        "cost": Source("arithmetic; the price is the profile's", Basis.COMPUTED),
        "prefix_cache": Source(
            "new: Che's approximation, and iteration times that depend on what is found; preemption_recovered_share: "
            "estimated",
            Basis.COMPUTED,
        ),
        "speculative": Source("new: renewal of accepted tokens; the rates are the profile's", Basis.COMPUTED),
        "kv_layout": Source(
            "new: groups of layers on one pool of blocks, as vLLM makes them; the layers are the profile's",
            Basis.COMPUTED,
        ),
        "fleet": Source(
            "new: limits of each kind of replica, fluid; times: runs at the offered rate",
            Basis.COMPUTED if model.fleet is None else Basis.ESTIMATED,
        ),
    }


def notes(figures: Figures) -> tuple[str, ...]:
    """Say what was assumed, what is not modelled, and what to beware of."""
    fleet = figures.whole.fleet
    return (
        *_of_profile(figures),
        *([] if fleet is not None else beside_runs(figures.equilibrium, figures.operating_point)),
        *_of_replica(figures.cold),
        *_of_greedy(figures),
        *_of_thresholds(figures),
        *([] if figures.safety_buffer.required_kv_tokens is None else _of_buffer(figures)),
        *_of_waits(figures),
        *_of_schedule(figures),
        *([] if fleet is None else fleet_notes(fleet)),
    )


def _of_profile(figures: Figures) -> Iterator[str]:
    model, cache = figures.model, figures.prefix_cache
    yield from origins_note(model.provenance)
    yield from extrapolations(model.measured, tuple(states(model)))
    yield from band_notes(model, figures.load, figures.recovery.rate_rps or 0.0)
    yield from (f"{name} has a rate of 0 and is left out." for name in model.left_out[:3])
    most = model.engine and model.engine.max_model_len
    if longer := [c.name for c in model.classes if most and c.max_tokens > most]:
        refused = f"The engine refuses requests of more than max_model_len, {most:,} tokens, which count here"
        yield f"{refused}: some of {', '.join(longer[:3])}{', …' * (len(longer) > 3)}."
    yield (
        "Rates, lengths, timing and capacity are taken from the profile as they stand (assumption); the formulas are "
        "fluid limits of greedy admission on one replica."
    )
    yield (
        f"Not modelled: {'' if model.drafts else 'speculative decoding, '}swapping, pipeline bubbles, routing between "
        "replicas."
    )
    if cache is not None:
        yield from cache_notes(cache, model)
    elif model.has_common_prefixes:
        yield "What requests have in common counts for nothing here: prefix_caching = false."


def beside_runs(state: Equilibrium, point: OperatingPoint) -> Iterator[str]:
    """Say where the formula of the iteration time is outside the interval of runs, and more than a little off."""
    formula, seen = state.iteration_time_s, point.iteration_s
    if formula is None or seen is None or math.isinf(seen.high):
        return
    is_steady = point.latency.status not in ("growing", "undecided")
    is_off = not seen.low <= formula <= seen.high and abs(formula / seen.value - 1) > _LITTLE
    if is_steady and is_off:
        low, high = format_seconds(seen.low), format_seconds(seen.high)
        yield (
            f"equilibrium: an iteration takes {format_seconds(formula)} by the formula, which knows no fluctuations, "
            f"and {format_seconds(seen.value)} ({low} to {high}) in runs."
        )


def _of_replica(model: ServingModel) -> Iterator[str]:
    replica, held = model.replica, requests_in_memory(model)
    if held < FEW_REQUESTS:
        yield (
            f"Memory holds about {format_number(held, 2)} requests of this mix. Below {FEW_REQUESTS}, preempting and "
            "recomputing whole requests costs more than the fluid figures say."
        )
    if replica.ranks > 1:
        yield (
            f"Figures are of all {replica.ranks} data-parallel ranks together. Formulas share memory, limits and load "
            "evenly among them, so that computed rates are upper bounds; in simulations each has its own, and in every "
            "iteration all wait for the slowest."
        )
    if model.drafts is not None:
        yield (
            f"{model.drafts.tokens} drafts in each iteration but that of a prompt: d0 and d3 count drafting and "
            "verifying, and a request holds the slots of drafts. ITL is of iterations, which emit a token or more. "
            "Not modelled beside drafts: prefix caching, Nested WAIT."
        )
    if replica.layout is not None:
        yield (
            "Layers keep KV of several kinds: tokens of memory are those of blocks, of all groups of layers together; "
            "a prompt is held whole in the iteration that computes it. Not modelled beside them: prefix caching, "
            "Nested WAIT."
        )
    elif replica.block_tokens > 1:
        yield (
            f"Pages of {replica.block_tokens} tokens: memory counts whole pages, time the tokens read. An engine may "
            "keep a page to itself."
        )
    if model.mix.partial.exist:
        budget = format_tokens(replica.of_rank().max_num_batched_tokens)
        yield (
            f"Prompts longer than the token budget of {budget} have a seat and "
            "memory over several iterations, and count so in load (not what a prefix cache finds), equilibrium, "
            "saturation, rate_cap, wait and safety_buffer; stability, worst_cycle and nested_wait take prompts whole. "
            "Engines compute one prompt at a time: near the limit of the budget memory in use varies less than said."
        )
    if replica.prefill is Prefill.DISAGGREGATED and model.timing.minds_prompts:
        yield "Prefill is ready-made (disaggregated): d2 counts only for prompts recomputed after a preemption."
    if model.timing.is_convex:
        yield (
            "d5: iteration times count prompts as they come, one by one, but not the swings that long iterations cause "
            "themselves: in simulations they last 0.3% longer in the median and 3% in one of ten, most where few long "
            "prompts fill the time."
        )


def _of_greedy(figures: Figures) -> Iterator[str]:
    model, cycle, local = figures.cold, figures.worst_cycle, figures.stability
    if cycle.iterations is not None:
        ended = "settled" if cycle.settled else "not settled: means of the last half"
        yield (
            f"The worst cycle is the least of several that the fluid map ends on: {format_tokens(cycle.iterations)} "
            f"iterations, {ended}."
        )
    if any(c.kind is None for c in cycle.classes):
        is_long = len(model.classes) * model.mix.held.stages.max() > MOST_STAGES
        yield (
            "worst_cycle.classes: null where a class has several decode lengths and no closed form"
            + (", or is one of many that stay very long." if is_long else ".")
        )
    if not local.certified:
        yield f"Stability is uncertified: {UNCERTIFIED}."
    elif not local.radius_certified:
        yield "The verdict on stability is proved; the value of the spectral radius is not certified."


def _of_thresholds(figures: Figures) -> Iterator[str]:
    model = figures.cold
    several = any(len(c.decode_tokens) > 1 for c in model.classes)
    if several or model.drafts is not None:
        what = "classes of several decode lengths" if several else "numbers of iterations"
        yield f"wait: {what} enter with their means; so far, memory and fit hold in the mean."
    if figures.wait.smallest is False:
        yield "wait: so near a work rate of 1 the thresholds keep up, but are not proved the smallest."
    if saturation(model).admissions_per_iteration < len(model.classes):
        blocks, suit = ("wait, nested_wait", "both suit") if model.is_plain else ("wait", "it suits")
        yield (
            f"{blocks}: whole thresholds keep at least one request at every stage, which is far more than this traffic "
            f"has in flight; {suit} many small requests."
        )


def _of_buffer(figures: Figures) -> Iterator[str]:
    model, plan, buffer = figures.cold, figures.plan, figures.safety_buffer
    horizon, delta = format_seconds(plan.horizon_s), format_number(plan.delta)
    clusters = model.arrivals.cv > 1
    if requests_in_memory(model) < FEW_REQUESTS:
        yield (
            "safety_buffer: with so few requests in memory, probabilities below 0.001 can be off by a factor of two."
        )
    if model.is_plain:
        yield (
            "nested_wait: however requests arrive, if their lengths are independent of each other, an overflow within "
            f"{horizon} has probability {delta} at most."
        )
    yield (
        f"safety_buffer: {_clusters(model) if clusters else 'Poisson arrivals'}. The probability of any overflow "
        f"within {horizon}, and the memory that keeps it at {delta}, are estimates: simulations have 0.3 to 1.7 times "
        "the probability. The bound at most adds up iterations, and is up to 100 times what simulations have."
        + (" theorem_bound is for independent arrivals." if clusters else "")
    )
    if buffer.watermark_fraction is None:
        yield (
            "safety_buffer.watermark_fraction: null, since the buffer would be more than the memory: "
            f"{format_tokens(buffer.required_kv_tokens)} tokens are required where there are "
            f"{format_tokens(model.replica.memory_tokens)}."
        )
    if has_doubtful_tail(model) or (clusters and clusters_held(model) < _FEW_CLUSTERS):
        yield (
            "safety_buffer: few prompts or clusters of them at a time bring what is in memory: probabilities of "
            "overflow can be several times too small; kvplan simulate shows them."
        )


def _clusters(model: ServingModel) -> str:
    index = format_number(1 + excess_dispersion(model), 3)
    whose = " (its trace clusters in its own way)" if model.arrivals.trace is not None else ""
    return (
        f"gamma arrivals of cv {format_number(model.arrivals.cv, 3)}{whose}, whose counts over a stay of "
        f"{format_seconds(stay_s(model))} have {index} times the variance of Poisson ones"
    )


def _of_waits(figures: Figures) -> Iterator[str]:
    model, cap, waiting = figures.cold, figures.rate_cap, figures.wait
    waits = [(c.name, c.mean_wait_s) for c in cap.classes if c.mean_wait_s is not None]
    if waits:
        name, longest = max(waits, key=lambda wait: wait[1])
        searched = "too many budgets to search them all, these are near-optimal"
        near = "" if cap.budgets_are_optimal else f"; {searched}"
        yield (
            f"Integer budgets: a mean wait for admission of at most {format_seconds(longest)} (class {name}), exact "
            f"for Poisson arrivals and a constant iteration time{near}."
        )
    if waiting.feasible and any(c.dispersion is None for c in waiting.classes):
        yield (
            "wait: no waits and latencies, since arrivals replay a trace or follow the answers of sessions; "
            "kvplan simulate --policy wait has them."
        )
    elif waiting.feasible and not model.arrivals.is_poisson:
        law = "exact for a class alone" if len(model.classes) == 1 else "bounds, held by all simulations made"
        yield f"wait: waits and latencies are those of gamma gaps of cv {format_number(model.arrivals.cv, 3)}, {law}."
    if model.arrivals.trace is not None:
        yield (
            f"Simulations replay the trace of the profile, {format_tokens(model.arrivals.trace.arrival_s.size)} "
            "requests, at the rate of the classes; the formulas know of it what classes, schedule and cv say."
        )


def _of_schedule(figures: Figures) -> Iterator[str]:
    varying = figures.peak
    if varying is None:
        return
    period = format_seconds(varying.period_s)
    yield (
        f"Rates vary over {period}: {format_number(varying.least_rps)} to {format_number(varying.most_rps)} "
        f"requests/s, {format_number(varying.mean_rps)} in the mean. wait and nested_wait are for the worst window of "
        "the schedule; every other figure, the verdict too, is for the rates of the classes as they stand, "
        f"{format_number(figures.load.offered_rps)} requests/s."
    )
    overloaded = f"too much for {format_seconds(varying.overloaded_s)} of every {period}."
    yield (
        f"At its peak the schedule offers {format_number(varying.offered_rps)} requests/s where "
        f"{format_number(varying.sustainable_rps)} are sustainable: "
        f"{overloaded if varying.overloaded_s > 0 else 'never too much.'}"
    )
    if figures.wait.feasible:
        yield (
            "wait: waits and latencies are bounds for the mean over all requests of a period; the dial is for the "
            "largest rates."
        )
