"""Windows of several runs as one sample: batches of shorter ones are merged to the width of the last one's."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from kvplan.model import FloatArray
from kvplan.simulation.estimates import QUANTILES, Estimate, Gaps, Times, Values, around, ratio
from kvplan.simulation.state import Span
from kvplan.study.windows import Window

ITL = "itl_s"
OVER_TIME = {
    "running": Span.RUNNING_S,
    "waiting": Span.WAITING_S,
    "kv_tokens_mean": Span.KV_S,
}  # means over time
_STEEP, _CLIFF_BINS, _EMPTY = 1.5, 12, 0.1  # a cliff: a factor, and how empty one of so many bins between is


class Cliff(NamedTuple):
    """Times between which a percentile jumps at once."""

    low: float
    high: float


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

    def times(self, time: str) -> Values:
        """Return all values of a latency, such as ``ttft_s``."""
        if time not in self._times:
            self._times[time] = (
                Gaps([w.gaps for w in self.windows]) if time == ITL else self._of_requests(time)
            )
        return self._times[time]

    @cached_property
    def _times(self) -> dict[str, Values]:
        return {}

    def _of_requests(self, time: str) -> Times:
        values, edges = [], []
        for w in self.windows:
            of = w.values[time]
            kept = ~np.isnan(of) if self.which is None else ~np.isnan(of) & (w.class_index == self.which)
            batch = w.batch[kept]
            order = np.argsort(batch, kind="stable")
            values.append(of[kept][order])
            edges.append(np.searchsorted(batch[order], np.arange(w.batches + 1)))
        return Times(values, edges)

    def estimate(self, time: str, figure: str) -> Estimate | None:
        """Estimate a latency: ``mean`` or a percentile, seconds; None where there is none."""
        estimate = self.times(time).estimate(figure)
        return estimate if estimate is None or figure == "mean" else estimate.rounded

    def figure(self, key: str) -> Estimate | None:
        """Estimate a figure by its key, such as ``itl_s.mean`` or ``waiting``; None where there is none."""
        time, _, figure = key.partition(".")
        if figure:
            return self.estimate(time, figure)
        if key in OVER_TIME:
            return self.over_time(OVER_TIME[key])
        return self.evictions() if key == "preemptions_per_request" else self._recomputed()

    def cliff(self, time: str, figure: str) -> Cliff | None:
        """Return the gap in the law that a percentile is in: say between iterations with and without a prompt."""
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
        hits, looked_up = np.sum(
            [w.found.sum(axis=1) for w in self.windows if w.found is not None] or [(0, 0)], axis=0
        )
        return float(hits / looked_up) if looked_up else None

    def _recomputed(self) -> Estimate | None:
        """Return the share of computed tokens that were computed before, run by run; None where none was computed."""
        again = [np.array([float(w.recomputed_tokens)]) for w in self.windows]
        tokens = [np.array([float(w.computed_tokens)]) for w in self.windows]
        return around(ratio(again, tokens)) if any(t[0] for t in tokens) else None

    def _done(self) -> list[FloatArray]:
        return [np.bincount(w.batch, minlength=w.batches).astype(np.float64) for w in self.windows]

    def over_time(self, column: int) -> Estimate:
        """Return the mean over time of the integrand of a column of `kvplan.simulation.state.State.span`."""
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
