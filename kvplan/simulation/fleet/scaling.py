"""When replicas of a fleet come and go: an autoscaler, and a plan that knows the schedule.

An autoscaler that looks at arrivals alone is a function of them, so that what it does is known before a run.
"""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from kvplan.model import FloatArray

_ROUNDING = 1e-9  # relative, of a rate that is exactly a threshold

# from when on how many replicas are wanted: ascending, the first from 0 s on
Steps = Iterable[tuple[float, int]]


class Autoscaler(NamedTuple):
    """Looks at the mean arrival rate of the last window, at even times."""

    add_rps: float  # of a replica, above which more are wanted
    remove_rps: float  # fewer are wanted while they would carry less than this each; at most `add_rps`
    most: int  # replicas
    window_s: float  # of the mean
    every_s: float  # between two looks, the first of which is after a window

    def steps(self, arrival_s: FloatArray, first: int, end_s: float) -> Iterator[tuple[float, int]]:
        """Yield how many replicas it wants from when on, from so many at first to the end."""
        yield 0.0, first
        looks = math.floor((end_s - self.window_s) / self.every_s) + 1
        looks_s = self.window_s + np.arange(looks) * self.every_s
        begun, ended = (
            np.searchsorted(arrival_s, looks_s - back, side="right") for back in (self.window_s, 0)
        )
        rate = (ended - begun) / self.window_s
        least = np.ceil(rate / self.add_rps * (1 - _ROUNDING))
        most = np.floor(rate / self.remove_rps * (1 + _ROUNDING)) + 1
        new = np.flatnonzero(np.diff(least, prepend=-1) + np.diff(most, prepend=-1))
        wanted = first
        for time_s, low, high in zip(looks_s[new].tolist(), least[new], most[new], strict=True):
            then = int(min(max(wanted, low), high, self.most))
            if then != wanted:
                wanted = then
                yield time_s, wanted


class Lifetime(NamedTuple):
    """Of a replica: it is paid for from its start on, and takes requests from when its model is loaded to its end.

    What it has by then it still serves, and is paid for meanwhile. One that is taken away while it loads never opens.
    """

    starts_s: float
    opens_s: float
    closes_s: float = math.inf

    @property
    def opens(self) -> bool:
        """Whether it ever takes requests."""
        return self.opens_s < self.closes_s

    def paid_s(self, done_s: float, end_s: float) -> float:
        """Return the time that it is paid for, to `end_s` if it stays; `done_s`: when its last request was done.

        >>> Lifetime(0.0, 60.0, 300.0).paid_s(310.0, 900.0), Lifetime(0.0, 60.0).paid_s(310.0, 900.0)
        (310.0, 900.0)
        """
        if self.closes_s == math.inf:
            return end_s - self.starts_s
        return (max(self.closes_s, done_s) if self.opens else self.closes_s) - self.starts_s


def lifetimes(steps: Steps, load_s: float, *, planned: bool) -> list[Lifetime]:
    """Start replicas when they are wanted, or, where that is planned, so that they are loaded by then.

    Those wanted from the beginning are loaded by then. The last to start are the first to go; where it is planned, one
    that is wanted again before another could be loaded stays.
    """
    lives: list[Lifetime] = []
    here: list[int] = []
    gone: list[int] = []  # the last at the end
    for time_s, wanted in steps:
        while len(here) > wanted:
            gone.append(here.pop())
            lives[gone[-1]] = lives[gone[-1]]._replace(closes_s=time_s)
        while len(here) < wanted:
            if planned and gone and lives[gone[-1]].closes_s >= time_s - load_s:
                here.append(gone.pop())
                lives[here[-1]] = lives[here[-1]]._replace(closes_s=math.inf)
            else:
                here.append(len(lives))
                begins_s = max(time_s - load_s, 0.0) if planned else time_s
                lives.append(Lifetime(begins_s, time_s if planned or time_s == 0 else time_s + load_s))
    return lives
