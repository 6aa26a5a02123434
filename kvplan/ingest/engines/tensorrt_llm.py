"""TensorRT-LLM: ``Allocated 78.30 GiB for max tokens in paged KV cache (3731744)``, limits before and after.

``Number of tokens per block: 32`` comes before it; old versions say ``Using 132608 tokens in paged KV cache``. The
PyTorch backend prints ``max_num_requests=4096`` and in some versions ``max_batch_size=48``.

With `print_iter_log` it logs every iteration, as `py_executor.py` of 0.20 to 1.3 does: ``iter = 7, global_rank = 0, …,
num_scheduled_requests = 8, kv_cache_util = 0.125, …, host_step_time = 8.6ms, …, states = {'num_ctx_requests': 0,
'num_ctx_tokens': 0, 'num_generation_tokens': 8, 'cached_kv_tokens': 12000}``. Earlier versions have a colon after
``num_scheduled_requests`` and neither of the two KV figures. The device's own time is of the iteration before.

trtllm-serve exports blocks and their size.
"""

import re
from dataclasses import replace

from kvplan.ingest.engines import (
    NUMBER,
    Capacity,
    EngineLog,
    EngineMetrics,
    KvCapacity,
    Labels,
    Setting,
    Snapshot,
    argument,
    blocks_of,
    setting,
    whole,
    whole_label,
)
from kvplan.ingest.timing.collector import Collector

_CAPACITIES = (
    Capacity(re.compile(rf"for max tokens in paged KV cache \({NUMBER}\)")),
    Capacity(re.compile(rf"Using {NUMBER} tokens in paged KV cache")),
)
_FIELD = re.compile(r"\b(\w{4,40})'? ?[=:] ?(\d{1,15}(?:\.\d{1,20})?)(ms\b)?")
_ITERATION = re.compile(r"\biter'? ?[=:] ?(\d{1,15})")
_FORMAT = "TensorRT-LLM iterations"
_NEEDED = ("iter", "num_scheduled_requests", "host_step_time", "num_ctx_tokens", "num_generation_tokens")


class _Iterations:
    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._iteration, self._taken = "", True
        self._seen: set[tuple[float, ...]] = set()  # of this iteration, by all ranks

    def line(self, number: int, text: str) -> None:
        collector = self._collector
        if "paged KV cache" in text and collector.given_tokens is None:
            for capacity in _CAPACITIES:
                if stated := capacity.form.search(text):
                    collector.capacity_tokens = whole(stated[1])
        if "host_step_time" not in text:
            return
        iteration = number_of[1] if (number_of := _ITERATION.search(text)) else f"line {number}"
        if iteration != self._iteration:
            self._iteration, self._taken, self._seen = iteration, collector.takes(_FORMAT), set()
        if not self._taken:
            return
        fields = {name: (float(value), unit) for name, value, unit in _FIELD.findall(text)}
        values = {name: value for name, (value, _) in fields.items()}
        whole_line = (
            "}" in text.partition("states = {")[2] and fields.get("host_step_time", (0, ""))[1] == "ms"
        )
        if not whole_line or not all(name in values for name in _NEEDED):
            collector.skip("cut off or in an unknown form", number)
            return
        scheduled, prefill = values["num_scheduled_requests"], values["num_ctx_tokens"]
        if values["num_generation_tokens"] > scheduled - values.get("num_ctx_requests", 0):
            collector.skip("an iteration with drafts, which emits several tokens", number)
        elif "cached_kv_tokens" not in values and "kv_cache_util" not in values:
            collector.skip("states neither cached_kv_tokens nor kv_cache_util", number)
        else:
            cached = values.get("cached_kv_tokens")
            kv = collector.kv_tokens(100 * values["kv_cache_util"], number) if cached is None else cached
            self._add(number, (kv, prefill, scheduled), values["host_step_time"] * 1e-3)

    def _add(self, number: int, batch: tuple[float, float, float], seconds: float) -> None:
        """Add an iteration once, whichever ranks log it; with requests of their own each has one."""
        if batch in self._seen:
            self._collector.skip("the same iteration, by another rank", number)
            return
        self._seen.add(batch)
        self._collector.format = _FORMAT
        self._collector.add((*batch, seconds), number, taken=True)

    def end(self) -> None:
        pass


LOG = EngineLog(
    engine="TensorRT-LLM",
    looked_for="'… tokens in paged KV cache'",
    words=(
        "tokens per block",
        "in paged KV cache",
        "TRTGptModel max",
        "max_num_",
        "_parallel_size",
        "TensorRT-LLM version",
        "xecutor",
    ),
    capacities=_CAPACITIES,
    limits=(
        (Setting.BLOCK, re.compile(r"Number of tokens per block: (\d+)")),
        (Setting.SEQS, re.compile(r"(?<!\w)max_num_requests=(\d+)")),
        (Setting.SEQS, re.compile(r"(?:TRTGptModel maxBatchSize: |(?<!\w)max_batch_size=)(\d+)")),
        (Setting.BATCHED, re.compile(r"(?:TRTGptModel maxNumTokens: |(?<!\w)max_num_tokens=)(\d+)")),
        (Setting.TP, argument("tensor_parallel_size")),
        (Setting.EP, argument("moe_expert_parallel_size")),
        (Setting.PP, argument("pipeline_parallel_size")),
        (Setting.ATTENTION, setting("enable_attention_dp")),
    ),
    start="TensorRT-LLM version",
    failures="Failed to initialize executor|Executor worker returned error",
    limits_follow=True,
    running=("host_step_time",),
    statistics=_Iterations,
)

_BLOCKS, _SIZE = "trtllm:kv_cache_max_blocks", "trtllm:kv_cache_tokens_per_block"


def _capacities(snapshot: Snapshot) -> tuple[list[KvCapacity], list[str]]:
    """Read blocks, whose size is a number of its own or a label."""
    labels = [labels for labels, _ in snapshot.samples.get("trtllm:cache_config_info", ())]
    sizes = [whole_label(some.get(name)) for some in labels for name in ("tokens_per_block", "block_size")]
    if stated := next(filter(None, sizes), None):
        sizes_of: dict[str, list[tuple[Labels, float]]] = {_SIZE: [({}, float(stated))]}
        snapshot = replace(snapshot, samples={**snapshot.samples, **sizes_of})
    return blocks_of(snapshot, _BLOCKS, _SIZE), []


METRICS = EngineMetrics(
    engine="TensorRT-LLM",
    prefix="trtllm",
    prompt="trtllm:request_prompt_tokens",
    generation="trtllm:request_generation_tokens",
    requests=("trtllm:request_success_total",),
    hit_rates=("trtllm:kv_cache_hit_rate",),
    capacity=_BLOCKS,
    capacities=_capacities,
    without_histograms="trtllm-serve exports none",
)
