"""What a run leaves behind, of one replica or of several, put together from their states."""

from collections.abc import Sequence

import numpy as np

from kvplan.model import IntArray
from kvplan.simulation.initial_state import RECORDS
from kvplan.simulation.outcome import Ending, Found, Outcome, Series, SpanSums
from kvplan.simulation.prefix_cache import caches
from kvplan.simulation.rows import Rows
from kvplan.simulation.state import GAPS, Clock, Counter, Fixed, Span, State, Stuck, Time, hosted


def outcome(states: Sequence[State], rows: Rows, ending: Ending) -> Outcome:
    """What the replicas of a run leave behind, together."""
    rows.keep(states)
    first, size = states[0], rows.requests.arrival_s.size
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
    looked_up = [s for s in states if caches(s)]
    return Outcome(
        arrival_s=rows.requests.arrival_s
        if rows.requests.is_open
        else first.time[:size, Time.ARRIVAL].copy(),
        first_token_s=rows.first_token_s,
        finish_s=rows.finish_s,
        evictions=rows.evictions,
        ending=ending,
        end_s=end_s,
        iterations=int(counts[Counter.ITERATIONS]),
        recomputed_tokens=int(counts[Counter.RECOMPUTED]),
        computed_tokens=int(counts[Counter.COMPUTED]),
        kv_sum=float(clocks[Clock.KV_SUM]),
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
            cached_sum=float(clocks[Clock.CACHED_SUM]),
            cached_tokens=cached,
            loaded_tokens=rows.loaded_tokens if hosted(first) else None,
            link_busy_s=float(clocks[Clock.LINK_BUSY]),
        ),
        series=series,
        spans=None if first.span.shape[0] == 1 else _spans(states, gaps),
        replica_end_s=np.array([s.clock[Clock.NOW] for s in states]),
    )


def _spans(states: Sequence[State], gaps: IntArray) -> SpanSums:
    """Those with two edges, in which iterations of all replicas began; nobody waits where nothing ran."""
    each = np.stack([s.span for s in states])
    each[:, :, Span.LEAST_WAITING][np.isinf(each[:, :, Span.LEAST_WAITING])] = 0.0
    return SpanSums(each.sum(axis=0)[1:-1], gaps[1:-1])


def _together(states: Sequence[State], end_s: float, iterations: int) -> tuple[Series, IntArray]:
    """The records of all replicas at even times, memory in the mean over them; and what is cached."""
    records = [s.record[: int(s.counter[Counter.RECORDED])] for s in states]
    if len(states) == 1:
        time_s, total, stride = records[0][:, 0], records[0][:, 1:], int(states[0].counter[Counter.STRIDE])
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
