"""Input that nobody writes by hand: one clear line, exit code 2, and nothing that moves the cursor."""

from pathlib import Path

import pytest
from command import Run


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
