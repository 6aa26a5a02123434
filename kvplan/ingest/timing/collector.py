"""Collects what a file says of iterations and of load sweeps, and counts what says nothing."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from kvplan.errors import ProfileError
from kvplan.ingest.timing.requests import Request, log_of
from kvplan.ingest.timing.samples import Deployment, LeftOut, Point, RequestLog, Samples, Series, Sweep
from kvplan.units import format_percent

Found = Samples | Sweep | Series | RequestLog

_SHORTEST_S, _LONGEST_S = 1e-7, 1e5  # of an iteration
_OFF, _EACH = 1 / 3, 10  # by which times contradict each other; requests of each client, if not stated
_MOST_ROWS = 40_000  # samples that are kept of a group, of which fewer are fitted to
_MOST_LOADS = 64  # of a deployment
_LONGEST_TOKENS, _MOST_IN_FLIGHT = 1_000_000, 20_000  # of a request; of a load


class NoSamplesError(ProfileError):
    """A file says nothing of iterations."""


class LeftOutError(NoSamplesError):
    """It says something of iterations, all of which is left out."""


class Second(NamedTuple):
    """A row of a series: where its interval ends, tokens per second, requests and KV usage at its end."""

    end_s: float
    prompt_rate: float
    generation_rate: float
    running: float
    usage_percent: float
    line: int


class Collector:
    """Collects samples of a file, and counts what gave none.

    `format` is what the format of that which is added next is called. `capacity_tokens` is the KV capacity that usage
    is a share of: the one given, which counts whatever the file states, else the one stated last, else one assumed.
    """

    def __init__(self, source: str, given_tokens: int | None, assumed_tokens: int | None) -> None:
        self.source = source
        self.format = ""
        self.group = ""  # of what is added next
        self.given_tokens = given_tokens
        self.capacity_tokens = assumed_tokens if given_tokens is None else given_tokens
        self._samples: dict[tuple[str, str], list[tuple[float, float, float, float, int]]] = {}
        self._met: dict[tuple[str, str], int] = {}  # samples that came
        self._step: dict[tuple[str, str], int] = {}  # of how many one is kept
        self._hidden: set[str] = set()  # formats that hide recomputed prefill
        self._sweeps: dict[tuple[str, Deployment], dict[Point, Point]] = {}  # loads, of equal ones the first
        self._repeats = 0  # of loads
        self._seconds: list[Second] = []
        self._requests: list[Request] = []
        self._left_out: dict[str, tuple[int, int]] = {}
        self._notes: dict[str, None] = {}
        self._prompt_rate = self._found_rate = 0.0  # summed up over lines

    def note(self, text: str) -> None:
        """Note once what the reader of the samples should know of how they were measured."""
        self._notes[text] = None

    def skip(self, reason: str, line: int) -> None:
        """Count a row that gives no sample."""
        count, first = self._left_out.get(reason, (0, line))
        self._left_out[reason] = (count + 1, first)

    def drop_before(self, line: int, reason: str) -> None:
        """Leave out the samples of this group that were added of earlier lines."""
        for (_, group), rows in self._samples.items():
            if group == self.group:
                for row in rows:
                    if row[-1] < line:
                        self.skip(reason, row[-1])
                rows[:] = [row for row in rows if row[-1] >= line]

    def takes(self, format: str, group: str | None = None) -> bool:
        """Tell whether the next sample of a format is one to keep: of a log without end not all are read."""
        key = (format, self.group if group is None else group)
        met = self._met.get(key, 0)
        self._met[key] = met + 1
        return met % self._step.get(key, 1) == 0

    def add(
        self,
        values: tuple[float, float, float, float],
        line: int,
        *,
        group: str | None = None,
        hidden_prefill: bool = False,
        taken: bool = False,
    ) -> None:
        """Add a sample (K, P, B, τ), unless nothing ran, or, if it is not `taken` already, others stand for it."""
        if not (values[2] > 0 and values[3] > 0):
            self.skip("nothing was generated", line)
            return
        self._refuse_time(values[3], "an iteration", line)
        name = self.group if group is None else group
        key = (self.format, name)
        rows = self._samples.setdefault(key, [])
        if taken or self.takes(*key):
            rows.append((*values, line))
            if len(rows) == _MOST_ROWS:  # what is left is spread evenly over the file
                del rows[1::2]
                self._step[key] = 2 * self._step.get(key, 1)
        if hidden_prefill:
            self._hidden.add(self.format)

    def add_point(self, point: Point, deployment: Deployment) -> None:
        """Add a point of a load sweep, unless nothing was served."""
        if point.outputs[1] < 1 or point.throughput_rps == 0 or point.requests == 0:
            self.skip("nothing was generated", point.line)
            return
        if point.outputs[1] == 1:  # which has no time between tokens, whatever stands for it
            point = replace(point, tpot_s=None)
        for problem in _problems(point):
            raise self._error(problem, point.line)
        for time in (point.ttft_s, point.tpot_s, point.e2e_s):
            if time is not None:
                self._refuse_time(time, "a time", point.line)
        point, contradiction = reconciled(point)
        if contradiction and point.tpot_s is None:
            self.skip(contradiction, point.line)
            return
        if contradiction:
            self.note(f"line {point.line}: {contradiction}; TPOT is taken from E2E")
        loads = self._sweeps.setdefault((self.format, deployment), {})
        if loads.setdefault(point, point) is not point:
            self._repeats += 1

    def add_average(
        self,
        line: int,
        prompt_rate: float,
        generation_rate: float,
        running: float,
        usage_percent: float,
        *,
        hit_percent: float = 0.0,
    ) -> None:
        """Add a sample from throughputs (tokens/s), sequences running and KV usage.

        Of the prompt throughput `hit_percent` were found in the prefix cache, and not computed.

        An iteration takes τ = B / (generated tokens per second): each of B running sequences gets one token. Prefill
        tokens are the prompt throughput times τ. Engines leave recomputed prefill out of the prompt throughput, so that
        such samples can be too slow for what they say they did, never too fast.
        """
        if hit_percent > 100:
            raise self._error(f"a hit rate of {hit_percent:g} %; at most 100", line)
        kv_tokens = self.kv_tokens(usage_percent, line)
        tau = running / generation_rate if generation_rate > 0 else 0.0
        found_rate = prompt_rate * hit_percent / 100
        self._prompt_rate += prompt_rate
        self._found_rate += found_rate
        self.add((kv_tokens, (prompt_rate - found_rate) * tau, running, tau), line, hidden_prefill=True)

    def add_second(self, second: Second) -> None:
        """Add a row of a series, after those before it."""
        if self._seconds and second.end_s <= self._seconds[-1].end_s:
            last = self._seconds[-1].end_s
            raise self._error(
                f"a time of {second.end_s:g} s after one of {last:g} s; must increase", second.line
            )
        self._seconds.append(second)

    def add_request(self, request: Request) -> None:
        """Add a request that was served."""
        known = [request.queued_s, request.scheduled_s, request.first_token_s, request.last_token_s]
        times = [time for time in known if time is not None]
        if times != sorted(times):
            message = "must be queued, scheduled, have a first and a last token one after the other"
            raise self._error(message, request.line)
        if request.cached_tokens > request.input_tokens:
            raise self._error(_too_many_cached(request.cached_tokens, request.input_tokens), request.line)
        if request.output_tokens > 1 and request.last_token_s == request.first_token_s:
            message = f"{request.output_tokens:,} tokens at one time, the first and the last"
            raise self._error(message, request.line)
        self._requests.append(request)

    def kv_tokens(self, usage_percent: float, line: int) -> float:
        """Tell the KV tokens of a usage."""
        if self.capacity_tokens is None:
            message = "KV usage is a share of a capacity that is not stated here"
            raise self._error(f"{message}; give --capacity, or a --base that has it", line)
        if usage_percent > 100:
            raise self._error(f"KV usage of {usage_percent:g} %; at most 100", line)
        return usage_percent / 100 * self.capacity_tokens

    def collected(self) -> tuple[Found, ...]:
        """Return what was collected, that of one replica together; empty where there was neither sample nor row."""
        without_usage = any(row.running for row in self._seconds) and not any(
            row.usage_percent for row in self._seconds
        )
        if not without_usage:
            for row in self._seconds:
                self.add_average(row.line, *row[1:5])
        if self._found_rate:
            self.note(
                f"{format_percent(self._found_rate / self._prompt_rate)} of the prompt throughput was found in the "
                "prefix cache, by the hit rates stated beside it, and is taken off the prefill"
            )
        if self._step:
            self.note(f"one in {max(self._step.values()):,} samples is read, evenly over the file")
        if self._repeats:
            self.note(f"{self._repeats:,} rows are equal to one before them, and count once")
        left_out = tuple(LeftOut(reason, count, line) for reason, (count, line) in self._left_out.items())
        chosen = {key: self._thinned(list(loads.values())) for key, loads in self._sweeps.items()}
        common: dict[str, Any] = {"left_out": left_out, "notes": tuple(self._notes)}
        collected: list[Found] = []
        for (format, group), rows in self._samples.items():
            if not rows:
                continue
            arrays = _columns(rows, "kv_tokens", "prefill_tokens", "sequences", "seconds", "line")
            hidden = format in self._hidden
            collected.append(
                Samples(self.source, format, group=group, hidden_prefill=hidden, **arrays, **common)
            )
        common_to_all = frozenset[str]().union(*(some.arguments for _, some in self._sweeps))
        for _, some in self._sweeps:
            common_to_all &= some.arguments
        for (format, full), points in chosen.items():
            deployment = replace(full, arguments=full.arguments - common_to_all)
            name = deployment.name
            collected.append(Sweep(self.source, format, deployment, points, group=name, **common))
        if without_usage:
            arrays = _columns(self._seconds, *Second._fields)
            del arrays["usage_percent"]
            collected.append(Series(self.source, self.format, left_out=left_out, **arrays))
        if self._requests:
            collected.append(log_of(self.source, self.format, self._requests, left_out))
        if left_out and not collected:
            rows_left = (f"{some.count} rows: {some.reason} (first: line {some.line})" for some in left_out)
            raise LeftOutError(self.source, f"no samples of iterations; {'; '.join(rows_left)}")
        return tuple(collected)

    def _thinned(self, points: list[Point]) -> tuple[Point, ...]:
        """Choose as many loads as can be fitted to in seconds, evenly among them by what was offered."""
        if len(points) <= _MOST_LOADS:
            return tuple(points)
        self.note(f"{_MOST_LOADS} of {len(points):,} loads are fitted to, from the lowest to the highest")
        points.sort(key=lambda point: (point.concurrency or 0, point.rate_rps or 0.0))
        taken = np.linspace(0, len(points) - 1, _MOST_LOADS).round().astype(int).tolist()
        return tuple(sorted((points[place] for place in taken), key=lambda point: point.line))

    def _refuse_time(self, seconds: float, what: str, line: int) -> None:
        if not _SHORTEST_S <= seconds <= _LONGEST_S:
            limits = f"must be from {_SHORTEST_S:g} to {_LONGEST_S:,.0f} s"
            raise self._error(f"{what} of {seconds:g} s; {limits}", line)

    def _error(self, message: str, line: int) -> ProfileError:
        return ProfileError(self.source, message, line=line)


def reconciled(point: Point) -> tuple[Point, str]:
    """Check that TTFT and TPOT take as long as a request does; else take TPOT from E2E, or have none.

    E2E is the one stated, else that of a closed loop by Little's law. That law has a band: at both ends of a run of n
    requests fewer than C are in flight, n/(n + C) of them where all take equally long.

    References
    ----------
    Little 1961; a client that gets tokens in bursts, gpustack's performance lab for Qwen3.5-35B-A3B on H200.

    Examples
    --------
    >>> point = Point(line=1, inputs=(9, 9), outputs=(101, 101), ttft_s=1.0, tpot_s=0.01, e2e_s=6.0)
    >>> reconciled(point)[0].tpot_s, reconciled(point)[1]
    (0.05, 'TTFT and TPOT make a request of 2 s, and E2E is 6 s')
    """
    output = sum(point.outputs) / 2
    if point.tpot_s is None or point.ttft_s is None or output <= 1:
        return point, ""
    own, e2e, least = point.ttft_s + point.tpot_s * (output - 1), point.e2e_s, 1.0
    stated = "E2E is"
    if e2e is None and point.concurrency and point.throughput_rps:
        count = point.requests or _EACH * point.concurrency
        least = count / (count + point.concurrency)
        e2e = point.concurrency / point.throughput_rps
        stated = f"{point.concurrency:,} in flight and {point.throughput_rps:.3g} requests/s one of"
    if e2e is None or (1 - _OFF) * least * e2e <= own <= (1 + _OFF) * e2e:
        return point, ""
    between = (least * e2e - point.ttft_s) / (output - 1)
    taken = between if between > 0 else None
    return replace(
        point, tpot_s=taken
    ), f"TTFT and TPOT make a request of {own:.3g} s, and {stated} {e2e:.3g} s"


def _problems(point: Point) -> Iterator[str]:
    for what, (_, most) in (("prompts", point.inputs), ("answers", point.outputs)):
        if most > _LONGEST_TOKENS:
            yield f"{what} of {most:,} tokens; at most {_LONGEST_TOKENS:,}"
    if point.cached_tokens > sum(point.inputs) / 2:
        yield _too_many_cached(point.cached_tokens, sum(point.inputs) / 2)
    if (point.concurrency or 0) > _MOST_IN_FLIGHT:
        yield f"{point.concurrency:,} requests in flight; at most {_MOST_IN_FLIGHT:,}"
    if point.ttft_s is point.tpot_s is point.e2e_s is point.throughput_rps is None:
        yield "no mean of TTFT, TPOT or E2E is stated, nor a throughput"


def _too_many_cached(cached: int, prompt: float) -> str:
    return f"{cached:,} tokens cached of a prompt of {prompt:,g}"


def _columns(rows: Any, *names: str) -> dict[str, Any]:
    types = (np.int64 if name == "line" else np.float64 for name in names)
    return {
        name: np.array(column, dtype=type)
        for name, column, type in zip(names, zip(*rows, strict=True), types, strict=True)
    }
