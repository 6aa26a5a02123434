"""`kvplan analyze` and what all commands have in common: exit codes, help, completion."""

import json
import os
from pathlib import Path

import pytest
from command import process, run
from every import every
from tiers import at_night

import kvplan
from kvplan.cli import app as cli
from kvplan.profile.reading import DEFAULT_PROFILE, shipped_profiles
from kvplan.report import assembly as report

ROOT = Path(__file__).parents[2]
SHELLS = ("bash", "zsh", "fish")
QUICK = "paper-fc-budgets"  # a profile whose report takes a fraction of the default's time


@pytest.mark.usefixtures("brief")
def test_without_a_profile_the_default_is_used_and_named() -> None:
    result = run("analyze")
    assert result.returncode == 0
    assert result.stderr == f"note: no profile given; using the shipped {DEFAULT_PROFILE}\n"
    named = run("analyze", DEFAULT_PROFILE)
    assert (named.stdout, named.stderr) == (result.stdout, "")


def test_a_profile_is_read_from_a_path_and_from_standard_input() -> None:
    path = shipped_profiles()[QUICK]
    shipped = run("analyze", QUICK, "--format", "json").stdout
    assert run("analyze", str(path), "--format", "json").stdout == shipped
    assert run("analyze", "-", "--format", "json", input=path.read_text("utf-8")).stdout == shipped


# budgets; one each of: segments, several lengths, many lengths, a cycle that is simulated
@pytest.mark.parametrize(
    "name", [QUICK, *at_night("paper-wait-nested", DEFAULT_PROFILE, "reasoning-h100", "two-tier-99-125")]
)
def test_json_has_the_same_bytes_whatever_the_hash_seed(name: str) -> None:
    """Here it is one of its own, and most likely not 1."""
    here, there = (
        each("analyze", name, "--format", "json", env={"PYTHONHASHSEED": "1"}).stdout
        for each in (run, process)
    )
    assert here == there
    assert json.loads(here)["schema_version"] == 2


def test_output_to_a_file_is_what_standard_output_shows(tmp_path: Path) -> None:
    for form in ("text", "json"):
        result = run("analyze", QUICK, "--format", form, "-o", str(tmp_path / form))
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
        assert (tmp_path / form).read_text("utf-8") == run("analyze", QUICK, "--format", form).stdout


# ------------------------------------------------------------------------------------------------ defects


def test_a_defect_of_kvplan_is_one_line_and_exit_code_three(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def defect(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr(report, "analyze", defect)
    monkeypatch.delenv("KVPLAN_DEBUG", raising=False)
    assert cli.main(["analyze", QUICK]) == 3
    out, error = capfd.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    assert "report it (ZeroDivisionError: division by zero)" in error

    monkeypatch.setenv("KVPLAN_DEBUG", "1")
    assert cli.main(["analyze", QUICK]) == 3
    assert "Traceback" in capfd.readouterr().err


# ------------------------------------------------------------------------------------------------ start-up


def test_the_version_is_one_line() -> None:
    result = run("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"kvplan {kvplan.__version__}\n", "")


@every(
    "command", [info.name or info.callback.__name__ for info in cli.app.registered_commands if info.callback]
)
def test_help_is_plain_and_has_an_example(command: str) -> None:
    result = run(command, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.isascii()
    assert f"Example: kvplan {command}" in result.stdout
    codes = " ".join(result.stdout.partition("Exit codes: ")[2].split())
    assert codes.startswith("0 done; ")
    assert codes.endswith("2 bad usage or input; 3 kvplan failed; 130 interrupted.")
    assert ("; 1 " in codes) == (command in ("plan", "check", "emit"))
    if command == "analyze":
        assert f"Default: the shipped {DEFAULT_PROFILE}." in " ".join(result.stdout.split())


# ---------------------------------------------------------------------------------------------- completion


@pytest.mark.parametrize("shell", SHELLS)
def test_the_completion_scripts_are_those_of_the_command(shell: str) -> None:
    """With ``KVPLAN_REGENERATE=1`` the scripts are written instead."""
    script = run(env={"_KVPLAN_COMPLETE": f"source_{shell}"}).stdout.strip() + "\n"
    path = ROOT / "completions" / f"kvplan.{shell}"
    if os.environ.get("KVPLAN_REGENERATE"):
        path.write_text(script, encoding="utf-8")
        pytest.skip("written")
    assert path.read_text("utf-8") == script


@every(
    ("typed", "completions"),
    [
        ("kvplan an", ["analyze"]),
        ("kvplan analyze tool", ["tool-calls-h100"]),
        ("kvplan analyze --o", ["--output"]),
        ("kvplan analyze --section neste", ["nested_wait"]),
        ("kvplan simulate --policy sara", ["sarathi"]),
        ("kvplan simulate --policy greedy,nested", ["greedy,nested-wait"]),
        ("kvplan sweep --policy vllm,greed", ["vllm,greedy"]),
        ("kvplan sweep --columns load.headroom,saturation.it", ["load.headroom,saturation.iteration_time_s"]),
        ("kvplan simulate --policy trtllm", ["trtllm-max-utilization", "trtllm-no-evict"]),
        ("kvplan simulate agents", ["agents-collapse"]),
        ("kvplan import --model Llama-3.1-8", ["Llama-3.1-8B", "Llama-3.1-8B-Instruct"]),
        ("kvplan import --model x --gpu H100-S", ["H100-SXM"]),
        ("kvplan import --base tool", ["tool-calls-h100"]),
        ("kvplan explain load.head", ["load.headroom"]),
        ("kvplan check --require wait.classes[0].thr", ["wait.classes[0].threshold"]),
        (
            "kvplan check --tolerance load.sustainable_r",
            ["load.sustainable_rps", "load.sustainable_rps_range[0]"],
        ),
        ("kvplan check --accept w", ["workload"]),
    ],
)
def test_what_is_half_typed_is_completed(typed: str, completions: list[str]) -> None:
    environment = {"_KVPLAN_COMPLETE": "complete_bash", "COMP_WORDS": typed}
    result = run(env=environment | {"COMP_CWORD": str(typed.count(" "))})
    assert result.stdout.split() == completions
