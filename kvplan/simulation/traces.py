"""Recorded requests: the Azure LLM inference CSV and JSON lines of benchmark runs, told apart by content."""

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvplan.errors import ProfileError, UsageError
from kvplan.simulation.requests import Requests

_MAX_TOKENS = 10**9
_SHOWN = 60  # characters of a line in a message


class Trace(NamedTuple):
    """Requests of a file, times from its first arrival, and how many of its rows had no tokens to serve."""

    requests: Requests
    dropped: int


class _Format(NamedTuple):
    """Names of the three columns, and how a time is read."""

    time: str
    inputs: str
    outputs: str
    seconds: Callable[[Any], float]


def _timestamp(value: Any) -> float:
    """Seconds of "2023-11-16 18:15:46.6805900": more digits than `datetime` takes."""
    whole, _, fraction = str(value).partition(".")
    return datetime.fromisoformat(whole + "+00:00").timestamp() + float(f"0.{fraction or 0}")


_AZURE = _Format("TIMESTAMP", "ContextTokens", "GeneratedTokens", _timestamp)
_RUN = _Format("arrival_time", "input_toks", "output_toks", float)


def read_trace(path: Path) -> Trace:
    """Read a trace.

    Parameters
    ----------
    path : Path
        CSV with the columns TIMESTAMP, ContextTokens and GeneratedTokens; or JSON lines with arrival_time (seconds),
        input_toks and output_toks. What else there is, is not looked at.

    Raises
    ------
    UsageError
        With the line of the first row that cannot be used.
    """
    rows: list[tuple[float, int, int]] = []
    dropped = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for line, row, form in _rows(file, str(path)):
                time, inputs, outputs = _values(row, form, str(path), line)
                if outputs == 0:
                    dropped += 1
                else:
                    rows.append((time, inputs, outputs))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: must be text in UTF-8") from None
    if not rows:
        raise UsageError(f"{path}: no requests with tokens to generate")
    times, inputs_, outputs_ = (np.array(column) for column in zip(*rows, strict=True))
    order = np.argsort(times, kind="stable")
    return Trace(
        Requests(
            arrival_s=times[order] - times.min(),
            input_tokens=inputs_[order].astype(np.int64),
            decode_tokens=outputs_[order].astype(np.int64),
            class_index=np.zeros(len(rows), dtype=np.int64),
        ),
        dropped,
    )


def _rows(file: Iterator[str], source: str) -> Iterator[tuple[int, Mapping[str, Any], _Format]]:
    first = next(file, "")
    if first.lstrip().startswith("{"):
        for line, text in enumerate(_chained(first, file), 1):
            if text.strip():
                yield line, _object(text, source, line), _RUN
        return
    header = next(csv.reader(StringIO(first)), [])
    missing = [name for name in _AZURE[:3] if name not in header]
    if missing:
        raise ProfileError(
            source,
            f"not a trace: neither a CSV with {', '.join(_AZURE[:3])} (missing: {', '.join(missing)}) nor JSON lines "
            f"with {', '.join(_RUN[:3])}; the line begins {_shown(first)}",
            line=1,
        )
    reader = csv.DictReader(file, fieldnames=header)
    for row in reader:
        yield reader.line_num + 1, row, _AZURE


def _chained(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _object(text: str, source: str, line: int) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise ProfileError(
            source, f"not a JSON object: {_shown(text)}; is the file cut off?", line=line
        ) from None
    if not isinstance(value, dict):
        raise ProfileError(source, f"not a JSON object: {_shown(text)}", line=line)
    return value


def _values(row: Mapping[str, Any], form: _Format, source: str, line: int) -> tuple[float, int, int]:
    return (
        _value(row, form.time, form.seconds, "a time", source, line),
        int(_value(row, form.inputs, _tokens, "a whole number of tokens", source, line)),
        int(_value(row, form.outputs, _tokens, "a whole number of tokens", source, line)),
    )


def _value(
    row: Mapping[str, Any], key: str, read: Callable[[Any], float], wanted: str, source: str, line: int
) -> float:
    seen = row.get(key)
    try:
        value = read(seen)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        what = "missing" if seen is None else _shown(seen)
        raise ProfileError(source, f"{what}; must be {wanted}", key=key, line=line)
    return value


def _tokens(value: Any) -> float:
    if isinstance(value, bool):
        return math.nan
    number = float(value)
    return number if number == int(number) and 0 <= number <= _MAX_TOKENS else math.nan


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    text = text.strip()
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")
