"""Samples of iterations: what a batch held, what it computed, how long it took. From logs, series and tables.

Formats are told apart by content, never by name:

======================  =========================================================================================
vLLM iteration details  ``Iteration(7): 2 context requests, …, iteration elapsed time: 31.25 ms`` (vLLM from 0.14,
                        with ``--enable-logging-iteration-details``); exact, a line each
vLLM stats log          ``Avg prompt throughput: …, Running: 8 reqs, … GPU KV cache usage: 91.2%`` (vLLM V0 and V1)
SGLang log              ``Decode batch. #running-req: 8, #token: 62531, …`` (0.2 to today, comma or full stop)
per-second series       CSV with prompt_throughput, gen_throughput, running, kv_cache_pct
splitwise-sim           CSV with prompt_size, batch_size, token_size, prompt_time, token_time (ms); samples for each
                        model, hardware and tensor_parallel
concurrency sweep       CSV or JSON lines with concurrency, TPOT, input and output lengths; results of vLLM's bench
CSV, JSON lines         kv_tokens and iteration_ms (or seconds), prefill_tokens and sequences where known
======================  =========================================================================================

Where only throughput is known, an iteration takes τ = B / (generated tokens per second): each of B running sequences
gets one token. KV tokens are the usage times the capacity, prefill tokens the prompt throughput times τ. Engines
leave recomputed prefill out of the prompt throughput, so that such samples can be too slow for what they say they
did, never too fast: `Samples.hidden_prefill`.
"""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.cells import shown
from kvplan.ingest.text_file import lines_of
from kvplan.model import FloatArray, IntArray

_SHORTEST_S, _LONGEST_S = 1e-7, 1e5  # of an iteration
_MOST = 1e12  # of anything
_DECODE_LOG_INTERVAL = 40  # SGLang's default: decode batches from one line to the next

_ITERATION = re.compile(
    r"Iteration\(\d+\): (\d+) context requests, (\d+) context tokens, (\d+) generation requests, "
    r"(\d+) generation tokens, iteration elapsed time: ([\d.]+) ms"
)
_STATS = re.compile(
    r"Avg prompt throughput: ([\d.]+) tokens/s, Avg generation throughput: ([\d.]+) tokens/s, "
    r"Running: (\d+) reqs,.*?KV cache usage: ([\d.]+)%"
)
_USAGE = re.compile(r"KV cache usage: ([\d.]+)%")
_CAPACITY = re.compile(r"GPU KV cache size: ([\d,]+) tokens")
_BLOCKS = re.compile(r"GPU blocks: (\d+)")
_BLOCK_SIZE = re.compile(r"\bblock_size=(\d+)")
_BLOCK_TOKENS = 16  # vLLM's default
_DECODE = re.compile(
    r"Decode batch[.,] #running-req: (\d+), #(?:full )?token: (\d+),.*?gen throughput \(token/s\): ([\d.]+)"
)
_PREFILL = re.compile(r"Prefill batch[.,].*?#new-token: (\d+)")
_INTERVAL = re.compile(r"decode_log_interval=(\d+)")
_DUMMY = "ms (dummy)"  # an idle rank keeping step with the others


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
    source : str
        The file.
    format : str
        As the table of this module calls it.
    group : str
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
    hidden_prefill : bool
        Recomputed prefill took time but is not in `prefill_tokens`.
    left_out : tuple of LeftOut
    sha256 : str
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


def read_samples(
    path: Path, *, capacity_tokens: int | None = None, assumed_tokens: int | None = None
) -> tuple[Samples, ...]:
    """Read the samples of a file, which may be compressed with gzip or zstd.

    Parameters
    ----------
    path : Path
    capacity_tokens : int, optional
        KV capacity, for formats that state a share of it; whatever a log says.
    assumed_tokens : int, optional
        KV capacity where a log states none.

    Returns
    -------
    tuple of Samples
        One for everything measured; most files hold one.

    Raises
    ------
    UsageError
        The file cannot be read, holds no samples, or states usage but no capacity; with the line of the first row
        of a table that cannot be used.
    """
    with lines_of(path) as lines:
        try:
            found = parse_samples(
                lines, lines.source, capacity_tokens=capacity_tokens, assumed_tokens=assumed_tokens
            )
        except csv.Error as error:
            raise UsageError(f"{path}: not CSV: {error}; is a quote open?") from None
    return tuple(replace(some, sha256=lines.sha256) for some in found)


def read_groups(
    paths: Sequence[Path],
    *,
    capacity_tokens: int | None = None,
    assumed_tokens: int | None = None,
    group: str | None = None,
) -> tuple[tuple[Samples, ...], ...]:
    """Samples of several files, those of one replica together.

    Parameters
    ----------
    paths : sequence of Path
    capacity_tokens : int, optional
        See `read_samples`.
    group : str, optional
        Only this one.

    Raises
    ------
    UsageError
        A file gives no samples, or none has that group.
    """
    found: dict[str, tuple[Samples, ...]] = {}
    for path in paths:
        for some in read_samples(path, capacity_tokens=capacity_tokens, assumed_tokens=assumed_tokens):
            found[some.group] = (*found.get(some.group, ()), some)
    if group is None:
        return tuple(found.values())
    if group not in found:
        names = ", ".join(map(repr, found)) if any(found) else "one replica without a name"
        raise UsageError(f"{paths[0]}: no group {group!r}; there are: {names}")
    return (found[group],)


def parse_samples(
    lines: Iterable[str],
    source: str,
    *,
    capacity_tokens: int | None = None,
    assumed_tokens: int | None = None,
) -> tuple[Samples, ...]:
    """The samples in some lines; see `read_samples`.

    Parameters
    ----------
    lines : iterable of str
        With their line ends; a last line without one may be cut off.
    source : str
        What messages call them.
    capacity_tokens : int, optional

    Examples
    --------
    >>> (found,) = parse_samples(
    ...     ["t,prompt_throughput,gen_throughput,running,kv_cache_pct\\n", "1,400,1600,40,50\\n"],
    ...     "series.csv",
    ...     capacity_tokens=40_000,
    ... )
    >>> found.seconds.tolist(), found.kv_tokens.tolist(), found.prefill_tokens.tolist()
    ([0.025], [20000.0], [10.0])
    """
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    first_line, first = next(numbered, (1, ""))
    if not first:
        raise UsageError(f"{source}: empty; a log, a series or a table of iterations is wanted")
    everything = _chained((first_line, first), numbered)
    reader = _Reader(source, capacity_tokens, assumed_tokens)
    if first.lstrip().startswith("{"):
        reader.table(_json_rows(everything, source), first)
    elif _kind(header := next(csv.reader([first]))) is not None:
        reader.table(_csv_rows(numbered, header), first)
    else:
        reader.log(everything)
    return reader.samples(first)


def _chained(first: tuple[int, str], rest: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    yield first
    yield from rest


# -- what a table is, by the names of its columns without case, spaces and signs --------------------------------------


def _unit(unit: float, names: str) -> dict[str, float]:
    return dict.fromkeys(names.split(), unit)


_TAU = {
    **_unit(1.0, "tau taus seconds iterationseconds iterationtimes durations steptimes"),
    **_unit(1e-3, "taums ms iterationms iterationtimems durationms stepms steptimems"),
    **_unit(1e-6, "tauus us iterationus"),
}
_KV = _unit(1.0, "k kv kvtokens")
_PROMPT = _unit(1.0, "p prefilltokens prompttokens contexttokens")
_BATCH = _unit(1.0, "b sequences batch batchsize running numseqs")
_TPOT = {**_unit(1.0, "tpot tpots meantpots"), **_unit(1e-3, "tpotms meantpotms")}
_CONCURRENCY = _unit(1.0, "concurrency maxconcurrency concurrentrequests")
_INPUT = _unit(1.0, "input inputtokens inputlen inputlength isl randominputlen")
_OUTPUT = _unit(1.0, "output outputtokens outputlen outputlength osl randomoutputlen")
_TOTAL_INPUT = _unit(1.0, "totalinputtokens")
_TOTAL_OUTPUT = _unit(1.0, "totaloutputtokens")
_COMPLETED = _unit(1.0, "completed")
_SERIES = [{name: 1.0} for name in ("promptthroughput", "genthroughput", "running", "kvcachepct")]
_SPLITWISE = [
    *({name: 1.0} for name in ("promptsize", "batchsize", "tokensize")),
    *({name: 1e-3} for name in ("prompttime", "tokentime")),
]
_KINDS: dict[str, list[dict[str, float]]] = {
    "per-second series": _SERIES,
    "splitwise-sim": _SPLITWISE,
    "bench result": [_CONCURRENCY, _TPOT, _TOTAL_INPUT, _TOTAL_OUTPUT, _COMPLETED],
    "concurrency sweep": [_CONCURRENCY, _TPOT, _INPUT, _OUTPUT],
    "table": [_KV, _TAU],
}


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


def _kind(names: Iterable[str]) -> str | None:
    plain = {_plain(name) for name in names}
    return next((kind for kind, needs in _KINDS.items() if all(plain & set(need) for need in needs)), None)


@dataclass(slots=True)
class _Row:
    """A row of a table: values by plain name; how the name is written; whether the line came to its end."""

    source: str
    line: int
    values: Mapping[str, Any]
    written: Mapping[str, str]
    ended: bool

    def number(self, names: Mapping[str, float]) -> float:
        """The first of some columns, in its unit."""
        name = next((name for name in names if name in self.written), next(iter(names)))
        seen = self.values.get(name)
        try:
            value = math.nan if isinstance(seen, bool) else float(seen)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            value = math.nan
        if not 0 <= value <= _MOST:
            what = "missing" if seen is None or seen == "" else shown(seen)
            raise ProfileError(
                self.source,
                f"{what}; must be a number, from 0 to {_MOST:g}",
                key=self.written.get(name, name),
                line=self.line,
            )
        return value * names[name]

    def optional(self, names: Mapping[str, float]) -> float:
        return self.number(names) if any(name in self.written for name in names) else 0.0

    def text(self, name: str) -> str:
        return str(self.values.get(name, "")).strip()


def _csv_rows(numbered: Iterator[tuple[int, str]], header: list[str]) -> Iterator[_Row]:
    written = {_plain(name): name.strip() for name in header}
    for line, text in numbered:
        cells = next(csv.reader([text]))
        values = {_plain(name): cell for name, cell in zip(header, cells, strict=False)}
        yield _Row("", line, values, written, text.endswith(("\n", "\r")))


def _json_rows(numbered: Iterator[tuple[int, str]], source: str) -> Iterator[_Row]:
    for line, text in numbered:
        ended = text.endswith(("\n", "\r"))
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            if not ended:
                yield _Row("", line, {}, {}, False)
                continue
            message = f"not a JSON object: {shown(text)}; is the file cut off?"
            raise ProfileError(source, message, line=line)
        yield _Row("", line, {_plain(k): v for k, v in value.items()}, {_plain(k): k for k in value}, ended)


# -- from rows and lines to samples -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Group:
    format: str
    hidden_prefill: bool
    rows: list[tuple[float, float, float, float, int]] = field(default_factory=list)


class _Reader:
    """Collects samples, and counts what gave none."""

    def __init__(self, source: str, capacity_tokens: int | None, assumed_tokens: int | None) -> None:
        self.source = source
        self.given = capacity_tokens
        self.capacity = assumed_tokens if capacity_tokens is None else capacity_tokens
        self.block_tokens = _BLOCK_TOKENS
        self.groups: dict[tuple[str, str], _Group] = {}
        self.left_out: dict[str, tuple[int, int]] = {}

    def skip(self, reason: str, line: int) -> None:
        count, first = self.left_out.get(reason, (0, line))
        self.left_out[reason] = (count + 1, first)

    def add(
        self,
        form: str,
        values: tuple[float, float, float, float],
        line: int,
        *,
        group: str = "",
        hidden_prefill: bool = False,
    ) -> None:
        """A sample (K, P, B, τ), unless nothing ran."""
        if not (values[2] > 0 and values[3] > 0):
            self.skip("nothing was generated", line)
            return
        if not _SHORTEST_S <= values[3] <= _LONGEST_S:
            raise ProfileError(
                self.source,
                f"an iteration of {values[3]:g} s; must be from {_SHORTEST_S:g} to {_LONGEST_S:,.0f} s",
                line=line,
            )
        self.groups.setdefault((form, group), _Group(form, hidden_prefill)).rows.append((*values, line))

    def used(self, percent: float, line: int) -> float:
        """KV tokens of a usage."""
        if self.capacity is None:
            raise ProfileError(
                self.source,
                "KV usage is a share of a capacity that is not stated here; give --capacity, or a --base that has it",
                line=line,
            )
        if percent > 100:
            raise ProfileError(self.source, f"KV usage of {percent:g} %; at most 100", line=line)
        return percent / 100 * self.capacity

    def averaged(
        self, form: str, prompt: float, generated: float, running: float, percent: float, line: int
    ) -> None:
        """A sample from throughputs (tokens/s), sequences running and KV usage (%)."""
        kv_tokens = self.used(percent, line)
        tau = running / generated if generated > 0 else 0.0
        self.add(form, (kv_tokens, prompt * tau, running, tau), line, hidden_prefill=True)

    def table(self, rows: Iterator[_Row], first: str) -> None:
        kind: str | None = None
        for row in rows:
            row.source = self.source
            kind = kind or _kind(row.written)
            if kind is None:
                raise self.unknown(first)
            try:
                self.row(kind, row)
            except ProfileError:
                if row.ended:
                    raise
                self.skip("cut off", row.line)

    def row(self, kind: str, row: _Row) -> None:
        match kind:
            case "per-second series":
                prompt, generated, running, percent = (row.number(names) for names in _SERIES)
                self.averaged(kind, prompt, generated, running, percent, row.line)
            case "splitwise-sim":
                size, batch, generated, prompt_s, token_s = (row.number(names) for names in _SPLITWISE)
                group = f"{row.text('model')}, {row.text('hardware')}, TP{row.text('tensorparallel')}"
                tokens = size * batch
                # A prompt's iteration also emits the first token; then the context grows by half of what follows.
                self.add(kind, (tokens + batch, tokens, batch, prompt_s), row.line, group=group)
                self.add(
                    kind, (tokens + batch * (generated + 1) / 2, 0.0, batch, token_s), row.line, group=group
                )
            case "concurrency sweep" | "bench result":
                batch, tpot = row.number(_CONCURRENCY), row.number(_TPOT)
                if kind == "bench result":
                    requests = row.number(_COMPLETED)
                    if requests == 0:
                        self.skip("nothing was generated", row.line)
                        return
                    inputs, outputs = (
                        row.number(_TOTAL_INPUT) / requests,
                        row.number(_TOTAL_OUTPUT) / requests,
                    )
                else:
                    inputs, outputs = row.number(_INPUT), row.number(_OUTPUT)
                # In a steady state every sequence is at a random place of its decode, and one in `outputs` begins.
                prefill = batch * inputs / outputs if outputs > 0 else 0.0
                self.add(
                    "concurrency sweep",
                    (batch * (inputs + (outputs + 1) / 2), prefill, batch if outputs > 0 else 0.0, tpot),
                    row.line,
                )
            case _:
                has_batch = any(name in row.written for name in _BATCH)
                batch = row.number(_BATCH) if has_batch else 1.0
                self.add(kind, (row.number(_KV), row.optional(_PROMPT), batch, row.number(_TAU)), row.line)

    def log(self, numbered: Iterator[tuple[int, str]]) -> None:
        """Samples of the engines' lines. Iteration details, being exact, take the place of the averages around them."""
        stats: list[tuple[float, float, float, float, int, int | None]] = []
        details = False
        usage: float | None = None
        new_tokens, prefills, interval = 0, 0, _DECODE_LOG_INTERVAL
        for line, text in numbered:
            self.stated(text)
            if found := _USAGE.search(text):
                usage = float(found[1])
            if "Iteration(" in text:
                details = True
                self.iteration(text, usage, line)
            elif "Avg prompt throughput" in text:
                if (found := _STATS.search(text)) and (values := _floats(found)):
                    stats.append((values[0], values[1], values[2], values[3], line, self.capacity))
                else:
                    self.skip("cut off or in an unknown form", line)
            elif found := _INTERVAL.search(text):
                interval = max(1, int(found[1]))
            elif "Prefill batch" in text:
                if found := _PREFILL.search(text):
                    new_tokens, prefills = new_tokens + int(found[1]), prefills + 1
                else:
                    self.skip("cut off or in an unknown form", line)
            elif "Decode batch" in text:
                if (found := _DECODE.search(text)) and (values := _floats(found)):
                    running, kv_tokens, generated = values
                    # The throughput spans `interval` decode batches and the prefill batches among them.
                    batches = interval + prefills
                    tau = running / generated * interval / batches if generated > 0 else 0.0
                    self.add(
                        "SGLang log",
                        (kv_tokens, new_tokens / batches, running, tau),
                        line,
                        hidden_prefill=True,
                    )
                else:
                    self.skip("cut off or in an unknown form", line)
                new_tokens, prefills = 0, 0
        for prompt, generated, running, percent, line, capacity in stats:
            if details:
                self.skip("an average, where iterations are logged one by one", line)
            else:
                self.capacity = (
                    capacity  # as it was when the line was logged: the engine may have been started anew
                )
                self.averaged("vLLM stats log", prompt, generated, running, percent, line)

    def stated(self, text: str) -> None:
        """Take the capacity of a line that states one, unless it was given."""
        if self.given is not None:
            return
        if found := _BLOCK_SIZE.search(text):
            self.block_tokens = int(found[1])
        if found := _CAPACITY.search(text):
            self.capacity = int(found[1].replace(",", ""))
        elif found := _BLOCKS.search(text):
            self.capacity = int(found[1]) * self.block_tokens

    def iteration(self, text: str, usage: float | None, line: int) -> None:
        found = _ITERATION.search(text)
        values = _floats(found) if found else None
        if values is None:
            self.skip("cut off or in an unknown form", line)
        elif _DUMMY in text:
            self.skip("a dummy iteration", line)
        elif usage is None:
            self.skip("before the first line that states KV usage", line)
        else:
            contexts, context_tokens, generating, generated, elapsed = values
            # A request that is computed again after a preemption counts as generating, all its tokens too.
            prefill = context_tokens + max(0.0, generated - generating)
            self.add(
                "vLLM iteration details",
                (self.used(usage, line), prefill, contexts + generating, elapsed * 1e-3),
                line,
            )

    def unknown(self, first: str) -> ProfileError:
        return ProfileError(
            self.source,
            "no samples of iterations: neither lines of vLLM's or SGLang's log, nor a table with kv_tokens and "
            "iteration_ms, with concurrency, tpot_ms, input_tokens and output_tokens, or with prompt_throughput, "
            f"gen_throughput, running and kv_cache_pct; the file begins {shown(first)}",
            line=1,
        )

    def samples(self, first: str) -> tuple[Samples, ...]:
        left_out = tuple(LeftOut(reason, count, line) for reason, (count, line) in self.left_out.items())
        if not self.groups:
            if not left_out:
                raise self.unknown(first)
            raise UsageError(
                f"{self.source}: no samples of iterations; "
                + "; ".join(
                    f"{some.count} rows: {some.reason} (first: line {some.line})" for some in left_out
                )
            )
        return tuple(self.finished(name, group, left_out) for (_, name), group in self.groups.items())

    def finished(self, name: str, group: _Group, left_out: tuple[LeftOut, ...]) -> Samples:
        kv_tokens, prefill, sequences, seconds, lines = zip(*group.rows, strict=True)
        return Samples(
            source=self.source,
            format=group.format,
            group=name,
            kv_tokens=np.array(kv_tokens, dtype=np.float64),
            prefill_tokens=np.array(prefill, dtype=np.float64),
            sequences=np.array(sequences, dtype=np.float64),
            seconds=np.array(seconds, dtype=np.float64),
            line=np.array(lines, dtype=np.int64),
            hidden_prefill=group.hidden_prefill,
            left_out=left_out,
        )


def _floats(found: re.Match[str]) -> list[float] | None:
    """Numbers of a line; None where one of them is not."""
    try:
        return [float(text) for text in found.groups()]
    except ValueError:
        return None
