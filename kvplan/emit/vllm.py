"""vLLM."""

from collections.abc import Iterator

from kvplan.emit.base import Engine, Flag, Queue, parallel_flags
from kvplan.model import Parallelism, Replica
from kvplan.model.kv_layout import KvLayout
from kvplan.model.replica import Offload


def drafts(tokens: int) -> Flag:
    """Set the number of drafts; the profile does not know the model that makes them."""
    return Flag(
        "--speculative-config",
        f"'{{\"num_speculative_tokens\": {tokens}}}'",
        "the profile's; what makes the drafts, its method and model, belongs in it too",
    )


def parallel(ranks: Parallelism) -> Iterator[Flag]:
    """Set how GPUs share the model; experts are on all of them, or shared out as the rest is."""
    numbers = {
        "--tensor-parallel-size": ranks.tensor,
        "--data-parallel-size": ranks.data,
        "--pipeline-parallel-size": ranks.pipeline,
        "--decode-context-parallel-size": ranks.context,
    }
    yield from parallel_flags(numbers)
    if ranks.expert > 1:
        why = (
            f"the profile's expert_parallel, {ranks.expert}; vLLM spreads experts over all {ranks.group} GPUs"
        )
        yield Flag("--enable-expert-parallel", None, why)


def layers(layout: KvLayout) -> Iterator[Flag]:
    """Have every layer hold every token, or keep a state at the end of every block."""
    if not layout.hybrid:
        yield Flag("--disable-hybrid-kv-cache-manager", None, "the profile's hybrid_kv_cache = false")
    if any(one.checkpoints for one in layout.layers):
        yield Flag("--mamba-cache-mode", "all", "the profile's checkpoints = true")


def host_tier(tier: Offload, replica: Replica) -> Iterator[Flag]:
    """Set the bytes of the host, of all ranks together."""
    extra = f'{{"cpu_bytes_to_use": {tier.memory_bytes}, "offload_prompt_only": false}}'
    yield Flag(
        "--kv-transfer-config",
        f'\'{{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {extra}}}\'',
        "the profile's host tier, bytes of all ranks together; generated tokens are kept too, which the connector "
        f"does not do unless told. Shorter, without them: --kv-offloading-size {tier.memory_bytes / 2**30:.4g} (GiB)",
    )


ENGINE = Engine(
    name="vllm",
    title="vLLM",
    starts="vllm serve {}",
    spellings={
        "max_num_seqs": "--max-num-seqs",
        "max_num_batched_tokens": "--max-num-batched-tokens",
        "max_model_len": "--max-model-len",
        "watermark": "--watermark",
        "prefill_interval": "--prefill-schedule-interval",
        "weights": "--quantization",
        "kv_dtype": "--kv-cache-dtype",
        "utilization": "--gpu-memory-utilization",
        "loras": "--max-loras",
        "lora_rank": "--max-lora-rank",
    },
    layers=layers,
    cache_off=Flag("--no-enable-prefix-caching", None, "prefix_caching = false in the profile"),
    cache_on=Flag("--enable-prefix-caching", None, "prefix_caching = true in the profile"),
    first_chunk=Flag("--no-scheduler-reserve-full-isl", None, 'admission = "first-chunk" in the profile'),
    by_priority=(Flag("--scheduling-policy", "priority", "the profile's classes have priorities"),),
    parallel=parallel,
    queue=Queue("--max-num-queued-reqs", counts_running=True),
    drafts=drafts,
    host_tier=host_tier,
)
