"""SGLang's metrics. Its KV capacity is ``sglang:max_total_num_tokens``, its blocks are ``sglang:page_size``."""

import math

from kvplan.ingest.metrics.snapshot import EngineMetrics, KvCapacity, Snapshot, whole_label

_CAPACITY = "sglang:max_total_num_tokens"


def _capacities(snapshot: Snapshot) -> tuple[list[KvCapacity], list[str]]:
    page = whole_label(f"{max(snapshot.series('sglang:page_size').values(), default=0):.0f}")
    stated = snapshot.samples.get(_CAPACITY, ())
    return [KvCapacity(int(value), page) for _, value in stated if 1 <= value < math.inf], []


METRICS = EngineMetrics(
    engine="SGLang",
    prefix="sglang",
    prompt="sglang:prompt_tokens_histogram",
    generation="sglang:generation_tokens_histogram",
    requests=("sglang:num_requests_total",),
    preemptions=("sglang:num_retracted_requests_total", "sglang:num_retracted_reqs_total"),
    hits=(("sglang:cached_tokens_total", "sglang:prompt_tokens_total"),),
    hit_rates=("sglang:cache_hit_rate",),
    drafts=None,
    capacity=_CAPACITY,
    capacities=_capacities,
    without_histograms=(
        "SGLang exports them with --enable-metrics and, in older versions, --collect-tokens-histogram"
    ),
)
