"""Reads what was measured of iterations and loads; `kvplan.ingest.results` has the formats."""

import csv
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.cells import Record, csv_rows, is_json, json_records, names, shown, tables_in
from kvplan.ingest.engines import LOGS, StatisticsReader, Telling, service_of, telling
from kvplan.ingest.reader import Beginning
from kvplan.ingest.results import reader_of
from kvplan.ingest.results.summaries import METRICS, SUMMARIES, metrics_as_columns, runs_in
from kvplan.ingest.results.vllm_bench import PRINTED, PrintedRuns
from kvplan.ingest.text_file import lines_of
from kvplan.ingest.timing.collector import Collector, Found, LeftOutError, NoSamplesError
from kvplan.ingest.timing.requests import iterations, rebuilt
from kvplan.ingest.timing.samples import Measured, RequestLog, Samples, Series, Sweep

DRAFTS = names("drafts numspeculativetokens")
EMITTED = names("meanacceptancelength tokensperiteration")
_MOST_SAMPLES = 5_000
_HEAD = 1000  # lines in which a table of a Markdown text begins
_LOGGING = " or ".join(log.engine for log in LOGS if log.statistics is not None)
_MOST_NAMES, _LONGEST_NAME = 20, 80  # of groups in a message


@dataclass
class KnownFiles:
    """Earlier readings of files that are asked for again.

    The lines that tell in a log; loads, which are the same at every capacity; why samples of a file were all left out.
    """

    logs: Mapping[Path, Sequence[Telling]] = field(default_factory=dict)
    loads: dict[Path, tuple[Found, ...]] = field(default_factory=dict)
    left_out: dict[Path, UsageError] = field(default_factory=dict)


def read_groups(
    paths: Sequence[Path],
    *,
    capacity_tokens: int | None = None,
    assumed_tokens: int | None = None,
    group: str | None = None,
    may_lack: Collection[Path] = (),
    told: Collection[str] = (),
    before: KnownFiles | None = None,
) -> tuple[tuple[Measured, ...], ...]:
    """Read samples of files, which may be compressed: those of one replica together, or of one group alone.

    For formats that state a share of the KV capacity, `capacity_tokens` is that, whatever a log says, and
    `assumed_tokens` where a log says nothing. The requests of a run beside a series of it rebuild the KV usage that was
    not recorded, and give no samples of their own. Files that `may_lack` samples tell of other things too, and of the
    groups `told`. What was read `before` is taken from there, and kept there.

    Raises
    ------
    UsageError
        A file cannot be read, holds no samples, or states usage but no capacity; with the line of the first row of a
        table that cannot be used.
    """
    grouped: dict[str, list[Found]] = {}
    read: set[str] = set()
    before = KnownFiles() if before is None else before
    for path in paths:
        lenient = path in may_lack
        try:
            collected = before.loads.get(path) or _read(
                path, capacity_tokens, assumed_tokens, lenient=lenient, log=before.logs.get(path)
            )
        except NoSamplesError as error:
            if not lenient:
                raise
            if isinstance(error, LeftOutError):
                before.left_out[path] = error
            continue
        if all(isinstance(some, Sweep) for some in collected):
            before.loads[path] = collected
        if (digest := collected[0].sha256) and digest in read:
            continue  # the same file again measures nothing more
        read.add(digest)
        for some in collected:
            grouped.setdefault(some.group, []).append(some)
    measured = {name: measured_of(several) for name, several in grouped.items()}
    if group is None:
        return tuple(measured.values())
    if group in told and group not in measured:
        return ()
    if group not in measured:
        known = listed(measured) if any(measured) else "one replica without a name"
        raise UsageError(f"{paths[0]}: no group {group!r}; there are: {known}")
    return (measured[group],)


def listed(groups: Iterable[str]) -> str:
    """List names of groups in a message, no more of them than one reads."""
    quoted = [repr(name[:_LONGEST_NAME]) for name in groups]
    return ", ".join(quoted[:_MOST_NAMES] + ["…"] * (len(quoted) > _MOST_NAMES))


def measured_of(collected: Sequence[Found]) -> tuple[Measured, ...]:
    """Keep samples and sweeps, and make samples of anything else."""
    told = tuple(_thinned(some) for some in collected if isinstance(some, Samples | Sweep))
    series = [some for some in collected if isinstance(some, Series)]
    logs = [some for some in collected if isinstance(some, RequestLog)]
    if not series:
        return told or tuple(_thinned(iterations(log)) for log in logs)
    if len(logs) != len(series):
        raise UsageError(
            f"{series[0].source}: KV usage is 0 throughout while requests run: it was not recorded; give the requests "
            "of the run too, with their lengths and times (arrival, first_token, last_token), or measure again"
        )
    return (*told, *(rebuilt(recorded, log) for recorded, log in zip(series, logs, strict=True)))


def _thinned(some: Measured) -> Measured:
    """Choose as many samples as can be fitted to in seconds, evenly over the file."""
    if isinstance(some, Sweep) or some.seconds.size <= _MOST_SAMPLES:
        return some
    taken = np.linspace(0, some.seconds.size - 1, _MOST_SAMPLES).round().astype(int)
    columns = ("kv_tokens", "prefill_tokens", "sequences", "seconds", "line")
    note = f"{_MOST_SAMPLES:,} of {some.seconds.size:,} samples are fitted to, evenly over the file"
    kept: dict[str, Any] = {name: getattr(some, name)[taken] for name in columns}
    return replace(some, **kept, notes=(*some.notes, note))


def _read(
    path: Path,
    capacity_tokens: int | None,
    assumed_tokens: int | None,
    *,
    lenient: bool = False,
    log: Sequence[Telling] | None = None,
) -> tuple[Found, ...]:
    """Read a file; an engine prints what it likes, and bytes that are not UTF-8 do a log no harm."""
    with lines_of(path, errors="replace" if lenient else "strict") as lines:
        try:
            collected = parsed(lines, lines.source, capacity_tokens, assumed_tokens, log)
        except csv.Error as error:
            raise UsageError(f"{path}: not CSV: {error}; is a quote open?") from None
    return tuple(replace(some, sha256=lines.sha256, notes=(*some.notes, *lines.notes)) for some in collected)


def parsed(
    lines: Iterable[str],
    source: str,
    capacity_tokens: int | None,
    assumed_tokens: int | None,
    log: Sequence[Telling] | None = None,
) -> tuple[Found, ...]:
    """Read what is in lines, with their line ends; a last one without may be cut off. What tells in `log` is known."""
    numbered: Iterator[tuple[int, str]] = enumerate(lines, 1)
    number, first = next(((number, line) for number, line in numbered if line.strip()), (0, ""))
    if not number:
        raise UsageError(f"{source}: empty; a log, a series or a table of iterations is wanted")
    collector = Collector(source, capacity_tokens, assumed_tokens)
    head = [(number, first), *islice(numbered, _HEAD)]
    headers = [Beginning.of_line(header) for header, _ in tables_in(head)]
    numbered = chain(head[1:], numbered)
    read = True
    if any(map(reader_of, headers)):
        for header, rows in tables_in(chain(head[:1], numbered)):
            _add_table(Beginning.of_line(header), iter(rows), collector)
    elif is_json(first):
        read = _add_json(json_records(source, number, first, (line for _, line in numbered)), collector)
    else:
        read = _add_table(Beginning.of_line(first), numbered, collector)
    if not read and not is_json(first):
        read = _add_summaries(head, collector)
    if not read:
        _add_log(log or telling(chain([(number, first)], numbered), PRINTED), collector)
    if collected := collector.collected():
        return collected
    if headers:
        raise NoSamplesError(source, "no samples of iterations: tables of other columns alone", line=number)
    raise NoSamplesError(
        source,
        f"no samples of iterations: neither lines that {_LOGGING} logs as it runs, nor the result of a benchmark, nor "
        "a table with kv_tokens and iteration_ms, with concurrency, tpot_ms, input_tokens and output_tokens, or with "
        f"prompt_throughput, gen_throughput, running and kv_cache_pct; the file begins {shown(first)}",
        line=number,
    )


def tells_of_drafts(start: Beginning) -> bool:
    """Tell whether a table has runs with different numbers of drafts, which `kvplan.ingest.timing.drafts` reads."""
    return all(start.plain_names & column.keys() for column in (DRAFTS, EMITTED))


def _add_table(start: Beginning, numbered: Iterator[tuple[int, str]], collector: Collector) -> bool:
    """Add what is in the rows of a table of a known format; False where it is none."""
    if tells_of_drafts(start):
        raise UsageError(f"{collector.source}: runs with drafts, which come from a file of their own")
    reader = reader_of(start)
    if reader is None:
        return False
    collector.format = reader.name
    rows = csv_rows(collector.source, start.names, numbered, start.delimiter)
    for row in metrics_as_columns(collector.source, rows) if reader is METRICS else rows:
        try:
            reader.read(row, collector)
        except ProfileError:
            if row.ended:
                raise
            collector.skip("cut off", row.line)
    return True


def _add_summaries(head: Iterable[tuple[int, str]], collector: Collector) -> bool:
    """Add runs that are printed with a line for each figure; False where there are none."""
    recognised = False
    for run in runs_in(collector.source, head):
        if (reader := reader_of(Beginning("", False, tuple(run.values), None))) in SUMMARIES:
            collector.format, recognised = reader.name, True
            reader.read(run, collector)
    return recognised


def _add_json(records: Iterable[Record], collector: Collector) -> bool:
    """Add what is in JSON objects, all of the format of the first; False where that is none."""
    reader = None
    for record in records:
        if not record.ended:
            collector.skip("cut off", record.line)
            continue
        if reader is None:
            reader = reader_of(Beginning("", True, list(record.values), record.values))
            if reader is None:
                return False
            collector.format = reader.name
        reader.read(record.as_row if reader.columns else record, collector)
    return True


def _add_log(lines: Iterable[Telling], collector: Collector) -> None:
    services: dict[str, dict[str, StatisticsReader]] = {}  # by engine
    settings: dict[
        tuple[str, str], tuple[dict[str, str], int]
    ] = {}  # by service and engine, and since which line
    for number, text, ran in lines:
        collector.group = service_of(text)
        if (readers := services.get(collector.group)) is None:
            readers = {log.engine: log.statistics(collector) for log in LOGS if log.statistics}
            readers |= {"": PrintedRuns(collector)}
            services[collector.group] = readers
        if ran is not None:
            readers[ran.engine].line(number, text)
            continue
        for log in LOGS:
            before = settings.get((collector.group, log.engine))
            if (now := log.settings_of_times(text)) is not None and (before is None or before[0] != now):
                settings[collector.group, log.engine] = now, number if before else 0
        for reader in readers.values():
            reader.line(number, text)
    for collector.group, readers in services.items():
        for reader in readers.values():
            reader.end()
        since = max(
            (line for (group, _), (_, line) in settings.items() if group == collector.group), default=0
        )
        collector.drop_before(since, "an earlier start, with other settings")
