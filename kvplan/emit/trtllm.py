"""TensorRT-LLM."""

from kvplan.emit.base import Engine, Flag, Spelling

_FILE = "For trtllm-serve --config (--extra_llm_api_options before November 2025)."
_SINCE = f"In the LLM API since TensorRT-LLM 0.16.0. {_FILE}"
_DOCUMENTED = f"Documented for TensorRT-LLM 1.3 and 1.4. {_FILE}"

ENGINE = Engine(
    name="trtllm",
    title="TensorRT-LLM",
    spellings={
        "max_num_seqs": Spelling("max_batch_size", _SINCE),
        "max_num_batched_tokens": Spelling("max_num_tokens", _SINCE),
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
    finds_prefixes=False,
    parallel="tensor_parallel_size",
    assigns=": ",
    note=(
        "GUARANTEED_NO_EVICT reserves the longest output that clients ask for, here the longest decode length of "
        "their class."
    ),
)
