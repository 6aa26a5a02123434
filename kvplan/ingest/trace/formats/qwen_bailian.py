"""Qwen-Bailian traces: JSON lines as Mooncake's, with chat_id, and the timestamp in seconds."""

from kvplan.ingest.trace.columns import Columns
from kvplan.ingest.trace.format import RequestFormat

_COLUMNS = Columns("timestamp", "input_length", "output_length")

FORMAT = RequestFormat(
    "Qwen-Bailian JSON lines",
    lambda first: first.in_json and first.has("chat_id", *_COLUMNS[:3]),
    _COLUMNS.requests,
)
