"""BurstGPT traces: CSV with Timestamp in seconds, Request tokens, Response tokens."""

from kvplan.ingest.trace.columns import Columns
from kvplan.ingest.trace.format import RequestFormat

_COLUMNS = Columns("Timestamp", "Request tokens", "Response tokens")

FORMAT = RequestFormat("BurstGPT CSV", lambda first: first.has(*_COLUMNS[:3]), _COLUMNS.requests)
