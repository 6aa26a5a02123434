"""Iterations rebuilt from the requests of a run: what was in the batch when, and how long iterations took.

A request holds its prompt and what it has generated between its first schedule and its last token, and an iteration
passes for each token it generates. Of its prompt it computes what the prefix cache did not have. So its life from the
first token to the last is a mean over iterations, with whatever else ran in them: exact, unless it was preempted, which
makes it too slow. A series of averages over short intervals tells more; where its KV usage was not recorded, it is
rebuilt here.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.timing.samples import LeftOut, RequestLog, Samples, Series
from kvplan.model import FloatArray, IntArray
from kvplan.units import format_percent

_FEWEST = 10  # iterations of a request, or tokens of an interval, that are worth a sample
_SEEN = ("queued_s", "scheduled_s", "first_token_s")  # what the engine first says of a request
_BEGUN = ("scheduled_s", "queued_s", "arrival_s")  # what is nearest to when it first ran
_SAME_CLOCK_S = 3600  # what times of arrival and of the engine can be apart by on one clock
_ROUNDED = 1e-3  # tokens; less is the rounding of a sum
_OF_ONE_REPLICA = "the requests are taken to be all that one replica served"
_OF_ONE_RUN = 0.5  # share of the intervals that agree where a series and requests are of one run


class Request(NamedTuple):
    """A row of a request log; arrival may be on another clock than the times of the engine."""

    input_tokens: int
    output_tokens: int
    arrival_s: float
    queued_s: float | None
    scheduled_s: float | None
    first_token_s: float
    last_token_s: float
    line: int
    cached_tokens: int = 0

    def known(self, *order: str) -> float:
        """Return the first of these times that the file has."""
        times: Iterator[float | None] = (getattr(self, name) for name in order)
        return next(time for time in times if time is not None)


def log_of(
    source: str, format: str, requests: Sequence[Request], left_out: tuple[LeftOut, ...]
) -> RequestLog:
    """Put requests on one clock.

    If the engine's differs from that of arrivals, the shortest time from arrival to engine counts as 0.
    """
    columns = dict(zip(Request._fields, zip(*requests, strict=True), strict=True))
    arrival = np.array(columns["arrival_s"])
    seen, begun = (np.array([request.known(*order) for request in requests]) for order in (_SEEN, _BEGUN))
    ahead = float((seen - arrival).min())
    if not 0 <= ahead <= _SAME_CLOCK_S:
        if None in columns["queued_s"] and None in columns["scheduled_s"]:
            message = (
                "a first token before the request arrived, or hours later; on another clock than the arrival?"
            )
            raise ProfileError(source, message, line=columns["line"][int((seen - arrival).argmin())])
        arrival += ahead
    origin = arrival.min()
    whole: dict[str, Any] = {
        name: np.array(columns[name], dtype=np.int64)
        for name in ("input_tokens", "output_tokens", "line", "cached_tokens")
    }
    return RequestLog(
        source,
        format,
        arrival_s=arrival - origin,
        scheduled_s=np.maximum(begun, arrival) - origin,
        first_token_s=np.array(columns["first_token_s"]) - origin,
        last_token_s=np.array(columns["last_token_s"]) - origin,
        left_out=left_out,
        **whole,
    )


class _Path:
    """A function of time that jumps and grows linearly: the sum of events, each a time, a jump and a slope."""

    def __init__(self, *events: tuple[FloatArray, FloatArray, FloatArray]) -> None:
        from scipy.interpolate import PPoly  # type: ignore[import-untyped]

        every, jumps, slopes = (np.concatenate(column) for column in zip(*events, strict=True))
        times, place = np.unique(every, return_inverse=True)
        slope = np.cumsum(np.bincount(place, slopes))
        grown = np.cumsum(slope * np.diff(times, append=times[-1:]))
        value = np.cumsum(np.bincount(place, jumps)) + np.concatenate([[0.0], grown[:-1]])
        begin, end = [times[0] - 1.0], [times[-1] + 1.0]  # nothing before the first event
        pieces = np.pad([slope, value], ((0, 0), (1, 0)))
        self.at = PPoly(pieces, np.concatenate([begin, times, end]))
        self._integral = self.at.antiderivative()

    def mean(self, start: FloatArray, end: FloatArray) -> FloatArray:
        return np.asarray((self._integral(end) - self._integral(start)) / (end - start))


class _Batch:
    def __init__(self, log: RequestLog) -> None:
        start, first, last = log.scheduled_s, log.first_token_s, log.last_token_s
        inputs, outputs = log.input_tokens.astype(np.float64), log.output_tokens.astype(np.float64)
        prefill = inputs - log.cached_tokens
        rate = np.divide(outputs - 1, last - first, out=np.zeros_like(first), where=last > first)
        speed = np.divide(prefill, first - start, out=np.zeros_like(first), where=first > start)
        ones, zeros = np.ones_like(first), np.zeros_like(first)
        held = inputs + 1 + rate * (last - first)
        at_once = np.where(first > start, zeros, prefill)
        self.kv_tokens = _Path((start, inputs, zeros), (first, ones, rate), (last, -held, -rate))
        self.begun = _Path((start, ones, zeros), (last, -ones, zeros))  # requests in progress
        self.decoding = _Path((first, ones, zeros), (last, -ones, zeros))
        self.computed = _Path((start, zeros, speed), (first, at_once, -speed))  # prompt tokens


def iterations(log: RequestLog) -> Samples:
    """Make a sample of each request: the mean of the iterations from its first token to its last.

    Examples
    --------
    >>> samples = iterations(log_of("a.csv", "request log", [Request(100, 101, 0.0, None, 0.0, 0.1, 1.1, 2)], ()))
    >>> samples.kv_tokens.round(6).tolist(), samples.seconds.round(6).tolist()
    ([151.0], [0.01])
    """
    count = log.output_tokens - 1
    kept = (count >= _FEWEST) & (log.last_token_s > log.first_token_s)
    if not kept.any():
        message = f"no request generated more than {_FEWEST} tokens, of which times would tell"
        raise UsageError(f"{log.source}: {message}")
    batch, first, last, count = _Batch(log), log.first_token_s[kept], log.last_token_s[kept], count[kept]
    prefill, sequences = batch.computed.at(last) - batch.computed.at(first), batch.begun.mean(first, last)
    return Samples(
        log.source,
        log.format,
        kv_tokens=batch.kv_tokens.mean(first, last),
        prefill_tokens=np.where(prefill < _ROUNDED, 0.0, prefill) / count,
        sequences=sequences,
        overlap=float(sequences.mean()),
        seconds=(last - first) / count,
        line=log.line[kept],
        hidden_prefill=True,
        left_out=(*log.left_out, *_without(f"{_FEWEST} tokens or fewer", log.line[~kept])),
        requests=log,
        notes=(*_hits(log), _OF_ONE_REPLICA),
        sha256=log.sha256,
    )


def rebuilt(series: Series, log: RequestLog) -> Samples:
    """Make the samples of a series whose KV usage was not recorded, with what its requests held.

    Requests in progress that were not running had been preempted and held nothing.
    """
    batch, length = _Batch(log), _lengths(series)
    counted = _counted(series, log, length)
    computed_share = (log.input_tokens - log.cached_tokens).sum() / counted.sum()
    end = series.end_s + _shift(series, log, counted)
    start = end - length
    begun = batch.begun.at(end)
    share = np.minimum(1.0, np.divide(series.running, begun, out=np.ones_like(end), where=begun > 0))
    share = (share + np.concatenate([[1.0], share[:-1]])) / 2
    firsts = np.searchsorted(np.sort(log.first_token_s), np.column_stack([start, end]), side="right")
    later = series.generation_rate * length - (firsts[:, 1] - firsts[:, 0])
    decoding = batch.decoding.mean(start, end) * share * length
    kept = (later >= _FEWEST) & (decoding > 0)
    if not kept.any():
        raise UsageError(f"{series.source}: nothing was generated while the requests of {log.source} ran")
    seconds = decoding[kept] / later[kept]
    named = f"{log.source} (sha256 {log.sha256})" if log.sha256 else log.source
    note = f"KV usage is 0 throughout, so was not recorded: rebuilt from the requests of {named}"
    return Samples(
        series.source,
        series.format,
        kv_tokens=(batch.kv_tokens.mean(start, end) * share)[kept],
        prefill_tokens=series.prompt_rate[kept] * computed_share * seconds,
        sequences=(batch.begun.mean(start, end) * share)[kept],
        seconds=seconds,
        line=series.line[kept],
        hidden_prefill=True,
        left_out=(*series.left_out, *_without("next to nothing was generated", series.line[~kept])),
        requests=log,
        notes=(note, *_hits(log)),
        sha256=series.sha256,
    )


def _hits(log: RequestLog) -> tuple[str, ...]:
    cached = int(log.cached_tokens.sum())
    share = format_percent(cached / float(log.input_tokens.sum())) if cached else ""
    return (
        (f"{share} of the prompt tokens were found in the prefix cache, and are no prefill",)
        if cached
        else ()
    )


def _without(reason: str, lines: IntArray) -> tuple[LeftOut, ...]:
    return (LeftOut(reason, lines.size, int(lines[0])),) if lines.size else ()


def _lengths(series: Series) -> FloatArray:
    gaps = np.diff(series.end_s)
    return np.concatenate([[np.median(gaps) if gaps.size else 1.0], gaps])


def _counted(series: Series, log: RequestLog, length: FloatArray) -> IntArray:
    """Choose what an engine counts of each prompt: all of it, or without hits, whichever makes what the series has."""
    computed = log.input_tokens - log.cached_tokens
    total = float(series.prompt_rate @ length)
    return min((log.input_tokens, computed), key=lambda tokens: abs(float(tokens.sum()) - total))


def _shift(series: Series, log: RequestLog, counted_tokens: IntArray) -> float:
    """Find what to add to the times of a series to have those of its requests; nothing, if that agrees with them.

    Engines count a prompt when it is done. What a series has counted by the end of an interval says how many requests
    had a first token by then, and so between which two first tokens it ended. On the shift most intervals agree.
    """
    by_first = np.argsort(log.first_token_s)
    first = np.concatenate([[-np.inf], log.first_token_s[by_first], [np.inf]])
    done = np.concatenate([[0], np.cumsum(counted_tokens[by_first])])
    length = _lengths(series)
    counted = np.concatenate([[0.0], np.cumsum(series.prompt_rate * length)])
    ends = np.concatenate([series.end_s[:1] - length[:1], series.end_s])
    place = np.searchsorted(done, counted + counted_tokens.min() / 2, side="right") - 1
    low, high = first[place] - ends, first[place + 1] - ends
    edges, opens = np.concatenate([low, high]), np.repeat([1, -1], low.size)
    order = np.lexsort((-opens, edges))
    best = int(np.cumsum(opens[order]).argmax())
    least, most = edges[order][best : best + 2]
    shift = 0.0 if least <= 0 < most else float(np.clip((least + most) / 2, least, most))
    telling = np.isfinite(low) & np.isfinite(high)
    agreeing = int(((low <= shift) & (shift < high) & telling).sum())
    if agreeing < _OF_ONE_RUN * telling.sum() or place[-1] == 0 or not np.isfinite(shift):
        raise UsageError(
            f"{series.source}: KV usage was not recorded, and the requests of {log.source} are of another run: "
            f"prompt_throughput is theirs in {agreeing} of {telling.sum()} intervals"
        )
    return shift
