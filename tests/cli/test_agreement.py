"""One figure for one key, whichever command prints it: every shipped profile, walked through all of them."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from command import Run, document
from shipped import NAMES
from tiers import at_night

KEYS = (
    "verdict.status",
    "verdict.recovers_up_to_rps",
    "load.offered_rps",
    "load.sustainable_rps",
    "headroom.ratio",
    "latency.status",
    "latency.ttft_s.mean",
    "latency.ttft_s.p95",
    "latency.itl_s.p99",
    "latency.e2e_s.mean",
    "latency.kv_tokens_mean",
)
REPLICAS = {"prefill-decode": 8}
ON_A_COMMIT = ("paper-sic-limit-cycle", "llama-3.1-8b-rtx4090")


def at(report: dict[str, Any], key: str) -> Any:
    for part in key.split("."):
        report = report[part]
    return report


@pytest.mark.parametrize("name", [*ON_A_COMMIT, *at_night(*(n for n in NAMES if n not in ON_A_COMMIT))])
def test_every_command_says_the_same(name: str, run: Run, tmp_path: Path) -> None:
    report = document(run, "analyze", name)
    known = {key: at(report, key) for key in KEYS}

    numbers = {key: value for key, value in known.items() if isinstance(value, float)}

    # whatever else a gate has to run for its decision
    accepted = [word for part in ("gpu", "timing", "workload") for word in ("--accept", part)]
    required = [word for key in numbers for word in ("--require", f"{key} >= {-(key == 'headroom.ratio')}")]
    code, out, error = run("check", name, "--format", "json", *accepted, *required)
    assert code == 0, error
    (checked,) = json.loads(out)["profiles"]
    assert {r["key"]: r["got"] for r in checked["requirements"] if r["origin"] == "option"} == numbers

    (simulated,) = document(run, "simulate", name)["policies"]
    latencies = {key: value for key, value in known.items() if key.startswith("latency.")}
    held = latencies.pop("latency.kv_tokens_mean")  # of the whole fleet
    assert {key: at(simulated, key.removeprefix("latency.")) for key in latencies} == latencies
    assert at(simulated, "kv_tokens.mean") == (held and held / REPLICAS.get(name, 1))

    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    code, out, error = run("diff", str(path), name, "--format", "json")
    assert code == 0, error
    assert json.loads(out)["changes"] == []

    for key in ("verdict.recovers_up_to_rps", "latency.ttft_s.p95"):
        _, out, _ = run("explain", key, name)
        (here,) = [line for line in out.splitlines() if line.lstrip().startswith("Value")]
        if key in numbers:
            assert float(here.split()[1].replace(",", "")) == pytest.approx(numbers[key], rel=1e-5)

    table = tmp_path / "sweep.csv"
    one = ("--vary", "plan.delta=0.01", "--executor", "serial")  # which none of these knows
    code, _, error = run("sweep", name, *one, "--columns", ",".join(KEYS), "-o", str(table))
    assert code == 0, error
    (row,) = csv.DictReader(table.read_text().splitlines()[1:])
    assert {key: float(row[key]) for key in numbers} == numbers
    words = {key: value for key, value in known.items() if key not in numbers}
    assert {key: row[key] or None for key in words} == words


MEANS = (
    "throughput_rps",
    "iteration_time_s",
    "running",
    "waiting",
    "kv_tokens.mean",
    "ttft_s.mean",
    "itl_s.mean",
)


@pytest.mark.parametrize("name", ["llama-3.1-8b-rtx4090", "prefill-decode"])
def test_policies_side_by_side_have_the_figures_of_the_operating_point(name: str, run: Run) -> None:
    """Each is off by chance alone, and by the start of an empty replica: at most by both half widths."""
    (known,) = document(run, "simulate", name)["policies"]
    (found,) = document(run, "simulate", name, "--policy", "vllm", "--requests", "30000")["policies"]
    assert known["parameters"].items() <= found["parameters"].items()
    for key in MEANS:
        (low, high), (least, most) = known["ci95"][key], found["ci95"][key]
        assert max(low, least) <= min(high, most), key
        assert least <= at(found, key) <= most
        assert low <= at(known, key) <= high
