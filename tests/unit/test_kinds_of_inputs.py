"""Of every kind of input that was once misread, one that is plain and one that is hostile.

What is right is worked out here from how the file was made.
"""

import json
import re
import struct
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import run

from kvplan.ingest.timing.fit import Prior, fit_measured
from kvplan.ingest.timing.reading import read_groups
from kvplan.ingest.timing.samples import Sweep
from kvplan.ingest.timing.text import timing_part
from kvplan.model import Timing

HOUR = 1_764_201_600
Check = Callable[[dict[str, Any], str], bool]


def rows(header: str, *cells: tuple[Any, ...]) -> str:
    return "".join(f"{line}\n" for line in (header, *(",".join(map(str, row)) for row in cells)))


def of_traffic(rate: float, inputs: float) -> Check:
    """By the sums over classes, which are drawn from a spread where it is assumed."""

    def check(profile: dict[str, Any], said: str) -> bool:
        classes = profile["classes"]
        found = sum(some["rate"] for some in classes)
        mean = sum(some["rate"] * some["input"] for some in classes) / found
        return abs(found / rate - 1) < 0.01 and abs(mean / inputs - 1) < 0.01

    return check


def of_gpu(**wanted: int) -> Check:
    return lambda profile, said: wanted.items() <= profile["gpu"].items()


def header_of_gguf(pairs: int, rest: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, pairs) + rest


CONFIG = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "torch_dtype": "bfloat16",
}  # fmt: skip
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8"}
BRIEF, ODD_TIMES = (
    {"prompt_tokens": 50, "completion_tokens": 5},
    (0, 31, 64, 120, 187, 250, 311, 380, 444, 523, 600),
)
CHUNKS = [
    {"id": f"chatcmpl-{n}", "created": HOUR + 10 * n, "usage": {"prompt_tokens": 700, "completion_tokens": k}}
    for n in range(20)
    for k in (1, 9, 40)
]
TRTLLM = """[TensorRT-LLM] TensorRT-LLM version: 1.0.0
[TensorRT-LLM][INFO] Number of tokens per block: {}.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 9 GiB for max tokens in paged KV cache ({}).
[TensorRT-LLM][INFO] Number of tokens per block: {}.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 9 GiB for max tokens in paged KV cache ({}).
"""
OLLAMA = (
    'time=2025-09-11T00:42:49.552+02:00 level=INFO source=runner.go:1251 msg="starting ollama engine"\n'
    "time=2025-09-11T00:42:49.558+02:00 level=INFO source=runner.go:1170 msg=load "
    'request="{Operation:commit LoraPath:[] Parallel:%s BatchSize:512 KvSize:%s KvCacheType:}"\n'
)
BOMB = "results:\n request_performance:\n  a: &a [1,1,1]\n" + "".join(
    f"  {new}: &{new} [{','.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
METRICS = 'trtllm:request_success_total{model_name="m"} 100\ntrtllm:kv_cache_hit_rate 0.5\n'

IMPORTED: dict[str, tuple[str | bytes, tuple[str, ...], Check]] = {
    "1, hours that are sums: 360 requests in 3 h": (
        rows("hour,requests,input_tokens,output_tokens",
             *((HOUR + 3600 * at, n, 900 * n, 50 * n) for at, n in enumerate((120, 60, 180)))),
        (), of_traffic(360 / 10_800, 900),
    ),
    "1, hostile: a list of requests in rows, each of them of the time of its row": (
        "".join(json.dumps({"created": HOUR + at, "requests": 3 * [BRIEF]}) + "\n" for at in ODD_TIMES),
        (), of_traffic(32 / 600, 50),
    ),
    "2, three chunks of each of 20 responses, 10 s apart": (
        "".join(json.dumps(chunk) + "\n" for chunk in CHUNKS), (),
        lambda profile, said: profile["classes"][0]["decode"] == 40 and of_traffic(0.1, 700)(profile, said),
    ),
    "2, hostile: numbers for names, which count something else": (
        rows("id,created,prompt_tokens,completion_tokens", *((7, HOUR + 10 * n, 700, 40) for n in range(20))),
        (), of_traffic(0.1, 700),
    ),
    "5, hostile: tokens that are no whole blocks, as of layers of several kinds": (
        "INFO 07-25 13:42:38 [kv_cache_utils.py:2146] GPU KV cache size: 1,823,372 tokens\n", (),
        lambda profile, said: "block_tokens" not in profile["gpu"] and "no whole number of blocks of 16" in " ".join(
            said.split()
        ),
    ),
    "5, a start in two phases": (
        TRTLLM.format(32, 100_000, 64, 200_000), (), of_gpu(memory_tokens=200_000, block_tokens=64),
    ),
    "5, hostile: a block that does not fit what it makes": (
        TRTLLM.format(32, 100_000, 48, 200_000), (),
        lambda profile, said: "block_tokens" not in profile["gpu"] and "blocks of 48 tokens, as stated" in said,
    ),
    "6, Ollama's own engine: the room of all its sequences": (
        OLLAMA % (4, 32768), (), of_gpu(memory_tokens=32_768, max_num_seqs=4),
    ),
    "7, a name in another form on two GPUs": (
        "", ("--model", "Qwen2.5-Coder-32B-Instruct", "--gpu", "A6000", "--tp", "2"),
        lambda profile, said: profile["model"]["name"] == "Qwen/Qwen2.5-Coder-32B-Instruct",
    ),
    "7, more memory than its namesake": (
        "", ("--model", "Llama-3.1-8B", "--gpu", "NVIDIA H20-3e"),
        lambda profile, said: profile["model"]["gpu"] == "H20 141GB",
    ),
    "8, an engine's own defaults": (
        "", ("--model", "Llama-3.1-8B", "--gpu", "H100 SXM", "--engine", "trtllm"),
        of_gpu(max_num_batched_tokens=8_192),
    ),
    "9, a cache in a word": (
        json.dumps(CONFIG | {"quantization_config": MODELOPT | {"kv_cache_scheme": "FP8"}}),
        ("--gpu", "H100 SXM"),
        lambda profile, said: "made for a KV cache in fp8" in said,
    ),
    "9, nothing of a file is taken": (
        METRICS, ("--interval", "60 s", "--base", "tool-calls-h100"),
        lambda profile, said: "nothing is taken of" in " ".join(said.split()),
    ),
}  # fmt: skip
REFUSED: dict[str, tuple[str | bytes, tuple[str, ...], str]] = {
    "1, hostile: sums of requests beside means of tokens": (
        rows("hour,requests,avg_prompt_tokens,avg_completion_tokens",
             *((HOUR + 3600 * at, n, 800, 60) for at, n in enumerate((120, 60, 180)))),
        (), "avg_prompt_tokens, avg_completion_tokens: a mean of requests",
    ),
    "6, a shell of Kubernetes, as vLLM's own page has it": (
        'args: ["vllm serve org/m --trust-remote-code --max_num_batched_tokens 1024"]\n', (),
        "kvplan import --model org/m --gpu GPU --max-num-batched-tokens 1024",
    ),
    "6, hostile: a compose file of variables, with defaults and without": (
        "image: lmsysorg/sglang\nmodel:\n  modelFormat:\ncommand: >\n  --model-path ${MODEL}\n  --tp ${TP:-2}\n"
        + "tp \n" * 9_000, (),
        "kvplan import --model MODEL --gpu GPU --tp 2 --engine sglang",
    ),
    "6, a list of arguments, one a line, and a model's name in Helm's values": (
        'modelURL: "org/m"\nimage: vllm/vllm-openai\nargs:\n- --tensor-parallel-size\n- "2"\nmaxModelLen: 4096\n', (),
        "kvplan import --model org/m --gpu GPU --tp 2 --max-model-len 4096",
    ),
    "6, a panel under names of its own": (
        rows("Time,Running,Usage,Prompt tok/s,Gen tok/s", ("2026-11-27 00:00:00", 38, "88%", 12_400, 843)),
        (), "nearest is a series of averages: its columns are time, prompt_throughput and gen_throughput",
    ),
    "1, hostile: what a renaming would make of the answer's limit": (
        rows("timestamp_s,prompt_tokens,max_tokens", *((at, 900, 4096) for at in range(3))),
        (), "no column for output, which max_tokens is not",
    ),
    "3, hostile: two engines in one table": (
        rows("backend,concurrency,input_tokens,output_tokens,ttft_ms,tpot_ms",
             *((name, n, 1000, 101, 100, 5 + n / 50) for name in ("vllm", "sglang") for n in (1, 8, 64))),
        (), "2 replicas; choose one with --group: 'vllm', 'sglang'",
    ),
    "6, hostile: a header that says it has 2**64 - 1 pairs": (
        header_of_gguf(2**64 - 1, b"\0" * 8), ("--gpu", "H100 SXM"), "GGUF, cut off within its header",
    ),
    "6, hostile: references within references": (BOMB, (), "not recognized"),
    "6, hostile: an Ollama without any room": (OLLAMA % (1, 0), (), "a KV capacity of 0 tokens; must be at least 1"),
    "7, a name whose attention is not modelled": (
        "", ("--model", "deepseek-ai/DeepSeek-V4-Flash", "--gpu", "H200"),
        "caches of compressed tokens (compress_ratios)",
    ),
    "7, hostile: a name between two": (
        "", ("--model", "Qwen3-Coder-31B", "--gpu", "H100 SXM"), "did you mean Qwen/Qwen3-Coder-30B-A3B",
    ),
    "8, hostile: a GPU and an engine without a model": (
        "", ("--gpu", "H100 SXM", "--engine", "sglang"), "a FILE is wanted, or --model and --gpu",
    ),
    "9, hostile: a cache in a word that nobody knows": (
        json.dumps(CONFIG | {"quantization_config": MODELOPT | {"kv_cache_scheme": "INT3"}}),
        ("--gpu", "H100 SXM"), "'int3' is not a type of KV cache",
    ),
}  # fmt: skip


def called(folder: Path, content: str | bytes, options: tuple[str, ...]) -> tuple[int, str, Path]:
    file, out = folder / "file", folder / "out.toml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    done = run("import", *([file] if content else []), *options, "-o", out)
    return done.returncode, done.stdout + done.stderr, out


@pytest.mark.parametrize("name", IMPORTED)
def test_what_a_file_says_is_read_as_it_was_made(name: str, tmp_path: Path) -> None:
    content, options, check = IMPORTED[name]
    code, said, out = called(tmp_path, content, options)
    assert code == 0, said
    text = out.read_text("utf-8")
    assert check(tomllib.loads(text), said + text), said


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_in_a_line_for_what_is_wrong(name: str, tmp_path: Path) -> None:
    content, options, wanted = REFUSED[name]
    code, said, out = called(tmp_path, content, options)
    assert (code, out.exists(), said.count("error: ")) == (2, False, 1), said
    assert wanted in said
    assert "rename" not in said


def loads(path: Path, content: str) -> Sweep:
    path.write_text(content)
    ((found,),) = read_groups([path])
    assert isinstance(found, Sweep)
    return found


def test_times_that_contradict_what_was_served_are_taken_from_what_requests_took(tmp_path: Path) -> None:
    """Kind 3: a client that gets tokens in twos states half the time between them."""
    real = {n: 0.010 + n / 25_000 for n in (1, 8, 64)}
    cells = [(n, 1000, 101, 100, 500 * real[n], n / (0.1 + 100 * real[n]), 200 * n) for n in real]
    header = "concurrency,input_tokens,output_tokens,ttft_ms,tpot_ms,request_throughput,num_prompts"
    found = loads(tmp_path / "file", rows(header, *cells))
    assert [point.tpot_s for point in found.points] == pytest.approx(list(real.values()), rel=0.01)
    assert any("TPOT is taken from E2E" in note for note in found.notes)


def test_requests_of_two_deployments_in_one_log_are_asked_about(tmp_path: Path) -> None:
    """Kind 3: every other one takes four times as long, and no column says whose it is."""
    path = tmp_path / "requests.csv"
    made = [(3 * n, 100 + 37 * n % 2000, 20 + 13 * n % 180, 1 + 3 * (n % 2)) for n in range(120)]
    path.write_text(
        rows(
            "arrival_time,input_tokens,output_tokens,first_token_time,last_token_time",
            *((at, n, out, at + 0.05 * x, at + (0.05 + (out - 1) / 100) * x) for at, n, out, x in made),
        )
    )
    ((found,),) = read_groups([path])
    prior = Prior(Timing(0.01, 1e-8, 5e-5), "a guess")
    said = timing_part(fit_measured([found], prior.timing), [found], prior).notes
    told = re.search(r"50% took longer than the law says, ([\d.]+) times in the median", " ".join(said))
    assert told
    assert float(told[1]) == pytest.approx(4, rel=0.03)


def test_a_file_that_is_given_twice_is_measured_once(tmp_path: Path) -> None:
    table = rows("concurrency,input_tokens,output_tokens,ttft_ms,tpot_ms", (8, 1000, 101, 100, 5))
    paths = [tmp_path / name for name in ("c8.csv", "copy.csv")]
    for path in paths:
        path.write_text(table)
    ((found,),) = read_groups([*paths, paths[0]])
    assert isinstance(found, Sweep)
    assert len(found.points) == 1


@pytest.mark.parametrize(
    ("peak", "concurrency", "rate"), [(200, 200, None), (201, 200, None), (57, None, 9.5)]
)
def test_a_peak_of_all_requests_says_that_they_came_at_once(
    peak: int, concurrency: int | None, rate: float | None, tmp_path: Path
) -> None:
    """Kind 4; hostile: a peak above the number of requests. 200 requests in 20 s, 10/s offered below the peak."""
    found = loads(
        tmp_path / "file",
        "============ Serving Benchmark Result ============\n"
        "Successful requests:                     200\n"
        + ("" if rate is None else "Request rate configured (RPS):           9.5\n")
        + "Benchmark duration (s):                  21.00\n"
        "Total input tokens:                      200000\n"
        "Total generated tokens:                  20000\n"
        "Request throughput (req/s):              9.52\n"
        f"Peak concurrent requests:                {peak}\n"
        "Mean TTFT (ms):                          210.0\n"
        "Mean TPOT (ms):                          9.0\n"
        "==================================================\n",
    )
    (point,) = found.points
    assert point.concurrency == concurrency
    assert point.rate_rps == (None if rate is None else pytest.approx(rate, rel=0.05))
