"""Recorded requests: the Azure LLM inference CSV and JSON lines of benchmark runs, told apart by content."""

import csv
import json
import math
import os
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, TextIO

import numpy as np

from kvplan.errors import UsageError
from kvplan.simulation.requests import Requests

_MAX_TOKENS = 10**9
_MAX_SECONDS = 1e12
_MAX_LINE = 10**6  # characters
_SHOWN = 60  # of them, in a message
_TOKENS = f"a whole number of tokens, 0 to {_MAX_TOKENS:,}"


@dataclass(frozen=True)
class Trace:
    """What a trace holds.

    Attributes
    ----------
    requests : Requests
        By time of arrival, from the first on; all of class 0.
    dropped : int
        Rows left out because they generated nothing. An empty prompt is no reason, as in a profile.
    """

    requests: Requests
    dropped: int


class _Format(NamedTuple):
    """How a line becomes a row, the names of its columns, how a time is read, and what it must be."""

    row: Callable[[str], Mapping[str, Any]]
    time: str
    inputs: str
    outputs: str
    seconds: Callable[[Any], float]
    allowed: str


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a trace.

    Parameters
    ----------
    path : path-like
        CSV with the columns TIMESTAMP, ContextTokens and GeneratedTokens; or JSON lines with arrival_time (seconds),
        input_toks and output_toks. Rows in any order; other columns are not looked at. Times count to the
        microsecond.

    Raises
    ------
    UsageError
        With line and column of the first value that cannot be used.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w+") as file:
    ...     rows = ("2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,0")
    ...     print("TIMESTAMP,ContextTokens,GeneratedTokens", *rows, sep="\\n", end="", file=file, flush=True)
    ...     trace = read_trace(file.name)
    >>> trace.requests.input_tokens.tolist(), trace.requests.decode_tokens.tolist(), trace.dropped
    ([374], [44], 1)
    """
    source = os.fspath(path)
    times, inputs, outputs = array("d"), array("q"), array("q")
    dropped = 0
    try:
        with open(path, encoding="utf-8-sig") as file:
            for time, prompt, generated in _values(_lines(file, source), source):
                if generated == 0:
                    dropped += 1
                    continue
                times.append(time)
                inputs.append(prompt)
                outputs.append(generated)
    except OSError as error:
        raise UsageError(f"{source}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{source}: not a trace: must be text in UTF-8") from None
    if not times:
        raise UsageError(f"{source}: must have a request that generates tokens; rows without: {dropped:,}")
    arrival = np.array(times)
    order = np.argsort(arrival, kind="stable")
    requests = Requests(
        arrival_s=np.round(arrival[order] - arrival.min(), 6),
        input_tokens=np.array(inputs)[order],
        decode_tokens=np.array(outputs)[order],
        class_index=np.zeros(order.size, dtype=np.int64),
    )
    return Trace(requests, dropped)


def _values(lines: Iterator[tuple[int, str]], source: str) -> Iterator[tuple[float, int, int]]:
    """Time, prompt and generated tokens of each row."""
    form = None
    for number, text in lines:
        place = f"{source}:{number}"
        if form is None:
            if text.startswith("{"):
                form = _JSON
            else:
                form = _csv(text, place)
                continue
        try:
            row = form.row(text)
        except ValueError as error:
            raise UsageError(f"{place}: {error}; the line is {_shown(text)}") from None
        yield (
            _value(row, form.time, form.seconds, form.allowed, place),
            int(_value(row, form.inputs, _tokens, _TOKENS, place)),
            int(_value(row, form.outputs, _tokens, _TOKENS, place)),
        )


def _lines(file: TextIO, source: str) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, and their numbers from 1."""
    number = 0
    while text := file.readline(_MAX_LINE + 1):
        number += 1
        if len(text) > _MAX_LINE:
            raise UsageError(f"{source}:{number}: not a trace: a line of more than {_MAX_LINE:,} characters")
        if text := text.strip():
            yield number, text


def _csv(header: str, place: str) -> _Format:
    names = [name.strip() for name in _fields(header)]
    columns = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    missing = [name for name in columns if name not in names]
    if missing:
        raise UsageError(
            f"{place}: not a trace: neither JSON lines with {', '.join(_JSON[1:4])} nor a CSV whose first line names "
            f"{', '.join(columns)} (missing: {', '.join(missing)}); the line is {_shown(header)}"
        )

    def row(text: str) -> Mapping[str, str]:
        fields = _fields(text)
        if len(fields) != len(names):
            raise ValueError(f"columns: {len(fields)}; must be {len(names)}, as in the first line")
        return dict(zip(names, fields, strict=True))

    return _Format(row, *columns, _timestamp, 'a date and time such as "2023-11-16 18:15:46.6805900"')


def _fields(text: str) -> list[str]:
    try:
        return next(csv.reader([text]))
    except csv.Error as error:
        raise ValueError(str(error)) from None


def _timestamp(value: str) -> float:
    """Seconds of "2023-11-16 18:15:46.6805900", in UTC unless it says otherwise."""
    moment = datetime.fromisoformat(value.strip())
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _object(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    number = float(value)
    return number if abs(number) <= _MAX_SECONDS else math.nan


def _tokens(value: Any) -> float:
    number = _number(value)
    return number if number.is_integer() and 0 <= number <= _MAX_TOKENS else math.nan


def _value(row: Mapping[str, Any], key: str, read: Callable[[Any], float], allowed: str, place: str) -> float:
    """One value of a row."""
    if key not in row:
        raise UsageError(f"{place}: {key}: missing; must be {allowed}")
    try:
        value = read(row[key])
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if math.isnan(value):
        raise UsageError(f"{place}: {key}: {_shown(row[key])}; must be {allowed}")
    return value


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


_JSON = _Format(
    _object,
    "arrival_time",
    "input_toks",
    "output_toks",
    _number,
    f"a number of seconds, at most {_MAX_SECONDS:,.0f}",
)
