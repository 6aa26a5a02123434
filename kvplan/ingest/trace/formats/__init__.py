"""Formats of traces: rows of the table in `kvplan.ingest.trace.columns`, or a module each with a record ``FORMAT``."""

from kvplan.ingest.reader import collected
from kvplan.ingest.trace.columns import TABLES
from kvplan.ingest.trace.format import DescriptionFormat, RequestFormat

FORMATS: tuple[RequestFormat | DescriptionFormat, ...] = (*TABLES, *collected(__name__, __path__, "FORMAT"))
