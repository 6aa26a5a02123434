"""Results of load generators and tables of iterations; each module has `READERS`, found here.

`read(record, collector)` of a reader adds what stands in a row of a table or in a JSON object.
"""

from collections.abc import Callable, Sequence
from itertools import chain

from kvplan.ingest.cells import Names, Record
from kvplan.ingest.reader import Beginning, FileKind, Reader, collected
from kvplan.ingest.timing.collector import Collector

Adds = Callable[[Record, Collector], None]


def table(name: str, columns: Sequence[Names], read: Adds, kind: FileKind = FileKind.TIMING) -> Reader[Adds]:
    """Make the reader of a table, in CSV or JSON lines, that has each of these columns."""

    def recognises(start: Beginning) -> bool:
        plain = start.plain_names
        return all(plain & column.keys() for column in columns)

    return Reader(name, kind, recognises, read, len(columns))


def document(name: str, recognises: Callable[[Record], bool], read: Adds) -> Reader[Adds]:
    """Make the reader of JSON objects of a certain form."""
    return Reader(
        name,
        FileKind.TIMING,
        lambda start: start.in_json and recognises(Record("", 0, start.values or {})),
        read,
    )


READERS: tuple[Reader[Adds], ...] = tuple(chain(*collected(__name__, __path__, "READERS")))


def reader_of(start: Beginning) -> Reader[Adds] | None:
    """Choose the reader of a file that begins like this."""
    fitting = (reader for reader in READERS if reader.recognises(start))
    return max(fitting, key=lambda reader: reader.columns, default=None)
