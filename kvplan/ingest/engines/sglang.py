"""SGLang: ``max_total_num_tokens=2086558, chunked_prefill_size=8192, …, max_running_requests=33``.

Where that is missing, ``KV Cache is allocated. … #tokens: 60000, …, page_size=1``. As it runs, 0.2 to today, it logs
``Decode batch. #running-req: 8, #token: 62531, …``, with a comma or a full stop. Its metrics have the capacity as
``sglang:max_total_num_tokens``, ``/get_server_info`` as a key of its JSON, the blocks as ``sglang:page_size``.

With drafts a decode line has ``accept len: 3.56``, tokens that each sequence emits in an iteration; the throughput
counts them (scheduler_metrics_mixin.py of 0.5). Data-parallel ranks log for themselves, others of one rank the same.
"""

import math
import re
from dataclasses import dataclass

from kvplan.ingest.engines import (
    NUMBER,
    WITH_DRAFTS,
    Capacity,
    EngineLog,
    EngineMetrics,
    KvCapacity,
    Ranks,
    Setting,
    Snapshot,
    argument,
    numbers,
    ranks_of,
    setting,
    whole_label,
)
from kvplan.ingest.timing.collector import Collector
from kvplan.units import format_number

_DECODE = re.compile(
    r"Decode batch[.,] #running-req: (\d+), #(?:full )?token: (\d+),"
    r"(?:(?!Decode batch).)*?gen throughput \(token/s\): ([\d.]+)"
)
_BATCH = re.compile(r"(?:Prefill|Decode) batch")
_PREFILL = re.compile(r"Prefill batch[.,](?:(?!Prefill batch).)*?#new-token: (\d{1,12})(?!\d)")
_EMITTED = re.compile(r"accept len: ([\d.]+)")
_INTERVAL = re.compile(r"decode_log_interval=(\d{1,12})(?!\d)")
_DEFAULT_INTERVAL = 40  # decode batches from one line to the next
_FORMAT = "SGLang log"
_CUT_OFF = "cut off or in an unknown form"


@dataclass(slots=True)
class _Engine:
    """A data-parallel rank; of its ranks `writer` is the one whose lines count."""

    writer: Ranks
    new_tokens: int = 0
    prefills: int = 0
    taken: bool = True  # the decode line that comes


class _Statistics:
    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._interval = _DEFAULT_INTERVAL
        self._engines: dict[Ranks, _Engine] = {}
        self._emitted = self._sequences = 0.0  # of decode batches with drafts

    def line(self, number: int, text: str) -> None:
        if "decode_log_interval" in text and (interval := _INTERVAL.search(text)):
            self._interval = max(1, int(interval[1]))
        elif match := _BATCH.search(text):
            ranks = ranks_of(text[: match.start()])
            replica = tuple(rank for rank in ranks if rank[0] == "DP")
            engine = self._engines.setdefault(replica, _Engine(ranks))
            if engine.writer != ranks:
                self._collector.skip("a rank that repeats another's lines", number)
            elif match[0].startswith("Prefill"):
                self._prefill(number, text, engine)
            else:
                self._decode(number, text, engine)

    def _prefill(self, number: int, text: str, engine: _Engine) -> None:
        if not engine.taken:
            return
        if prefill := _PREFILL.search(text):
            engine.new_tokens += int(prefill[1])
            engine.prefills += 1
        else:
            self._collector.skip(_CUT_OFF, number)

    def _decode(self, number: int, text: str, engine: _Engine) -> None:
        taken, engine.taken = engine.taken, self._collector.takes(_FORMAT)
        if not taken:
            return
        match = _DECODE.search(text)
        if match and (values := numbers(match)):
            running, kv_tokens, generated = values
            emitted = 1.0
            if drafts := numbers(_EMITTED.search(match[0])):
                emitted = max(1.0, drafts[0])
                self._emitted += running * emitted
                self._sequences += running
            # The throughput spans all decode batches since the last line and the prefill batches among them.
            batches = self._interval + engine.prefills
            tau = running * emitted / generated * self._interval / batches if generated > 0 else 0.0
            self._collector.format = _FORMAT
            sample = kv_tokens, engine.new_tokens / batches, running, tau
            self._collector.add(sample, number, hidden_prefill=True, taken=True)
        else:
            self._collector.skip(_CUT_OFF, number)
        engine.new_tokens = engine.prefills = 0

    def end(self) -> None:
        if self._sequences:
            self._collector.note(
                f"{WITH_DRAFTS} an iteration emits {format_number(self._emitted / self._sequences, 3)} tokens a "
                "sequence (accept len), and the times are of iterations with their drafts: [speculative] should have "
                "tokens and accepted alike, and no draft_time, verify_time and overhead"
            )
        if len(self._engines) > 1:
            self._collector.note(f"{len(self._engines)} data-parallel ranks are read as engines of their own")


LOG = EngineLog(
    engine="SGLang",
    looked_for="'max_total_num_tokens=…' and 'KV Cache is allocated. #tokens: …'",
    words=(
        *("max_total_num_tokens", "KV Cache is allocated", "server_args=", "Prefill batch", "Error: "),
        *("Scheduler hit an exception", "scheduler is dead", "Received sigquit"),
        *(
            '_size":',
            '"max_running_requests":',
            '"context_length":',
            '"model_path":',
        ),  # in JSON over many lines
    ),
    capacities=(
        Capacity(re.compile(rf"(?<![\w.])max_total_num_tokens(?:=|\": ?){NUMBER}")),
        Capacity(
            re.compile(rf"KV Cache is allocated\.(?:(?!KV Cache is).)*?#tokens: {NUMBER}"), of_pool=True
        ),
    ),
    limits=(
        (Setting.BLOCK, argument("page_size")),
        (Setting.SEQS, argument("max_running_requests")),
        (Setting.BATCHED, argument("max_prefill_tokens")),
        # where it is not off, with -1, it is the tighter one
        (Setting.BATCHED, argument("chunked_prefill_size")),
        (Setting.TP, argument("tp_size")),
        (Setting.DP, argument("dp_size")),
        (Setting.EP, argument("ep_size")),
        (Setting.PP, argument("pp_size")),
        (Setting.ATTENTION, setting("enable_dp_attention")),
        (Setting.LENGTH, argument("context_len")),
        (Setting.LENGTH, argument("context_length")),
        (Setting.DRAFTS, argument("speculative_num_draft_tokens")),
        (Setting.MODEL, setting("model_path")),
        (Setting.KV_DTYPE, setting("kv_cache_dtype")),
        (Setting.QUANTIZATION, setting("quantization")),
    ),
    start=r"\bserver_args=",
    arguments=re.compile(r"^(?>.*?\bserver_args=ServerArgs\().*\)"),
    failures=r"(?:RuntimeError|ValueError): Not enough memory|OutOfMemoryError: ",
    ended=r"Scheduler hit an exception|scheduler is dead|Received sigquit",
    computed_and_found=re.compile(
        r"Prefill batch(?:(?!Prefill batch).)*?#new-token: (\d+)(?:(?!#new-token).)*?#cached-token: (\d+)"
    ),
    running=("Decode batch", "Prefill batch"),
    statistics=_Statistics,
    whole_blocks=False,
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
    itl=("sglang:inter_token_latency_seconds",),
    itl_of_tokens=True,
    capacity=_CAPACITY,
    capacities=_capacities,
    without_histograms=(
        "SGLang exports them with --enable-metrics and, in older versions, --collect-tokens-histogram"
    ),
)
