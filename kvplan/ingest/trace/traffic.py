"""The traffic of a recorded trace: lengths, rate and burstiness, in memory that does not grow with the file.

A trace is read once. What is kept of it is a table of (input, output) pairs with how often each came, and sums over
arrival times; lengths are rounded, ever more coarsely, only when there are more distinct pairs than the table holds.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvplan.errors import UsageError
from kvplan.ingest.trace.format import Description
from kvplan.ingest.trace.prefixes import Prefixes, prefixes_of
from kvplan.ingest.trace.rows import Rows, TraceFile, read_description
from kvplan.model import FloatArray, IntArray
from kvplan.units import format_percent

_MAX_PAIRS = 1 << 20
_MAX_SECONDS = 1 << 20
_OUTPUT_BITS = 20


@dataclass(frozen=True)
class Traffic:
    """What a trace says about the traffic.

    Attributes
    ----------
    rows
        Rows read, those left out included.
    input_tokens, decode_tokens : ndarray of int64, shape (n_pairs,), tokens
        Distinct pairs of lengths, ascending by input, then by output.
    count : ndarray, shape (n_pairs,)
        Requests of each pair; expected ones where the file describes distributions.
    start_s, span_s
        First arrival, on the file's own clock, and seconds from it to the last. None: no arrival times.
    rate_rps
        Requests per second over the span.
    gap_cv
        Coefficient of variation of the times between arrivals, as a description says. None: it does not, or the
        requests are listed.
    counts : ndarray, shape (n_cells,)
        Arrivals in each `cell_s` seconds from the first on; expected ones of a description. None: no arrival times.
    prefixes
        What prompts have in common. None: nothing in the trace tells.
    notes
        What was left out or rounded, and what is not as it seems.
    """

    path: Path
    format: str
    sha256: str
    rows: int
    input_tokens: IntArray
    decode_tokens: IntArray
    count: FloatArray
    start_s: float | None
    span_s: float | None
    rate_rps: float
    gap_cv: float | None
    prefixes: Prefixes | None
    notes: tuple[str, ...]
    counts: FloatArray | None = None
    cell_s: float = 1.0

    @property
    def mean_input(self) -> float:
        """Tokens."""
        return float(self.count @ self.input_tokens / self.count.sum())

    @property
    def mean_decode(self) -> float:
        """Tokens."""
        return float(self.count @ self.decode_tokens / self.count.sum())


def measure(path: Path) -> Traffic:
    """Read a trace; rows without input or without output are left out, and said to be.

    Raises a `UsageError` where the file cannot be read, or holds fewer than two arrivals.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "trace.csv")
    ...     _ = path.write_text("time,input,output\\n0,374,44\\n1,396,109\\n2,396,0\\n4,396,109\\n")
    ...     traffic = measure(path)
    >>> traffic.rate_rps, traffic.count.tolist(), traffic.notes
    (0.5, [1.0, 2.0], ('1 of 4 rows has no tokens and is left out',))
    """
    described = read_description(path)
    if described is not None:
        return _of_description(path, *described)
    trace = TraceFile(path)
    pairs, arrivals = _Pairs(), _Arrivals()
    rows = 0
    for block in trace:
        rows += block.time_s.size
        kept = (block.input_tokens > 0) & (block.output_tokens > 0)
        used = Rows(block.time_s[kept], block.input_tokens[kept], block.output_tokens[kept])
        pairs.add(used.input_tokens, used.output_tokens)
        if trace.extras.duration_s is None:
            arrivals.add(used.time_s)
    arrivals.finish()
    inputs, outputs, count = pairs.table()
    served = int(count.sum())
    if not served:
        raise UsageError(f"{path}: no requests with tokens; {rows:,} rows")
    extras = trace.extras
    timed = extras.duration_s is None
    span = arrivals.span if extras.duration_s is None else extras.duration_s
    if span <= 0:
        what = "1 request" if served == 1 else f"{served:,} requests, all at one time"
        raise UsageError(f"{path}: {what}; a rate needs arrivals at two times at least")
    prefixes = prefixes_of(extras.identities)
    counts, cell_s = arrivals.counts() if timed else (None, 1.0)
    return Traffic(
        path=path,
        format=trace.format,
        sha256=trace.sha256,
        rows=rows + trace.cut_off,
        input_tokens=inputs,
        decode_tokens=outputs,
        count=count,
        start_s=arrivals.first if timed else None,
        span_s=span,
        rate_rps=(served - 1 if timed else served) / span,
        gap_cv=None,
        prefixes=prefixes,
        notes=tuple(_notes(trace, rows, served, arrivals, pairs, prefixes)),
        counts=counts,
        cell_s=cell_s,
    )


def _notes(
    trace: TraceFile,
    rows: int,
    served: int,
    arrivals: "_Arrivals",
    pairs: "_Pairs",
    prefixes: Prefixes | None,
) -> Iterator[str]:
    if empty := rows - served:
        ending = "has no tokens and is left out" if empty == 1 else "have no tokens and are left out"
        yield f"{empty:,} of {rows:,} rows {ending}"
    if trace.cut_off:
        yield "the file ends within its last row, which is left out"
    if arrivals.unsorted:
        yield f"{arrivals.unsorted:,} arrivals are earlier than one before them in the file; put in order"
    if trace.extras.duration_s is not None:
        yield "no arrival times: the rate is that of completions, which can be below what was offered"
    if prefixes is None and trace.extras.identities.hashes:
        yield "hash_ids are not as many as the prompts have blocks, of whatever size: they tell nothing"
    yield from pairs.notes()
    yield from trace.wrapping_notes


def _of_description(path: Path, format: str, described: Description) -> Traffic:
    pairs = _Pairs()
    for part in described.parts:
        used_in, used_out = part.input_tokens > 0, part.output_tokens > 0
        inputs, outputs = part.input_tokens[used_in], part.output_tokens[used_out]
        count = part.requests * np.outer(part.input_share[used_in], part.output_share[used_out])
        pairs.add(np.repeat(inputs, outputs.size), np.tile(outputs, inputs.size), count.ravel())
    inputs, outputs, count = pairs.table()
    if not count.sum() > 0:
        raise UsageError(f"{path}: no requests with tokens")
    return Traffic(
        path=path,
        format=format,
        sha256=described.sha256,
        rows=described.windows,
        input_tokens=inputs,
        decode_tokens=outputs,
        count=count,
        start_s=None,
        span_s=described.span_s,
        rate_rps=float(count.sum()) / described.span_s,
        gap_cv=described.gap_cv,
        prefixes=None,
        notes=(*described.notes, *pairs.notes()),
        counts=described.rates_rps * (described.span_s / described.windows),
        cell_s=described.span_s / described.windows,
    )


class _Tally:
    """How often each whole number came. When too many are distinct, `coarsen` makes fewer of them."""

    def __init__(self, limit: int, coarsen: Callable[[IntArray], IntArray]) -> None:
        self.keys: IntArray = np.empty(0, np.int64)
        self.counts: FloatArray = np.empty(0)
        self._waiting: list[tuple[IntArray, FloatArray]] = []
        self._size = 0
        self._limit = limit
        self._coarsen = coarsen

    def add(self, keys: IntArray, counts: FloatArray | None = None) -> None:
        self._waiting.append((keys, np.ones(keys.size) if counts is None else counts))
        self._size += keys.size
        if self._size > max(self._limit // 16, self.keys.size):  # a merge costs as much as what is there
            self.merge()

    def merge(self) -> None:
        keys, counts = zip((self.keys, self.counts), *self._waiting, strict=True)
        self._waiting, self._size = [], 0
        self._set(np.concatenate(keys), np.concatenate(counts))
        while self.keys.size > self._limit:
            self._set(self._coarsen(self.keys), self.counts)

    def _set(self, keys: IntArray, counts: FloatArray) -> None:
        self.keys, place = np.unique(keys, return_inverse=True)
        self.counts = np.bincount(place, counts, self.keys.size).astype(np.float64, copy=False)


class _Pairs:
    """Pairs of lengths; `bits` are the leading ones that rounding left, None before any."""

    def __init__(self) -> None:
        self.bits: int | None = None
        self._tally = _Tally(_MAX_PAIRS, self._coarsen)

    def add(self, inputs: IntArray, outputs: IntArray, count: FloatArray | None = None) -> None:
        if self.bits is not None:
            inputs, outputs = _rounded(inputs, self.bits), _rounded(outputs, self.bits)
        self._tally.add((inputs << _OUTPUT_BITS) + outputs, count)

    def table(self) -> tuple[IntArray, IntArray, FloatArray]:
        self._tally.merge()
        keys = self._tally.keys
        return keys >> _OUTPUT_BITS, keys & ((1 << _OUTPUT_BITS) - 1), self._tally.counts

    def notes(self) -> Iterator[str]:
        if self.bits is not None:
            yield f"lengths rounded to {format_percent(2.0**-self.bits)}: too many are distinct"

    def _coarsen(self, keys: IntArray) -> IntArray:
        self.bits = 9 if self.bits is None else self.bits - 1
        inputs, outputs = keys >> _OUTPUT_BITS, keys & ((1 << _OUTPUT_BITS) - 1)
        return (_rounded(inputs, self.bits) << _OUTPUT_BITS) + _rounded(outputs, self.bits)


def _rounded(values: IntArray, bits: int) -> IntArray:
    """To the nearest number of so many leading bits."""
    exponent = np.frexp(values.astype(np.float64))[1]
    shift = np.maximum(exponent.astype(np.int64) - bits, 0)
    nearest: IntArray = (values + ((1 << shift) >> 1)) >> shift << shift
    return nearest


class _Arrivals:
    """Sums over arrival times that come in almost any order."""

    def __init__(self) -> None:
        self.first = math.inf
        self.unsorted = 0
        self._last = -math.inf  # the latest seen
        self._origin: float | None = None
        self._width_s = 1
        self._seconds = _Tally(_MAX_SECONDS, self._double)

    @property
    def span(self) -> float:
        return self._last - self.first if self._last > -math.inf else 0.0

    def add(self, times: FloatArray) -> None:
        if not times.size:
            return
        before = np.maximum.accumulate(np.concatenate([[self._last], times]))
        self.unsorted += int((times < before[:-1]).sum())
        self._last = float(before[-1])
        self.first = min(self.first, float(times.min()))
        if self._origin is None:
            self._origin = float(times[0])
        self._seconds.add(np.floor((times - self._origin) / self._width_s).astype(np.int64))

    def finish(self) -> None:
        self._seconds.merge()

    def counts(self) -> tuple[FloatArray, float]:
        """Arrivals in cells of time, and how long these are, seconds; a last one that is not whole is left out."""
        wide = 1
        while self.span / (self._width_s * wide) > _MAX_SECONDS:
            wide *= 2
        place = (self._seconds.keys - self._seconds.keys[0]) // wide
        cells = max(int(self.span // (self._width_s * wide)), 1)
        inside = place < cells
        counts = np.bincount(place[inside], self._seconds.counts[inside], cells)
        return counts.astype(np.float64), float(self._width_s * wide)

    def _double(self, keys: IntArray) -> IntArray:
        self._width_s *= 2
        return keys >> 1
