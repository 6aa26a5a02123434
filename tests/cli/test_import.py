"""`kvplan import`, and what it writes put into the next command."""

import gzip
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
import tomli
from command import ENVIRONMENT, Run, process
from command import run as inside
from every import every

from kvplan.profile.reading import parse_profile

LOG = "INFO 02-19 23:56:55 kv_cache_utils.py:524] GPU KV cache size: 60,000 tokens\n"
TRACE = "time,input,output\n0,100,20\n1,100,40\n2,300,5\n5,300,5\n"
ITERATIONS = "kv_tokens,iteration_ms\n" + "".join(f"{k},{10 + k / 1000}\n" for k in range(0, 20_000, 1000))


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "serve.log"
    path.write_text(LOG)
    return str(path)


def test_the_memory_of_a_log_goes_into_a_profile_and_the_rest_is_kept(run: Run, log: str) -> None:
    code, text, messages = run("import", "log", log)
    assert code == 0
    assert (
        messages
        == "note: no --base given; what is not measured is that of the shipped llama-3.1-8b-rtx4090\n"
    )
    profile = parse_profile(text.encode(), "")
    assert profile.model.replica.memory_tokens == 60_000
    assert profile.name == "replica of serve.log"
    assert f"memory_tokens: stated by vLLM in {log}, line 1" in " ".join(text.replace("\n# ", "\n").split())
    assert (
        "# Kept from llama-3.1-8b-rtx4090: block_tokens, max_num_seqs, max_num_batched_tokens.\n[gpu]" in text
    )
    code, text, _ = run("import", "log", log, "--base", "tool-calls-h100")
    based, (_, other, _) = parse_profile(text.encode(), ""), run("profiles", "tool-calls-h100")
    assert based.model.classes == parse_profile(other.encode(), "").model.classes
    assert based.model.replica.memory_tokens == 60_000


def test_classes_of_the_default_that_do_not_fit_are_left_out_and_said_to_be(run: Run, tmp_path: Path) -> None:
    """Its longest requests hold 4,043 tokens; in the base of somebody's own that is an error."""
    small = tmp_path / "small.log"
    small.write_text("GPU KV cache size: 2,000 tokens\n")
    code, text, _ = run("import", "log", str(small))
    assert code == 0
    assert len(parse_profile(text.encode(), "").model.classes) == 6
    assert "Left out as longer than the memory: 2 of 8 classes." in " ".join(
        text.replace("\n# ", "\n").split()
    )
    code, text, messages = run("import", "log", str(small), "--base", "llama-3.1-8b-rtx4090")
    assert (code, text) == (2, "")
    assert f"error: {small}: does not go with the rest of llama-3.1-8b-rtx4090" in messages


def test_log_trace_and_iterations_become_one_profile_through_pipes(log: str, tmp_path: Path) -> None:
    trace, iterations = tmp_path / "trace.csv", tmp_path / "iterations.csv"
    trace.write_text(TRACE)
    iterations.write_text(ITERATIONS)
    command = f'"{sys.executable}" -m kvplan'
    pipe = (
        f"{command} import log {log} | {command} fit {trace} --base - | "
        f"{command} calibrate {iterations} --base - | tee {tmp_path}/made.toml | {command} analyze -"
    )
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", pipe],
        capture_output=True,
        check=True,
        env=ENVIRONMENT | {"COLUMNS": "100"},
    )
    assert done.stdout.decode().startswith("replica of serve.log: traffic of trace.csv\n")
    made = (tmp_path / "made.toml").read_bytes()
    profile = parse_profile(made, "")
    assert profile.name == "replica of serve.log: traffic of trace.csv"
    assert profile.model.replica.memory_tokens == 60_000
    assert [c.input_tokens for c in profile.model.classes] == [100, 300]
    assert (profile.model.timing.d0, profile.model.timing.d1) == (0.01, 1e-6)
    text = made.decode()
    for source in (log, str(trace), str(iterations)):
        assert text.count(f"{source}") == 1  # each table says where it comes from, to the end
    assert "[gpu]" in text
    assert "not measured" not in text


@pytest.mark.parametrize("command", ["import log", "fit", "calibrate"])
@pytest.mark.parametrize("packed", [False, True])
def test_what_is_read_can_come_from_standard_input(
    command: str, packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same profile, with the same digest, as from a file of the name that messages give it."""
    monkeypatch.chdir(tmp_path)
    text = {"import log": LOG, "fit": TRACE, "calibrate": ITERATIONS}[command].encode()
    data = gzip.compress(text) if packed else text
    (tmp_path / "<stdin>").write_bytes(data)
    named = inside(*command.split(), "<stdin>", input="not this")
    assert named.returncode == 0
    assert sha256(data).hexdigest() in named.stdout
    read = inside(*command.split(), "-", input=data)
    assert (read.returncode, read.stdout, read.stderr) == (0, named.stdout, named.stderr)
    if command == "fit" and not packed:
        assert process("fit", "-", input=TRACE).stdout == named.stdout


@pytest.mark.parametrize("command", [("import", "log"), ("fit",), ("calibrate",)])
def test_standard_input_is_read_for_one_thing_and_may_be_empty(command: tuple[str, ...], run: Run) -> None:
    code, text, messages = run(*command, "-", "--base", "-")
    assert (code, text) == (2, "")
    assert messages == "error: standard input can be the file or the --base, not both\n"
    code, text, messages = run(*command, "-", "--base", "tool-calls-h100")
    assert (code, text, messages.count("\n")) == (2, "", 1)
    assert messages.startswith("error: <stdin>: ")


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


def test_metrics_bring_memory_lengths_and_rates(run: Run, tmp_path: Path) -> None:
    """300 requests in the 100 s between two snapshots, 500 in the 1,000 s that the counters of the later cover."""
    earlier, later = tmp_path / "earlier.prom", tmp_path / "later.prom"
    earlier.write_text(metrics_text(200))
    later.write_text(metrics_text(500))
    for options, rate in (
        (["--since", str(earlier), "--interval", "100 s"], 3.0),
        (["--interval", "1000"], 0.5),
    ):
        code, text, messages = run("import", "metrics", str(later), *options)
        assert code == 0
        profile = parse_profile(text.encode(), "")
        assert profile.model.replica.memory_tokens == 8000
        assert profile.model.replica.block_tokens == 16
        assert sum(c.rate_rps for c in profile.model.classes) == pytest.approx(rate, rel=1e-5)
        for c in profile.model.classes:
            weighted = zip(c.decode_tokens, c.decode_weights, strict=True)
            assert sum(d * w for d, w in weighted) / sum(c.decode_weights) == pytest.approx(20, rel=0.005)
        assert profile.name == "replica of later.prom: traffic of later.prom"
        assert "taken as independent" in messages
    code, text, messages = run("import", "metrics", str(later), "--interval", "soon")
    assert (code, text) == (2, "")
    assert "--interval: 'soon' is not a time" in messages


def test_a_model_and_a_gpu_give_memory_and_a_timing_with_its_band(run: Run) -> None:
    """131,072 bytes a token (32 layers, 8 heads of 128, keys and values, 2 bytes); 15.0 GB of weights."""
    code, text, messages = run("import", "model", "Llama-3.1-8B", "--gpu", "RTX 4090", "--kv-dtype", "fp8")
    assert code == 0
    halved, whole = (
        parse_profile(
            run("import", "model", "Llama-3.1-8B", "--gpu", "rtx4090", *kv)[1].encode(), ""
        ).model.replica.memory_tokens
        for kv in (["--kv-dtype", "fp8"], [])
    )
    assert halved == pytest.approx(2 * whole, abs=32)
    assert whole == pytest.approx(41_408, rel=0.01)  # what vLLM reported on one
    assert "which is an assumption" in messages or "an estimate" in messages
    code, text, messages = run("calibrate", "--model", "Llama-3.1-8B", "--gpu", "RTX 4090")
    profile = parse_profile(text.encode(), "")
    timing = profile.model.timing
    assert code == 0
    # reached are 0.75 to 1 of 1.008 TB/s; a layer takes 20 to 100 us besides
    assert 131_072 / 1.008e12 <= timing.d1 <= 131_072 / 0.756e12
    assert 15.0e9 / 1.008e12 < timing.d0 < 15.0e9 / 0.756e12 + 32 * 100e-6
    assert tomli.loads(text)["timing"]["measured"]["band"] == [0.6, 2.07]
    assert (
        "note: estimated: measured iterations took 0.6 to 2.1 times as long in 23 configurations" in messages
    )
    assert "Note: estimated: measured iterations took" in text


def test_a_timing_is_estimated_for_types_of_weights_and_cache(run: Run) -> None:
    on = ["calibrate", "--model", "Llama-3.1-70B", "--gpu", "h100_sxm", "--tp", "8"]
    plain, narrow = (
        parse_profile(run(*on, *options)[1].encode(), "").model.timing
        for options in ([], ["--weight-dtype", "fp8", "--kv-dtype", "fp8"])
    )
    assert narrow.d1 == pytest.approx(plain.d1 / 2, rel=1e-3)
    assert narrow.d0 < plain.d0
    assert narrow.d2 < plain.d2
    code, text, messages = run("calibrate", "--model", "Qwen3-235B-A22B", "--gpu", "B300", "--tp", "4")
    assert code == 0
    assert parse_profile(text.encode(), "").model.timing.d4 > 0
    assert "a mixture of experts on 4 GPUs" in messages
    code, text, messages = run(*on, "--weight-dtype", "int3")
    assert (code, text) == (2, "")
    assert "'int3' is not a type of weights" in messages


def test_a_config_json_is_read_like_a_model_of_the_catalogue(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "hidden_size": 4096,'
        ' "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,'
        ' "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "tie_word_embeddings": false}'
    )
    code, mine, _ = run("import", "model", str(folder), "--gpu", "RTX 4090")
    _, theirs, _ = run("import", "model", "Llama-3.1-8B", "--gpu", "RTX 4090")
    assert code == 0
    assert parse_profile(mine.encode(), "").model.replica == parse_profile(theirs.encode(), "").model.replica


@every(
    ("arguments", "message"),
    [
        (
            ["import", "model", "nonsense", "--gpu", "RTX 4090"],
            "no model in the catalogue nor file of that name",
        ),
        (
            ["import", "model", "Llama-3.1-8B", "--gpu", "H1000"],
            "no GPU in the catalogue of that name; did you mean",
        ),
        (["import", "model", "Llama-3.1-70B", "--gpu", "RTX 4090"], "tensor parallelism 8 fits"),
        (["import", "model", "Llama-3.1-8B"], "--gpu"),
        (["calibrate"], "a FILE is wanted, or --model and --gpu"),
        (["calibrate", "--model", "Llama-3.1-8B"], "--model and --gpu go together"),
        (["calibrate", "some.log", "--gpu", "L4"], "--model and --gpu go together"),
        (["calibrate", "some.log", "--tp", "2"], "say how --model runs on --gpu"),
        (["calibrate", "some.log", "--weight-dtype", "fp8"], "say how --model runs on --gpu"),
        (["calibrate", "--model", "Llama-3.1-8B", "--gpu", "L4", "--format", "text"], "nothing is fitted"),
        (["import", "metrics", "nothing.prom"], "nothing.prom: cannot be read"),
    ],
)
def test_what_is_not_known_is_refused_in_one_line(run: Run, arguments: list[str], message: str) -> None:
    code, text, messages = run(*arguments)
    assert (code, text) == (2, "")
    assert message in messages.splitlines()[-1]
    assert messages.splitlines()[-1].startswith("error: ")


def test_what_is_read_is_never_written_over(run: Run, log: str, tmp_path: Path) -> None:
    trace, iterations = tmp_path / "trace.csv", tmp_path / "iterations.csv"
    trace.write_text(TRACE)
    iterations.write_text(ITERATIONS)
    for command, file in (
        (["fit"], trace),
        (["calibrate"], iterations),
        (["import", "log"], Path(log)),
        (["import", "metrics"], trace),
    ):
        before = file.read_bytes()
        code, text, messages = run(*command, str(file), "-o", str(file))
        assert (code, text) == (2, "")
        assert messages == f"error: -o {file}: would overwrite what is read\n"
        assert file.read_bytes() == before


def test_blocks_of_a_pool_are_read_with_the_layers_of_a_base(run: Run, tmp_path: Path) -> None:
    """gpt-oss-20b: two groups of 12 layers; 2,048 + ⌈(127 + 8,192) / 16⌉ + 1 blocks a request of 32,768 tokens."""
    base, log, model = tmp_path / "model.toml", tmp_path / "serve.log", ["import", "model", "gpt-oss-20b"]
    code, text, messages = run(*model, "--gpu", "H100")
    base.write_text(text)
    assert code == 0
    assert "[[gpu.kv]]" in text
    assert (
        "2 groups of 12 layers share a pool: a block is 16 tokens in each layer of a group, 393,216 bytes."
        in text
    )
    assert "memory_tokens" not in text.partition("[timing]")[0]
    blocks, most = 100_001, 2048 + 520 + 1
    log.write_text(
        f"max_num_batched_tokens=8192\nGPU KV cache size: {blocks // 2 * 16:,} tokens\n"
        f"Maximum concurrency for 32,768 tokens per request: {blocks / most:.2f}x\n"
    )
    code, text, messages = run("import", "log", str(log), "--base", str(base))
    replica = parse_profile(text.encode(), "").model.replica
    assert code == 0
    assert replica.layout == parse_profile(base.read_bytes(), "").model.replica.layout
    assert f"{replica.memory_tokens // 16 / most:.2f}" == f"{blocks / most:.2f}"
    assert "tokens are taken as blocks of 16 over 2 groups" in messages
    log.write_text(
        "Hybrid KV cache manager is disabled for this hybrid model\nGPU KV cache size: 7,584 tokens\n"
    )
    code, text, messages = run("import", "log", str(log), "--base", str(base))
    plain = parse_profile(text.encode(), "").model.replica
    assert (code, plain.memory_tokens, plain.layout) == (0, 7584, None)


def test_notes_of_a_model_are_said_once(run: Run) -> None:
    _, text, messages = run("import", "model", "DeepSeek-V3", "--gpu", "H200", "--tp", "8")
    assert messages.count("bytes of fp8 weights") == 1
    assert " ".join(text.replace("\n# ", " ").split()).count("bytes of fp8 weights") == 1


def test_a_replica_has_the_gpus_of_its_tensor_parallel_group(run: Run, tmp_path: Path) -> None:
    base = tmp_path / "eight.toml"
    _, text, _ = run("import", "model", "DeepSeek-V3", "--gpu", "H200", "--tp", "8")
    assert parse_profile(text.encode(), "").model.replica.gpus == 8
    base.write_text(text)
    _, text, _ = run("import", "model", "Llama-3.1-8B", "--gpu", "RTX 4090", "--base", str(base))
    assert parse_profile(text.encode(), "").model.replica.gpus == 1


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ('"hybrid_layer_ids": [1, 3]', "hybrid_layer_ids: layers that share one attention are not supported"),
        ('"block_types": ["recurrent", "attention"]', "block_types: layers listed by kind are not supported"),
        ('"architectures": ["BertForMaskedLM"]', "architectures: none of these generates text"),
    ],
)
def test_a_model_whose_cache_is_not_understood_is_refused(
    run: Run, tmp_path: Path, keys: str, message: str
) -> None:
    config = tmp_path / "mine.json"
    config.write_text(
        '{"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, '
        f'"vocab_size": 100, {keys}}}'
    )
    code, text, messages = run("import", "model", str(config), "--gpu", "L4")
    assert (code, text) == (2, "")
    assert message in messages


def test_what_cannot_be_imported_exits_2(run: Run, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.log"
    nothing.write_text("hello\n")
    for arguments in (["log", str(nothing)], ["log", str(nothing) + ".none"], ["log"], []):
        code, text, messages = run("import", *arguments)
        assert (code, text) == (2, "")
        assert messages.splitlines()[-1].startswith("error: ")
        assert "Traceback" not in messages


def test_hits_are_said_and_compared_with_what_the_plan_expects(run: Run, tmp_path: Path) -> None:
    """Half of each prompt is shared by all: 48 of 100 tokens in whole pages, always in use."""
    base, log = tmp_path / "base.toml", tmp_path / "serve.log"
    text = (
        'schema = 1\nname = "shared"\ngpu = { memory_tokens = 60_000, block_tokens = 16 }\ntiming = { d0 = "10 ms" }\n'
        '[[classes]]\nname = "a"\ninput = 100\ndecode = 50\nrate = 20\nshared = 50\n'
    )
    base.write_text(text)
    log.write_text(LOG + "Engine 000: Running: 8 reqs, Prefix cache hit rate: 5.0%\n")
    code, written, messages = run("import", "log", str(log), "--base", str(base))
    assert code == 0
    note = "the prefix cache found 5% of the prompt tokens (stated last in line 2)"
    assert f"note: {note}\n" in messages
    assert note in " ".join(written.replace("\n# ", "\n").split())
    assert (
        "note: the prefix cache found 5% of the prompt tokens, the plan expects 48%: requests share less"
        in messages
    )
    base.write_text(text.replace("shared = 50\n", ""))
    assert "the plan expects" not in run("import", "log", str(log), "--base", str(base))[2]
    assert "the plan expects" not in run("import", "log", str(log))[2]
