"""Reading back what a finished sweep has written."""

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvplan.gate import Kind
from kvplan.sweeps.definition import Sweep
from kvplan.sweeps.points import Value
from kvplan.sweeps.store import Format, format_of


def read(sweep: Sweep, path: Path, names: Sequence[str]) -> dict[str, list[Value]]:
    """Some columns of a finished sweep, one value a point.

    Parameters
    ----------
    sweep : Sweep
    path : Path
        That `kvplan.sweeps.run.sweep` has written.
    names : sequence of str
        Of columns.
    """
    found: dict[str, list[Value]] = {name: [] for name in names}
    for row in _rows(sweep, path, names):
        for name, value in zip(names, row, strict=True):
            found[name].append(value)
    return found


def _rows(sweep: Sweep, path: Path, names: Sequence[str]) -> Iterator[Sequence[Value]]:
    format = format_of(path)
    if format is Format.PARQUET:
        from pyarrow import parquet

        table = parquet.read_table(path, columns=list(names))
        yield from zip(*(table.column(name).to_pylist() for name in names), strict=True)
        return
    with path.open(encoding="utf-8", newline="") as file:
        next(file)
        if format is Format.JSONL:
            for line in file:
                point = json.loads(line)
                yield [point[name] for name in names]
            return
        numbers = {column.name for column in sweep.columns if column.kind is Kind.NUMBER}
        for cells in csv.DictReader(file):
            yield [None if not cells[n] else float(cells[n]) if n in numbers else cells[n] for n in names]
