"""Small files of results in the forms their projects write, and a run with its requests and its series.

Keys of the small documents here are those of vllm/benchmarks/serve.py 0.19, sglang/benchmark/serving.py 0.5.23,
guidellm/benchmark/schemas 0.3.1, 0.5.4 and 0.8.1, aiperf/common/models/export_models.py 0.3 and 0.13,
genai_perf/export_data/json_exporter.py 0.0.16, InferenceMAX utils/process_result.py, inference-perf reportgen/base.py,
dynamo/common/forward_pass_metrics.py and Dynamo's reference of dynamo.fpm.trace.v1.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

HEADER = "input_tokens,output_tokens,arrival_time,scheduled_time,first_token_time,last_token_time\n"
SERIES = "t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct\n"
_DOCUMENTS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
VLLM, SGLANG, INFERENCEMAX, FORWARD_PASS = _DOCUMENTS.values()


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
