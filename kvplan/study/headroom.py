"""Headroom: growth of a service's demand up to which its replicas meet it, and recover."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from kvplan.analysis.cached_equilibrium import users_of, with_rates_of_users
from kvplan.analysis.worst_window import planned_for
from kvplan.model import Plan, ServingModel
from kvplan.model.fleet import AT_RANDOM
from kvplan.solve import least_whole
from kvplan.study.objectives import State
from kvplan.study.trial import Judged, Missed, Task

MOST = 0.5  # that is looked for
_STEP = 0.01  # of the demand
_LEAST, _MOST = -99, 50  # steps
_ABOUT = 3  # how near short runs tell


class Headroom(NamedTuple):
    """Share by which the demand as stated can grow, to one part in a hundred; negative where it is too much already."""

    ratio: float
    limit: str  # what ends it: an objective, "load", "queue" or "recovery"; empty where nothing does
    at_least: bool  # it was not looked for beyond


class Size(NamedTuple):
    """Replicas, what is asked of them, and the token budget of a rank."""

    task: Task
    replicas: int
    batched_tokens: int | None

    def judged(self, steps: int) -> Judged:
        """Decide about a demand that is so many per cent larger than stated."""
        return self._at(steps).judge_briefly(self.replicas, self.batched_tokens)

    def own(self) -> Judged:
        """Decide about the demand with the headroom that was asked for."""
        return self.task.judge(self.replicas, self.batched_tokens)

    def passes(self, steps: int) -> bool:
        """Decide by short runs; of layers, whose long runs are slow, with a burst, too."""
        task = self._at(steps)
        if not task.quick(self.replicas, self.batched_tokens).passes:
            return False
        if task.model.replica.layout is None:
            return True
        seen = task.recovers(self.replicas, self.batched_tokens, briefly=True)
        return seen is None or seen.state is not State.MISSES

    def _at(self, steps: int) -> Task:
        task = replace(self.task, headroom=_STEP * steps)
        if not users_of(task.model):  # what is sustained is the same at every rate
            self.task.sustainable_rps(self.batched_tokens)
            task.sustained.update(self.task.sustained)
        return task


def size_of(model: ServingModel, plan: Plan) -> Size:
    """Return the replicas of a profile, without a fleet one, as `plan` judges them."""
    fleet = model.fleet
    looks = fleet is not None and fleet.routing not in AT_RANDOM
    task = Task(
        planned_for(with_rates_of_users(replace(model, fleet=None))),  # users ask one replica less often
        plan,
        plan.slower,
        plan.headroom,
        router=fleet.routing if fleet is not None and looks else None,
        apart=fleet if fleet is not None and fleet.is_split else None,
    )
    return Size(task, 1 if fleet is None else fleet.size, model.replica.of_rank().max_num_batched_tokens)


def headroom(size: Size, own: Callable[[], Judged]) -> Headroom:
    """Find the headroom of the demand; `own` decides, where it matters, about the demand with the headroom asked for.

    Short runs say where to look, long ones decide.
    """
    judged = cache(size.judged)

    def holds(steps: int) -> bool:
        return judged(steps).state is State.HOLDS

    steps = _near(holds, _MOST if size.passes(_MOST) else _guess(size.passes))
    if steps == _MOST:
        return Headroom(MOST, "", at_least=True)
    missed = judged(steps + 1).missed
    asked = int(size.task.headroom / _STEP + 1e-9)
    if steps < asked and own().state is State.HOLDS:  # by longer runs
        steps = asked
    return Headroom(round(_STEP * steps, 2), missed[0] if missed else Missed.LOAD, at_least=False)


def _largest(holds: Callable[[int], bool], least: int, most: int) -> int:
    """Return the largest number up to which it holds, `least` where it never does."""
    return most - least_whole(lambda less: holds(most - less), -1, most - least)


def _guess(passes: Callable[[int], bool]) -> int:
    """Guess the largest number at which it passes."""
    low, high = (0, _MOST) if passes(0) else (_LEAST, 0)
    while high - low > _ABOUT:
        middle = (low + high) // 2
        low, high = (middle, high) if passes(middle) else (low, middle)
    return low


def _near(holds: Callable[[int], bool], guess: int) -> int:
    """Return the largest number at which it holds, searched from a guess: first one by one, then farther."""
    step = 1
    if holds(guess):
        while guess < _MOST and holds(min(guess + step, _MOST)):
            guess, step = min(guess + step, _MOST), 2 * step
        return guess if guess == _MOST else _largest(holds, guess, min(guess + step, _MOST) - 1)
    high = guess
    while guess > _LEAST and not holds(guess):
        high, guess, step = guess, max(guess - step, _LEAST), 2 * step
    return _largest(holds, guess, high - 1)
