"""The traffic of a recorded trace: lengths, rate and burstiness.

A trace is read once. What is kept of it is a table of (input, output) pairs with how often each came, and how many
arrived in each second.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvplan.errors import UsageError
from kvplan.ingest.lengths import spread_around
from kvplan.ingest.observed import of_prefix_cache
from kvplan.ingest.trace.prefixes import Prefixes, prefixes_of
from kvplan.ingest.trace.rows import Rows, TraceFile, read_description
from kvplan.ingest.trace.servegen import Description, Part
from kvplan.model import FloatArray, IntArray
from kvplan.ranges import MAX_DECODE_TOKENS, MAX_TOKENS
from kvplan.units import format_number

_MAX_CELLS = 1 << 20
_OFF_GRID = 0.01  # of a step, by which rows that are sums are off
_OUTPUT_BITS = 20


@dataclass(frozen=True)
class Traffic:
    """Traffic of a trace: pairs of lengths, ascending, with how often each came, and arrivals."""

    path: Path
    format: str
    sha256: str
    rows: int  # read, those left out included
    input_tokens: IntArray  # shape (n_pairs,)
    decode_tokens: IntArray
    count: FloatArray  # expected ones where the file describes distributions
    start_s: float | None  # the first arrival, on the file's own clock; None: no arrival times
    span_s: float | None  # from it to the last
    rate_rps: float
    gap_cv: float | None  # of the times between arrivals, as a description says
    prefixes: Prefixes | None  # None: nothing tells what prompts have in common
    notes: tuple[str, ...]  # what was left out, and what is not as it seems
    assumed: bool = False  # the spread of lengths
    counts: FloatArray | None = None  # arrivals in each cell from the first on; None: no arrival times
    cell_s: float = 1.0

    @property
    def mean_input(self) -> float:
        """Tokens."""
        return float(self.count @ self.input_tokens / self.count.sum())

    @property
    def mean_decode(self) -> float:
        """Tokens."""
        return float(self.count @ self.decode_tokens / self.count.sum())


def measure(path: Path, unit: str | None = None, model: str | None = None) -> Traffic:
    """Read a trace; rows without input or without output are left out, and said to be.

    Raises a `UsageError` where the file cannot be read, holds fewer than two arrivals, or leaves open what `unit` the
    times are in, or which `model` of several is meant.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "trace.csv")
    ...     _ = path.write_text("time_s,input,output\\n0,374,44\\n1,396,109\\n2,396,0\\n4,396,109\\n")
    ...     traffic = measure(path)
    >>> traffic.rate_rps, traffic.count.tolist(), traffic.notes
    (0.5, [1.0, 2.0], ('1 of 4 rows left out: without tokens',))
    """
    described = read_description(path)
    if described is not None:
        return _of_description(path, *described)
    trace = TraceFile(path, unit, model)
    every = trace.read()
    if trace.are_sums(every):
        trace.refuse_what_is_open(0, 0.0)
        return _of_description(path, trace.format, _of_sums(trace, every))
    kept = (every.input_tokens > 0) & (every.output_tokens > 0)
    time_s = every.time_s[kept]
    served, rows = time_s.size, trace.leave_out(~kept, "without tokens")
    if not served:
        raise UsageError(f"{path}: no requests with tokens; {rows:,} rows")
    duration_s = trace.duration_s
    span = float(np.ptp(time_s)) if duration_s is None else duration_s
    trace.refuse_what_is_open(served, span, float(time_s.min()))
    if span <= 0:
        what = "1 request" if served == 1 else f"{served:,} requests, all at one time"
        raise UsageError(f"{path}: {what}; a rate needs arrivals at two times at least")
    timed = duration_s is None
    prefixes, cached_share = prefixes_of(trace.identities), trace.cached_share
    if prefixes and cached_share and not prefixes.hashed:
        prefixes = prefixes.scaled(cached_share)
    counts, cell_s = _per_cell(time_s, span) if timed else (None, 1.0)
    return Traffic(
        path,
        trace.format,
        trace.sha256,
        rows + trace.cut_off,
        *_pairs(every.input_tokens[kept], every.output_tokens[kept]),
        start_s=float(time_s.min()) if timed else None,
        span_s=span,
        rate_rps=(served - 1 if timed else served) / span,
        gap_cv=None,
        prefixes=prefixes,
        notes=(*trace.notes(rows, time_s), *_notes(trace, prefixes)),
        counts=counts,
        cell_s=cell_s,
    )


def _notes(trace: TraceFile, prefixes: Prefixes | None) -> Iterator[str]:
    if trace.duration_s is not None:
        yield "no arrival times: the rate is that of completions, which can be below what was offered"
    if share := trace.cached_share:
        yield of_prefix_cache(share, "stated by the rows")
    if prefixes is None and trace.identities.hashes:
        yield "hash_ids are not as many as the prompts have blocks, of whatever size: they tell nothing"


def _of_sums(trace: TraceFile, rows: Rows) -> Description:
    """Describe requests of which rows are sums over steps of time: rates by step, and mean lengths."""
    starts = np.unique(rows.time_s)
    width = float(np.diff(starts).min()) if starts.size > 1 else 0.0
    place = (rows.time_s - starts[0]) / (width or 1.0)
    if not width or np.abs(place - np.rint(place)).max() > _OFF_GRID:
        raise UsageError(
            f"{trace.path}: rows count several requests ({trace.counted_by}), but are no sums over steps of time that "
            "are all as long; rename that column where it means something else"
        )
    requests = np.bincount(np.rint(place).astype(np.int64), rows.requests)
    total = float(requests.sum())
    if (tokens := float(rows.input_tokens.sum())) < total:
        raise UsageError(
            f"{trace.path}: rows count {total:,.0f} requests and have {tokens:,.0f} tokens in, less than one each; are "
            "they means of a request, where sums are needed?"
        )
    means = tokens / total, float(rows.output_tokens.sum()) / total
    inputs = spread_around(means[0], MAX_TOKENS)
    outputs = spread_around(means[1], MAX_DECODE_TOKENS)
    note = (
        f"rows are sums of several requests over {format_number(width)} s: {total:,.0f} requests in {starts.size:,} of "
        f"{requests.size:,} steps; how lengths and gaps spread is assumed, exponential (cv 1)"
    )
    return Description(
        parts=[Part(total, inputs.tokens, inputs.weight, outputs.tokens, outputs.weight)],
        rates_rps=requests / width,
        span_s=requests.size * width,
        gap_cv=1.0,
        sha256=trace.sha256,
        notes=(note, *trace.notes(rows.time_s.size + trace.not_read, rows.time_s), *_notes(trace, None)),
        assumed=True,
    )


def _of_description(path: Path, format: str, described: Description) -> Traffic:
    columns: list[tuple[IntArray, IntArray, FloatArray]] = []
    for part in described.parts:
        used_in, used_out = part.input_tokens > 0, part.output_tokens > 0
        inputs, outputs = part.input_tokens[used_in], part.output_tokens[used_out]
        count = part.requests * np.outer(part.input_share[used_in], part.output_share[used_out])
        columns.append((np.repeat(inputs, outputs.size), np.tile(outputs, inputs.size), count.ravel()))
    inputs, outputs, count = _pairs(*map(np.concatenate, zip(*columns, strict=True)))
    if not count.sum() > 0:
        raise UsageError(f"{path}: no requests with tokens")
    cell_s = described.span_s / described.windows
    return Traffic(
        path,
        format,
        described.sha256,
        described.windows,
        inputs,
        outputs,
        count,
        start_s=None,
        span_s=described.span_s,
        rate_rps=float(count.sum()) / described.span_s,
        gap_cv=described.gap_cv,
        prefixes=None,
        notes=described.notes,
        assumed=described.assumed,
        counts=described.rates_rps * cell_s,
        cell_s=cell_s,
    )


def _pairs(
    inputs: IntArray, outputs: IntArray, count: FloatArray | None = None
) -> tuple[IntArray, IntArray, FloatArray]:
    keys, place = np.unique((inputs << _OUTPUT_BITS) + outputs, return_inverse=True)
    counts = np.bincount(place, count, keys.size).astype(np.float64)
    return keys >> _OUTPUT_BITS, keys & ((1 << _OUTPUT_BITS) - 1), counts


def _per_cell(time_s: FloatArray, span: float) -> tuple[FloatArray, float]:
    """Arrivals in cells of time, and how long these are, seconds; a last one that is not whole is left out."""
    wide = 1
    while span / wide > _MAX_CELLS:
        wide *= 2
    second = np.floor(time_s - time_s[0]).astype(np.int64)
    cells = max(int(span // wide), 1)
    place = (second - second.min()) // wide
    return np.bincount(place[place < cells], minlength=cells).astype(np.float64), float(wide)
