"""A sample of input that nobody writes on purpose; `tests/campaign` makes as much of it as one has time for.

Bad input costs one clear line and exit code 2; names move no cursor and command no runner; valid profiles with
extreme values are answered.
"""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from command import Run
from every import check_every
from tiers import is_night

from kvplan.simulation.experiments import study

PLAIN = """schema = 1
name = "plain"
gpu = { memory_tokens = 10_000 }
timing = { d0 = 0.01, d2 = 1e-5 }
classes = [{ name = "a", input = 100, decode = 20, rate = 1 }]
"""


def profile(gpu: str, timing: str, *classes: str, more: str = "") -> str:
    """A profile of classes, each given as the rest of its table."""
    tables = "".join(
        f'[[classes]]\nname = "{name}"\n{one}\n' for name, one in zip("abc", classes, strict=False)
    )
    return f'schema = 1\nname = "extreme"\ngpu = {{ {gpu} }}\ntiming = {{ {timing} }}\n{more}\n{tables}'


# ------------------------------------------------------------------------------------------------- names


def is_harmless(text: str) -> bool:
    lines = text.splitlines()
    return all(c.isprintable() or c == "\u200b" for line in lines for c in line) and not any(
        line.lstrip().startswith("::") or "##[" in line for line in lines
    )


@pytest.mark.usefixtures("brief")
def test_no_name_commands_a_terminal_or_a_ci_server(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"
    path.write_text(PLAIN.replace('"plain"', '"##[error]p"').replace('"a"', '"::error::x"'))

    def check(call: str) -> None:
        command, *options = call.split()
        at = 1 if command == "explain" else 0
        code, out, error = run(command, *options[:at], str(path), *options[at:])
        assert code == 0, error
        assert is_harmless(out + error)

    check_every(
        (
            *("analyze --format text", "analyze --format markdown", "analyze --format json"),
            "explain wait.classes[].threshold",
            "explain equilibrium.classes[].in_flight --format markdown",
            *("simulate --requests 50", "plan", "emit --engine vllm"),
            "mix --replicas 2",
        ),
        check,
    )


def test_no_file_name_commands_a_terminal_or_a_runner(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In results, in messages, and in annotations."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    table = tmp_path / "a\x1b[31m\u202e.csv"
    table.write_text("kv_tokens,iteration_ms\n" + "".join(f"{1000 * i},{10 + i}\n" for i in range(40)))
    path = table.with_suffix(".toml")
    path.write_text(PLAIN)
    said = [run("import", str(table))]
    said.append(run("check", str(path), "--require", "load.headroom > 1e9"))
    said.append(run("import", "no\x1b[31mil\u202e.csv"))
    for _, out, error in said:
        assert "\\x1b" in out + error
        assert all(c.isprintable() or c in "\n\u200b" for c in out + error)
    assert [code for code, *_ in said] == [0, 1, 2]


# ---------------------------------------------------------------------------------------------- refusals

DRAFTS = "speculative = {{ tokens = {}, accepted = {}, draft_time = 1e-4, verify_time = 1e-5 }}"
LARGE, SLOW = "memory_tokens = 100_000_000, prefix_caching = false", "d0 = 0.01, d1 = 1e-7"
SIMULATE = ("--requests", "20", "--policy")
TOO_MUCH = {
    "drafts simulated": (
        profile(
            "memory_tokens = 100_000_000",
            SLOW,
            "input = 9_000_000\ndecode = 10\nrate = 2",
            more=DRAFTS.format(2, [0.5, 0.2]),
        ),
        ("simulate", *SIMULATE, "vllm"),
        "9,000,010 tokens",
    ),
    "parts of a prompt": (
        profile(
            "memory_tokens = 1_000_000, max_num_batched_tokens = 2",
            SLOW,
            "input = 20_001\ndecode = 3\nrate = 1e-9",
        ),
        ("simulate", *SIMULATE, "vllm"),
        "a prompt has 20,001 tokens, and more than 10,000 times the budget is not simulated",
    ),
    "replicas": (
        profile(
            "memory_tokens = 1_254_261, block_tokens = 1_000_000",
            SLOW,
            "input = 192\ndecode = 28\nrate = 1",
            more="fleet = { replicas = 7555 }",
        ),
        ("simulate", *SIMULATE, "vllm"),
        "the states of 7,555 replicas take up to 56.3 GiB, and 1 is the most",
    ),
    "outputs with drafts": (
        profile(LARGE, SLOW, "input = 9\ndecode = 131_073\nrate = 1e-4", more=DRAFTS.format(1, [0.5])),
        ("analyze",),
        "classes: outputs of up to 131073 tokens",
    ),
}


def test_more_than_there_is_time_or_memory_for_is_refused_in_one_line(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"

    def check(case: tuple[str, tuple[str, ...], str]) -> None:
        text, (command, *options), says = case
        path.write_text(text)
        code, out, error = run(command, str(path), *options)
        assert (code, out, error.count("error: ")) == (2, "", 1)
        assert says in error

    check_every(TOO_MUCH, check)


def test_a_prompt_of_ten_thousand_parts_is_still_simulated(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"
    path.write_text(TOO_MUCH["parts of a prompt"][0].replace("20_001", "20_000"))
    assert run("simulate", str(path), "--policy", "vllm", "--requests", "3")[0] == 0


def test_files_that_mean_nothing_are_refused_in_one_line(run: Run, tmp_path: Path) -> None:
    baseline, table, metrics = (tmp_path / name for name in ("before.json", "table.csv", "now.prom"))
    baseline.write_text('{"schema_version": 2, "load": {"sustainable_rps": 1, "sustainable_rps": 54}}')
    table.write_text("a" * 200_000 + "\n1\n")
    metrics.write_text(
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="2588"} 1\n'
        "# TYPE vllm:request_prompt_tokens histogram\n"
        f'vllm:request_prompt_tokens_bucket{{le="{"[" * 5000}"}} 5\n'
        'vllm:request_prompt_tokens_bucket{le="+Inf"} 5\n'
        "vllm:request_prompt_tokens_count 5\nvllm:request_prompt_tokens_sum 500\n"
    )
    check = ("check", "tool-calls-h100", "--accept", "workload")
    tolerance = ("--tolerance", "load.sustainable_rps=2%")
    for arguments, says in (
        ((*check, "--baseline", str(baseline), *tolerance), "'sustainable_rps' stands in it twice"),
        ((*check, "--require", "wait.thresholds[٠] <= 5"), "no entry is called"),
        (("import", "--as", f"timing={table}"), "not CSV: field larger than field limit"),
        (("import", str(metrics), "--interval", "9 s"), "must be a number"),
    ):
        code, _, error = run(*arguments)
        assert (code, error.count("error: ")) == (2, 1), error
        assert says in error
        assert len(error) < 1000


def test_a_description_with_numbers_that_mean_nothing_is_refused(run: Run, tmp_path: Path) -> None:
    """Warnings are errors here: nothing overflows on the way."""

    def check(case: tuple[str, dict[int, float]]) -> None:
        windows, inputs = case
        path = tmp_path / "client-trace.csv"
        path.write_text(windows)
        tables = {"input_tokens": repr(inputs), "output_tokens": repr(dict.fromkeys(range(1, 1001), 1.0))}
        (tmp_path / "client-dataset.json").write_text(json.dumps({"0": tables}))
        code, _, error = run("import", str(path))
        assert code == 2
        assert "client-" in error

    check_every(
        {
            "rate": ("0,1e308,1,,,\n600,1e308,1,,,\n", {9: 1.0}),
            "cv": ("0,1,-1,,,\n600,1,-1,,,\n", {9: 1.0}),
            "weights": ("0,1,1,,,\n600,1,1,,,\n", {9: 1e308, 10: 1e308}),
            "length": ("0,1,1,,,\n600,1,1,,,\n", {10**30: 1.0}),
            "lengths": ("0,1,1,,,\n600,1,1,,,\n", dict.fromkeys(range(20_000), 1.0)),
        },
        check,
    )


# --------------------------------------------------------------------------------------- the system around


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
    returned, out, said = run("simulate", "tool-calls-h100", "--policy", "greedy", "--requests", "60")
    assert (returned, out) == (code, "")
    refusal = "error: a library cannot be loaded" if code == 2 else "error: kvplan itself failed"
    assert said.startswith(refusal)
    assert str(error) in said


def test_no_more_open_files_is_one_error(tmp_path: Path) -> None:
    vary = ("--vary", "gpu.memory_tokens=20k:400k:9", "-o", str(tmp_path / "rows.csv"))
    said = subprocess.run(
        [
            *(sys.executable, "-m", "kvplan", "sweep", "tool-calls-h100"),
            *vary,
            "--simulate",
            "--workers",
            "2",
        ],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (10, 10)),
        capture_output=True,
        text=True,
    )
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr == "error: kvplan cannot go on: Too many open files\n"


# ----------------------------------------------------------------------------- extreme profiles that are valid

MANY_DRAFTS = [1 - i / 70 for i in range(68)]
EXTREME = {
    "more drafts than an answer has tokens": PLAIN.replace("decode = 20", "decode = { 23 = 1, 2 = 2 }")
    + f"speculative = {{ tokens = 68, accepted = {MANY_DRAFTS}, draft_time = 0, verify_time = 0 }}\n",
    "a prefix cache without a warm state": profile(
        "memory_tokens = 100_000, max_num_batched_tokens = 19",
        "d0 = 0.1, d2 = 1e-4",
        "input = 7604\ndecode = 6\nrate = 1",
        more="[[sessions]]\nname = 'talk'\nfirst = 11\nuser = 1\ndecode = 2\nturns = 2\nrate = 20\n"
        "shared = 2780\nthink = { law = 'fixed', value = 3 }",
    ),
    "a fleet whose answers are over with their first token": profile(
        "memory_tokens = 248786, block_tokens = 16",
        "d0 = 0.00155, d1 = 2.8e-09, d3 = 3.5e-05, d4 = 4.2e-05",
        "input = 9\ndecode = 1\nrate = 533.2543794452448",
        "input = 90\ndecode = 1\nrate = 0.00011348355151828846",
        more="fleet = { replicas = 692 }",
    ),
    "sessions that leave no full page": profile(
        "memory_tokens = 137396, block_tokens = 64",
        "d0 = 0.0023",
        "input = 32\ndecode = 6\nrate = 0.0457",
        more="[[sessions]]\nname = 'talk'\nshared = 2009\nfirst = 12\nuser = 2\ndecode = 1\nturns = 3\n"
        "think = { law = 'exponential', mean = 1.2 }\nrate = 9.3",
    ),
    "a law that is steeper where it stands than any work can be": profile(
        "memory_tokens = 3227, block_tokens = 64, max_num_seqs = 3, max_num_batched_tokens = 902",
        "d0 = 0.0013909818200690367, d5 = 3.6177022594084904e-05, knee_tokens = 5898",
        "input = 2937\ndecode = 20\nrate = 296.04",
        "input = 262\ndecode = { geometric = 3.9066357165630445 }\nrate = 363.17",
    ),
}


SOON = ("a fleet whose answers are over with their first token", list(EXTREME)[-1])


def test_extreme_profiles_are_analyzed(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"

    def check(text: str) -> None:
        path.write_text(text)
        code, out, error = run("analyze", str(path), "--format", "json")
        assert (code, error) == (0, "")
        chance = json.loads(out)["safety_buffer"]["overflow_probability_per_iteration"]
        assert chance is None or 0 <= chance <= 1

    check_every({name: text for name, text in EXTREME.items() if is_night() or name in SOON}, check)


COMMANDS = (
    "check FILE --require verdict.status==overloaded",
    "simulate FILE --policy greedy,vllm --requests 60",
    "explain load FILE",
    "explain stability.min_stable_input_tokens.asymptotic FILE",
    "sweep FILE --vary timing.d0=1ms,2ms -o OUTPUT",
    "plan FILE --rate 1",
    "mix FILE --replicas 2",
    "emit FILE",
)


def test_every_command_takes_classes_eighteen_powers_of_ten_apart(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "rare.toml"
    rates = (f"input = 9\ndecode = {decode}\nrate = {rate}" for decode, rate in ((4, "1e9"), (5, "1e-9")))
    path.write_text(profile("memory_tokens = 1000", "d0 = '10 ms', d1 = '1 us'", *rates))
    places = {"FILE": str(path), "OUTPUT": str(tmp_path / "rows.csv")}

    def check(command: str) -> None:
        code, _, error = run(*(places.get(word, word) for word in command.split()))
        assert code == 0, error

    check_every(COMMANDS, check)
