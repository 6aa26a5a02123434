"""Placements of classes on replicas, by runs of the profile's engine: segregated, mixed and the best one found."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from kvplan.analysis.equilibrium import sustainable_rate
from kvplan.analysis.placement import Group, Rate, Search, give_replicas, partitions, search
from kvplan.errors import UsageError
from kvplan.model import ArrivalProcess, Plan, ServingModel
from kvplan.simulation.policies import engine_settings
from kvplan.study.operating_point import Latency, operating_point
from kvplan.study.recovery import Recovery, admissions_per_iteration, iterations_wanted, recovery

MAX_REPLICAS = 1_000_000
MOST_PARTS = 8  # groups of a placement; of more classes neighbours in decode length stay together
_BUDGET_S = 4.0  # counted work of what is measured; nothing more is looked at beyond
_RUN_S, _LENGTH_S, _REQUEST_S, _STEP_S = 0.05, 3e-4, 8e-6, 4e-7  # counted


class Pool(NamedTuple):
    """A group on its replicas; all else is of one of them, and `served_rps` under a backlog, from the worst start."""

    classes: tuple[str, ...]
    replicas: int
    offered_rps: float
    sustainable_rps: float
    served_rps: float
    recovery: Recovery
    latency: Latency

    @property
    def headroom(self) -> float:
        """Rate served under a backlog over the offered one, less 1."""
        return self.served_rps / self.offered_rps - 1


class Figure(NamedTuple):
    """A figure of all requests, and its 95 % interval, as in `Latency.ci95`."""

    value: float
    ci95: tuple[float, float | None] | None


class Placement(NamedTuple):
    """Rates of all replicas, and latencies at the offered rate, None where the queue of a group grows.

    `served_rps` of the offered requests are served while all groups have a backlog, `beyond_rps` are more than any
    policy serves; `headroom` is that of the tightest group.
    """

    offered_rps: float
    beyond_rps: float
    served_rps: float
    headroom: Figure
    ttft_s: Figure | None
    e2e_s: Figure | None
    preemptions_per_request: Figure | None
    groups: tuple[Pool, ...]


class Comparison(NamedTuple):
    """The placements named segregated, mixed and best; `left_out` is what the profile has and they do not look at."""

    replicas: int
    parts: int  # of which placements are made
    search: Search
    left_out: tuple[str, ...]
    placements: Mapping[str, Placement]


def placements_compared(model: ServingModel, plan: Plan, replicas: int) -> Comparison:
    """Measure the three placements of classes on so many replicas, which share a model's constant rates.

    Sessions are refused, and a prefix cache that finds something: what it does depends on who shares the replica.
    """
    _refuse_prefixes(model)
    extras = (("the schedule", model.schedule), ("the times of the trace", model.arrivals.trace))
    left_out = tuple(name for name, what in extras if what is not None)
    arrivals = model.arrivals if model.arrivals.trace is None else ArrivalProcess()
    steady = replace(model, fleet=None, schedule=None, arrivals=arrivals)
    everything, seen = tuple(range(len(model.classes))), dict[Group, Recovery]()
    # what is mixed is looked at with its share, for the digits of `analyze`
    part = cache(lambda group: subset(steady, group, replicas if group == everything else 1))
    offered: Rate = cache(lambda group: math.fsum(model.classes[i].rate_rps for i in group))
    sustainable: Rate = cache(lambda group: sustainable_rate(part(group))[1])
    work_s: Rate = cache(lambda group: _work_s(part(group)))

    def measure(group: Group) -> float:
        seen[group] = recovery(part(group), engine_settings(model))
        rate, most = seen[group].served_rps, sustainable(group)
        return (
            most if rate is None else min(max(rate, 1e-9 * most), most)
        )  # 0 where nothing completes any more

    def may_measure(groups: Sequence[Group]) -> bool:
        return sum(map(work_s, (*seen, *groups))) <= _BUDGET_S

    needs = [offered((i,)) / sustainable((i,)) for i in everything]
    parts, apart = (_parts(model, needs, most) for most in (MOST_PARTS, min(replicas, MOST_PARTS)))
    made = partitions(len(parts), replicas)
    ways = [_in_order(chain(*(parts[i] for i in group)) for group in way) for way in made]
    ways += [apart] * (apart not in ways)
    known = {group: measure(group) for group in dict.fromkeys((*apart, everything))}
    mixture = search(ways, replicas, offered, sustainable, measure, known, may_measure)

    @cache
    def pool(group: Group, given: int) -> Pool:
        share, names = subset(steady, group, given), tuple(model.classes[i].name for i in group)
        rates = share.total_rate_rps, sustainable(group), known[group]
        return Pool(names, given, *rates, seen[group], operating_point(share, plan).latency)

    @cache
    def placement(groups: tuple[Group, ...]) -> Placement:
        given = give_replicas([offered(g) for g in groups], [known[g] for g in groups], replicas)
        return _placement(tuple(map(pool, groups, given)))

    shown = {"segregated": apart, "mixed": (everything,), "best": mixture.best}
    placements = {name: placement(groups) for name, groups in shown.items()}
    return Comparison(replicas, len(parts), mixture, left_out, placements)


def _refuse_prefixes(model: ServingModel) -> None:
    if any(c.sessions is not None for c in model.classes):
        raise UsageError("mix places classes of requests, and the profile has [[sessions]]; see kvplan plan")
    if model.finds_prefixes:
        raise UsageError(
            "mix is for requests without prefixes in common: what a cache finds depends on who shares the replica. "
            "With prefix_caching = false in [gpu] it compares placements without one"
        )


def subset(model: ServingModel, classes: Sequence[int], replicas: int = 1) -> ServingModel:
    """Return the model of one of `replicas` that serve these classes alone."""
    kept = tuple(replace(model.classes[i], rate_rps=model.classes[i].rate_rps / replicas) for i in classes)
    share = math.fsum(c.rate_rps for c in kept) / model.total_rate_rps
    return replace(model, classes=kept, arrivals=model.arrivals.split(1 / share))


def _work_s(model: ServingModel) -> float:
    each = _STEP_S + _REQUEST_S * admissions_per_iteration(model)
    return _RUN_S + _LENGTH_S * model.mix.stages.size + iterations_wanted(model) * each


def _parts(model: ServingModel, needs: Sequence[float], most: int) -> tuple[Group, ...]:
    """Part the classes: each alone; of more than `most`, neighbours in decode length, about equally busy."""
    lengths = [float(np.average(c.decode_tokens, weights=c.decode_weights)) for c in model.classes]
    order = sorted(range(len(needs)), key=lambda i: (lengths[i], needs[i]))
    in_order = np.array([needs[i] for i in order])
    middles = (np.cumsum(in_order) - in_order / 2) / in_order.sum()
    place = np.arange(len(needs)) if len(needs) <= most else (most * middles).astype(int)
    return _in_order([order[i] for i in np.flatnonzero(place == at)] for at in np.unique(place))


def _in_order(groups: Iterable[Iterable[int]]) -> tuple[Group, ...]:
    return tuple(sorted(tuple(sorted(group)) for group in groups))


def _placement(pools: tuple[Pool, ...]) -> Placement:
    spare, tightest = min(p.headroom for p in pools), min(pools, key=attrgetter("headroom"))
    error = 1.96 * tightest.recovery.standard_error_rps / tightest.offered_rps
    return Placement(
        offered_rps=math.fsum(p.replicas * p.offered_rps for p in pools),
        beyond_rps=math.fsum(p.replicas * max(0.0, p.offered_rps - p.sustainable_rps) for p in pools),
        served_rps=math.fsum(p.replicas * min(p.offered_rps, p.served_rps) for p in pools),
        headroom=Figure(spare, (spare - error, spare + error)),
        ttft_s=_figure(pools, "ttft_s.mean"),
        e2e_s=_figure(pools, "e2e_s.mean"),
        preemptions_per_request=_figure(pools, "preemptions_per_request"),
        groups=pools,
    )


def _figure(pools: Sequence[Pool], key: str) -> Figure | None:
    """Average over the groups' requests; of one group, take its operating point's figure."""
    values = [attrgetter(key)(p.latency) for p in pools]
    ends = [p.latency.ci95.get(key) for p in pools]
    if None in values:
        return None
    if len(pools) == 1:
        return Figure(values[0], ends[0])
    rates = np.array([p.replicas * p.offered_rps for p in pools])
    value, shares = float(np.average(values, weights=rates)), rates / rates.sum()
    if any(end is None or end[1] is None for end in ends):
        return Figure(value, None)
    below, above = np.hypot.reduce(shares[:, None] * (np.array(ends) - np.array(values)[:, None]))
    return Figure(value, (value - float(below), value + float(above)))
