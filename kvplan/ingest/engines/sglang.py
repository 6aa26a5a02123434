"""SGLang: ``max_total_num_tokens=2086558, chunked_prefill_size=8192, …, max_running_requests=33``.

Where that is missing, ``KV Cache is allocated. … #tokens: 60000, …, page_size=1``. As it runs, 0.2 to today, it logs
``Decode batch. #running-req: 8, #token: 62531, …``, with a comma or a full stop. Its metrics have the capacity as
``sglang:max_total_num_tokens``, the blocks as ``sglang:page_size``.
"""

import math
import re

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
    whole_label,
)
from kvplan.ingest.timing.collector import Collector

_DECODE = re.compile(
    r"Decode batch[.,] #running-req: (\d+), #(?:full )?token: (\d+),"
    r"(?:(?!Decode batch).)*?gen throughput \(token/s\): ([\d.]+)"
)
_PREFILL = re.compile(r"Prefill batch[.,](?:(?!Prefill batch).)*?#new-token: (\d{1,12})(?!\d)")
_INTERVAL = re.compile(r"decode_log_interval=(\d{1,12})(?!\d)")
_DEFAULT_INTERVAL = 40  # decode batches from one line to the next
_CUT_OFF = "cut off or in an unknown form"


class _Statistics:
    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._interval = _DEFAULT_INTERVAL
        self._new_tokens = self._prefills = 0

    def line(self, number: int, text: str) -> None:
        if interval := _INTERVAL.search(text):
            self._interval = max(1, int(interval[1]))
        elif "Prefill batch" in text:
            if prefill := _PREFILL.search(text):
                self._new_tokens += int(prefill[1])
                self._prefills += 1
            else:
                self._collector.skip(_CUT_OFF, number)
        elif "Decode batch" in text:
            if values := numbers(_DECODE.search(text)):
                self._decode(number, *values)
            else:
                self._collector.skip(_CUT_OFF, number)
            self._new_tokens = self._prefills = 0

    def _decode(self, number: int, running: float, kv_tokens: float, generated: float) -> None:
        # The throughput spans all decode batches since the last line and the prefill batches among them.
        batches = self._interval + self._prefills
        tau = running / generated * self._interval / batches if generated > 0 else 0.0
        self._collector.format = "SGLang log"
        sample = kv_tokens, self._new_tokens / batches, running, tau
        self._collector.add(sample, number, hidden_prefill=True)

    def end(self) -> None:
        pass


LOG = EngineLog(
    engine="SGLang",
    looked_for="'max_total_num_tokens=…' and 'KV Cache is allocated. #tokens: …'",
    words=("max_total_num_tokens=", "KV Cache is allocated", "server_args=", "Prefill batch"),
    capacities=(
        Capacity(re.compile(rf"(?<![\w.])max_total_num_tokens={NUMBER}")),
        Capacity(
            re.compile(rf"KV Cache is allocated\.(?:(?!KV Cache is).)*?#tokens: {NUMBER}"), of_pool=True
        ),
    ),
    limits=(
        (BLOCK, argument("page_size")),
        (SEQS, argument("max_running_requests")),
        (BATCHED, argument("max_prefill_tokens")),
        (BATCHED, argument("chunked_prefill_size")),  # where it is not off, with -1, it is the tighter one
        (TP, argument("tp_size")),
        (PP, argument("pp_size")),
    ),
    start=r"\bserver_args=",
    computed_and_found=re.compile(
        r"Prefill batch(?:(?!Prefill batch).)*?#new-token: (\d+)(?:(?!#new-token).)*?#cached-token: (\d+)"
    ),
    running=("Decode batch", "Prefill batch"),
    statistics=_Statistics,
)

_CAPACITY = "sglang:max_total_num_tokens"


def _capacities(snapshot: Snapshot) -> tuple[list[KvCapacity], list[str]]:
    page = whole_label(f"{max(snapshot.series('sglang:page_size').values(), default=0):.0f}")
    stated = snapshot.samples.get(_CAPACITY, ())
    return [KvCapacity(int(value), page) for _, value in stated if 1 <= value < math.inf], []


METRICS = EngineMetrics(
    engine="SGLang",
    prefix="sglang",
    prompt="sglang:prompt_tokens_histogram",
    generation="sglang:generation_tokens_histogram",
    requests=("sglang:num_requests_total",),
    preemptions=("sglang:num_retracted_requests_total", "sglang:num_retracted_reqs_total"),
    hits=(("sglang:cached_tokens_total", "sglang:prompt_tokens_total"),),
    hit_rates=("sglang:cache_hit_rate",),
    drafts=None,
    capacity=_CAPACITY,
    capacities=_capacities,
    without_histograms=(
        "SGLang exports them with --enable-metrics and, in older versions, --collect-tokens-histogram"
    ),
)
