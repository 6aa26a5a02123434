"""`kvplan simulate --grid`: variants side by side, the best of them, and whether chance may have chosen it."""

import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

import kvplan
from kvplan.cli.app import main

NODE = "paper-sic-limit-cycle"
T_4 = 2.776  # Student's t that 2.5 % exceed, 4 degrees of freedom


def simulated(tmp_path: Path, *options: str) -> dict[str, Any]:
    out = tmp_path / "out.json"
    assert main(["simulate", *options, "--format", "json", "-o", str(out)]) == 0
    document: dict[str, Any] = json.loads(out.read_text())
    return document


def test_a_grid_has_every_combination_and_no_variant_differs_from_a_run_of_its_own(tmp_path: Path) -> None:
    load = ["tool-calls-h100", "--arrivals", "saturated", "--requests", "400"]
    grid = ["--grid", "flow-unknown.budget=2:4:3", "--grid", "flow-unknown.max_num_seqs=50,100"]
    tried = simulated(tmp_path, *load, "--policy", "flow-unknown,vllm", *grid)["policies"]
    names = [f"flow-unknown budget={b} max_num_seqs={n}" for b in (2, 3, 4) for n in (50, 100)]
    assert [each["policy"] for each in tried] == [*names, "vllm"]
    assert [each["parameters"]["max_num_seqs"] for each in tried[:2]] == [50, 100]
    own = ["--set", "flow-unknown.budget=3", "--set", "flow-unknown.max_num_seqs=100"]
    (alone,) = simulated(tmp_path, *load, "--policy", "flow-unknown", *own)["policies"]
    assert {**tried[3], "policy": "flow-unknown"} == alone


def test_the_best_is_told_from_others_by_differences_of_the_same_seeds(tmp_path: Path) -> None:
    load = ["tool-calls-h100", "--requests", "250", "--slo", "ttft.p95=60 ms"]
    grid = ["--grid", "flow-unknown.budget=0.6,0.75,0.85,0.95,3"]
    found = simulated(tmp_path, *load, *grid, "--seeds", "5")["grid"]
    seeds = [simulated(tmp_path, *load, *grid, "--seed", str(seed))["policies"] for seed in range(5)]
    rows = {row[0]["policy"]: [each["goodput_rps"] for each in row] for row in zip(*seeds, strict=True)}
    best = max(rows, key=lambda name: mean(rows[name]))
    alike = []
    for name, row in rows.items():
        differences = [a - b for a, b in zip(row, rows[best], strict=True)]
        if name != best and abs(mean(differences)) <= T_4 * stdev(differences) / 5**0.5:
            alike.append(name)
    assert (found["figure"], found["best"], sorted(found["alike"])) == ("goodput_rps", best, sorted(alike))
    assert 0 < len(alike) < 4


@pytest.mark.parametrize(
    ("options", "figure"),
    [
        ("--arrivals saturated --grid flow-unknown.budget=0.5,2,20", "throughput_rps"),
        ("--seeds 4 --grid flow-unknown.budget=0.9,4", "e2e_s.mean"),
        ("--slo ttft.p95=1s --grid flow-unknown.budget=0.2,4", "goodput_rps"),
    ],
)
def test_throughput_decides_without_objectives_and_latency_where_all_serve_the_same(
    tmp_path: Path, options: str, figure: str
) -> None:
    found = simulated(tmp_path, "tool-calls-h100", "--requests", "800", *options.split(" "))
    assert found["grid"]["figure"] == figure


def test_a_livelock_is_named_and_the_others_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [
        NODE,
        "--arrivals",
        "saturated",
        "--requests",
        "300",
        "--grid",
        "alpha-protection.alpha=0.1,0.5,0.9",
    ]
    found = simulated(tmp_path, *options)
    status = {each["policy"]: each["status"] for each in found["policies"]}
    halted = [name for name, each in status.items() if each == "livelock"]
    assert found["grid"]["livelocks"] == halted == ["alpha-protection alpha=0.1"]
    assert found["grid"]["best"] == "alpha-protection alpha=0.5"
    assert main(["simulate", *options]) == 0
    text = capsys.readouterr().out
    assert "Livelock:" in text
    assert "* alpha-protection    0.5" in text


def test_a_single_parameter_is_drawn_and_two_are_not(tmp_path: Path) -> None:
    options = [
        "simulate",
        NODE,
        "--requests",
        "300",
        "--plot",
        str(tmp_path / "x.svg"),
        "-o",
        str(tmp_path / "x"),
    ]
    assert main([*options, "--grid", "flow-unknown.budget=20:40:3"]) == 0
    assert "against flow-unknown.budget" in (tmp_path / "x.svg").read_text()
    assert (
        main([*options, "--grid", "flow-unknown.budget=20,40", "--grid", "flow-unknown.max_num_seqs=9,99"])
        == 0
    )
    assert "against" not in (tmp_path / "x.svg").read_text()


def test_many_variants_are_cut_to_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["simulate", NODE, "--requests", "300", "--arrivals", "saturated"]
    assert main([*options, "--grid", "flow-unknown.budget=1:40:40"]) == 0
    first = capsys.readouterr().out
    assert "The 20 best of 40; --full shows all." in first
    assert main([*options, "--grid", "flow-unknown.budget=1:40:40", "--full"]) == 0
    assert capsys.readouterr().out.count("flow-unknown  ") >= 40


def test_the_function_takes_a_grid_and_its_policies_from_it() -> None:
    study = kvplan.simulate("tool-calls-h100", grid={"flow-unknown.budget": [2, 4]}, requests=50)
    assert study.columns()["policy"] == ["flow-unknown budget=2", "flow-unknown budget=4"]
    assert study.to_dict()["grid"]["best"] in study.columns()["policy"]
