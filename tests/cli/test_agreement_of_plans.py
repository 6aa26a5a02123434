"""One figure for one key from a plan to the gate: demands that are planned, analyzed, checked and emitted."""

import json
from pathlib import Path
from typing import Any

import pytest
from command import Run, document
from tiers import at_night

OF_8B = ("Llama-3.1-8B", "--gpu", "H100", "--tp", "1", "--weights", "bf16", "--gpu-hour", "3")
OF_70B = ("Llama-3.1-70B", "--gpu", "H100", "--tp", "4", "--weights", "fp8")
CHAT = (*OF_8B, "--rate", "30", "--in", "1k", "--out", "200", "--slo", "ttft-p95=1s")
RAG = (*OF_8B, "--rate", "20", "--in", "2k", "--out", "150")
DEMANDS = {
    "short answers": (*OF_8B, "--rate", "6", "--in", "400", "--out", "60", "--slo", "ttft-p95=1s"),
    "chat": (*CHAT, "--slo", "itl-p95=40ms"),
    "headroom": (*RAG, "--slo", "ttft-p95=2s", "--headroom", "20%"),
    "nobody asks for bursts": (*RAG, "--slo", "ttft-p95=2s", "--recover", "never"),
    "no objective": RAG,
    "large": (*OF_70B, "--rate", "8", "--in", "3k", "--out", "300", "--slo", "itl-p95=60ms"),
    "conversations": (
        *OF_70B,
        "--rate",
        "3",
        "--turns",
        "8",
        "--in",
        "900",
        "--out",
        "200",
        "--slo",
        "ttft-p95=3s",
    ),
    "users": (
        *OF_8B,
        "--users",
        "300",
        "--turns",
        "10",
        "--in",
        "900",
        "--out",
        "200",
        "--think",
        "5s",
        "--slo",
        "ttft-p95=2s",
    ),
    "all replicas are seen": (*CHAT, "--router", "least-requests"),
}


@pytest.mark.parametrize("name", at_night(*DEMANDS))
def test_a_plan_is_the_same_in_every_command(name: str, run: Run, tmp_path: Path) -> None:
    file = str(tmp_path / "plan.toml")
    code, out, error = run("plan", *DEMANDS[name], "-o", file, "--format", "json")
    assert code == 0, error
    plan: dict[str, Any] = json.loads(out)["plan"]
    report = document(run, "analyze", file)
    assert plan["headroom"] == report["headroom"]
    assert plan["recovers"] == report["verdict"]["status"] == "stable"
    for objective in plan["objectives"]:
        time, figure = objective["key"].split(".")
        assert objective["value"] == report["latency"][time][figure]
    if plan["cost"]["per_hour"] is not None:
        assert (
            plan["cost"]["per_hour"] == plan["replicas"] * report["cost"]["per_hour"]
        )  # which is of a replica
    [size] = [size for size in plan["sizes"] if size["replicas"] == plan["replicas"]]
    if size["recovers"] is not None and "--headroom" not in DEMANDS[name]:  # sizes recover with it, too
        assert size["recovery_s"] == report["verdict"]["drain"]["seconds"]

    spare = report["headroom"]["ratio"]
    required = ("--require", f"headroom.ratio >= {spare}", "--require", "verdict.status == stable")
    code, out, error = run("check", file, "--format", "json", *required)
    assert code == 0, out + error
    (checked,) = json.loads(out)["profiles"]
    got = {each["key"]: each["got"] for each in checked["requirements"]}
    assert got["headroom.ratio"] == spare
    assert f"{plan['replicas']} replica" in got["plan.holds"]

    code, out, error = run("emit", file)
    assert code == 0, error
    assert " ".join(plan["engine"]["command"].split()) in " ".join(out.replace("\\\n", " ").split())
