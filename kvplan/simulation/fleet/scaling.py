"""When replicas of a fleet come and go: an autoscaler, and a plan that knows the schedule.

An autoscaler that looks at arrivals alone is a function of them, so that what it does is known before a run.
"""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from kvplan.model import FloatArray

_ROUNDING = 1e-9  # relative, of a rate that is exactly a threshold

Steps = Iterable[
    tuple[float, int]
]  # from when on how many replicas are wanted: ascending, the first from 0 s on


class Autoscaler(NamedTuple):
    """Looks at the mean arrival rate of the last window, at even times."""

    add_rps: float  # of a replica, above which more are wanted
    remove_rps: float  # fewer are wanted while they would carry less than this each; at most `add_rps`
    most: int  # replicas
    window_s: float  # of the mean; between two looks, the first of which is after a window
    every_s: float

    def steps(self, arrival_s: FloatArray, first: int, end_s: float) -> Iterator[tuple[float, int]]:
        """How many replicas it wants, from so many at first to the end.

        Examples
        --------
        A request a second, then three; a replica carries two:

        >>> arrivals = np.concatenate((np.arange(0.5, 30), np.arange(30.1, 60, 1 / 3)))
        >>> list(Autoscaler(2.0, 1.6, 9, window_s=10.0, every_s=5.0).steps(arrivals, 1, 60.0))
        [(0.0, 1), (40.0, 2)]
        """
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
        """Time that it is paid for, to `end_s` if it stays; `done_s`: when it was done with its last request.

        >>> Lifetime(0.0, 60.0, 300.0).paid_s(310.0, 900.0), Lifetime(0.0, 60.0).paid_s(310.0, 900.0)
        (310.0, 900.0)
        """
        if self.closes_s == math.inf:
            return end_s - self.starts_s
        return (max(self.closes_s, done_s) if self.opens else self.closes_s) - self.starts_s


def reactive(steps: Steps, load_s: float) -> list[Lifetime]:
    """Replicas that start when they are wanted, and load before they open; the last to start are the first to go.

    Those wanted from the beginning are loaded by then.
    """
    found: list[Lifetime] = []
    here: list[int] = []
    for time_s, wanted in steps:
        while len(here) > wanted:
            last = here.pop()
            found[last] = found[last]._replace(closes_s=time_s)
        while len(here) < wanted:
            here.append(len(found))
            found.append(Lifetime(time_s, time_s + load_s if time_s > 0 else 0.0))
    return found


def scheduled(steps: Steps, load_s: float) -> list[Lifetime]:
    """Replicas that start before they are wanted, and are loaded by then; one wanted again so soon stays."""
    found: list[Lifetime] = []
    here: list[int] = []
    gone: list[int] = []  # the last at the end
    for time_s, wanted in steps:
        while len(here) > wanted:
            last = here.pop()
            found[last] = found[last]._replace(closes_s=time_s)
            gone.append(last)
        while len(here) < wanted:
            if gone and found[gone[-1]].closes_s >= time_s - load_s:
                last = gone.pop()
                found[last] = found[last]._replace(closes_s=math.inf)
                here.append(last)
            else:
                here.append(len(found))
                found.append(Lifetime(max(time_s - load_s, 0.0), time_s))
    return found
