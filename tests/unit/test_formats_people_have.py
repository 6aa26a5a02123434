"""Formats that people have, each small, and each with one that is damaged or lies."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import UsageError
from kvplan.ingest.gathering import Asked, gather_files
from kvplan.ingest.model.config import read_model
from kvplan.ingest.model.shape import kv_bytes_per_token
from kvplan.ingest.timing.reading import read_groups
from kvplan.ingest.timing.samples import Point, Sweep


def imported(folder: Path, text: str, **asked: Any) -> dict[str, Any]:
    """The tables of a profile."""
    return dict(gather_files([(None, written(folder, text))], Asked(**asked), None).profile.tables)


def written(folder: Path, text: str) -> Path:
    path = folder / "given"
    path.write_text(text)
    return path


def refused(folder: Path, text: str) -> str:
    """Why a file is not read."""
    with pytest.raises(UsageError) as caught:
        imported(folder, text)
    return str(caught.value)


def points(folder: Path, text: str) -> tuple[Point, ...]:
    ((found,),) = read_groups([written(folder, text)])
    assert isinstance(found, Sweep)
    return found.points


# -- llm-d's benchmark report -----------------------------------------------------------------------------------------

REPORT = """\
results:
  request_performance:
    aggregate:
      latency:
        request_latency:
          mean: 2.19
          units: s
        time_per_output_token:
          mean: 0.5
          units: s/token
        time_to_first_token:
          mean: 210.0
          units: ms
      requests:
        failures: 2
        input_length:
          mean: 1000.0
        output_length:
          mean: 100.0
        total: 502
      throughput:
        request_rate:
          mean: 7.3
          units: queries/s
scenario:
  load:
    standardized:
      concurrency: 16
      rate_qps: .inf
  stack:
  - metadata:
      label: 'vllm: a'
    standardized:
      kind: inference_engine
      model:
        name: Qwen/Qwen3-14B
      replicas: 1
version: '0.2'
"""
FIRST = {
    "version": "0.1",
    "scenario": {"model": {"name": "m"}, "load": {"args": {"max_concurrency": 4, "request_rate": "inf"}}},
    "metrics": {
        "requests": {"total": 40, "input_length": {"mean": 10}, "output_length": {"mean": 11}},
        "latency": {
            "time_to_first_token": {"units": "ms", "mean": 20.0},
            "time_per_output_token": {"units": "ms/token", "mean": 5.0},
        },
        "throughput": {"requests_per_sec": 50.0},
    },
}


def test_a_report_of_llm_d_is_one_load(tmp_path: Path) -> None:
    """(2.19 - 0.21) s over 99 tokens are 20 ms, whatever the tool took for TPOT."""
    (point,) = points(tmp_path, REPORT)
    assert (point.concurrency, point.requests, point.throughput_rps) == (16, 500, 7.3)
    assert (point.ttft_s, point.tpot_s, point.e2e_s) == pytest.approx((0.21, 0.02, 2.19))
    (point,) = points(tmp_path, json.dumps(FIRST))
    assert (point.concurrency, point.inputs, point.outputs) == (4, (10, 10), (11, 11))
    assert (point.ttft_s, point.tpot_s) == pytest.approx((0.02, 0.005))


def test_a_stage_of_a_report_has_the_rate_that_was_asked_for(tmp_path: Path) -> None:
    """Answers of 11 tokens, .02 + 10 x .005 s each; 50 of 50 requests/s, in the second stage."""
    stages = {"load": {"stages": [{"rate": 2.0}, {"rate": 50.0}]}}
    for stage, rate in ((1, 50.0), (1.0, 50.0), ("x", None), (7, None)):
        asked = {"args": stages, "metadata": {"stage": stage}}
        (point,) = points(tmp_path, json.dumps(FIRST | {"scenario": {"load": asked}}))
        assert rate is None or point.rate_rps == rate
        assert (point.rate_rps is None) == (point.concurrency is not None)
    (point,) = points(tmp_path, json.dumps(FIRST | {"scenario": "of mine"}))
    assert point.concurrency == round(50 * (0.02 + 10 * 0.005))


def test_a_report_of_several_replicas_or_in_no_unit_of_time_is_refused(tmp_path: Path) -> None:
    assert "2 replicas together" in refused(tmp_path, REPORT.replace("replicas: 1", "replicas: 2"))
    assert "'moons'" in refused(tmp_path, REPORT.replace("units: ms", "units: moons"))
    deep = "results:\n" + "".join(f"{' ' * i}k:\n" for i in range(1, 3000)) + " request_performance:\n"
    assert "not recognized" in refused(tmp_path, deep)


# -- GGUF --------------------------------------------------------------------------------------------------------------

SIZES = {"block_count": 32, "context_length": 131_072, "embedding_length": 4096, "feed_forward_length": 14_336,
         "attention.head_count": 32, "attention.head_count_kv": 8, "rope.dimension_count": 128}  # fmt: skip


def gguf(architecture: str = "llama", words: int = 128_256, **more: int) -> bytes:
    """A header of Llama 3.1 8B, and a byte of weights for every second of its elements."""

    def text(word: str) -> bytes:
        return struct.pack("<Q", len(word)) + word.encode()

    keys = [text("general.architecture") + struct.pack("<I", 8) + text(architecture)]
    keys += [
        text(f"{architecture}.{name}") + struct.pack("<II", 4, value)
        for name, value in (SIZES | more).items()
    ]
    keys.append(text("tokenizer.ggml.token_type") + struct.pack("<IIQ", 9, 5, words) + bytes(4 * words))
    keys.append(text(f"{architecture}.vocab_size") + struct.pack("<II", 4, words))
    tensor = text("output.weight") + struct.pack("<IQQIQ", 2, 100, 40, 12, 0)
    return b"GGUF" + struct.pack("<IQQ", 3, 1, len(keys)) + b"".join(keys) + tensor + bytes(2000)


def test_a_header_of_gguf_is_a_model(tmp_path: Path) -> None:
    """2 x 32 layers x 8 heads x 128 x 2 B = 131,072 B a token; 2,000 bytes for 4,000 elements are 4 bits each."""
    path = tmp_path / "llama.gguf"
    path.write_bytes(gguf())
    shape, like = read_model(path), read_model("Llama-3.1-8B")
    assert kv_bytes_per_token(shape) == 131_072
    assert shape.counts == like.counts
    assert shape.weight_bytes == like.counts.total // 2
    assert (
        gather_files([(None, path)], Asked(gpu="H100 SXM"), None).profile.tables["model"]["weights"] == "GGUF"
    )


def test_a_header_that_is_cut_off_or_lies_is_refused(tmp_path: Path) -> None:
    path, whole = tmp_path / "bad.gguf", gguf(words=10)
    end = len(whole) - 2000
    for size in range(4, end, 7):
        path.write_bytes(whole[:size])
        with pytest.raises(UsageError, match="cut off"):
            read_model(path)
    for damaged, why in (
        (whole.replace(struct.pack("<IIQ", 9, 5, 10), struct.pack("<IIQ", 9, 5, 1 << 60)), "cut off"),
        (whole.replace(struct.pack("<IIQ", 9, 5, 10), struct.pack("<IIQ", 77, 5, 10)), "type 77"),
        (whole.replace(struct.pack("<IIQ", 9, 5, 10), struct.pack("<IIQ", 9, 9, 1) * 9999), "type 9"),
        (whole.replace(struct.pack("<I", 3), struct.pack("<I", 1), 1), "version 1"),
        (gguf("mamba9"), "'mamba9'"),
        (gguf(expert_group_count=8), "expert_group_count"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match=why):
            read_model(path)


# -- engines -----------------------------------------------------------------------------------------------------------

OLLAMA = 'msg=load request="{{Operation:{} LoraPath:[] Parallel:4 BatchSize:512 KvSize:{} KvCacheType: }}"\n'


def test_ollamas_engine_commits_a_room(tmp_path: Path) -> None:
    start = 'time=2025-09-11T00:42:49.552+02:00 level=INFO msg="starting ollama engine"\n'
    log = start + OLLAMA.format("fit", 65_536) + OLLAMA.format("commit", 32_768)
    gpu = imported(tmp_path, log)["gpu"]
    assert (gpu["memory_tokens"], gpu["max_num_seqs"], gpu["max_num_batched_tokens"]) == (32_768, 4, 512)
    assert "states no KV capacity" in refused(tmp_path, start + OLLAMA.format("fit", 65_536))


INFO = {"model_path": "m", "tp_size": 2, "max_running_requests": 64, "chunked_prefill_size": 8192,
        "page_size": 16, "max_total_num_tokens": 375_360, "internal_states": [{"token_usage": 1.5}]}  # fmt: skip


@pytest.mark.parametrize("indent", [None, 2])
def test_sglangs_server_info_is_what_it_logs(tmp_path: Path, indent: int | None) -> None:
    gpu = imported(tmp_path, json.dumps(INFO, indent=indent) + "\n")["gpu"]
    assert (gpu["memory_tokens"], gpu["block_tokens"], gpu["max_num_seqs"]) == (375_360, 16, 64)
    assert (gpu["max_num_batched_tokens"], gpu["gpus"]) == (8192, 2)
    assert "not recognized" in refused(
        tmp_path, json.dumps(INFO | {"max_total_num_tokens": None}, indent=indent)
    )


def test_props_of_llama_server_leave_open_whose_room_it_is(tmp_path: Path) -> None:
    props = {"default_generation_settings": {"n_ctx": 8192}, "total_slots": 4, "model_path": "m.gguf"}
    assert "total_slots" in refused(tmp_path, json.dumps(props))


def test_metrics_of_lmdeploy_have_lengths(tmp_path: Path) -> None:
    """600 requests in 600 s, of 800 tokens and 150."""
    labels = 'engine="0",model_name="m"'
    text = "".join(
        f'lmdeploy:{name}_bucket{{le="{le}",{labels}}} 600\nlmdeploy:{name}_bucket{{le="+Inf",{labels}}} 600\n'
        f"lmdeploy:{name}_count{{{labels}}} 600\nlmdeploy:{name}_sum{{{labels}}} {total}\n"
        for name, le, total in (
            ("request_prompt_tokens", 1000, 480_000),
            ("request_generation_tokens", 200, 90_000),
        )
    )
    classes = imported(tmp_path, text, interval="600 s")["classes"]
    assert sum(one["rate"] for one in classes) == pytest.approx(1.0)
    assert sum(one["rate"] * one["input"] for one in classes) == pytest.approx(800, rel=0.02)


def test_mlperfs_detail_says_what_its_summary_does(tmp_path: Path) -> None:
    """1,265.6 tokens/s of 11.08 requests/s sent are 114.2 tokens each."""
    figures = {"result_scheduled_samples_per_sec": 11.08, "result_completed_samples_per_sec": 11.07,
               "result_mean_latency_ns": 4_335_286_743, "result_first_token_mean_latency_ns": 169_476_022,
               "result_token_throughput_with_loadgen_overhead": 1265.6,
               "result_time_to_output_token_mean": 36_800_000}  # fmt: skip
    detail = "".join(
        f':::MLLOG {{"key": "{k}", "value": {v}, "metadata": {{}}}}\n' for k, v in figures.items()
    )
    said = refused(tmp_path, f':::MLLOG {{"key": "scenario", "value": "Server"}}\n{detail}')
    assert all(
        part in said for part in ("MLPerf", "11.07 requests/s", "TPOT 36.8 ms", "114.2 tokens", "prompts")
    )
    assert "not recognized" in refused(tmp_path, detail.replace(', "value"', ', "val'))


# -- lines that a terminal broke ---------------------------------------------------------------------------------------

START = (
    "INFO 10-02 11:00:00 [utils.py:233] non-default args: {'model': 'Qwen/Qwen3-14B', 'max_num_seqs': 128, "
    "'max_num_batched_tokens': 8192, 'tensor_parallel_size': 2}",
    "(EngineCore_DP0 pid=123) INFO 10-02 11:01:00 [kv_cache_utils.py:1087] GPU KV cache size: 446,320 tokens",
    "(EngineCore_DP0 pid=123) INFO 10-02 11:01:00 [kv_cache_utils.py:1091] Maximum concurrency for 8,192 tokens per "
    "request: 54.48x",
)


def test_lines_that_a_terminal_broke_are_joined(tmp_path: Path) -> None:
    whole = imported(tmp_path, "\n".join(START) + "\n")["gpu"]
    assert (whole["memory_tokens"], whole["gpus"]) == (446_320, 2)
    for width in (70, 80, 99, 100):
        parts = [line[i : i + width].rstrip() for line in START for i in range(0, len(line), width)]
        assert imported(tmp_path, "\n".join(parts) + "\n")["gpu"] == whole, width


def test_lines_of_one_length_are_not_joined(tmp_path: Path) -> None:
    """Every line is as long as the longest; what follows it begins anew, or is none of a log."""
    lines = [line.ljust(130, ".") for line in START]
    assert imported(tmp_path, "\n".join(lines) + "\n")["gpu"]["memory_tokens"] == 446_320
    assert "not recognized" in refused(tmp_path, ("x" * 80 + "\n") * 50)
    served = [f"INFO:     10.0.0.1:{port} - POST /v1/completions 200 OK" for port in range(10_000, 10_008)]
    whole = "\n".join([*START, *served, START[0], *served, START[0], *served]) + "\n"
    assert "terminal" not in gather_files([(None, written(tmp_path, whole))], Asked(), None).profile.text


# -- what results are not ----------------------------------------------------------------------------------------------

LOAD = {"completed": 100, "total_input_tokens": 50_000, "total_output_tokens": 10_000, "duration": 10.0,
        "request_throughput": 10.0, "request_rate": 10.0, "max_concurrency": None, "mean_ttft_ms": 100.0,
        "mean_tpot_ms": 10.0, "mean_e2el_ms": 1090.0}  # fmt: skip


def test_what_results_are_not_is_said(tmp_path: Path) -> None:
    """100 requests of 100 tokens: .1 s and 99 x .01 s are 1.09 s; 20/s of 10 is no chance."""
    for changed, said, expected in (
        ({}, "", (10.0, 0.1, 0.01)),
        ({"mean_ttft_ms": 1085.0, "mean_tpot_ms": 0.05}, "not streamed", (10.0, None, None)),
        ({"mean_ttft_ms": None, "mean_tpot_ms": None}, "not streamed", (10.0, None, None)),
        ({"request_throughput": 20.0}, "served faster than offered, 20 requests/s of 10", (20.0, 0.1, 0.01)),
        ({"request_throughput": 12.0}, "", (10.0, 0.1, 0.01)),
        ({"p99_ttft_ms": 900.0}, "percentiles of times are left out", (10.0, 0.1, 0.01)),
    ):
        path = tmp_path / "load.json"
        path.write_text(json.dumps(LOAD | changed) + "\n")
        ((found,),) = read_groups([path])
        assert isinstance(found, Sweep)
        (point,) = found.points
        assert (point.rate_rps, point.ttft_s, point.tpot_s) == expected, changed
        notes = [note for note in found.notes if "streamed" in note or "faster" in note or "percent" in note]
        assert len(notes) == bool(said), changed
        assert all(said in note for note in notes)


# -- engines' own defaults, and files of which nothing is taken --------------------------------------------------------

SWEEP = "concurrency,input_tokens,output_tokens,ttft_ms,tpot_ms\n1,1000,100,50,10\n16,1000,100,210,20\n"


@pytest.mark.parametrize(("engine", "tokens"), [("trtllm", 8192), ("sglang", 8192), ("vllm", 8192)])
def test_an_engine_that_is_named_has_its_own_limits(tmp_path: Path, engine: str, tokens: int) -> None:
    told = {"model": "Qwen3-14B", "gpu": "H100 SXM", "engine": engine, "capacity": 200_000}
    tables = imported(tmp_path, SWEEP, **told)
    assert tables["gpu"]["max_num_batched_tokens"] == tokens
    assert tables.get("engine", {}).get("name", "vllm") == engine


def test_an_engine_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "given"
    path.write_text(SWEEP)
    with pytest.raises(UsageError, match="one of vllm, sglang, trtllm"):
        gather_files([(None, path)], Asked(engine="trtllm; rm", gpu="H100 SXM", model="Qwen3-14B"), None)


def test_blocks_of_trtllm_serve_have_a_size_of_their_own_or_in_a_label(tmp_path: Path) -> None:
    blocks = "trtllm_kv_cache_max_blocks 1000\n"
    for size in (
        'trtllm_cache_config_info{tokens_per_block="32"} 1\n',
        "trtllm_kv_cache_tokens_per_block 32\n",
    ):
        assert imported(tmp_path, blocks + size)["gpu"]["memory_tokens"] == 32_000
    lies = blocks + 'trtllm_cache_config_info{tokens_per_block="-32"} 1\n'
    assert "nothing" in refused(tmp_path, lies) or "not" in refused(tmp_path, lies)
