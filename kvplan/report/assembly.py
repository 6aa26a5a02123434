"""The report: results of every analysis → the schema_version 1 document that other programs read.

`analyze` collects the frozen results, `to_document` turns them into the JSON contract, key for key. Some results
carry more than the contract names; `BESIDE_CONTRACT` lists it, for the text and Markdown reports only.
"""

import math
from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from kvplan.analysis.admission import RateCap, rate_cap
from kvplan.analysis.equilibrium import (
    Equilibrium,
    Load,
    Saturation,
    equilibrium,
    load,
    per_request,
    saturation,
    sustainable_rate,
)
from kvplan.analysis.nested import NestedWait, nested_wait
from kvplan.analysis.overflow import SafetyBuffer, safety_buffer
from kvplan.analysis.stability import Stability, stability
from kvplan.analysis.wait import Wait, wait
from kvplan.analysis.worst_cycle import CycleKind, WorstCycle, eviction_is_impossible, worst_cycle
from kvplan.analysis.worst_window import Peak, peak
from kvplan.model import Plan, Prefill, ServingModel
from kvplan.units import format_number, format_percent, format_seconds, format_tokens
from kvplan.version import __version__

SCHEMA_VERSION = 1
FEW_REQUESTS = 50  # below so many in memory, whole-request effects dominate the fluid figures (theory §3)
SIMULATED_OVERFLOW = "KV above memory, per iteration"  # the row of the simulation that is a probability

_NOTHING = "Nothing"  # to be done, begins an action that says so

BESIDE_CONTRACT = frozenset(
    {
        "actions",
        "stability.radius_certified",
        "stability.stabilising_change",
        "worst_cycle.iterations",
        "worst_cycle.settled",
        "rate_cap.budgets_are_optimal",
        "rate_cap.classes.mean_wait_s",
        "wait.smallest",
        "wait.mean_lengths",
        "wait.dial",
        "wait.worst_window",
        "wait.classes.queue_bound",
        "safety_buffer.theorem_bound_is_vacuous",
        "safety_buffer.saddlepoint_probability",
        "safety_buffer.exact_pmf_probability",
        "safety_buffer.larger_tail",
        "nested_wait.iteration_time_s",
        "nested_wait.iterations",
        "nested_wait.smallest_thresholds_kv_tokens",
        "nested_wait.mixed_inputs",
        "nested_wait.printed",
        "nested_wait.segments.input_tokens",
        "nested_wait.segments.kv_tokens",
    }
)


class Status(StrEnum):
    """The verdict on a profile."""

    STABLE = "stable"
    NEEDS_CAP = "needs_cap"
    OVERLOADED = "overloaded"


class Basis(StrEnum):
    """How a number is known."""

    THEOREM = "theorem"
    COMPUTED = "computed"
    SIMULATED = "simulated"
    ASSUMPTION = "assumption"


class ProfileIdentity(NamedTuple):
    """Which profile the report is about."""

    name: str
    sha256: str


class Verdict(NamedTuple):
    """The answer in a word, the limit that binds, and a sentence with the numbers."""

    status: Status
    binding: str
    summary: str


class Source(NamedTuple):
    """Where the numbers of a block come from."""

    source: str
    kind: Basis


class Report(NamedTuple):
    """Everything `kvplan analyze` says about a profile; fields in the order of the contract.

    `simulation` is None unless asked for: `kvplan.report.formula_check` adds it.
    """

    schema_version: int
    kvplan_version: str
    profile: ProfileIdentity
    verdict: Verdict
    load: Load
    equilibrium: Equilibrium
    saturation: Saturation
    worst_cycle: WorstCycle
    stability: Stability
    rate_cap: RateCap
    wait: Wait
    nested_wait: NestedWait
    safety_buffer: SafetyBuffer
    simulation: dict[str, Any] | None
    sources: dict[str, Source]
    notes: tuple[str, ...]
    actions: tuple[str, ...]


def analyze(model: ServingModel, *, name: str, sha256: str, plan: Plan | None = None) -> Report:
    """Run every analysis on a model.

    Parameters
    ----------
    model : ServingModel
    name, sha256 : str
        Identity of the profile the model was read from.
    plan : Plan, optional
        What Nested WAIT and the safety buffer should guarantee; the defaults of a profile if None.

    Examples
    --------
    >>> from kvplan.model import Prefill, Replica, RequestClass, Timing
    >>> one = RequestClass("tools", 2, (3,), (1.0,), 0.9)
    >>> model = ServingModel((one,), Timing(1.0), Replica(12, prefill=Prefill.DISAGGREGATED))
    >>> report = analyze(model, name="three tokens", sha256="")
    >>> report.verdict.status, report.verdict.binding, round(report.worst_cycle.loss, 3)
    (<Status.NEEDS_CAP: 'needs_cap'>, 'kv_memory', 0.2)
    """
    found = Analyses(model, plan or Plan())
    return Report(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        profile=ProfileIdentity(name, sha256),
        verdict=found.verdict,
        load=found.load,
        equilibrium=found.equilibrium,
        saturation=found.saturation,
        worst_cycle=found.worst_cycle,
        stability=found.stability,
        rate_cap=found.rate_cap,
        wait=found.wait,
        nested_wait=found.nested_wait,
        safety_buffer=found.safety_buffer,
        simulation=None,
        sources=found.sources,
        notes=found.notes,
        actions=found.actions,
    )


class Analyses:
    """Every analysis of a model, each run when it is first asked for: the blocks of a report by their names.

    Parameters
    ----------
    model : ServingModel
    plan : Plan
    known : mapping of str to result
        Blocks that another model is known to share, by name; they are not computed again.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> one = RequestClass("a", 5, (1,), (1.0,), 1.0)
    >>> Analyses(ServingModel((one,), Timing(1.0), Replica(60)), Plan()).load.headroom
    9.0
    """

    def __init__(self, model: ServingModel, plan: Plan, known: Mapping[str, object] | None = None) -> None:
        self.model = model
        self.plan = plan
        self.__dict__.update(known or {})  # where a cached property keeps what it has found

    @cached_property
    def verdict(self) -> Verdict:
        """The answer in a word; from load, stability and worst cycle."""
        stuck = self.worst_cycle.throughput_rps if self.status is Status.NEEDS_CAP else None
        return Verdict(self.status, self.binding, _summary(self.status, self.binding, self.load, stuck))

    @cached_property
    def binding(self) -> str:
        """The limit that binds."""
        return sustainable_rate(self.model)[0]

    @cached_property
    def overloaded(self) -> bool:
        """Whether more is offered than any policy can sustain; the load alone tells."""
        return self.load.offered_rps > self.load.sustainable_rps

    @cached_property
    def status(self) -> Status:
        """The answer in a word; what takes longest to know is asked last, and only where it decides."""
        if self.overloaded:
            return Status.OVERLOADED
        if self.stability.stable and self.stability.certified:
            return Status.STABLE
        recovers = self.load.offered_rps <= self.worst_cycle.throughput_rps
        return Status.STABLE if recovers else Status.NEEDS_CAP

    @cached_property
    def load(self) -> Load:
        """Offered load against the sustainable rate."""
        return load(self.model)

    @cached_property
    def equilibrium(self) -> Equilibrium:
        """The eviction-free equilibrium."""
        return equilibrium(self.model)

    @cached_property
    def saturation(self) -> Saturation:
        """The equilibrium that exactly fills memory."""
        return saturation(self.model)

    @cached_property
    def worst_cycle(self) -> WorstCycle:
        """What greedy admission keeps once it has collapsed."""
        return worst_cycle(self.model, self.stability)

    @cached_property
    def stability(self) -> Stability:
        """Local stability under greedy admission."""
        return stability(self.model)

    @cached_property
    def rate_cap(self) -> RateCap:
        """Admission limits that prevent evictions."""
        return rate_cap(self.model)

    @cached_property
    def wait(self) -> Wait:
        """WAIT thresholds."""
        return wait(self.model)

    @cached_property
    def nested_wait(self) -> NestedWait:
        """Nested WAIT thresholds and memory."""
        plan = self.plan
        return nested_wait(self.model, delta=plan.delta, horizon_s=plan.horizon_s, segments=plan.segments)

    @cached_property
    def safety_buffer(self) -> SafetyBuffer:
        """Probability of overflow, and the buffer against it; under the integer budgets where there are any."""
        budgets = [c.integer_budget for c in self.rate_cap.classes if c.integer_budget is not None]
        plan = self.plan
        return safety_buffer(self.model, delta=plan.delta, horizon_s=plan.horizon_s, budgets=budgets or None)

    @cached_property
    def sources(self) -> dict[str, Source]:
        """Where the numbers of each block come from."""
        return _sources(self.model, self.worst_cycle)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What was assumed or not modelled."""
        cap, waiting, buffer = self.rate_cap, self.wait, self.safety_buffer
        usual = _notes(self.model, self.stability, self.worst_cycle, cap, self.plan, waiting, buffer)
        varying = self.peak
        return usual if varying is None else (*usual, *_schedule_notes(varying, self.load, waiting))

    @cached_property
    def peak(self) -> Peak | None:
        """What the schedule offers at its heaviest; None where rates do not vary."""
        return peak(self.model)

    @cached_property
    def actions(self) -> tuple[str, ...]:
        """What to do, most important first."""
        local, cycle, cap, buffer = self.stability, self.worst_cycle, self.rate_cap, self.safety_buffer
        status = self.verdict.status
        usual = _actions(status, self.model, self.load, local, cycle, cap, self.plan, buffer)
        first = None if self.peak is None else _at_peak(self.peak, status, local, cycle, cap)
        if first is None:
            return usual
        return first, *(action for action in usual if not action.startswith(_NOTHING))


def _summary(status: Status, binding: str, offered: Load, stuck_rps: float | None) -> str:
    """A sentence with the numbers; `stuck_rps` is what a collapsed replica serves, where it needs a cap."""
    sustainable = format_number(offered.sustainable_rps)
    rates = f"{format_number(offered.offered_rps)} requests/s offered, {sustainable} sustainable"
    if status is Status.OVERLOADED:
        excess = offered.offered_rps / offered.sustainable_rps - 1
        return f"{rates}: {format_percent(excess)} more than {binding} allows, whatever the policy."
    fits = f"{rates}, limited by {binding}"
    if status is Status.NEEDS_CAP:
        stuck = format_number(stuck_rps)
        return f"{fits}; but greedy admission, once collapsed, can stay at {stuck} requests/s."
    return f"{fits}; greedy admission recovers from a collapse by itself."


def requests_in_memory(model: ServingModel) -> float:
    """Mean number of requests in flight when memory is full, n*·n."""
    return saturation(model).admissions_per_iteration * per_request(model).iterations


def _actions(
    status: Status,
    model: ServingModel,
    offered: Load,
    local: Stability,
    cycle: WorstCycle,
    cap: RateCap,
    plan: Plan,
    buffer: SafetyBuffer,
) -> tuple[str, ...]:
    """What to do, most important first; each fits a line or two of the first screen."""
    actions: list[str] = []
    limit = f"{format_number(min(cap.per_second, offered.sustainable_rps))} requests/s"
    if cap.per_second <= offered.sustainable_rps * (
        1 + 1e-9
    ):  # else an engine limit binds before memory does
        limit += f" ({format_number(cap.per_iteration)} an iteration)"
    if status is Status.OVERLOADED:
        replicas = math.ceil(offered.offered_rps / offered.sustainable_rps)
        actions.append(
            f"Bring the load below {format_number(offered.sustainable_rps)} requests/s, or serve it with at least "
            f"{replicas} replicas."
        )
        if cycle.loss > 0:
            actions.append(f"Until then cap admissions at {limit}: the excess waits, nothing is evicted.")
    elif status is Status.NEEDS_CAP:
        actions.append(
            f"Cap admissions at {limit}: evictions then stop and all of the sustainable rate is served."
        )
        if local.stabilising_change is not None:
            actions.append(f"Or remove the cause. {local.stabilising_change}.")
        elif not local.certified:
            actions.append("Stability is too close to call in floating point; the cap is safe either way.")
    elif eviction_is_impossible(model):
        actions.append(
            f"{_NOTHING}: max_num_seqs requests fit in memory at their longest, so none is ever evicted."
        )
    elif (buffer.overflow_probability_horizon or 0) > plan.delta:
        actions.append(
            f"Expect evictions now and then: {format_percent(buffer.overflow_probability_horizon)} for any within "
            f"{format_seconds(plan.horizon_s)}; {format_tokens(buffer.required_kv_tokens)} tokens of memory would keep "
            f"that to {format_percent(plan.delta)}."
        )
    elif local.recovery_iterations is not None:
        time = format_seconds(local.recovery_iterations * saturation(model).iteration_time_s)
        iterations = format_number(local.recovery_iterations, 3)
        actions.append(
            f"{_NOTHING}. Even at full load a disturbance decays e-fold in {time}: {iterations} iterations."
        )
    else:
        actions.append(
            f"{_NOTHING} at this load. Above {format_number(cycle.throughput_rps)} requests/s cap admissions at "
            f"{limit}."
        )
    if offered.headroom is not None and 0 <= offered.headroom < 0.1:
        actions.append(f"Headroom is only {format_percent(offered.headroom)}: a burst fills memory for long.")
    held = requests_in_memory(model)
    if held < FEW_REQUESTS:
        actions.append(
            f"Memory holds about {format_number(held, 2)} requests: with so few, whole-request effects add to the loss."
        )
    return tuple(actions)


def _at_peak(varying: Peak, status: Status, local: Stability, cycle: WorstCycle, cap: RateCap) -> str | None:
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
    collapsed = varying.most_rps > cycle.throughput_rps and not (local.stable and local.certified)
    if status is Status.STABLE and varying.same_mix and collapsed:
        seconds = varying.course.time_above(cycle.throughput_rps / varying.most_rps * varying.course.peak)
        return (
            f"At its peak the schedule offers {rate} requests/s: for {format_seconds(seconds)} of every {period} more "
            f"than the {format_number(cycle.throughput_rps)} at which greedy admission, once collapsed, can stay. Cap "
            f"admissions at {format_number(min(cap.per_second, varying.sustainable_rps))} requests/s."
        )
    return None


def _schedule_notes(varying: Peak, offered: Load, waiting: Wait) -> tuple[str, ...]:
    period = format_seconds(varying.period_s)
    notes = [
        f"Rates vary over {period}: {format_number(varying.least_rps)} to {format_number(varying.most_rps)} "
        f"requests/s, {format_number(varying.mean_rps)} in the mean. wait and nested_wait are for the worst window of "
        "the schedule; every other figure, the verdict too, is for the rates of the classes as they stand, "
        f"{format_number(offered.offered_rps)} requests/s.",
        f"At its peak the schedule offers {format_number(varying.offered_rps)} requests/s where "
        f"{format_number(varying.sustainable_rps)} are sustainable: "
        + (
            f"too much for {format_seconds(varying.overloaded_s)} of every {period}."
            if varying.overloaded_s > 0
            else "never too much."
        ),
    ]
    if waiting.feasible:
        notes.append(
            "wait: waits and latencies are bounds for the mean over all requests of a period; the dial is for the "
            "largest rates."
        )
    return tuple(notes)


def _sources(model: ServingModel, cycle: WorstCycle) -> dict[str, Source]:
    replica, timing = model.replica, model.timing
    limited = replica.max_num_seqs is not None or replica.max_num_batched_tokens is not None
    beyond_papers = timing.d2 > 0 or timing.d3 > 0 or replica.block_tokens > 1 or limited
    basis = Basis.COMPUTED if beyond_papers else Basis.THEOREM
    extension = "; d2, d3, pages and engine limits: new" if beyond_papers else ""
    equilibrium_source = Source(f"WAIT-s eq. 3-6, WAIT Prop. 1, 2{extension}", basis)
    cycle_source = {
        CycleKind.HOMOGENEOUS: Source(f"SIC eq. 25, worst cycle of one decode length{extension}", basis),
        CycleKind.PULSE: Source("new: pulse cycle, its local stability proved", Basis.COMPUTED),
        CycleKind.SIMULATED: Source("fluid map iterated (SIC 2.2, saturated)", Basis.SIMULATED),
        CycleKind.NONE: (
            Source("no eviction possible: a single stage, or max_num_seqs requests always fit", Basis.THEOREM)
            if model.mix.stages.max() == 1 or eviction_is_impossible(model)
            else Source(
                "SIC eq. 10 (locally stable); that nothing else attracts is observed", Basis.ASSUMPTION
            )
        ),
    }[cycle.kind]
    waits = "queue bounds for several classes" if len(model.classes) > 1 else "exact queue of one class"
    windows = ""
    if model.schedule is not None:
        waits, windows = "queue bounds", "; worst window of rates that vary (WAIT 7.1, WAIT-s eq. 10)"
    return {
        "verdict": Source("load, worst_cycle and stability taken together", Basis.COMPUTED),
        "load": equilibrium_source,
        "equilibrium": equilibrium_source,
        "saturation": equilibrium_source,
        "worst_cycle": cycle_source,
        "stability": Source(
            "SIC eq. 9-13, Theorem 3; root count certified in floating point (new)", Basis.COMPUTED
        ),
        "rate_cap": Source(f"SIC 5.1; FC Prop. 3.2, Theorem 3.3 for integer budgets{extension}", basis),
        "wait": Source(
            f"WAIT-s eq. 7, Theorem 4.1{windows}; smallest and largest whole thresholds, {waits}: new",
            Basis.COMPUTED,
        ),
        "nested_wait": Source(
            f"WAIT-s Theorem 5.1, D.2{windows}; tokens per segment corrected (the printed forms are wrong): new",
            Basis.COMPUTED,
        ),
        "safety_buffer": Source(
            "new: Poisson cluster law of KV usage, saddlepoint tail; theorem_bound: FC Theorem 3.6",
            Basis.COMPUTED,
        ),
    }


def _notes(
    model: ServingModel,
    local: Stability,
    cycle: WorstCycle,
    cap: RateCap,
    plan: Plan,
    waiting: Wait,
    buffer: SafetyBuffer,
) -> tuple[str, ...]:
    replica = model.replica
    notes = [
        "Rates, lengths, timing and capacity are taken from the profile as they stand (assumption); the formulas are "
        "fluid limits of greedy admission on one replica.",
        "Not modelled: prefix sharing, speculative decoding, swapping, pipeline bubbles, routing between replicas.",
    ]
    held = requests_in_memory(model)
    if held < FEW_REQUESTS:
        notes.append(
            f"Memory holds about {format_number(held, 2)} requests of this mix. Below {FEW_REQUESTS}, evicting and "
            "recomputing whole requests costs more than the fluid figures say."
        )
    if replica.block_tokens > 1:
        unused = format_number((replica.block_tokens - 1) / 2)
        notes.append(
            f"Pages of {replica.block_tokens} tokens: a request holds {unused} tokens more than it uses on average; "
            "memory counts them, time does not."
        )
    if replica.prefill is Prefill.DISAGGREGATED and model.timing.d2 > 0:
        notes.append(
            "Prefill is ready-made (disaggregated): d2 counts only for prompts recomputed after an eviction."
        )
    if cycle.iterations is not None:
        ended = (
            "settled" if cycle.settled else "not settled when the budget was spent: means of the last half"
        )
        notes.append(f"The worst cycle is simulated: {format_tokens(cycle.iterations)} iterations, {ended}.")
    if any(c.kind is None for c in cycle.classes):
        notes.append("worst_cycle.classes: null where a class has several decode lengths and no closed form.")
    if not local.certified:
        notes.append("Stability is uncertified: a root is too close to the unit circle for floating point.")
    elif not local.radius_certified:
        notes.append("The verdict on stability is proved; the value of the spectral radius is not certified.")
    several = any(len(c.decode_tokens) > 1 for c in model.classes)
    if several:
        notes.append(
            "wait: classes of several decode lengths enter with their means; so far, memory and fit hold in the mean."
        )
    if waiting.smallest is False:
        notes.append(
            "wait: so near a work rate of 1 the thresholds keep up, but are not proved the smallest."
        )
    if saturation(model).admissions_per_iteration < len(model.classes):
        notes.append(
            "wait, nested_wait: whole thresholds keep at least one request at every stage, which is far more than "
            "this traffic has in flight; both suit many small requests."
        )
    if np.ptp(model.mix.input_tokens) > 0:
        notes.append(
            "nested_wait: each segment counts with the mean input of the requests that reach it; the requirement holds "
            "in the mean over inputs, δ is for the lengths of the queues."
        )
    if buffer.required_kv_tokens is not None:
        if held < FEW_REQUESTS:
            notes.append(
                "safety_buffer: with so few requests in memory, probabilities below 0.001 can be off by "
                "a factor of two."
            )
        notes.append(
            f"nested_wait, safety_buffer: for Poisson arrivals, an overflow within {format_seconds(plan.horizon_s)} "
            f"has probability {format_number(plan.delta)} at most."
        )
    waits = [(c.name, c.mean_wait_s) for c in cap.classes if c.mean_wait_s is not None]
    if waits:
        name, longest = max(waits, key=lambda wait: wait[1])
        near = (
            "" if cap.budgets_are_optimal else "; too many budgets to search them all, these are near-optimal"
        )
        notes.append(
            f"Integer budgets: a mean wait for admission of at most {format_seconds(longest)} (class {name}), exact "
            f"for Poisson arrivals and a constant iteration time{near}."
        )
    return tuple(notes)


def to_document(report: Report) -> dict[str, Any]:
    """The report as the contract has it: plain dicts, lists, strings, and finite numbers or None.

    Examples
    --------
    >>> import json
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> one = RequestClass("a", 5, (1,), (1.0,), 1.0)
    >>> document = to_document(analyze(ServingModel((one,), Timing(1.0), Replica(60)), name="n", sha256=""))
    >>> document["stability"]["spectral_radius"], document["wait"]["thresholds"]
    (0.0, [2])
    """
    document = plain(report)
    assert isinstance(document, dict)
    return document


def plain(value: Any, path: str = "") -> Any:
    """A result at a path of the report as the contract has it; what stands beside the contract is left out.

    Examples
    --------
    >>> plain(Verdict(Status.STABLE, "compute", "It fits."), "verdict")
    {'status': 'stable', 'binding': 'compute', 'summary': 'It fits.'}
    """
    if hasattr(value, "_fields"):  # a NamedTuple
        paths = ((name, f"{path}.{name}" if path else name) for name in value._fields)
        return {name: plain(getattr(value, name), p) for name, p in paths if p not in BESIDE_CONTRACT}
    if isinstance(value, dict):
        return {key: plain(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, tuple):
        return [plain(item, path) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, StrEnum):
        return str(value)
    return value
