"""Results of a sweep in memory: all of them as arrays, or some columns read back from a file."""

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.report.keys import Kind
from kvplan.sweeps.definition import Sweep
from kvplan.sweeps.points import Value, rows
from kvplan.sweeps.store import Format, format_of


def arrays(sweep: Sweep) -> dict[str, NDArray[Any]]:
    """Return all points of a sweep, by name of the column, each of shape (n_points,).

    ``point`` is whole; other numbers are floats, NaN where there is none; everything else are objects.
    """
    found: list[list[Value]] = []
    for start in range(0, sweep.points, sweep.batch):
        found += rows(sweep, start, min(start + sweep.batch, sweep.points))
    numbers = {axis.key for axis in sweep.axes}
    numbers |= {column.name for column in sweep.columns if column.kind is Kind.NUMBER}
    by_name: dict[str, NDArray[Any]] = {}
    for name, values in zip(sweep.names, zip(*found, strict=True), strict=True):
        whole_or_any = np.int64 if name == "point" else object
        kept = np.empty(len(values), dtype=np.float64 if name in numbers else whole_or_any)
        kept[:] = [np.nan if value is None and name in numbers else value for value in values]
        by_name[name] = kept
    return by_name


def read(sweep: Sweep, path: Path, names: Sequence[str]) -> dict[str, list[Value]]:
    """Return some columns, by name, of what `kvplan.sweeps.run.sweep` has written, one value a point."""
    found: dict[str, list[Value]] = {name: [] for name in names}
    for row in _rows(sweep, path, names):
        for name, value in zip(names, row, strict=True):
            found[name].append(value)
    return found


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
