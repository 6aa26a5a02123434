"""Prompts in one of every so many iterations, of ranks that step together: where gaps bind, fewer of them see one."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from kvplan.engine import has_intervals
from kvplan.model import Engine
from kvplan.planning.search import Candidate, Found, Race, Setting, fewer
from kvplan.study.objectives import State

_INTERVALS = 2, 4, 8, 16  # from 20 on fewer than 5 % of gaps see a prompt, however long those gaps are


class Spaced(NamedTuple):
    """A size with prompts at an interval that costs less than any without, and the kind without it.

    Attributes
    ----------
    interval
        Iterations of which one computes prompts.
    replicas_without
        What the same kind takes without it, by short runs.
    """

    kind: Candidate
    found: Found
    without: Candidate
    interval: int
    replicas_without: int
    simulations: int

    def of(self, found: Race) -> Race:
        """Return the race in which it takes the place of the kind without."""
        sizes = {c: s for c, s in found.sizes.items() if c is not self.without}
        return found._replace(
            winner=self.kind,
            found=self.found,
            sizes={**sizes, self.kind: self.found.setting},
            simulations=found.simulations + self.simulations,
        )


def spaced(found: Race, tell: Callable[[str], None]) -> Spaced | None:
    """Look for an interval with which a kind costs less than the winner does, if gaps are why it does not."""
    if found.winner is None or found.found is None:
        return None
    least, best, seen = found.winner.cost(found.found.setting), None, list[Candidate]()
    for without, size in found.sizes.items():
        if not _may_have(without) or not _gaps_bind(without, size, _below(least, without)):
            continue
        tell(f"prompts at intervals on {without.name}")
        for kind in _at_intervals(without, size):
            seen.append(kind)
            setting = kind.fewest(_below(least, kind))
            while setting is not None and kind.cost(setting) < least:
                if (judged := kind.judge(setting)).state is State.HOLDS:
                    held = fewer(kind, Found(setting, judged))
                    least, best = kind.cost(held.setting), (kind, held, without, size.replicas)
                    break
                setting = kind.best(setting.replicas + 1)[0]
    if best is None:
        return None
    kind, held, without, replicas = best
    engine = kind.task.model.engine
    assert engine is not None
    simulations = sum(len(c.idle) + len(c.short) + len(c.long) for c in seen)
    return Spaced(kind, held, without, engine.prefill_interval, replicas, simulations)


def _below(cost: float, kind: Candidate) -> int:
    """Return the most replicas that cost less."""
    return math.ceil(cost / kind.price - 1e-9) - 1


def _may_have(kind: Candidate) -> bool:
    """Tell whether ranks step together, and their engine can have an interval and has none."""
    model = kind.task.model
    engine = model.engine or Engine()
    none = engine.prefill_interval == 1 and not model.by_priority
    return none and model.replica.ranks > 1 and has_intervals(engine)


def _gaps_bind(kind: Candidate, size: Setting, fewer: int) -> bool:
    """Tell whether so few replicas are enough for all objectives but those on gaps, by short runs."""
    gaps = {slo.key for slo in kind.task.plan.slos if slo.key.startswith("itl_s")}
    return bool(gaps) and kind.without(size, gaps).fewest(fewer) is not None


def _at_intervals(kind: Candidate, size: Setting) -> Iterator[Candidate]:
    model = kind.task.model
    for interval in _INTERVALS:
        engine = replace(model.engine or Engine(), prefill_interval=interval)
        yield kind.varied(size, replace(kind.task, model=replace(model, engine=engine)))
