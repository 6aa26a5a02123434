"""Objectives decided by runs: a figure is within its limit, it is not, or the runs leave it open.

A percentile is decided by the share of values beyond its limit, which is well behaved where the percentile itself sits
on a cliff; a mean by its own interval. Runs are looked at again and again while they get longer, and short ones may
have missed what happens rarely, so that intervals are wider than those of a figure that is only shown.
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from kvplan.model import Plan, ServingModel
from kvplan.model.slo import Slo
from kvplan.simulation.estimates import QUANTILES, Estimate, Trend
from kvplan.simulation.policies.protocol import Settings
from kvplan.simulation.state import GAPS_IN_E
from kvplan.study.operating_point import BUDGET_S, Observation, observe
from kvplan.study.sample import ITL, Sample

LOOKS = 1.3  # times as wide, for about ten looks at runs that grow
_SHORT = 3.0  # times as wide again, of fewer completions than `LONG`
LONG = 34_000
_ROUNDING = 1 + 1e-6  # times the limit: what exceeds it by less is the limit, but for the clock's digits
_HALF_BIN = math.exp(0.5 / GAPS_IN_E)  # times the limit of a mean of gaps, each of which is known to that


class State(StrEnum):
    """State of an objective."""

    HOLDS = "holds"
    MISSES = "misses"
    OPEN = "open"


class Objective(Protocol):
    """An upper bound of a figure, such as `kvplan.model.slo.Slo`: seconds or a share."""

    @property
    def key(self) -> str: ...

    @property
    def bound(self) -> float: ...


class Decision(NamedTuple):
    """An objective and its state."""

    key: str
    limit: float
    state: State
    # the figure and its 95 % interval, without ends of one replay of a trace, and where the runs do not show them;
    # all None where no request has the figure, or the queue grows
    value: float | None
    low: float | None
    high: float | None
    # of the values, those beyond the limit, how far off that may be either way, and how many may be; of a mean, the
    # mean as a multiple of its limit, where 1 is allowed
    share: float
    width: float
    allowed: float

    @property
    def excess(self) -> float:
        """ln(share / allowed): negative where there is room."""
        return math.log(self.share / self.allowed) if self.share > 0 else -math.inf


def decide(
    model: ServingModel,
    plan: Plan,
    settings: Settings,
    objectives: Sequence[Objective],
    *,
    which: int | None = None,
    stream: int = 0,
    budget_s: float = BUDGET_S,
) -> tuple[Decision, ...]:
    """Decide objectives at the model's own rates, with more runs until none is open or the budget is used up.

    `which`: only requests of the class with this index; `stream` and `budget_s` as for
    `kvplan.study.operating_point.observe`.

    Examples
    --------
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> from kvplan.model.slo import parse_slo
    >>> model = ServingModel((RequestClass("a", 20, (5,), (1.0,), 10.0),), Timing(0.01), Replica(10_000))
    >>> slos = [parse_slo("itl_s.mean <= 11 ms"), parse_slo("e2e_s.p90 <= 50 ms")]
    >>> [d.state.value for d in decide(model, Plan(), Settings("vllm", {}), slos)]
    ['holds', 'misses']
    """

    def all_decided(seen: Observation) -> bool:
        return all(d.state is not State.OPEN for d in decisions(seen, objectives, which))

    seen = observe(model, plan, settings, all_decided, stream=stream, budget_s=budget_s)
    return decisions(seen, objectives, which)


def decisions(
    seen: Observation, objectives: Sequence[Objective], which: int | None = None
) -> tuple[Decision, ...]:
    """Decide objectives by these runs."""

    def sample(o: Objective) -> Sample:
        own = o.which if isinstance(o, Slo) and o.which is not None else which
        return seen.sample if own is None else seen.sample.of_class(own)

    return tuple(_decision(sample(o), seen, o.key, o.bound) for o in objectives)


def at_even_odds(decision: Decision) -> Decision:
    """Decide open objectives by the share beyond the limit."""
    if decision.state is not State.OPEN:
        return decision
    return decision._replace(state=State.HOLDS if decision.share <= decision.allowed else State.MISSES)


def overall(decided: Sequence[Decision]) -> State:
    """Return the state of several objectives together: one that misses is enough to miss."""
    states = {d.state for d in decided}
    return next((s for s in (State.MISSES, State.OPEN) if s in states), State.HOLDS)


def _decision(sample: Sample, seen: Observation, key: str, limit: float) -> Decision:
    of = key.partition(" of ")[0]
    time, _, figure = of.partition(".")
    allowed = 1 - QUANTILES[figure] if figure in QUANTILES else 1.0
    shown = sample.figure(of)
    if shown is None:
        if seen.trend is Trend.GROWING:
            state = State.MISSES
        else:
            state = State.HOLDS if sample.times("e2e_s").total else State.OPEN
        return Decision(key, limit, state, None, None, None, 0.0, 0.0, allowed)
    if figure in QUANTILES:
        times = sample.times(time)
        above = times.share_above(limit * _ROUNDING)
        share, width = above.value, above.half_width or 1 / times.total
    else:
        share, width = _over_limit(shown, limit * (_HALF_BIN if time == ITL else _ROUNDING))
    if seen.is_replay:
        width = 0.0
    else:
        width *= LOOKS * (_SHORT if sample.times("e2e_s").total < LONG else 1.0)
    state = _state(share, width, allowed, seen)
    if seen.trend is Trend.GROWING:
        return Decision(key, limit, state, None, None, None, share, width, allowed)
    low, high = (None, None) if seen.is_replay else (shown.low, shown.high)
    high = None if high is None or math.isinf(high) else high
    return Decision(key, limit, state, shown.value, low, high, share, width, allowed)


def _over_limit(shown: Estimate, limit: float) -> tuple[float, float]:
    if limit <= 0:
        return (math.inf, 0.0) if shown.value > limit else (0.0, 0.0)
    return shown.value / limit, (shown.high - shown.value) / limit


def _state(share: float, width: float, allowed: float, seen: Observation) -> State:
    if seen.trend is Trend.GROWING or share - width > allowed:
        return State.MISSES
    within = share + width <= allowed
    return State.HOLDS if within and (seen.trend is Trend.STEADY or seen.is_replay) else State.OPEN
