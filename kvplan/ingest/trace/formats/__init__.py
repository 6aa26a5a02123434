"""Formats of traces: what a module here calls `READERS` or `DESCRIPTIONS` is read, nothing else need know of it."""

from itertools import chain

from kvplan.ingest.reader import Reader, collected
from kvplan.ingest.trace.format import Describes, Lists

READERS: tuple[Reader[Lists], ...] = tuple(chain(*collected(__name__, __path__, "READERS")))
DESCRIPTIONS: tuple[Reader[Describes], ...] = tuple(chain(*collected(__name__, __path__, "DESCRIPTIONS")))
