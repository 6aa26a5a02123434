"""vLLM: its log as it starts and as it runs, and its metrics.

Capacity: ``GPU KV cache size: 446,320 tokens``, or ``# GPU blocks: 1381`` of a size in the engine arguments. Since
0.7.3 it states tokens, alone or with ``Maximum concurrency for 8,192 tokens per request``; V0 counted blocks, and later
versions called them ``# cuda blocks``. Its metrics have it in the labels of ``vllm:cache_config_info``.

Statistics, of V0 and V1: ``Avg prompt throughput: …, Running: 8 reqs, … GPU KV cache usage: 91.2%``. Iteration details,
from 0.14 on with ``--enable-logging-iteration-details``: ``Iteration(7): 2 context requests, …, iteration elapsed time:
31.25 ms``. Being exact, they take the place of the averages around them. The time is how long the engine waited for a
result; with asynchronous scheduling (the default since 0.16) one that is there already was waited for in no time,
whatever it took (vLLM pull request 35072, not merged).

Up to 0.15 the prompt throughput counts tokens that the prefix cache had or a KV connector loaded, and the hit rates
beside it say how many: of the last 1,000 requests, in V0 of all. The external rate is of all prompt tokens, and from
0.14 on (vLLM pull request 30522) of what the local cache missed. From 0.16 on (33290) only what was computed counts.
Iteration details have always counted so. Before 0.11 a preempted request that finds its own tokens again counts as a
hit (25787). ``2 Engines Aggregated:`` in place of ``Engine 000:`` are sums over engines, and their mean KV usage.
"""

import re
from collections import deque
from typing import NamedTuple

from kvplan.ingest.engines import (
    DRAFTED,
    NUMBER,
    Capacity,
    EngineLog,
    EngineMetrics,
    KvCapacity,
    Setting,
    Snapshot,
    argument,
    numbers,
    setting,
    settled_block,
    version_of,
    whole,
    whole_label,
)
from kvplan.ingest.timing.collector import Collector
from kvplan.units import format_tokens

BLOCK_TOKENS = 16  # its default on GPUs
_TOKENS = Capacity(re.compile(rf"GPU KV cache size: {NUMBER} tokens"))
_BLOCKS = Capacity(re.compile(rf"\b(?:(?i:GPU|xpu)|cuda|rocm) blocks: {NUMBER}"), in_blocks=True)
# Gaudi, Ascend and others; "# CPU blocks" is host memory to swap to, but where the executor is of CPUs
_DEVICE_BLOCKS = Capacity(
    re.compile(
        rf"(?:\b(?:(?i:hpu|npu|tpu|neuron)|mlu|gcu|musa|cpu)|cpu_executor\.py:\d+\] # CPU) blocks: {NUMBER}"
    ),
    in_blocks=True,
    of_any_size=True,
)
_CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: (\d+(?:\.\d+)?)x")
_BLOCK_SIZE = argument("block_size")
_BANNER = r"█  version (?=v?\d)"
_VERSION = re.compile(
    rf"(?:(?:API |vLLM )server version |LLM engine \(v|{_BANNER})v?(\d{{1,9}}(?:\.\d{{1,9}}){{1,2}})"
)
_HIT_RATE = re.compile(  # in a line of statistics; V0: in the next one
    r"Prefix cache hit rate: (?:GPU: )?(\d+(?:\.\d+)?)%"
)
_LOADED_RATE = re.compile(r"External prefix cache hit rate: (\d+(?:\.\d+)?)%")
_START = rf"vLLM (?:API )?server version|{_BANNER}|non-default args: |\bargs: Namespace\("
_DRAFTS = argument("num_spec(?:ulative)?_tokens")
_RANK = re.compile(r"(?:(?<![A-Za-z])DP[ :=]?|Engine(?:Core)?[ _])(\d+)")
_ENGINES = re.compile(r"\b(\d{1,6}) Engines Aggregated: ")
_WAITING = re.compile(r"\bWaiting: [1-9]")

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
_MOST_AVERAGES = 10_000  # that are kept, evenly over the log: twice as many as are fitted to
_MOST_RANKS = 1_024
_DETAILS = "vLLM iteration details"
_LEAST_MS = 0.1  # of any forward pass
_DUMMY = "ms (dummy)"  # an idle rank keeping step with the others
# versions from which on the prompt throughput is without hits, the external hit rate is of what the local cache missed,
# and preempted requests make no hits
_COUNTS_COMPUTED, _LOADS_MISSED, _COUNTS_ONCE = (0, 16), (0, 14), (0, 11)
_STARTS = re.compile(_START)
_WITH_DRAFTS = re.compile(rf"(?:SpecDecoding|Speculative) metrics|{_DRAFTS.pattern}")
_AVERAGE_OF_DRAFTS = "an average of iterations with drafts, which emit several tokens"
_CUT_OFF = "cut off or in an unknown form"
_NO_VERSION = (
    "the log states no version of vLLM; its prompt throughput is taken to count tokens found in the prefix cache, as "
    "it does up to 0.15; from 0.16 on it does not: then keep the line with the version"
)
_LOADED = "tokens that a KV connector loaded count as found, by the external hit rate"
_RECOMPUTED = (
    "requests wait while hit rates are stated: before vLLM 0.11 these also count what preempted requests find of their "
    "own tokens, so that prefill may be dearer than it seems"
)


class _Average(NamedTuple):
    """A line of statistics, and what held when it was logged: the engine may have been started anew."""

    values: list[float]
    line: int
    capacity_tokens: int | None
    version: tuple[int, int] | None
    start: int
    not_computed: float = 0.0  # percent of the prompt throughput
    notes: tuple[str, ...] = ()

    def with_hits(self, text: str) -> "_Average":
        """Take off the prompt throughput what hit rates say that was not computed, where it is among it."""
        hits, loaded = _percent(_HIT_RATE, text), _percent(_LOADED_RATE, text)
        if hits + loaded == 0 or (self.version or (0, 0)) >= _COUNTS_COMPUTED:
            return self
        of_all = self.version is not None and self.version < _LOADS_MISSED
        notes = []
        if self.version is None:
            notes.append(_NO_VERSION)
        if loaded:
            base = (
                "all prompt tokens, as before 0.14"
                if of_all
                else "what the local cache missed, as from 0.14 on"
            )
            notes.append(_LOADED + (f", taken as a share of {base}" if hits else ""))
        if hits and _WAITING.search(text) and (self.version or (0, 0)) < _COUNTS_ONCE:
            notes.append(_RECOMPUTED)
        percent = hits + (loaded if of_all else loaded * (1 - hits / 100))
        return self._replace(not_computed=min(percent, 100.0) if loaded else percent, notes=tuple(notes))


class _Statistics:
    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._block_tokens: int | None = None
        self._blocks = 0
        self._capacity_tokens = collector.capacity_tokens
        self._usage: dict[int, float] = {}  # by data-parallel rank
        self._states_usage: deque[str] = deque(maxlen=_MOST_RANKS)  # lines that nothing asked for yet
        self._averages: list[_Average] = []
        self._met, self._step = 0, 1  # how many came, and of how many one is kept
        self._taken = True  # the last that came
        self._version: tuple[int, int] | None = None
        self._start = 0
        self._details: set[int] = set()  # starts that log iterations one by one
        self._drafts: set[int] = set()

    def line(self, number: int, text: str) -> None:
        if "KV cache usage" in text:
            self._states_usage.append(text)
        if "Avg prompt throughput" in text:
            self._average(number, text)
            return
        if "Iteration(" in text:
            self._details.add(self._start)
            if self._collector.takes(_DETAILS):
                self._iteration(number, text)
            return
        if "KV cache usage" not in text and self._collector.given_tokens is None:
            self._state_capacity(text)
        if ("ersion" in text or "LLM engine" in text) and (version := _VERSION.search(text)):
            self._version = version_of(version[1])
        if ("version" in text or "args: " in text) and _STARTS.search(text):
            self._start += 1
        if "pec" in text and _WITH_DRAFTS.search(text):
            self._drafts.add(self._start)
        if self._averages and self._taken and "Prefix cache hit rate: GPU" in text:
            self._averages[-1] = self._averages[-1].with_hits(text)

    def end(self) -> None:
        for average in self._averages:
            if average.start in self._drafts:
                self._collector.skip(_AVERAGE_OF_DRAFTS, average.line)
                continue
            if average.start in self._details:
                self._collector.skip("an average, where iterations are logged one by one", average.line)
                continue
            self._collector.format = "vLLM stats log"
            self._collector.capacity_tokens = average.capacity_tokens
            self._collector.add_average(average.line, *average.values, hit_percent=average.not_computed)
            for note in average.notes:
                self._collector.note(note)

    def _average(self, number: int, text: str) -> None:
        self._taken, self._met = self._met % self._step == 0, self._met + 1
        if not self._taken:
            return
        if not (values := numbers(_STATS.search(text))):
            self._collector.skip(_CUT_OFF, number)
            return
        engines = int(several[1]) if "Aggregated" in text and (several := _ENGINES.search(text)) else 1
        if engines > 1:
            *rates, usage = values
            values = [*(rate / engines for rate in rates), usage]
            self._collector.note(f"lines of {engines} engines aggregated are taken as the mean of one engine")
        average = _Average(values, number, self._capacity_tokens, self._version, self._start)
        self._averages.append(average.with_hits(text))
        if len(self._averages) == _MOST_AVERAGES:
            del self._averages[1:-1:2]  # the next line may have hit rates of the last one
            self._step *= 2

    def _state_capacity(self, text: str) -> None:
        if "block" in text and (stated := _BLOCK_SIZE.search(text)):
            self._block_tokens = whole(stated[1])
        if tokens := _TOKENS.form.search(text):
            self._capacity_tokens, self._blocks = whole(tokens[1]), 0
        elif blocks := _BLOCKS.form.search(text) or _DEVICE_BLOCKS.form.search(text):
            self._blocks = whole(blocks[1])
            size = self._block_tokens or (BLOCK_TOKENS if _BLOCKS.form.search(text) else None)
            self._capacity_tokens = self._blocks * size if size else None
        elif self._blocks and not self._block_tokens and (fit := _CONCURRENCY.search(text)):
            size = settled_block(self._blocks, whole(fit[1]), float(fit[2]))
            self._capacity_tokens = self._blocks * size if size else self._capacity_tokens

    def _iteration(self, number: int, text: str) -> None:
        while self._states_usage:
            stated = self._states_usage.popleft()
            if usage_of := numbers(_USAGE.search(stated)):
                self._usage[_rank(stated)] = usage_of[0]
        values = numbers(_ITERATION.search(text))
        if values is None:
            self._collector.skip(_CUT_OFF, number)
        elif _DUMMY in text:
            self._collector.skip("a dummy iteration", number)
        elif values[-1] < _LEAST_MS:
            self._collector.skip("a result that was there before the engine waited for it", number)
        elif (usage := self._usage.get(_rank(text), self._usage.get(0))) is None:
            self._collector.skip("before the first line that states KV usage", number)
        else:
            contexts, context_tokens, generating, generated, elapsed_ms = values
            # A request that is computed again after a preemption counts as generating, all its tokens too.
            prefill = context_tokens + max(0.0, generated - generating)
            self._collector.capacity_tokens = self._capacity_tokens
            kv_tokens = self._collector.kv_tokens(usage, number)
            self._collector.format = _DETAILS
            sample = kv_tokens, prefill, contexts + generating, elapsed_ms * 1e-3
            self._collector.add(sample, number, taken=True)


def _rank(text: str) -> int:
    """Tell the data-parallel rank of a line, 0 where it says none: ``EngineCore_DP1`` or ``Engine 001:``."""
    rank = _RANK.search(text.partition("Avg prompt")[0])
    return int(rank[1][-9:]) if rank else 0


def _percent(rate: re.Pattern[str], text: str) -> float:
    values = numbers(rate.search(text))
    return values[0] if values else 0.0


LOG = EngineLog(
    engine="vLLM",
    looked_for="'GPU KV cache size: … tokens' and '# GPU blocks: …', of other devices too",
    words=(
        *(
            "GPU KV cache size",
            " blocks: ",
            "Maximum concurrency",
            " version ",
            "args: ",
            "Avg prompt throughput",
        ),
        *("max_num_", "max-num-", "block_size", "block-size", "block size to", "Prefix cache hit rate"),
        *(
            "Hybrid KV cache manager",
            "SpecDecoding metrics",
            "Speculative metrics",
            "num_spec",
            "num-spec",
            "tensor_parallel",
            "tensor-parallel",
            "data_parallel",
        ),
        *("Available KV cache memory", "Error: ", "EngineCore failed", "LLM engine ("),
    ),
    capacities=(_TOKENS, _BLOCKS, _DEVICE_BLOCKS),
    limits=(
        (Setting.BLOCK, _BLOCK_SIZE),
        (Setting.BLOCK, re.compile(r"Setting attention block size to (\d+) tokens")),
        (Setting.SEQS, argument("max_num_seqs")),
        (Setting.BATCHED, argument("max_num_batched_tokens")),
        (Setting.TP, argument("tensor_parallel_size")),
        (Setting.DP, argument("data_parallel_size")),
        (Setting.PP, argument("pipeline_parallel_size")),
        (Setting.DCP, argument("decode_context_parallel_size")),
        (Setting.ALL_EXPERTS, setting("enable_expert_parallel")),
        (Setting.VERSION, _VERSION),
        (Setting.LENGTH, argument("max_seq_len")),
        (Setting.LENGTH, argument("max_model_len")),
        (Setting.DRAFTS, _DRAFTS),
        (Setting.MODEL, setting("model")),
        (Setting.KV_DTYPE, setting("kv_cache_dtype")),
        (Setting.QUANTIZATION, setting("quantization")),
        (Setting.CACHING, setting("enable_prefix_caching")),
        (Setting.MEMORY, re.compile(r"Available KV cache memory: ([\d.]+) GiB")),
    ),
    start=_START,
    # of many beginnings in a line the first alone is followed to its end
    arguments=re.compile(r"^(?>.*?non-default args: \{).*\}|^(?>.*?\bargs: Namespace\().*\)"),
    failures=(
        r"Available KV cache memory: -|OutOfMemoryError: |ValueError: (?:To serve at least one request|No available "
        r"memory for the cache blocks|Free memory on device|The model's max seq len)"
    ),
    ended="EngineCore failed to start|Engine core initialization failed",
    hit_rate=_HIT_RATE,
    concurrency=_CONCURRENCY,
    accepted=DRAFTED,
    unified=re.compile(r"Hybrid KV cache manager is disabled|disable_hybrid_kv_cache_manager'?[:=] ?True"),
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
    loaded=("vllm:external_prefix_cache_hits_total", "vllm:external_prefix_cache_queries_total"),
    drafts=("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_accepted_tokens_per_pos_total"),
    itl=("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),  # the second before 0.11
    capacity=_CAPACITY,
    capacities=_capacities,
    without_histograms="vLLM exports them unless it runs with --disable-log-stats",
)
