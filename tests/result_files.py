"""Small files of results in the forms their projects write, and a run with its requests and its series.

Keys of the small documents here are those of vllm/benchmarks/serve.py 0.19, sglang/benchmark/serving.py 0.5.23,
guidellm/benchmark/schemas 0.3.1, 0.5.4 and 0.8.1, aiperf/common/models/export_models.py 0.3 and 0.13,
genai_perf/export_data/json_exporter.py 0.0.16, InferenceMAX utils/process_result.py, inference-perf reportgen/base.py,
dynamo/common/forward_pass_metrics.py and Dynamo's reference of dynamo.fpm.trace.v1.
"""

from typing import Any

import numpy as np

HEADER = "input_tokens,output_tokens,arrival_time,scheduled_time,first_token_time,last_token_time\n"
SERIES = "t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct\n"
VLLM = {
    "date": "20260420-101500",
    "endpoint_type": "vllm",
    "backend": "vllm",
    "label": None,
    "model_id": "meta-llama/Llama-3.1-8B",
    "tokenizer_id": "meta-llama/Llama-3.1-8B",
    "num_prompts": 100,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 32,
    "duration": 50.0,
    "completed": 100,
    "failed": 0,
    "total_input_tokens": 100_000,
    "total_output_tokens": 20_000,
    "request_throughput": 2.0,
    "output_throughput": 400.0,
    "mean_ttft_ms": 250.0,
    "mean_tpot_ms": 20.0,
    "mean_itl_ms": 20.0,
    "max_concurrent_requests": 32,
}
SGLANG = {
    "tag": None,
    "backend": "sglang",
    "dataset_name": "random",
    "request_rate": float("inf"),
    "max_concurrency": 16,
    "random_input_len": 1000,
    "random_output_len": 200,
    "random_range_ratio": 0.5,
    "duration": 25.0,
    "completed": 50,
    "total_input_tokens": 37_500,
    "total_output_tokens": 7500,
    "request_throughput": 2.0,
    "mean_e2e_latency_ms": 3000.0,
    "mean_ttft_ms": 250.0,
    "mean_tpot_ms": 18.0,
    "concurrency": 15.3,
    "accept_length": None,
}
INFERENCEMAX = {
    "hw": "b200",
    "conc": 64,
    "image": "vllm/vllm-openai:v0.11.2",
    "model": "openai/gpt-oss-120b",
    "infmax_model_prefix": "gptoss",
    "framework": "vllm",
    "precision": "fp4",
    "spec_decoding": "none",
    "disagg": False,
    "isl": 1000,
    "osl": 2000,
    "is_multinode": False,
    "tp": 4,
    "ep": 1,
    "dp_attention": "false",
    "tput_per_gpu": 1350.0,
    "output_tput_per_gpu": 900.0,
    "mean_ttft": 0.12,
    "median_ttft": 0.1,
    "mean_tpot": 0.011,
    "median_tpot": 0.01,
    "mean_intvty": 90.9,
    "mean_e2el": 20.0,
}
FORWARD_PASS = {
    "version": 1,
    "worker_id": "4192",
    "dp_rank": 0,
    "counter_id": 42,
    "wall_time": 0.025,
    "scheduled_requests": {
        "num_prefill_requests": 2,
        "sum_prefill_tokens": 256,
        "var_prefill_length": 100.0,
        "sum_prefill_kv_tokens": 64,
        "num_decode_requests": 3,
        "sum_decode_kv_tokens": 1024,
        "var_decode_kv_tokens": 50.0,
    },
    "queued_requests": {"num_prefill_requests": 1, "sum_prefill_tokens": 128},
}


def summary(mean: float, deviation: float = 0.0, count: int = 80) -> dict[str, Any]:
    """A distribution as GuideLLM has it."""
    return {"successful": {"mean": mean, "median": mean, "std_dev": deviation, "count": count}}


def guidellm(strategy: dict[str, Any], **metrics: Any) -> dict[str, Any]:
    return {
        "type_": "generative_benchmark",
        "config": {"strategy": strategy, "backend": {"model": "org/model"}},
        "metrics": {
            "request_totals": {"successful": 80, "errored": 0, "incomplete": 2, "total": 82},
            "requests_per_second": summary(4.0),
            "request_latency": summary(2.0),
            "prompt_token_count": summary(512.0),
            "output_token_count": summary(101.0),
            "time_to_first_token_ms": summary(200.0),
            "time_per_output_token_ms": summary(19.8),
            "inter_token_latency_ms": summary(18.0),
            **metrics,
        },
    }


def report(*benchmarks: dict[str, Any]) -> dict[str, Any]:
    return {
        "metadata": {"version": 2, "guidellm_version": "0.8.1"},
        "config": {},
        "benchmarks": list(benchmarks),
    }


def metric(average: float, unit: str = "ms", **more: float) -> dict[str, Any]:
    return {"unit": unit, "avg": average, **more}


def aiperf(config: dict[str, Any], **metrics: Any) -> dict[str, Any]:
    return {
        "schema_version": "1.4",
        "request_throughput": metric(4.0, "requests/sec"),
        "request_latency": metric(2000.0, p50=1900.0),
        "request_count": metric(80.0, "requests"),
        "time_to_first_token": metric(200.0),
        "inter_token_latency": metric(18.0),
        "output_sequence_length": metric(101.0, "tokens", std=0.0),
        "input_sequence_length": metric(512.0, "tokens", std=0.0),
        "input_config": config,
        **metrics,
    }


def stage(requested: float, achieved: float, done: float, e2e: float) -> dict[str, Any]:
    """A report of inference-perf."""
    return {
        "load_summary": {
            "count": 600,
            "send_duration": 60.0,
            "requested_rate": requested,
            "achieved_rate": achieved,
        },
        "successes": {
            "count": 600,
            "latency": {
                "request_latency": {"mean": e2e},
                "time_per_output_token": {"mean": 0.005},
                "time_to_first_token": {"mean": 0.1},
            },
            "throughput": {"requests_per_sec": done},
            "prompt_len": {"mean": 200.0, "p25": 198.0, "p75": 203.0},
            "output_len": {"mean": 64.0, "p25": 64.0, "p75": 64.0},
        },
        "failures": {"count": 0, "request_latency": None, "prompt_len": None},
    }


PHASE = {"name": "profiling", "type": "concurrency", "concurrency": 8}


def run(seed: int = 0) -> tuple[list[str], list[str]]:
    """Requests and the series of a run whose iterations take 8 ms, and 0.2 ms more for each in the batch."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(0.2, 120))
    waiting = [(at, int(rng.integers(100, 900)), int(rng.integers(20, 300))) for at in arrivals]
    now, batch, done, tokens, prompts, ends = 0.0, [], [], [], [], []
    while waiting or batch:
        if not batch:
            now = max(now, waiting[0][0])
        begun = [(*waiting.pop(0), now) for _ in range(len(waiting)) if waiting[0][0] <= now]
        now += 0.008 + 0.0002 * (len(batch) + len(begun)) + 5e-5 * sum(prompt for _, prompt, _, _ in begun)
        prompts += [(now, prompt) for _, prompt, _, _ in begun]
        batch = [(*request, [now]) for request in begun] + [
            (*request[:4], [*request[4], now]) for request in batch
        ]
        tokens += [now] * len(batch)
        ends.append((now, len(batch)))
        done += [request for request in batch if len(request[4]) == request[2]]
        batch = [request for request in batch if len(request[4]) < request[2]]
    log = [
        f"{prompt},{output},{at},{start},{times[0]},{times[-1]}\n"
        for at, prompt, output, start, times in done
    ]
    seconds = np.arange(1, int(now) + 1)
    running = [next((size for at, size in reversed(ends) if at <= second), 0) for second in seconds]
    table = [
        f"{second},{sum(prompt for at, prompt in prompts if second - 1 < at <= second)},"
        f"{sum(second - 1 < at <= second for at in tokens)},{size},0,0\n"
        for second, size in zip(seconds, running, strict=True)
    ]
    return log, table
