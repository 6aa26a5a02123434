"""Published traces that are tables, by the names of their columns."""

from kvplan.ingest.reader import Beginning
from kvplan.ingest.trace.columns import Columns
from kvplan.ingest.trace.format import request_list

_AZURE = Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURST_GPT = Columns("Timestamp", "Request tokens", "Response tokens")
_MOONCAKE = Columns("timestamp", "input_length", "output_length", unit_s=1e-3)
_QWEN_BAILIAN = Columns("timestamp", "input_length", "output_length")


def _is_mooncake(first: Beginning) -> bool:
    """Whole milliseconds tell these from others with the same keys; a ``chat_id`` tells those of Qwen-Bailian."""
    if first.values is None or not first.has(*_MOONCAKE[:3]) or first.has("chat_id"):
        return False
    return isinstance(first.values["timestamp"], int)


READERS = (
    request_list("Azure LLM inference CSV", lambda first: first.has(*_AZURE[:3]), _AZURE.requests),
    request_list("BurstGPT CSV", lambda first: first.has(*_BURST_GPT[:3]), _BURST_GPT.requests),
    request_list("Mooncake JSON lines", _is_mooncake, _MOONCAKE.requests),
    request_list(
        "Qwen-Bailian JSON lines",
        lambda first: first.in_json and first.has("chat_id", *_QWEN_BAILIAN[:3]),
        _QWEN_BAILIAN.requests,
    ),
)
