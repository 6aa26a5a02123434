"""Decisions whether so many replicas keep the objectives of a demand, by runs that are long enough to tell.

A fleet to which requests come at random is judged by one of its replicas, which gets each with probability 1/N, of
arrivals that cluster, or were recorded, as the model says. Where the router looks, or knows sessions, all replicas are
simulated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kvplan.analysis.cached_equilibrium import users_of, with_part_of_users, with_rates_of_users
from kvplan.analysis.worst_window import at_rates
from kvplan.model import Plan, ServingModel
from kvplan.model.fleet import Fleet, Routing
from kvplan.model.slo import KEYS
from kvplan.simulation.estimates import Estimate, Trend
from kvplan.simulation.policies.protocol import Settings
from kvplan.study.objectives import LONG, Decision, Objective, State, at_even_odds, decisions, overall
from kvplan.study.operating_point import BUDGET_S, RUNS, Observation, observe

MOST_SIMULATED = 64  # replicas of a fleet; more of them only even out more of what chance does
_LEAST_SIMULATED = 16  # fewer would find the prefixes of turns too often
_MOST_ITERATIONS = 250_000  # of one request on every simulated replica; of long ones fewer stand for all
_MOST_PLACES = 1 << 25  # of the longest request on each of them, eight bytes an iteration


class Kept(NamedTuple):
    """Result of runs of some replicas.

    `decided` has each objective, `figures` all of `kvplan.model.slo.KEYS` that there are, none where the queue grows;
    `suffices`: as many requests were completed as it takes to say that all objectives hold.
    """

    trend: Trend
    decided: tuple[Decision, ...]
    figures: Mapping[str, Estimate]
    suffices: bool = True

    @property
    def state(self) -> State:
        """State of all objectives together, and of the queue, which has to be steady."""
        state = _state(self.trend, self.decided)
        return State.OPEN if state is State.HOLDS and not self.suffices else state


def keeps(
    model: ServingModel,
    plan: Plan,
    settings: Settings,
    objectives: Sequence[Objective],
    *,
    stream: int = 0,
    budget_s: float = BUDGET_S,
    requests: int | None = None,
    runs: int = RUNS,
    least: int = LONG,
    doubt: bool = True,
) -> Kept:
    """Decide whether replicas keep the objectives, with longer and longer runs.

    `model` is what `stand_in` makes of a number of replicas; without objectives the queue alone decides. `requests` are
    those of each run of the first round, at least. Nothing holds before `least` were completed in all runs: in short
    runs a queue has no time to grow, and rare events do not happen. Without `doubt` runs decide by the figures as
    they are then.
    """

    def is_decided(seen: Observation) -> bool:
        state = _state(seen.trend, decisions(seen, objectives))
        is_long = seen.sample.completed >= least
        return state is State.MISSES or (is_long and (state is State.HOLDS or not doubt))

    seen = observe(
        model, plan, settings, is_decided, stream=stream, budget_s=budget_s, requests=requests, runs=runs
    )
    suffices = least <= LONG or seen.sample.completed >= least
    decided = decisions(seen, objectives)
    if not doubt:
        decided = tuple(map(at_even_odds, decided))
    return Kept(seen.trend, decided, dict(_figures(seen)), suffices)


def _state(trend: Trend, decided: Sequence[Decision]) -> State:
    if trend is Trend.GROWING:
        return State.MISSES
    return State.OPEN if trend is Trend.UNDECIDED and not decided else overall(decided)


def _figures(seen: Observation) -> list[tuple[str, Estimate]]:
    if seen.trend is Trend.GROWING:
        return []
    estimates = [(key, seen.sample.figure(key)) for key in KEYS]
    return [(key, figure) for key, figure in estimates if figure is not None]


def scaled(model: ServingModel, rate_rps: float) -> ServingModel:
    """Return the mix at another total rate, constant; of users as many more or fewer, whole ones."""
    factor = rate_rps / model.total_rate_rps
    if users_of(model):
        return with_rates_of_users(with_part_of_users(replace(model, schedule=None), factor))
    return at_rates(model, [c.rate_rps * factor for c in model.classes])


def stand_in(
    model: ServingModel, rate_rps: float, replicas: int, router: Routing | None = None
) -> ServingModel:
    """Return the model to simulate for so many replicas that share a total rate.

    Without a router one of them, to which requests are sent at random, and the turns of its sessions; else all, of more
    than `most_simulated` so many with their part of the arrivals at random.

    Examples
    --------
    >>> from kvplan.model import ArrivalProcess, Replica, RequestClass, Timing
    >>> clumps = ArrivalProcess(cv=3.0)
    >>> model = ServingModel((RequestClass("a", 5, (1,), (1.0,), 2.0),), Timing(1.0), Replica(60), arrivals=clumps)
    >>> half = stand_in(model, 8.0, 128, Routing.LEAST_KV)
    >>> half.total_rate_rps, round(half.arrivals.cv ** 2, 9), half.fleet.size
    (4.0, 5.0, 64)
    """
    size = 1 if router is None else min(replicas, most_simulated(model))
    fleet = None if router is None or size == 1 else Fleet(replicas=size, routing=router)
    part = scaled(replace(model, fleet=fleet), rate_rps * size / replicas)
    return replace(part, arrivals=model.arrivals.split(replicas / size))


def most_simulated(model: ServingModel) -> int:
    """Return the most replicas that are simulated: fewer than 64 where requests take thousands of iterations."""
    mix, budget = model.mix, model.replica.max_num_batched_tokens
    iterations = mix.mean(mix.stages)
    if budget is not None:
        iterations += mix.mean(mix.prefill_tokens) / budget
    most = min(MOST_SIMULATED, _MOST_PLACES // int(mix.stages.max()))
    return min(max(int(_MOST_ITERATIONS / (1 + iterations)), _LEAST_SIMULATED), most)
