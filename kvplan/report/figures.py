"""Every analysis of a model, each run when it is first asked for: the blocks of a report, but for their words."""

from collections.abc import Mapping
from functools import cached_property

from kvplan.analysis.admission import RateCap, rate_cap
from kvplan.analysis.cache_states import cached_replica
from kvplan.analysis.cached_equilibrium import with_cold_cache
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
from kvplan.report.blocks import (
    CacheBlock,
    Context,
    Cost,
    FleetBlock,
    LayoutBlock,
    cache_block,
    context,
    cost,
    fleet_block,
    layout_block,
    with_trial,
)
from kvplan.report.inputs import Inputs, inputs
from kvplan.report.words import Status
from kvplan.simulation.experiments.runner import Progress
from kvplan.simulation.policies import engine_settings
from kvplan.study.advice import Advice, advice
from kvplan.study.drain import Drain, drain
from kvplan.study.goodput import Goodput, goodput
from kvplan.study.headroom import Headroom, Size, headroom, size_of
from kvplan.study.objectives import State
from kvplan.study.operating_point import Latency, OperatingPoint, operating_point, timed, tried
from kvplan.study.operating_point import Status as Growth
from kvplan.study.predicted import beats_nested
from kvplan.study.recovery import Recovery, flooded, recovery
from kvplan.study.trial import Judged, Recovers, recover_within_s
from kvplan.study.warm_cache import Capped, session_cap, warm_cache


class Figures:
    """The figures of a model and a plan.

    Of a fleet all but its own block are about one replica, with what a router sends there at random. `known` are
    figures that another model is known to share, by name; they are not computed again. `progress` is told how far runs
    are that take seconds.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> requests = RequestClass("a", 5, (1,), (1.0,), 1.0)
    >>> Figures(ServingModel((requests,), Timing(1.0), Replica(60)), Plan()).load.load_factor_max
    10.0
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
        for name, figure in (known or {}).items():
            setattr(self, name, figure)

    # ---------------------------------------------------------------------------------------- verdict

    @cached_property
    def binding(self) -> str:
        """The limit that binds."""
        return sustainable_rate(self.model)[0]

    @cached_property
    def overloaded(self) -> bool:
        """More is offered than any policy can sustain; of what formulas only bound, the queue grows in runs."""
        if self.model.finds_prefixes or self.model.formulas_bound:
            return self.latency.status is Growth.GROWING
        return self.load.offered_rps > self.load.sustainable_rps

    @cached_property
    def status(self) -> Status:
        """The verdict in a word; what has to be simulated is asked last, and only where it decides.

        A burst decides where that is asked, or there is a prefix cache; else any backlog.
        """
        if self.overloaded:
            return Status.OVERLOADED
        if (recovers := self.recovers) is not None and recovers.state is not State.OPEN:
            return Status.STABLE if recovers.state is State.HOLDS else Status.NEEDS_CAP
        rate, users = self.recovery.rate_rps, self.prefix_cache and self.prefix_cache.users
        drains = rate is not None and self.load.offered_rps <= rate
        if users:  # more than are guaranteed may ask for less than fewer do
            drains = users <= population_of(cached_replica(self.model), self._recovered_part).guaranteed
        return Status.STABLE if drains else Status.NEEDS_CAP

    @cached_property
    def recovers(self) -> Recovers | None:
        """Recovery from a standard burst in time; None where any backlog is asked about instead."""
        within_s = self.recover_within_s
        return None if within_s is None else Recovers(within_s, self.drain, self.model)

    @property
    def recover_within_s(self) -> float | None:
        """Seconds within which a standard burst has to be over; None where any backlog is asked about instead."""
        return None if self.whole.arrivals.trace is not None else recover_within_s(self.model, self.plan)

    @property
    def drains_up_to_rps(self) -> float | None:
        """Rate up to which any backlog drains, requests/s, 0 if none; None where a burst decides the verdict."""
        return None if self.recover_within_s is not None else self.recovery.rate_rps or 0.0

    @cached_property
    def size(self) -> Size:
        """The replicas as a plan judges them."""
        return size_of(self.whole, self.plan)

    @cached_property
    def judged(self) -> Judged:
        """Verdict on those replicas: the demand, slower and with headroom, and a burst."""
        return self.size.own()

    @cached_property
    def headroom(self) -> Headroom | None:
        """Growth of the demand up to which they suffice."""
        try:
            return headroom(self.size, lambda: self.judged)
        except UsageError:  # the engine does not run what the profile has
            return None

    @cached_property
    def recovery(self) -> Recovery:
        """The rate up to which the replica recovers from any backlog; with a prefix cache, at most the guaranteed one.

        Preemptions leave a part of what the replica serves with a cold cache, and of what users ask.
        """
        cold = self.cold_recovery
        if not self.model.finds_prefixes or cold.rate_rps is None:
            return cold
        cached = cached_replica(self.model)
        if cached.users is None:
            return cold._replace(rate_rps=min(cold.rate_rps, self.load.sustainable_rps))
        return cold._replace(rate_rps=population_of(cached, self._recovered_part).guaranteed_rps)

    @cached_property
    def cold_recovery(self) -> Recovery:
        """The same with a cold cache."""
        return recovery(self.cold, engine_settings(self.model))

    @property
    def _recovered_part(self) -> float:
        """Share of a cold replica's rate that is left by preemptions."""
        rate = self.cold_recovery.rate_rps
        return 0.0 if rate is None else min(1.0, rate / sustainable_rate(self.cold)[1])

    @cached_property
    def drain(self) -> Drain:
        """Time until a standard burst is over."""
        if self.overloaded:
            return Drain(None, None, None, None, "more is offered than can be served")
        try:
            return drain(self.whole, self.plan)
        except UsageError as refused:
            return Drain(None, None, None, None, str(refused))

    # ---------------------------------------------------------------------------- formulas, by block

    @cached_property
    def load(self) -> Load:
        """Offered load against what is sustained; where formulas only bound it, what runs serve under a backlog."""
        computed, least_rps = load(self.model), self.cold_recovery.served_rps
        if not self.model.formulas_bound or least_rps is None:
            return computed
        backlogged = flooded(self.cold, engine_settings(self.model))
        return computed.served(max(backlogged.value, least_rps), backlogged.standard_error)

    @cached_property
    def levers(self) -> tuple[Lever, Lever]:
        """Changes that raise the sustainable rate most."""
        return strongest_levers(self.model)

    @cached_property
    def equilibrium(self) -> Equilibrium:
        return equilibrium(self.model)

    @cached_property
    def saturation(self) -> Saturation:
        return saturation(self.model)

    @cached_property
    def cold(self) -> ServingModel:
        """The model where its prefix cache finds what is always in use and nothing else."""
        return with_cold_cache(self.model)

    @cached_property
    def worst_cycle(self) -> WorstCycle:
        return worst_cycle(self.cold, self.stability, self.recovery.rate_rps)

    @cached_property
    def stability(self) -> Stability:
        return stability(self.cold)

    @cached_property
    def rate_cap(self) -> RateCap:
        return rate_cap(self.cold, arrivals_known=self._arrivals_known)

    @property
    def _arrivals_known(self) -> bool:
        """No request follows an answer, as the next turn of a session does; the cold model does not tell."""
        return all(c.sessions is None for c in self.model.classes)

    @cached_property
    def wait(self) -> Wait:
        waits = wait(self.cold, arrivals_known=self._arrivals_known)
        beats = beats_nested(self.cold, self.plan)
        return waits._replace(overload=tried(waits.overload, self.cold, self.plan), beats_nested=beats)

    @cached_property
    def nested_wait(self) -> NestedWait:
        plan = self.plan
        return nested_wait(
            self.cold,
            delta=plan.delta,
            horizon_s=plan.horizon_s,
            segments=plan.segments,
            arrivals_known=self._arrivals_known,
        )

    @cached_property
    def safety_buffer(self) -> SafetyBuffer:
        return safety_buffer(self.cold, delta=self.plan.delta, horizon_s=self.plan.horizon_s)

    @cached_property
    def inputs(self) -> Inputs:
        return inputs(self.model)

    @cached_property
    def prefix_cache(self) -> CacheBlock | None:
        return cache_block(self.model)

    @cached_property
    def tried_prefix_cache(self) -> CacheBlock | None:
        """The same, with runs of a warm cache at the offered rate where a burst can empty it."""
        cache = self.prefix_cache
        return None if cache is None else with_trial(cache, warm_cache(self.model, self.plan, self.progress))

    @cached_property
    def speculative(self) -> Speculative | None:
        return speculative(self.model)

    @cached_property
    def context(self) -> Context:
        return context(self.whole)

    @cached_property
    def kv_layout(self) -> LayoutBlock | None:
        return layout_block(self.model.replica.layout)

    @cached_property
    def cost(self) -> Cost | None:
        price, watts = self.plan.gpu_hour, self.plan.watts
        if price is None and watts is None:
            return None
        paid = 1 + self.plan.spare / (1 if self.whole.fleet is None else self.whole.fleet.size)
        price, watts = (each and paid * each for each in (price, watts))
        return cost(self.model, price, self.load, overloaded=self.overloaded, watts=watts)

    @cached_property
    def peak(self) -> Peak | None:
        """Heaviest part of the schedule; None where rates do not vary."""
        return peak(self.model)

    # --------------------------------------------------------------------------------- runs, by block

    @cached_property
    def operating_point(self) -> OperatingPoint:
        """Figures of runs at the offered rate."""
        return operating_point(self.whole, self.plan)

    @property
    def latency(self) -> Latency:
        return self.operating_point.latency

    @cached_property
    def goodput(self) -> Goodput | None:
        return goodput(self.whole, self.plan, engine_settings(self.model), self.objectives)

    @property
    def objectives(self) -> tuple[Slo, ...]:
        """Those of the plan that are about latencies."""
        return tuple(slo for slo in self.plan.slos if slo.key.partition(".")[0] in TIMES)

    @cached_property
    def fleet(self) -> FleetBlock | None:
        if self.whole.fleet is None:
            return None
        ways = fleet_figures(self.whole, self.plan.limits)
        good = self.goodput and self.goodput.rate_rps
        return fleet_block(
            timed(ways, self.whole, self.plan, self.latency, good), proved=self.model.timing.is_linear
        )

    @cached_property
    def session_cap(self) -> Capped | None:
        """The cap on conversations in flight that ends a collapse, found by runs."""
        return session_cap(self.model, self.plan)

    @cached_property
    def advice(self) -> tuple[Advice, ...]:
        """Settings that were tried and gain."""
        try:
            return advice(self.whole, self.plan, self.cold_recovery, self.operating_point)
        except UsageError:  # the engine does not run what the profile has
            return ()
