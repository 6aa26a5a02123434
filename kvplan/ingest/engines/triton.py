"""Triton's backend of TensorRT-LLM: ``nv_trt_llm_kv_cache_block_metrics``, a number for each type."""

from dataclasses import replace

from kvplan.ingest.engines import EngineMetrics, KvCapacity, Snapshot, blocks_of

_BLOCKS = "nv_trt_llm:kv_cache_block_metrics"
_TYPE = "kv_cache_block_type"


def _capacities(snapshot: Snapshot) -> tuple[list[KvCapacity], list[str]]:
    by_type = {
        kind: [sample for sample in snapshot.samples.get(_BLOCKS, ()) if sample[0].get(_TYPE) == kind]
        for kind in ("max", "tokens_per")
    }
    return blocks_of(replace(snapshot, samples=by_type), "max", "tokens_per"), []


METRICS = EngineMetrics(
    engine="Triton",
    prefix="nv_trt_llm",
    prompt="nv_trt_llm:prompt_tokens",
    generation="nv_trt_llm:generation_tokens",
    capacity=_BLOCKS,
    capacities=_capacities,
    without_histograms="Triton exports none",
)
