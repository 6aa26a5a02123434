"""Windows of several runs as one sample: means, percentiles and shares, each with how sure it is.

Batches of the last windows are the unit: those of shorter ones are merged into as wide ones. Percentiles are those of
all requests together; how far off one is follows from the share of values below it, batch by batch.

References
----------
R. S. Woodruff, "Confidence intervals for medians and other position measures", JASA 47 (1952).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from kvplan.model import FloatArray
from kvplan.simulation.intervals import Ratio, ratio
from kvplan.simulation.state import GAPS, GAPS_IN_E, SHORTEST_GAP_S, Span
from kvplan.study.windows import Window

BINS_IN_E = 250  # of times, each .4 % wide, to which ends of intervals are rounded outward
_GAP_S: FloatArray = SHORTEST_GAP_S * np.exp((np.arange(GAPS) + 0.5) / GAPS_IN_E)
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
FIGURES = ("mean", *QUANTILES)
ITL = "itl_s"
OVER_TIME = {
    "running": Span.RUNNING_S,
    "waiting": Span.WAITING_S,
    "kv_tokens_mean": Span.KV_S,
}  # means over time
_EDGE = 1e-6  # of a bin: at its end
_ALONE = 0.1  # what neighbouring bins hold, of one whose gaps are all alike
_STEEP, _CLIFF_BINS, _EMPTY = 1.5, 12, 0.1  # a cliff: a factor, and how empty one of so many bins between is


class Estimate(NamedTuple):
    """A figure, its 95 % interval, and for percentiles how far off the share below it may be.

    An upper end is infinite where the sample does not have it.
    """

    value: float
    low: float
    high: float
    share_width: float = math.inf

    @property
    def interval(self) -> tuple[float, float | None]:
        """The interval as reported: ends rounded outward to bins, None where the sample does not have the upper one."""
        if self.low == self.high:
            return self.low, self.high
        high = None if math.isinf(self.high) else _rounded(self.high, math.ceil)
        return _rounded(self.low, math.floor), high

    @property
    def relative_width(self) -> float:
        """Relative width of the larger side."""
        if self.value <= 0:
            return 0.0 if self.high <= 0 else math.inf
        return max(self.high - self.value, self.value - self.low) / self.value


class Cliff(NamedTuple):
    """Times between which a percentile sits that little moves far."""

    low: float
    high: float


class _Times:
    """Values of one latency, run by run, with the batch of each; sorted once."""

    def __init__(self, windows: Sequence[Window], values: Sequence[FloatArray], which: int | None) -> None:
        self._windows = windows
        kept = [
            ~np.isnan(v) if which is None else ~np.isnan(v) & (w.class_index == which)
            for v, w in zip(values, windows, strict=True)
        ]
        self.batch = [w.batch[k] for w, k in zip(windows, kept, strict=True)]
        self.values = [v[k] for v, k in zip(values, kept, strict=True)]
        self.sorted = np.sort(np.concatenate(self.values))
        self.sizes = self._summed([None] * len(windows))
        self.total = self.sorted.size

    def _summed(self, weights: Sequence[FloatArray | None]) -> list[FloatArray]:
        return [
            np.bincount(b, weights=x, minlength=w.batches).astype(np.float64)
            for b, x, w in zip(self.batch, weights, self._windows, strict=True)
        ]

    def mean(self) -> Ratio:
        return ratio(self._summed(self.values), self.sizes)

    def share_above(self, limit: float) -> Ratio:
        return ratio(self._summed([(v > limit).astype(np.float64) for v in self.values]), self.sizes)

    def quantile(self, share: float) -> tuple[float, float]:
        """Return the value between those on both sides; as an interval it has no width."""
        below, part = divmod(share * (self.total - 1), 1)
        low, high = self.sorted[int(below)], self.sorted[min(int(below) + 1, self.total - 1)]
        value = float(low + part * (high - low))
        return value, value

    def counts(self, edges: FloatArray) -> FloatArray:
        """Return how many values are between neighbouring edges."""
        return np.diff(np.searchsorted(self.sorted, edges))


class _Gaps:
    """Times between two tokens, as counts in fine bins."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self._windows = windows
        self._below = np.concatenate([[0], np.cumsum(sum(w.gaps.sum(axis=0) for w in windows))])
        self.sizes = [w.gaps.sum(axis=1).astype(np.float64) for w in windows]
        self.total = int(self._below[-1])

    def mean(self) -> Ratio:
        return ratio([w.gaps @ _GAP_S for w in self._windows], self.sizes)

    def share_above(self, limit: float) -> Ratio:
        """Return the share above a limit, as if gaps were even in its bin; none of that if all in it are alike."""
        place = math.log(max(limit / SHORTEST_GAP_S, 1.0)) * GAPS_IN_E
        first = min(math.floor(place + _EDGE), GAPS - 2)
        part = min(max(first + 1 - place, 0.0), 1.0)
        before, here, after = np.diff(self._below)[[max(first - 1, 0), first, first + 1]]
        if part < 1 - _EDGE and before + after < _ALONE * here:
            part = 0.0
        beyond = [w.gaps[:, first + 1 :].sum(axis=1) + part * w.gaps[:, first] for w in self._windows]
        return ratio(beyond, self.sizes)

    def quantile(self, share: float) -> tuple[float, float]:
        """Return the ends of the bin that the quantile is in."""
        place = int(np.searchsorted(self._below, share * self.total, side="left")) - 1
        middle = _GAP_S[min(max(place, 0), GAPS - 1)]
        half = math.exp(0.5 / GAPS_IN_E)
        return float(middle / half), float(middle * half)

    def counts(self, edges: FloatArray) -> FloatArray:
        return np.diff(self._below[np.searchsorted(_GAP_S, edges)])


@dataclass(frozen=True)
class Sample:
    """Windows of runs, in batches of one width."""

    windows: tuple[Window, ...]
    which: int | None = None  # class; None: all requests

    @classmethod
    def of(cls, windows: Sequence[Window], width_s: float) -> "Sample":
        """Put windows together, in batches as wide as that."""
        return cls(tuple(w.merged(width_s) for w in windows))

    def of_class(self, which: int) -> "Sample":
        """Return the requests of one class alone."""
        return Sample(self.windows, which)

    @property
    def completed(self) -> int:
        """Requests that were done."""
        return sum(w.batch.size for w in self.windows)

    @property
    def work(self) -> tuple[int, int]:
        """Requests that came, and iterations, in all."""
        return sum(w.arrived for w in self.windows), sum(w.iterations for w in self.windows)

    def times(self, time: str) -> _Times | _Gaps:
        """Return all values of a latency, such as ``ttft_s``."""
        if time not in self._times:
            values = [] if time == ITL else [w.values[time] for w in self.windows]
            self._times[time] = (
                _Gaps(self.windows) if time == ITL else _Times(self.windows, values, self.which)
            )
        return self._times[time]

    @cached_property
    def _times(self) -> dict[str, _Times | _Gaps]:
        return {}

    def estimate(self, time: str, figure: str) -> Estimate | None:
        """Estimate a latency: ``mean`` or a percentile, seconds; None where there is none."""
        times = self.times(time)
        if times.total == 0:
            return None
        if figure != "mean":
            return _percentile(times, QUANTILES[figure])
        return around(times.mean())

    def figure(self, key: str) -> Estimate | None:
        """Estimate a figure by its key, such as ``ttft_s.p95`` or ``waiting``; None where there is none."""
        time, _, figure = key.partition(".")
        if figure:
            return self.estimate(time, figure)
        if key in OVER_TIME:
            return self.over_time(OVER_TIME[key])
        return self.evictions() if key == "preemptions_per_request" else self._recomputed()

    def cliff(self, time: str, figure: str) -> Cliff | None:
        """Return the gap of its law that a percentile sits in: between iterations with and without a prompt, say."""
        times, share = self.times(time), QUANTILES[figure]
        if times.total == 0:
            return None
        near = min(0.01, (1 - share) / 2)
        low, high = times.quantile(share - near)[0], times.quantile(share + near)[1]
        if high <= _STEEP * low or low <= 0:
            return None
        between = times.counts(np.geomspace(low, high, _CLIFF_BINS + 1))
        return Cliff(low, high) if between.min() < _EMPTY * 2 * near * times.total / _CLIFF_BINS else None

    def rate(self) -> Estimate:
        """Return the requests done in a second."""
        return self._per_second(self._done())

    def evictions(self) -> Estimate | None:
        """Return the mean evictions of a request until it is done; None where none was done."""
        if self.completed == 0:
            return None
        counts = [np.bincount(w.batch, w.evictions, w.batches).astype(np.float64) for w in self.windows]
        return around(ratio(counts, self._done()))

    def hit_ratio(self) -> float | None:
        """Return the share of the prompt tokens that a prefix cache found; None where none was looked up."""
        found, looked_up = np.sum(
            [w.found.sum(axis=1) for w in self.windows if w.found is not None] or [(0, 0)], axis=0
        )
        return float(found / looked_up) if looked_up else None

    def _recomputed(self) -> Estimate | None:
        """Return the share of computed tokens that were computed before, run by run; None where none was computed."""
        again = [np.array([float(w.recomputed_tokens)]) for w in self.windows]
        tokens = [np.array([float(w.computed_tokens)]) for w in self.windows]
        return around(ratio(again, tokens)) if any(t[0] for t in tokens) else None

    def _done(self) -> list[FloatArray]:
        return [np.bincount(w.batch, minlength=w.batches).astype(np.float64) for w in self.windows]

    def over_time(self, column: int) -> Estimate:
        """Return the mean over time of what a column of `kvplan.simulation.state.State.span` integrates."""
        return self._per_second([w.sums[:, column] for w in self.windows])

    def iteration_s(self) -> Estimate:
        """Return the mean time of an iteration."""
        return around(
            ratio(
                [w.sums[:, Span.BUSY_S] for w in self.windows], [w.sums[:, Span.STEPS] for w in self.windows]
            )
        )

    def _per_second(self, amounts: list[FloatArray]) -> Estimate:
        return around(ratio(amounts, [np.full(w.batches, w.width_s) for w in self.windows]))


def around(found: Ratio) -> Estimate:
    """Return a ratio with its 95 % interval."""
    return Estimate(found.value, max(found.value - found.half_width, 0.0), found.value + found.half_width)


def _percentile(times: _Times | _Gaps, share: float) -> Estimate:
    low, high = times.quantile(share)
    width = times.share_above(high).half_width or 1 / times.total
    least = times.quantile(max(share - width, 0.0))[0]
    most = times.quantile(share + width)[1] if share + width < 1 else math.inf
    return Estimate((low + high) / 2, _rounded(least, math.floor), _rounded(most, math.ceil), width)


def _rounded(value: float, to: Callable[[float], int]) -> float:
    """To the end of a bin."""
    return (
        value
        if value <= 0 or math.isinf(value)
        else math.exp(to(round(math.log(value) * BINS_IN_E, 9)) / BINS_IN_E)
    )
