"""vLLM: its log as it starts and as it runs, and its metrics.

Capacity: ``GPU KV cache size: 446,320 tokens``, or ``# GPU blocks: 1381`` of a size in the engine arguments. Since
0.7.3 it states tokens, alone or with ``Maximum concurrency for 8,192 tokens per request``; V0 counted blocks, and later
versions called them ``# cuda blocks``. Its metrics have it in the labels of ``vllm:cache_config_info``.

Statistics, of V0 and V1: ``Avg prompt throughput: …, Running: 8 reqs, … GPU KV cache usage: 91.2%``. Iteration details,
from 0.14 on with ``--enable-logging-iteration-details``: ``Iteration(7): 2 context requests, …, iteration elapsed time:
31.25 ms``. Being exact, they take the place of the averages around them. The time is how long the engine waited for a
result; with asynchronous scheduling (the default since 0.16) one that is there already was waited for in no time,
whatever it took (vLLM pull request 35072, not merged).

Up to 0.15 the prompt throughput counts tokens that the prefix cache had, and the hit rate beside it says how many: of
the last 1,000 requests, in V0 of all. From 0.16 on (vLLM pull request 33290) it counts only what was computed.
Iteration details have always done so.
"""

import re
from typing import NamedTuple

from kvplan.ingest.engines import (
    BATCHED,
    BLOCK,
    NUMBER,
    PP,
    SEQS,
    TP,
    Capacity,
    EngineLog,
    EngineMetrics,
    KvCapacity,
    Snapshot,
    argument,
    numbers,
    whole,
    whole_label,
)
from kvplan.ingest.timing.collector import Collector
from kvplan.units import format_tokens

BLOCK_TOKENS = 16  # its default on GPUs
_TOKENS = Capacity(re.compile(rf"GPU KV cache size: {NUMBER} tokens"))
_BLOCKS = Capacity(
    re.compile(rf"\b(?:GPU|cuda|rocm|xpu|hpu|tpu|neuron) blocks: {NUMBER}", re.IGNORECASE), in_blocks=True
)
_BLOCK_SIZE = argument("block_size")
_VERSION = re.compile(r"(?:API server version|LLM engine \(v) ?v?(\d{1,9})\.(\d{1,9})")
_HIT_RATE = re.compile(  # in a line of statistics; V0: in the next one
    r"\bPrefix cache hit rate: (?:GPU: )?(\d+(?:\.\d+)?)%"
)

# -- as it runs -------------------------------------------------------------------------------------------------------

_ITERATION = re.compile(
    r"Iteration\(\d+\): (\d+) context requests, (\d+) context tokens, (\d+) generation requests, "
    r"(\d+) generation tokens, iteration elapsed time: ([\d.]+) ms"
)
_STATS = re.compile(
    r"Avg prompt throughput: ([\d.]+) tokens/s, Avg generation throughput: ([\d.]+) tokens/s, "
    r"Running: (\d+) reqs,(?:(?!Avg prompt).)*?KV cache usage: ([\d.]+)%"
)
_USAGE = re.compile(r"KV cache usage: ([\d.]+)%")
_LEAST_MS = 0.1  # of any forward pass
_DUMMY = "ms (dummy)"  # an idle rank keeping step with the others
_COUNTS_COMPUTED = (0, 16)  # the version from which on the prompt throughput is without hits
_CUT_OFF = "cut off or in an unknown form"


class _Average(NamedTuple):
    """A line of statistics, and what held when it was logged: the engine may have been started anew."""

    values: list[float]
    line: int
    capacity_tokens: int | None
    version: tuple[int, int] | None
    hit_percent: float

    @property
    def counts_hits(self) -> bool:
        """Whether its prompt throughput does."""
        return self.hit_percent > 0 and (self.version is None or self.version < _COUNTS_COMPUTED)


class _Statistics:
    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._block_tokens = BLOCK_TOKENS
        self._usage: float | None = None
        self._averages: list[_Average] = []
        self._version: tuple[int, int] | None = None
        self._details = False
        self._drafts = False

    def line(self, number: int, text: str) -> None:
        if self._collector.given_tokens is None:
            self._state_capacity(text)
        if values := numbers(_USAGE.search(text)):
            self._usage = values[0]
        if version := _VERSION.search(text):
            self._version = int(version[1]), int(version[2])
        self._drafts |= "SpecDecoding metrics" in text
        if "Iteration(" in text:
            self._details = True
            self._iteration(number, text)
        elif "Avg prompt throughput" in text:
            if values := numbers(_STATS.search(text)):
                capacity = self._collector.capacity_tokens
                self._averages.append(_Average(values, number, capacity, self._version, _hit_percent(text)))
            else:
                self._collector.skip(_CUT_OFF, number)
        elif self._averages and "Prefix cache hit rate: GPU" in text:
            self._averages[-1] = self._averages[-1]._replace(hit_percent=_hit_percent(text))

    def end(self) -> None:
        reason = ""
        if self._drafts:
            reason = "an average of iterations with drafts, which emit several tokens"
        elif self._details:
            reason = "an average, where iterations are logged one by one"
        for average in self._averages:
            if reason:
                self._collector.skip(reason, average.line)
                continue
            self._collector.format = "vLLM stats log"
            self._collector.capacity_tokens = average.capacity_tokens
            hit_percent = average.hit_percent if average.counts_hits else 0.0
            self._collector.add_average(average.line, *average.values, hit_percent=hit_percent)
        if (
            any(average.counts_hits and average.version is None for average in self._averages)
            and not self._details
        ):
            self._collector.note(
                "the log states no version of vLLM; its prompt throughput is taken to count tokens found in the prefix "
                "cache, as it does up to 0.15; from 0.16 on it does not: then keep the line with the version"
            )

    def _state_capacity(self, text: str) -> None:
        if "block" in text and (size := _BLOCK_SIZE.search(text)):
            self._block_tokens = whole(size[1])
        if tokens := _TOKENS.form.search(text):
            self._collector.capacity_tokens = whole(tokens[1])
        elif blocks := _BLOCKS.form.search(text):
            self._collector.capacity_tokens = whole(blocks[1]) * self._block_tokens

    def _iteration(self, number: int, text: str) -> None:
        values = numbers(_ITERATION.search(text))
        if values is None:
            self._collector.skip(_CUT_OFF, number)
        elif _DUMMY in text:
            self._collector.skip("a dummy iteration", number)
        elif values[-1] < _LEAST_MS:
            self._collector.skip("a result that was there before the engine waited for it", number)
        elif self._usage is None:
            self._collector.skip("before the first line that states KV usage", number)
        else:
            contexts, context_tokens, generating, generated, elapsed_ms = values
            # A request that is computed again after a preemption counts as generating, all its tokens too.
            prefill = context_tokens + max(0.0, generated - generating)
            kv_tokens = self._collector.kv_tokens(self._usage, number)
            self._collector.format = "vLLM iteration details"
            self._collector.add((kv_tokens, prefill, contexts + generating, elapsed_ms * 1e-3), number)


def _hit_percent(text: str) -> float:
    """Read the hit rate that a line states."""
    values = numbers(_HIT_RATE.search(text))
    return values[0] if values else 0.0


LOG = EngineLog(
    engine="vLLM",
    looked_for="'GPU KV cache size: … tokens' and '# GPU blocks: …'",
    words=(
        *("GPU KV cache size", " blocks: ", "Maximum concurrency", "API server version"),
        *("max_num_", "max-num-", "block_size", "block-size", "block size to", "Prefix cache hit rate"),
        *("Hybrid KV cache manager", "SpecDecoding metrics", "tensor_parallel", "tensor-parallel"),
    ),
    capacities=(_TOKENS, _BLOCKS),
    limits=(
        (BLOCK, _BLOCK_SIZE),
        (BLOCK, re.compile(r"Setting attention block size to (\d+) tokens")),
        (SEQS, argument("max_num_seqs")),
        (BATCHED, argument("max_num_batched_tokens")),
        (TP, argument("tensor_parallel_size")),
        (PP, argument("pipeline_parallel_size")),
    ),
    start="vLLM API server version",
    hit_rate=_HIT_RATE,
    concurrency=re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: (\d+(?:\.\d+)?)x"),
    accepted=re.compile(
        r"\bDrafted: (\d+) tokens, Per-position acceptance rate: ((?:[01]\.\d{1,9}, )*[01]\.\d{1,9})"
    ),
    unified=re.compile(r"Hybrid KV cache manager is disabled"),
    block_tokens=BLOCK_TOKENS,
    running=("Avg prompt throughput", "Iteration("),
    statistics=_Statistics,
)

# -- metrics ----------------------------------------------------------------------------------------------------------

_CAPACITY = "vllm:cache_config_info"
_OFF = 0.02  # by which two figures of one thing may differ without a word


def _capacities(snapshot: Snapshot) -> tuple[list[KvCapacity], list[str]]:
    capacities, notes = [], []
    for labels, _ in snapshot.samples.get(_CAPACITY, ()):
        block, blocks = whole_label(labels.get("block_size")), whole_label(labels.get("num_gpu_blocks"))
        product = block * blocks if block and blocks else None
        # Layers that hold less than the whole context share blocks; then only the engine knows what they make.
        stated = whole_label(labels.get("kv_cache_size_tokens"))
        if stated and product and abs(stated / product - 1) > _OFF:
            notes.append(
                f"the engine states {format_tokens(stated)} tokens of KV, its {blocks:,} blocks of {block} make "
                f"{format_tokens(product)}; what it states counts"
            )
        if tokens := stated or product:
            capacities.append(KvCapacity(tokens, block))
    return capacities, notes


METRICS = EngineMetrics(
    engine="vLLM",
    prefix="vllm",
    prompt="vllm:request_prompt_tokens",
    generation="vllm:request_generation_tokens",
    requests=("vllm:request_success_total", "vllm:request_finish_total"),  # the second of NVIDIA NIM
    preemptions=("vllm:num_preemptions_total",),
    hits=(
        ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
        ("vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total"),  # before 0.9
    ),
    hit_rates=("vllm:gpu_prefix_cache_hit_rate",),  # V0; -1 without a cache
    drafts=("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_accepted_tokens_per_pos_total"),
    capacity=_CAPACITY,
    capacities=_capacities,
    without_histograms="vLLM exports them unless it runs with --disable-log-stats",
)
