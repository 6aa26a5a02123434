"""`kvplan mix`: text, Markdown and JSON say what was measured, and of mixed replicas what `analyze` says of one."""

import json
import re
from pathlib import Path
from typing import Any

import documents
import pytest
from command import Run
from command import run as command
from every import every

COMMAND = ["mix"]

PROFILE = """
schema = 1
name = "tiers"
[gpu]
memory_tokens = 4_000
[timing]
d0 = "10 ms"
[[classes]]
name = "short"
input = 100
decode = 4
rate = 40.0
[[classes]]
name = "long"
input = 100
decode = 6
rate = 20.0
[[classes]]
name = "odd"
input = 100
decode = 5
rate = 30.0
"""


def written(run: Run, *arguments: str) -> Any:
    """What the command writes as JSON."""
    code, text, error = run(*arguments, "--format", "json")
    assert code == 0, error
    return documents.read("mix", text)


@pytest.fixture
def tiers(tmp_path: Path) -> str:
    path = tmp_path / "tiers.toml"
    path.write_text(PROFILE)
    return str(path)


@every(("cv", "replicas"), [(1.0, 1), (1.0, 2), (1.0, 3), (2.0, 1)])  # of clumps, one of several sees others
@pytest.mark.usefixtures("brief")
def test_a_mixed_replica_has_the_figures_of_analyze(
    run: Run, tmp_path: Path, cv: float, replicas: int
) -> None:
    """To the last digit: the same share of the traffic, whoever prints it."""
    text = PROFILE.replace("[[classes]]", f"[workload]\ncv = {cv}\n[[classes]]", 1)
    whole, share = tmp_path / "whole.toml", tmp_path / "share.toml"
    whole.write_text(text)
    share.write_text(re.sub(r"(?<=rate = )[\d.]+", lambda rate: repr(float(rate[0]) / replicas), text))
    placement = written(run, str(whole), "--replicas", str(replicas))["placements"][1]
    alone = json.loads(command("analyze", share, "--format", "json").stdout)
    (mixed,), latency, load = placement["groups"], alone["latency"], alone["load"]
    assert mixed["latency"] == latency
    assert mixed["recovery"]["rate_rps"] == alone["verdict"]["recovers_up_to_rps"]
    assert (mixed["offered_rps"], mixed["sustainable_rps"]) == (load["offered_rps"], load["sustainable_rps"])
    for key in ("ttft_s", "e2e_s"):
        assert placement[key] == {"value": latency[key]["mean"], "ci95": latency["ci95"][f"{key}.mean"]}


def test_json_has_the_three_placements_and_what_they_are_worth(run: Run, tiers: str) -> None:
    found = written(run, tiers, "--replicas", "3")
    assert [found[key] for key in ("schema_version", "replicas", "parts")] == [1, 3, 3]
    assert found["search"]["ways"] == 5
    apart, mixed, best = found["placements"]
    assert [p["name"] for p in found["placements"]] == ["segregated", "mixed", "best"]
    assert [g["classes"] for g in apart["groups"]] == [["short"], ["long"], ["odd"]]
    assert [(g["classes"], g["replicas"]) for g in mixed["groups"]] == [(["short", "long", "odd"], 3)]
    for placement in found["placements"]:
        groups = placement["groups"]
        assert sum(g["replicas"] for g in groups) == 3
        assert (placement["offered_rps"], placement["beyond_rps"]) == (pytest.approx(90), 0)
        served = sum(g["replicas"] * min(g["offered_rps"], g["served_rps"]) for g in groups)
        assert placement["served_rps"] == pytest.approx(served)
        spare = min(g["served_rps"] / g["offered_rps"] - 1 for g in groups)
        assert placement["headroom"]["value"] == pytest.approx(spare)
        assert 1.01 * (1 + best["headroom"]["value"]) >= 1 + spare
        for key in ("ttft_s", "e2e_s"):
            mean = sum(g["replicas"] * g["offered_rps"] * g["latency"][key]["mean"] for g in groups) / 90
            low, high = placement[key]["ci95"]
            assert placement[key]["value"] == pytest.approx(mean)
            assert low <= mean <= high


def test_an_overloaded_cluster_is_told_so(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "overloaded.toml"
    path.write_text(PROFILE.replace("rate = 40.0", "rate = 4000.0"))
    found = written(run, str(path), "--replicas", "2")
    assert all(p["beyond_rps"] > 0 and p["served_rps"] < p["offered_rps"] for p in found["placements"])
    assert found["placements"][1]["e2e_s"] is None
    code, text, _ = run(str(path), "--replicas", "2")
    assert code == 0
    for said in ("Beyond capacity", "Served under a backlog", "the queue grows"):
        assert said in " ".join(text.split())


def test_the_table_of_the_documentation_is_what_the_command_finds(run: Run) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "simulate.md").read_text(encoding="utf-8")
    apart, mixed, best = written(run, "two-tier-100-125", "--replicas", "2")["placements"]
    assert best["groups"] == mixed["groups"]
    rates = ["; ".join(f"{g['served_rps']:.2f}" for g in p["groups"]) for p in (apart, mixed)]
    assert "| served by a replica under a backlog | {} | {} |".format(*rates) in page
    values = [p["headroom"]["value"] for p in (apart, mixed)]
    assert "| headroom of the tightest group | {:+.1%} | {:+.1%} |".format(*values) in page
