"""TensorRT-LLM."""

from collections.abc import Iterator

from kvplan.emit.base import Engine, Flag, Spelling, parallel_flags
from kvplan.errors import UsageError
from kvplan.model import Engine as Served
from kvplan.model import Parallelism, Replica

_FILE = "For trtllm-serve --config (--extra_llm_api_options before November 2025)."
_SINCE = f"In the LLM API since TensorRT-LLM 0.16.0. {_FILE}"
_WAITS = f"In the LLM API since TensorRT-LLM 1.1. {_FILE}"
_DOCUMENTED = f"Documented for TensorRT-LLM 1.3 and 1.4. {_FILE}"

_BUDGET = 8192  # max_num_tokens by default


def parallel(ranks: Parallelism) -> Iterator[Flag]:
    """Set how GPUs share the model; ranks of attention are its tensor parallelism, a GPU each."""
    if ranks.context > 1 or (ranks.data > 1 and ranks.tensor > 1):
        raise UsageError(
            f"TensorRT-LLM has no {ranks}: its data-parallel ranks have a GPU each, and share no context"
        )
    yield from parallel_flags({"tensor_parallel_size": ranks.group}, _SINCE)
    if ranks.data > 1:
        yield Flag("enable_attention_dp", "true", "the profile's data_parallel", _DOCUMENTED)
    numbers = {"moe_expert_parallel_size": ranks.expert, "pipeline_parallel_size": ranks.pipeline}
    yield from parallel_flags(numbers, _SINCE)


def batch_wait(engine: Served, replica: Replica) -> Iterator[Flag]:
    """Have prompts wait for others, or for other ranks; the engine takes the tokens as a share of its budget."""
    if engine.balance_iterations:
        iterations, why = str(engine.balance_iterations), "balance_iterations of the profile"
        values = {"enable_balance": "true", "batching_wait_iters": "0", "timeout_iters": iterations}
        for flag, value in values.items():
            yield Flag(flag, value, why, _DOCUMENTED, section="attention_dp_config")
    if not engine.batch_wait_iterations:
        return
    budget = replica.of_rank().max_num_batched_tokens or _BUDGET
    ratio = min(engine.batch_wait_tokens / budget, 1.0)
    iterations = str(engine.batch_wait_iterations)
    yield Flag("batch_wait_timeout_iters", iterations, "batch_wait_iterations of the profile", _WAITS)
    why = f"batch_wait_tokens of the profile, of a max_num_tokens of {budget:,}"
    yield Flag("batch_wait_max_tokens_ratio", f"{ratio:.4g}", why, _WAITS)


ENGINE = Engine(
    name="trtllm",
    title="TensorRT-LLM",
    spellings={
        "max_num_seqs": Spelling("max_batch_size", _SINCE),
        "max_num_batched_tokens": Spelling("max_num_tokens", _SINCE),
        "max_model_len": Spelling("max_seq_len", _SINCE),
    },
    cache_off=Flag(
        "enable_block_reuse",
        "false",
        "prefix_caching = false in the profile",
        _DOCUMENTED,
        section="kv_cache_config",
    ),
    first_chunk=Flag(
        "capacity_scheduler_policy",
        "MAX_UTILIZATION",
        'admission = "first-chunk" in the profile; the default, GUARANTEED_NO_EVICT, keeps room for the longest output',
        _DOCUMENTED,
        section="scheduler_config",
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
