"""vLLM: ``GPU KV cache size: 446,320 tokens``, or ``# GPU blocks: 1381`` of a size in the engine arguments.

Since 0.7.3 it states tokens, alone or with ``Maximum concurrency for 8,192 tokens per request``; V0 counted blocks, and
later versions called them ``# cuda blocks``.
"""

import re

from kvplan.ingest.log.forms import BATCHED, BLOCK, NUMBER, PP, SEQS, TP, Capacity, EngineLog, argument

TOKENS = Capacity(re.compile(rf"GPU KV cache size: {NUMBER} tokens"))
BLOCKS = Capacity(
    re.compile(rf"\b(?:GPU|cuda|rocm|xpu|hpu|tpu|neuron) blocks: {NUMBER}", re.IGNORECASE), in_blocks=True
)
BLOCK_SIZE = argument("block_size")
VERSION = re.compile(r"(?:API server version|LLM engine \(v) ?v?(\d{1,9})\.(\d{1,9})")
HIT_RATE = re.compile(
    r"\bPrefix cache hit rate: (?:GPU: )?(\d+(?:\.\d+)?)%"
)  # in a line of statistics; V0: in the next one
BLOCK_TOKENS = 16  # its default on GPUs

LOG = EngineLog(
    engine="vLLM",
    looked_for="'GPU KV cache size: … tokens' and '# GPU blocks: …'",
    words=(
        *("GPU KV cache size", " blocks: ", "Maximum concurrency", "API server version"),
        *("max_num_", "max-num-", "block_size", "block-size", "block size to", "Prefix cache hit rate"),
        *("Hybrid KV cache manager", "SpecDecoding metrics", "tensor_parallel", "tensor-parallel"),
    ),
    capacities=(TOKENS, BLOCKS),
    limits=(
        (BLOCK, BLOCK_SIZE),
        (BLOCK, re.compile(r"Setting attention block size to (\d+) tokens")),
        (SEQS, argument("max_num_seqs")),
        (BATCHED, argument("max_num_batched_tokens")),
        (TP, argument("tensor_parallel_size")),
        (PP, argument("pipeline_parallel_size")),
    ),
    start="vLLM API server version",
    hit_rate=HIT_RATE,
    concurrency=re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: (\d+(?:\.\d+)?)x"),
    accepted=re.compile(
        r"\bDrafted: (\d+) tokens, Per-position acceptance rate: ((?:[01]\.\d{1,9}, )*[01]\.\d{1,9})"
    ),
    unified=re.compile(r"Hybrid KV cache manager is disabled"),
    block_tokens=BLOCK_TOKENS,
)
