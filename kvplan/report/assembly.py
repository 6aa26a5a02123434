"""The report: results of every analysis → the schema_version 2 document that other programs read.

`analyze` collects the frozen results, `to_document` turns them into the JSON contract, key for key. Some results
carry more than the contract names, for text and Markdown only: their records (`kvplan.report.keys`) say so.
"""

import math
from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from kvplan.analysis.admission import RateCap, rate_cap
from kvplan.analysis.cache_states import cached_replica
from kvplan.analysis.cold_cache import with_cold_cache
from kvplan.analysis.equilibrium import equilibrium, load, saturation, strongest_levers, sustainable_rate
from kvplan.analysis.fleet import fleet_figures, one_replica
from kvplan.analysis.nested import NestedWait, nested_wait
from kvplan.analysis.overflow import SafetyBuffer, safety_buffer
from kvplan.analysis.prefix_cache import population_of
from kvplan.analysis.records import Equilibrium, Lever, Load, Saturation
from kvplan.analysis.speculative import Speculative, speculative
from kvplan.analysis.stability import Stability, stability
from kvplan.analysis.wait import Wait, wait
from kvplan.analysis.worst_cycle import WorstCycle, worst_cycle
from kvplan.analysis.worst_window import Peak, peak
from kvplan.errors import UsageError
from kvplan.model import Plan, ServingModel
from kvplan.model.slo import TIMES, Slo
from kvplan.report.advice import advice_actions
from kvplan.report.cost import Cost, cost
from kvplan.report.fleet import FleetBlock, fleet_block, fleet_notes
from kvplan.report.inputs import Inputs, caveat, inputs
from kvplan.report.keys import BESIDE_CONTRACT
from kvplan.report.kv_layout import LayoutBlock, layout_block
from kvplan.report.notes import Source, beside_runs, notes, sources
from kvplan.report.prefix_cache import CacheBlock, cache_block, collapse_actions, with_trial
from kvplan.report.verdict import actions, summary
from kvplan.report.words import Status
from kvplan.simulation.experiments.runner import Progress
from kvplan.simulation.policies import engine_settings
from kvplan.study.advice import Advice, advice
from kvplan.study.drain import Drain, drain
from kvplan.study.fleet import timed
from kvplan.study.goodput import Goodput, goodput
from kvplan.study.operating_point import Latency, OperatingPoint, operating_point
from kvplan.study.recovery import Recovery, recovery
from kvplan.study.warm_cache import warm_cache
from kvplan.version import __version__

SCHEMA_VERSION = 2


class ProfileIdentity(NamedTuple):
    """Which profile the report is about."""

    name: str
    sha256: str


class Verdict(NamedTuple):
    """The answer in a word, the limit that binds, a sentence with the numbers, and up to which rate backlogs drain.

    `recovers_settled` is False where the runs that measured that rate were cut short.
    """

    status: Status
    binding: str
    summary: str
    recovers_up_to_rps: float | None
    recovers_settled: bool
    drain: Drain


class Report(NamedTuple):
    """Everything `kvplan analyze` says about a profile; fields in the order of the contract."""

    schema_version: int
    kvplan_version: str
    profile: ProfileIdentity
    verdict: Verdict
    load: Load
    levers: tuple[Lever, Lever]
    equilibrium: Equilibrium
    saturation: Saturation
    worst_cycle: WorstCycle
    stability: Stability
    rate_cap: RateCap
    wait: Wait
    nested_wait: NestedWait
    safety_buffer: SafetyBuffer
    inputs: Inputs
    latency: Latency
    goodput: Goodput | None
    cost: Cost | None
    prefix_cache: CacheBlock | None
    speculative: Speculative | None
    kv_layout: LayoutBlock | None
    fleet: FleetBlock | None
    advice: tuple[Advice, ...]
    sources: dict[str, Source]
    notes: tuple[str, ...]
    actions: tuple[str, ...]
    caveat: str


def analyze(
    model: ServingModel,
    *,
    name: str,
    sha256: str,
    plan: Plan | None = None,
    trial: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Run every analysis on a model; `name` and `sha256` are those of the profile that it was read from.

    `plan` says what Nested WAIT and the safety buffer should guarantee; None takes the defaults of a profile. `trial`
    asks for runs of a warm prefix cache, which take seconds; `progress` is told how far they are.

    Examples
    --------
    >>> from kvplan.model import Prefill, Replica, RequestClass, Timing
    >>> one = RequestClass("tools", 2, (3,), (1.0,), 0.9)
    >>> model = ServingModel((one,), Timing(1.0), Replica(12, prefill=Prefill.DISAGGREGATED))
    >>> report = analyze(model, name="three tokens", sha256="")
    >>> report.verdict.status, report.verdict.binding, round(report.worst_cycle.loss, 3)
    (<Status.NEEDS_CAP: 'needs_cap'>, 'kv_memory', 0.2)
    """
    analyses = Analyses(model, plan or Plan(), progress=progress)
    return report_of(analyses, ProfileIdentity(name, sha256), trial=trial)


def report_of(found: "Analyses", profile: ProfileIdentity, *, trial: bool = False) -> Report:
    """All blocks of a model's analyses; `trial`: runs of a warm prefix cache among them."""
    return Report(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        profile=profile,
        verdict=found.verdict,
        load=found.load,
        levers=found.levers,
        equilibrium=found.equilibrium,
        saturation=found.saturation,
        worst_cycle=found.worst_cycle,
        stability=found.stability,
        rate_cap=found.rate_cap,
        wait=found.wait,
        nested_wait=found.nested_wait,
        safety_buffer=found.safety_buffer,
        inputs=found.inputs,
        latency=found.latency,
        goodput=found.goodput,
        cost=found.cost,
        prefix_cache=found.tried_prefix_cache if trial else found.prefix_cache,
        speculative=found.speculative,
        kv_layout=found.kv_layout,
        fleet=found.fleet,
        advice=found.advice,
        sources=found.sources,
        notes=found.notes,
        actions=found.actions,
        caveat=found.caveat,
    )


class Analyses:
    """Every analysis of a model, each run when it is first asked for: the blocks of a report by their names.

    Of a fleet all but its own block are about one replica, with what a router sends there at random. `known` are blocks
    that another model is known to share, by name; they are not computed again. `progress` is told how far runs are that
    take seconds.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> one = RequestClass("a", 5, (1,), (1.0,), 1.0)
    >>> Analyses(ServingModel((one,), Timing(1.0), Replica(60)), Plan()).load.headroom
    9.0
    """

    def __init__(
        self,
        model: ServingModel,
        plan: Plan,
        known: Mapping[str, object] | None = None,
        *,
        progress: Progress | None = None,
    ) -> None:
        self.whole = model
        self.progress = progress
        self.model = one_replica(model)
        self.plan = plan
        self.__dict__.update(known or {})  # where a cached property keeps what it has found

    @cached_property
    def verdict(self) -> Verdict:
        """The answer in a word; from the load, and what a saturated replica serves."""
        words = summary(self.status, self.binding, self.load, self.recovery, self.prefix_cache)
        if self.whole.fleet is not None:
            words = f"One of {self.whole.fleet.size} replicas, prefill and decode together: {words}"
        recovers = self.recovery
        return Verdict(self.status, self.binding, words, recovers.rate_rps, recovers.settled, self.drain)

    @cached_property
    def drain(self) -> Drain:
        """How long a standard burst is felt."""
        if self.overloaded:
            return Drain(None, None, None, None, "more is offered than can be served")
        try:
            return drain(self.whole, self.plan)
        except UsageError as refused:
            return Drain(None, None, None, None, str(refused))

    @cached_property
    def binding(self) -> str:
        """The limit that binds."""
        return sustainable_rate(self.model)[0]

    @cached_property
    def overloaded(self) -> bool:
        """Whether more is offered than any policy can sustain, even with a warm prefix cache."""
        cache = self.prefix_cache
        if not self.model.finds_prefixes or cache is None:
            return self.load.offered_rps > self.load.sustainable_rps
        if cache.users is not None and cache.good_users is not None:
            return cache.users > cache.good_users
        good = cache.sustainable_rps.good
        return good is not None and self.load.offered_rps > good

    @cached_property
    def status(self) -> Status:
        """The answer in a word; what has to be simulated is asked last, and only where it decides."""
        if self.overloaded:
            return Status.OVERLOADED
        if self.prefix_cache is not None and self.prefix_cache.collapse_possible:
            return Status.NEEDS_CAP
        if self.prefix_cache is not None and self.prefix_cache.users is not None:
            enough = self.load.load_factor_max * self._recovered_part >= 1
            return Status.STABLE if enough else Status.NEEDS_CAP
        rate = self.recovery.rate_rps
        return Status.STABLE if rate is not None and self.load.offered_rps <= rate else Status.NEEDS_CAP

    @cached_property
    def recovery(self) -> Recovery:
        """Up to which rate the replica recovers from any backlog; with a prefix cache, at most what is guaranteed.

        Of what the replica serves with a cold cache preemptions leave a part; so they do of what users ask.
        """
        found = self._cold_recovery
        if not self.model.finds_prefixes or found.rate_rps is None:
            return found
        cached = cached_replica(self.model)
        if cached.users is None:
            return found._replace(rate_rps=min(found.rate_rps, self.load.sustainable_rps))
        return found._replace(rate_rps=population_of(cached, self._recovered_part).guaranteed_rps)

    @cached_property
    def _cold_recovery(self) -> Recovery:
        return recovery(self.cold, engine_settings(self.model))

    @property
    def _recovered_part(self) -> float:
        """Of what a cold replica serves, what it serves in spite of preemptions."""
        rate = self._cold_recovery.rate_rps
        return 0.0 if rate is None else min(1.0, rate / sustainable_rate(self.cold)[1])

    @cached_property
    def cold(self) -> ServingModel:
        """The model where its prefix cache finds what is always in use and nothing else."""
        return with_cold_cache(self.model)

    @cached_property
    def prefix_cache(self) -> CacheBlock | None:
        """What the prefix cache finds; None where there is none."""
        return cache_block(self.model)

    @cached_property
    def tried_prefix_cache(self) -> CacheBlock | None:
        """The same, with runs of a warm cache at the offered rate where a burst can empty it."""
        cache = self.prefix_cache
        return None if cache is None else with_trial(cache, warm_cache(self.model, self.plan, self.progress))

    @cached_property
    def load(self) -> Load:
        """Offered load against the sustainable rate."""
        return load(self.model)

    @cached_property
    def levers(self) -> tuple[Lever, Lever]:
        """What raises the sustainable rate most."""
        return strongest_levers(self.model)

    @cached_property
    def equilibrium(self) -> Equilibrium:
        """The preemption-free equilibrium."""
        return equilibrium(self.model)

    @cached_property
    def saturation(self) -> Saturation:
        """The equilibrium that exactly fills memory."""
        return saturation(self.model)

    @cached_property
    def worst_cycle(self) -> WorstCycle:
        """What greedy admission keeps once it has collapsed."""
        return worst_cycle(self.cold, self.stability, self.recovery.rate_rps)

    @cached_property
    def stability(self) -> Stability:
        """Local stability under greedy admission."""
        return stability(self.cold)

    @cached_property
    def rate_cap(self) -> RateCap:
        """Admission limits against preemptions."""
        return rate_cap(self.cold, arrivals_known=self._arrivals_known)

    @property
    def _arrivals_known(self) -> bool:
        """Whether no request follows an answer, as the next turn of a session does; the cold model does not tell."""
        return all(c.sessions is None for c in self.model.classes)

    @cached_property
    def wait(self) -> Wait:
        """WAIT thresholds."""
        return wait(self.cold, arrivals_known=self._arrivals_known)

    @cached_property
    def nested_wait(self) -> NestedWait:
        """Nested WAIT thresholds and memory."""
        plan = self.plan
        return nested_wait(self.cold, delta=plan.delta, horizon_s=plan.horizon_s, segments=plan.segments)

    @cached_property
    def safety_buffer(self) -> SafetyBuffer:
        """Probability of overflow, and the buffer against it; under the integer budgets where there are any."""
        budgets = [c.integer_budget for c in self.rate_cap.classes if c.integer_budget is not None]
        plan = self.plan
        return safety_buffer(self.cold, delta=plan.delta, horizon_s=plan.horizon_s, budgets=budgets or None)

    @cached_property
    def inputs(self) -> Inputs:
        """How the parts of the profile are known."""
        return inputs(self.model)

    @cached_property
    def operating_point(self) -> OperatingPoint:
        """What runs at the offered rate show."""
        return operating_point(self.whole, self.plan)

    @property
    def latency(self) -> Latency:
        """TTFT, ITL, TPOT and E2E at the offered rate."""
        return self.operating_point.latency

    @cached_property
    def goodput(self) -> Goodput | None:
        """The largest rate at which the objectives of the plan hold; None where it has none."""
        return goodput(self.whole, self.plan, engine_settings(self.model), self.objectives)

    @property
    def objectives(self) -> tuple[Slo, ...]:
        """Those of the plan that are about latencies."""
        return tuple(slo for slo in self.plan.slos if slo.key.partition(".")[0] in TIMES)

    @cached_property
    def cost(self) -> Cost | None:
        """What a replica costs; None where the plan has no price."""
        price = self.plan.gpu_hour
        return None if price is None else cost(self.model, price, self.load, overloaded=self.overloaded)

    @cached_property
    def speculative(self) -> Speculative | None:
        """What drafting buys."""
        return speculative(self.model)

    @cached_property
    def kv_layout(self) -> LayoutBlock | None:
        """What a request holds where layers keep KV of several kinds."""
        return layout_block(self.model.replica.layout)

    @cached_property
    def fleet(self) -> FleetBlock | None:
        """What the fleet serves with prefill and decode apart, or together."""
        if self.whole.fleet is None:
            return None
        found = fleet_figures(self.whole, self.plan.limits)
        good = self.goodput and self.goodput.rate_rps
        seen = timed(found, self.whole, self.plan, self.latency, good)
        return fleet_block(seen, proved=self.model.timing.is_linear)

    @cached_property
    def sources(self) -> dict[str, Source]:
        """Where the numbers of each block come from."""
        return sources(self.whole, self.worst_cycle)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What was assumed or not modelled."""
        said = notes(
            self.model,
            self.load,
            self.stability,
            self.worst_cycle,
            self.rate_cap,
            self.plan,
            self.wait,
            self.safety_buffer,
            self.peak,
            self.verdict.recovers_up_to_rps or 0.0,
            self.cold,
            self.prefix_cache,
            None if self.whole.fleet is not None else beside_runs(self.equilibrium, self.operating_point),
        )
        return said if self.whole.fleet is None else (*said, *fleet_notes(self.whole.fleet))

    @cached_property
    def advice(self) -> tuple[Advice, ...]:
        """Settings that were tried and gain."""
        try:
            return advice(self.whole, self.plan, self._cold_recovery, self.operating_point)
        except UsageError:  # the engine does not run what the profile has
            return ()

    @cached_property
    def actions(self) -> tuple[str, ...]:
        """What to do, most important first."""
        return actions(
            self.status,
            self.cold,
            self.load,
            self.stability,
            self.plan,
            None if self.model.finds_prefixes else self.safety_buffer,
            self.peak,
            self.recovery,
            (*advice_actions(self.advice, recovers=self.status is Status.STABLE), *self.cache_actions),
            None if self.whole.fleet is not None else self.goodput,
        )

    @cached_property
    def cache_actions(self) -> tuple[str, ...]:
        """What excludes a collapse of the prefix cache; nothing where it cannot collapse."""
        cache = self.prefix_cache
        if cache is None or not cache.collapse_possible or self.status is not Status.NEEDS_CAP:
            return ()
        return collapse_actions(self.model, self.load)

    @cached_property
    def caveat(self) -> str:
        """What the first screen says of inputs that are not sure; empty where they are."""
        return caveat(self.model)

    @cached_property
    def peak(self) -> Peak | None:
        """What the schedule offers at its heaviest; None where rates do not vary."""
        return peak(self.model)


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
    >>> plain(ProfileIdentity("mine", "1f"), "profile")
    {'name': 'mine', 'sha256': '1f'}
    """
    if hasattr(value, "_fields"):  # a NamedTuple
        paths = ((name, f"{path}.{name}" if path else name) for name in value._fields)
        return {name: plain(getattr(value, name), p) for name, p in paths if p not in BESIDE_CONTRACT}
    if isinstance(value, dict):
        return {key: plain(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, tuple):
        return [plain(item, f"{path}[]") for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, StrEnum):
        return str(value)
    return value
