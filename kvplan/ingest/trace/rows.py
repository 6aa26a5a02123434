"""Recorded requests, block by block: when each arrived, how long its prompt was, how much it generated.

Formats are told apart by content, never by name; `kvplan.ingest.trace.formats` has a module for each. What is none of
them is read as a table in CSV or JSON lines with a column each for time, input and output under a usual name.

Any of them may be compressed with gzip or zstd, begin with a byte order mark, mix line
ends, or lack the last one. Rows come in blocks, so that a file of any length is read in bounded memory.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.reader import Beginning
from kvplan.ingest.text_file import Lines, beginning, lines_of
from kvplan.ingest.trace.columns import USUAL
from kvplan.ingest.trace.format import (
    BadRowError,
    Description,
    Extras,
    Request,
)
from kvplan.ingest.trace.formats import DESCRIPTIONS, READERS
from kvplan.model import FloatArray, IntArray

BLOCK_ROWS = 8192
_BEGINNING = 4096  # characters by which a description is told


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

    The format is known with the first block. `cut_off` is 1 if the file ends within its last row, which is left out.
    A row that cannot be read is refused with its line.

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
        self.format = ""
        self.sha256 = ""
        self.cut_off = 0
        self.wrapping_notes: tuple[str, ...] = ()
        self.extras = Extras()

    def __iter__(self) -> Iterator[Rows]:
        with lines_of(self.path) as lines:
            try:
                yield from self._blocks(lines)
            except csv.Error as error:
                message = f"not CSV: {error}; is a quote open?"
                raise ProfileError(lines.source, message, line=lines.number) from None
        self.sha256 = lines.sha256
        self.wrapping_notes = lines.notes

    def _blocks(self, lines: Lines) -> Iterator[Rows]:
        """Rows as arrays. A row that cannot be read is the end of a file that was cut off, or an error."""
        first = Beginning.of_lines(lines)
        reader = next(reader for reader in (*READERS, *USUAL) if reader.recognises(first))
        self.format = reader.name
        block: list[Request] = []
        any_before = False
        try:
            for request in reader.read(first, lines, self.extras):
                block.append(request)
                any_before = True
                if len(block) == BLOCK_ROWS:
                    yield _arrays(block)
                    block = []
        except BadRowError as error:
            if not (any_before and lines.cut_off):
                raise ProfileError(lines.source, str(error), key=error.key, line=lines.number) from None
            self.cut_off = 1
        if block:
            yield _arrays(block)


def read_description(path: Path) -> tuple[str, Description] | None:
    """What a file describes that lists no requests, after the name of its format; None where it lists them."""
    if not path.is_file():  # a pipe can be read only once
        return None
    try:
        start = beginning(path, _BEGINNING)
    except UsageError:
        return None  # whoever reads it next says why
    for reader in DESCRIPTIONS:
        if reader.recognises(Beginning("", False, (), None, text=start)):
            return reader.name, reader.read(path, start)
    return None


def _arrays(block: list[Request]) -> Rows:
    times, inputs, outputs = zip(*block, strict=True)
    return Rows(
        np.array(times, dtype=np.float64), np.array(inputs, dtype=np.int64), np.array(outputs, dtype=np.int64)
    )
