"""TensorRT-LLM: ``Allocated 78.30 GiB for max tokens in paged KV cache (3731744)``, limits before and after.

``Number of tokens per block: 32`` comes before it; old versions say ``Using 132608 tokens in paged KV cache``.
"""

import re

from kvplan.ingest.engines import BATCHED, BLOCK, NUMBER, SEQS, Capacity, EngineLog

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
