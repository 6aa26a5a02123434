"""`kvplan sweep`: its figures are those of other commands, and whatever stops it, its file comes out the same."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from command import ENVIRONMENT

from kvplan import executors
from kvplan.cli.app import main
from kvplan.profile.reading import load_profile, parse_profile
from kvplan.sweeps import store
from kvplan.sweeps.definition import DEFAULT, Sweep, define
from kvplan.sweeps.run import sweep
from kvplan.version import __version__

PROFILE = """schema = 1
name = "two classes"
gpu = { memory_tokens = 1000, prefill = "disaggregated" }
timing = { d0 = 0.5, d1 = 0.001 }
classes = [
    { name = "tool calls", input = 9, decode = 3, rate = 1.0 },
    { name = "b.c", input = 20, decode = { 5 = 1, 7 = 2 }, rate = 0.5 },
]
"""
SMALL = ["--simulate", "--policy", "greedy", "--requests", "50", "--seeds", "2", "--executor", "serial"]


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "two.toml"
    path.write_text(PROFILE)
    return path


def run(*arguments: object) -> int:
    return main(["sweep", *map(str, arguments)])


def rows(path: Path) -> list[dict[str, Any]]:
    header, *found = [json.loads(line) for line in path.read_text().splitlines()]
    assert header["points"] == len(found)
    return found


def test_a_grid_has_every_combination_with_the_figures_of_analyze(profile: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    keys = (
        "load.headroom,rate_cap.classes[b.c].integer_budget,wait.*,nested_wait.fits,stability.spectral_radius"
    )
    memory, rates = [30, 515, 1000], [0.5, 40.0]
    vary = ["--vary", "gpu.memory_tokens=30:1k:3", "--vary", "classes.b.c.rate=0.5,40"]
    assert run(profile, *vary, "--columns", keys, "--executor", "serial", "-o", out) == 0
    found = rows(out)
    points = [(row["gpu.memory_tokens"], row["classes.b.c.rate"]) for row in found]
    assert points == list(product(memory, rates))
    for row in (found[0], found[-1]):
        text = PROFILE.replace("memory_tokens = 1000", f"memory_tokens = {row['gpu.memory_tokens']}")
        changed = text.replace("rate = 0.5", f"rate = {row['classes.b.c.rate']}")
        report = analyzed(tmp_path, changed)
        assert row["load.headroom"] == report["load"]["headroom"]
        budget = report["rate_cap"]["classes"][1]["integer_budget"]
        assert row["rate_cap.classes[b.c].integer_budget"] == budget
        assert row["nested_wait.fits"] == report["nested_wait"]["fits"]
        assert row["wait.classes[tool calls].latency_s"] == report["wait"]["classes"][0]["latency_s"]
        assert row["stability.spectral_radius"] == report["stability"]["spectral_radius"]
        thresholds = report["wait"]["thresholds"] or [None, None]
        assert [row[f"wait.thresholds[{i}]"] for i in range(2)] == thresholds
        assert row["error"] is None


def analyzed(folder: Path, profile: str) -> dict[str, Any]:
    (folder / "changed.toml").write_text(profile)
    out = folder / "report.json"
    assert main(["analyze", str(folder / "changed.toml"), "--format", "json", "-o", str(out)]) == 0
    report: dict[str, Any] = json.loads(out.read_text())
    return report


@pytest.mark.parametrize(
    ("name", "varied"),
    [
        ("eagle-3-h100", "speculative.tokens=5"),
        ("gemma-3-27b-h100", "gpu.kv_blocks=15246"),
        ("tool-calls-h100", "classes[0].rate=45"),
    ],
)
def test_without_columns_there_are_a_few_computed_figures(name: str, varied: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert run(name, "--vary", varied, "-o", out) == 0
    (row,) = rows(out)
    report = analyzed(tmp_path, load_profile(name, stdin=BytesIO()).text)
    assert row.keys() == {"point", varied.partition("=")[0], "error", *DEFAULT}
    assert "verdict.status" not in row  # which takes a simulation of each point
    for key, value in row.items():
        if key not in ("point", varied.partition("=")[0], "error"):
            block, _, name = key.partition(".")
            assert value == report[block][name]


def test_simulated_figures_are_those_of_simulate_at_the_seeds_of_the_point(
    profile: Path, tmp_path: Path
) -> None:
    out, alone = tmp_path / "out.jsonl", tmp_path / "alone.json"
    vary = ["--vary", "gpu.max_num_seqs=5,9,90"]
    keys = "simulation.greedy.*"
    assert run(profile, *vary, *SMALL, "--seed", "3", "--columns", keys, "-o", out) == 0
    changed = tmp_path / "changed.toml"
    changed.write_text(PROFILE.replace("memory_tokens = 1000", "memory_tokens = 1000, max_num_seqs = 90"))
    # point 2 of two seeds each, counted from 3: seeds 7 and 8
    options = ["--policy", "greedy", "--requests", "50", "--seed", "7", "--seeds", "2"]
    assert main(["simulate", str(changed), *options, "--format", "json", "-o", str(alone)]) == 0
    (policy,) = json.loads(alone.read_text())["policies"]
    row = rows(out)[2]
    assert row["simulation.greedy.throughput_rps"] == policy["throughput_rps"]
    assert row["simulation.greedy.e2e_s.p95"] == policy["e2e_s"]["p95"]
    assert row["simulation.greedy.ci95.e2e_s.p95[1]"] == policy["ci95"]["e2e_s.p95"][1]
    assert row["simulation.greedy.classes[b.c].ttft_s.mean"] == policy["classes"][1]["ttft_s"]["mean"]
    assert row["simulation.greedy.status"] == policy["status"]


def test_a_point_that_no_profile_may_have_says_why(profile: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    vary = ["--vary", "gpu.memory_tokens=20,100", "--columns", "load.headroom"]
    assert run(profile, *vary, "--executor", "serial", "-o", out) == 0
    comment, *table = out.read_text().splitlines()
    assert json.loads(comment.removeprefix("# "))["kvplan_sweep"] == 1
    first, second = csv.DictReader(table)
    assert first["load.headroom"] == ""
    assert first["error"].startswith("classes[1]: class 'b.c' does not fit")
    assert (second["error"], float(second["load.headroom"]) > 0) == ("", True)


def a_sweep(points: int = 1500, **options: Any) -> Sweep:
    vary = [f"gpu.memory_tokens=100:90k:{points}"]
    return define(parse_profile(PROFILE.encode(), "two.toml"), vary, **{"columns": ["load.*"], **options})


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_file_cut_anywhere_is_completed_to_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    whole, part = tmp_path / f"whole.{suffix}", tmp_path / f"part.{suffix}"
    given = a_sweep(points=400)
    sweep(given, whole, executor="serial")
    data = whole.read_bytes()
    begin = len(store.head(given, store.format_of(whole)))
    rng = random.Random(5)
    for cut in [
        0,
        1,
        begin - 1,
        begin,
        begin + 1,
        len(data) - 1,
        len(data),
        *rng.choices(range(len(data)), k=6),
    ]:
        part.write_bytes(data[:cut])
        found = sweep(given, part, executor="serial", resume=True)
        assert part.read_bytes() == data
        assert found.resumed == max(data[begin:cut].count(b"\n"), 0)
        assert found.dropped == (cut > 0 and not data[:cut].endswith(b"\n"))


def test_ctrl_c_says_how_to_go_on(profile: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    options = ["--vary", "gpu.memory_tokens=100:90k:40000", "--columns", "rate_cap.*", "--workers", "2"]
    command = [sys.executable, "-P", "-m", "kvplan", "sweep", str(profile), *options, "-o", str(out)]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # which shells turn off in the background
    )
    wait_for_lines(out, 3)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == f"note: interrupted; --resume goes on with {out}\n"
    assert out.read_bytes().endswith(b"\n")


def wait_for_lines(path: Path, lines: int) -> None:
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_bytes().count(b"\n") > lines):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_file_of_something_else_is_noticed(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.csv"
    command = ["--vary", "gpu.max_num_seqs=5,9", "--columns", "load.headroom", "-o", out]
    assert run(profile, *command) == 0
    good = out.read_bytes()
    capsys.readouterr()

    def refused(*more: object, content: bytes = good) -> str:
        out.write_bytes(content)
        assert run(*more) == 2
        assert out.read_bytes() == content
        said = capsys.readouterr().err
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        return said

    assert "is there already; --resume" in refused(profile, *command)
    nested = b"[" * 5000 + b"\n"
    for foreign in (b"a,b\n1,2\n", b"\x00\xff" * 400, b'{"kvplan": 1}\n' + good, good[9:], nested):
        assert "is not the result of a sweep" in refused(profile, *command, "--resume", content=foreign)
    assert "columns differ" in refused(profile, *command, "--columns", "wait.fits", "--resume")
    assert "vary differ" in refused(profile, *command[2:], "--vary", "gpu.max_num_seqs=5,8", "--resume")
    older = good.replace(f'"kvplan_version": "{__version__}"'.encode(), b'"kvplan_version": "0.0.1"')
    assert "was begun by kvplan 0.0.1" in refused(profile, *command, "--resume", content=older)
    middle = good.splitlines(keepends=True)
    missing = b"".join([*middle[:2], middle[3]])
    assert "point 0 is damaged" in refused(profile, *command, "--resume", content=missing)
    torn = b"".join([*middle[:2], middle[2][:3] + b"\n", middle[3]])
    assert "point 0 is damaged" in refused(profile, *command, "--resume", content=torn)
    assert "point 2 is damaged" in refused(profile, *command, "--resume", content=good + middle[3])
    profile.write_text(PROFILE + "# another comment\n")
    assert "the profile has changed" in refused(profile, *command, "--resume")


def test_two_sweeps_do_not_write_the_same_file(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    with (
        store.opened(a_sweep(), out, resume=False),
        pytest.raises(Exception, match="another sweep is writing it"),
        store.opened(a_sweep(), out, resume=True),
    ):
        pass


@pytest.mark.nightly
def test_cores_give_the_bytes_of_one_process(tmp_path: Path) -> None:
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    sweep(a_sweep(), one, executor="serial")
    sweep(a_sweep(), two, executor="cores", workers=2)
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("error", [EOFError("unexpected EOF"), ConnectionResetError()], ids=repr)
def test_death_of_the_process_that_forks_workers_breaks_the_pool_as_theirs_does(error: Exception) -> None:
    """It says no word to whoever asks it for a worker at that moment; a broken pool is replaced."""
    with pytest.raises(BrokenProcessPool), executors.started("cores", 2):
        raise error
