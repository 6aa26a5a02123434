"""Prompts in one of every so many iterations, of ranks that step together: where gaps bind, fewer of them see one."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from kvplan.engine import has_intervals
from kvplan.model import Engine
from kvplan.planning.search import Candidate, Found, Race, fewer
from kvplan.study.objectives import State

_INTERVALS = 2, 4, 8, 16  # from 20 on fewer than 5 % of gaps see a prompt, however long those gaps are


class Spaced(NamedTuple):
    """A kind with prompts at an interval, which costs less than any without: iterations of which one computes some.

    `replicas_without` are those of the same kind `without` it, by short runs where that is not the winner.
    """

    kind: Candidate
    found: Found
    interval: int
    without: Candidate
    replicas_without: int

    def of(self, race: Race) -> Race:
        """Return the race with it in the place of the kind without."""
        sizes = {c: s for c, s in race.sizes.items() if c is not self.without}
        sizes[self.kind] = self.found.setting
        return race._replace(winner=self.kind, found=self.found, sizes=sizes)


def spaced(race: Race, tell: Callable[[str], None]) -> Spaced | None:
    """Look for an interval with which a kind costs less than the winner, where gaps are what binds it."""
    if race.winner is None or race.found is None:
        return None
    best, least = None, race.winner.cost(race.found.setting)
    for kind, size in race.sizes.items():
        model, slos = kind.task.model, kind.task.plan.slos
        engine, gaps = model.engine or Engine(), {slo.key for slo in slos if slo.key.startswith("itl_s")}
        free = engine.prefill_interval == 1 and not model.by_priority and has_intervals(engine)
        if not (gaps and free and model.replica.ranks > 1):
            continue
        if kind.without(size, gaps).fewest(_most(kind, least)) is None:
            continue
        tell(f"prompts at intervals on {kind.name}")
        for interval in _INTERVALS:
            at_interval = replace(model, engine=replace(engine, prefill_interval=interval))
            other = kind.varied(size, replace(kind.task, model=at_interval))
            if (fewest := _found(other, _most(other, least))) is not None:
                least, best = other.cost(fewest.setting), Spaced(other, fewest, interval, kind, size.replicas)
    return best


def _most(kind: Candidate, cost: float) -> int:
    """Return the most replicas that cost less."""
    return math.ceil(cost / kind.price - 1e-9) - 1


def _found(kind: Candidate, most: int) -> Found | None:
    """Return the fewest replicas that long runs confirm, if they are not too many."""
    setting = kind.fewest(most)
    while setting is not None and setting.replicas <= most:
        if (judged := kind.judge(setting)).state is State.HOLDS:
            return fewer(kind, Found(setting, judged))
        setting = kind.best(setting.replicas + 1)[0]
    return None
