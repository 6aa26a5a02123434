"""Replicas of a fleet that come and go: by a plan that knows the schedule, and by autoscalers.

An autoscaler that looks at arrivals alone is a function of them, and known before a run. Others look at replicas
while these run: a `Control`, which `Pods` obey.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from kvplan.model import FloatArray, IntArray

_ROUNDING = 1e-9  # relative, of a rate that is exactly a threshold
SCRAPE_S = 15.0  # between two looks of what an autoscaler asks, where nobody says
_TOLERANCE = 0.1  # of the ratio of a metric to its target: `--horizontal-pod-autoscaler-tolerance`
_LEAST_WINDOW_S, _SCRAPES = 60.0, 4  # over which autoscalers average: at least so long, and so many looks
_ONE_GOES_S = 60.0  # between two replicas that go

_Seen = TypeVar("_Seen", bound=tuple[Any, ...])

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
        """Yield times and numbers of replicas wanted from then on, from `first` to the end."""
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
    """Life of a replica: paid for from its start on, it takes requests from when its model is loaded to its end.

    It still serves its requests then, and is paid for meanwhile. One that is taken away while it loads never opens.
    """

    starts_s: float
    opens_s: float
    closes_s: float = math.inf

    @property
    def opens(self) -> bool:
        """Tell whether it ever takes requests."""
        return self.opens_s < self.closes_s

    def paid_s(self, done_s: float, end_s: float) -> float:
        """Return the time that it is paid for, to `end_s` if it stays; `done_s`: when its last request was done.

        >>> Lifetime(0.0, 60.0, 300.0).paid_s(310.0, 900.0), Lifetime(0.0, 60.0).paid_s(310.0, 900.0)
        (310.0, 900.0)
        """
        if self.closes_s == math.inf:
            return end_s - self.starts_s
        return (max(self.closes_s, done_s) if self.opens else self.closes_s) - self.starts_s


def window_s(scrape_s: float, least_s: float = _LEAST_WINDOW_S) -> float:
    """Return a window of at least so long in which a rate can be seen: of four scrapes.

    >>> window_s(15.0), window_s(60.0)
    (60.0, 240.0)
    """
    return max(least_s, _SCRAPES * scrape_s)


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


class Latencies(NamedTuple):
    """Latencies of requests that came to their first or last token in a window, seconds."""

    ttft_s: FloatArray = np.empty(0)
    tpot_s: FloatArray = np.empty(0)


class Gauges(NamedTuple):
    """Gauges of replicas at a time; arrays over those that serve, shape (n_replicas,)."""

    time_s: float
    arrived: int  # requests that the router has sent so far
    in_flight: IntArray  # requests that run or wait
    waiting: IntArray
    kv_usage: FloatArray  # share of the memory
    sites: IntArray  # where they are
    latencies: Callable[[], Latencies] = Latencies  # since the last look


class Control(Protocol):
    """Chooses the number of replicas."""

    def wanted(self, seen: Gauges, there: int, ready: int) -> int:
        """Return the number wanted; `there` are there, `ready` of them loaded."""


class Pods:
    """Replicas that a control starts and stops while a fleet runs.

    A run has `sites` for them; a site is free again when its replica is done. The last to start are the first to go.
    Those that are stopped serve what they have, and count as serving until then.
    """

    def __init__(self, control: Control, first: int, sites: int, load_s: float, every_s: float) -> None:
        self.control, self.sites, self.load_s, self.every_s = control, sites, load_s, every_s
        self._lives = {site: Lifetime(0.0, 0.0) for site in range(first)}  # in the order of their starts
        self._leaving: dict[int, Lifetime] = {}
        self._paid_s = 0.0  # for those that are done
        self._looks_s = every_s

    def open(self, now: float) -> list[int]:
        """Return the sites whose replicas take requests."""
        return [site for site, life in self._lives.items() if life.opens_s <= now]

    def next_s(self, now: float) -> float:
        """Return the next time a replica opens, or the control looks."""
        return min([life.opens_s for life in self._lives.values() if life.opens_s > now] + [self._looks_s])

    def step(
        self,
        now: float,
        arrived: int,
        in_flight: IntArray,
        waiting: IntArray,
        kv_usage: FloatArray,
        done_s: FloatArray,
        latencies: Callable[[], Latencies] = Latencies,
    ) -> list[int]:
        """Obey the control, if it is time; return the sites at which replicas start.

        Arrays are over sites; `done_s` is when each last ended an iteration.
        """
        for site in [site for site in self._leaving if in_flight[site] == 0]:
            self._paid_s += self._leaving.pop(site).paid_s(float(done_s[site]), now)
        if now < self._looks_s:
            return []
        self._looks_s += self.every_s
        ready = self.open(now)
        sites = np.array([*ready, *self._leaving])
        seen = Gauges(now, arrived, in_flight[sites], waiting[sites], kv_usage[sites], sites, latencies)
        wanted = self.control.wanted(seen, len(self._lives), len(ready))
        while len(self._lives) > wanted:
            site, life = self._lives.popitem()
            life = life._replace(closes_s=now)
            if life.opens:
                self._leaving[site] = life
            else:
                self._paid_s += life.paid_s(now, now)
        free = [site for site in range(self.sites) if site not in self._lives and site not in self._leaving]
        started = free[: wanted - len(self._lives)]
        self._lives |= {site: Lifetime(now, now + self.load_s) for site in started}
        return started

    def paid_s(self, done_s: FloatArray, end_s: float) -> float:
        """Return the time that all replicas are paid for, to the end of a run; arguments as for `step`."""
        there = [*self._lives.items(), *self._leaving.items()]
        return self._paid_s + math.fsum(life.paid_s(float(done_s[site]), end_s) for site, life in there)


class Watch:
    """Keeps gauges, and changes nothing."""

    def __init__(self) -> None:
        self.seen: list[Gauges] = []

    def wanted(self, seen: Gauges, there: int, ready: int) -> int:
        """Keep these gauges."""
        self.seen.append(seen)
        return there


class Metric(StrEnum):
    """Metrics of an autoscaler's triggers, means over a window; all but KV usage are sums over replicas."""

    ARRIVALS = "arrivals"
    IN_FLIGHT = "in_flight"
    WAITING = "waiting"
    KV_USAGE = "kv_usage"  # mean over replicas


class HorizontalPodAutoscaler:
    """Wants what the largest of its triggers asks for, as a HorizontalPodAutoscaler does.

    A sum is shared evenly: `AverageValue`. A mean over replicas is compared with its target, and those that are loaded
    are multiplied by the ratio: `Value`. A ratio near 1 changes nothing. More are wanted at once, fewer once no more
    were for a while, and then one goes a minute.

    References
    ----------
    Kubernetes 1.31, `pkg/controller/podautoscaler/replica_calculator.go` and `horizontal.go`.
    """

    def __init__(
        self,
        triggers: Mapping[Metric, float],
        least: int,
        most: int,
        down_s: float,
        scrape_s: float = SCRAPE_S,
    ) -> None:
        self.triggers, self.least, self.most, self.down_s = triggers, least, most, down_s
        self.scrape_s, self.window_s = scrape_s, window_s(scrape_s)
        self._window: deque[Gauges] = deque()
        self._wishes: deque[tuple[float, int]] = deque()
        self._went_s = -math.inf

    def wanted(self, seen: Gauges, there: int, ready: int) -> int:
        """Return how many replicas should be there now."""
        now = seen.time_s
        if not self._window or now >= self._window[-1].time_s + self.scrape_s:
            self._window.append(seen)
        while self._window[0].time_s < self._window[-1].time_s - self.window_s:
            self._window.popleft()
        wishes = [self._wish(metric, target, there, ready) for metric, target in self.triggers.items()]
        self._wishes.append((now, min(max(self.least, *wishes), self.most)))
        while self._wishes[0][0] < now - self.down_s:
            self._wishes.popleft()
        wish = self._wishes[-1][1]
        if wish >= there:
            return wish
        wish = max(wish for _, wish in self._wishes)
        if wish >= there or now < self._went_s + _ONE_GOES_S:
            return there
        self._went_s = now
        return there - 1

    def _wish(self, metric: Metric, target: float, there: int, ready: int) -> int:
        average = metric is not Metric.KV_USAGE
        ratio = self._measured(metric) / (target * there if average else target)
        if abs(ratio - 1) <= _TOLERANCE:
            return there
        return math.ceil(ratio * (there if average else ready) * (1 - _ROUNDING))

    def _measured(self, metric: Metric) -> float:
        first, last = self._window[0], self._window[-1]
        if metric is Metric.ARRIVALS:
            return (last.arrived - first.arrived) / max(last.time_s - first.time_s, self.window_s / 2)
        within = [getattr(s, metric) for s in self._window if s.time_s > last.time_s - self.window_s]
        shown = [values.mean() if metric is Metric.KV_USAGE else values.sum() for values in within]
        return math.fsum(shown) / len(shown)


class LatencyRule:
    """Scales by the 90th percentiles of latency over their limits in the last minute, as llm-d's guide to SLOs does.

    The larger ratio, at most 2 and smoothed over 45 s, is to be between .40 and .55. Those that load are credited. More
    are wanted after 30 s, at most as many in a minute as there are or four; fewer after three minutes, one in two. The
    router predicts what comes: as long as those that wait take at the rate at which requests are done.

    References
    ----------
    llm-d, "SLO-Aware Autoscaling with KEDA and Predicted Latency" (`guides/workload-autoscaling`), July 2026.
    """

    UP, DOWN, CLAMP, QUANTILE = 0.55, 0.40, 2.0, 0.9
    SMOOTH_S, UP_S, DOWN_S, ONE_GOES_S = 45.0, 30.0, 180.0, 120.0
    FOUR, MINUTE_S = 4, 60.0

    def __init__(
        self, limits: Mapping[str, float], least: int, most: int, scrape_s: float = SCRAPE_S
    ) -> None:
        self.limits = {key: limit for key, limit in limits.items() if key in Latencies._fields}
        self.least, self.most, self.window_s = least, most, window_s(scrape_s)
        self._window: deque[tuple[float, int, Latencies]] = deque()
        self._ratios: deque[tuple[float, float]] = deque()
        self._wishes: deque[tuple[float, int]] = deque()
        self._there: deque[tuple[float, int]] = deque()
        self._went_s = -math.inf

    def wanted(self, seen: Gauges, there: int, ready: int) -> int:
        """Return how many replicas should be there now."""
        now = seen.time_s
        _keep(self._window, (now, int(seen.waiting.sum()), seen.latencies()), self.window_s)
        _keep(self._ratios, (now, min(self._ratio(), self.CLAMP)), self.SMOOTH_S)
        _keep(self._wishes, (now, min(max(self._wish(there, ready), self.least), self.most)), self.DOWN_S)
        _keep(self._there, (now, there), self.MINUTE_S)
        first = self._there[0][1]
        least = min(wish for time_s, wish in self._wishes if time_s > now - self.UP_S)
        if least > there:
            return max(min(least, max(2 * first, first + self.FOUR)), there)
        most = max(wish for _, wish in self._wishes)
        if most >= there or now < self._went_s + self.ONE_GOES_S:
            return there
        self._went_s = now
        return there - 1

    def _ratio(self) -> float:
        """Return the largest of latencies over their limits; 0 while nobody comes."""
        ratios = [0.0]
        for key, limit in self.limits.items():
            values = np.concatenate([getattr(shown, key) for _, _, shown in self._window])
            if values.size:
                ratios.append(float(np.quantile(values, self.QUANTILE)) / limit)
        done = sum(shown.tpot_s.size for _, _, shown in self._window)
        if done and "ttft_s" in self.limits:
            wait_s = max(waiting for _, waiting, _ in self._window) * self.window_s / done
            ratios.append(wait_s / self.limits["ttft_s"])
        return max(ratios)

    def _wish(self, there: int, ready: int) -> int:
        ratio = math.fsum(ratio for _, ratio in self._ratios) / len(self._ratios)
        if ratio > self.UP:
            return there + math.ceil(there * (ratio * (min(ready / there, 1) or 1) / self.UP - 1))
        if ratio < self.DOWN:
            return there - math.floor(there * (1 - ratio / self.DOWN))
        return there


def _keep(kept: deque[_Seen], seen: _Seen, window_s: float) -> None:
    """Add a record, and drop those older than a window; times are first."""
    kept.append(seen)
    while kept[0][0] <= seen[0] - window_s:
        kept.popleft()
