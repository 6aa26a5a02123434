"""Azure LLM inference traces: CSV with TIMESTAMP, ContextTokens, GeneratedTokens."""

from kvplan.ingest.trace.columns import Columns
from kvplan.ingest.trace.format import RequestFormat

_COLUMNS = Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens")

FORMAT = RequestFormat("Azure LLM inference CSV", lambda first: first.has(*_COLUMNS[:3]), _COLUMNS.requests)
