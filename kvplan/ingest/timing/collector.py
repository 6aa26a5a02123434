"""Collects what a file says of iterations and of load sweeps, and counts what says nothing."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kvplan.errors import ProfileError
from kvplan.ingest.timing.requests import Request, log_of
from kvplan.ingest.timing.samples import LeftOut, RequestLog, Samples, Series
from kvplan.ingest.timing.sweep import Deployment, Point, Sweep
from kvplan.units import format_percent

Found = Samples | Sweep | Series | RequestLog

_SHORTEST_S, _LONGEST_S = 1e-7, 1e5  # of an iteration
_LONGEST_TOKENS, _MOST_IN_FLIGHT = 1_000_000, 20_000  # of a request; of a load


class NoSamplesError(ProfileError):
    """A file says nothing of iterations."""


class Second(NamedTuple):
    """A row of a series: where its interval ends, tokens per second, requests and KV usage at its end."""

    end_s: float
    prompt_rate: float
    generation_rate: float
    running: float
    usage_percent: float
    line: int


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
        self._sweeps: dict[tuple[str, Deployment], list[Point]] = {}
        self._series_format = self._log_format = ""
        self._seconds: list[Second] = []
        self._requests: list[Request] = []
        self._left_out: dict[str, tuple[int, int]] = {}
        self._notes: dict[str, None] = {}
        self._prompt_rate = self._found_rate = 0.0  # summed up over lines

    def note(self, text: str) -> None:
        """What the reader of the samples should know of how they were measured; once is enough."""
        self._notes[text] = None

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

    def add_point(self, format: str, point: Point, deployment: Deployment) -> None:
        """A point of a load sweep, unless nothing was served.

        Raises
        ------
        ProfileError
            No time between tokens is so long, or so short; no time was measured; or more was cached than prompts have.
        """
        times = [t for t in (point.ttft_s, point.tpot_s, point.e2e_s) if t is not None]
        if point.outputs[1] < 1 or point.throughput_rps == 0 or point.requests == 0:
            self.skip("nothing was generated", point.line)
            return
        for what, (_, most) in (("prompts", point.inputs), ("answers", point.outputs)):
            if most > _LONGEST_TOKENS:
                message = f"{what} of {most:,} tokens; at most {_LONGEST_TOKENS:,}"
                raise ProfileError(self.source, message, line=point.line)
        if point.cached_tokens > sum(point.inputs) / 2:
            message = f"{point.cached_tokens:,} tokens cached of a prompt of {sum(point.inputs) / 2:,g}"
            raise ProfileError(self.source, message, line=point.line)
        if (point.concurrency or 0) > _MOST_IN_FLIGHT:
            message = f"{point.concurrency:,} requests in flight; at most {_MOST_IN_FLIGHT:,}"
            raise ProfileError(self.source, message, line=point.line)
        if not times and point.throughput_rps is None:
            message = "neither TTFT, TPOT, E2E nor a throughput is measured"
            raise ProfileError(self.source, message, line=point.line)
        for time in times:
            if not _SHORTEST_S <= time <= _LONGEST_S:
                message = f"a time of {time:g} s; must be from {_SHORTEST_S:g} to {_LONGEST_S:,.0f} s"
                raise ProfileError(self.source, message, line=point.line)
        self._sweeps.setdefault((format, deployment), []).append(point)

    def add_average(
        self,
        format: str,
        line: int,
        prompt_rate: float,
        generation_rate: float,
        running: float,
        usage_percent: float,
        *,
        hit_percent: float = 0.0,
    ) -> None:
        """A sample from throughputs (tokens/s), sequences running and KV usage.

        Of the prompt throughput `hit_percent` were found in the prefix cache, and not computed.

        An iteration takes τ = B / (generated tokens per second): each of B running sequences gets one token. Prefill
        tokens are the prompt throughput times τ. Engines leave recomputed prefill out of the prompt throughput, so that
        such samples can be too slow for what they say they did, never too fast.

        Raises
        ------
        ProfileError
            KV usage or hits are above 100 %; or the capacity is not known.
        """
        if hit_percent > 100:
            raise ProfileError(self.source, f"a hit rate of {hit_percent:g} %; at most 100", line=line)
        kv_tokens = self.kv_tokens(usage_percent, line)
        tau = running / generation_rate if generation_rate > 0 else 0.0
        found_rate = prompt_rate * hit_percent / 100
        self._prompt_rate += prompt_rate
        self._found_rate += found_rate
        self.add(
            format, (kv_tokens, (prompt_rate - found_rate) * tau, running, tau), line, hidden_prefill=True
        )

    def add_second(self, format: str, second: Second) -> None:
        """A row of a series, after those before it.

        Raises
        ------
        ProfileError
            Its time is not after that of the row before.
        """
        if self._seconds and second.end_s <= self._seconds[-1].end_s:
            message = (
                f"a time of {second.end_s:g} s after one of {self._seconds[-1].end_s:g} s; must increase"
            )
            raise ProfileError(self.source, message, line=second.line)
        self._series_format = format
        self._seconds.append(second)

    def add_request(self, format: str, request: Request) -> None:
        """A request that was served.

        Raises
        ------
        ProfileError
            Its times contradict each other, or more was cached than its prompt has.
        """
        known = [request.queued_s, request.scheduled_s, request.first_token_s, request.last_token_s]
        times = [time for time in known if time is not None]
        if times != sorted(times):
            message = "must be queued, scheduled, have a first and a last token one after the other"
            raise ProfileError(self.source, message, line=request.line)
        if request.cached_tokens > request.input_tokens:
            message = f"{request.cached_tokens:,} tokens cached of a prompt of {request.input_tokens:,}"
            raise ProfileError(self.source, message, line=request.line)
        if request.output_tokens > 1 and request.last_token_s == request.first_token_s:
            message = f"{request.output_tokens:,} tokens at one time, the first and the last"
            raise ProfileError(self.source, message, line=request.line)
        self._log_format = format
        self._requests.append(request)

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

    def found(self) -> tuple[Found, ...]:
        """What was collected, that of one replica together; empty where there was neither sample nor row.

        Raises
        ------
        NoSamplesError
            Rows were left out, and no other is there.
        """
        unknown = any(row.running for row in self._seconds) and not any(
            row.usage_percent for row in self._seconds
        )
        if not unknown:
            for row in self._seconds:
                self.add_average(
                    self._series_format,
                    row.line,
                    row.prompt_rate,
                    row.generation_rate,
                    row.running,
                    row.usage_percent,
                )
        if self._found_rate:
            self.note(
                f"{format_percent(self._found_rate / self._prompt_rate)} of the prompt throughput was found in the "
                "prefix cache, by the hit rates stated beside it, and is taken off the prefill"
            )
        left_out = tuple(LeftOut(reason, count, line) for reason, (count, line) in self._left_out.items())
        found: tuple[Found, ...] = (
            *(self._finished(name, group, left_out) for (_, name), group in self._groups.items()),
            *(
                Sweep(self.source, format, deployment, tuple(points), left_out, tuple(self._notes))
                for (format, deployment), points in self._sweeps.items()
            ),
            *([self._series(left_out)] if unknown else []),
            *([log_of(self.source, self._log_format, self._requests, left_out)] if self._requests else []),
        )
        if left_out and not found:
            rows = (f"{some.count} rows: {some.reason} (first: line {some.line})" for some in left_out)
            raise NoSamplesError(self.source, f"no samples of iterations; {'; '.join(rows)}")
        return found

    def _series(self, left_out: tuple[LeftOut, ...]) -> Series:
        end, prompt, generation, running, _, line = np.array(self._seconds).T
        format = self._series_format
        return Series(self.source, format, end, prompt, generation, running, line.astype(np.int64), left_out)

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
            notes=tuple(self._notes),
        )
