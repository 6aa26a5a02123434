"""Samples of iterations: what a batch held, what it computed, how long it took; and what collects them."""

from dataclasses import dataclass, field

import numpy as np

from kvplan.errors import ProfileError, UsageError
from kvplan.model import FloatArray, IntArray

_SHORTEST_S, _LONGEST_S = 1e-7, 1e5  # of an iteration


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
    sha256: str = ""


@dataclass(slots=True)
class _Group:
    format: str
    hidden_prefill: bool
    rows: list[tuple[float, float, float, float, int]] = field(default_factory=list)


class Collector:
    """Collects samples of a file, and counts what gave none.

    `capacity_tokens` is the KV capacity that usage is a share of: the one given, which counts whatever the file states,
    else the one stated last, else one assumed.
    """

    def __init__(self, source: str, given_tokens: int | None, assumed_tokens: int | None) -> None:
        self.source = source
        self.given_tokens = given_tokens
        self.capacity_tokens = assumed_tokens if given_tokens is None else given_tokens
        self._groups: dict[tuple[str, str], _Group] = {}
        self._left_out: dict[str, tuple[int, int]] = {}

    def skip(self, reason: str, line: int) -> None:
        """Count a row that gives no sample."""
        count, first = self._left_out.get(reason, (0, line))
        self._left_out[reason] = (count + 1, first)

    def add(
        self,
        format: str,
        values: tuple[float, float, float, float],
        line: int,
        *,
        group: str = "",
        hidden_prefill: bool = False,
    ) -> None:
        """A sample (K, P, B, τ), unless nothing ran.

        Raises
        ------
        ProfileError
            No iteration takes so long, or so short.
        """
        if not (values[2] > 0 and values[3] > 0):
            self.skip("nothing was generated", line)
            return
        if not _SHORTEST_S <= values[3] <= _LONGEST_S:
            raise ProfileError(
                self.source,
                f"an iteration of {values[3]:g} s; must be from {_SHORTEST_S:g} to {_LONGEST_S:,.0f} s",
                line=line,
            )
        self._groups.setdefault((format, group), _Group(format, hidden_prefill)).rows.append((*values, line))

    def add_average(
        self,
        format: str,
        line: int,
        prompt_rate: float,
        generation_rate: float,
        running: float,
        usage_percent: float,
    ) -> None:
        """A sample from throughputs (tokens/s), sequences running and KV usage.

        An iteration takes τ = B / (generated tokens per second): each of B running sequences gets one token. Prefill
        tokens are the prompt throughput times τ. Engines leave recomputed prefill out of the prompt throughput, so that
        such samples can be too slow for what they say they did, never too fast.
        """
        kv_tokens = self.kv_tokens(usage_percent, line)
        tau = running / generation_rate if generation_rate > 0 else 0.0
        self.add(format, (kv_tokens, prompt_rate * tau, running, tau), line, hidden_prefill=True)

    def kv_tokens(self, usage_percent: float, line: int) -> float:
        """KV tokens of a usage.

        Raises
        ------
        ProfileError
            The capacity is not known, or the usage is above it.
        """
        if self.capacity_tokens is None:
            raise ProfileError(
                self.source,
                "KV usage is a share of a capacity that is not stated here; give --capacity, or a --base that has it",
                line=line,
            )
        if usage_percent > 100:
            raise ProfileError(self.source, f"KV usage of {usage_percent:g} %; at most 100", line=line)
        return usage_percent / 100 * self.capacity_tokens

    def samples(self) -> tuple[Samples, ...]:
        """What was collected, those of one replica together; empty where there was neither sample nor row.

        Raises
        ------
        UsageError
            Rows were left out, and no other is there.
        """
        left_out = tuple(LeftOut(reason, count, line) for reason, (count, line) in self._left_out.items())
        if left_out and not self._groups:
            rows = (f"{some.count} rows: {some.reason} (first: line {some.line})" for some in left_out)
            raise UsageError(f"{self.source}: no samples of iterations; {'; '.join(rows)}")
        return tuple(self._finished(name, group, left_out) for (_, name), group in self._groups.items())

    def _finished(self, name: str, group: _Group, left_out: tuple[LeftOut, ...]) -> Samples:
        *columns, lines = zip(*group.rows, strict=True)
        kv_tokens, prefill, sequences, seconds = (np.array(column, dtype=np.float64) for column in columns)
        return Samples(
            source=self.source,
            format=group.format,
            group=name,
            kv_tokens=kv_tokens,
            prefill_tokens=prefill,
            sequences=sequences,
            seconds=seconds,
            line=np.array(lines, dtype=np.int64),
            hidden_prefill=group.hidden_prefill,
            left_out=left_out,
        )
