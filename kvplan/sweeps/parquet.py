"""A finished sweep as Parquet, by pyarrow; its header is in the metadata of the schema."""

import json
import os
from itertools import islice
from pathlib import Path
from typing import Any

from kvplan.errors import OutputError, UsageError
from kvplan.report.keys import Kind
from kvplan.sweeps.definition import Sweep

_KEY = b"kvplan_sweep"
_ROWS = 65_536  # in memory at once


def require() -> None:
    """Refuse where pyarrow is not installed.

    Raises
    ------
    UsageError
    """
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise UsageError("a .parquet file needs the extra parquet: pip install '.[parquet]' in the checkout")


def is_whole(sweep: Sweep, path: Path) -> bool:
    """Whether a file is there and holds all of a sweep.

    Raises
    ------
    UsageError
        It is something else.
    """
    import pyarrow
    from pyarrow import parquet

    if not path.exists():
        return False
    try:
        metadata = parquet.read_schema(path).metadata or {}
    except (OSError, pyarrow.ArrowException):
        metadata = {}
    if metadata.get(_KEY) != _header(sweep):
        raise UsageError(f"--resume: {path}: is not the result of this sweep; another name is wanted")
    return True


def convert(sweep: Sweep, lines: Path, path: Path) -> None:
    """Make the Parquet file from lines of JSON, and remove those.

    Raises
    ------
    OutputError
        It cannot be written; the lines are kept.
    """
    import pyarrow
    from pyarrow import parquet

    schema = _schema(sweep)
    names = set(schema.names)
    temporary = path.with_name(f".{path.name}.new")
    try:
        with lines.open(encoding="utf-8") as file, parquet.ParquetWriter(temporary, schema) as writer:
            next(file)
            while chunk := [json.loads(line) for line in islice(file, _ROWS)]:
                assert names == set(chunk[0])
                writer.write_table(pyarrow.Table.from_pylist(chunk, schema))
        os.replace(temporary, path)
        lines.unlink()
    except OSError as error:
        temporary.unlink(missing_ok=True)
        why = error.strerror or str(error)
        raise OutputError(
            f"{path}: cannot be written: {why}; {lines} has the results, --resume tries again"
        ) from None


def _schema(sweep: Sweep) -> Any:
    import pyarrow

    kinds = {Kind.NUMBER: pyarrow.float64(), Kind.TEXT: pyarrow.string(), Kind.TRUTH: pyarrow.bool_()}
    fields = [
        ("point", pyarrow.int64()),
        *((axis.key, pyarrow.int64() if axis.whole else pyarrow.float64()) for axis in sweep.axes),
        *((column.name, kinds[column.kind]) for column in sweep.columns),
        ("error", pyarrow.string()),
    ]
    return pyarrow.schema(fields, metadata={_KEY: _header(sweep)})


def _header(sweep: Sweep) -> bytes:
    return json.dumps(sweep.header(), ensure_ascii=False).encode()
