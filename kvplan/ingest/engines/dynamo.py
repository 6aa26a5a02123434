"""NVIDIA Dynamo's frontend: its metrics count the requests of all workers behind it."""

from kvplan.ingest.engines import EngineMetrics, KvCapacity, Snapshot, blocks_of

_BLOCKS, _SIZE = "dynamo_frontend:model_total_kv_blocks", "dynamo_frontend:model_kv_cache_block_size"
_SHARED = "rates are those of the frontend; how many workers share them it does not export"


def _capacities(snapshot: Snapshot) -> tuple[list[KvCapacity], list[str]]:
    return blocks_of(snapshot, _BLOCKS, _SIZE), [_SHARED]


METRICS = EngineMetrics(
    engine="Dynamo",
    prefix="dynamo_frontend",
    prompt="dynamo_frontend:input_sequence_tokens",
    generation="dynamo_frontend:output_sequence_tokens",
    requests=("dynamo_frontend:requests_total",),
    hits=(("dynamo_frontend:cached_tokens_sum", "dynamo_frontend:input_sequence_tokens_sum"),),
    capacities=_capacities,
    without_histograms="Dynamo's frontend exports them, its workers do not",
)
