"""TensorRT-LLM's ``/metrics`` in JSON, with ``enable_iter_perf_stats``: an iteration each, in a list or in lines."""

from kvplan.ingest.cells import Record
from kvplan.ingest.results import document
from kvplan.ingest.timing.collector import Collector
from kvplan.units import format_tokens

_BATCH, _KV = "inflightBatchingStats", "kvCacheStats"


def _recognises(record: Record) -> bool:
    return record.at("iterLatencyMS") is not None and any(
        isinstance(record.at(name), dict) for name in (_BATCH, _KV)
    )


def _add(record: Record, collector: Collector) -> None:
    if not all(isinstance(record.at(name), dict) for name in (_BATCH, _KV)):
        collector.skip(f"states no {_BATCH} or no {_KV}", record.line)
        return
    if record.optional("specDecodingStats.numDraftTokens"):
        collector.skip("an iteration with drafts, which emits several tokens", record.line)
        return
    block = record.number(f"{_KV}.tokensPerBlock")
    if total := record.optional(f"{_KV}.maxNumBlocks"):
        stated = f"{format_tokens(total)} blocks of {format_tokens(block)} tokens"
        collector.note(f"the KV cache has {stated}; --capacity {total * block:.0f} writes that into [gpu]")
    requests = record.optional(f"{_BATCH}.numScheduledRequests")
    if requests is None:
        requests = sum(record.number(f"{_BATCH}.{name}") for name in ("numContextRequests", "numGenRequests"))
    kv_tokens = record.number(f"{_KV}.usedNumBlocks") * block
    prefill, seconds = record.number(f"{_BATCH}.numCtxTokens"), record.number("iterLatencyMS") * 1e-3
    collector.add((kv_tokens, prefill, requests, seconds), record.line)


READERS = (document("TensorRT-LLM iterations", _recognises, _add),)
