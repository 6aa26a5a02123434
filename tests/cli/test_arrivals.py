"""Arrivals as the profile says, in every command that simulates; options override them, and the output says which."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import run

import kvplan

PROFILE = """schema = 1
name = "one class"
[gpu]
memory_tokens = 6000
[timing]
d0 = "20 ms"
d2 = "50 us"
[[classes]]
name = "a"
input = 300
decode = { 20 = 1, 60 = 1 }
rate = 2.0
"""


def with_workload(folder: Path, text: str) -> Path:
    file = folder / "p.toml"
    file.write_text(PROFILE.replace("[[classes]]", f"[workload]\n{text}\n[[classes]]"))
    return file


def trace_in(folder: Path, *, rate: float = 2.0, requests: int = 400) -> Path:
    """Twenty at a time, at that mean rate."""
    file = folder / "requests.csv"
    times = np.repeat(np.arange(requests // 20) * 20 / rate, 20)
    rows = "".join(f"{time:.3f},300,40\n" for time in times)
    file.write_text(f"time,input,output\n{rows}")
    return file


def simulated(*arguments: object) -> dict[str, Any]:
    return json.loads(run("simulate", *arguments, "--policy", "vllm", "--format", "json").stdout)


def test_simulate_takes_cv_from_the_profile_and_options_override_it(tmp_path: Path) -> None:
    file = with_workload(tmp_path, "cv = 4")
    found = simulated(file, "--requests", 2000)
    assert (found["arrivals"]["kind"], found["arrivals"]["cv"]) == ("gamma", 4)
    same = simulated(file, "--requests", 2000, "--cv", 4)
    assert same["policies"] == found["policies"]
    random = simulated(file, "--requests", 2000, "--arrivals", "poisson")
    assert random["arrivals"]["kind"] == "poisson"
    assert found["policies"][0]["ttft_s"]["p95"] > 2 * random["policies"][0]["ttft_s"]["p95"]
    assert "gamma arrivals of cv 4" in run("simulate", file, "--requests", "50").stdout


def test_simulate_replays_the_trace_beside_the_profile(tmp_path: Path) -> None:
    trace = trace_in(tmp_path, rate=2.0 * 380 / 399)  # of 399 gaps the last 19 are 0
    file = with_workload(tmp_path, 'trace = "requests.csv"')
    found, replayed = simulated(file), simulated(file, "--trace", trace)
    assert found["arrivals"]["kind"] == "trace"
    assert found["policies"] == replayed["policies"]
    assert found["policies"][0]["completed"] == 400
    assert simulated(file, "--requests", 30)["policies"][0]["completed"] == 30
    assert kvplan.simulate(kvplan.load(file), requests=30).results[0].figures["completed"] == 30
    refused = run("simulate", file, "--seeds", "2")
    assert (refused.returncode, "the trace of the profile has no chance" in refused.stderr) == (2, True)


def test_a_plan_needs_more_for_arrivals_that_cluster(tmp_path: Path) -> None:
    """Of twenty at once each of two replicas computes ten prompts, in 20 ms + 10 · 300 · 50 µs = 170 ms."""

    def needed(text: str) -> int:
        slo = ("--slo", "ttft_s.p95 <= 0.15 s")
        done = run("plan", with_workload(tmp_path, text), *slo, "--rate", "20", "--format", "json")
        return json.loads(done.stdout)["plan"]["replicas"]

    trace_in(tmp_path)
    assert needed("cv = 1") < needed('trace = "requests.csv"')


def test_a_trace_that_is_not_there_is_named_with_the_line_that_wants_it(tmp_path: Path) -> None:
    done = run("analyze", with_workload(tmp_path, 'trace = "none.csv"'))
    assert done.returncode == 2
    assert "p.toml:9: workload.trace: " in done.stderr
    assert "none.csv" in done.stderr


def test_a_fitted_profile_finds_its_trace_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty at once every ten seconds: no gamma law, so the trace has to be replayed."""
    trace_in(tmp_path)
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    base = with_workload(tmp_path, "cv = 1")
    done = run("import", tmp_path / "requests.csv", "--base", base, "-o", profiles / "fitted.toml")
    assert done.returncode == 0, done.stderr
    assert 'trace = "../requests.csv"' in (profiles / "fitted.toml").read_text()
    monkeypatch.chdir(profiles)
    found = simulated("fitted.toml")
    assert (found["arrivals"]["kind"], found["arrivals"]["stretch"]) == ("trace", 1)
    text = (profiles / "fitted.toml").read_text()
    monkeypatch.chdir(tmp_path)  # standard input is read as if it stood here
    moved = text.replace("../requests.csv", "requests.csv")
    piped = json.loads(run("simulate", "-", "--policy", "vllm", "--format", "json", input=moved).stdout)
    assert piped["policies"] == found["policies"]


@pytest.mark.parametrize("key", ["cv = 2", 'trace = "requests.csv"'])
def test_sessions_do_not_cluster(tmp_path: Path, key: str) -> None:
    trace_in(tmp_path)
    file = with_workload(tmp_path, key)
    sessions = """[[sessions]]
name = "agent"
rate = 0.1
first = 100
user = 10
decode = 20
turns = 3
think = { law = "fixed", value = "5 s" }
"""
    file.write_text(file.read_text() + sessions)
    done = run("analyze", file)
    assert done.returncode == 2
    assert f"workload.{key.split()[0]}: not modelled beside [[sessions]]" in done.stderr
