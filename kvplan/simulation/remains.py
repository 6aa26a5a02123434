"""What a run leaves behind, of one replica or of several, put together from their states."""

from collections.abc import Sequence

import numpy as np

from kvplan.model import IntArray
from kvplan.simulation.outcome import Ending, Found, Outcome, Series, SpanSums
from kvplan.simulation.prefix_cache import caches
from kvplan.simulation.rows import Rows
from kvplan.simulation.state import (
    ARRIVAL,
    BATCH_PEAK,
    BIN,
    BUSY,
    CACHED_SUM,
    COMPUTED,
    GAP_SUM,
    GAPS,
    ITERATIONS,
    KV_BINS,
    KV_SUM,
    LEAST_WAITING,
    LINK_BUSY,
    LOOKED_UP,
    LOOKED_UP_AGAIN,
    NEVER_FITS,
    NOW,
    OVERFLOWS,
    OVERHEAD,
    PEAK,
    PROMPTS_PEAK,
    QUEUE_PEAK,
    RECOMPUTED,
    RECORDED,
    RECORDS,
    RESIDENT,
    STRIDE,
    STUCK,
    State,
    hosted,
)


def outcome(states: Sequence[State], rows: Rows, ending: Ending) -> Outcome:
    """What the replicas of a run leave behind, together."""
    rows.keep(states)
    first, size = states[0], rows.requests.arrival_s.size
    counts = np.sum([s.counter for s in states], axis=0)
    clocks = np.sum([s.clock for s in states], axis=0)
    most = np.max([s.counter for s in states], axis=0)
    counted = {id(s.histogram): s for s in states}.values()  # replicas may share one
    kv_histogram = np.zeros(max(s.fixed[KV_BINS] for s in counted), dtype=np.int64)
    for s in counted:
        kv_histogram[: s.fixed[KV_BINS]] += s.histogram[: s.fixed[KV_BINS]]
    gaps = np.sum([s.histogram[s.fixed[KV_BINS] :] for s in counted], axis=0).reshape(-1, GAPS)
    end_s = max(float(s.clock[NOW]) for s in states)
    series, cached = _together(states, end_s, int(counts[ITERATIONS]))
    looked_up = [s for s in states if caches(s)]
    return Outcome(
        arrival_s=rows.requests.arrival_s if rows.requests.is_open else first.time[:size, ARRIVAL].copy(),
        first_token_s=rows.first_token_s,
        finish_s=rows.finish_s,
        evictions=rows.evictions,
        ending=ending,
        end_s=end_s,
        iterations=int(counts[ITERATIONS]),
        recomputed_tokens=int(counts[RECOMPUTED]),
        computed_tokens=int(counts[COMPUTED]),
        kv_sum=float(clocks[KV_SUM]),
        busy_s=float(clocks[BUSY]),
        kv_peak=int(most[PEAK]),
        resident=int(counts[RESIDENT]),
        stuck=any(s.counter[STUCK] == NEVER_FITS for s in states),
        queue_peak=int(most[QUEUE_PEAK]) if len(states) == 1 else int(series.waiting.max(initial=0)),
        kv_histogram=kv_histogram,
        gap_histogram=gaps.sum(axis=0),
        gap_sum_s=float(clocks[GAP_SUM]),
        bin_tokens=int(first.fixed[BIN]),
        prefill_peak=int(most[PROMPTS_PEAK]),
        batch_peak=int(most[BATCH_PEAK]),
        overflows=int(counts[OVERFLOWS]),
        request_overhead_s=float(first.clock[OVERHEAD]),
        shed=rows.shed,
        found=None
        if not looked_up
        else Found(
            hit_tokens=rows.hit_tokens,
            recovered_tokens=rows.recovered_tokens,
            looked_up_tokens=int(counts[LOOKED_UP]),
            looked_up_again_tokens=int(counts[LOOKED_UP_AGAIN]),
            cached_sum=float(clocks[CACHED_SUM]),
            cached_tokens=cached,
            loaded_tokens=rows.loaded_tokens if hosted(first) else None,
            link_busy_s=float(clocks[LINK_BUSY]),
        ),
        series=series,
        spans=None if first.span.shape[0] == 1 else _spans(states, gaps),
        replica_end_s=np.array([s.clock[NOW] for s in states]),
    )


def _spans(states: Sequence[State], gaps: IntArray) -> SpanSums:
    """Those with two edges, in which iterations of all replicas began; nobody waits where nothing ran."""
    each = np.stack([s.span for s in states])
    each[:, :, LEAST_WAITING][np.isinf(each[:, :, LEAST_WAITING])] = 0.0
    return SpanSums(each.sum(axis=0)[1:-1], gaps[1:-1])


def _together(states: Sequence[State], end_s: float, iterations: int) -> tuple[Series, IntArray]:
    """The records of all replicas at even times, memory in the mean over them; and what is cached."""
    records = [s.record[: int(s.counter[RECORDED])] for s in states]
    if len(states) == 1:
        time_s, total, stride = records[0][:, 0], records[0][:, 1:], int(states[0].counter[STRIDE])
    else:
        time_s = np.linspace(0.0, end_s, min(RECORDS, max(map(len, records))) + 1)[1:]
        stride = max(1, round(iterations / max(time_s.size, 1)))
        total = np.zeros((time_s.size, first_columns := states[0].record.shape[1] - 1))
        for record in records:
            at = np.searchsorted(record[:, 0], time_s, side="right")
            total += np.vstack((np.zeros(first_columns), record[:, 1:]))[at]
        total[:, [1, -1]] /= len(states)
    kv, waiting, running, evictions, completions, cached = total[:, 1:].T.astype(np.int64)
    return Series(stride, time_s, kv, waiting, running, evictions, completions, total[:, 0]), cached
