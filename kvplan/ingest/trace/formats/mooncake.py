"""Mooncake traces: JSON lines with timestamp in whole milliseconds, input_length, output_length, hash_ids."""

from kvplan.ingest.reader import Beginning
from kvplan.ingest.trace.columns import Columns
from kvplan.ingest.trace.format import RequestFormat

_COLUMNS = Columns("timestamp", "input_length", "output_length", unit_s=1e-3)


def _recognises(first: Beginning) -> bool:
    """Whole milliseconds tell these from others with the same keys; a ``chat_id`` tells those of Qwen-Bailian."""
    if first.values is None or not first.has(*_COLUMNS[:3]) or first.has("chat_id"):
        return False
    return isinstance(first.values["timestamp"], int)


FORMAT = RequestFormat("Mooncake JSON lines", _recognises, _COLUMNS.requests)
