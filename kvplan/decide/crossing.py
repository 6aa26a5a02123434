"""Split and together against the limit on the time between tokens, by formula and by simulation (theory §12).

A run at some rate has a figure of the time between tokens, the least limit that it keeps. So no limit needs runs of its
own: each candidate is simulated at the largest rate that all other objectives leave it and at some below, and what it
serves under any limit is read off between these. Near the limit at which split and together change places, further
candidates are simulated until the best there have been compared with their neighbours.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from kvplan.analysis.fleet import between_tokens_s
from kvplan.analysis.split import (
    Crossing,
    Side,
    Sides,
    best_crossing,
    best_split,
    not_covered,
    served,
    sides,
    together_rps,
)
from kvplan.decide.fixed_runs import Measure
from kvplan.decide.splitting import (
    LEAST_BUDGET,
    NEAR,
    Candidate,
    fleet_of,
    largest_rate,
    split_candidates,
    together_candidate,
)
from kvplan.errors import UsageError
from kvplan.model import FloatArray, ServingModel
from kvplan.model.fleet import Fleet
from kvplan.model.slo import Slo

_POINTS = 400
_NEAREST = 1.02  # times the shortest iteration
_AROUND = 2.0  # times the limits that are named
_RATE_STEP, _MOST_RATES = 1.15, 20  # from the largest rate of a candidate down
_ALIKE = 1.1  # limits between which nothing is looked for
_BUDGET_RATIO = 1.19  # between neighbours
_ENOUGH_TOKENS = 16_384  # a budget where the profile has none
_FIRST = 32  # candidates of either kind, evenly chosen


class Crossed(NamedTuple):
    """Where split and together serve the same in simulation, and the limits between which they are too near to tell."""

    itl_s: float
    low_s: float
    high_s: float
    split_wins_below: bool


@dataclass(frozen=True)
class Lines:
    """What the best split of so many GPUs serves, and the best of replicas that do both, under each limit.

    Attributes
    ----------
    key
        What is limited: the tightest objective on the time between tokens. All others stay.
    limit_s : ndarray, shape (n_limits,)
        Ascending.
    formula, simulated : ndarray, shape (2, n_limits)
        Requests/s, split first; NaN where no formula covers the traffic.
    own_s
        The objective itself.
    crossing, crossed
        By formula, and by simulation; None where one serves more under all limits.
    """

    key: str
    limit_s: FloatArray
    formula: FloatArray
    simulated: FloatArray
    own_s: float
    crossing: Crossing | None
    crossed: Crossed | None


class _Trace(NamedTuple):
    """Rates of a candidate, ascending, and the limits that they need, likewise.

    Between them a rate is linear in one over the limit, as it is in one over iteration times by a linear law.
    """

    rate_rps: FloatArray
    limit_s: FloatArray

    @classmethod
    def of(cls, found: Mapping[float, float]) -> "_Trace":
        """From limits by rate; what a rate needs, larger ones need as well."""
        rates, limits = np.array(sorted(found.items())).T
        return cls(rates, np.maximum.accumulate(limits))

    def served(self, limit_s: FloatArray) -> FloatArray:
        """The largest rate under each limit; 0 where none was simulated."""
        if not self.rate_rps.size:
            return np.zeros(limit_s.size)
        return np.asarray(np.interp(-1 / limit_s, -1 / self.limit_s, self.rate_rps, left=0.0))


@dataclass
class _Kind:
    """Candidates in an order in which they serve more and then less, and those of them that have been simulated."""

    candidates: Sequence[Candidate]
    trace: Callable[[Candidate, Callable[[FloatArray], FloatArray]], _Trace]
    traces: dict[int, _Trace] = field(default_factory=dict)

    def add(self, which: Iterable[int]) -> bool:
        """Simulate those that have not been; whether there were any."""
        new = sorted(set(which) - set(self.traces))
        for i in new:
            self.traces[i] = self.trace(self.candidates[i], self.most)
        return bool(new)

    def most(self, limit_s: FloatArray) -> FloatArray:
        """What the best serves under each limit."""
        served = [trace.served(limit_s) for trace in self.traces.values()]
        return np.asarray(np.max([np.zeros(limit_s.size), *served], axis=0))

    def beside_best(self, limit_s: FloatArray) -> set[int]:
        """Candidates half way from the best under each limit to the next that was simulated, on either side."""
        known = np.array(sorted(self.traces))
        rates = np.array([self.traces[i].served(limit_s) for i in known])
        best = np.unique(rates.argmax(axis=0))
        pairs = [(at, at + step) for at in best for step in (-1, 1) if 0 <= at + step < known.size]
        return {int(known[one] + known[other]) // 2 for one, other in pairs}


def lines(model: ServingModel, gpus: int, slos: Sequence[Slo], measure: Measure) -> Lines:
    """Both lines of so many GPUs; the arguments are those of `split_or_together`.

    Raises
    ------
    UsageError
        No objective on the time between tokens; no split.
    """
    own = limited(slos)
    others = [slo for slo in slos if slo.key != own.key]
    given = model.fleet or Fleet(replicas=1)
    formulas = sides(model, given)
    splits = list(split_candidates(given, formulas, gpus, math.inf))
    if not splits:
        raise UsageError("--split: the plot wants GPUs for a replica of each kind")
    covered = not_covered(model) is None
    crossing = best_crossing(formulas, gpus) if covered else None
    named = [
        own.bound,
        served(formulas.prefill).iteration_time_s,
        0.0 if crossing is None else crossing.itl_s,
    ]
    least = min(formulas.decode.timing.d0, formulas.together.timing.d0)
    limit_s = np.geomspace(
        _NEAREST * least, _AROUND * max(limit for limit in named if limit < math.inf), _POINTS
    )

    def trace(one: Candidate, known: Callable[[FloatArray], FloatArray]) -> _Trace:
        """Down to where others are known to serve as much to 2 % under the same limit, twice; closer where it bends.

        What else is to hold at the largest rate is taken to hold at smaller ones.
        """
        most = largest_rate(model, one, others, measure)
        if not most.goodput_rps:
            return _Trace(np.zeros(0), np.zeros(0))
        found = {most.goodput_rps: most.figures[own.key].high}

        def add(rate: float) -> None:
            found[rate] = measure(fleet_of(model, one, rate)).figures[own.key].high

        def others_serve(rate: float, limit: float) -> bool:
            return bool(known(np.array([limit]))[0] > (1 - NEAR) * rate)

        rate, worse = most.goodput_rps, 0
        while worse < 2 and found[rate] > limit_s[0] and len(found) < _MOST_RATES:
            rate /= _RATE_STEP
            add(rate)
            worse += others_serve(rate, found[rate])
        gaps = list(pairwise(sorted(found)))
        while gaps:
            low, high = gaps.pop()
            if high < (1 + NEAR) * low or found[high] < _ALIKE * found[low] or others_serve(high, found[low]):
                continue
            middle = math.sqrt(low * high)
            straight = _Trace.of({at: found[at] for at in (low, high)})
            add(middle)
            if abs(straight.served(np.array([found[middle]]))[0] - middle) > NEAR / 2 * middle:
                gaps += [(low, middle), (middle, high)]
        return _Trace.of(found)

    both = together_candidate(given, formulas, gpus, math.inf)
    kinds = [_Kind(splits, trace), _Kind(_with_budgets(both, formulas.together), trace)]
    simulated, crossed = _simulated(kinds, limit_s)
    formula = _by_formula(formulas, gpus, limit_s) if covered else np.full((2, _POINTS), np.nan)
    return Lines(own.key, limit_s, formula, simulated, own.bound, crossing, crossed)


def limited(slos: Sequence[Slo]) -> Slo:
    """The tightest objective on the time between tokens.

    Raises
    ------
    UsageError
        There is none.
    """
    tightest = between_tokens_s({slo.key: slo.bound for slo in slos})
    if tightest is None:
        raise UsageError(
            "--split: the plot wants an objective on the time between tokens, such as --slo 'itl_s.p99 <= 50 ms'"
        )
    return next(slo for slo in slos if slo.bound == tightest and between_tokens_s({slo.key: slo.bound}))


def _simulated(kinds: Sequence[_Kind], limit_s: FloatArray) -> tuple[FloatArray, Crossed | None]:
    for kind in kinds:
        last = len(kind.candidates) - 1
        kind.add(np.unique(np.linspace(0, last, _FIRST).round().astype(int)).tolist())
    while True:
        simulated = np.array([kind.most(limit_s) for kind in kinds])
        crossed = where_crossed(limit_s, *simulated)
        if crossed is None:
            return simulated, None
        near = np.array([crossed.low_s, crossed.itl_s, crossed.high_s])
        added = [kind.add(kind.beside_best(near)) for kind in kinds]
        if not any(added):
            return simulated, crossed


def _with_budgets(both: Candidate, side: Side) -> list[Candidate]:
    """Replicas that do both, with ever larger token budgets; with that of the profile last."""
    budgets, own = [], min(side.max_num_batched_tokens, _ENOUGH_TOKENS * _BUDGET_RATIO)
    while (own := own / _BUDGET_RATIO) > LEAST_BUDGET:
        budgets.append(int(own))
    smaller = []
    for budget in reversed(budgets):
        each_rps = served(replace(side, max_num_batched_tokens=float(budget))).rate_rps
        smaller.append(both._replace(budget_tokens=budget, formula_rps=both.fleet.replicas * each_rps))
    return [*smaller, both]


def where_crossed(limit_s: FloatArray, split_rps: FloatArray, together_rps: FloatArray) -> Crossed | None:
    """The last limit at which one ceases to serve more than the other, of those by 2 % at least on either side.

    Examples
    --------
    >>> limit = np.array([10e-3, 20e-3, 40e-3, 80e-3])
    >>> found = where_crossed(limit, np.array([4.0, 8.0, 9.9, 10.0]), np.array([2.0, 6.0, 10.0, 12.0]))
    >>> round(found.itl_s, 4), found.low_s, found.high_s, found.split_wins_below
    (0.0391, 0.02, 0.08, True)
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ahead = np.nan_to_num(np.log(split_rps) - np.log(together_rps), nan=0.0, posinf=1e3, neginf=-1e3)
    sure = np.flatnonzero(np.abs(ahead) > math.log1p(NEAR))
    turns = np.flatnonzero(np.diff(np.sign(ahead[sure])))
    if not turns.size:
        return None
    low, high = sure[turns[-1]], sure[turns[-1] + 1]
    sign = np.sign(ahead[low])
    at = low + np.flatnonzero(sign * ahead[low : high + 1] > 0)[-1]
    part = ahead[at] / (ahead[at] - ahead[at + 1])
    itl_s = limit_s[at] * (limit_s[at + 1] / limit_s[at]) ** part
    return Crossed(float(itl_s), float(limit_s[low]), float(limit_s[high]), bool(sign > 0))


def _by_formula(formulas: Sides, gpus: int, limit_s: FloatArray) -> FloatArray:
    limits = limit_s.tolist()
    best = [best_split(formulas, gpus, limit) for limit in limits]
    split = [0.0 if one is None else one.rate_rps for one in best]
    return np.array([split, [together_rps(formulas, gpus, limit) for limit in limits]])
