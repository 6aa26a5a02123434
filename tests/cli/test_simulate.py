"""`kvplan simulate`: the contract of its JSON, what it refuses, and what happens on Ctrl-C."""

import csv
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import documents
import pytest
from command import ENVIRONMENT, run

from kvplan.cli.app import main
from kvplan.simulation.metrics import KEYS
from kvplan.units import parse_seconds
from kvplan.version import __version__

SMALL = ["simulate", "tool-calls-h100", "--requests", "300"]


def simulated(tmp_path: Path, *more: str) -> dict[str, Any]:
    path = tmp_path / "out.json"
    assert main([*SMALL, "--format", "json", "-o", str(path), *more]) == 0
    found: dict[str, Any] = documents.read("simulate", path.read_text())
    return found


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)
    else:
        yield value


def test_json_has_the_keys_of_the_contract(tmp_path: Path) -> None:
    found = simulated(tmp_path, "--policy", "greedy,vllm", "--seeds", "2", "--seed", "5")
    begin = ["schema_version", "kvplan_version", "profile", "arrivals", "seeds", "policies", "notes"]
    assert list(found) == begin
    assert (found["schema_version"], found["kvplan_version"]) == (1, __version__)
    assert set(found["profile"]) == {"name", "sha256"}
    assert found["arrivals"] == {"kind": "poisson", "requests": 300, "horizon_s": None}
    assert found["seeds"] == [5, 6]
    assert [p["policy"] for p in found["policies"]] == ["greedy", "vllm"]
    for policy in found["policies"]:
        assert set(policy["ci95"]) == set(KEYS)
        nested = {
            f"{key}.{name}" for key, value in policy.items() if isinstance(value, dict) for name in value
        }
        assert set(KEYS) <= nested | set(policy)
        groups = {key.partition(".")[0] for key in KEYS}
        assert set(policy) == {"policy", "parameters", "status", *groups, "ci95", "classes"}
        assert policy["completed"] == 300
        assert policy["unfinished"] == 0
        (one,) = policy["classes"]
        assert set(one) == {"name", "completed", "goodput_rps", "ttft_s", "tpot_s", "e2e_s"}
    assert all(math.isfinite(v) for v in leaves(found) if isinstance(v, float))
    assert found["policies"][1]["parameters"]["watermark"] == 0


def test_parameters_are_set(tmp_path: Path) -> None:
    found = simulated(
        tmp_path,
        *("--policy", "vllm,wait", "--set", "vllm.watermark=0.05", "--set", "vllm.admission=first-chunk"),
        *("--set", "wait.thresholds=9"),
    )
    assert found["policies"][0]["parameters"]["watermark"] == 0.05
    assert found["policies"][0]["parameters"]["admission"] == "first-chunk"
    assert found["policies"][1]["parameters"] == {"thresholds": [9]}


def test_flow_control_takes_its_budgets_from_the_plan(tmp_path: Path) -> None:
    """FC 4.1: Σ b_i S_i = 4060 b < 16492 for (4, 4, 4); n* = 16492/(4060/3) = 12.2."""
    target = tmp_path / "found.json"
    command = ["simulate", "paper-fc-budgets", "--policy", "flow,flow-unknown,mc", "--set", "mc.assume=max"]
    assert main([*command, "--requests", "20", "--format", "json", "-o", str(target)]) == 0
    found = {one["policy"]: one["parameters"] for one in json.loads(target.read_text())["policies"]}
    free = {"max_num_seqs": None}
    assert found == {
        "flow": {"budgets": [4, 4, 4], **free},
        "flow-unknown": {"budget": 12, **free},
        "mc": {"assume": "max", **free},
    }


SEVERAL = """
schema = 1
name = "several"
gpu = { memory_tokens = 4_000, max_num_seqs = 20, max_num_batched_tokens = 500 }
timing = { d0 = "10 ms" }
classes = [{ name = "a", input = 20, decode = { 5 = 0.5, 60 = 0.5 }, rate = 1 }]
"""


def several(tmp_path: Path, *more: str, text: str = SEVERAL) -> dict[str, Any]:
    profile, out = tmp_path / "several.toml", tmp_path / "out.json"
    profile.write_text(text)
    command = ["simulate", str(profile), "--requests", "400", "--format", "json", "-o", str(out)]
    assert main([*command, *more]) == 0
    found: dict[str, Any] = documents.read("simulate", out.read_text())
    return found


def test_saturated_seeds_differ_and_give_an_interval(tmp_path: Path) -> None:
    """What Student's t says of the runs of each seed alone."""
    command = ("--arrivals", "saturated", "--policy", "greedy")
    alone = [
        several(tmp_path, *command, "--seed", str(seed))["policies"][0]["throughput_rps"] for seed in range(3)
    ]
    assert len(set(alone)) == 3
    together = several(tmp_path, *command, "--seeds", "3")
    low, high = together["policies"][0]["ci95"]["throughput_rps"]
    mean, variance = sum(alone) / 3, sum((x - sum(alone) / 3) ** 2 for x in alone) / 2
    assert (low + high) / 2 == pytest.approx(mean)
    assert (high - low) / 2 == pytest.approx(4.302653 * (variance / 3) ** 0.5, rel=1e-5)
    assert not any("one path" in note for note in together["notes"])


@pytest.mark.parametrize(
    ("arrivals", "text"),
    [("interleaved", SEVERAL), ("saturated", SEVERAL.replace("{ 5 = 0.5, 60 = 0.5 }", "60"))],
)
def test_requests_without_chance_are_run_once_and_have_no_interval(
    tmp_path: Path, arrivals: str, text: str
) -> None:
    seeds = () if arrivals == "interleaved" else ("--seeds", "3")
    found = several(tmp_path, "--arrivals", arrivals, "--policy", "greedy,vllm", *seeds, text=text)
    assert found["seeds"] == [0]
    assert {interval for policy in found["policies"] for interval in policy["ci95"].values()} == {None}
    assert any("every seed gives this run" in note for note in found["notes"])


def test_an_interval_from_one_path_is_called_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = several(tmp_path, "--policy", "greedy")
    assert any("from one path" in note for note in found["notes"])
    for options in (["--full"], ["--format", "markdown"]):
        command = ["simulate", str(tmp_path / "several.toml"), "--requests", "400", *options]
        assert main([*command, "--policy", "greedy"]) == 0
        assert "from one path" in " ".join(capsys.readouterr().out.split())


def test_every_policy_is_said_to_keep_a_limit_or_not(tmp_path: Path) -> None:
    found = several(tmp_path, "--policy", "greedy,vllm,wait", "--set", "wait.thresholds=3")
    notes = "; ".join(found["notes"])
    assert "max_num_seqs (20 in the profile): kept by greedy, vllm, not by wait." in notes
    assert "max_num_batched_tokens (500 in the profile): kept by vllm, not by greedy, wait." in notes
    greedy, _, wait = found["policies"]
    assert greedy["parameters"] == {"max_num_seqs": 20}
    assert wait["parameters"] == {"thresholds": [3]}


def test_csv_has_a_line_for_each_policy_and_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--format", "csv", "--policy", "greedy,vllm"]) == 0
    rows = list(csv.DictReader(StringIO(capsys.readouterr().out)))
    assert {row["policy"] for row in rows} == {"greedy", "vllm"}
    values = {(row["policy"], row["figure"]): row["value"] for row in rows}
    assert float(values["greedy", "completed"]) == 300


def test_the_first_screen_has_ten_rows_that_differ_and_marks_the_best() -> None:
    result = run("simulate", "tool-calls-h100", "--policy", "greedy,vllm,wait", "--requests", "3000")
    assert (result.returncode, result.stderr) == (0, "")
    header, *rows = result.stdout.split("\n\n")[1].splitlines()
    assert header.split() == ["greedy", "vllm", "wait"]
    assert 2 <= len(rows) <= 10
    for row in rows:
        _, *cells = re.split(r"  +", row.strip())
        assert len(cells) == 3
        plain = [cell.partition(" ±")[0].removeprefix("* ") for cell in cells]
        marked = [cell.startswith("* ") for cell in cells]
        values = [parse_seconds(cell) if cell[-1] == "s" else float(cell) for cell in plain]
        best = (max if row.startswith("  Requests/s") else min)(values)
        for value, mark in zip(values, marked, strict=True):
            assert abs(value / best - 1) <= 0.015 if mark else abs(value / best - 1) >= 0.005
    assert "Alike: steady." in result.stdout


def test_the_series_is_the_state_over_time(tmp_path: Path) -> None:
    path = tmp_path / "series.csv"
    simulated(tmp_path, "--policy", "greedy", "--series", str(path))
    rows = list(csv.DictReader(StringIO(path.read_text())))
    assert list(rows[0]) == [
        "policy",
        "time_s",
        "kv_tokens",
        "waiting",
        "running",
        "evictions",
        "completions",
    ]
    times = [float(row["time_s"]) for row in rows]
    assert times == sorted(times)


def test_a_livelock_is_reported_not_looped_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One block is the engine's own: 4 blocks of 16 do not hold the 65 tokens of this request."""
    profile = tmp_path / "tight.toml"
    profile.write_text(
        'schema = 1\nname = "tight"\ngpu = { memory_tokens = 80, block_tokens = 16 }\ntiming = { d0 = "1 s" }\n'
        'classes = [{ name = "a", input = 60, decode = 10, rate = 0.1 }]\n'
    )
    out = tmp_path / "out.json"
    arguments = ["--policy", "vllm", "--requests", "5", "--format", "json", "-o", str(out)]
    assert main(["simulate", str(profile), *arguments]) == 0
    (policy,) = json.loads(out.read_text())["policies"]
    assert (policy["status"], policy["completed"]) == ("livelock", 0)
    assert policy["e2e_s"]["mean"] is None
    assert main(["simulate", str(profile), "--policy", "vllm", "--requests", "5"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "vllm: a request can never fit in the memory it may use, even alone; the run was ended." in text
    assert "(number 1 in order of arrival, seed 0)" in text


INTERRUPTED = """
import os, signal, sys, time
from kvplan.cli.app import main
from kvplan.simulation import engine

signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
engine.Program.is_worth_it = lambda *_: False  # however slow the machine, the loop looks up now and then
os.cpu_count = lambda: 2  # however many there are, some policy has not begun
run = engine.run


pressed = []


def run_and_interrupt(*arguments, watch, **options):
    def seen(completed):
        if completed > 1000 and not pressed:
            pressed.append(os.kill(os.getpid(), signal.SIGINT))
        while pressed and watch(completed):  # however busy the machine, nobody goes on
            time.sleep(0.001)
        return watch(completed)

    return run(*arguments, watch=seen, **options)


engine.run = run_and_interrupt
sys.exit(main(sys.argv[1:]))
"""


def interrupted(*command: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "simulate", "tool-calls-h100", *command],
        capture_output=True,
        env=ENVIRONMENT,
        text=True,
        timeout=200,
    )
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_ctrl_c_reports_what_is_done() -> None:
    done = interrupted("--policy", "greedy", "--requests", "300000", "--format", "json")
    found = documents.read("simulate", done.stdout)
    (policy,) = found["policies"]
    assert 1000 < policy["completed"] < 300_000
    assert (found["interrupted"], found["seeds"]) == (True, [0])
    assert "interrupted; figures are of the run of seed 0 as far as it went" in done.stderr
