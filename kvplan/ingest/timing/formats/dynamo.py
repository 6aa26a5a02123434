"""NVIDIA Dynamo's and vLLM's ``ForwardPassMetrics``, version 1, as JSON lines: an iteration each.

Written by Dynamo's ``--fpm-trace`` (the envelope dynamo.fpm.trace.v1) or by whoever decodes the stream. Prefill counts
tokens that are computed, and apart from them those that are only read. The wall time is 0 of an idle engine.
"""

from kvplan.ingest.timing.collector import Collector
from kvplan.ingest.timing.format import Document, DocumentFormat

_VERSION = 1
_ENVELOPES = ("event.fpm.", "fpm.", "")
_ON_GPU = "execute_model_cuda"
_NOTE = "wall times are those of the GPU alone, without what the engine does between iterations"


def _within(document: Document) -> str | None:
    return next((at for at in _ENVELOPES if isinstance(document.at(f"{at}scheduled_requests"), dict)), None)


def _recognises(document: Document) -> bool:
    at = _within(document)
    return at is not None and document.at(f"{at}wall_time") is not None


def _add(document: Document, collector: Collector) -> None:
    at = _within(document)
    if at is None:
        raise document.error("scheduled_requests", "missing; must be an object")
    version = document.optional(f"{at}version")
    if version is not None and version != _VERSION:
        raise document.error(f"{at}version", f"{version:g}; must be {_VERSION}")
    if document.text(f"{at}timing_scope") == _ON_GPU:
        collector.note(_NOTE)
    scheduled = f"{at}scheduled_requests."
    computed, read, decoded, prefills, decodes = (
        document.optional(f"{scheduled}{name}") or 0.0
        for name in (
            "sum_prefill_tokens",
            "sum_prefill_kv_tokens",
            "sum_decode_kv_tokens",
            "num_prefill_requests",
            "num_decode_requests",
        )
    )
    sample = computed + read + decoded, computed, prefills + decodes, document.number(f"{at}wall_time")
    collector.add(FORMAT.name, sample, document.line)


FORMAT = DocumentFormat("forward pass metrics", _recognises, _add)
