"""Objectives and prices, from the profile and from the command line, through every command that takes them."""

from pathlib import Path

import pytest
from command import Run, document

pytestmark = pytest.mark.usefixtures("brief")
PROFILE = """\
schema = 1
name = "70B on four"
gpu = { memory_tokens = 800_000, gpus = 4 }
timing = { d0 = "24 ms", d1 = "0.01 us", d2 = "60 us" }
classes = [{ name = "chat", input = 800, decode = 200, rate = 4 }]
slo = { ttft_s = { p95 = "300 ms" }, itl_s.p99 = 0.12 }
cost = { gpu_hour = 2.50 }
"""


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "large.toml"
    path.write_text(PROFILE)
    return str(path)


def test_a_report_has_goodput_and_cost(run: Run, profile: str) -> None:
    """Ten an hour; four requests a second make 2.88 million output tokens an hour, and five times as many in all."""
    found = document(run, "analyze", profile)
    assert found["goodput"]["binding"] in ("ttft_s.p95", "itl_s.p99")
    assert 4 < found["goodput"]["rate_rps"] < found["load"]["sustainable_rps"]
    cost = found["cost"]
    assert (cost["gpus_per_replica"], cost["per_hour"]) == (4, 10.0)
    assert cost["offered"]["per_million_output_tokens"] == pytest.approx(10 / 2.88)
    assert cost["offered"]["per_million_tokens"] == pytest.approx(10 / 2.88 / 5)
    scale = 4 / found["load"]["sustainable_rps"]
    assert cost["sustainable"]["per_million_output_tokens"] == pytest.approx(10 / 2.88 * scale)


def test_an_objective_of_the_command_line_takes_the_place_of_the_profiles(run: Run, profile: str) -> None:
    own, looser = (
        document(run, "analyze", profile, *more)["goodput"]
        for more in ([], ["--slo", "itl_s.p99 <= 10 s", "--slo", "ttft_s.p95 <= 0.4"])
    )
    assert looser["binding"] == "ttft_s.p95"
    assert looser["rate_rps"] > own["rate_rps"]


def test_an_objective_that_is_missed_is_said(run: Run, profile: str) -> None:
    """An iteration that computes a prompt takes 24 ms + 800 · 60 µs = 72 ms; more than one gap in a hundred has one."""
    slo = "itl_s.p99 <= 65 ms"
    good = document(run, "analyze", profile, "--slo", slo)["goodput"]
    assert good["rate_rps"] <= good["crossing_rps"]
    assert good["low"] <= good["crossing_rps"] <= good["high"] < 4
    assert good["binding"] == "itl_s.p99"
    code, out, _ = run("analyze", profile, "--slo", slo)
    assert code == 0
    assert "above which itl_s.p99 is missed" in " ".join(out.split())
    assert "Nothing" not in out.split("Headroom")[0]
    path = Path(profile)
    path.write_text(PROFILE.replace("itl_s.p99 = 0.12", "itl_s.p99 = 0.065"))
    stable = ("check", profile, "--accept", "timing", "--require", "load.headroom >= 0")
    code, out, _ = run(*stable)
    assert (code, "itl_s.p99 of [slo] is missed" in " ".join(out.split())) == (0, True)
    assert "is missed" not in run(*stable, "--require", "goodput.rate_rps >= 0.1")[1]


def test_a_simulation_counts_who_is_served_within_them(run: Run, profile: str) -> None:
    """Nobody misses the second, hardly anybody keeps the first."""
    found = [
        document(run, "simulate", profile, "--policy", "vllm", "--requests", "400", "--slo", slo)["policies"][
            0
        ]
        for slo in ("ttft_s.p95 <= 1 ms", "ttft_s.p95 <= 1 h")
    ]
    assert found[0]["goodput_rps"] == 0
    assert found[1]["goodput_rps"] == pytest.approx(found[1]["throughput_rps"])
    low, high = found[1]["ci95"]["goodput_rps"]
    assert low < found[1]["goodput_rps"] < high
    assert list(found[0]["itl_s"]) == ["mean", "p50", "p90", "p95", "p99"]
