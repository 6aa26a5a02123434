"""Reads what was measured of iterations and loads; `kvplan.ingest.timing.formats` has a module for each format."""

import csv
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.cells import plain_name, shown
from kvplan.ingest.text_file import lines_of
from kvplan.ingest.timing.collector import Collector, Found, NoSamplesError
from kvplan.ingest.timing.format import (
    Document,
    DocumentFormat,
    LogFormat,
    Row,
    TableFormat,
    csv_rows,
    names,
    row_of,
)
from kvplan.ingest.timing.formats import FORMATS
from kvplan.ingest.timing.json_text import documents, is_json
from kvplan.ingest.timing.requests import iterations, rebuilt
from kvplan.ingest.timing.samples import RequestLog, Samples, Series
from kvplan.ingest.timing.sweep import Sweep

Measured = Samples | Sweep
DRAFTS = names("drafts numspeculativetokens")
EMITTED = names("meanacceptancelength tokensperiteration")
_MOST_NAMES, _LONGEST_NAME = 20, 80  # of groups in a message


def read_samples(
    path: Path, *, capacity_tokens: int | None = None, assumed_tokens: int | None = None
) -> tuple[Measured, ...]:
    """Read the samples of a file, which may be compressed: one for everything measured, and most files hold one.

    For formats that state a share of the KV capacity, `capacity_tokens` is that, whatever a log says, and
    `assumed_tokens` where a log says nothing.

    Raises
    ------
    UsageError
        The file cannot be read, holds no samples, or states usage but no capacity; with the line of the first row
        of a table that cannot be used.
    """
    return _measured(_read(path, capacity_tokens, assumed_tokens))


def read_groups(
    paths: Sequence[Path],
    *,
    capacity_tokens: int | None = None,
    assumed_tokens: int | None = None,
    group: str | None = None,
    may_lack: Collection[Path] = (),
) -> tuple[tuple[Measured, ...], ...]:
    """Samples of several files, those of one replica together, or of one group alone; see `read_samples`.

    The requests of a run beside a series of it rebuild the KV usage that was not recorded, and give no samples of their
    own. Files that `may_lack` samples tell of other things too.

    Raises
    ------
    UsageError
        Another file gives no samples, or none has that group.
    """
    grouped: dict[str, list[Found]] = {}
    for path in paths:
        try:
            for some in _read(path, capacity_tokens, assumed_tokens):
                grouped.setdefault(some.group, []).append(some)
        except NoSamplesError:
            if path not in may_lack:
                raise
    found = {name: _measured(several) for name, several in grouped.items()}
    if group is None:
        return tuple(found.values())
    if group not in found:
        names = listed(found) if any(found) else "one replica without a name"
        raise UsageError(f"{paths[0]}: no group {group!r}; there are: {names}")
    return (found[group],)


def listed(groups: Iterable[str]) -> str:
    """Names of groups in a message, no more of them than one reads.

    Examples
    --------
    >>> listed(["vllm", "sglang"])
    "'vllm', 'sglang'"
    """
    names = [repr(name[:_LONGEST_NAME]) for name in groups]
    return ", ".join(names[:_MOST_NAMES] + ["…"] * (len(names) > _MOST_NAMES))


def parse_samples(
    lines: Iterable[str],
    source: str,
    *,
    capacity_tokens: int | None = None,
    assumed_tokens: int | None = None,
) -> tuple[Measured, ...]:
    """The samples in some lines, which messages call `source`; see `read_samples`.

    Lines have their line ends; a last one without may be cut off.

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
    return _measured(_parsed(lines, source, capacity_tokens, assumed_tokens))


def _measured(found: Sequence[Found]) -> tuple[Measured, ...]:
    """Samples and sweeps, what is neither made into samples.

    Raises
    ------
    UsageError
        KV usage was not recorded, and no requests tell.
    """
    measured = tuple(some for some in found if isinstance(some, Samples | Sweep))
    series = [some for some in found if isinstance(some, Series)]
    logs = [some for some in found if isinstance(some, RequestLog)]
    if not series:
        return measured or tuple(map(iterations, logs))
    if len(logs) != len(series):
        raise UsageError(
            f"{series[0].source}: KV usage is 0 throughout while requests run: it was not recorded; give the requests "
            "of the run too, with their lengths and times (arrival, first_token, last_token), or measure again"
        )
    return (*measured, *(rebuilt(one, log) for one, log in zip(series, logs, strict=True)))


def _read(path: Path, capacity_tokens: int | None, assumed_tokens: int | None) -> tuple[Found, ...]:
    with lines_of(path) as lines:
        try:
            found = _parsed(lines, lines.source, capacity_tokens, assumed_tokens)
        except csv.Error as error:
            raise UsageError(f"{path}: not CSV: {error}; is a quote open?") from None
    return tuple(replace(some, sha256=lines.sha256) for some in found)


def _parsed(
    lines: Iterable[str], source: str, capacity_tokens: int | None, assumed_tokens: int | None
) -> tuple[Found, ...]:
    numbered = enumerate(lines, 1)
    number, first = next(((number, line) for number, line in numbered if line.strip()), (0, ""))
    if not number:
        raise UsageError(f"{source}: empty; a log, a series or a table of iterations is wanted")
    collector = Collector(source, capacity_tokens, assumed_tokens)
    if is_json(first):
        _add_json(documents(source, number, first, (line for _, line in numbered)), collector)
    else:
        header = next(csv.reader([first]))
        format = table_format(map(plain_name, header))
        if tells_of_drafts(header):
            raise UsageError(f"{source}: runs with drafts come from a file of their own, and not by a pipe")
        filled = ((number, line) for number, line in numbered if line.strip())
        if format is not None:
            _add_table(format, csv_rows(source, header, filled), collector)
        else:
            _add_log(chain([(number, first)], filled), collector)
    if found := collector.found():
        return found
    raise NoSamplesError(
        source,
        "no samples of iterations: neither lines of vLLM's or SGLang's log, nor the result of a benchmark, nor a table "
        "with kv_tokens and iteration_ms, with concurrency, tpot_ms, input_tokens and output_tokens, or with "
        f"prompt_throughput, gen_throughput, running and kv_cache_pct; the file begins {shown(first)}",
        line=number,
    )


def tells_of_drafts(header: Iterable[str]) -> bool:
    """Whether a table has runs with different numbers of drafts, which `kvplan.ingest.timing.drafts` reads."""
    columns = set(map(plain_name, header))
    return all(columns & set(names) for names in (DRAFTS, EMITTED))


def table_format(columns: Iterable[str]) -> TableFormat | None:
    """The format of a table with these columns, by their plain names; None where there is none."""
    names = set(columns)
    known = (format for format in FORMATS if isinstance(format, TableFormat))
    fitting = (format for format in known if all(names & set(column) for column in format.columns))
    return max(fitting, key=lambda format: len(format.columns), default=None)


def _add_table(format: TableFormat, rows: Iterable[Row], collector: Collector) -> None:
    for row in rows:
        try:
            format.add(row, collector)
        except ProfileError:
            if row.ended:
                raise
            collector.skip("cut off", row.line)


def _add_json(found: Iterable[Document | int], collector: Collector) -> None:
    """Add what is in JSON objects, all of the format of the first."""
    format: DocumentFormat | TableFormat | None = None
    for document in found:
        if isinstance(document, int):
            collector.skip("cut off", document)
            continue
        if format is None:
            known = (format for format in FORMATS if isinstance(format, DocumentFormat))
            format = next((format for format in known if format.recognises(document)), None)
            format = format or table_format(map(plain_name, document.value))
        if format is None:
            return
        if isinstance(format, DocumentFormat):
            format.add(document, collector)
        else:
            format.add(row_of(document), collector)


def _add_log(numbered: Iterable[tuple[int, str]], collector: Collector) -> None:
    readers = [format.reader(collector) for format in FORMATS if isinstance(format, LogFormat)]
    for number, text in numbered:
        for reader in readers:
            reader.line(number, text)
    for reader in readers:
        reader.end()
