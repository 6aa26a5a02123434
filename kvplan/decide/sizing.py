"""How many replicas a demand needs: closed form first, then confirmed at that size and refuted at one less.

A size is enough if the formulas sustain that rate, and runs, as long as it takes, show that the queue is steady and
every objective holds (`kvplan.study.replicas`). More replicas are assumed never to make anything worse: that lets the
search skip sizes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kvplan.analysis.cache_states import cached_replica
from kvplan.analysis.equilibrium import equilibrium, load, sustainable_rate, time_alone
from kvplan.analysis.population import users_of
from kvplan.decide.routing import Routing, routing
from kvplan.errors import UsageError
from kvplan.model import ArrivalProcess, Plan, ServingModel
from kvplan.model.fleet import Routing as Router
from kvplan.model.slo import Slo
from kvplan.report.verdict import requests_in_memory
from kvplan.solve import least_whole
from kvplan.study.judging import Trend
from kvplan.study.objectives import State
from kvplan.study.replicas import Kept, keeps, most_simulated, scaled, stand_in
from kvplan.units import format_number, format_seconds

MAX_REPLICAS = 10**6
_FURTHEST_GUESS = 4  # times what the formulas ask for
MOST_REQUESTS = 60_000  # of a run of a fleet, unless more are asked for of each replica
QUEUE = "queue"  # what is missed where the simulated queue grows
HYSTERESIS = (
    0.8  # of the rate above which a replica is added: all that the rest may carry once one is taken away
)
_IDLE = 1e-4  # share of time in which an all but idle replica has anything to do
_ROUNDING = 1e-9  # relative, of a load that is exactly what is sustainable
_TURNS, _LEAST_REQUESTS, _MOST_REQUESTS = 10, 2_000, 20_000  # of a run, by what memory holds
_SESSIONS = 3  # times the longest, one run


def default_requests(model: ServingModel) -> int:
    """Requests of a run: so many that memory is filled several times over, and that many sessions begin and end.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> default_requests(ServingModel((RequestClass("a", 10, (9,), (1.0,), 1.0),), Timing(1.0), Replica(9000)))
    6000
    """
    wanted = math.ceil(_TURNS * requests_in_memory(model))
    longest = (c.sessions.turns.longest * c.sessions.think.mean_s for c in model.classes if c.sessions)
    wanted = max(wanted, math.ceil(_SESSIONS * max(longest, default=0.0) * model.total_rate_rps))
    return min(max(wanted, _LEAST_REQUESTS), _MOST_REQUESTS)


class Probe(NamedTuple):
    """A size that was tried; rate and load are those of one replica, headroom included.

    `missed` is what does not hold in simulation: `QUEUE`, texts of objectives.
    """

    replicas: int
    rate_rps: float
    load: float
    kept: Kept
    missed: tuple[str, ...]

    @property
    def overloaded(self) -> bool:
        """Whether the formulas say that it is too much."""
        return self.load > 1 + _ROUNDING

    @property
    def enough(self) -> bool:
        """Whether formulas and simulation say so."""
        return not (self.overloaded or self.missed)


class Thresholds(NamedTuple):
    """When an autoscaler should act, for one replica.

    Attributes
    ----------
    rate_rps
        Add a replica above this rate: what a replica is known to carry, less the headroom.
    kv_utilization
        Memory in use at the equilibrium of that rate, as a share.
    down_rate_rps
        Take one away while the others would carry less than this each, `HYSTERESIS` of `rate_rps`, so that it is not
        added again at once.
    down_kv_utilization
        Memory in use when the fleet of this size comes to that; a smaller one does at less. None for a single replica.
    waiting
        Requests in the engine before their first token at that rate: rate times simulated mean TTFT (Little's law),
        but for what that has outside the engine.
    confirmed
        The rate is one that was simulated; else it is the sustainable one of the formulas.
    """

    rate_rps: float
    kv_utilization: float | None
    down_rate_rps: float
    down_kv_utilization: float | None
    waiting: float | None
    confirmed: bool


class Size(NamedTuple):
    """The fewest replicas for a constant demand.

    Attributes
    ----------
    demand_rps, needed_rps
        Without and with headroom, of all replicas.
    sustainable_rps
        Of one replica, by the formulas (`capacity_rps`, unless another is asked for).
    limit
        That binds it.
    closed_form
        Replicas that the formulas ask for.
    replicas
        None where no number is enough.
    binding
        Why not one less: `limit`, `QUEUE` or an objective. With one replica what binds first: `limit`.
    reason
        Where no number is enough: why.
    probes
        Sizes tried, ascending.
    users
        Of closed populations in the demand with headroom, and how many one replica is sure to serve; None without.
    routing
        Of so many replicas, where requests reuse what a replica keeps for their session.
    idle
        A replica that is all but idle, where it was needed.
    router
        Of the simulated fleets; None where one replica stands for all.
    most_simulated
        Replicas that a simulated fleet has at most.
    """

    demand_rps: float
    needed_rps: float
    sustainable_rps: float
    limit: str
    closed_form: int
    replicas: int | None
    binding: str
    reason: str
    probes: tuple[Probe, ...]
    idle: Kept | None
    thresholds: Thresholds | None
    users: tuple[int, int] | None = None
    routing: Routing | None = None
    router: Router | None = None
    most_simulated: int = 1

    def probe(self, replicas: int) -> Probe | None:
        """The size that was tried, if it was."""
        return next((probe for probe in self.probes if probe.replicas == replicas), None)


class SoFar(NamedTuple):
    """What is known before the search for a size ends: what the formulas ask for, and the sizes tried."""

    demand_rps: float
    closed_form: int
    probes: tuple[Probe, ...]


Measure = Callable[[ServingModel], Kept]
Capacity = Callable[[ServingModel], float]  # requests/s that a replica sustains
Tell = Callable[[SoFar], None]


def tell_nobody(_: SoFar) -> None:
    """For searches that nobody interrupts."""


def idle_replica(model: ServingModel) -> ServingModel:
    """One of ever more replicas: what a router leaves to each of them is Poisson, however requests cluster."""
    return replace(scaled(model, idle_rate(model)), arrivals=ArrivalProcess())


def capacity_rps(model: ServingModel) -> float:
    """Rate that one replica sustains, requests/s; of users alone, what as many as are sure to be served ask at now.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> capacity_rps(ServingModel((RequestClass("a", 5, (1,), (1.0,), 2.0),), Timing(1.0), Replica(60)))
    10.0
    """
    if not model.finds_prefixes or cached_replica(model).users is None:
        return sustainable_rate(model)[1]
    return load(model).load_factor_max * model.total_rate_rps


def size(
    model: ServingModel,
    *,
    demand_rps: float,
    headroom: float,
    slos: Sequence[Slo],
    measure: Measure,
    router: Router | None = None,
    capacity: Capacity = capacity_rps,
    served: float = 1.0,
    tell: Tell = tell_nobody,
) -> Size:
    """The fewest replicas like the model's for a constant demand in total, with its mix.

    Everything must hold at 1 + headroom times the demand; `measure` simulates the replica, or the fleet, of a model
    with its traffic: what `stand_in` makes of a size. `tell` hears what is known, from the closed form on. If more
    are needed than the formulas ask for, the search begins where a replica gets the share `served` of what it sustains.

    Raises
    ------
    UsageError
        An objective on a figure that no request has; more than `MAX_REPLICAS`.

    References
    ----------
    Closed form: WAIT-s eq. 3-6 (`sustainable_rate`); the search is new.

    Examples
    --------
    A replica that sustains 10 requests/s and answers after 1/(10 - rate) seconds.

    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> from kvplan.model.slo import parse_slo
    >>> from kvplan.study.objectives import Decision
    >>> model = ServingModel((RequestClass("a", 5, (1,), (1.0,), 1.0),), Timing(1.0), Replica(60))
    >>> def measure(one: ServingModel) -> Kept:
    ...     delay = 1 / max(10 - one.total_rate_rps, 1e-9)
    ...     state = State.HOLDS if delay <= 0.2 else State.MISSES
    ...     decision = Decision("ttft_s.mean", 0.2, state, delay, delay, delay, delay / 0.2, 0.0, 1.0)
    ...     return Kept(Trend.STEADY, (decision,), {})
    >>> found = size(model, demand_rps=35, headroom=0, slos=[parse_slo("ttft_s.mean <= 0.2")], measure=measure)
    >>> found.closed_form, found.replicas, found.binding
    (4, 7, 'ttft_s.mean <= 0.2')
    """
    limit, sustainable = sustainable_rate(model)[0], capacity(model)
    needed = demand_rps * (1 + headroom)
    wanted = needed / sustainable * (1 - _ROUNDING)
    if wanted > MAX_REPLICAS:
        raise UsageError(f"some {wanted:.3g} replicas would be needed; {MAX_REPLICAS:,} is the most")
    least = max(math.ceil(wanted), 1)
    tried: dict[int, Probe] = {}

    def enough(replicas: int) -> bool:
        if replicas not in tried:
            rate = needed / replicas
            kept = measure(stand_in(model, needed, replicas, router))
            tried[replicas] = Probe(replicas, rate, rate / sustainable, kept, missed(kept, slos))
            tell(SoFar(demand_rps, least, tuple(tried.values())))
        return tried[replicas].enough

    tell(SoFar(demand_rps, least, ()))
    idle = None
    found: int | None = least
    reason = ""
    if not enough(least):
        idle = measure(idle_replica(model))
        reason = _why_never(model, idle, slos)
        guess = math.ceil(min(wanted / served, _FURTHEST_GUESS * wanted))
        found = None if reason else search(least, enough, guess)
        if found is None and not reason:
            reason = f"even {MAX_REPLICAS:,} replicas are not enough"
    if found is not None:
        if found > 1:
            enough(found - 1)
        enough(found + 1)
    thresholds = None
    if found is not None:
        confirmed = bool(slos) or found > least
        thresholds = _thresholds(model, tried[found], headroom, confirmed, measure, router)
    return Size(
        demand_rps=demand_rps,
        needed_rps=needed,
        sustainable_rps=sustainable,
        limit=limit,
        closed_form=least,
        replicas=found,
        binding=_binding(found, limit, tried),
        reason=reason,
        probes=tuple(tried[replicas] for replicas in sorted(tried)),
        idle=idle,
        thresholds=thresholds,
        users=_users(model, needed, sustainable),
        routing=None if found is None else routing(scaled(model, needed / found), found),
        router=router,
        most_simulated=1 if router is None else most_simulated(model),
    )


def _users(model: ServingModel, needed_rps: float, capacity: float) -> tuple[int, int] | None:
    """Users of a demand, and of them as many as one replica is sure to serve."""
    users = users_of(model)
    if not users or len([c for c in model.classes if c.sessions and c.sessions.users]) < len(model.classes):
        return None
    wanted, most = (users * rate / model.total_rate_rps for rate in (needed_rps, capacity))
    return math.ceil(wanted * (1 - _ROUNDING)), math.floor(most * (1 + _ROUNDING))


def search(low: int, enough: Callable[[int], bool], guess: int = 0) -> int | None:
    """The fewest above a size that is not enough; None above the most.

    First a guess, or one more if that is higher; from there steps that double, down if it is enough, else up; then
    halves.
    """
    high, step = max(low + 1, min(guess, MAX_REPLICAS)), 1
    if enough(high):
        while high - step > low and enough(high - step):
            high, step = high - step, 2 * step
        low = max(low, high - step)
    else:
        while True:
            if high >= MAX_REPLICAS:
                return None
            step *= 2
            low, high = high, min(high + step, MAX_REPLICAS)
            if enough(high):
                break
    return least_whole(enough, low, high)


def missed(kept: Kept, slos: Sequence[Slo]) -> tuple[str, ...]:
    """Name what runs do not show to hold: `QUEUE`, texts of objectives.

    Raises
    ------
    UsageError
        An objective on a figure that no request has.
    """
    if kept.trend is Trend.GROWING:
        return (QUEUE,)
    for slo, decision in zip(slos, kept.decided, strict=True):
        if decision.value is None and decision.state is State.HOLDS:
            raise UsageError(
                f"--slo {slo.text!r}: no simulated request has that figure, so it cannot be judged"
            )
    steady = kept.trend is Trend.STEADY
    fails = (State.MISSES, State.OPEN) if steady else (State.MISSES,)
    texts = (slo.text for slo, d in zip(slos, kept.decided, strict=True) if d.state in fails)
    return (*(() if steady else (QUEUE,)), *texts)


def idle_rate(model: ServingModel) -> float:
    """A rate at which requests all but never meet, requests/s."""
    return _IDLE / time_alone(model)


def _why_never(model: ServingModel, idle: Kept, slos: Sequence[Slo]) -> str:
    """Why more replicas do not help; empty if they can."""
    if idle.trend is not Trend.STEADY:
        return "a replica that is all but idle already has a queue that grows"
    for slo, decision in zip(slos, idle.decided, strict=True):
        if decision.state is State.HOLDS:
            continue
        alone = f"{slo.text}: a replica that is all but idle has {slo.written(decision.value)}"
        if decision.state is State.OPEN:
            most = "more" if decision.high is None else slo.written(decision.high)
            ends = f"{slo.written(decision.low)} to {most}"
            return (
                f"{alone} (95% interval {ends}), too close to tell; more requests or seeds make it narrower"
            )
        return f"{alone}{_without_company(model, slo)}; more replicas cannot make it less"
    return ""


def _without_company(model: ServingModel, slo: Slo) -> str:
    """What a request takes that is alone on a replica; of one that finds its prefix there, nothing that is known."""
    if model.finds_prefixes and slo.key.startswith(("ttft_s", "e2e_s")):
        return ""
    outside = f", and {format_seconds(model.request_overhead_s)} outside the engine" * (
        model.request_overhead_s > 0
    )
    if slo.key.startswith("tpot_s"):
        least = f", for an iteration takes at least d0 = {format_seconds(model.timing.d0)}"
        return (
            least
            if model.drafts is None
            else f"{least} and emits {format_number(model.drafts.mean, 3)} tokens"
        )
    if slo.key.startswith("ttft_s"):
        prompt = model.timing(0, float(model.mix.share @ model.mix.prefill_tokens), 0)
        return f", for the iteration of a prompt takes {format_seconds(prompt)} on average (d0 + d2·tokens){outside}"
    if slo.key.startswith("e2e_s"):
        return f", for its iterations alone take {format_seconds(time_alone(model))} on average{outside}"
    return ""


def _binding(found: int | None, limit: str, tried: Mapping[int, Probe]) -> str:
    """What one replica less misses: the formulas' limit first, then objectives, then the queue."""
    below = tried.get((found or min(tried) + 1) - 1)
    if below is None or below.overloaded:
        return limit
    return next((what for what in below.missed if what != QUEUE), QUEUE)


def _thresholds(
    model: ServingModel,
    probe: Probe,
    headroom: float,
    confirmed: bool,
    measure: Measure,
    router: Router | None,
) -> Thresholds:
    rate = (probe.rate_rps if confirmed else probe.rate_rps / probe.load) / (1 + headroom)
    down = HYSTERESIS * rate
    less = down * (probe.replicas - 1) / probe.replicas
    simulated_at = stand_in(model, rate * probe.replicas, probe.replicas, router)
    waits = measure(simulated_at).figures.get("ttft_s.mean")
    return Thresholds(
        rate_rps=rate,
        kv_utilization=_utilization(model, rate),
        down_rate_rps=down,
        down_kv_utilization=_utilization(model, less) if less > 0 else None,
        waiting=None if waits is None else rate * (waits.value - model.request_overhead_s),
        confirmed=confirmed,
    )


def _utilization(model: ServingModel, rate_rps: float) -> float | None:
    return equilibrium(scaled(model, rate_rps)).kv_utilization


def requests_of_run(requests: int, replicas: int, most: int = MOST_REQUESTS) -> int:
    """So many for each replica that is simulated, in all at most `most`, unless a single one gets more.

    Examples
    --------
    >>> requests_of_run(2000, 1), requests_of_run(2000, 8), requests_of_run(2000, 64), requests_of_run(90_000, 64)
    (2000, 16000, 60000, 90000)
    """
    return max(requests, min(requests * replicas, most))


def simulated(
    plan: Plan,
    policy: str,
    slos: Sequence[Slo],
    *,
    requests: int | None = None,
    runs: int,
    most_requests: int = 0,
) -> Measure:
    """How `size` measures in earnest: a policy on the arrivals of the model, the same seeds for every size.

    The policy has its defaults. Rounds of so many runs get longer until they decide; `requests` are those of a run of
    the first round and one replica, or of a fleet where `most_requests` does not allow as many for each of its
    replicas; of a trace all.

    Raises
    ------
    UsageError
        The policy does not exist, or has requests wait for others.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> model = ServingModel((RequestClass("a", 5, (2,), (1.0,), 0.01),), Timing(1.0), Replica(60))
    >>> kept = simulated(Plan(), "vllm", [], requests=200, runs=2)(model)
    >>> kept.trend.value, kept.figures["tpot_s.mean"].value
    ('steady', 1.0)
    """
    from kvplan.simulation.experiments.options import chosen
    from kvplan.simulation.policies import POLICIES

    settings = chosen([policy], [])[policy]
    if POLICIES[policy].gathers:
        raise UsageError(
            f"--policy {policy}: has requests wait for others, so that more replicas can be slower"
        )

    def measure(model: ServingModel) -> Kept:
        size = 1 if model.fleet is None else model.fleet.size
        first = None if requests is None else requests_of_run(requests, size, most_requests)
        return keeps(model, plan, settings, slos, requests=first, runs=runs)

    return measure
