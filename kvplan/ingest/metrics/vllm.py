"""vLLM's metrics. Its KV capacity is in the labels of ``vllm:cache_config_info``."""

from kvplan.ingest.metrics.snapshot import EngineMetrics, KvCapacity, Snapshot, whole_label
from kvplan.units import format_tokens

_CAPACITY = "vllm:cache_config_info"
_OFF = 0.02  # by which two figures of one thing may differ without a word


def _capacities(snapshot: Snapshot) -> tuple[list[KvCapacity], list[str]]:
    found, notes = [], []
    for labels, _ in snapshot.samples.get(_CAPACITY, ()):
        block, blocks = whole_label(labels.get("block_size")), whole_label(labels.get("num_gpu_blocks"))
        product = block * blocks if block and blocks else None
        # Layers that hold less than the whole context share blocks; then only the engine knows what they make.
        stated = whole_label(labels.get("kv_cache_size_tokens"))
        if stated and product and abs(stated / product - 1) > _OFF:
            notes.append(
                f"the engine states {format_tokens(stated)} tokens of KV, its {blocks:,} blocks of {block} make "
                f"{format_tokens(product)}; what it states counts"
            )
        if tokens := stated or product:
            found.append(KvCapacity(tokens, block))
    return found, notes


METRICS = EngineMetrics(
    engine="vLLM",
    prefix="vllm",
    prompt="vllm:request_prompt_tokens",
    generation="vllm:request_generation_tokens",
    requests=("vllm:request_success_total",),
    preemptions=("vllm:num_preemptions_total",),
    hits=(
        ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
        ("vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total"),  # before 0.9
    ),
    hit_rates=("vllm:gpu_prefix_cache_hit_rate",),  # V0; -1 without a cache
    drafts=("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_accepted_tokens_per_pos_total"),
    capacity=_CAPACITY,
    capacities=_capacities,
    without_histograms="vLLM exports them unless it runs with --disable-log-stats",
)
