"""Samples of iterations: what a batch held, what it computed, how long it took."""

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
    notes: tuple[str, ...] = ()
    sha256: str = ""
