"""Logs that were read wrong without a word: other starts, drafts, orders and pods in one file, numbers cut off."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from every import every
from sampled import parse_samples, read_samples

from kvplan.engine import EngineName
from kvplan.errors import UsageError
from kvplan.ingest.engine_log import ReadLog, read_log
from kvplan.ingest.gathering import Asked, gather_files
from kvplan.ingest.recognition import kind_of
from kvplan.ingest.timing.samples import Samples

SERVER = "(APIServer pid=1) INFO 10-02 {}:30:01 [api_server.py:1839] vLLM API server version 0.11.0"
ARGUMENTS = "(APIServer pid=1) INFO 10-02 {}:30:02 [utils.py:233] non-default args: {{{}}}"
TOKENS = "(EngineCore_DP0 pid=7) INFO 10-02 {}:31:12 [kv_cache_utils.py:1087] GPU KV cache size: {} tokens"
STATS = (
    "(APIServer pid=1) INFO 10-02 {}:{}:00 [loggers.py:123] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg "
    "generation throughput: 200.0 tokens/s, Running: 2 reqs, Waiting: 0 reqs, GPU KV cache usage: 10.0%, Prefix "
    "cache hit rate: 0.0%"
)


def start(hour: str, arguments: str, tokens: str) -> list[str]:
    stats = [STATS.format(hour, minute) for minute in (40, 50)]
    return [SERVER.format(hour), ARGUMENTS.format(hour, arguments), TOKENS.format(hour, tokens), *stats]


def kv_tokens(lines: list[str]) -> list[float]:
    (found,) = parse_samples([f"{line}\n" for line in lines], "serve.log")
    assert isinstance(found, Samples)
    return found.kv_tokens.tolist()


SERVER_ARGS = "[2025-05-31 18:30:00] server_args=ServerArgs(model_path='m', tp_size={}, page_size=1)"
DECODE = (
    "[2025-05-31 18:31:00 TP0] Decode batch. #running-req: 8, #token: {}, gen throughput (token/s): 500.0"
)


@every(
    ("lines", "expected"),
    [
        (start("09", "'tensor_parallel_size': 2", "100,000") + start("10", "", "300,000"), [3e4, 3e4]),
        (start("09", "'max_num_seqs': 8", "100,000") + start("10", "", "300,000"), [1e4, 1e4, 3e4, 3e4]),
        (start("09", "'num_speculative_tokens': 3", "100,000") + start("10", "", "300,000"), [3e4, 3e4]),
        ([SERVER_ARGS.format(1), DECODE.format(900), SERVER_ARGS.format(2), DECODE.format(700)], [700]),
        ([SERVER_ARGS.format(2), DECODE.format(900), SERVER_ARGS.format(2), DECODE.format(700)], [900, 700]),
    ],
)
def test_iterations_of_a_start_with_other_settings_do_not_count(
    lines: list[str], expected: list[float]
) -> None:
    assert sorted(kv_tokens(lines)) == sorted(expected)


@every(
    "said",
    [
        ARGUMENTS.format("10", "'speculative_config': {'method': 'eagle3', 'num_speculative_tokens': 3}"),
        "INFO [core.py:65] Initializing a V1 LLM engine (v0.11.0) with config: model='m', "
        "speculative_config=SpeculativeConfig(method='ngram', model=None, num_spec_tokens=4), max_seq_len=4096",
        "INFO 12-16 16:46:04 metrics.py:482] Speculative metrics: Draft acceptance rate: 0.797, System efficiency: "
        "0.640, Number of speculative tokens: 5, Number of accepted tokens: 197711",
        "INFO [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 2.3",
    ],
)
def test_averages_with_drafts_are_left_out_whichever_line_tells_of_them(said: str) -> None:
    with pytest.raises(UsageError, match="2 rows: an average of iterations with drafts"):
        kv_tokens([TOKENS.format("10", "100,000"), said, STATS.format("10", 40), STATS.format("10", 50)])


@every(
    "line",
    ["INFO kv_cache_utils.py:395] # GPU blocks: 13", "[2026-06-28 15:16:45] max_total_num_tokens=2086"],
)
def test_a_number_that_ends_with_the_file_may_be_cut_off(line: str) -> None:
    def said(text: str) -> bool:
        return any(
            "line 1, the last, has no end" in note for note in ReadLog("serve.log").add([text]).limits().notes
        )

    assert said(line)
    assert not said(line + "\n")
    assert not said(line + ", more")


@every(
    "lines",
    [
        (
            "main: loading model",
            "llama_context: n_ctx         = 32768",
            "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
            "srv    load_model: failed to load model",
        ),
        (
            "[TensorRT-LLM][INFO] TensorRT-LLM version: 1.0.0",
            "[TensorRT-LLM][INFO] Using 132608 tokens in paged KV cache.",
            "[10/02/2025-09:00:00] [TRT-LLM] [E] Failed to initialize executor on rank 0: CUDA out of memory",
        ),
    ],
)
def test_a_start_that_fails_after_its_capacity_is_refused(lines: tuple[str, ...]) -> None:
    with pytest.raises(
        UsageError, match=r"serve.log:3: the last start, from line 1 on, failed.*[Ff]ailed to init"
    ):
        ReadLog("serve.log").add([f"{line}\n" for line in lines]).limits()


# -- exports: orders, CSV, pods ---------------------------------------------------------------------------------------

LOG = start("09", "'max_num_seqs': 64", "100,000") + start("10", "'max_num_seqs': 16", "40,000")
STAMPS = [f"2025-10-02T09:{minute:02d}:00Z" for minute in range(len(LOG))]


def table(*columns: str) -> Callable[[list[tuple[str, str]]], str]:
    def text(rows: list[tuple[str, str]]) -> str:
        file = io.StringIO()
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([columns, *rows])
        return file.getvalue()

    return text


EXPORTS: dict[str, Callable[[list[tuple[str, str]]], str]] = {
    "plain": lambda rows: "".join(f"{line}\n" for _, line in rows),
    "logcli": lambda rows: "".join(f'{time} {{app="x", pod="a-0"}} {line}\n' for time, line in rows),
    "CloudWatch": table("@timestamp", "@message"),
    "Kibana": table("@timestamp", "message"),
    "Splunk": table("_time", "_raw"),
    "Cloud Logging": table("timestamp", "textPayload"),
    "no known time": table("when", "Message"),
}


@every("name", EXPORTS)
def test_an_export_in_either_order_says_what_the_log_says(name: str, tmp_path: Path) -> None:
    path = tmp_path / "export"
    rows = list(zip(STAMPS, LOG, strict=True))
    for newest_first in (False, True):
        path.write_text(EXPORTS[name](rows[::-1] if newest_first else rows))
        assert kind_of(path).value == "log"
        limits, (samples,) = read_log(path).limits(), read_samples(path)
        assert (limits.memory_tokens, limits.max_num_seqs) == (40_000, 16)
        assert samples.kv_tokens == pytest.approx([1e4, 1e4, 4e3, 4e3])
        assert any("the newest first" in note for note in limits.notes) == newest_first


def test_two_lines_that_threads_mixed_are_no_order(tmp_path: Path) -> None:
    path = tmp_path / "serve.log"
    path.write_text(f"{STATS.format('09', 41)}\n{STATS.format('09', 40)}\n{TOKENS.format('09', '9,000')}\n")
    assert not any("newest" in note for note in read_log(path).limits().notes)


def test_requests_in_a_table_with_a_text_are_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("timestamp,message,input_tokens,output_tokens\n" + "3,hello,300,40\n2,hello,300,40\n" * 9)
    assert kind_of(path).value == "requests"


@every(
    "prefix",
    ["{}-0 vllm ", "[pod/{}-0/vllm] ", "{}-0  | ", '2025-10-02T09:30:00Z {{pod="{}-0", stream="stderr"}} '],
)
@every(
    "line",
    [
        TOKENS.format("09", "9,000"),
        "[TensorRT-LLM][INFO] Using 9000 tokens in paged KV cache.",
        "[TM][INFO] [BlockManager] max_block_count = 6214",
        "2025-10-02T09:30:00Z INFO text_generation_router: Setting max batch total tokens to 446320",
    ],
)
def test_pods_are_told_apart_by_what_stands_before_their_lines(
    prefix: str, line: str, tmp_path: Path
) -> None:
    path = tmp_path / "two"
    path.write_text("".join(f"{prefix.format(pod)}{line}\n" for pod in "ab"))
    with pytest.raises(UsageError, match=r"lines of 2 services; choose one with --group: .*a-0.*b-0"):
        read_log(path).limits()


def test_a_pod_that_comes_late_is_told_apart_too(tmp_path: Path) -> None:
    path = tmp_path / "export"
    early = start("09", "", "100,000")[:3] + [STATS.format("09", 40)] * 600
    pods = [*(("a-0", line) for line in early), ("b-0", TOKENS.format("10", "9,000"))]
    path.write_text("".join(f"{json.dumps({'line': line, 'labels': {'pod': pod}})}\n" for pod, line in pods))
    with pytest.raises(UsageError, match=r"--group: 'pod/a-0', 'pod/b-0'"):
        read_log(path).limits()
    assert read_log(path).limits(service="pod/b-0").memory_tokens == 9_000


# -- options against the log ------------------------------------------------------------------------------------------


@every(
    ("option", "refusal"),
    [
        ({"tp": 4}, "--tp 4, but .*serve.log says tensor parallelism 2"),
        ({"kv_dtype": "bf16"}, "--kv-dtype bf16, but .*serve.log says kv_cache_dtype fp8"),
        ({"tp": 2}, ""),
        ({"kv_dtype": "fp8"}, ""),
        ({}, ""),
    ],
)
def test_options_that_the_log_contradicts_are_refused(
    option: dict[str, object], refusal: str, tmp_path: Path
) -> None:
    path = tmp_path / "serve.log"
    arguments = "'tensor_parallel_size': 2, 'kv_cache_dtype': 'fp8'"
    path.write_text("".join(f"{line}\n" for line in start("09", arguments, "300,000")[:3]))
    asked = Asked(model="llama-3.1-8b", gpu="H100 SXM", **option)  # type: ignore[arg-type]
    if refusal:
        with pytest.raises(UsageError, match=refusal):
            gather_files([(None, path)], asked, None)
        return
    timing = gather_files([(None, path)], asked, None).profile.tables["timing"]
    both = Asked(model="llama-3.1-8b", gpu="H100 SXM", engine=EngineName.VLLM, tp=2, kv_dtype="fp8")
    assert timing == gather_files([], both, None).profile.tables["timing"]
