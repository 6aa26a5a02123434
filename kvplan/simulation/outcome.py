"""Outcome of a run: times of every request, counters, and a thinned record of memory and queue."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from kvplan.model import FloatArray, IntArray
from kvplan.simulation.initial_state import RECORDS
from kvplan.simulation.prefix_cache import caches
from kvplan.simulation.row_pool import RowPool
from kvplan.simulation.state import (
    GAPS,
    Clock,
    Counter,
    Fixed,
    Record,
    Span,
    State,
    Stuck,
    Time,
    grouped,
    hosted,
)


class Ending(StrEnum):
    """Cause of the end."""

    FINISHED = "finished"  # every request completed
    HORIZON = "horizon"  # the clock ran out
    LIVELOCK = "livelock"  # nothing can ever complete any more
    INTERRUPTED = "interrupted"  # somebody stopped it


@dataclass(frozen=True)
class Series:
    """State while some of the executed iterations ran, evenly spaced ones: arrays of shape (n_records,).

    Requests done after an iteration still count as running in it, and not yet as completed.
    """

    stride: int  # iterations between two records
    time_s: FloatArray  # clock at the end of the iteration
    kv_tokens: IntArray  # memory held while it ran, whole blocks
    waiting: IntArray  # requests in the queue
    running: IntArray  # requests holding memory
    evictions: IntArray  # in all so far
    completions: IntArray
    busy_s: FloatArray  # time of all iterations so far
    kv_s: FloatArray  # this and the next two: integrals over busy time so far; tokens held
    running_s: FloatArray
    waiting_s: FloatArray


@dataclass(frozen=True)
class Found:
    """Hits of a prefix cache, tokens."""

    hit_tokens: IntArray  # of each prompt at its first admission
    recovered_tokens: IntArray  # of prompts and what they had generated, at admissions after an eviction
    looked_up_tokens: int  # of the sequences that were looked up, at first admissions
    looked_up_again_tokens: int  # and at further ones
    cached_s: float  # integral over busy time of what was known though nobody held it
    cached_tokens: IntArray  # the same of those iterations that the series of the run records
    # of those in `hit_tokens`, what the host tier had; None without one
    loaded_tokens: IntArray | None = None
    link_busy_s: float = 0.0  # time that the link to the host has taken for loads


@dataclass(frozen=True)
class SpanSums:
    """Sums over equal spans of time."""

    # shape (n_spans, n_columns), see `kvplan.simulation.state.Span`; over replicas of a fleet
    sums: FloatArray
    gaps: IntArray  # shape (n_spans, GAPS): times between two tokens of a request, by their logarithms


@dataclass(frozen=True)
class Outcome:
    """A run of one policy on one list of requests; times of requests are NaN where they have not come to it."""

    arrival_s: FloatArray  # shape (n_requests,), seconds
    first_token_s: FloatArray  # when the first token was out
    finish_s: FloatArray  # when the last one was
    evictions: IntArray  # of each request
    ending: Ending
    end_s: float  # the clock at the end
    iterations: int  # executed ones, each with at least one request
    recomputed_tokens: int  # KV tokens held at evictions: work that was lost
    # KV tokens in all: prompts, unless they arrive ready-made, and generated ones, lost or not
    computed_tokens: int
    busy_s: float  # time of all iterations
    kv_peak: int  # most memory held in a batch, tokens
    queue_peak: int  # most requests waiting when a batch began
    prefill_peak: int  # most prefill tokens computed in a batch
    batch_peak: int  # most requests in one
    resident: int  # requests that hold memory at the end
    stuck: bool  # a livelock because of a request that never fits; else of requests that evict each other
    # nanoseconds of iterations by memory held: bin j has j·bin_tokens up to (j+1)·bin_tokens, exclusive
    kv_histogram: IntArray
    bin_tokens: int
    # shape (GAPS,): times between two tokens of a request; what is computed again counts again
    gap_histogram: IntArray
    gap_sum_s: float  # all of these together
    overflows: int  # iterations that began with more than the memory, so that somebody was evicted
    series: Series
    totals: FloatArray  # shape (n_columns,): sums over the run and all replicas, see `kvplan.simulation.state.Span`
    spans: SpanSums | None = None  # sums kept apart by time; None: nobody asked
    request_overhead_s: float = 0.0  # what each request took besides, outside the engine
    shed: NDArray[np.bool_] | None = None  # who was given up after waiting too long; None: nobody
    found: Found | None = None  # None: there was no prefix cache
    # when each replica last ended an iteration or a transfer; None: not noted
    replica_end_s: FloatArray | None = None

    @property
    def finished(self) -> bool:
        """True if all requests completed."""
        return self.ending is Ending.FINISHED

    @property
    def ttft_s(self) -> FloatArray:
        """Wait of each request for its first token, outside the engine too; shape (n_requests,), seconds."""
        return self.first_token_s - self.arrival_s + self.request_overhead_s

    @property
    def e2e_s(self) -> FloatArray:
        """Wait of each request for its last token, outside the engine too; shape (n_requests,), seconds."""
        return self.finish_s - self.arrival_s + self.request_overhead_s

    @property
    def mean_e2e_s(self) -> float:
        """Mean of `e2e_s`, where every request completed."""
        return float(np.mean(self.e2e_s))


def outcome(states: Sequence[State], rows: RowPool, ending: Ending) -> Outcome:
    """Put together the outcome of a run's replicas."""
    rows.keep(states)
    first, arrival_s = states[0], rows.requests.arrival_s
    counts = np.sum([s.counter for s in states], axis=0)
    clocks = np.sum([s.clock for s in states], axis=0)
    most = np.max([s.counter for s in states], axis=0)
    counted = {id(s.histogram): s for s in states}.values()  # replicas may share one
    kv_histogram = np.zeros(max(s.fixed[Fixed.KV_BINS] for s in counted), dtype=np.int64)
    for s in counted:
        kv_histogram[: s.fixed[Fixed.KV_BINS]] += s.histogram[: s.fixed[Fixed.KV_BINS]]
    gaps = np.sum([s.histogram[s.fixed[Fixed.KV_BINS] :] for s in counted], axis=0).reshape(-1, GAPS)
    end_s = max(float(s.clock[Clock.NOW]) for s in states)
    series, cached = _together(states, end_s, int(counts[Counter.ITERATIONS]))
    looked_up = [s for s in states if caches(s) or grouped(s)]
    return Outcome(
        arrival_s=arrival_s if rows.requests.is_open else first.time[: arrival_s.size, Time.ARRIVAL].copy(),
        first_token_s=rows.first_token_s,
        finish_s=rows.finish_s,
        evictions=rows.evictions,
        ending=ending,
        end_s=end_s,
        iterations=int(counts[Counter.ITERATIONS]),
        recomputed_tokens=int(counts[Counter.RECOMPUTED]),
        computed_tokens=int(counts[Counter.COMPUTED]),
        busy_s=float(clocks[Clock.BUSY]),
        kv_peak=int(most[Counter.PEAK]),
        resident=int(counts[Counter.RESIDENT]),
        stuck=any(s.counter[Counter.STUCK] == Stuck.NEVER_FITS for s in states),
        queue_peak=int(most[Counter.QUEUE_PEAK]) if len(states) == 1 else int(series.waiting.max(initial=0)),
        kv_histogram=kv_histogram,
        gap_histogram=gaps.sum(axis=0),
        gap_sum_s=float(clocks[Clock.GAP_SUM]),
        bin_tokens=int(first.fixed[Fixed.BIN]),
        prefill_peak=int(most[Counter.PROMPTS_PEAK]),
        batch_peak=int(most[Counter.BATCH_PEAK]),
        overflows=int(counts[Counter.OVERFLOWS]),
        request_overhead_s=float(first.clock[Clock.OVERHEAD]),
        shed=rows.shed,
        found=None
        if not looked_up
        else Found(
            hit_tokens=rows.hit_tokens,
            recovered_tokens=rows.recovered_tokens,
            looked_up_tokens=int(counts[Counter.LOOKED_UP]),
            looked_up_again_tokens=int(counts[Counter.LOOKED_UP_AGAIN]),
            cached_s=float(clocks[Clock.CACHED_S]),
            cached_tokens=cached,
            loaded_tokens=rows.loaded_tokens if hosted(first) else None,
            link_busy_s=float(clocks[Clock.LINK_BUSY]),
        ),
        series=series,
        totals=np.sum([s.span.sum(axis=0) for s in states], axis=0),
        spans=None if first.span.shape[0] == 1 else _spans(states, gaps),
        replica_end_s=np.array([s.clock[Clock.NOW] for s in states]),
    )


def _spans(states: Sequence[State], gaps: IntArray) -> SpanSums:
    """Add up the spans with two edges over the replicas; nobody waits where nothing ran."""
    each = np.stack([s.span for s in states])
    each[:, :, Span.LEAST_WAITING][np.isinf(each[:, :, Span.LEAST_WAITING])] = 0.0
    return SpanSums(each.sum(axis=0)[1:-1], gaps[1:-1])


def _together(states: Sequence[State], end_s: float, iterations: int) -> tuple[Series, IntArray]:
    """Return records of all replicas at even times, memory in the mean over them; and cached tokens."""
    records = [s.record[: int(s.counter[Counter.RECORDED])] for s in states]
    if len(states) == 1:
        total, stride = records[0], int(states[0].counter[Counter.STRIDE])
    else:
        time_s = np.linspace(0.0, end_s, min(RECORDS, max(map(len, records))) + 1)[1:]
        stride = max(1, round(iterations / max(time_s.size, 1)))
        total = np.zeros((time_s.size, Record.WIDTH))
        for record in records:
            at = np.searchsorted(record[:, Record.NOW], time_s, side="right")
            total += np.vstack((np.zeros(Record.WIDTH), record))[at]
        total[:, [Record.HELD, Record.CACHED]] /= len(states)
        total[:, Record.NOW] = time_s
    counts = total.astype(np.int64)
    series = Series(
        stride=stride,
        time_s=total[:, Record.NOW],
        kv_tokens=counts[:, Record.HELD],
        waiting=counts[:, Record.WAITING],
        running=counts[:, Record.RESIDENT],
        evictions=counts[:, Record.EVICTED],
        completions=counts[:, Record.COMPLETED],
        busy_s=total[:, Record.BUSY],
        kv_s=total[:, Record.KV_S],
        running_s=total[:, Record.RUNNING_S],
        waiting_s=total[:, Record.WAITING_S],
    )
    return series, counts[:, Record.CACHED]
