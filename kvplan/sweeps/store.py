"""File of results: a header line, then a line for each point, in order.

Lines are only ever added at the end, so that whatever stopped a sweep leaves a beginning of the finished file. Going on
checks that beginning: the header must be the sweep's own, lines must count up; a line that was cut off is dropped.

- `.jsonl`: the header as a JSON object, then an object for each point.
- `.csv`: the header as JSON behind ``# ``, column names, then a line for each point.
"""

import csv
import errno
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import OutputError, UsageError
from kvplan.report.keys import Kind
from kvplan.sweeps.definition import Sweep
from kvplan.sweeps.points import Value, rows

_KEPT = "what is there is kept, and --resume goes on from it"
_LONGEST = 10**7  # bytes of a line


class Format(StrEnum):
    """Format of results; the suffix of the file."""

    CSV = ".csv"
    JSONL = ".jsonl"


def format_of(path: Path) -> Format:
    """Return the format of a file by its suffix; a UsageError where there is none such."""
    try:
        return Format(path.suffix)
    except ValueError:
        raise UsageError(f"-o {path}: the name must end in {', '.join(Format)}") from None


# -------------------------------------------------------------------------------------------------- lines


def head(sweep: Sweep, format: Format) -> bytes:
    """Return the beginning of a file of results."""
    header = json.dumps(sweep.header(), ensure_ascii=False)
    if format is Format.CSV:
        return f"# {header}\n{','.join(map(_cell, sweep.names))}\n".encode()
    return f"{header}\n".encode()


def lines(sweep: Sweep, format: Format, start: int, stop: int) -> list[bytes]:
    """Return the lines of some points. Floats are the shortest decimals that read back as they are."""
    computed = rows(sweep, start, stop)
    if format is Format.CSV:
        return [",".join(map(_cell, row)).encode() + b"\n" for row in computed]
    names = sweep.names
    return [
        json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False).encode() + b"\n"
        for row in computed
    ]


def _cell(value: Value) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return repr(value).lower() if isinstance(value, bool) else repr(value)
    # '#' too: where it begins comments, it does not inside quotes
    if value != value.strip() or any(c in value for c in ',"#\n\r'):
        return '"' + value.replace('"', '""') + '"'
    return value


def _number(line: bytes, names: tuple[str, ...], format: Format) -> int:
    """Return the number of a line's point; -1 where it is no line of such a file."""
    try:
        if format is Format.CSV:
            (cells,) = csv.reader([line.decode()], strict=True)
            return int(cells[0]) if len(cells) == len(names) else -1
        point = json.loads(line)
        return int(point["point"]) if tuple(point) == names else -1
    except (ValueError, TypeError, KeyError, RecursionError, csv.Error):
        return -1


# --------------------------------------------------------------------------------------------------- file


class Store:
    """A file of results that is open, and locked, for adding to; `done` points are in it.

    `dropped`: a line that was cut off has been left out.
    """

    def __init__(self, file: BinaryIO, path: Path, done: int, dropped: bool) -> None:
        self._file = file
        self.path = path
        self.done = done
        self.dropped = dropped

    def add(self, more: list[bytes]) -> None:
        """Add lines; where that fails with an OutputError, the file ends with a whole line."""
        try:
            before = self._file.seek(0, os.SEEK_END)
            try:
                _write(self._file, b"".join(more))
            except OSError:
                self._file.truncate(before)
                raise
        except OSError as error:
            why = error.strerror or str(error)
            raise OutputError(f"{self.path}: cannot be written: {why}; {_KEPT}") from None
        self.done += len(more)


def _write(file: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


@contextmanager
def opened(sweep: Sweep, path: Path, *, resume: bool) -> Iterator[Store]:
    """Open the file of a sweep's results, made anew, or gone on with.

    A UsageError without `resume` where it is there already, and with it where it is not of this sweep, or has been
    changed since; an OutputError where it cannot be read or written.
    """
    format = format_of(path)
    if path.exists() and not path.is_file():
        raise UsageError(f"-o {path}: must be a file")
    if path.exists() and not resume:
        raise UsageError(f"-o {path}: is there already; --resume goes on with it, or remove it")
    try:
        file = open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)  # noqa: SIM115
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise OutputError(f"{path}: its file system cannot lock it: {error.strerror}") from None
            raise UsageError(f"-o {path}: another sweep is writing it") from None
        begin = head(sweep, format)
        done, end = _read(path, begin, sweep, format)
        size = file.seek(0, os.SEEK_END)
        store = Store(file, path, done, dropped=end < size)
        try:
            file.truncate(end)
        except OSError as error:
            raise OutputError(f"{path}: cannot be written: {error.strerror}") from None
        if end == 0:
            store.add([begin])
            store.done = 0
        yield store
        os.fsync(file.fileno())


def _read(path: Path, begin: bytes, sweep: Sweep, format: Format) -> tuple[int, int]:
    """Return the points that a file has, and where the last of them ends; (0, 0) where it has not even begun."""
    with path.open("rb") as file:
        begun = file.read(len(begin))
        if begun != begin:
            if begin.startswith(begun):
                return 0, 0
            raise UsageError(f"--resume: {path}: {_foreign(path, sweep)}")
        count, end = 0, len(begin)
        while line := file.readline(_LONGEST):
            if not line.endswith(b"\n"):
                if file.read(1):
                    raise UsageError(f"--resume: {path}: is no result of this sweep from point {count:,} on")
                break  # the last line, cut off
            if _number(line, sweep.names, format) != count or count >= sweep.points:
                raise UsageError(
                    f"--resume: {path}: the line of point {count:,} is damaged or not of this sweep; remove "
                    "it and what follows"
                )
            count, end = count + 1, end + len(line)
        return count, end


def _foreign(path: Path, sweep: Sweep) -> str:
    """Say why a file does not belong to this sweep."""
    with path.open("rb") as file:
        theirs = _header(file.readline(_LONGEST))
    ours = sweep.header()
    if theirs is None:
        return "is not the result of a sweep; another name is wanted"
    if theirs.get("profile") != ours["profile"]:
        return "is of another profile, or the profile has changed since"
    if theirs.get("kvplan_version") != ours["kvplan_version"]:
        return f"was begun by kvplan {theirs.get('kvplan_version')}, and this is {ours['kvplan_version']}"
    different = [key for key in ours if json.dumps(theirs.get(key)) != json.dumps(ours[key])]
    if not different:
        return "has been changed since it was written"
    return f"is of another sweep: {', '.join(different)} differ"


def _header(data: bytes) -> dict[str, Any] | None:
    line = data.decode("utf-8", "replace").removeprefix("# ")
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):  # brackets by the thousand
        return None
    return header if isinstance(header, dict) and "kvplan_sweep" in header else None


def arrays(sweep: Sweep) -> dict[str, NDArray[Any]]:
    """Return all points of a sweep, by name of the column, each of shape (n_points,).

    ``point`` is whole; other numbers are floats, NaN where there is none; everything else are objects.
    """
    computed: list[list[Value]] = []
    for start in range(0, sweep.points, sweep.batch):
        computed += rows(sweep, start, min(start + sweep.batch, sweep.points))
    numbers = {axis.key for axis in sweep.axes}
    numbers |= {column.name for column in sweep.columns if column.kind is Kind.NUMBER}
    by_name: dict[str, NDArray[Any]] = {}
    for name, values in zip(sweep.names, zip(*computed, strict=True), strict=True):
        whole_or_any = np.int64 if name == "point" else object
        kept = np.empty(len(values), dtype=np.float64 if name in numbers else whole_or_any)
        kept[:] = [np.nan if value is None and name in numbers else value for value in values]
        by_name[name] = kept
    return by_name


def read(sweep: Sweep, path: Path, names: Sequence[str]) -> dict[str, list[Value]]:
    """Return some columns, by name, of a file by `kvplan.sweeps.run.sweep`, one value a point."""
    columns: dict[str, list[Value]] = {name: [] for name in names}
    for row in _rows(sweep, path, names):
        for name, value in zip(names, row, strict=True):
            columns[name].append(value)
    return columns


def _rows(sweep: Sweep, path: Path, names: Sequence[str]) -> Iterator[Sequence[Value]]:
    with path.open(encoding="utf-8", newline="") as file:
        next(file)
        if format_of(path) is Format.JSONL:
            for line in file:
                point = json.loads(line)
                yield [point[name] for name in names]
            return
        numbers = {column.name for column in sweep.columns if column.kind is Kind.NUMBER}
        for cells in csv.DictReader(file):
            yield [None if not cells[n] else float(cells[n]) if n in numbers else cells[n] for n in names]
