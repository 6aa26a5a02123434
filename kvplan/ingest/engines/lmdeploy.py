"""LMDeploy: blocks of TurboMind, ``[BlockManager] max_block_count = 6214``, or of its PyTorch engine.

TurboMind's blocks hold ``cache_block_seq_len`` tokens, by default 64 (before 0.2 it says ``is not set, default to
128``); its ``block_size`` is in MB. The PyTorch engine states all in ``build CacheEngine with config:
CacheConfig(max_batches=128, block_size=64, …, num_gpu_blocks=21, …)``. As it runs it logs averages: ``Avg thr (in/out):
12.3 / 45.6 tokens/s, …, Engine (running/waiting): 8 / 0, KV cache: 51.2%``. Its metrics have lengths, and no capacity.
"""

import re

from kvplan.ingest.engines import (
    DRAFTED,
    NUMBER,
    Capacity,
    EngineLog,
    EngineMetrics,
    Setting,
    argument,
    numbers,
    whole,
)
from kvplan.ingest.timing.collector import Collector

BLOCK_TOKENS = 64
_CAPACITIES = (
    Capacity(re.compile(rf"\[BlockManager\] max_block_count = {NUMBER}"), in_blocks=True),
    Capacity(
        re.compile(r"CacheEngine with config: ?\w*\((?:(?!CacheEngine).)*?num_gpu_blocks=(\d+)"),
        in_blocks=True,
    ),
)
_BLOCK_SIZES = (
    argument("cache_block_seq_len"),
    re.compile(r"`cache_block_seq_len` is not set, default to (\d+)"),
    re.compile(r"CacheEngine with config: ?\w*\((?:(?!CacheEngine).)*?\bblock_size=(\d+)"),
)
_AVERAGE = re.compile(
    r"Avg thr \(in/out\): ([\d.]+) / ([\d.]+) tokens/s,(?:(?!Avg thr).)*?Engine \(running/waiting\): (\d+) / \d+,"
    r" KV cache: ([\d.]+)%"
)
_HIT_RATE = re.compile(r"Prefix cache hit rate: ([\d.]+)%")


class _Averages:
    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._block_tokens = BLOCK_TOKENS

    def line(self, number: int, text: str) -> None:
        for form in _BLOCK_SIZES if "block" in text else ():
            if size := form.search(text):
                self._block_tokens = whole(size[1])
        for capacity in _CAPACITIES if self._collector.given_tokens is None and "block" in text else ():
            if blocks := capacity.form.search(text):
                self._collector.capacity_tokens = whole(blocks[1]) * self._block_tokens
        if "Avg thr (in/out)" not in text:
            return
        values, rate = numbers(_AVERAGE.search(text)), numbers(_HIT_RATE.search(text))
        if values is None or "SpecDecoding" in text:
            reason = "an average of iterations with drafts" if values else "cut off or in an unknown form"
            self._collector.skip(reason, number)
            return
        self._collector.format = "LMDeploy log"
        self._collector.add_average(number, *values, hit_percent=rate[0] if rate else 0.0)

    def end(self) -> None:
        pass


LOG = EngineLog(
    engine="LMDeploy",
    looked_for="'[BlockManager] max_block_count = …' and 'CacheEngine with config: …'",
    words=(
        "[BlockManager]",
        "CacheEngine with config",
        "cache_block_seq_len",
        "EngineConfig(",
        "max_batch",
        "max_prefill",
    ),
    capacities=_CAPACITIES,
    limits=(
        *((Setting.BLOCK, form) for form in _BLOCK_SIZES),
        (Setting.SEQS, argument("max_batch_size")),
        (Setting.SEQS, argument("max_batches")),
        (Setting.LENGTH, argument("session_len")),
        (Setting.BATCHED, argument("max_prefill_token_num")),
        (Setting.TP, re.compile(r"EngineConfig\(.*?\btp=(\d+)")),
    ),
    hit_rate=re.compile(r"Avg thr \(in/out\).*?Prefix cache hit rate: (\d+(?:\.\d+)?)%"),
    accepted=DRAFTED,
    block_tokens=BLOCK_TOKENS,
    running=("Avg thr (in/out)",),
    statistics=_Averages,
)

METRICS = EngineMetrics(
    engine="LMDeploy",
    prefix="lmdeploy",
    prompt="lmdeploy:request_prompt_tokens",
    generation="lmdeploy:request_generation_tokens",
    requests=("lmdeploy:request_success_total",),
    itl=(
        "lmdeploy:iter_token_latency",
        "lmdeploy:time_per_output_token_seconds",
    ),  # the second in older versions
    without_histograms="LMDeploy exports them with --enable-metrics",
)
