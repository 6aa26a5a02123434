"""Input that nobody writes by hand: one clear line, exit code 2, and nothing that moves the cursor."""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest
from command import Run

from kvplan.simulation.experiments import study


def test_control_characters_of_a_name_do_not_reach_the_terminal(run: Run) -> None:
    code, _, error = run("fit", "no\x1b[31mil\u202e.csv")
    assert code == 2
    assert "no\\x1b[31mil\\u202e.csv" in error
    assert all(c.isprintable() for line in error.splitlines() for c in line)


def test_a_baseline_with_a_key_twice_is_refused(run: Run, tmp_path: Path) -> None:
    baseline = tmp_path / "before.json"
    baseline.write_text(
        '{"schema_version": 1, "load": {"sustainable_rps": 1, "headroom": 2, "sustainable_rps": 54}}'
    )
    arguments = ("check", "tool-calls-h100", "--accept", "workload", "--baseline", str(baseline))
    code, _, error = run(*arguments, "--tolerance", "load.sustainable_rps=2%")
    assert code == 2
    assert "'sustainable_rps' stands in it twice" in error


def test_a_date_is_shown_as_it_is_written(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('schema = 1\nname = "a"\ngpu.memory_tokens = 2024-01-01\n')
    assert (
        f"{path}:3: gpu.memory_tokens: must be a whole number, not 2024-01-01\n"
        in run("analyze", str(path))[2]
    )


def test_digits_of_other_scripts_are_names_and_not_places(run: Run) -> None:
    code, _, error = run(
        "check", "tool-calls-h100", "--accept", "workload", "--require", "wait.thresholds[٠] <= 5"
    )
    assert code == 2
    assert "no entry is called" in error


def test_a_rate_whose_square_is_beyond_a_float_is_simulated(run: Run, tmp_path: Path) -> None:
    profile = tmp_path / "rare.toml"
    profile.write_text(
        'schema = 1\nname = "rare"\ngpu = { memory_tokens = 1000 }\ntiming = { d0 = "14 ms" }\n'
        'classes = [{ name = "a", input = 100, decode = 10, rate = 4.5e-263 }]\n'
    )
    assert run("simulate", str(profile), "--requests", "200", "--format", "json")[0] == 0


@pytest.mark.parametrize(
    ("command", "more"),
    [
        (["analyze"], ["--format", "markdown"]),
        (["analyze"], ["--format", "json"]),
        (["explain", "wait.classes[].threshold"], []),
        (["simulate"], ["--requests", "50"]),
        (["size"], ["--requests", "500"]),
        (["emit"], ["--engine", "vllm"]),
        (["mix"], ["--replicas", "2", "--no-simulate"]),
    ],
    ids=lambda words: words[0] if words else "",
)
def test_no_name_becomes_a_command_of_a_ci_server(
    run: Run, tmp_path: Path, command: list[str], more: list[str]
) -> None:
    profile = tmp_path / "profile.toml"
    profile.write_text(
        'schema = 1\nname = "##[error]p"\n[gpu]\nmemory_tokens = 4000\n[timing]\nd0 = "10 ms"\n'
        '[[classes]]\nname = "::error::x"\ninput = 100\ndecode = 50\nrate = 1\n'
    )
    code, out, error = run(*command, str(profile), *more)
    assert code == 0, error
    for line in (out + error).splitlines():
        assert not line.lstrip().startswith("::")
        assert "##[" not in line


def test_no_file_name_commands_a_terminal_or_a_runner(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In results, in messages, and in annotations."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    table = tmp_path / "a\x1b[31m\u202e.csv"
    table.write_text("kv_tokens,iteration_ms\n" + "".join(f"{1000 * i},{10 + i}\n" for i in range(40)))
    profile = table.with_suffix(".toml")
    profile.write_text(PLAIN)
    said = [run("calibrate", str(table), "--format", format) for format in ("text", "markdown")]
    said.append(run("check", str(profile), "--require", "load.headroom > 1e9"))
    for _, out, error in said:
        assert "\\x1b" in out + error
        assert all(c.isprintable() or c in "\n\u200b" for c in out + error)
    assert [code for code, *_ in said] == [0, 0, 1]


def test_a_first_line_without_end_is_no_table(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a" * 200_000 + "\n1\n")
    code, _, error = run("calibrate", str(path))
    assert code == 2, error
    assert error.count("error: ") == 1


def test_a_label_that_is_no_number_is_quoted_short(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "now.prom"
    le = "[" * 5000
    path.write_text(
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="2588"} 1\n'
        "# TYPE vllm:request_prompt_tokens histogram\n"
        f'vllm:request_prompt_tokens_bucket{{le="{le}"}} 5\nvllm:request_prompt_tokens_bucket{{le="+Inf"}} 5\n'
        "vllm:request_prompt_tokens_count 5\nvllm:request_prompt_tokens_sum 500\n"
    )
    code, _, error = run("import", "metrics", str(path), "--interval", "9 s")
    assert code == 2
    assert "must be a number" in error
    assert len(error) < 1000


def test_more_nodes_of_a_radix_tree_than_there_is_room_for_are_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "tree.toml"
    path.write_text(
        NAME.format("tree")
        + REPLICA.format(400_000_000, "true")
        + "[[classes]]\nname = 'a'\ninput = 7_000_000\ndecode = 9\nrate = 1\n"
    )
    code, _, error = run("simulate", str(path), "--policy", "sglang", "--requests", "60")
    assert code == 2, error
    assert "a radix tree of up to" in error


def test_more_memory_than_there_is_is_one_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_much(*given: object, **named: object) -> NoReturn:
        raise MemoryError("Unable to allocate 381. MiB")

    monkeypatch.setattr(study, "study", too_much)
    code, out, error = run("simulate", "tool-calls-h100", "--policy", "greedy", "--requests", "100000000")
    assert (code, out) == (2, "")
    told, refused = error.splitlines()
    assert told == "note: 100,000,000 requests in all take some 6 GB of memory"
    assert refused == "error: out of memory: Unable to allocate 381. MiB"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError("Could not find/load shared object file 'libllvmlite.so'"), 2),
        (ImportError("libopenblas.so: failed to map segment from shared object", name="numpy.linalg"), 2),
        (ImportError("cannot import name 'x'", name="kvplan.simulation"), 3),
    ],
)
def test_a_library_that_cannot_be_loaded_is_no_defect_of_kvplan(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def lacking(*given: object, **named: object) -> NoReturn:
        raise error

    monkeypatch.setattr(study, "study", lacking)
    found, out, said = run("simulate", "tool-calls-h100", "--policy", "greedy", "--requests", "60")
    assert (found, out) == (code, "")
    refusal = "error: a library cannot be loaded" if code == 2 else "error: kvplan itself failed"
    assert said.startswith(refusal)
    assert str(error) in said


@pytest.mark.parametrize("files", [6, 8, 10, 12, 14])
def test_no_more_open_files_is_one_error(tmp_path: Path, files: int) -> None:
    sweep = [
        "sweep",
        "tool-calls-h100",
        "--vary",
        "gpu.memory_tokens=20k:400k:9",
        "-o",
        str(tmp_path / "rows.csv"),
    ]
    said = subprocess.run(
        [sys.executable, "-m", "kvplan", *sweep, "--simulate", "--workers", "2"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)),
        capture_output=True,
        text=True,
    )
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr == "error: kvplan cannot go on: Too many open files\n"


def test_a_label_without_end_is_refused_before_it_is_searched(run: Run, tmp_path: Path) -> None:
    """The library takes a time that grows with the square of it."""
    path = tmp_path / "now.prom"
    path.write_text('vllm:request_prompt_tokens_bucket{le="' + '\\"' * 3_000_000 + '"} 1\n')
    began = time.process_time()
    code, _, error = run("import", "metrics", str(path), "--interval", "9 s")
    assert code == 2
    assert error.endswith("now.prom:1: a line of more than 100,000 characters\n")
    assert time.process_time() - began < 10


MANY_DRAFTS = ", ".join(str(1 - i / 70) for i in range(68))


@pytest.mark.parametrize(
    "speculative",
    [
        f"{{ tokens = 67, accepted = [{MANY_DRAFTS}], draft_time = 0, verify_time = 0 }}",
        "{ tokens = 1, accepted = [0.5], draft_time = 0, verify_time = 0.03 }",
    ],
)
def test_drafts_of_any_number_and_cost_are_analyzed_and_swept(
    run: Run, tmp_path: Path, speculative: str
) -> None:
    """More than an answer has tokens; and whose verifying is all that a sequence costs."""
    path = tmp_path / "drafts.toml"
    lengths = PLAIN.replace("decode = 20", "decode = { 23 = 1, 2 = 2 }")
    path.write_text(f"{lengths}speculative = {speculative}\n")
    assert run("analyze", str(path))[0] == 0
    code, _, error = run("sweep", str(path), "--vary", "timing.d0=0.01,0.02", "-o", str(tmp_path / "out.csv"))
    assert code == 0, error


PLAIN = """schema = 1
name = "plain"
gpu = { memory_tokens = 10_000 }
timing = { d0 = 0.01, d2 = 1e-5 }
classes = [{ name = "a", input = 100, decode = 20, rate = 1 }]
"""
NAME = 'schema = 1\nname = "{}"\n'
REPLICA = 'gpu = {{ memory_tokens = {}, prefix_caching = {} }}\ntiming = {{ d0 = "14 ms" }}\n'


def test_a_switch_that_is_no_switch_is_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "switch.toml"
    path.write_text(
        NAME.format("switch")
        + REPLICA.format(1000, '"on"')
        + "[[classes]]\nname = 'a'\ninput = 9\ndecode = 2\nrate = 1\n"
    )
    code, _, error = run("analyze", str(path))
    assert code == 2
    assert "gpu.prefix_caching: must be true or false, not 'on'" in error


def test_stages_rarer_than_the_rounding_of_their_sum_have_a_latency(run: Run, tmp_path: Path) -> None:
    """Past 35 times its mean a geometric law has less than 1e-16 of its weight."""
    path = tmp_path / "geometric.toml"
    path.write_text(
        NAME.format("geometric")
        + REPLICA.format(1000, "false")
        + 'classes = [{ name = "a", input = 22, decode = { geometric = 2.6526810329787036 }, rate = 1e-186 }]\n'
    )
    code, out, error = run("analyze", str(path), "--format", "json")
    assert code == 0, error
    # alone in its batch, every iteration takes d0
    assert json.loads(out)["latency"]["itl_s"]["p50"] == pytest.approx(0.014)


def test_a_prefix_cache_without_a_warm_state_has_no_plot_of_states(run: Run, tmp_path: Path) -> None:
    """19 tokens an iteration, of prompts that take 7,604: nothing is ever warm."""
    path = tmp_path / "budget.toml"
    path.write_text(
        NAME.format("budget")
        + "gpu = { memory_tokens = 100_000, max_num_batched_tokens = 19 }\ntiming = { d0 = 0.1, d2 = 1e-4 }\n"
        + 'classes = [{ name = "a", input = 7604, decode = 6, rate = 1 }]\n'
        + "[[sessions]]\nname = 'talk'\nfirst = 11\nuser = 1\ndecode = 2\nturns = 2\nrate = 20\n"
        + "shared = 2780\nthink = { law = 'fixed', value = 3 }\n"
    )
    for format in ("markdown", "html"):
        code, _, error = run("analyze", str(path), "--format", format)
        assert code == 0, error


def test_kv_usage_of_a_memory_that_never_fills_has_a_probability(run: Run, tmp_path: Path) -> None:
    """So far out in the tail that the recursion of its cumulants leaves the numbers there are, and comes back."""
    path = tmp_path / "rare.toml"
    path.write_text(
        NAME.format("rare")
        + "gpu = { memory_tokens = 52 }\n"
        + "timing = { d0 = 0.16913779656163028, d5 = 2.25296164422018e-08, knee_tokens = 56292 }\n"
        + '[[classes]]\nname = "a"\ninput = 5\nrate = 0.013480055200736266\n'
        + "decode = { 4 = 0.2385933837038744, 12 = 6.1853429154533135 }\n"
    )
    code, out, error = run("analyze", str(path), "--format", "json")
    assert code == 0, error
    assert json.loads(out)["safety_buffer"]["overflow_probability_per_iteration"] < 1e-3


RARE = 5e-324


@pytest.mark.parametrize(
    ("windows", "inputs"),
    [
        ("0,1e308,1,,,\n600,1e308,1,,,\n", {9: 1.0}),
        ("0,1,1,,,\n1e308,1,1,,,\n", {9: 1.0}),
        ("0,1,1e308,,,\n600,1,1e308,,,\n", {9: 1.0}),
        ("0,1,-1,,,\n600,1,-1,,,\n", {9: 1.0}),
        ("0,5e-324,1,,,\n600,5e-324,1,,,\n", {9: 1.0}),
        ("0,1,1,,,\n600,1,1,,,\n", {9: 1e308, 10: 1e308}),
        ("0,1,1,,,\n600,1,1,,,\n", {9: RARE}),
        ("0,1,1,,,\n600,1,1,,,\n", {10**30: 1.0}),
        ("0,1,1,,,\n600,1,1,,,\n", dict.fromkeys(range(20_000), 1.0)),
    ],
)
def test_a_description_with_numbers_that_mean_nothing_is_refused(
    run: Run, tmp_path: Path, windows: str, inputs: dict[int, float]
) -> None:
    """Warnings are errors here: nothing overflows on the way."""
    path = tmp_path / "client-trace.csv"
    path.write_text(windows)
    tables = {"0": {"input_tokens": repr(inputs), "output_tokens": repr(dict.fromkeys(range(1, 1001), 1.0))}}
    (tmp_path / "client-dataset.json").write_text(json.dumps(tables))
    code, _, error = run("fit", str(path))
    assert code == 2, error
    assert "client-" in error


def test_a_description_of_more_arrivals_than_can_be_counted_is_fitted(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "client-trace.csv"
    path.write_text("0,1e10,3,,,\n600,2e10,1e6,,,\n")
    tables = {"0": {"input_tokens": "{9: 1}", "output_tokens": "{9: 1}"}}
    (tmp_path / "client-dataset.json").write_text(json.dumps(tables))
    assert run("fit", str(path))[0] == 0


def test_what_is_asked_for_once_in_an_age_fills_a_memory_without_a_warning(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "age.toml"
    path.write_text(
        NAME.format("age")
        + "gpu = { memory_tokens = 200_000_000_000, block_tokens = 100_000 }\ntiming = { d0 = 1e-5 }\n"
        + "[[classes]]\nname = 'a'\ninput = 14567\ndecode = 528\nrate = 2e-150\n"
        + "reuse = { tokens = 0.8, share = 0.96, gap = { law = 'exponential', mean = 1e6 } }\n"
    )
    assert run("analyze", str(path))[0] == 0


def test_answers_of_one_token_keep_any_limit_on_gaps(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    path.write_text(
        NAME.format("one")
        + REPLICA.format(100_000, "false")
        + 'slo = { itl_s = { p99 = 0.1 } }\nclasses = [{ name = "a", input = 22, decode = 1, rate = 1 }]\n'
    )
    code, out, error = run("analyze", str(path))
    assert code == 0, error
    assert "all is met at" in " ".join(out.split())


@pytest.mark.parametrize("format", ["text", "markdown"])
def test_a_class_gives_no_commands_where_a_key_is_explained(run: Run, tmp_path: Path, format: str) -> None:
    profile = tmp_path / "named.toml"
    profile.write_text(
        'schema = 1\nname = "n"\ngpu = { memory_tokens = 9000 }\ntiming = { d0 = "14 ms" }\n'
        'classes = [{ name = "##[group]x", input = 100, decode = 10, rate = 2 }]\n'
    )
    code, text, _ = run("explain", "equilibrium.classes[].in_flight", str(profile), "--format", format)
    assert code == 0
    assert "group" in text
    assert "##[" not in text


def test_prompts_too_long_for_a_table_are_not_simulated(run: Run, tmp_path: Path) -> None:
    profile = tmp_path / "long.toml"
    profile.write_text(
        'schema = 1\nname = "long"\ngpu = { memory_tokens = 100_000_000_000 }\ntiming = { d0 = "14 ms" }\n'
        + 'classes = [{ name = "a", input = 50_000_000, decode = 10, rate = 2 }]\n'
        + "speculative = { tokens = 2, accepted = [0.5, 0.2], draft_time = 1e-3, verify_time = 1e-6 }\n"
    )
    code, _, error = run("simulate", str(profile), "--policy", "vllm", "--requests", "20")
    assert code == 2
    assert "50,000,010 tokens" in error
