"""`kvplan import`: whatever there is becomes one profile, and what nothing supplied is absent from it."""

import gzip
import json
import os
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from command import Run, process
from command import run as inside
from every import every
from result_files import VLLM

from kvplan.model import Knowledge, MeasuredRange, Origin
from kvplan.profile.reading import Profile, parse_profile

EXAMPLE = Path(__file__).parents[2] / "docs/example"
LOG = "INFO 02-19 23:56:55 kv_cache_utils.py:524] GPU KV cache size: 60,000 tokens\n"
TRACE = "time,input,output\n0,100,20\n1,100,40\n2,300,5\n4,300,0\n5,300,5\n"
# A server whose iterations take 10 ms, 1 us per KV token, 100 us per prefill token.
ITERATIONS = "kv_tokens,prefill_tokens,iteration_ms\n" + "".join(
    f"{k},{p},{10 + k / 1000 + p / 10:.3f}\n" for k in (0, 1000, 4000, 20000) for p in (0, 50, 200)
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "serve.log").write_text(LOG)
    (tmp_path / "trace.csv").write_text(TRACE)
    (tmp_path / "iterations.csv").write_text(ITERATIONS)
    return tmp_path


def imported(run: Run, *arguments: object) -> tuple[Profile, str]:
    """The profile, and what was said, in one line."""
    code, text, messages = run("import", *map(str, arguments))
    assert code == 0, messages
    return parse_profile(text.encode(), ""), " ".join(messages.split())


def test_the_example_becomes_a_whole_profile_in_one_command(run: Run, tmp_path: Path) -> None:
    """What was logged is of d0 = 14.5 ms, d1 = .25 us and d2 = 85 us, with noise."""
    made = tmp_path / "service.toml"
    code, text, messages = run(
        "import", str(EXAMPLE / "serve.log"), str(EXAMPLE / "requests.csv"), "-o", str(made)
    )
    assert (code, text) == (0, "")
    profile = parse_profile(made.read_bytes(), "")
    assert profile.name == "replica of serve.log: traffic of requests.csv"
    replica, timing = profile.model.replica, profile.model.timing
    assert (replica.memory_tokens, replica.block_tokens, replica.max_num_seqs) == (41_408, 16, 128)
    assert (timing.d0, timing.d1, timing.d2) == pytest.approx((14.5e-3, 0.25e-6, 85e-6), rel=0.02)
    assert profile.model.total_rate_rps == pytest.approx(3.101, rel=1e-3)
    found = profile.provenance
    assert [found.gpu.source, found.timing.source, found.workload.source] == [
        "serve.log",
        "serve.log; not determined: d1",
        "requests.csv",
    ]
    for row in (
        "serve.log vLLM's log [gpu]",
        "serve.log vLLM stats log [timing]",
        "requests.csv CSV [classes]",
    ):
        assert row in " ".join(messages.split())
    assert max(map(len, messages.splitlines())) <= 80
    assert len(messages.splitlines()) <= 40
    assert run("analyze", str(made))[0] == 0


def test_a_part_that_nothing_supplied_is_absent_and_named(run: Run, folder: Path) -> None:
    for files, there in (
        (("serve.log",), {"gpu"}),
        (("iterations.csv",), {"timing"}),
        (("trace.csv",), {"classes"}),
        (("serve.log", "iterations.csv"), {"gpu", "timing"}),
        (("trace.csv", "iterations.csv", "serve.log"), {"gpu", "timing", "classes"}),
    ):
        profile, said = imported(run, *(folder / file for file in files))
        assert set(profile.tables) - {"schema", "name", "provenance", "workload"} == there
        assert set(profile.tables["provenance"]) == {"workload" if t == "classes" else t for t in there}
        for part, name in (("gpu", "[gpu]"), ("timing", "[timing]"), ("classes", "[[classes]]")):
            assert (f"no {name}: kvplan import" in said) == (part not in there)


def test_a_base_supplies_the_rest_and_keeps_how_it_is_known(run: Run, folder: Path) -> None:
    other = parse_profile(run("profiles", "tool-calls-h100")[1].encode(), "")
    profile, said = imported(run, folder / "iterations.csv", "--base", "tool-calls-h100")
    assert (profile.name, profile.model.classes) == (other.name, other.model.classes)
    assert profile.model.replica == other.model.replica
    assert profile.model.timing.constants[:3] == (0.01, 1e-6, 1e-4)
    assert profile.model.measured == MeasuredRange((0, 20_000), (0, 200), (1, 1))
    # one sequence in all of them: what an iteration and what a sequence takes cannot be told apart
    told = "iterations.csv; not determined: d0, estimated after tool-calls-h100"
    assert profile.provenance.timing == Origin(Knowledge.ESTIMATED, told)
    assert profile.provenance.gpu == other.provenance.gpu
    assert "12 samples, none left out" in said
    profile, _ = imported(
        run, folder / "serve.log", folder / "trace.csv", "--base", "tool-calls-h100", "--name", "x"
    )
    assert (profile.name, profile.model.timing) == ("x", other.model.timing)
    assert profile.model.replica.memory_tokens == 60_000
    assert [(c.input_tokens, c.decode_tokens) for c in profile.model.classes] == [
        (100, (20, 40)),
        (300, (5,)),
    ]


def test_measured_comes_before_a_profile_and_that_before_an_estimate_and_that_before_a_base(
    run: Run, folder: Path
) -> None:
    own = folder / "own.toml"
    own.write_text('schema = 1\nname = "own"\n[timing]\nd0 = "99 ms"\n')
    model = ("--model", "Llama-3.1-8B", "--gpu", "RTX 4090", "--engine", "vllm==0.19.0")
    profile, _ = imported(run, own, *model)
    assert profile.tables["timing"]["d0"] == "99 ms"
    assert profile.tables["gpu"]["memory_tokens"] == pytest.approx(41_408, rel=0.015)
    profile, _ = imported(run, "--base", own, *model)
    assert profile.tables["timing"]["d0"] != "99 ms"
    assert profile.provenance.timing.basis == "estimated"
    profile, _ = imported(run, folder / "serve.log", folder / "iterations.csv", *model, "--base", own)
    assert profile.tables["timing"]["d1"] == "1 us"
    assert profile.tables["gpu"]["memory_tokens"] == 60_000
    assert profile.tables["gpu"]["max_num_seqs"] == 256  # vLLM's own on such a GPU
    code, _, error = run("import", str(own), "--base", "tool-calls-h100")
    assert (code, "a profile beside --base" in error) == (2, True)


def test_engine_version_and_limits_are_told_once_and_kept(run: Run, folder: Path) -> None:
    """Fewer sequences leave more memory for KV; what is imported on the profile that was written is the same."""
    on = ("--model", "Qwen3-32B", "--gpu", "H100")
    told = ("--engine", "vllm==0.11.0", "--max-num-seqs", "64", "--max-num-batched-tokens", "1024")
    whole, _ = imported(run, *on, "--engine", "vllm==0.11.0")
    few, _ = imported(run, *on, *told, "--max-model-len", "300", folder / "trace.csv")
    told_engine = {"name": "vllm", "version": "0.11.0", "max_model_len": 300, "admission": "first-chunk"}
    assert few.tables["engine"] == told_engine
    assert (few.tables["gpu"]["max_num_seqs"], few.tables["gpu"]["max_num_batched_tokens"]) == (64, 1024)
    assert few.tables["gpu"]["memory_tokens"] > 2 * whole.tables["gpu"]["memory_tokens"]
    assert "are longer than max_model_len, 300 tokens: the engine rejects them" in " ".join(
        few.text.replace("\n#", "").split()
    )
    kept = folder / "kept.toml"
    kept.write_text(few.text)
    again, _ = imported(run, *on, "--base", kept)
    assert [again.tables[name] for name in ("engine", "gpu")] == [
        few.tables[name] for name in ("engine", "gpu")
    ]
    log, _ = imported(run, folder / "serve.log", "--max-num-seqs", "64", "--max-model-len", "4096")
    assert (log.tables["gpu"]["max_num_seqs"], log.tables["engine"]["max_model_len"]) == (64, 4096)
    stated = folder / "stated.log"
    stated.write_text("INFO 02-19 23:56:50 [utils.py:1] non-default args: {'max_num_seqs': 128}\n" + LOG)
    code, _, error = run("import", str(stated), "--max-num-seqs", "64")
    assert (code, "says max_num_seqs 128; leave --max-num-seqs out" in error) == (2, True)


def test_a_model_and_a_gpu_give_memory_and_a_timing_with_its_band(run: Run, folder: Path) -> None:
    """131,072 bytes a token (32 layers, 8 heads of 128, keys and values, 2 bytes); 15.0 GB of weights."""
    on = ("--model", "Llama-3.1-8B", "--gpu", "rtx4090")
    whole, said = imported(run, *on)
    halved, _ = imported(run, *on, "--kv-dtype", "fp8")
    tables = whole.tables
    assert halved.tables["gpu"]["memory_tokens"] == pytest.approx(2 * tables["gpu"]["memory_tokens"], abs=32)
    band = tables["timing"]["measured"]["band"]
    assert band[0] < 1 < band[1]
    assert {str(whole.provenance.gpu.basis), str(whole.provenance.timing.basis)} == {"estimated"}
    assert (
        f"measured iterations took {band[0]:.2g} to {band[1]:.2g} times as long in 25 configurations" in said
    )
    traffic, _ = imported(run, *on, folder / "trace.csv")
    timing = traffic.model.timing
    # reached are 0.75 to 1 of 1.008 TB/s; a layer takes 20 to 100 us besides
    assert 131_072 / 1.008e12 <= timing.d1 <= 131_072 / 0.756e12
    assert 15.0e9 / 1.008e12 < timing.d0 < 15.0e9 / 0.756e12 + 32 * 100e-6
    figures = ("--gpu-memory", "96GB", "--gpu-bandwidth", "4TB/s", "--gpu-flops", "148TFLOPs")
    own, _ = imported(run, "--model", "Llama-3.1-8B", "--gpu", "Mine", *figures)
    overhead = 5.55 * 4 * 1024 * 128_256 + 2 * 8192 * 4096 + 0.7 * 2**30  # of 1,024 sequences, vLLM 0.33
    left = 0.92 * 96e9 - overhead - 2 * 8.03e9  # bytes, of 131,072 a token
    assert own.tables["gpu"]["memory_tokens"] == pytest.approx(left / 131_072, rel=1e-3)
    adapted, _ = imported(
        run, "--model", "Llama-3.1-8B", "--gpu", "Mine", *figures, "--loras", "9", "--lora-rank", "16"
    )
    lost = own.tables["gpu"]["memory_tokens"] - adapted.tables["gpu"]["memory_tokens"]
    assert lost == pytest.approx(9 * 2 * 41_943_040 / 131_072, abs=16)
    several, _ = imported(run, "--model", "Llama-3.1-70B", "--gpu", "H100", "--tp", "4", "--weights", "fp8")
    assert several.tables["gpu"]["gpus"] == 4
    config = folder / "mine" / "config.json"
    config.parent.mkdir()
    config.write_text(
        '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "hidden_size": 4096,'
        ' "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,'
        ' "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "tie_word_embeddings": false}'
    )
    for path in (config, config.parent):
        assert imported(run, path, "--gpu", "RTX 4090")[0].tables["gpu"] == tables["gpu"]


@pytest.mark.usefixtures("brief")
def test_every_command_refuses_what_it_lacks_a_part_of(run: Run, folder: Path) -> None:
    part = folder / "part.toml"
    parts = {"serve.log": "[gpu]", "iterations.csv": "[timing]", "trace.csv": "[[classes]]"}
    others = (
        *(
            "check IT --require load.headroom>0",
            "diff tool-calls-h100 IT",
            "emit IT",
            "explain load.headroom IT",
        ),
        *("mix IT --replicas 2", "plan IT --rate 2", "simulate IT", "simulate IT --policy vllm"),
        f"sweep IT --vary plan.delta=1e-6:1e-2:log3 -o {folder / 'rows.csv'}",
    )
    for file, there in parts.items():
        assert run("import", str(folder / file), "-o", str(part))[0] == 0
        for command in ("analyze IT", *(others if file == "serve.log" else ())):
            code, out, error = run(*(str(part) if word == "IT" else word for word in command.split()))
            said = " ".join((out + error).split())
            assert code == 2, (command, said)
            for name in parts.values():
                assert (f"no {name}: kvplan import" in said) == (name != there), (command, said)


def test_times_of_requests_give_a_timing_beside_the_traffic(run: Run, tmp_path: Path) -> None:
    """Alone with the engine: 10 ms an iteration and 1 us for a KV token, prompts at 100 us a token."""
    rows = ["arrival_s,input_tokens,output_tokens,first_token_s,last_token_s"]
    for i in range(40):
        prompt, answer, begin = 100 + 97 * i % 900, 20 + 13 * i % 200, 30.0 * i
        first = begin + 0.01 + 101e-6 * prompt
        last = first + sum(0.01 + 1e-6 * (prompt + j) for j in range(1, answer))
        rows.append(f"{begin},{prompt},{answer},{first},{last}")
    path = tmp_path / "requests.csv"
    path.write_text("\n".join(rows) + "\n")
    profile, said = imported(run, path, "--capacity", 60_000)
    assert profile.model.timing.d0 == pytest.approx(0.01, rel=0.05)
    assert "requests.csv request log [timing]" in said
    assert profile.name == "replica of requests.csv: traffic of requests.csv"


STATS = (
    "INFO 03-17 15:38:10 [loggers.py:259] Engine 000: Avg prompt throughput: {:.1f} tokens/s, Avg generation "
    "throughput: {:.1f} tokens/s, Running: {} reqs, Waiting: 90 reqs, GPU KV cache usage: {}%, Prefix cache hit rate: "
    "0.0%\n"
)
BASE = """
schema = 1
name = "base"
timing = { d0 = "15 ms", d1 = "0.005 us", d2 = "20 us", d3 = "10 us" }
classes = [{ name = "chat", input = 2000, decode = 200, rate = 1 }]
"""


@every(
    ("name", "lines", "open"),
    [
        # 24,000 prompt tokens a second however long an iteration takes: all of the time is theirs
        ("full.log", [(24e3, b / (0.6 - b / 200), b, 2 * b) for b in (10, 16, 22, 28, 34)], ("d0", "d1")),
        ("same.log", [(24e3, 80, 32, 60)] * 6, ("d0", "d1", "d2", "d3")),
    ],
)
def test_what_full_batches_leave_open_is_the_bases_and_not_measured(
    run: Run, tmp_path: Path, name: str, lines: list[tuple[float, float, int, float]], open: tuple[str, ...]
) -> None:
    log, base = tmp_path / name, tmp_path / "base.toml"
    log.write_text("".join(STATS.format(*line) for line in lines))
    base.write_text(BASE)
    profile, said = imported(run, log, "--capacity", 2_000_000, "--base", base)
    origin = profile.provenance.timing
    assert origin is not None
    assert origin.basis is Knowledge.ESTIMATED
    for constant in open:
        assert getattr(profile.model.timing, constant) > 0
        assert re.search(rf"do not determine [^:]*\b{constant} \(", said)
    if name == "full.log":
        assert profile.tables["timing"]["d0"] == "15 ms"
        assert profile.model.timing.d2 == pytest.approx(0.97 / 24e3, rel=0.01)  # of half a second 3 % are d0
    code, _, error = run("import", str(log), "--capacity", "2000000")
    assert (code, error.count("\n")) == (2, 1)
    assert "a --base" in error or "samples of small batches would tell" in error


def test_a_law_of_several_ranks_is_believed_where_a_log_is_measured(run: Run, tmp_path: Path) -> None:
    base = tmp_path / "base.toml"
    law = 'timing = { d0 = "15 ms", d1 = "0.005 us", d2 = "20 us", d3 = "10 us", all_ranks = "1 us" }'
    base.write_text(
        f'schema = 1\nname = "base"\ngpu = {{ memory_tokens = 40_000, data_parallel = 2 }}\n{law}\n'
    )
    profile, _ = imported(run, EXAMPLE / "serve.log", "--base", base)
    assert f"estimated after {base}" in profile.provenance.timing.source


def test_one_result_of_a_benchmark_determines_nothing_that_loads_multiply(run: Run, tmp_path: Path) -> None:
    result = tmp_path / "c32.json"
    result.write_text(json.dumps(VLLM))
    profile, said = imported(run, result, "--model", "Llama-3.1-8B", "--gpu", "H100")
    origin = profile.provenance.timing
    assert origin is not None
    assert origin.basis is Knowledge.ESTIMATED
    assert "estimated, scaled" in origin.source
    assert re.search(r"one load moves all constants [^-]* one request at a\s+time", said)


SETTINGS = (
    "backend,source,concurrency,input,output,ttft_ms,tpot_ms,speculative,warmed_up,receive_every_steps,"
    "batch_wait_iterations,batch_wait_tokens\n"
)
AS_INFERENCEMAX = (
    "lengths drawn from 0.8 to 1 times those stated, 10 requests of each client, all clients at once"
)


@pytest.mark.parametrize(
    ("rows", "engine", "said"),
    [
        (
            [f"sglang,inferencemax,{c},1000,100,{100 + c},{10 + c / 8},no,yes,30,0,0" for c in (4, 16, 64)],
            {"name": "sglang", "receive_every_steps": 30},
            AS_INFERENCEMAX,
        ),
        (
            [f"trtllm,own,{c},1000,100,{100 + c},{10 + c / 8},no,no,1,20,14746" for c in (4, 16, 64)],
            {"name": "trtllm", "batch_wait_iterations": 20, "batch_wait_tokens": 14746},
            "all requests of the lengths stated",
        ),
        (
            [f"sglang,own,{c},1000,100,{100 + c},{10 + c / 8},no,yes,{c},0,0" for c in (4, 16, 64)],
            {"name": "sglang"},
            "[engine] has no receive_every_steps, in which runs differ",
        ),
        (
            [f"vllm,own,{c},1000,100,{100 + c},{10 + c / 8},no,yes,1,0,0" for c in (4, 16, 64)],
            None,
            "10 of each client",
        ),
    ],
)
def test_what_a_result_table_says_of_the_engine_is_the_profiles(
    run: Run, tmp_path: Path, rows: list[str], engine: dict[str, object] | None, said: str
) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(SETTINGS + "\n".join(rows) + "\n")
    like = ("--model", "Llama-3.1-8B", "--gpu", "H100", "--max-num-batched-tokens", "100000")
    profile, _ = imported(run, table, "--capacity", "400000", *like)
    assert profile.tables.get("engine") == engine
    assert said in " ".join(profile.text.replace("\n#", "").split())


def test_loads_stand_back_behind_iterations_and_name_their_replica(run: Run, folder: Path) -> None:
    sweep = folder / "sweep.csv"
    sweep.write_text(
        "concurrency,input_tokens,output_tokens,ttft_ms,tpot_ms\n"
        + "".join(f"{c},500,100,{60 + c},{10 + c / 10}\n" for c in (1, 2, 4, 8, 16, 32))
    )
    profile, said = imported(run, sweep, folder / "iterations.csv")
    assert profile.tables["timing"]["d0"] == "10 ms"
    assert "sweep.csv: not used beside iterations" in said
    profile, said = imported(run, sweep)
    assert "sweep.csv concurrency sweep [timing]" in said
    path = folder / "model.csv"
    path.write_text(
        "model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,tensor_parallel\n"
        + "".join(
            f"llama,{gpu},{size},{batch},128,{20 + size * batch * 0.1 * factor},{20 + size * batch * 0.001},1\n"
            for gpu, factor in (("a100", 2), ("h100", 1))
            for size in (128, 512)
            for batch in (1, 2, 4)
        )
    )
    code, _, error = run("import", str(path))
    assert (code, "2 replicas; choose one with --group: 'llama, a100, TP1'" in error) == (2, True)
    profile, _ = imported(run, path, "--group", "llama, h100, TP1")
    assert float(profile.tables["timing"]["d2"].split()[0]) == pytest.approx(100, rel=0.02)
    assert run("import", str(path), "--group", "llama")[0] == 2


def test_usage_is_a_share_of_the_capacity_that_is_given(run: Run, tmp_path: Path) -> None:
    """A default capacity is never assumed, and an estimated one neither."""
    lines = ["t,prompt_throughput,gen_throughput,running,kv_cache_pct"]
    for i in range(1, 30):
        seconds = 0.01 + 1e-6 * 41_408 * (10 + 3 * i) / 100
        lines.append(f"{i},0,{(20 + i % 7) / seconds:.6f},{20 + i % 7},{10 + 3 * i}")
    file = tmp_path / "series.csv"
    file.write_text("\n".join(lines) + "\n")
    for given in ((), ("--model", "Llama-3.1-8B", "--gpu", "L4")):
        code, text, messages = run("import", str(file), *given)
        assert (code, text) == (2, "")
        assert messages.endswith(
            "a capacity that is not stated here; give --capacity, or a --base that has it\n"
        )
    log = tmp_path / "serve.log"
    log.write_text(LOG.replace("60,000", "41,408"))
    for given, d1 in (
        (["--capacity", 41408], 1e-6),
        (["--base", "llama-3.1-8b-rtx4090"], 1e-6),
        (["--base", "llama-3.1-8b-rtx4090", "--capacity", 20704], 2e-6),
        ([log], 1e-6),
    ):
        profile, _ = imported(run, file, *given)
        timing = profile.tables["timing"]
        assert float(timing["d0"].split()[0]) == pytest.approx(10, rel=1e-3)
        assert float(timing["d1"].split()[0]) == pytest.approx(d1 * 1e6, rel=1e-3)


HISTOGRAM = """
vllm:{name}_bucket{{le="100"}} {count}
vllm:{name}_bucket{{le="+Inf"}} {count}
vllm:{name}_sum {total}
vllm:{name}_count {count}
"""


def metrics_text(requests: int) -> str:
    """Prompts of 60 tokens, answers of 20, memory of 500 blocks of 16."""
    return (
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="500"} 1\n'
        + HISTOGRAM.format(name="request_prompt_tokens", count=requests, total=60 * requests)
        + HISTOGRAM.format(name="request_generation_tokens", count=requests, total=20 * requests)
    )


def test_metrics_bring_memory_lengths_and_rates(run: Run, folder: Path) -> None:
    """300 requests in the 100 s between two snapshots, 500 in the 1,000 s that the counters of the later cover."""
    earlier, later = folder / "earlier.prom", folder / "later.prom"
    earlier.write_text(metrics_text(200))
    later.write_text(metrics_text(500))
    for options, rate in ((["--since", earlier, "--interval", "100 s"], 3.0), (["--interval", "1000"], 0.5)):
        profile, said = imported(run, later, folder / "iterations.csv", *options)
        assert (profile.model.replica.memory_tokens, profile.model.replica.block_tokens) == (8000, 16)
        assert profile.model.total_rate_rps == pytest.approx(rate, rel=1e-5)
        assert profile.name == "replica of later.prom: traffic of later.prom"
        assert "taken as independent" in said
    profile, _ = imported(run, later, folder / "trace.csv", folder / "serve.log", "--interval", "100")
    assert profile.tables["gpu"]["memory_tokens"] == 60_000  # what a log and requests say comes first
    assert profile.name == "replica of serve.log: traffic of trace.csv"
    assert "--interval: 'soon' is not a time" in run("import", str(later), "--interval", "soon")[2]


def test_what_is_read_can_come_from_standard_input(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same profile, with the same digest, as from a file of the name that messages give it."""
    monkeypatch.chdir(folder)
    for data in (
        LOG.encode(),
        gzip.compress(ITERATIONS.encode()),
        TRACE.encode(),
        gzip.compress(TRACE.encode()),
    ):
        (folder / "<stdin>").write_bytes(data)
        named = inside("import", "<stdin>", input="not this")
        assert named.returncode == 0
        assert sha256(data).hexdigest() in named.stdout
        read = inside("import", "-", input=data)
        alike = re.sub(r'\[workload\]\ntrace = "<stdin>"\n\n', "", named.stdout)
        assert (read.returncode, read.stdout) == (0, alike)
    assert process("import", "-", input=LOG).stdout == inside("import", "-", input=LOG).stdout
    made = inside("import", "-", "trace.csv", input=LOG).stdout  # with a comment that quotes the log
    assert "iterations.csv" in inside("import", "-", "iterations.csv", input=made).stdout


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("kvplan import /dev/zero", "/dev/zero: nothing but zero bytes, which are no text"),
        ("yes 1,2,3 | kvplan import - --max-size 1MB", "<stdin>: more than 1 MB; --max-size allows more"),
        ("kvplan import requests.csv --max-size 10B", "requests.csv: more than 10 B; --max-size allows more"),
        (
            "kvplan import requests.csv --since /dev/zero",
            "/dev/zero: nothing but zero bytes, which are no text",
        ),
    ],
)
def test_input_without_end_is_refused_and_leaves_nothing(tmp_path: Path, command: str, said: str) -> None:
    (tmp_path / "requests.csv").write_text(TRACE)
    left = tmp_path / "temporary"
    left.mkdir()
    told = command.replace("kvplan", f"{sys.executable} -m kvplan")
    done = subprocess.run(
        told,
        shell=True,
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(left)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {said}\n")
    assert not list(left.iterdir())


def test_a_file_of_which_nothing_is_taken_is_said(run: Run, folder: Path) -> None:
    """Blocks of no size, beside a base that has all else."""
    (folder / "metrics.prom").write_text("trtllm_kv_cache_max_blocks 1000\n")
    _, said = imported(run, folder / "metrics.prom", "--base", "tool-calls-h100")
    assert "nothing is taken of metrics.prom: the KV capacity is not exported" in said


@pytest.mark.parametrize(
    ("engine", "gpu", "limits"),
    [
        ("trtllm", "H100", (2048, 8192)),  # BuildConfig
        ("sglang", "RTX 4090", (2048, 2048)),  # ServerArgs: below 35 GiB, 60, 160
        ("sglang", "A100 40GB", (2048, 4096)),
        ("sglang", "H100", (2048, 8192)),
        ("sglang", "B200", (2048, 16_384)),
    ],
)
def test_an_engine_has_its_own_defaults(run: Run, engine: str, gpu: str, limits: tuple[int, int]) -> None:
    found, said = imported(run, "--model", "Llama-3.2-1B", "--gpu", gpu, "--engine", engine)
    table = found.tables["gpu"]
    assert (table["max_num_seqs"], table["max_num_batched_tokens"]) == limits
    assert "give --" not in said


@every(("model", "told"), [("meta-llama/Llama-3.1-70B", True), ("Qwen/Qwen3-14B-FP8", False)])
def test_results_of_another_model_than_the_base_are_told(model: str, told: bool, tmp_path: Path) -> None:
    base, result = tmp_path / "base.toml", tmp_path / "result.json"
    assert inside("import", "--model", "Qwen3-14B", "--gpu", "H100 SXM", "-o", base).returncode == 0
    times = {f"mean_{name}_ms": value for name, value in (("ttft", 200.0), ("tpot", 26.0), ("itl", 26.0))}
    counts = {
        "num_prompts": 100,
        "completed": 100,
        "total_input_tokens": 10**5,
        "total_output_tokens": 30_000,
    }
    rates = {"request_rate": "inf", "max_concurrency": 8, "duration": 100.0, "request_throughput": 1.0}
    result.write_text(json.dumps({"backend": "vllm", "model_id": model, **counts, **rates, **times}))
    done = inside("import", result, "--base", base, "-o", tmp_path / "out.toml")
    assert done.returncode == 0, done.stderr
    assert (f"times are those of {model}" in " ".join(done.stderr.split())) == told
