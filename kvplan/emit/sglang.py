"""SGLang."""

from collections.abc import Iterator

from kvplan.emit.base import Engine, Flag, Queue, parallel_flags
from kvplan.model import Parallelism, Replica
from kvplan.model.replica import Offload
from kvplan.simulation.policies.sglang import RECEIVE_EVERY_STEPS
from kvplan.units import format_tokens


def parallel(ranks: Parallelism) -> Iterator[Flag]:
    """Set how GPUs share the model: all of a stage in tensor parallelism, which ranks of attention split."""
    yield from parallel_flags({"--tp-size": ranks.group, "--dp-size": ranks.data})
    if ranks.data > 1:
        yield Flag(
            "--enable-dp-attention", None, "ranks of attention, whose experts are shared; without it, copies"
        )
    yield from parallel_flags(
        {"--ep-size": ranks.expert, "--pp-size": ranks.pipeline, "--dcp-size": ranks.context}
    )


def host_tier(tier: Offload, replica: Replica) -> Iterator[Flag]:
    """Set a pool on the host, which must be larger than the GPU's; nothing where it is not."""
    ratio = tier.memory_tokens / replica.memory_tokens
    if ratio <= 1:
        return
    yield Flag("--enable-hierarchical-cache", None, "the profile's host tier")
    yield Flag(
        "--hicache-ratio",
        f"{ratio:.4g}",
        f"{format_tokens(tier.memory_tokens)} tokens on the host for {format_tokens(replica.memory_tokens)} on the "
        "GPU; it must be larger than 1. Or --hicache-size "
        f"{tier.memory_bytes // replica.gpus // 10**9}, gigabytes of each rank",
    )
    policy = "write_through" if tier.inclusive else "write_back"
    when = "as they are computed" if tier.inclusive else "when the GPU throws them away"
    yield Flag("--hicache-write-policy", policy, f"blocks are written to the host {when}")


ENGINE = Engine(
    name="sglang",
    title="SGLang",
    starts="python -m sglang.launch_server --model-path {}",
    spellings={
        "max_running_requests": "--max-running-requests",
        "max_num_batched_tokens": "--chunked-prefill-size",
        "max_model_len": "--context-length",
        RECEIVE_EVERY_STEPS: "--scheduler-recv-interval",
        "prefill_interval": "--prefill-decode-interval",
        "weights": "--quantization",
        "kv_dtype": "--kv-cache-dtype",
        "utilization": "--mem-fraction-static",
    },
    cache_off=Flag("--disable-radix-cache", None, "prefix_caching = false in the profile"),
    by_priority=(
        Flag("--enable-priority-scheduling", None, "the profile's classes have priorities"),
        Flag("--schedule-low-priority-values-first", None, "as vLLM does; without it the higher goes first"),
    ),
    priority_step=20,  # beyond the 10 from which it preempts (--priority-scheduling-preemption-threshold)
    parallel=parallel,
    limits_all_ranks=True,
    queue=Queue("--max-queued-requests", counts_running=False),
    note=(
        "SGLang's scheduler keeps room for the longest output that clients ask for, here the longest decode length of "
        "their class."
    ),
    host_tier=host_tier,
)
