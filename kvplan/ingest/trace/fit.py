"""From a recorded trace to request classes, rates and burstiness, in memory that does not grow with the file.

A trace is read once. What is kept of it is a table of (input, output) pairs with how often each came, and sums over
arrival times; lengths are rounded, ever more coarsely, only when there are more distinct pairs than the table holds.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvplan.errors import UsageError
from kvplan.ingest.trace import servegen
from kvplan.ingest.trace.rows import Rows, TraceFile
from kvplan.model import FloatArray, IntArray, Prefill, RequestClass, ServingModel
from kvplan.units import format_percent

BINS = 8
POINTS = 50
_MAX_PAIRS = 1 << 20
_MAX_SECONDS = 1 << 20
_REORDERED = 1 << 16  # arrivals sorted at a time
_WINDOW_S = 60
_OUTPUT_BITS = 20


@dataclass(frozen=True)
class Traffic:
    """What a trace says about the traffic.

    Attributes
    ----------
    path : Path
    format : str
    sha256 : str
    rows : int
        Rows read, those left out included.
    input_tokens, decode_tokens : ndarray of int64, shape (n_pairs,), tokens
        Distinct pairs of lengths, ascending by input, then by output.
    count : ndarray, shape (n_pairs,)
        Requests of each pair; expected ones where the file describes distributions.
    start_s, span_s : float or None
        First arrival, on the file's own clock, and seconds from it to the last. None: no arrival times.
    rate_rps : float
        Requests per second over the span.
    gap_cv : float or None
        Coefficient of variation of the times between arrivals; 1 for Poisson arrivals.
    dispersion, dispersion_window_s : float or None
        Variance over mean of the arrivals in windows of so many seconds; 1 for Poisson arrivals. None: too short.
    prefix_share : float or None
        Share of the prompts' blocks that an unlimited prefix cache would have had. None: no ``hash_ids``.
    notes : tuple of str
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
    dispersion: float | None
    dispersion_window_s: float | None
    prefix_share: float | None
    notes: tuple[str, ...]

    @property
    def mean_input(self) -> float:
        """Tokens."""
        return float(self.count @ self.input_tokens / self.count.sum())

    @property
    def mean_decode(self) -> float:
        """Tokens."""
        return float(self.count @ self.decode_tokens / self.count.sum())


class Distortion(NamedTuple):
    """What classes make of a trace, beside the trace itself, on the same replica.

    Attributes
    ----------
    trace_stable, stable : bool
        Whether the eviction-free equilibrium is stable; of the trace, and of the classes.
    trace_gap, gap : float
        1 - ρ of each.
    footprint, variance : float
        Relative errors of the mean footprint of a request and of the variance of KV usage.
    """

    trace_stable: bool
    stable: bool
    trace_gap: float
    gap: float
    footprint: float
    variance: float


def measure(path: Path) -> Traffic:
    """Read a trace; rows without input or without output are left out, and said to be.

    Raises
    ------
    UsageError
        The file cannot be read, or holds fewer than two arrivals.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "trace.csv")
    ...     _ = path.write_text("time,input,output\\n0,374,44\\n1,396,109\\n2,396,0\\n4,396,109\\n")
    ...     traffic = measure(path)
    >>> traffic.rate_rps, traffic.count.tolist(), traffic.notes
    (0.5, [1.0, 2.0], ('1 of 4 rows has no tokens and is left out',))
    """
    client = servegen.read(path)
    if client is not None:
        return _of_client(path, client)
    trace = TraceFile(path)
    pairs, arrivals = _Pairs(), _Arrivals()
    rows = 0
    for block in trace:
        rows += block.time_s.size
        kept = (block.input_tokens > 0) & (block.output_tokens > 0)
        used = Rows(block.time_s[kept], block.input_tokens[kept], block.output_tokens[kept])
        pairs.add(used.input_tokens, used.output_tokens)
        if trace.duration_s is None:
            arrivals.add(used.time_s)
    arrivals.finish()
    inputs, outputs, count = pairs.table()
    served = int(count.sum())
    notes = _notes(trace, rows, served, arrivals, pairs)
    if not served:
        raise UsageError(f"{path}: no requests with tokens; {rows:,} rows")
    span = arrivals.span if trace.duration_s is None else trace.duration_s
    if span <= 0:
        what = "1 request" if served == 1 else f"{served:,} requests, all at one time"
        raise UsageError(f"{path}: {what}; a rate needs arrivals at two times at least")
    timed = trace.duration_s is None
    dispersion, window = arrivals.dispersion() if timed else (None, None)
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
        gap_cv=arrivals.gap_cv() if timed else None,
        dispersion=dispersion,
        dispersion_window_s=window,
        prefix_share=trace.repeated_blocks / trace.prompt_blocks if trace.prompt_blocks else None,
        notes=notes,
    )


def binned(traffic: Traffic, bins: int = BINS, points: int = POINTS) -> tuple[RequestClass, ...]:
    """Ranges of the input length, each with the decode lengths seen in it.

    A range has the mean of its inputs, and the means of at most `points` ranges of its decode lengths. Where no more
    than `bins` inputs or `points` lengths are distinct, they are kept as they are.

    References
    ----------
    New, theory §3 ("Traces"). Where to cut, for the least squared error: `cut`.

    Examples
    --------
    >>> from kvplan.ingest.trace.fit import _example
    >>> [(c.name, c.input_tokens, c.decode_tokens) for c in binned(_example(), bins=2)]
    [('input 10-12', 11, (20, 40)), ('input 300', 300, (5,))]
    """
    group = cut(traffic.input_tokens, traffic.count, bins)
    classes = []
    for g in range(int(group.max()) + 1):
        mine = group == g
        inputs, decode, count = traffic.input_tokens[mine], traffic.decode_tokens[mine], traffic.count[mine]
        part = cut(decode, count, points)
        weight = np.bincount(part, count)
        means = np.rint(np.bincount(part, count * decode) / weight).astype(np.int64)
        lengths, same = np.unique(means, return_inverse=True)
        classes.append(
            RequestClass(
                name=f"input {_range(inputs)}",
                input_tokens=round(float(count @ inputs / count.sum())),
                decode_tokens=tuple(lengths.tolist()),
                decode_weights=tuple(np.bincount(same, weight).tolist()),
                rate_rps=traffic.rate_rps * float(count.sum() / traffic.count.sum()),
            )
        )
    return tuple(classes)


def compact(traffic: Traffic, classes: int) -> tuple[RequestClass, ...]:
    """At most so many classes with one decode length each; `distortion` says what that costs.

    The class whose lengths differ most from their means, in units of their spread over the trace, is cut in two at
    its mean, until there are enough.

    Examples
    --------
    >>> from kvplan.ingest.trace.fit import _example
    >>> [(c.name, c.decode_tokens) for c in compact(_example(), 2)]
    [('input 10-12, decode 20-40', (30,)), ('input 300, decode 5', (5,))]
    """
    lengths = np.stack([traffic.input_tokens, traffic.decode_tokens]).astype(np.float64)
    count = traffic.count
    mean = lengths @ count / count.sum()
    spread = np.sqrt((lengths - mean[:, None]) ** 2 @ count / count.sum())
    scaled = lengths / np.where(spread > 0, spread, 1.0)[:, None]

    def errors(rows: IntArray) -> tuple[FloatArray, FloatArray]:
        centre = scaled[:, rows] @ count[rows] / count[rows].sum()
        return (scaled[:, rows] - centre[:, None]) ** 2 @ count[rows], centre

    parts = [np.arange(count.size)]
    found = [errors(parts[0])]
    while len(parts) < classes:
        worst = max(range(len(parts)), key=lambda i: float(found[i][0].max()))
        rows, (error, centre) = parts[worst], found[worst]
        axis = int(error.argmax())
        below = scaled[axis, rows] <= centre[axis]
        if below.all() or not below.any():
            break
        parts[worst : worst + 1] = [rows[below], rows[~below]]
        found[worst : worst + 1] = [errors(rows[below]), errors(rows[~below])]
    parts.sort(key=lambda rows: tuple(lengths[:, rows] @ count[rows] / count[rows].sum()))
    total = count.sum()
    made = []
    for rows in parts:
        centre = lengths[:, rows] @ count[rows] / count[rows].sum()
        name = f"input {_range(traffic.input_tokens[rows])}, decode {_range(traffic.decode_tokens[rows])}"
        rate = traffic.rate_rps * float(count[rows].sum() / total)
        made.append(RequestClass(name, round(centre[0]), (round(centre[1]),), (1.0,), rate))
    return tuple(made)


def cut(values: IntArray, count: FloatArray, limit: int) -> IntArray:
    """Group values by size into at most `limit` ranges: the group of each, from 0 up.

    Means lose the least squared error where the density of ranges follows the cube root of the density of values
    (Panter and Dite 1951): more ranges than equally frequent ones where values are few and far between. No more than
    `limit` distinct values are left alone.

    Parameters
    ----------
    values : ndarray, shape (n,)
    count : ndarray, shape (n,)
        How often each came.
    limit : int

    Examples
    --------
    >>> cut(np.array([7, 1, 2, 100]), np.ones(4), 2).tolist()
    [0, 0, 0, 1]
    """
    distinct, group = np.unique(values, return_inverse=True)
    if distinct.size > limit:
        gap = np.diff(distinct, prepend=2 * distinct[0] - distinct[1]).astype(np.float64)
        share = np.cbrt(np.bincount(group, count) * gap**2)
        for _ in range(limit):  # what alone would take several ranges can only fill one
            share = np.minimum(share, share.sum() / limit)
        place = np.floor((np.cumsum(share) - share / 2) / share.sum() * limit)
        group = np.unique(np.minimum(place, limit - 1), return_inverse=True)[1][group]
    return group.astype(np.int64)


def whole(traffic: Traffic, like: ServingModel) -> ServingModel:
    """Every pair of lengths of the trace, on the replica and with the timing of `like`; no binning."""
    inputs, first = np.unique(traffic.input_tokens, return_index=True)
    scale = traffic.rate_rps / traffic.count.sum()
    classes = []
    ends = [*first[1:].tolist(), traffic.count.size]
    for length, begin, end in zip(inputs.tolist(), first.tolist(), ends, strict=True):
        decode, count = traffic.decode_tokens[begin:end], traffic.count[begin:end]
        rate = float(count.sum() * scale)
        classes.append(
            RequestClass(f"input {length}", length, tuple(decode.tolist()), tuple(count.tolist()), rate)
        )
    return ServingModel(tuple(classes), like.timing, like.replica)


def distortion(traffic: Traffic, classes: tuple[RequestClass, ...], like: ServingModel) -> Distortion:
    """What classes make of a trace, on the replica of `like`: stability, 1 - ρ, footprint, variance of KV usage."""
    from kvplan.analysis.stability import model_spectrum

    model = ServingModel(classes, like.timing, like.replica)
    of_trace, of_model = model_spectrum(whole(traffic, like)), model_spectrum(model)
    footprint, variance = moment_errors(traffic, classes, like)
    return Distortion(
        trace_stable=of_trace.stable,
        stable=of_model.stable,
        trace_gap=1 - of_trace.radius,
        gap=1 - of_model.radius,
        footprint=footprint,
        variance=variance,
    )


def moment_errors(
    traffic: Traffic, classes: tuple[RequestClass, ...], like: ServingModel
) -> tuple[float, float]:
    """Relative errors that classes make in a request's mean footprint and in the variance of KV usage.

    Examples
    --------
    >>> from kvplan.model import Replica, Timing
    >>> traffic = _example()
    >>> like = ServingModel(binned(traffic), Timing(0.01), Replica(9000))
    >>> moment_errors(traffic, like.classes, like)
    (0.0, 0.0)
    """
    mix = ServingModel(classes, like.timing, like.replica).mix
    inline = like.replica.prefill is Prefill.INLINE
    stages = traffic.decode_tokens + (1 if inline else 0)
    first_weight = traffic.input_tokens.astype(np.float64) + (0 if inline else 1)
    made = _moments(mix.stages, mix.read.first, mix.share)
    raw = _moments(stages, first_weight, traffic.count / traffic.count.sum())
    return made[0] / raw[0] - 1, made[1] / raw[1] - 1


def _moments(stages: IntArray, first_weight: FloatArray, share: FloatArray) -> tuple[float, float]:
    """Σ_k (a+k) and Σ_k (a+k)² of a request on average; KV usage of Poisson arrivals has these as cumulants."""
    n, a = stages.astype(np.float64), first_weight
    squares = n * a**2 + a * n * (n - 1) + (n - 1) * n * (2 * n - 1) / 6
    return float(share @ (n * a + n * (n - 1) / 2)), float(share @ squares)


def _range(values: IntArray) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low}" if low == high else f"{low}-{high}"


def _notes(
    trace: TraceFile, rows: int, served: int, arrivals: "_Arrivals", pairs: "_Pairs"
) -> tuple[str, ...]:
    notes = []
    if empty := rows - served:
        ending = "has no tokens and is left out" if empty == 1 else "have no tokens and are left out"
        notes.append(f"{empty:,} of {rows:,} rows {ending}")
    if trace.cut_off:
        notes.append("the file ends within its last row, which is left out")
    if arrivals.unsorted:
        notes.append(
            f"{arrivals.unsorted:,} arrivals are earlier than one before them in the file; put in order"
        )
    if arrivals.late:
        notes.append(
            f"{arrivals.late:,} of these are too far off to be put in order, and count as gaps of 0 s"
        )
    if trace.duration_s is not None:
        notes.append("no arrival times: the rate is that of completions, which can be below what was offered")
    if trace.forgetful:
        notes.append("more prefix blocks than are remembered: the share of repeated ones is a lower bound")
    if pairs.bits is not None:
        notes.append(f"lengths rounded to {format_percent(2.0**-pairs.bits)}: too many are distinct")
    return tuple(notes)


def _of_client(path: Path, client: servegen.Client) -> Traffic:
    pairs = _Pairs()
    for part in client.parts:
        used_in, used_out = part.input_tokens > 0, part.output_tokens > 0
        inputs, outputs = part.input_tokens[used_in], part.output_tokens[used_out]
        count = part.requests * np.outer(part.input_share[used_in], part.output_share[used_out])
        pairs.add(np.repeat(inputs, outputs.size), np.tile(outputs, inputs.size), count.ravel())
    inputs, outputs, count = pairs.table()
    if not count.sum() > 0:
        raise UsageError(f"{path}: no requests with tokens")
    notes = [*client.notes]
    if pairs.bits is not None:
        notes.append(f"lengths rounded to {format_percent(2.0**-pairs.bits)}: too many are distinct")
    return Traffic(
        path=path,
        format="ServeGen client",
        sha256=client.sha256,
        rows=client.windows,
        input_tokens=inputs,
        decode_tokens=outputs,
        count=count,
        start_s=None,
        span_s=client.span_s,
        rate_rps=float(count.sum()) / client.span_s,
        gap_cv=client.gap_cv,
        dispersion=None,
        dispersion_window_s=None,
        prefix_share=None,
        notes=tuple(notes),
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
        self.late = 0
        self._last = -math.inf  # the latest seen
        self._done = -math.inf  # the latest of which the gap before it is counted
        self._origin: float | None = None
        self._gaps = 0
        self._square = 0.0
        self._waiting: list[FloatArray] = []
        self._size = 0
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
        self._waiting.append(times)
        self._size += times.size
        if self._size > _REORDERED:
            self._count(_REORDERED // 2)

    def finish(self) -> None:
        self._count(0)
        self._seconds.merge()

    def gap_cv(self) -> float | None:
        if self._gaps < 2:
            return None
        mean = self.span / self._gaps
        return math.sqrt(max(self._square / self._gaps / mean**2 - 1, 0.0))

    def dispersion(self) -> tuple[float | None, float | None]:
        """In windows of a minute, or of a tenth of the span if that is shorter."""
        wide = max(int(min(_WINDOW_S, self.span / 10)) // self._width_s, 1)
        window = wide * self._width_s
        windows = int(self.span // window)
        if windows < 10:
            return None, None
        place = (self._seconds.keys - self._seconds.keys[0]) // wide
        inside = place < windows
        counts = np.bincount(place[inside], self._seconds.counts[inside], windows)
        return float(counts.var() / counts.mean()), float(window)

    def _count(self, keep: int) -> None:
        """Add the gaps of all but the `keep` latest arrivals."""
        if not self._size:
            return
        times = np.sort(np.concatenate(self._waiting))
        self._waiting, self._size = [times[times.size - keep :]], keep
        times = times[: times.size - keep]
        if self._done > -math.inf:
            self.late += int((times < self._done).sum())
            times = np.concatenate([[self._done], np.maximum(times, self._done)])
        gaps = np.diff(times)
        self._gaps += gaps.size
        self._square += float(gaps @ gaps)
        self._done = float(times[-1])

    def _double(self, keys: IntArray) -> IntArray:
        self._width_s *= 2
        return keys >> 1


def _example() -> Traffic:
    """Four requests, for examples in docstrings."""
    inputs, decode, count = np.array([10, 12, 300]), np.array([20, 40, 5]), np.array([1.0, 1.0, 2.0])
    return Traffic(
        Path("example"), "CSV", "", 4, inputs, decode, count, 0.0, 3.0, 1.0, None, None, None, None, ()
    )


def describe(found: Distortion) -> str:
    """One sentence on what classes distort.

    Examples
    --------
    >>> describe(Distortion(True, False, 0.0026, -0.0003, 0.002, -0.04))
    'stable traffic looks unstable; 1 - ρ is -0.0003 for 0.0026; mean footprint +0.2%, variance of KV usage -4%'
    """
    words = {True: "stable", False: "unstable"}
    if found.stable == found.trace_stable:
        verdict = f"{words[found.stable]} as the trace itself"
    else:
        verdict = f"{words[found.trace_stable]} traffic looks {words[found.stable]}"
    return (
        f"{verdict}; 1 - ρ is {found.gap:.2g} for {found.trace_gap:.2g}; mean footprint "
        f"{format_percent(found.footprint, 2, signed=True)}, variance of KV usage "
        f"{format_percent(found.variance, 2, signed=True)}"
    )
