"""Recorded requests, row by row: when each arrived, how long its prompt was, how much it generated.

Formats are told apart by content, never by name:

=====================  =====================================================================================
Azure LLM inference    CSV with TIMESTAMP, ContextTokens, GeneratedTokens
BurstGPT               CSV with Timestamp (seconds), Request tokens, Response tokens
Mooncake               JSON lines with timestamp (whole ms), input_length, output_length, hash_ids
Qwen-Bailian           the same with chat_id, and the timestamp in seconds
vLLM bench             one JSON object with input_lens, output_lens, and start_times or duration
CSV, JSON lines        any with a column each for time, input and output under a usual name
=====================  =====================================================================================

Any of them may be compressed with gzip or zstd, begin with a byte order mark, mix line
ends, or lack the last one. Rows come in blocks, so that a file of any length is read in bounded memory.
"""

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.text_file import text_of
from kvplan.model import FloatArray, IntArray

BLOCK_ROWS = 8192
MAX_INPUT_TOKENS = 10**9
MAX_OUTPUT_TOKENS = 10**6
_MAX_TIME_S = 1e12
_MAX_LINE = 64_000_000  # characters; the results of a benchmark are one line
_MAX_BLOCKS = 4_000_000  # prefix blocks remembered
_DELIMITERS = ",;\t"
_SHOWN = 60  # characters of a line in a message


def _names(text: str) -> tuple[str, ...]:
    """Usual names, without case, spaces and underscores; the first that is there counts."""
    return tuple(text.split())


_TIME = _names("""
    timestamp arrivaltime arrivaltimestamp arrivaltimes arrivals arrivalms arrival arrivedat
    timestampms timestamps times timems time
""")
_INPUT = _names("""
    contexttokens requesttokens inputlength inputtoks inputtokens inputlen prompttokens promptlength
    promptlen promptsize numprefilltokens numprompttokens numinputtokens input prompt
""")
_OUTPUT = _names("""
    generatedtokens responsetokens outputlength outputtoks outputtokens outputlen completiontokens
    decodetokens decodelength numdecodetokens numcompletiontokens numoutputtokens tokensize output
    decode
""")


class Rows(NamedTuple):
    """A block of rows, in the order of the file.

    Attributes
    ----------
    time_s : ndarray, shape (n_rows,)
        Seconds from an origin of the file's own.
    input_tokens, output_tokens : ndarray of int64, shape (n_rows,), tokens
        Zeros included.
    """

    time_s: FloatArray
    input_tokens: IntArray
    output_tokens: IntArray


class TraceFile:
    """A trace to be iterated over once, block by block; what else was found is there when it is done.

    Parameters
    ----------
    path : Path

    Attributes
    ----------
    format : str
        As the table of this module calls it; known with the first block.
    sha256 : str
        Of the bytes of the file, as stored.
    cut_off : int
        1 if the file ends within its last row, which is left out; else 0.
    prompt_blocks, repeated_blocks : int
        Of ``hash_ids``: blocks of all prompts, and those at the beginning of a prompt that an earlier one had too.
    forgetful : bool
        There were more distinct blocks than are remembered, so that `repeated_blocks` is a lower bound.
    duration_s : float or None
        Of a benchmark without arrival times: seconds it took to complete all rows, whose times are then 0.

    Raises
    ------
    UsageError
        While iterating: with the line of the first row that cannot be read.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "trace.csv")
    ...     _ = path.write_text("time,input,output\\n0.5,374,44\\n1.5,396,109\\n")
    ...     trace = TraceFile(path)
    ...     [block.input_tokens.tolist() for block in trace], trace.format
    ([[374, 396]], 'CSV')
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.source = str(path)
        self.format = ""
        self.sha256 = ""
        self.cut_off = 0
        self.prompt_blocks = 0
        self.repeated_blocks = 0
        self.forgetful = False
        self.duration_s: float | None = None
        self._blocks_seen: set[Any] = set()

    def __iter__(self) -> Iterator[Rows]:
        lines: _Lines | None = None
        try:
            with text_of(self.path) as (text, digest):
                lines = _Lines(text)
                yield from self._blocks(lines)
            self.sha256 = digest.hex
        except csv.Error as error:
            line = None if lines is None else lines.number
            raise ProfileError(self.source, f"not CSV: {error}; is a quote open?", line=line) from None

    def _blocks(self, lines: "_Lines") -> Iterator[Rows]:
        first = next((line for line in lines if line.strip()), "")
        if not first:
            raise UsageError(f"{self.source}: empty; a trace has a row for every request")
        if not first.lstrip().startswith("{"):
            delimiter = max(_DELIMITERS, key=first.count)
            names = next(csv.reader([first], delimiter=delimiter))
            columns = self._columns(names, names, first, lines.number)
            offset, reader = lines.number, csv.reader(lines, delimiter=delimiter)
            numbered = ((offset + reader.line_num, row) for row in reader if row)
            yield from self._decoded(numbered, lambda row: columns.values(row), lines)
            return
        value = _json_object(first)
        if value is None or "input_lens" in value:
            whole = first if value is not None else first + lines.rest(_MAX_LINE)
            if value is not None and lines.rest(_MAX_LINE).strip():
                raise ProfileError(self.source, "several benchmark results; give one at a time", line=2)
            yield self._benchmark(whole)
            return
        columns = self._columns(list(value), value, first, lines.number)

        def read(text: str) -> tuple[float, int, int]:
            row = _json_object(text)
            if row is None:
                raise _BadRowError(f"not a JSON object: {shown(text)}")
            values = columns.values(row)
            self._remember(row.get("hash_ids"))
            return values

        numbered_lines = ((lines.number, text) for text in lines.from_(first) if text.strip())
        yield from self._decoded(numbered_lines, read, lines)

    def _columns(self, names: Sequence[str], row: Any, first: str, line: int) -> "_Columns":
        plain = {re.sub(r"[\W_]", "", name.lower()): name for name in reversed(names)}
        found = [
            next((plain[alias] for alias in aliases if alias in plain), None)
            for aliases in (_TIME, _INPUT, _OUTPUT)
        ]
        if None in found:
            missing = [
                what for what, name in zip(("time", "input", "output"), found, strict=True) if not name
            ]
            raise ProfileError(
                self.source,
                f"not a trace: no column for {', '.join(missing)}, such as timestamp, input_tokens, output_tokens; "
                f"the line begins {shown(first)}",
                line=line,
            )
        time, inputs, outputs = cast(list[str], found)
        in_json = isinstance(row, dict)
        scale = 1e-3 if re.search(r"(_| |\()ms\)?$", time.lower()) else 1.0
        match time, inputs, outputs:
            case "TIMESTAMP", "ContextTokens", "GeneratedTokens":
                self.format = "Azure LLM inference CSV"
            case "Timestamp", "Request tokens", "Response tokens":
                self.format = "BurstGPT CSV"
            case "timestamp", "input_length", "output_length" if in_json and "chat_id" in row:
                self.format = "Qwen-Bailian JSON lines"
            case "timestamp", "input_length", "output_length" if in_json and isinstance(row[time], int):
                self.format, scale = "Mooncake JSON lines", 1e-3
            case _:
                self.format = "JSON lines" if in_json else "CSV"
        if in_json:
            return _Columns((time, inputs, outputs), (time, inputs, outputs), scale)
        place = {name: index for index, name in reversed(list(enumerate(names)))}
        return _Columns((place[time], place[inputs], place[outputs]), (time, inputs, outputs), scale)

    def _decoded(
        self,
        numbered: Iterator[tuple[int, Any]],
        read: Callable[[Any], tuple[float, int, int]],
        lines: "_Lines",
    ) -> Iterator[Rows]:
        """Rows as arrays. A row that cannot be read is the end of a file that was cut off, or an error."""
        block: list[tuple[float, int, int]] = []
        any_before = False
        for line, row in numbered:
            try:
                block.append(read(row))
                any_before = True
            except _BadRowError as error:
                if any_before and lines.ended_within_line() and next(numbered, None) is None:
                    self.cut_off = 1
                    break
                raise ProfileError(self.source, str(error), key=error.key, line=line) from None
            if len(block) == BLOCK_ROWS:
                yield _arrays(block)
                block = []
        if block:
            yield _arrays(block)

    def _benchmark(self, text: str) -> Rows:
        self.format = "vLLM bench JSON"
        value = _json_object(text)
        if value is None:
            raise ProfileError(self.source, f"not JSON: {shown(text)}; is the file cut off?", line=1)
        inputs, outputs = value.get("input_lens"), value.get("output_lens")
        if not (isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs)):
            seen = ", ".join(list(value)[:8])
            message = (
                f"not a trace: needs the lists input_lens and output_lens, of one length; has {shown(seen)}"
            )
            raise ProfileError(self.source, message, line=1)
        times = value.get("start_times")
        known = isinstance(times, list) and len(times) == len(inputs)
        keys = ("start_times" if known else "duration", "input_lens", "output_lens")
        columns = _Columns((0, 1, 2), keys, 1.0)
        try:
            if not known:
                self.duration_s = _time(value.get("duration"), "duration")
            rows = zip(cast(list[Any], times) if known else [0] * len(inputs), inputs, outputs, strict=True)
            return _arrays([columns.values(row) for row in rows])
        except _BadRowError as error:
            raise ProfileError(self.source, str(error), key=error.key) from None

    def _remember(self, ids: Any) -> None:
        if not isinstance(ids, list):
            return
        seen = self._blocks_seen
        try:
            hits = next((i for i, block in enumerate(ids) if block not in seen), len(ids))
            if len(seen) < _MAX_BLOCKS:
                seen.update(ids)
            else:
                self.forgetful = True
        except TypeError:
            raise _BadRowError("must be a list of numbers", "hash_ids") from None
        self.prompt_blocks += len(ids)
        self.repeated_blocks += hits


class _BadRowError(Exception):
    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class _Columns(NamedTuple):
    """Where time, input and output stand in a row, what they are called, and the unit of time in seconds."""

    places: tuple[Any, Any, Any]
    names: tuple[str, str, str]
    unit_s: float

    def values(self, row: Any) -> tuple[float, int, int]:
        time, inputs, outputs = self.places
        try:
            seen = row[time], row[inputs], row[outputs]
        except (IndexError, KeyError):
            name = next(n for p, n in zip(self.places, self.names, strict=True) if not _has(row, p))
            raise _BadRowError("missing", name) from None
        return (
            _time(seen[0], self.names[0]) * self.unit_s,
            _tokens(seen[1], self.names[1], MAX_INPUT_TOKENS),
            _tokens(seen[2], self.names[2], MAX_OUTPUT_TOKENS),
        )


def _has(row: Any, place: Any) -> bool:
    return place in row if isinstance(row, dict) else place < len(row)


def _time(value: Any, name: str) -> float:
    """Seconds of a number, or of a date and time; one without a zone is in UTC."""
    try:
        if isinstance(value, bool):
            raise ValueError
        try:
            seconds = float(value)
        except ValueError:
            date = datetime.fromisoformat(value.strip())
            seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError, AttributeError):
        seconds = math.nan
    if not abs(seconds) <= _MAX_TIME_S:
        raise _BadRowError(
            f"{shown(value)}; must be a time: a number of seconds, or a date; a column of milliseconds is called "
            "timestamp_ms",
            name,
        )
    return seconds


def _tokens(value: Any, name: str, most: int) -> int:
    try:
        number = int(value) if type(value) is int or type(value) is str else _whole(value)
    except ValueError:
        try:
            number = _whole(float(value))
        except ValueError:
            number = -1
    if not 0 <= number <= most:
        raise _BadRowError(f"{shown(value)}; must be a whole number of tokens, at most {most:,}", name)
    return number


def _whole(value: Any) -> int:
    return int(value) if type(value) is float and value.is_integer() else -1


def _arrays(rows: list[tuple[float, int, int]]) -> Rows:
    times, inputs, outputs = zip(*rows, strict=True) if rows else ((), (), ())
    return Rows(
        np.array(times, dtype=np.float64), np.array(inputs, dtype=np.int64), np.array(outputs, dtype=np.int64)
    )


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def shown(value: Any) -> str:
    """A value as a message quotes it: as in the file, and short.

    Examples
    --------
    >>> shown("7x"), shown(-7)
    ("'7x'", '-7')
    """
    text = repr(value.strip()) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


class _Lines:
    """The lines of a text, the last of which is known."""

    def __init__(self, file: io.TextIOBase) -> None:
        self.number = 0
        self._file = file
        self._last = ""

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = self._file.readline(_MAX_LINE)
        if not line:
            raise StopIteration
        self.number += 1
        self._last = line
        return line

    def from_(self, line: str) -> Iterator[str]:
        """A line that was taken already, and those after it."""
        yield line
        yield from self

    def rest(self, most: int) -> str:
        return self._file.read(most)

    def ended_within_line(self) -> bool:
        return not self._last.endswith(("\n", "\r"))
