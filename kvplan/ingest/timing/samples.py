"""Samples of iterations: what a batch held, what it computed, how long it took; and records they can be made from."""

from dataclasses import dataclass

from kvplan.model import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows that gave no sample: why, how many, and the line of the first."""

    reason: str
    count: int
    line: int


@dataclass(frozen=True, slots=True)
class Samples:
    """Iterations of one replica, measured or averaged.

    Attributes
    ----------
    format
        What the format of the file is called.
    group
        What was measured, where a file holds several: "llama2-70b, a100-80gb, TP2"; else empty.
    kv_tokens : ndarray, shape (n_samples,), tokens
        K: KV of the sequences in the batch.
    prefill_tokens : ndarray, shape (n_samples,), tokens
        P: prompt tokens computed.
    sequences : ndarray, shape (n_samples,)
        B: sequences in the batch.
    seconds : ndarray, shape (n_samples,), seconds
        τ.
    line : ndarray of int64, shape (n_samples,)
        Where in the file, counted from 1.
    hidden_prefill
        Recomputed prefill took time but is not in `prefill_tokens`.
    requests
        The requests of the run, where the samples come from them.
    notes
        What the reader of the samples should know of how they were measured.
    sha256
        Of the bytes of the file, as stored; empty for lines that are no file's.
    """

    source: str
    format: str
    group: str
    kv_tokens: FloatArray
    prefill_tokens: FloatArray
    sequences: FloatArray
    seconds: FloatArray
    line: IntArray
    hidden_prefill: bool = False
    left_out: tuple[LeftOut, ...] = ()
    requests: "RequestLog | None" = None
    notes: tuple[str, ...] = ()
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class RequestLog:
    """Requests of a run as they were served, in the order of the file; times from the first arrival on.

    Attributes
    ----------
    input_tokens, output_tokens : ndarray of int64, shape (n_requests,), tokens
    arrival_s, scheduled_s, first_token_s, last_token_s : ndarray, shape (n_requests,), seconds
        `scheduled_s` is when it first ran, or its arrival where the file does not say.
    line : ndarray of int64, shape (n_requests,)
        Where in the file, counted from 1.
    cached_tokens : ndarray of int64, shape (n_requests,), tokens
        Of the prompt, found in the prefix cache.
    """

    source: str
    format: str
    input_tokens: IntArray
    output_tokens: IntArray
    arrival_s: FloatArray
    scheduled_s: FloatArray
    first_token_s: FloatArray
    last_token_s: FloatArray
    line: IntArray
    cached_tokens: IntArray
    left_out: tuple[LeftOut, ...] = ()
    sha256: str = ""
    group: str = ""  # such a file does not say what served


@dataclass(frozen=True, slots=True)
class Series:
    """Averages over intervals, of a run whose KV usage was not recorded.

    Attributes
    ----------
    end_s : ndarray, shape (n_intervals,), seconds
        Where each interval ends, from an origin of the file's own.
    prompt_rate, generation_rate : ndarray, shape (n_intervals,), tokens per second
    running : ndarray, shape (n_intervals,)
        Requests at the end of the interval.
    line : ndarray of int64, shape (n_intervals,)
        Where in the file, counted from 1.
    """

    source: str
    format: str
    end_s: FloatArray
    prompt_rate: FloatArray
    generation_rate: FloatArray
    running: FloatArray
    line: IntArray
    left_out: tuple[LeftOut, ...] = ()
    sha256: str = ""
    group: str = ""  # such a file does not say what served
