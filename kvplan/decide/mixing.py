"""Placements of classes on replicas, compared: by the formulas, and by simulation if that is wanted.

What the formulas do not tell apart for sure, and the two placements that need no search, are simulated on the same
arrivals, saturated. Of those whose demand beyond capacity is as small, within 1 %, the one is best that serves most
of the demand there, and then the one whose tightest group has most to spare.
"""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from kvplan.analysis.diversification import Diversification, diversification
from kvplan.analysis.equilibrium import saturation
from kvplan.analysis.mixing import Mixing, compare
from kvplan.analysis.placement import NEAR, Group, Placement
from kvplan.analysis.pool import subset
from kvplan.errors import UsageError
from kvplan.model import ArrivalProcess, Plan, ServingModel
from kvplan.simulation.experiments.pools import Pooled, Runs, measure, part, spread

POLICY = "greedy"  # what is simulated
TURNS = 30  # so many times what memory holds at the pace of the longest request, the requests of a run
LEAST_REQUESTS, MOST_REQUESTS = 6_000, 200_000  # of a run
_DIGITS = 9  # of shares, beyond which a difference is rounding


class Simulated(NamedTuple):
    """A placement in simulation; figures one a seed, those of the offered rates None where they were not run.

    Attributes
    ----------
    saturated, offered
        Of each group.
    served
        Share of the offered requests that the saturated groups serve.
    headroom
        What the saturated group with the least to spare serves, over what is offered to it, less 1.
    """

    saturated: tuple[Runs, ...]
    offered: tuple[Runs, ...] | None
    served: tuple[float, ...]
    headroom: tuple[float, ...]

    @property
    def key(self) -> tuple[float, float]:
        """Smaller is better."""
        seeds = len(self.served)
        return (
            round(-math.fsum(self.served) / seeds, _DIGITS),
            round(-math.fsum(self.headroom) / seeds, _DIGITS),
        )


class Contender(NamedTuple):
    """A placement and what became of it in simulation; None where it was not simulated, or could not be ended."""

    placement: Placement
    simulated: Simulated | None


class Comparison(NamedTuple):
    """All there is to say.

    Attributes
    ----------
    names
        Of the classes.
    segregated, mixed, best
        The placements of those names; the best one by simulation if there was one.
    contenders
        What the best was chosen from, in the order of the formulas.
    diversification
        Of the best placement.
    seeds
        Of the simulation; empty where nothing was simulated.
    scheduled
        Whether the profile has a schedule, which all this leaves out.
    arrivals
        Of all classes together.
    """

    names: tuple[str, ...]
    replicas: int
    mixing: Mixing
    segregated: Contender
    mixed: Contender
    best: Contender
    contenders: tuple[Contender, ...]
    diversification: Diversification
    policy: str
    seeds: tuple[int, ...]
    scheduled: bool = False
    arrivals: ArrivalProcess = ArrivalProcess()

    @property
    def offered_rps(self) -> float:
        """Requests/s of all classes."""
        return math.fsum(g.pool.offered_rps for g in self.best.placement.groups)

    @property
    def shown(self) -> tuple[Contender, ...]:
        """In the order of their names."""
        return self.segregated, self.mixed, self.best


def refuse_prefixes(model: ServingModel) -> None:
    """Placements are of requests that have nothing in common.

    Raises
    ------
    UsageError
        There are sessions, or a prefix cache that finds something: what it does depends on who shares the replica.
    """
    if any(c.sessions is not None for c in model.classes):
        raise UsageError(
            "mix places classes of requests one by one, and the profile has [[sessions]]; see kvplan size"
        )
    if model.finds_prefixes:
        raise UsageError(
            "mix is for requests that have no prefixes in common: what a prefix cache finds depends on who shares the "
            "replica. With prefix_caching = false in [gpu] it compares placements without one"
        )


def placements_compared(
    model: ServingModel,
    plan: Plan,
    replicas: int,
    *,
    requests: int | None,
    seeds: Sequence[int],
    progress: Callable[[float], None] | None = None,
    announce: Callable[[str, bool], None] | None = None,
) -> Comparison:
    """The three placements of a model's classes on so many replicas; at constant rates, whatever its schedule.

    Parameters
    ----------
    requests
        Of the simulated workload, over all replicas; None: as many as each group needs.
    seeds
        Of the simulation; none: by the formulas alone.
    progress
        Told the share that is done.
    announce
        As for `kvplan.simulation.experiments.study.study`.
    """
    constant = replace(model, schedule=None)
    mixing = compare(constant, replicas, progress=part(progress, 0.0, 0.4))
    apart, together, *near = (Contender(p, None) for p in (mixing.segregated, mixing.mixed, *mixing.near))
    contenders: tuple[Contender, ...] = (near[0],)
    best = near[0]
    if seeds:
        runs = _Simulation(constant, plan, requests, seeds, announce)
        placements = list(dict.fromkeys(c.placement for c in (*near, apart, together)))
        runs.run(placements, saturated=True, progress=part(progress, 0.4, 0.8))
        contenders = tuple(
            Contender(p, runs.of(p))
            for p in sorted(placements, key=lambda p: p.score.key)
            if p.score.unserved <= mixing.best.score.unserved + NEAR
        )
        best = min(contenders, key=lambda c: (0.0, 0.0) if c.simulated is None else c.simulated.key)
        shown = [c.placement for c in (apart, together, best)]
        runs.run(shown, saturated=False, progress=part(progress, 0.8, 1.0))
        apart, together, best = (Contender(p, runs.of(p)) for p in shown)
    return Comparison(
        names=tuple(c.name for c in model.classes),
        replicas=replicas,
        mixing=mixing,
        segregated=apart,
        mixed=together,
        best=best,
        contenders=contenders,
        diversification=diversification(constant, best.placement),
        policy=POLICY,
        seeds=tuple(seeds),
        scheduled=model.schedule is not None,
        arrivals=model.arrivals,
    )


class _Simulation:
    """Runs of groups; each once, though several placements may have it."""

    def __init__(
        self,
        model: ServingModel,
        plan: Plan,
        requests: int | None,
        seeds: Sequence[int],
        announce: Callable[[str, bool], None] | None,
    ) -> None:
        self._model, self._plan, self._requests = model, plan, requests
        self._seeds, self._announce = seeds, announce
        self._runs: dict[tuple[Group, bool], Runs | None] = {}

    def run(
        self, placements: Sequence[Placement], *, saturated: bool, progress: Callable[[float], None] | None
    ) -> None:
        groups = list(dict.fromkeys(g for p in placements for g in p.groups))
        measured = measure(
            self._model,
            [Pooled(g.classes, g.replicas, self._requests_of(g)) for g in groups],
            self._plan,
            saturated=saturated,
            seeds=self._seeds,
            policy=POLICY,
            progress=progress,
            announce=self._announce,
        )
        self._runs |= {(g, saturated): runs for g, runs in zip(groups, measured, strict=True)}

    def _requests_of(self, group: Group) -> int:
        if self._requests is not None:
            share = group.pool.offered_rps / self._model.total_rate_rps
            return spread(self._requests, share, group.replicas)
        return default_requests(subset(self._model, group.classes))

    def of(self, placement: Placement) -> Simulated | None:
        """What is known; None where a run could not be ended."""
        saturated, offered = (
            tuple(runs for g in placement.groups if (runs := self._runs.get((g, load))) is not None)
            for load in (True, False)
        )
        if len(saturated) < len(placement.groups):
            return None
        return Simulated(
            saturated=saturated,
            offered=offered if len(offered) == len(placement.groups) else None,
            **_worth(placement, saturated),
        )


def _worth(placement: Placement, saturated: Sequence[Runs]) -> dict[str, tuple[float, ...]]:
    rates = [g.pool.offered_rps for g in placement.groups]
    total = math.fsum(rates)
    capacities = list(
        zip(*(runs.throughput_rps for runs in saturated), strict=True)
    )  # of the groups, by seed
    return {
        "served": tuple(math.fsum(map(min, rates, each)) / total for each in capacities),
        "headroom": tuple(
            min(x / rate for x, rate in zip(each, rates, strict=True)) - 1 for each in capacities
        ),
    }


def over_groups(placement: Placement, runs: Sequence[Runs], figure: str) -> tuple[float, ...]:
    """A figure of a placement's requests, one a seed: that of its groups, weighted by what is offered to them."""
    rates = [g.pool.offered_rps for g in placement.groups]
    total = math.fsum(rates)
    by_seed = zip(*(getattr(one, figure) for one in runs), strict=True)
    return tuple(math.fsum(map(operator.mul, rates, each)) / total for each in by_seed)


def default_requests(model: ServingModel) -> int:
    """Requests of a run of one replica: so many that the longest are replaced several times over.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> default_requests(ServingModel((RequestClass("a", 10, (9,), (1.0,), 1.0),), Timing(1.0), Replica(9000)))
    18000
    """
    wanted = round(TURNS * saturation(model).admissions_per_iteration * int(model.mix.stages.max()))
    return min(max(wanted, LEAST_REQUESTS), MOST_REQUESTS)
