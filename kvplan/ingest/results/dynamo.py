"""NVIDIA Dynamo's and vLLM's ``ForwardPassMetrics``, version 1, as JSON lines: an iteration each.

Written by Dynamo's ``--fpm-trace`` (the envelope dynamo.fpm.trace.v1) or by whoever decodes the stream. Prefill counts
tokens that are computed, and apart from them those that are only read. The wall time is 0 of an idle engine.
"""

from kvplan.ingest.cells import Record
from kvplan.ingest.results import document
from kvplan.ingest.timing.collector import Collector

_VERSION = 1
_ENVELOPES = ("event.fpm.", "fpm.", "")
_ON_GPU = "execute_model_cuda"
_NOTE = "wall times are those of the GPU alone, without what the engine does between iterations"


def _within(record: Record) -> str | None:
    return next((at for at in _ENVELOPES if isinstance(record.at(f"{at}scheduled_requests"), dict)), None)


def _recognises(record: Record) -> bool:
    at = _within(record)
    return at is not None and record.at(f"{at}wall_time") is not None


def _add(record: Record, collector: Collector) -> None:
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


READERS = (document("forward pass metrics", _recognises, _add),)
