"""What a run leaves behind: times of every request, counters, and a thinned record of memory and queue."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from kvplan.model import FloatArray, IntArray


class Ending(StrEnum):
    """Why a run ended."""

    FINISHED = "finished"  # every request completed
    HORIZON = "horizon"  # the clock ran out
    LIVELOCK = "livelock"  # nothing can ever complete any more
    INTERRUPTED = "interrupted"  # somebody stopped it


@dataclass(frozen=True)
class Series:
    """State while some of the executed iterations ran, evenly spaced ones: every `stride`-th.

    Those who are done after an iteration still count as running in it, and not yet as completed.

    Attributes
    ----------
    stride
        Iterations between two records.
    time_s : ndarray, shape (n_records,)
        Clock at the end of the iteration.
    kv_tokens : ndarray of int64, shape (n_records,)
        Memory held while it ran, whole blocks.
    waiting, running : ndarray of int64, shape (n_records,)
        Requests in the queue and requests holding memory.
    evictions, completions : ndarray of int64, shape (n_records,)
        In all so far.
    busy_s : ndarray, shape (n_records,)
        Time of all iterations so far.
    """

    stride: int
    time_s: FloatArray
    kv_tokens: IntArray
    waiting: IntArray
    running: IntArray
    evictions: IntArray
    completions: IntArray
    busy_s: FloatArray


@dataclass(frozen=True)
class Found:
    """What a prefix cache found.

    Attributes
    ----------
    hit_tokens : ndarray of int64, shape (n_requests,)
        Of each prompt at its first admission.
    recovered_tokens : ndarray of int64, shape (n_requests,)
        Of prompts and what they had generated, at admissions after an eviction.
    looked_up_tokens, looked_up_again_tokens
        Tokens of the sequences that were looked up, at first admissions and at further ones.
    cached_sum
        Sum over iterations of the tokens that were known though nobody held them.
    cached_tokens : ndarray of int64, shape (n_records,)
        Of those iterations that the series of the run records.
    loaded_tokens : ndarray of int64, shape (n_requests,)
        Of those in `hit_tokens`, what came from the host tier; None without one.
    link_busy_s
        Time that the link to the host has taken for loads.
    """

    hit_tokens: IntArray
    recovered_tokens: IntArray
    looked_up_tokens: int
    looked_up_again_tokens: int
    cached_sum: float
    cached_tokens: IntArray
    loaded_tokens: IntArray | None = None
    link_busy_s: float = 0.0


@dataclass(frozen=True)
class SpanSums:
    """What fell into equal spans of time.

    Attributes
    ----------
    sums : ndarray, shape (n_spans, n_columns)
        See `kvplan.simulation.state.State.span`; of a fleet over its replicas.
    gaps : ndarray of int64, shape (n_spans, GAPS)
        Times between two tokens of a request, by their logarithms.
    """

    sums: FloatArray
    gaps: IntArray


@dataclass(frozen=True)
class Outcome:
    """A run of one policy on one list of requests.

    Attributes
    ----------
    arrival_s, first_token_s, finish_s : ndarray, shape (n_requests,)
        Seconds from the start; NaN for what has not happened. The first token counts even where the request was
        evicted later and had to begin again. Arrivals of a closed loop are those that came about. All by the clock of
        the engine.
    evictions : ndarray of int64, shape (n_requests,)
        How often each request was evicted.
    end_s
        Clock when the run ended.
    iterations
        Batches executed.
    recomputed_tokens
        KV tokens held at evictions: work that was lost.
    computed_tokens
        KV tokens computed in all: prompts (unless they arrive ready-made) and generated tokens, lost ones included.
    busy_s
        Time of all iterations.
    kv_sum
        Sum over iterations of the memory held while they ran, tokens.
    kv_peak, queue_peak
        Most memory held in a batch, tokens; most requests waiting when a batch began.
    prefill_peak, batch_peak
        Most prefill tokens computed in a batch, and most requests in one.
    kv_histogram : ndarray of int64, shape (n_bins,)
        Iterations by memory held while they ran; bin j holds j·bin_tokens up to (j+1)·bin_tokens, exclusive.
    gap_histogram : ndarray of int64, shape (GAPS,)
        Times between two tokens of a request, from the first to the last, by their logarithms; what waited between two
        admissions is one of them. Tokens that a policy computes again count again.
    gap_sum_s
        All of these together.
    resident
        Requests that hold memory at the end.
    stuck
        A livelock because of a request that can never fit, even alone; else of requests that evict each other.
    overflows
        Iterations that began with more than the memory, so that somebody was evicted.
    spans
        Sums kept apart by time; None: nobody asked.
    request_overhead_s
        What each request took besides, outside the engine.
    shed : ndarray of bool, shape (n_requests,)
        Who was given up after waiting too long; None: nobody.
    found
        What the prefix cache found; None: there was none.
    replica_end_s : ndarray, shape (n_replicas,)
        When each replica last ended an iteration, or a transfer of KV. None: not noted.
    """

    arrival_s: FloatArray
    first_token_s: FloatArray
    finish_s: FloatArray
    evictions: IntArray
    ending: Ending
    end_s: float
    iterations: int
    recomputed_tokens: int
    computed_tokens: int
    busy_s: float
    kv_sum: float
    kv_peak: int
    queue_peak: int
    prefill_peak: int
    batch_peak: int
    resident: int
    stuck: bool
    kv_histogram: IntArray
    bin_tokens: int
    gap_histogram: IntArray
    gap_sum_s: float
    overflows: int
    series: Series
    spans: SpanSums | None = None
    request_overhead_s: float = 0.0
    shed: NDArray[np.bool_] | None = None
    found: Found | None = None
    replica_end_s: FloatArray | None = None

    @property
    def finished(self) -> bool:
        """Whether every request completed."""
        return self.ending is Ending.FINISHED

    @property
    def ttft_s(self) -> FloatArray:
        """What each request waited for its first token, outside the engine too; shape (n_requests,), seconds."""
        return self.first_token_s - self.arrival_s + self.request_overhead_s

    @property
    def e2e_s(self) -> FloatArray:
        """What each request waited for its last token, outside the engine too; shape (n_requests,), seconds."""
        return self.finish_s - self.arrival_s + self.request_overhead_s

    @property
    def mean_e2e_s(self) -> float:
        """The mean of `e2e_s`, where every request completed."""
        return float(np.mean(self.e2e_s))
