"""TensorRT-LLM."""

from collections.abc import Iterator

from kvplan.emit.base import Engine, Flag, parallel_flags
from kvplan.errors import UsageError
from kvplan.model import Engine as Served
from kvplan.model import Parallelism, Replica

_BUDGET = 8192  # max_num_tokens by default


def parallel(ranks: Parallelism) -> Iterator[Flag]:
    """Set how GPUs share the model; ranks of attention are its tensor parallelism, a GPU each."""
    if ranks.context > 1 or (ranks.data > 1 and ranks.tensor > 1):
        raise UsageError(
            f"TensorRT-LLM has no {ranks}: its data-parallel ranks have a GPU each, and share no context"
        )
    yield from parallel_flags({"tensor_parallel_size": ranks.group})
    if ranks.data > 1:
        yield Flag("enable_attention_dp", "true", "the profile's data_parallel")
    numbers = {"moe_expert_parallel_size": ranks.expert, "pipeline_parallel_size": ranks.pipeline}
    yield from parallel_flags(numbers)


def batch_wait(engine: Served, replica: Replica) -> Iterator[Flag]:
    """Have prompts wait for others, or for other ranks; the engine takes the tokens as a share of its budget."""
    if engine.balance_iterations:
        iterations, why = str(engine.balance_iterations), "balance_iterations of the profile"
        values = {"enable_balance": "true", "batching_wait_iters": "0", "timeout_iters": iterations}
        for flag, value in values.items():
            yield Flag(flag, value, why)
    if not engine.batch_wait_iterations:
        return
    budget = replica.of_rank().max_num_batched_tokens or _BUDGET
    ratio = min(engine.batch_wait_tokens / budget, 1.0)
    iterations = str(engine.batch_wait_iterations)
    yield Flag("batch_wait_timeout_iters", iterations, "batch_wait_iterations of the profile")
    why = f"batch_wait_tokens of the profile, of a max_num_tokens of {budget:,}"
    yield Flag("batch_wait_max_tokens_ratio", f"{ratio:.4g}", why)


ENGINE = Engine(
    name="trtllm",
    title="TensorRT-LLM",
    starts="trtllm-serve {} --config FILE",
    spellings={
        "max_num_seqs": "max_batch_size",
        "max_num_batched_tokens": "max_num_tokens",
        "max_model_len": "max_seq_len",
        "kv_dtype": "dtype",
        "utilization": "free_gpu_memory_fraction",
    },
    cache_off=Flag("enable_block_reuse", "false", "prefix_caching = false in the profile"),
    first_chunk=Flag(
        "capacity_scheduler_policy",
        "MAX_UTILIZATION",
        'admission = "first-chunk" in the profile; the default, GUARANTEED_NO_EVICT, keeps room for the longest output',
    ),
    batch_wait=batch_wait,
    finds_prefixes=False,
    parallel=parallel,
    assigns=": ",
    note=(
        "GUARANTEED_NO_EVICT reserves the longest output that clients ask for, here the longest decode length of "
        "their class."
    ),
)
