"""A recorded trace as requests to simulate: its own arrivals and lengths."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvplan.errors import UsageError
from kvplan.ingest.trace.prefixes import block_size
from kvplan.ingest.trace.rows import TraceFile
from kvplan.model import FloatArray, IntArray
from kvplan.simulation.recorded import prefixes_of_hashes
from kvplan.simulation.requests import Requests


@dataclass(frozen=True)
class Trace:
    """What a trace holds: requests by time of arrival, from the first on, all of class 0; and what was left out."""

    requests: Requests
    format: str
    notes: tuple[str, ...]


def read_trace(path: Path) -> Trace:
    """Read a trace of any format of `kvplan.ingest.trace.rows`. Times count to the microsecond.

    Where the blocks of its prompts have hashes, they say which begin alike.

    Rows that generate nothing are left out and counted; an empty prompt is no reason, as in a profile.

    Raises
    ------
    UsageError
        With line and column of the first value that cannot be used; or there are no requests, or no arrival times.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "trace.csv")
    ...     rows = ("2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,0")
    ...     _ = path.write_text("\\n".join(("TIMESTAMP,ContextTokens,GeneratedTokens", *rows, "")))
    ...     trace = read_trace(path)
    >>> trace.requests.input_tokens.tolist(), trace.requests.decode_tokens.tolist(), trace.notes
    ([374], [44], ('1 of 2 rows generates nothing and is left out',))
    """
    file = TraceFile(path)
    blocks = list(file)
    if file.extras.duration_s is not None:
        raise UsageError(f"{path}: {file.format} without arrival times, which a replay needs")
    rows = sum(block.time_s.size for block in blocks)
    if not any(block.output_tokens.any() for block in blocks):
        raise UsageError(f"{path}: no request that generates tokens; {rows:,} rows")
    served = [block.output_tokens > 0 for block in blocks]
    arrival = np.concatenate([block.time_s[some] for block, some in zip(blocks, served, strict=True)])
    inputs = np.concatenate([block.input_tokens[some] for block, some in zip(blocks, served, strict=True)])
    decode = np.concatenate([block.output_tokens[some] for block, some in zip(blocks, served, strict=True)])
    order = np.argsort(arrival, kind="stable")
    hashes = _hashes(file, inputs)
    requests = Requests(
        arrival_s=np.round(arrival[order] - arrival[order[0]], 6),
        input_tokens=inputs[order],
        decode_tokens=decode[order],
        class_index=np.zeros(order.size, dtype=np.int64),
        prefixes=hashes
        and prefixes_of_hashes([hashes.of[i] for i in order], inputs[order], hashes.block_tokens),
    )
    return Trace(requests, file.format, tuple(_notes(rows, arrival, file.cut_off)))


class _Hashes(NamedTuple):
    of: list[list[int]]
    block_tokens: int


def _hashes(file: TraceFile, inputs: IntArray) -> _Hashes | None:
    """Of the blocks of each prompt, in the order of the file; None where it has none, or more than are remembered."""
    known = file.extras.identities
    if not known.hashes or known.full:
        return None
    ends = np.cumsum(known.hash_count).tolist()
    block = block_size(np.array(known.input_tokens), np.array(known.hash_count))
    if block is None:
        return None
    remembered = (known.hashes[begin:end].tolist() for begin, end in zip([0, *ends], ends, strict=False))
    return _Hashes([next(remembered) if tokens else [] for tokens in inputs.tolist()], block)


def _notes(rows: int, arrival: FloatArray, cut_off: int) -> Iterator[str]:
    empty = rows - arrival.size
    if empty:
        ending = "generates nothing and is left out" if empty == 1 else "generate nothing and are left out"
        yield f"{empty:,} of {rows:,} rows {ending}"
    if unsorted := int((np.diff(arrival) < 0).sum()):
        yield f"{unsorted:,} arrivals are earlier than the one before them in the file; put in order"
    if cut_off:
        yield "the file ends within its last row, which is left out"
