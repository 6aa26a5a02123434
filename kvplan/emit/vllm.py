"""vLLM."""

from collections.abc import Iterator

from kvplan.emit.base import Engine, Flag, Queue, Spelling, parallel_flags
from kvplan.model import Parallelism, Replica
from kvplan.model.replica import Offload


def drafts(tokens: int) -> Flag:
    """Set the number of drafts; which model makes them the profile does not know."""
    return Flag(
        "--speculative-config",
        f"'{{\"num_speculative_tokens\": {tokens}}}'",
        "the profile's; what makes the drafts, its method and model, belongs in it too",
        "vLLM 0.8.2 and later.",
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


def host_tier(tier: Offload, replica: Replica) -> Iterator[Flag]:
    """Set the bytes of the host, of all ranks together."""
    size = f"{tier.memory_bytes / 2**30:.4g}"
    extra = f'{{"cpu_bytes_to_use": {tier.memory_bytes}, "offload_prompt_only": false}}'
    yield Flag(
        "--kv-transfer-config",
        f'\'{{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {extra}}}\'',
        "the profile's host tier, bytes of all ranks together; generated tokens are kept too, which the connector "
        "does not do unless told",
        f"As vLLM documents its OffloadingConnector in 2026. Shorter, without generated tokens: --kv-offloading-size "
        f"{size} (GiB, of all ranks; before pull request 32421 of January 2026 with --kv-offloading-backend native).",
    )


ENGINE = Engine(
    name="vllm",
    title="vLLM",
    spellings={
        "max_num_seqs": Spelling(
            "--max-num-seqs",
            "Sizes buffers and CUDA graphs too; --max-num-active-seqs of vLLM 0.31.0 and later does not.",
        ),
        "max_num_batched_tokens": Spelling(
            "--max-num-batched-tokens", "vLLM refuses less than max_num_seqs."
        ),
        "max_model_len": Spelling("--max-model-len"),
        "watermark": Spelling(
            "--watermark",
            "Merged into vLLM in June 2026 (pull request 44594), off by default: check your version.",
        ),
    },
    cache_off=Flag("--no-enable-prefix-caching", None, "prefix_caching = false in the profile", "vLLM V1."),
    first_chunk=Flag(
        "--no-scheduler-reserve-full-isl",
        None,
        'admission = "first-chunk" in the profile',
        "Since pull request 37307 of March 2026; before it there is no other admission.",
    ),
    parallel=parallel,
    queue=Queue(
        "--max-num-queued-reqs",
        counts_running=True,
        since="In vLLM 0.29.0 (pull request 49445, July 2026); beyond it clients get HTTP 503.",
    ),
    drafts=drafts,
    host_tier=host_tier,
)
