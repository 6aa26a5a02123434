"""Figures of simulated runs, with confidence intervals.

Figures are means over seeds; a figure that a run does not have (no request completed) is left out of its
mean, and None where no run has it. Means and percentiles of what a replica holds are over time, idle time included,
as those of `kvplan.study.operating_point`. Every figure that is not a peak or a snapshot has an interval from one run
too, where that run is long enough:

==============================  ==============================================================================
latencies                       batches of completed requests in order of arrival (`kvplan.simulation.estimates`)
``itl_s.mean``,                 ratio of sums over the same: their times from first to last token, and gaps in
``preemptions_per_request``     them; their preemptions, and one each
rates, means over time          ratio of sums over batches of equally many iterations
``kv_tokens.p99``               the same of the time above it
``completed``, ``makespan_s``,  their rate per completed request where the number of requests was given,
``iterations``, ``evictions``   else per second, times the whole run: what was given does not vary, and has none
``unfinished``, ``queue.end``   None: a snapshot
``recomputed_*``, peaks,        None: nothing recorded to cut into batches
``shed``, ``prefix_cache.*``,
percentiles of ITL
==============================  ==============================================================================

A run that ended in a livelock has no interval at all: its figures depend on when that was noticed. TTFT and E2E of
saturated runs have none either, from several runs neither: whoever waits from the start on waits the longer, the more
requests the run was given.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvplan.model import FloatArray, IntArray
from kvplan.simulation.estimates import (
    FIGURES,
    QUANTILES,
    Gaps,
    Interval,
    Times,
    Trend,
    batch_edges,
    bounded,
    over_runs,
    ratio,
    together,
    trend,
)
from kvplan.simulation.outcome import Ending, Outcome
from kvplan.simulation.requests import Requests
from kvplan.simulation.state import Span

LATENCIES = ("ttft_s", "itl_s", "tpot_s", "e2e_s")
MORE_IS_BETTER = ("goodput_rps", "throughput_rps", "prefix_cache.hit_rate")  # less of all others is
_AS_LONG_AS_THE_RUN = ("ttft_s.", "e2e_s.")  # where all requests are there at the start
_TREND_BATCHES = 16
_COUNTERS = ("time_s", "busy_s", "completions", "evictions", "running_s", "waiting_s", "kv_s")  # of a series
MAY_GROW = 10_000  # arrivals in a run, from which its queue may be called growing
_MIN_RECORDS = 200  # of the series, or completed requests, below which a run is too short to cut into batches

Figures = dict[str, float | None]
Intervals = dict[str, Interval | None]


CLASS_KEYS = (
    "completed",
    "goodput_rps",
    *(f"{time}.{each}" for time in ("ttft_s", "tpot_s", "e2e_s") for each in FIGURES),
)
# of the prefix cache, None without one: what is found of prompts looked up at their first admission, of what is
# admitted again after an eviction; what is known though nobody holds it, over busy time; of a host tier the part of
# the hit rate that was loaded from it, and the share of the time in which it loaded
_FOUND = "hit_rate readmission_hit_rate hit_tokens recovered_tokens cached_tokens_mean host_hit_rate link_utilization"
KEYS = (  # in the order of the contract; None where 0/0
    *("completed", "unfinished", "makespan_s", "iterations", "throughput_rps", "decode_tokens_per_s"),
    *("throughput_per_iteration", "evictions", "evictions_per_iteration", "preemptions_per_request"),
    *("recomputed_tokens", "recomputed_share", "running", "waiting"),
    *("kv_tokens.mean", "kv_tokens.p99", "kv_tokens.peak", "queue.peak", "queue.end", "shed"),
    *(f"prefix_cache.{name}" for name in _FOUND.split()),
    "iteration_time_s",
    *(f"{time}.{each}" for time in LATENCIES for each in FIGURES),
    "goodput_rps",
)
_TOTALS = {  # of a run, and what counts them; without an interval where so many were given
    "completed": "completions",
    "makespan_s": "time_s",
    "iterations": "iterations",
    "evictions": "evictions",
}
_RATIOS = {  # of a run's totals; "replica_s" is the time of all replicas
    "throughput_rps": ("completions", "time_s"),
    "decode_tokens_per_s": ("decode_tokens", "time_s"),
    "throughput_per_iteration": ("completions", "iterations"),
    "evictions_per_iteration": ("evictions", "iterations"),
    "running": ("running_s", "time_s"),
    "waiting": ("waiting_s", "time_s"),
    "kv_tokens.mean": ("kv_s", "replica_s"),
    "iteration_time_s": ("busy_s", "iterations"),
    "goodput_rps": ("good", "time_s"),
}


class RunStatus(StrEnum):
    """Verdict on a policy; the queue of saturated arrivals is not judged."""

    STEADY = "steady"
    GROWING = "growing"
    UNDECIDED = "undecided"
    LIVELOCK = "livelock"


class ClassResult(NamedTuple):
    """One class of requests under one policy: means over seeds by the names of `CLASS_KEYS`."""

    name: str
    figures: Figures


class PolicyResult(NamedTuple):
    """One policy: means over seeds by the names of `KEYS`, and their 95 % confidence intervals."""

    policy: str
    parameters: dict[str, Any]
    status: RunStatus
    figures: Figures
    ci95: Intervals
    classes: tuple[ClassResult, ...]


def policy_result(
    policy: str,
    parameters: Mapping[str, Any],
    runs: Sequence[tuple[Requests, Outcome]],
    class_names: Sequence[str],
    *,
    horizon_s: float | None,
    saturated: bool,
    by_chance: bool = True,
    limits: Mapping[str, float] | None = None,
    of_classes: Sequence[Mapping[str, float]] = (),
    each: Callable[[Callable[["_Run"], Figures], Sequence["_Run"]], Iterable[Figures]] = map,
) -> PolicyResult:
    """Sum up the runs of one policy, one a seed.

    Intervals are over runs, or from batches of the one; there are none without chance, as other seeds would give the
    same run. Rates are over the horizon, or the makespan if runs ended with their requests. If all requests were there
    at the start, the queue is not judged, and waits have no intervals. Requests within all `limits`, of their own TTFT,
    TPOT and E2E, are goodput. `class_names` stand in the order that `Requests.class_index` counts.

    Parameters
    ----------
    parameters
        As run, defaults filled in.
    runs : sequence of (Requests, Outcome)
        At least one.
    each
        How the runs are summed up: `map`, or something like it that works on several at once.
    """
    alone = by_chance and len(runs) == 1
    views = [_Run(*run, horizon_s, limits or {}, of_classes, len(class_names), alone) for run in runs]
    per_run = list(each(_Run.figures, views))
    figures = _mean_over_runs(per_run)
    intervals: Intervals = dict.fromkeys(figures)
    if by_chance:
        intervals = {key: over_runs(_known(per_run, key)) for key in figures}
        if alone:
            intervals = views[0].intervals(figures)
        if saturated:
            intervals |= {key: None for key in intervals if key.startswith(_AS_LONG_AS_THE_RUN)}
    classes = (
        ClassResult(name, _mean_over_runs([view.classes[index] for view in views]))
        for index, name in enumerate(class_names)
    )
    status = _status([outcome for _, outcome in runs], saturated=saturated)
    return PolicyResult(policy, dict(parameters), status, figures, intervals, tuple(classes))


def _known(per_run: Sequence[Figures], key: str) -> list[float]:
    """List the figure in the runs that have it."""
    return [value for figures in per_run if (value := figures[key]) is not None]


def _mean_over_runs(per_run: Sequence[Figures]) -> Figures:
    known = {key: _known(per_run, key) for key in per_run[0]}
    return {key: math.fsum(values) / len(values) if values else None for key, values in known.items()}


def _status(outcomes: Sequence[Outcome], *, saturated: bool) -> RunStatus:
    """Judge runs, which have to agree."""
    if any(outcome.ending is Ending.LIVELOCK for outcome in outcomes):
        return RunStatus.LIVELOCK
    return RunStatus.STEADY if saturated else RunStatus(together([_trend(o) for o in outcomes]).value)


def _trend(outcome: Outcome) -> Trend:
    """Judge a queue up to the last arrival, after which every queue drains."""
    stays = slice(None) if outcome.shed is None else ~outcome.shed
    came_s, begun_s = np.sort(outcome.arrival_s[stays]), np.sort(outcome.first_token_s[stays])  # NaN last
    came_s = came_s[: np.searchsorted(came_s, outcome.end_s, side="right")]
    if came_s.size == 0 or came_s[-1] == 0:
        return Trend.STEADY
    least, series = [], outcome.series
    for times_s in pairwise(np.linspace(0.0, came_s[-1], _TREND_BATCHES + 1).tolist()):
        first, last = np.searchsorted(series.time_s, times_s)
        if first < last:
            least.append(int(series.waiting[first:last].min()))
        else:  # no iteration ended: whoever has come and has no token yet
            least.append(int(np.searchsorted(came_s, times_s[1]) - np.searchsorted(begun_s, times_s[1])))
    return trend(np.array(least), came_s.size / _TREND_BATCHES, may_grow=came_s.size >= MAY_GROW)


def _ratio(amount: float, size: float) -> float | None:
    return amount / size if size > 0 else None


def _figures(name: str, times: Times) -> Figures:
    return {f"{name}.{figure}": times.value(figure) for figure in FIGURES}


def _times(values: FloatArray) -> Times:
    """Cut values in order of time into batches, without missing ones (NaN)."""
    values = _some(values, ~np.isnan(values))
    return Times([values], [batch_edges(values.size)])


def _some(values: Any, which: NDArray[np.bool_]) -> Any:
    """Pick those, in order; where it is all of them, without a copy."""
    return values if which.all() else values[which]


def _ttft_s(requests: Requests, outcome: Outcome) -> FloatArray:
    values = outcome.ttft_s
    values[np.isnan(outcome.finish_s)] = np.nan
    return values


def _mean_gap_s(outcome: Outcome, gaps: IntArray) -> FloatArray:
    values = outcome.finish_s - outcome.first_token_s
    values /= np.maximum(gaps, 1)
    values[gaps <= 0] = np.nan
    return values


# of every request, shape (n_requests,), seconds; NaN where not counted
_PER_REQUEST: dict[str, Callable[[Requests, Outcome], FloatArray]] = {
    "ttft_s": _ttft_s,
    "tpot_s": lambda requests, outcome: _mean_gap_s(outcome, requests.decode_tokens - 1),
    "e2e_s": lambda _, outcome: outcome.e2e_s,
}
_LIMITED: dict[str, Callable[[Requests, Outcome], FloatArray]] = {
    **_PER_REQUEST,
    # with drafts a gap is between two iterations
    "itl_s": lambda requests, outcome: _mean_gap_s(outcome, requests.iterations() - 1),
}


def within(
    requests: Requests,
    run: Outcome,
    limits: Mapping[str, float],
    of_classes: Sequence[Mapping[str, float]] = (),
) -> NDArray[np.bool_]:
    """Tell which requests exceed no limit of their own times, seconds; one without a figure exceeds none.

    `of_classes` are further limits of each class.
    """
    good = np.ones(requests.arrival_s.size, dtype=np.bool_)
    for name, limit in limits.items():
        good &= ~(_LIMITED[name](requests, run) > limit)
    for index, own in enumerate(of_classes):
        for name, limit in own.items():
            good &= ~((_LIMITED[name](requests, run) > limit) & (requests.class_index == index))
    return good


def _found(run: Outcome) -> Figures:
    values: tuple[float | None, ...] = (None,) * len(_FOUND.split())
    if run.found is not None:
        hit, recovered = int(run.found.hit_tokens.sum()), int(run.found.recovered_tokens.sum())
        loaded = run.found.loaded_tokens
        values = (
            _ratio(hit, run.found.looked_up_tokens),
            _ratio(recovered, run.found.looked_up_again_tokens),
            hit,
            recovered,
            _ratio(run.found.cached_s, run.busy_s),
            None if loaded is None else _ratio(int(loaded.sum()), run.found.looked_up_tokens),
            None if loaded is None else _ratio(run.found.link_busy_s, run.end_s),
        )
    return {f"prefix_cache.{name}": value for name, value in zip(_FOUND.split(), values, strict=True)}


def _between_tokens(run: Outcome) -> Figures:
    """Return ITL of all gaps by its dotted names, from their histogram."""
    gaps = Gaps([run.gap_histogram[np.newaxis]])
    percentiles = {f"itl_s.{figure}": gaps.value(figure) for figure in QUANTILES}
    return {"itl_s.mean": _ratio(run.gap_sum_s, gaps.total), **percentiles}


@dataclass(frozen=True)
class _Run:
    """A run to sum up; of the figures of each request one array at a time is held."""

    requests: Requests
    outcome: Outcome
    horizon_s: float | None
    limits: Mapping[str, float]
    of_classes: Sequence[Mapping[str, float]]
    class_count: int
    alone: bool  # its intervals are from its own batches

    @cached_property
    def latencies(self) -> tuple[Figures, Intervals, list[Figures]]:
        """Figures of all requests; their intervals, where they are wanted; figures of each class."""
        figures: Figures = {}
        intervals: Intervals = {}
        classes: list[Figures] = [{} for _ in range(self.class_count)]
        for name in _PER_REQUEST:
            of_all, intervals_of_all, of_classes = self.latency(name)
            figures |= of_all
            intervals |= intervals_of_all
            for known, more in zip(classes, of_classes, strict=True):
                known |= more
        return figures, intervals, classes

    def latency(self, name: str) -> tuple[Figures, Intervals, list[Figures]]:
        """Return a latency."""
        values = _PER_REQUEST[name](self.requests, self.outcome)
        # in order of arrival, which turns of sessions do not stand in
        times = _times(values if self.requests.turns is None else values[self.order])
        figures, intervals = _figures(name, times), dict[str, Interval | None]()
        if self.alone and self.outcome.ending is not Ending.LIVELOCK and times.total >= _MIN_RECORDS:
            intervals = {f"{name}.{each}": of.ends for each in FIGURES if (of := times.estimate(each))}
        del times  # which holds them twice
        if self.class_count == 1 and self.requests.turns is None:
            return figures, intervals, [figures]
        classes = [_figures(name, _times(values[mine])) for mine in self.members()]
        return figures, intervals, classes

    def members(self) -> list[IntArray]:
        """Find the requests of each class."""
        kind = self.requests.class_index.astype(np.int16, copy=False)
        return [np.flatnonzero(kind == index) for index in range(self.class_count)]

    @cached_property
    def classes(self) -> list[Figures]:
        """Figures of each class."""
        done, good = (
            np.bincount(_some(self.requests.class_index, which), minlength=self.class_count).tolist()
            for which in (self.finished, self.good)
        )
        within = [_ratio(count, self.span_s) if self.limited else None for count in good]
        return [
            {"completed": completed, "goodput_rps": rate, **figures}
            for completed, rate, figures in zip(done, within, self.latencies[2], strict=False)
        ]

    @cached_property
    def order(self) -> IntArray:
        """Requests in order of arrival."""
        return np.argsort(self.outcome.arrival_s, kind="stable")

    @cached_property
    def finished(self) -> NDArray[np.bool_]:
        return ~np.isnan(self.outcome.finish_s)

    @property
    def completed(self) -> int:
        return int(np.count_nonzero(self.finished))

    @property
    def span_s(self) -> float:
        """Seconds that rates are over."""
        if self.horizon_s is None or self.outcome.ending is Ending.INTERRUPTED:
            return self.outcome.end_s
        return self.horizon_s

    def totals(self) -> dict[str, float]:
        """Return the totals that a run's figures are ratios of."""
        run = self.outcome
        return {
            "time_s": self.span_s,
            "replica_s": self.replicas * self.span_s,
            "iterations": run.iterations,
            "completions": self.completed,
            "good": int(np.count_nonzero(self.good)),
            "decode_tokens": int(_some(self.requests.decode_tokens, self.finished).sum()),
            "evictions": int(run.evictions.sum()),
            "busy_s": run.busy_s,
            "running_s": run.totals[Span.RUNNING_S],
            "waiting_s": run.totals[Span.WAITING_S],
            "kv_s": run.totals[Span.KV_S],
        }

    def figures(self) -> Figures:
        """Return all figures by key."""
        run, totals = self.outcome, self.totals()
        shed = 0 if run.shed is None else int(np.count_nonzero(run.shed))
        unfinished = int(np.count_nonzero(run.arrival_s <= run.end_s)) - self.completed - shed
        at_end = unfinished - run.resident
        figures: Figures = {
            **{key: totals[total] for key, total in _TOTALS.items()},
            **{key: _ratio(totals[amount], totals[size]) for key, (amount, size) in _RATIOS.items()},
            "unfinished": unfinished,
            "makespan_s": run.end_s,
            "preemptions_per_request": _ratio(int(_some(run.evictions, self.finished).sum()), self.completed),
            "recomputed_tokens": run.recomputed_tokens,
            "recomputed_share": _ratio(run.recomputed_tokens, run.computed_tokens),
            "kv_tokens.p99": self.kv_quantile(QUANTILES["p99"]) if run.iterations else None,
            "kv_tokens.peak": run.kv_peak,
            "queue.peak": max(run.queue_peak, at_end),
            "queue.end": at_end,
            "shed": shed,
            **_found(run),
            **self.latencies[0],
            **_between_tokens(run),
        }
        if not self.limited:
            figures["goodput_rps"] = None
        return {key: figures[key] for key in KEYS}

    @property
    def limited(self) -> bool:
        return bool(self.limits) or any(self.of_classes)

    @cached_property
    def good(self) -> NDArray[np.bool_]:
        """Completed requests served within all limits; one without a figure does not exceed its limit."""
        return self.finished & within(self.requests, self.outcome, self.limits, self.of_classes)

    @property
    def replicas(self) -> int:
        return 1 if self.outcome.replica_end_s is None else self.outcome.replica_end_s.size

    @cached_property
    def kv_times(self) -> IntArray:
        """Nanoseconds up to the end of each bin of memory held."""
        return np.cumsum(self.outcome.kv_histogram)

    def kv_quantile(self, share: float) -> float:
        """Find the least memory that a replica does not exceed for a share of the time, tokens: the top of its bin."""
        run = self.outcome
        idle = max(self.replicas * self.span_s - run.busy_s, 0.0) * 1e9
        rank = share * (float(self.kv_times[-1]) + idle) - idle
        top = (int(np.searchsorted(self.kv_times, rank)) + 1) * run.bin_tokens - 1
        return float(min(top, run.kv_peak)) if rank > 0 else 0.0

    def intervals(self, figures: Figures) -> Intervals:
        """Bound figures by batches, by the same keys; None where impossible."""
        known: Intervals = {}
        if self.outcome.ending is not Ending.LIVELOCK:
            if self.outcome.series.time_s.size >= _MIN_RECORDS:
                widths = self.half_widths()
                known |= {key: bounded(figures[key], width) for key, width in widths.items()}
                known["kv_tokens.p99"] = self.kv_interval(QUANTILES["p99"])
            if self.completed >= _MIN_RECORDS:
                widths = self.half_widths_by_request()
                known |= {key: bounded(figures[key], width) for key, width in widths.items()}
            known |= self.latencies[1]
        return {key: known.get(key) for key in figures}

    def half_widths(self) -> dict[str, float]:
        """Return half the interval of every figure that is a total or a ratio of totals over the run."""
        batch, end_s = self.batches(), self.outcome.end_s
        requests_given = self.horizon_s is None and self.outcome.ending is Ending.FINISHED
        clock, whole = ("completions", float(self.completed)) if requests_given else ("time_s", end_s)

        def half(amount: str, size: str, times: float) -> float:
            return times * ratio([batch[amount]], [batch[size]]).half_width

        return {key: half(total, clock, whole) for key, total in _TOTALS.items()} | {
            key: half(*each, 1.0 if each[1] == "iterations" else end_s / self.span_s)
            for key, each in _RATIOS.items()
        }

    def half_widths_by_request(self) -> dict[str, float]:
        """Return half the interval of what is summed over completed requests, in order of arrival."""
        order = slice(None) if self.requests.turns is None else self.order
        finished = self.finished[order]
        edges = batch_edges(self.completed)

        def sums(values: Any) -> FloatArray:
            return np.add.reduceat(_some(values[order], finished), edges[:-1], dtype=np.float64)

        run = self.outcome
        gaps, requests = sums(self.requests.iterations() - 1), np.diff(edges).astype(np.float64)
        return {
            "itl_s.mean": ratio([sums(run.finish_s - run.first_token_s)], [gaps]).half_width,
            "preemptions_per_request": ratio([sums(run.evictions)], [requests]).half_width,
        }

    def kv_interval(self, share: float) -> Interval | None:
        """Bound a percentile of memory by how far the share of the time above it can be off."""
        series = self.outcome.series
        edges = batch_edges(series.time_s.size)
        above = np.diff(series.busy_s, prepend=0.0) * (series.kv_tokens > self.kv_quantile(share))
        size = self.replicas * np.diff(series.time_s[edges[1:] - 1], prepend=0.0)
        margin = ratio([np.add.reduceat(above, edges[:-1])], [size]).half_width
        if not 0 < margin < 1 - share:
            return None
        low, high = self.kv_quantile(share - margin), self.kv_quantile(share + margin)
        return (low, high) if low < high else None

    def batches(self) -> dict[str, NDArray[Any]]:
        """Return increments of every counter over equally many records, each of shape (n_batches,)."""
        series = self.outcome.series
        edges = batch_edges(series.time_s.size)
        last = edges[1:] - 1
        batch_of = np.searchsorted(series.time_s[last], _some(self.outcome.finish_s, self.finished))
        tokens = _some(self.requests.decode_tokens, self.finished)
        good = batch_of[_some(self.good, self.finished)] if self.limited else batch_of[:0]
        return {
            **{name: np.diff(getattr(series, name)[last], prepend=0) for name in _COUNTERS},
            "replica_s": self.replicas * np.diff(series.time_s[last], prepend=0.0),
            "iterations": series.stride * np.diff(edges).astype(np.float64),
            "good": np.bincount(good, minlength=last.size)[: last.size].astype(np.float64),
            "decode_tokens": np.bincount(batch_of, weights=tokens, minlength=last.size)[: last.size],
        }
