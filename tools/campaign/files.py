"""Files of every kind that a command reads, damaged in every way, and the command that reads them."""

import gzip
import json
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zstandard

from campaign.calls import GITHUB, Call

_ROOT = Path(__file__).resolve().parents[2]
_SHARED = _ROOT.parent / "shared/data"  # tests/real finds it there too
INPUTS = _ROOT.parent / "shared/cases/inputs"
_EXAMPLES = _ROOT / "docs/example"
_MOST = 60_000  # bytes of a published file that are taken: the beginning has all there is to damage
_BOMB = 1 << 27
_LONGEST = 5_000_000  # bytes of a line that is repeated


class Kind(NamedTuple):
    """What a command reads: names, contents, and its arguments, {file} and {folder} to be filled in."""

    content: bytes
    name: str
    arguments: tuple[str, ...]
    beside: Mapping[str, bytes] = {}


def _rows(header: str, row: Callable[[int], str], count: int = 40) -> bytes:
    return "".join(f"{line}\n" for line in (header, *map(row, range(count))) if line).encode()


def _log() -> bytes:
    return (_EXAMPLES / "serve.log").read_bytes()[:_MOST]


_SGLANG = _rows(
    "[2025-05-01 10:00:00] KV Cache is allocated. #tokens: 41408, K size: 2.5 GB, V size: 2.5 GB",
    lambda i: (
        f"[2025-05-01 10:00:{i:02}] Decode batch, #running-req: {i + 1}, #token: {500 * i}, token usage: 0.1, "
        f"cuda graph: True, gen throughput (token/s): {50.0 + i}, #queue-req: 0"
    ),
)
_TRACE = _rows("time,input,output", lambda i: f"{0.25 * i},{100 + 7 * i % 50},{20 + i % 9}")
_AZURE = _rows(
    "TIMESTAMP,ContextTokens,GeneratedTokens",
    lambda i: f"2023-11-16 18:15:{i:02}.680590,{300 + i},{40 + i % 7}",
)
_BURSTGPT = _rows(
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
    lambda i: f"{i},ChatGPT,{400 + i},{18 + i % 5},{418 + i},Conversation log",
)
_MOONCAKE = _rows(
    "",
    lambda i: json.dumps(
        {"timestamp": 300 * i, "input_length": 1024, "output_length": 50 + i, "hash_ids": [0, i]}
    ),
)
_SERVEGEN = _rows("", lambda i: f"{600 * i},{1.5 + 0.1 * i},1.2,Gamma,0.7,0.9", 12)
_LENGTHS = json.dumps(
    {"0": {"input_tokens": "{18: 0.25, 190: 0.75}", "output_tokens": "{5: 0.5, 70: 0.5}"}}
).encode()
_TABLE = _rows("kv_tokens,iteration_ms", lambda i: f"{1000 * i},{10 + i}")
_MODEL = json.dumps(
    {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "torch_dtype": "bfloat16",
        "max_position_embeddings": 131072,
    }
).encode()
_METRICS = b"""# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{model_name="m"} 150000.0
vllm:generation_tokens_total{model_name="m"} 30000.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",num_gpu_blocks="2588",model_name="m"} 1.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{finished_reason="stop",model_name="m"} 100.0
# TYPE vllm:request_prompt_tokens histogram
vllm:request_prompt_tokens_bucket{le="1000.0",model_name="m"} 50.0
vllm:request_prompt_tokens_bucket{le="5000.0",model_name="m"} 100.0
vllm:request_prompt_tokens_bucket{le="+Inf",model_name="m"} 100.0
vllm:request_prompt_tokens_count{model_name="m"} 100.0
vllm:request_prompt_tokens_sum{model_name="m"} 150000.0
# TYPE vllm:request_generation_tokens histogram
vllm:request_generation_tokens_bucket{le="200.0",model_name="m"} 40.0
vllm:request_generation_tokens_bucket{le="500.0",model_name="m"} 100.0
vllm:request_generation_tokens_bucket{le="+Inf",model_name="m"} 100.0
vllm:request_generation_tokens_count{model_name="m"} 100.0
vllm:request_generation_tokens_sum{model_name="m"} 30000.0
"""
_REPORT = b"""metrics:
  latency:
    request_latency:
      mean: 2.19
      units: s
    time_to_first_token:
      mean: 210.0
      units: ms
  requests:
    input_length:
      mean: 1000.0
    output_length:
      mean: 100.0
    total: 500
  throughput:
    requests_per_sec: 7.3
scenario:
  load:
    args:
      max_concurrency: 16
version: '0.1'
"""
_OLLAMA = b"""time=2025-09-11T00:42:49.552+02:00 level=INFO source=runner.go:1251 msg="starting ollama engine"
time=2025-09-11T00:42:49.558+02:00 level=INFO source=runner.go:1170 msg=load request="{Operation:commit LoraPath:[] Para
llel:4 BatchSize:512 FlashAttention:true KvSize:32768 KvCacheType: NumThreads:16 GPULayers:37[ID:0 Layers:37(0..36)] Mul
tiUserCache:false ProjectorPath: MainGPU:0 UseMmap:false}"
"""
_BASELINE = json.dumps(
    {"schema_version": 2, "kvplan_version": "0", "load": {"sustainable_rps": 12.5, "headroom": 0.2}}
).encode()

_FIT = ("import", "--as", "requests={file}")
_CALIBRATE = ("import", "--as", "timing={file}")
_METRICS_OF = ("import", "{file}", "--interval", "100 s")
_CHECK = ("check", "tool-calls-h100", "--accept", "workload", "--baseline", "{file}")


def kinds() -> list[Kind]:
    """Every kind of file, some of them published ones where these are there."""
    own = [
        Kind(_log(), "serve.log", ("import", "{file}")),
        Kind(_SGLANG, "sglang.log", ("import", "{file}")),
        Kind(_log(), "serve.log", (*_CALIBRATE, "--capacity", "41408")),
        Kind(_SGLANG, "sglang.log", _CALIBRATE),
        Kind(_TABLE, "table.csv", _CALIBRATE),
        Kind(_METRICS, "now.prom", _METRICS_OF),
        Kind(
            _METRICS,
            "now.prom",
            ("import", "--as", "metrics={file}", "--since", "{file}", "--interval", "9 s"),
        ),
        Kind(_MODEL, "config.json", ("import", "{file}", "--gpu", "RTX 4090")),
        Kind(_MODEL, "config.json", ("import", "--model", "{file}", "--gpu", "H100 SXM")),
        Kind(_REPORT, "report.yaml", ("import", "{file}", "--model", "Qwen3-14B", "--gpu", "H100 SXM")),
        Kind(_OLLAMA, "ollama.log", ("import", "{file}")),
        Kind(_gguf(), "model.gguf", ("import", "--model", "{file}", "--gpu", "H100 SXM")),
        *(Kind(content, "trace", _FIT) for content in (_TRACE, _AZURE, _BURSTGPT, _MOONCAKE)),
        Kind(_TRACE, "trace.csv", ("simulate", "tool-calls-h100", "--trace", "{file}")),
        Kind(_SERVEGEN, "a-trace.csv", _FIT, {"a-dataset.json": _LENGTHS}),
        Kind(_LENGTHS, "a-dataset.json", _FIT, {"a-trace.csv": _SERVEGEN}),
        Kind(_BASELINE, "before.json", (*_CHECK, "--tolerance", "load.sustainable_rps=2%")),
        Kind(_sweep(), "rows.csv", _SWEEP),
    ]
    published = [
        ("engine-logs/startup_lines.txt", ("import", "{file}")),
        ("engine-logs/vllm_metrics_snapshot.prom", _METRICS_OF),
        ("azure-code/AzureLLMInferenceTrace_code.csv", _FIT),
        ("mooncake-conversation/conversation_trace.first8000.jsonl", _FIT),
        ("vllm-rtx4090/requests.jsonl", _FIT),
        ("vllm-rtx4090/requests.jsonl", _CALIBRATE),
        ("splitwise-sim/perf_model.csv", _CALIBRATE),
        ("vllm-rtx4090/timeseries.csv", _CALIBRATE),
        ("inference-perf/sweeps.csv", _CALIBRATE),
        ("silicon-sweeps/sweeps.csv", _CALIBRATE),
        *(
            (f"model-configs/{path.name}", ("import", "{file}", "--gpu", "H100 SXM"))
            for path in sorted(_SHARED.glob("model-configs/*.json"))
        ),
    ]
    return own + [
        Kind((_SHARED / name).read_bytes()[:_MOST], Path(name).name, arguments)
        for name, arguments in published
        if (_SHARED / name).exists()
    ]


def _gguf() -> bytes:
    """A header of a model of eight layers."""
    sizes = {"block_count": 8, "context_length": 4096, "embedding_length": 512, "feed_forward_length": 1024,
             "attention.head_count": 8, "attention.head_count_kv": 2, "vocab_size": 1000}  # fmt: skip

    def text(word: str) -> bytes:
        return struct.pack("<Q", len(word)) + word.encode()

    keys = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    keys += [text(f"llama.{name}") + struct.pack("<II", 4, size) for name, size in sizes.items()]
    tensor = text("output.weight") + struct.pack("<IQQIQ", 2, 512, 1000, 1, 0)
    return b"GGUF" + struct.pack("<IQQ", 3, 1, len(keys)) + b"".join(keys) + tensor + bytes(2000)


def inputs() -> dict[str, Kind]:
    """Inputs that were once misread, by their names, where they are there."""
    files = sorted(path for path in INPUTS.glob("*/*") if path.suffix != ".md" or path.name == "input.md")
    return {f"{path.parent.name}/{path.name}": _input(path) for path in files}


def _input(path: Path) -> Kind:
    """A file of a case, and the command that reads it."""
    content, base = path.read_bytes(), path.with_name("base.toml")
    beside = {base.name: base.read_bytes()} if base.exists() and base != path else {}
    arguments: tuple[str, ...] = ("analyze", "{file}") if path.suffix == ".toml" else ("import", "{file}")
    if beside:
        arguments += ("--base", "{folder}/base.toml")
    elif b'"model_type"' in content:
        arguments += ("--gpu", "H100 SXM")
    return Kind(content, path.name, arguments, beside)


_SWEEP = (
    *("sweep", "tool-calls-h100", "--vary", "timing.d0=0.01,0.02,0.03"),
    *("--workers", "1", "-o", "{file}", "--resume"),
)


def _sweep() -> bytes:
    """Half of what a sweep writes: its header alone, as far as a damaged one goes."""
    return b"timing.d0,load.sustainable_rps\n0.01,1.0\n"


def case(rng: np.random.Generator, folder: Path) -> Call:
    """A command on a damaged file, which is written into the folder."""
    every = [*kinds(), *inputs().values()]
    return damaged(every[rng.integers(len(every))], rng, folder)


def damaged(kind: Kind, rng: np.random.Generator, folder: Path) -> Call:
    """A command on one of a kind that is damaged in some ways."""
    content = kind.content
    for _ in range(int(rng.choice([1, 2, 5]))):
        content = _DAMAGES[rng.integers(len(_DAMAGES))](rng, content)
    for name, beside in kind.beside.items():
        (folder / name).write_bytes(beside)
    path = folder / (str(rng.choice(_NAMES)) + kind.name)
    path.write_bytes(_packed(rng, content))
    arguments = tuple(word.format(file=path, folder=folder) for word in kind.arguments)
    env = GITHUB if rng.random() < 0.3 else {}
    return Call(arguments, env, twice=rng.random() < 0.05 and kind.arguments[0] != "sweep")


_NAMES = (*[""] * 12, "##[group]", "::error::", "\x1b[31m", "\u202e", "a\nb", "%s", "-")
_TOKENS = (
    *(b"nan", b"inf", b"-1", b"1e309", b"1e-320", b"9" * 400, b"0", b"", b"null", b"true", b'"', b"\x1b[31m"),
    *(b"\x00", "\u202e\u0663".encode(), b"\xff\xfe", b"1_000", b"0x10", b"[" * 5000, b"{" * 5000),
    *(b"1" * 5000, b"-0.0", b"1e400"),
)


def _flip(rng: np.random.Generator, content: bytes) -> bytes:
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 9))):
        if data:
            data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    return bytes(data)


def _cut(rng: np.random.Generator, content: bytes) -> bytes:
    start, end = sorted(rng.integers(len(content) + 1, size=2).tolist())
    return (content[:end], content[start:], content[:start] + content[end:])[rng.integers(3)]


def _again(rng: np.random.Generator, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True) or [b""]
    at = int(rng.integers(len(lines)))
    lines[at : at + 1] = [lines[at]] * min(int(rng.choice([2, 10, 1000])), _LONGEST // max(len(lines[at]), 1))
    return b"".join(lines)


def _long(rng: np.random.Generator, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True) or [b""]
    at = int(rng.integers(len(lines)))
    line = lines[at].rstrip(b"\r\n")
    lines[at] = line * min(int(rng.choice([3, 300, 3000])), _LONGEST // max(len(line), 1))
    return b"".join(lines)


def _swap(rng: np.random.Generator, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    rng.shuffle(lines)  # type: ignore[arg-type]
    return b"".join(lines)


def _ends(rng: np.random.Generator, content: bytes) -> bytes:
    end = (b"\r\n", b"\r\r\n", b"\r", b"\n\n", b"", b"\x0b", b"\xe2\x80\xa8")[rng.integers(7)]
    return content.replace(b"\n", end)


def _encoded(rng: np.random.Generator, content: bytes) -> bytes:
    text = content.decode("utf-8", errors="replace")
    return text.encode(str(rng.choice(["utf-16", "utf-32", "utf-16-le", "utf-8-sig", "utf-7"])), "replace")


def _token(rng: np.random.Generator, content: bytes) -> bytes:
    """Another value in the place of one."""
    values = list(re.finditer(rb"[\w.+-]+", content))
    if not values:
        return content
    match = values[rng.integers(len(values))]
    return content[: match.start()] + _TOKENS[rng.integers(len(_TOKENS))] + content[match.end() :]


def _column(rng: np.random.Generator, content: bytes) -> bytes:
    """Another value in the place of one, wherever it stands."""
    words = sorted(set(content.replace(b",", b" ").split()))
    if not words:
        return content
    word = words[rng.integers(len(words))]
    return content.replace(word, _TOKENS[rng.integers(len(_TOKENS))], 1000)[:5_000_000]


_DAMAGES: tuple[Callable[[np.random.Generator, bytes], bytes], ...] = (
    *(_flip, _cut, _again, _long, _swap, _ends, _encoded, _token, _token, _column),
)


def _packed(rng: np.random.Generator, content: bytes) -> bytes:
    match rng.integers(40):
        case 0:
            return gzip.compress(content)[: int(rng.integers(10, 10**6))]
        case 1:
            return _flip(rng, gzip.compress(content))
        case 2:
            return _flip(rng, zstandard.compress(content))
        case 3:
            return gzip.compress(content + bytes([content[0] if content else 10]) * _BOMB, 1)
        case 4:
            return content + b"\n" * 9_000_000
    return content
