"""TensorRT-LLM: ``Allocated 78.30 GiB for max tokens in paged KV cache (3731744)``, limits before and after.

``Number of tokens per block: 32`` comes before it; old versions say ``Using 132608 tokens in paged KV cache``.

trtllm-serve exports blocks and their size.
"""

import re

from kvplan.ingest.engines import BATCHED, BLOCK, NUMBER, SEQS, Capacity, EngineLog, EngineMetrics, blocks_of

LOG = EngineLog(
    engine="TensorRT-LLM",
    looked_for="'… tokens in paged KV cache'",
    words=("tokens per block", "in paged KV cache", "TRTGptModel max", "max_num_", "TensorRT-LLM version"),
    capacities=(
        Capacity(re.compile(rf"for max tokens in paged KV cache \({NUMBER}\)")),
        Capacity(re.compile(rf"Using {NUMBER} tokens in paged KV cache")),
    ),
    limits=(
        (BLOCK, re.compile(r"Number of tokens per block: (\d+)")),
        (SEQS, re.compile(r"(?:TRTGptModel maxBatchSize: |(?<!\w)max_batch_size=)(\d+)")),
        (BATCHED, re.compile(r"(?:TRTGptModel maxNumTokens: |(?<!\w)max_num_tokens=)(\d+)")),
    ),
    start="TensorRT-LLM version",
    limits_follow=True,
)

_BLOCKS, _SIZE = "trtllm:kv_cache_max_blocks", "trtllm:kv_cache_tokens_per_block"
METRICS = EngineMetrics(
    engine="TensorRT-LLM",
    prefix="trtllm",
    prompt="trtllm:request_prompt_tokens",
    generation="trtllm:request_generation_tokens",
    requests=("trtllm:request_success_total",),
    preemptions=(),
    hits=(),
    hit_rates=("trtllm:kv_cache_hit_rate",),
    drafts=None,
    capacity=_BLOCKS,
    capacities=lambda snapshot: (blocks_of(snapshot, _BLOCKS, _SIZE), []),
    without_histograms="trtllm-serve exports none",
)
