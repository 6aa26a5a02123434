"""Files of every format that carries times, of iterations and of loads that a known law made."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from typing import Any, NamedTuple

import numpy as np
from result_files import (
    FORWARD_PASS,
    INFERENCEMAX,
    SGLANG,
    VLLM,
    aiperf,
    guidellm,
    metric,
    report,
    stage,
    summary,
)

from kvplan.ingest.timing.equations import Kind
from kvplan.ingest.timing.played import Law, foretold
from kvplan.ingest.timing.samples import Deployment, Point, Sweep
from kvplan.model import Timing

CAPACITY, LINES, FULL, BLOCK = 400_000, 2_000, 256, 16
Row = tuple[int, int, int, float]  # KV tokens, prefill tokens, sequences, seconds

# -- iterations -------------------------------------------------------------------------------------------------------


def iterations(law: Timing, rng: np.random.Generator, noise: float, *, prompts: bool) -> list[Row]:
    """Iterations from one request to a full batch, half of them with prompts."""
    sequences = np.exp(rng.uniform(0, np.log(FULL), LINES)).round().astype(int)
    prefill = np.where(rng.random(LINES) < 0.5 * prompts, rng.integers(1, 1500, LINES), 0)
    lengths = rng.uniform(200, 3000, LINES)
    kv_tokens = np.clip((sequences * lengths).round().astype(int), prefill, CAPACITY)
    seconds = law.d0 + law.d1 * kv_tokens + law.d2 * prefill + law.d3 * sequences
    noisy = seconds * np.exp(noise * rng.standard_normal(LINES))
    columns = (kv_tokens, prefill, sequences, noisy)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def vllm(rows: list[Row]) -> Iterator[str]:
    yield "INFO 07-28 06:40:00 [api_server.py:1839] vLLM API server version 0.19.0"
    for k, p, b, tau in rows:
        yield (
            f"INFO 07-28 06:40:59 [loggers.py:118] Engine 000: Avg prompt throughput: {p / tau:.1f} tokens/s, Avg "
            f"generation throughput: {b / tau:.1f} tokens/s, Running: {b} reqs, Waiting: 0 reqs, GPU KV cache usage: "
            f"{100 * k / CAPACITY:.1f}%, Prefix cache hit rate: 0.0%"
        )


def vllm_v0(rows: list[Row]) -> Iterator[str]:
    for k, p, b, tau in rows:
        yield (
            f"INFO 02-19 10:00:00 metrics.py:455] Avg prompt throughput: {p / tau:.1f} tokens/s, Avg generation "
            f"throughput: {b / tau:.1f} tokens/s, Running: {b} reqs, Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache "
            f"usage: {100 * k / CAPACITY:.1f}%, CPU KV cache usage: 0.0%."
        )


def vllm_iterations(rows: list[Row]) -> Iterator[str]:
    for number, (k, p, b, tau) in enumerate(rows):
        context = int(p > 0)
        yield (
            f"(EngineCore_DP0 pid=1) INFO 07-08 00:00:02 [core.py:359] Iteration({number}): {context} context "
            f"requests, {p} context tokens, {b - context} generation requests, {b - context} generation tokens, "
            f"iteration elapsed time: {1e3 * tau:.2f} ms, GPU KV cache usage: {100 * k / CAPACITY:.1f}%"
        )


def sglang(rows: list[Row]) -> Iterator[str]:
    """Forty decode batches from line to line, and eight that prefill where there are prompts."""
    for k, p, b, tau in rows:
        prefills = 8 * (p > 0)
        for _ in range(prefills):
            new = p * (40 + prefills) // prefills
            yield f"[2026-04-08 14:05:20 TP0] Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: 0"
        rate = 40 * b / (tau * (40 + prefills))
        yield (
            f"[2026-04-08 14:05:21 TP0] Decode batch, #running-req: {b}, #token: {k}, token usage: "
            f"{k / CAPACITY:.2f}, cuda graph: True, gen throughput (token/s): {rate:.2f}, #queue-req: 0"
        )


def lmdeploy(rows: list[Row]) -> Iterator[str]:
    for k, p, b, tau in rows:
        yield (
            f"2026-03-01 10:00:01,000 - lmdeploy - INFO - metrics_processor.py:80 - [2026-03-01 10:00:01 DP0] Avg thr "
            f"(in/out): {p / tau:.1f} / {b / tau:.1f} tokens/s, API server (completed/routed/waiting): 1 / {b} / 0, "
            f"Engine (running/waiting): {b} / 0, KV cache: {100 * k / CAPACITY:.1f}%, Prefix cache hit rate: 0.0%"
        )


def tensorrt_llm(rows: list[Row]) -> Iterator[str]:
    for number, (k, p, b, tau) in enumerate(rows):
        states = {
            "num_ctx_requests": int(p > 0),
            "num_ctx_tokens": p,
            "num_generation_tokens": b - (p > 0),
            "cached_kv_tokens": k,
        }
        yield (
            f"[03/01/2026-10:00:00] [TRT-LLM] [I] [_torch][RANK 0] iter = {number}, global_rank = 0, rank = 0, "
            f"num_scheduled_requests = {b}, kv_cache_util = {k / CAPACITY:.3f}, currank_total_requests = 1/8, "
            f"host_step_time = {1e3 * tau:.3f}ms, prev_device_step_time = 7.1ms, timestamp = 2026-03-01 10:00:00, "
            f"states = {states}"
        )


def tensorrt_llm_stats(rows: list[Row]) -> Iterator[str]:
    for number, (k, p, b, tau) in enumerate(rows):
        batch = {"numContextRequests": int(p > 0), "numCtxTokens": p, "numGenRequests": b - (p > 0)}
        cache = {
            "maxNumBlocks": CAPACITY // BLOCK,
            "tokensPerBlock": BLOCK,
            "usedNumBlocks": -(-k // BLOCK),
        }
        yield json.dumps(
            {
                "iter": number,
                "iterLatencyMS": 1e3 * tau,
                "inflightBatchingStats": batch,
                "kvCacheStats": cache,
            }
        )


def table(rows: list[Row]) -> Iterator[str]:
    yield "kv_tokens,prefill_tokens,sequences,iteration_ms"
    yield from (f"{k},{p},{b},{1e3 * tau:.4f}" for k, p, b, tau in rows)


def objects(rows: list[Row]) -> Iterator[str]:
    for k, p, b, tau in rows:
        yield json.dumps({"kv_tokens": k, "prefill_tokens": p, "sequences": b, "iteration_ms": 1e3 * tau})


def series(rows: list[Row]) -> Iterator[str]:
    yield "t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct"
    for second, (k, p, b, tau) in enumerate(rows):
        yield f"{second},{p / tau:.2f},{b / tau:.2f},{b},0,{100 * k / CAPACITY:.2f}"


def forward_passes(rows: list[Row]) -> Iterator[str]:
    for k, p, b, tau in rows:
        scheduled = FORWARD_PASS["scheduled_requests"] | {
            "num_prefill_requests": 0,
            "sum_prefill_tokens": p,
            "sum_prefill_kv_tokens": 0,
            "num_decode_requests": b,
            "sum_decode_kv_tokens": k - p,
        }
        yield json.dumps(FORWARD_PASS | {"scheduled_requests": scheduled, "wall_time": tau})


ITERATIONS: tuple[Callable[[list[Row]], Iterator[str]], ...] = (
    *(vllm, tensorrt_llm, lmdeploy, sglang, tensorrt_llm_stats, vllm_v0, vllm_iterations),
    *(table, objects, series, forward_passes),
)


def splitwise(law: Timing, rng: np.random.Generator, noise: float) -> Iterator[str]:
    """Batches of equal prompts, each with the time of its prefill and the mean of its decode iterations."""
    yield "model,hardware,tensor_parallel,prompt_size,batch_size,token_size,prompt_time,token_time"
    for _ in range(LINES // 2):
        size, batch = int(rng.integers(16, 4096)), int(2 ** rng.integers(0, 7))
        generated = int(rng.integers(2, 512))
        tokens = size * batch
        prompt_s = law(tokens + batch, tokens, batch) * np.exp(noise * rng.standard_normal())
        token_s = law(tokens + batch * (generated + 1) / 2, 0.0, batch) * np.exp(
            noise * rng.standard_normal()
        )
        yield f"m,g,1,{size},{batch},{generated},{1e3 * prompt_s:.5f},{1e3 * token_s:.5f}"


def request_log(law: Timing, rng: np.random.Generator, noise: float) -> Iterator[str]:
    """Requests at a rate that changes, batched iteration by iteration without end of memory."""
    yield "arrival_time,input_tokens,output_tokens,scheduled_time,first_token_time,last_token_time"
    size = LINES
    inputs, outputs = rng.integers(16, 1500, size), rng.integers(12, 400, size)
    load = np.exp(rng.uniform(np.log(0.05), np.log(0.9), 20)).repeat(size // 20)
    alone = law.d0 / 64 + law.d1 * (inputs + outputs / 2) + law.d3
    work = law.d2 * inputs + alone * outputs  # of a request in a batch of 64
    arrival = np.cumsum(rng.exponential(work / load))
    now, begun, waiting = 0.0, [], 0
    start, first, last = np.zeros((3, size))
    while waiting < size or begun:
        if not begun:
            now = max(now, float(arrival[waiting]))
        batch = list(begun)
        while waiting < size and arrival[waiting] <= now:
            batch.append((waiting, 0))
            start[waiting] = now
            waiting += 1
        ids, done = np.array(batch).T
        prefill = int(inputs[ids[done == 0]].sum())
        now += law(float((inputs[ids] + done).sum()), prefill, len(ids)) * np.exp(
            noise * rng.standard_normal()
        )
        first[ids[done == 0]] = now
        over = done + 1 == outputs[ids]
        last[ids[over]] = now
        begun = [(int(i), int(n) + 1) for i, n in zip(ids[~over], done[~over], strict=True)]
    for values in zip(arrival, inputs, outputs, start, first, last, strict=True):
        yield ",".join(map(str, values))


# -- loads ------------------------------------------------------------------------------------------------------------

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)
SHAPES = ((96, 48), (700, 32), (300, 256))  # prompt and generated tokens


class Load(NamedTuple):
    """A closed loop, and what a client measured of it, seconds."""

    users: int
    inputs: int
    outputs: int
    requests: int
    ttft: float
    tpot: float

    @property
    def e2e(self) -> float:
        return self.ttft + self.tpot * (self.outputs - 1)

    @property
    def rate(self) -> float:
        return self.users / self.e2e


def loads(
    law: Timing, overhead_s: float, rng: np.random.Generator, noise: float, shortest: float = 1.0
) -> list[Load]:
    """Loads of lengths that are drawn from the shortest, a share of the longest."""
    points = [
        Point(
            line=1,
            inputs=(round(shortest * i), i),
            outputs=(round(shortest * o), o),
            concurrency=users,
            requests=max(40, 10 * users),
        )
        for i, o in SHAPES
        for users in CONCURRENCIES
    ]
    times = foretold([Sweep("", "", Deployment(), tuple(points))], Law(law))

    def noisy(seconds: float) -> float:
        return float(seconds * np.exp(noise * rng.standard_normal()))

    return [
        Load(
            point.concurrency or 0,
            point.inputs[1],
            point.outputs[1],
            point.requests or 0,
            noisy(seconds[Kind.TTFT] + overhead_s),
            noisy(seconds[Kind.TPOT]),
        )
        for point, seconds in zip(points, times, strict=True)
    ]


def _bench(load: Load, document: dict[str, Any]) -> dict[str, Any]:
    return document | {
        "max_concurrency": load.users,
        "completed": load.requests,
        "duration": load.requests / load.rate,
        "total_input_tokens": load.requests * load.inputs,
        "total_output_tokens": load.requests * load.outputs,
        "request_throughput": load.rate,
        "mean_ttft_ms": 1e3 * load.ttft,
        "mean_tpot_ms": 1e3 * load.tpot,
        "mean_e2e_latency_ms": 1e3 * load.e2e,
    }


def vllm_bench(some: Sequence[Load]) -> list[str]:
    return ["".join(f"{json.dumps(_bench(load, VLLM))}\n" for load in some)]


def sglang_bench(some: Sequence[Load]) -> list[str]:
    fixed = SGLANG | {"random_range_ratio": 1.0}
    runs = [_bench(load, fixed) for load in some]
    for one, load in zip(runs, some, strict=True):
        one |= {"random_input_len": load.inputs, "random_output_len": load.outputs}
    return ["".join(f"{json.dumps(one)}\n" for one in runs)]


def printed(some: Sequence[Load]) -> list[str]:
    blocks = [
        f"""Maximum request concurrency: {load.users}
============ Serving Benchmark Result ============
Successful requests:                     {load.requests}
Benchmark duration (s):                  {load.requests / load.rate:.2f}
Total input tokens:                      {load.requests * load.inputs}
Total generated tokens:                  {load.requests * load.outputs}
Request throughput (req/s):              {load.rate:.2f}
---------------Time to First Token----------------
Mean TTFT (ms):                          {1e3 * load.ttft:.2f}
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          {1e3 * load.tpot:.2f}
==================================================
"""
        for load in some
    ]
    return ["starting\n" + "".join(blocks)]


def guide_llm(some: Sequence[Load]) -> list[str]:
    runs = [
        guidellm(
            {"type_": "concurrent", "streams": load.users},
            request_totals={"successful": load.requests, "total": load.requests},
            requests_per_second=summary(load.rate),
            request_latency=summary(load.e2e),
            prompt_token_count=summary(load.inputs),
            output_token_count=summary(load.outputs),
            time_to_first_token_ms=summary(1e3 * load.ttft),
            inter_token_latency_ms=summary(1e3 * load.tpot),
        )
        for load in some
    ]
    return [json.dumps(report(*runs))]


def ai_perf(some: Sequence[Load]) -> list[str]:
    return [
        json.dumps(
            aiperf(
                {"loadgen": {"concurrency": load.users}},
                request_throughput=metric(load.rate, "requests/sec"),
                request_latency=metric(1e3 * load.e2e),
                request_count=metric(load.requests, "requests"),
                time_to_first_token=metric(1e3 * load.ttft),
                inter_token_latency=metric(1e3 * load.tpot),
                output_sequence_length=metric(load.outputs, "tokens", std=0.0),
                input_sequence_length=metric(load.inputs, "tokens", std=0.0),
            )
        )
        for load in some
    ]


def llm_perf(some: Sequence[Load]) -> list[str]:
    return [
        json.dumps(
            {
                "model": "m",
                "num_concurrent_requests": load.users,
                "results_inter_token_latency_s_mean": load.e2e / load.outputs,
                "results_ttft_s_mean": load.ttft,
                "results_end_to_end_latency_s_mean": load.e2e,
                "results_number_input_tokens_mean": load.inputs,
                "results_number_output_tokens_mean": load.outputs,
                "results_num_completed_requests": load.requests,
                "results_num_completed_requests_per_min": 60 * load.rate,
            }
        )
        for load in some
    ]


def genai_perf(some: Sequence[Load]) -> list[str]:
    return [
        f"""Metric,avg,min,max
Time to First Token (ms),"{1e3 * load.ttft:,.2f}",1.0,1.0
Inter Token Latency (ms),"{1e3 * load.tpot:,.2f}",1.0,1.0
Request Latency (ms),"{1e3 * load.e2e:,.2f}",1.0,1.0
Output Sequence Length (tokens),"{load.outputs:,.2f}",1.0,1.0
Input Sequence Length (tokens),"{load.inputs:,.2f}",1.0,1.0

Metric,Value
Request Throughput (per sec),{load.rate:.4f}
Request Count (count),{load.requests:.2f}
"""
        for load in some
    ]


def sweep_table(some: Sequence[Load]) -> list[str]:
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(
        ("concurrency", "input_tokens", "output_tokens", "num_requests", "ttft_ms", "tpot_ms", "e2e_ms")
    )
    writer.writerows((*load[:4], 1e3 * load.ttft, 1e3 * load.tpot, 1e3 * load.e2e) for load in some)
    return [text.getvalue()]


def inference_perf(some: Sequence[Load]) -> list[str]:
    """Stages of a concurrency each, whose time per output token is half of what it is."""
    reports = [stage(load.rate, load.rate, load.rate, load.e2e) for load in some]
    for one, load in zip(reports, some, strict=True):
        one["load_summary"]["concurrency"] = load.users
        done = one["successes"]
        done |= {
            "count": load.requests,
            "prompt_len": {"mean": load.inputs},
            "output_len": {"mean": load.outputs},
        }
        done["latency"]["time_to_first_token"] = {"mean": load.ttft}
        done["latency"]["time_per_output_token"] = {"mean": load.tpot / 2}
    return [json.dumps(one) for one in reports]


def inference_max(some: Sequence[Load]) -> list[str]:
    """Results that name the longest of lengths."""
    unknown = {"mean_e2el": None, "median_e2el": None, "output_tput_per_gpu": None}
    runs = [
        INFERENCEMAX
        | unknown
        | {"conc": load.users, "isl": load.inputs, "osl": load.outputs}
        | {"mean_ttft": load.ttft, "mean_tpot": load.tpot}
        for load in some
    ]
    return ["".join(f"{json.dumps(one)}\n" for one in runs)]


LOADS: tuple[Callable[[Sequence[Load]], list[str]], ...] = (
    *(vllm_bench, guide_llm, printed, ai_perf, llm_perf, genai_perf, sweep_table, sglang_bench),
    *(inference_perf, inference_max),
)
