"""`kvplan import`, and what it writes put into the next command."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvplan.cli import main
from kvplan.profile import parse_profile

Run = Callable[..., tuple[int, str, str]]
LOG = "INFO 02-19 23:56:55 kv_cache_utils.py:524] GPU KV cache size: 60,000 tokens\n"
TRACE = "time,input,output\n0,100,20\n1,100,40\n2,300,5\n5,300,5\n"
ITERATIONS = "kv_tokens,iteration_ms\n" + "".join(f"{k},{10 + k / 1000}\n" for k in range(0, 20_000, 1000))


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        return code, *capfd.readouterr()

    return command


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
        f"{command} calibrate {iterations} --base -"
    )
    done = subprocess.run(["bash", "-o", "pipefail", "-c", pipe], capture_output=True, check=True)
    profile = parse_profile(done.stdout, "")
    assert profile.name == "replica of serve.log: traffic of trace.csv"
    assert profile.model.replica.memory_tokens == 60_000
    assert [c.input_tokens for c in profile.model.classes] == [100, 300]
    assert (profile.model.timing.d0, profile.model.timing.d1) == (0.01, 1e-6)
    text = done.stdout.decode()
    for source in (log, str(trace), str(iterations)):
        assert text.count(f"{source}") == 1  # each table says where it comes from, to the end
    assert "[gpu]" in text
    assert "not measured" not in text
    report = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{pipe} | {command} analyze -"],
        capture_output=True,
        check=True,
        env=os.environ | {"COLUMNS": "100"},
    )
    assert report.stdout.decode().startswith("replica of serve.log: traffic of trace.csv\n")


def test_what_cannot_be_imported_exits_2(run: Run, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.log"
    nothing.write_text("hello\n")
    for arguments in (["log", str(nothing)], ["log", str(nothing) + ".none"], ["log"], []):
        code, text, messages = run("import", *arguments)
        assert (code, text) == (2, "")
        assert messages.splitlines()[-1].startswith("error: ")
        assert "Traceback" not in messages
