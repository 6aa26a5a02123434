"""Iterations in JSON, in a list or in lines.

NVIDIA Dynamo's and vLLM's ``ForwardPassMetrics``, version 1: written by Dynamo's ``--fpm-trace`` (the envelope
dynamo.fpm.trace.v1) or by whoever decodes the stream. Prefill counts tokens that are computed, and apart from them
those that are only read. The wall time is 0 of an idle engine.

TensorRT-LLM's ``/metrics``, with ``enable_iter_perf_stats``.
"""

from kvplan.ingest.cells import Record
from kvplan.ingest.results import document
from kvplan.ingest.timing.collector import Collector
from kvplan.units import format_tokens

_VERSION = 1
_ENVELOPES = ("event.fpm.", "fpm.", "")
_ON_GPU = "execute_model_cuda"
_NOTE = "wall times are those of the GPU alone, without what the engine does between iterations"


def _within(record: Record) -> str | None:
    return next((at for at in _ENVELOPES if isinstance(record.at(f"{at}scheduled_requests"), dict)), None)


def _is_forward_pass(record: Record) -> bool:
    at = _within(record)
    return at is not None and record.at(f"{at}wall_time") is not None


def _add_forward_pass(record: Record, collector: Collector) -> None:
    at = _within(record)
    if at is None:
        raise record.error("scheduled_requests", "missing; must be an object")
    version = record.optional(f"{at}version")
    if version is not None and version != _VERSION:
        raise record.error(f"{at}version", f"{version:g}; must be {_VERSION}")
    if record.text(f"{at}timing_scope") == _ON_GPU:
        collector.note(_NOTE)

    def scheduled(name: str) -> float:
        return record.optional(f"{at}scheduled_requests.{name}") or 0.0

    computed = scheduled("sum_prefill_tokens")
    kv_tokens = computed + scheduled("sum_prefill_kv_tokens") + scheduled("sum_decode_kv_tokens")
    sequences = scheduled("num_prefill_requests") + scheduled("num_decode_requests")
    collector.add((kv_tokens, computed, sequences, record.number(f"{at}wall_time")), record.line)


_BATCH, _KV = "inflightBatchingStats", "kvCacheStats"


def _is_of_tensorrt(record: Record) -> bool:
    return record.at("iterLatencyMS") is not None and any(
        isinstance(record.at(name), dict) for name in (_BATCH, _KV)
    )


def _add_stats(record: Record, collector: Collector) -> None:
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


READERS = (
    document("forward pass metrics", _is_forward_pass, _add_forward_pass),
    document("TensorRT-LLM iterations", _is_of_tensorrt, _add_stats),
)
