"""Replicas for a demand over the period of a schedule, and the profiles that are offered for it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from kvplan.analysis.population import with_part_of_users
from kvplan.analysis.worst_window import at_rates
from kvplan.decide.sizing import (
    Capacity,
    Measure,
    Size,
    Tell,
    capacity_rps,
    size,
    tell_nobody,
)
from kvplan.errors import UsageError
from kvplan.model import ArrivalProcess, ServingModel
from kvplan.model.fleet import Routing
from kvplan.model.slo import Slo
from kvplan.report.inputs import doubts
from kvplan.study.replicas import Kept, scaled
from kvplan.units import format_number

HOURS = 24  # into so many parts a sinusoid is cut


class Part(NamedTuple):
    """A stretch of a period with constant rates; model None where nobody arrives."""

    start_s: float
    end_s: float
    model: ServingModel | None


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
    """What one profile needs: for the part of its schedule that needs most, and in every hour of it, if it has one."""

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
    model: ServingModel,
    *,
    rate_rps: float | None,
    headroom: float,
    slos: Sequence[Slo],
    measure: Measure,
    router: Routing | None = None,
    capacity: Capacity = capacity_rps,
    tell: Tell = tell_nobody,
) -> Fleet:
    """What a profile needs, over its schedule if it has one and no trace; all else as for `size`.

    `rate_rps` is the total of the rates of the classes, which a schedule multiplies; None: as they stand.
    """
    if rate_rps is not None:
        users = [c.sessions.users for c in model.classes if c.sessions is not None and c.sessions.users]
        if rate_rps * min(users, default=math.inf) < (1 - 1e-9) * model.total_rate_rps:
            least = model.total_rate_rps / min(users)
            raise UsageError(
                f"--rate {rate_rps:g}: less than a user of each kind asks for, {least:.3g} requests/s"
            )
        model = with_part_of_users(model, rate_rps / model.total_rate_rps)
    known: dict[ServingModel, Size] = {}
    runs: dict[tuple[object, ...], Kept] = {}

    def once(one: ServingModel) -> Kept:
        """Parts of one mix share idle replicas, and sizes at which a replica gets the same, but for rounding."""
        key = (
            *((c.name, f"{c.rate_rps:.12g}") for c in one.classes),  # rates of users follow from how many
            (f"{one.arrivals.cv:.12g}", f"{one.arrivals.share:.12g}"),
            one.fleet,
        )
        if key not in runs:
            runs[key] = measure(one)
        return runs[key]

    served: list[float] = []  # by a replica, of what the formulas say: about as much in each part

    def sized(part: ServingModel) -> Size:
        if part not in known:
            known[part] = size(
                part,
                demand_rps=part.total_rate_rps,
                headroom=headroom,
                slos=slos,
                measure=once,
                router=router,
                capacity=capacity,
                served=max(served, default=1.0),
                tell=tell,
            )
            found = known[part]
            if found.replicas is not None and found.replicas > found.closed_form:
                served.append(found.needed_rps / found.replicas / found.sustainable_rps)
        return known[part]

    hours = tuple(
        Hour(part.start_s, part.end_s, None if part.model is None else sized(part.model))
        for part in (parts(model) if model.arrivals.trace is None else ())  # a trace varies by itself
    )
    needs = [hour.size for hour in hours if hour.size is not None] or [sized(model)]
    return Fleet(max(needs, key=lambda one: (one.replicas or math.inf, one.demand_rps)), hours)


def notes(model: ServingModel, needed: Size) -> tuple[str, ...]:
    """What the inputs of a size are worth, and how many replicas the error band of the timing makes of it."""
    one = model if needed.replicas is None else scaled(model, needed.needed_rps / needed.replicas)
    said = list(doubts(one))
    if model.measured.band is not None:
        ends = [math.ceil(needed.needed_rps * end / needed.sustainable_rps) for end in model.measured.band]
        times = " to ".join(format_number(end, 3) for end in model.measured.band)
        said.append(
            f"Error band of the timing: iterations took {times} times as long as it says, with which the formulas ask "
            f"for {' to '.join(f'{max(end, 1):,}' for end in ends)} replicas; simulated is the timing as it stands."
        )
    return tuple(said)


class Way(NamedTuple):
    """Replicas for a demand, one way.

    Attributes
    ----------
    has_tier
        Whether they have the host tier of the profile.
    longest_wait_s
        Longer than which no request may wait, so that a full replica comes back; None: the guaranteed rate is planned
        with, whatever waits.
    price
        Of a replica and hour.
    """

    has_tier: bool
    longest_wait_s: float | None
    fleet: Fleet
    price: float | None

    @property
    def cost(self) -> float | None:
        """Of an hour, in the mean over a period."""
        mean = self.fleet.mean_replicas
        return None if self.price is None or mean is None else self.price * mean


class Weighed(NamedTuple):
    """Ways to meet a demand with or without a host tier; the first of them without."""

    ways: tuple[Way, ...]

    def worth(self, way: Way) -> float | None:
        """By what share a replica may cost more that way before more GPUs are cheaper; None where nothing is enough."""
        alone, mean = self.ways[0].fleet.mean_replicas, way.fleet.mean_replicas
        return None if alone is None or not mean else alone / mean - 1

    def worth_per_hour(self, way: Way) -> float | None:
        """The same in money, of an hour of a replica."""
        share, price = self.worth(way), self.ways[0].price
        return None if share is None or price is None else share * price


class Offer(NamedTuple):
    """A profile and what it needs, at a price for a replica of so many GPUs and hour.

    The price is given to the label, a file's stem or the name of a shipped profile. `held` are the requests that memory
    holds when it is full, in the mean; `notes` say what its inputs are worth.
    """

    label: str
    name: str
    sha256: str
    fleet: Fleet
    gpus: int
    price: float | None
    held: float
    notes: tuple[str, ...] = ()
    has_sessions: bool = False
    arrivals: ArrivalProcess = ArrivalProcess()
    output_tokens: float = 1.0  # of a request, in the mean
    tier: Weighed | None = None  # its host tier against more GPUs

    @property
    def mean_gpus(self) -> float | None:
        """GPUs over a period in the mean; None where some part cannot be served."""
        mean = self.fleet.mean_replicas
        return None if mean is None else mean * self.gpus

    @property
    def cost(self) -> float | None:
        """Of an hour, in the mean over a period."""
        mean = self.fleet.mean_replicas
        return None if self.price is None or mean is None else self.price * mean

    @property
    def per_million_output_tokens(self) -> float | None:
        """Cost of a million output tokens at the demand, in the mean over a period without schedule."""
        if self.cost is None or self.fleet.hours:
            return None
        return self.cost / 3600 / (self.fleet.heaviest.demand_rps * self.output_tokens) * 1e6


class Sizing(NamedTuple):
    """The profiles that were offered, what each needs, and how that was found out."""

    offers: tuple[Offer, ...]
    headroom: float
    slos: tuple[Slo, ...]
    policy: str
    requests: tuple[int, ...]
    seeds: int

    @property
    def best(self) -> Offer | None:
        """The cheapest that is enough; without prices, the one with the fewest GPUs."""
        first = self.ranked[0]
        return None if first.fleet.heaviest.replicas is None else first

    @property
    def ranked(self) -> tuple[Offer, ...]:
        """The cheapest first, or the one with the fewest GPUs; what no number of replicas is enough for at the end."""
        return tuple(
            sorted(
                self.offers,
                key=lambda o: (o.fleet.heaviest.replicas is None, o.cost or 0.0, o.mean_gpus or 0.0, o.label),
            )
        )
