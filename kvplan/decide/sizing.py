"""How many replicas a demand needs: closed form first, then confirmed at that size and refuted at one less.

A fleet is judged by one of its replicas, which gets rate/N of the demand as Poisson arrivals. It is enough if the
formulas sustain that rate, the simulated queue does not grow, and every objective holds up to the upper end of its
95 % interval. More replicas are assumed never to make anything worse: that lets the search skip sizes.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from kvplan.analysis.equilibrium import equilibrium, sustainable_rate, time_alone
from kvplan.analysis.worst_window import at_rates
from kvplan.errors import UsageError, did_you_mean
from kvplan.model import Plan, ServingModel
from kvplan.units import format_percent, format_seconds, parse_seconds

MAX_REPLICAS = 10**6
QUEUE = "queue"  # what is missed where the simulated queue grows
HOURS = 24  # into so many parts a sinusoid is cut
KEYS = (
    *(f"{block}.{name}" for block in ("ttft_s", "tpot_s", "e2e_s") for name in ("mean", "p50", "p95", "p99")),
    "recomputed_share",
)
_SLO = re.compile(r" *([A-Za-z_][\w.]*) *(<=|<) *(\S.*?) *", re.ASCII)
_NUMBER = re.compile(r"\d{1,30}(?:\.\d{1,30})?(?:[eE][+-]?\d{1,3})?", re.ASCII)
_IDLE = 1e-4  # share of time in which an all but idle replica has anything to do
_ROUNDING = 1e-9  # relative, of a load that is exactly what is sustainable


@dataclass(frozen=True, slots=True)
class Slo:
    """An objective: an upper bound of a simulated figure.

    Attributes
    ----------
    text : str
        As written.
    key : str
        One of `KEYS`.
    strict : bool
        Below the bound, not at it.
    bound : float
        Seconds, or a share.
    """

    text: str
    key: str
    strict: bool
    bound: float

    def holds(self, value: float) -> bool:
        """Whether a value is within the bound."""
        return value < self.bound if self.strict else value <= self.bound

    def written(self, value: float | None) -> str:
        """A value of this figure for people."""
        return format_seconds(value) if "_s." in self.key else format_percent(value)


class Estimate(NamedTuple):
    """A simulated figure and its 95 % interval; the interval is the figure itself where there is none."""

    mean: float
    low: float
    high: float


class Measured(NamedTuple):
    """One replica, simulated: whether its queue stays, and the figures of `KEYS` that it has."""

    steady: bool
    figures: Mapping[str, Estimate]


class Probe(NamedTuple):
    """A size that was tried.

    Attributes
    ----------
    replicas : int
    rate_rps : float
        Of one replica, headroom included.
    load : float
        That over the sustainable rate.
    measured : Measured
    missed : tuple of str
        What does not hold in simulation: `QUEUE`, texts of objectives.
    """

    replicas: int
    rate_rps: float
    load: float
    measured: Measured
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
    rate_rps : float
        Add a replica above this rate: what a replica is known to carry, less the headroom.
    kv_utilization : float or None
        Memory in use at the equilibrium of that rate, as a share.
    down_kv_utilization : float or None
        Take one away below this: the rest then carries `rate_rps` each; None for a single replica.
    waiting : float or None
        Requests before their first token at that rate: rate times simulated mean TTFT (Little's law).
    confirmed : bool
        The rate is one that was simulated; else it is the sustainable one of the formulas.
    """

    rate_rps: float
    kv_utilization: float | None
    down_kv_utilization: float | None
    waiting: float | None
    confirmed: bool


class Size(NamedTuple):
    """The fewest replicas for a constant demand.

    Attributes
    ----------
    demand_rps, needed_rps : float
        Without and with headroom, of all replicas.
    sustainable_rps : float
        Of one replica, by the formulas.
    limit : str
        That binds it.
    closed_form : int
        Replicas that the formulas ask for.
    replicas : int or None
        None where no number is enough.
    binding : str
        Why not one less: `limit`, `QUEUE` or an objective. With one replica what binds first: `limit`.
    reason : str
        Where no number is enough: why.
    probes : tuple of Probe
        Sizes tried, ascending.
    idle : Measured or None
        A replica that is all but idle, where it was needed.
    thresholds : Thresholds or None
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
    idle: Measured | None
    thresholds: Thresholds | None

    def probe(self, replicas: int) -> Probe | None:
        """The size that was tried, if it was."""
        return next((probe for probe in self.probes if probe.replicas == replicas), None)


class Part(NamedTuple):
    """A stretch of a period with constant rates; model None where nobody arrives."""

    start_s: float
    end_s: float
    model: ServingModel | None


Measure = Callable[[ServingModel], Measured]


def parse_slo(text: str) -> Slo:
    """Read an objective.

    Raises
    ------
    UsageError
        It is not ``KEY <= VALUE``, or no such figure can be bounded.

    Examples
    --------
    >>> parse_slo("ttft_s.p95 <= 500 ms").bound, parse_slo("recomputed_share < 1%").bound
    (0.5, 0.01)
    """
    shown = repr(text if len(text) <= 80 else text[:77] + "...")
    found = _SLO.fullmatch(text)
    if found is None:
        raise UsageError(f"--slo {shown}: KEY <= VALUE is wanted, such as 'ttft_s.p95 <= 2 s'")
    key, symbol, value = found.groups()
    if key not in KEYS:
        raise UsageError(f"--slo {shown}: {did_you_mean(key, KEYS, 'the figures are')}")
    return Slo(" ".join(text.split()), key, symbol == "<", _bound(key, value, f"--slo {shown}"))


def _bound(key: str, value: str, place: str) -> float:
    share = key == "recomputed_share"
    if not share and (value.startswith("-") or value.lower() == "nan"):
        raise UsageError(f"{place}: must be above 0")
    if _NUMBER.fullmatch(value):
        number = float(value)
    elif share and value.endswith("%") and _NUMBER.fullmatch(value[:-1].strip()):
        number = float(value[:-1]) / 100
    elif share:
        raise UsageError(f"{place}: a share such as 0.01 or 1% is wanted")
    else:
        try:
            number = parse_seconds(value)
        except UsageError as error:
            raise UsageError(f"{place}: {error}") from None
    if share and not 0 <= number <= 1:
        raise UsageError(f"{place}: a share from 0 to 1")
    if not share and not 0 < number < 1e12:
        raise UsageError(f"{place}: must be {'above 0' if number <= 0 else 'below 1e12 s'}")
    return number


def scaled(model: ServingModel, rate_rps: float) -> ServingModel:
    """The same mix at another total rate, constant.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> model = ServingModel((RequestClass("a", 5, (1,), (1.0,), 2.0),), Timing(1.0), Replica(60))
    >>> scaled(model, 0.5).total_rate_rps
    0.5
    """
    factor = rate_rps / model.total_rate_rps
    return at_rates(model, [c.rate_rps * factor for c in model.classes])


def size(
    model: ServingModel,
    *,
    demand_rps: float,
    headroom: float,
    slos: Sequence[Slo],
    measure: Measure,
) -> Size:
    """The fewest replicas for a constant demand.

    Parameters
    ----------
    model : ServingModel
        One replica, and the mix of the demand.
    demand_rps : float
        Total rate, of all replicas.
    headroom : float
        Everything must hold at 1 + headroom times the demand.
    slos : sequence of Slo
    measure : function
        Simulates one replica with the traffic of a model.

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
    >>> model = ServingModel((RequestClass("a", 5, (1,), (1.0,), 1.0),), Timing(1.0), Replica(60))
    >>> def measure(one: ServingModel) -> Measured:
    ...     delay = 1 / max(10 - one.total_rate_rps, 1e-9)
    ...     return Measured(one.total_rate_rps < 10, {"ttft_s.mean": Estimate(delay, delay, delay)})
    >>> found = size(model, demand_rps=35, headroom=0, slos=[], measure=measure)
    >>> found.closed_form, found.replicas, found.binding
    (4, 4, 'kv_memory')
    >>> found = size(model, demand_rps=35, headroom=0, slos=[parse_slo("ttft_s.mean <= 0.2")], measure=measure)
    >>> found.closed_form, found.replicas, found.binding
    (4, 7, 'ttft_s.mean <= 0.2')
    """
    limit, sustainable = sustainable_rate(model)
    needed = demand_rps * (1 + headroom)
    wanted = needed / sustainable * (1 - _ROUNDING)
    if wanted > MAX_REPLICAS:
        raise UsageError(f"some {wanted:.3g} replicas would be needed; {MAX_REPLICAS:,} is the most")
    least = max(math.ceil(wanted), 1)
    tried: dict[int, Probe] = {}

    def enough(replicas: int) -> bool:
        if replicas not in tried:
            rate = needed / replicas
            measured = measure(scaled(model, rate))
            missed = _missed(measured, slos)
            tried[replicas] = Probe(replicas, rate, rate / sustainable, measured, missed)
        return tried[replicas].enough

    idle = None
    found: int | None = least
    reason = ""
    if not enough(least):
        idle = measure(scaled(model, idle_rate(model)))
        reason = _why_never(model, idle, slos)
        found = None if reason else _search(least, enough)
        if found is None and not reason:
            reason = f"even {MAX_REPLICAS:,} replicas are not enough"
    if found is not None:
        if found > 1:
            enough(found - 1)
        enough(found + 1)
    thresholds = None
    if found is not None:
        confirmed = bool(slos) or found > least
        thresholds = _thresholds(model, tried[found], headroom, confirmed, measure)
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
    )


def _search(low: int, enough: Callable[[int], bool]) -> int | None:
    """The fewest above a size that is not enough: steps that double, then halves; None above the most."""
    step = 1
    high = low + 1
    while not enough(high):
        if high >= MAX_REPLICAS:
            return None
        step *= 2
        low, high = high, min(high + step, MAX_REPLICAS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _missed(measured: Measured, slos: Sequence[Slo]) -> tuple[str, ...]:
    queue = () if measured.steady else (QUEUE,)
    return (*queue, *(slo.text for slo in slos if not slo.holds(_estimate(measured, slo).high)))


def _estimate(measured: Measured, slo: Slo) -> Estimate:
    if slo.key not in measured.figures:
        raise UsageError(f"--slo {slo.text!r}: no simulated request has that figure, so it cannot be judged")
    return measured.figures[slo.key]


def idle_rate(model: ServingModel) -> float:
    """A rate at which requests all but never meet, requests/s."""
    return _IDLE / time_alone(model)


def _why_never(model: ServingModel, idle: Measured, slos: Sequence[Slo]) -> str:
    """Why more replicas do not help; empty if they can."""
    if not idle.steady:
        return "a replica that is all but idle already has a queue that grows"
    for slo in slos:
        found = _estimate(idle, slo)
        if slo.holds(found.high):
            continue
        alone = f"{slo.text}: a replica that is all but idle has {slo.written(found.mean)}"
        ends = f"{slo.written(found.low)} to {slo.written(found.high)}"
        if slo.holds(found.low):
            return (
                f"{alone} (95% interval {ends}), too close to tell; more requests or seeds make it narrower"
            )
        return f"{alone}{_without_company(model, slo)}; more replicas cannot make it less"
    return ""


def _without_company(model: ServingModel, slo: Slo) -> str:
    """What a request takes that is alone on a replica."""
    if slo.key.startswith("tpot_s"):
        return f", for an iteration takes at least d0 = {format_seconds(model.timing.d0)}"
    if slo.key.startswith("ttft_s"):
        prompt = model.timing(0, float(model.mix.share @ model.mix.prefill_tokens), 0)
        return f", for the iteration of a prompt takes {format_seconds(prompt)} on average (d0 + d2·tokens)"
    if slo.key.startswith("e2e_s"):
        return f", for its iterations alone take {format_seconds(time_alone(model))} on average"
    return ""


def _binding(found: int | None, limit: str, tried: Mapping[int, Probe]) -> str:
    """What one replica less misses: the formulas' limit first, then objectives, then the queue."""
    below = tried.get((found or min(tried) + 1) - 1)
    if below is None or below.overloaded:
        return limit
    return next((what for what in below.missed if what != QUEUE), QUEUE)


def _thresholds(
    model: ServingModel, probe: Probe, headroom: float, confirmed: bool, measure: Measure
) -> Thresholds:
    rate = (probe.rate_rps if confirmed else probe.rate_rps / probe.load) / (1 + headroom)
    less = rate * (probe.replicas - 1) / probe.replicas
    waits = measure(scaled(model, rate)).figures.get("ttft_s.mean")
    return Thresholds(
        rate_rps=rate,
        kv_utilization=_utilization(model, rate),
        down_kv_utilization=_utilization(model, less) if less > 0 else None,
        waiting=None if waits is None else rate * waits.mean,
        confirmed=confirmed,
    )


def _utilization(model: ServingModel, rate_rps: float) -> float | None:
    return equilibrium(scaled(model, rate_rps)).kv_utilization


def parts(model: ServingModel) -> tuple[Part, ...]:
    """The period of a schedule in parts of constant rates; nothing where rates do not vary.

    Steps as they are; a sinusoid in `HOURS` equal parts, each with its largest rate.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> from kvplan.model.schedule import Sinusoid, Steps
    >>> one = RequestClass("a", 5, (1,), (1.0,), 2.0)
    >>> steps = Steps(10.0, (0.0, 4.0), ((0.0,), (3.0,)))
    >>> [(part.end_s, part.model and part.model.total_rate_rps)
    ...  for part in parts(ServingModel((one,), Timing(1.0), Replica(60), steps))]
    [(4.0, None), (10.0, 6.0)]
    >>> wave = parts(ServingModel((one,), Timing(1.0), Replica(60), Sinusoid(24.0, 0.5, 12.5)))
    >>> wave[12].model.total_rate_rps, len(wave)
    (3.0, 24)
    """
    schedule = model.schedule
    if schedule is None:
        return ()
    from kvplan.model.schedule import Steps

    if isinstance(schedule, Steps):
        ends = (*schedule.starts_s[1:], schedule.period_s)
        return tuple(
            Part(start, end, _at(model, factors))
            for start, end, factors in zip(schedule.starts_s, ends, schedule.factors, strict=True)
        )
    period, edges = schedule.period_s, [schedule.period_s * i / HOURS for i in range(HOURS + 1)]

    def factor(time_s: float) -> float:
        turn = 2 * math.pi * (time_s - schedule.peak_s) / period
        return round(1 + schedule.amplitude * math.cos(turn), 12)  # equal where the wave is

    found = []
    for start, end in pairwise(edges):
        holds_peak = (schedule.peak_s - start) % period <= end - start
        most = 1 + schedule.amplitude if holds_peak else max(factor(start), factor(end))
        found.append(Part(start, end, _at(model, [most] * len(model.classes))))
    return tuple(found)


def _at(model: ServingModel, factors: Sequence[float]) -> ServingModel | None:
    """The model at its rates times these factors, without the classes that do not arrive."""
    rates = [c.rate_rps * f for c, f in zip(model.classes, factors, strict=True)]
    if not any(rates):
        return None
    scaled_model = at_rates(model, rates)
    return replace(scaled_model, classes=tuple(c for c in scaled_model.classes if c.rate_rps > 0))


class Hour(NamedTuple):
    """A part of a period and what it needs; size None where nobody arrives."""

    start_s: float
    end_s: float
    size: Size | None

    @property
    def replicas(self) -> int | None:
        """How many it needs; None where no number is enough."""
        return 0 if self.size is None else self.size.replicas


class Fleet(NamedTuple):
    """What one profile needs.

    Attributes
    ----------
    heaviest : Size
        At constant rates the only one; else that of the part that needs most.
    hours : tuple of Hour
        Of a schedule, in order of time; empty where rates do not vary.
    """

    heaviest: Size
    hours: tuple[Hour, ...]

    @property
    def mean_replicas(self) -> float | None:
        """Replicas over a period in the mean; None where some part cannot be served."""
        if not self.hours:
            return self.heaviest.replicas
        if self.heaviest.replicas is None:
            return None
        busy = math.fsum((hour.replicas or 0) * (hour.end_s - hour.start_s) for hour in self.hours)
        return busy / self.hours[-1].end_s


def fleet(
    model: ServingModel, *, rate_rps: float | None, headroom: float, slos: Sequence[Slo], measure: Measure
) -> Fleet:
    """What a profile needs, over its schedule if it has one.

    Parameters
    ----------
    model : ServingModel
    rate_rps : float or None
        Total of the rates of the classes, which a schedule multiplies; None: as they stand.
    headroom, slos, measure
        As for `size`.
    """
    if rate_rps is not None:
        model = replace(scaled(model, rate_rps), schedule=model.schedule)
    known: dict[ServingModel, Size] = {}
    runs: dict[tuple[tuple[str, str], ...], Measured] = {}

    def once(one: ServingModel) -> Measured:
        """Parts of one mix share idle replicas, and sizes at which a replica gets the same, but for rounding."""
        key = tuple((c.name, f"{c.rate_rps:.12g}") for c in one.classes)
        if key not in runs:
            runs[key] = measure(one)
        return runs[key]

    def sized(part: ServingModel) -> Size:
        if part not in known:
            known[part] = size(
                part, demand_rps=part.total_rate_rps, headroom=headroom, slos=slos, measure=once
            )
        return known[part]

    hours = tuple(
        Hour(part.start_s, part.end_s, None if part.model is None else sized(part.model))
        for part in parts(model)
    )
    needs = [hour.size for hour in hours if hour.size is not None] or [sized(model)]
    return Fleet(max(needs, key=lambda one: (one.replicas or math.inf, one.demand_rps)), hours)


def simulated(
    plan: Plan,
    policy: str,
    *,
    requests: int,
    seeds: Sequence[int],
    announce: Callable[[str, bool], None] | None = None,
) -> Measure:
    """How `size` measures in earnest: a policy on Poisson arrivals, the same seeds for every size.

    Parameters
    ----------
    plan : Plan
    policy : str
        Of `kvplan.simulation.policies.POLICIES`, with its defaults.
    requests : int
        Of one run of one replica.
    seeds : sequence of int
    announce : function, optional
        As for `kvplan.simulation.experiments.study.study`.

    Raises
    ------
    UsageError
        The policy does not exist, or has requests wait for others.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> model = ServingModel((RequestClass("a", 5, (2,), (1.0,), 0.01),), Timing(1.0), Replica(60))
    >>> found = simulated(Plan(), "vllm", requests=20, seeds=[0, 1])(model)
    >>> found.steady, found.figures["tpot_s.mean"].mean
    (True, 1.0)
    """
    from kvplan.simulation.experiments.load import Load
    from kvplan.simulation.experiments.options import chosen
    from kvplan.simulation.experiments.study import study
    from kvplan.simulation.metrics import RunStatus
    from kvplan.simulation.policies import POLICIES

    settings = chosen([policy], [])
    if POLICIES[policy].gathers:
        raise UsageError(
            f"--policy {policy}: has requests wait for others, so that more replicas can be slower"
        )

    def measure(model: ServingModel) -> Measured:
        found = study(model, plan, Load(requests=requests), settings, seeds, announce=announce)
        if found.interrupted:
            raise KeyboardInterrupt
        result = found.results[0]
        figures = {}
        for key in KEYS:
            block, _, name = key.partition(".")
            value = getattr(result, block)
            value = getattr(value, name) if name else value
            if value is not None:
                low, high = result.ci95[key] or (value, value)
                figures[key] = Estimate(value, low, high)
        return Measured(result.status is RunStatus.STEADY, figures)

    return measure
