"""`kvplan size --schedule`."""

import re
from pathlib import Path

import pytest
from command import Run, document

COMMAND = ["size"]
PROFILE = """\
schema = 1
name = "a shop"
gpu = { memory_tokens = 1_500, gpus = 2 }
timing = { d0 = "10 ms", d2 = "100 us" }
cost = { gpu_hour = 2.5 }
slo = { ttft_s.p95 = "200 ms" }
classes = [{ name = "chat", input = 200, decode = { 4 = 1, 8 = 1 }, rate = 4 }]
workload = { period = "10 min", schedule = [{ at = "4 min", factor = 1.8 }, { at = "8 min", factor = 0.2 }] }
"""
SMALL = ["--rate", "4", "--requests", "60", "--seeds", "2"]


@pytest.fixture
def shop(tmp_path: Path) -> str:
    path = tmp_path / "shop.toml"
    path.write_text(PROFILE)
    return str(path)


def test_a_day_is_compared_with_a_fixed_fleet(run: Run, shop: str) -> None:
    found = document(run, shop, "--schedule", "--load-time", "40 s", "--rate", "30", *SMALL[2:])
    day, [one] = found["autoscaling"], found["profiles"]
    assert (day["period_s"], day["load_s"], day["seeds"], day["routing"]) == (600, 40, 2, "random")
    assert day["replicas"] == one["replicas"] > 1
    assert day["requests"] == pytest.approx(30 * (240 * 1.8 + 360 * 0.2), rel=0.05)
    hours, cost = day["replicas"] * 2 * 600 / 3600, day["fixed"]["cost"]
    assert day["fixed"]["gpu_hours"] == {"mean": pytest.approx(hours), "ci95": None}
    assert cost == pytest.approx(2.5 * hours)
    for name in ("autoscaled", "loaded_at_once", "scheduled"):
        assert 0.3 * hours < day[name]["gpu_hours"]["mean"] < hours
        assert day[name]["goodput_rps"]["mean"] <= day["requests"] / 600 * (1 + 1e-9)
        assert day[name]["ttft_s.p99"]["mean"] > 0
    assert day["lost_to_loading"]["mean"] == pytest.approx(
        day["loaded_at_once"]["within"]["mean"] - day["autoscaled"]["within"]["mean"]
    )
    assert "autoscaling" not in document(run, shop, *SMALL)


def test_people_read_what_it_saves_and_what_was_assumed(run: Run, shop: str) -> None:
    code, text, messages = run(shop, "--schedule", "--load-time", "30 s", *SMALL)
    assert (code, messages) == (0, "")
    words = " ".join(text.split())
    assert re.search(r"Autoscaled: \S+ GPU-hours, (-\d+|0)% against the \S+ of", words)
    assert "30 s after its start (assumed, --load-time)" in words
    for row in ("Within SLOs", "TTFT p99", "GPU-hours", "Cost", "Taken away"):
        assert row in text


def test_without_objectives_there_is_no_goodput_and_a_fleet_says_how_to_route(run: Run, shop: str) -> None:
    Path(shop).write_text(
        PROFILE.replace("slo = ", "# ") + 'fleet = { replicas = 3, routing = "least-requests" }\n'
    )
    day = document(run, shop, "--schedule", *SMALL)["autoscaling"]
    assert day["routing"] == "least-requests"
    assert "goodput_rps" not in day["autoscaled"]
    assert day["lost_to_loading"] is None
    code, text, _ = run(shop, "--schedule", "--format", "markdown", *SMALL)
    assert code == 0
    assert "There are no objectives to compare what is served." in text


@pytest.mark.parametrize(
    ("changed", "arguments", "said"),
    [
        ("", ["--load-time", "5 s"], "--load-time goes with --schedule"),
        ("", ["--schedule", "--load-time", "soon"], "--load-time: 'soon' is not a time"),
        ("", ["--schedule", "--load-time", "1 h"], "a period of 10 min; longer than 2 min"),
        ("", ["--schedule", "--compare"], "one profile"),
        ("", ["--schedule", "--split", "8"], "does not go with --split"),
        ("", ["--schedule", "llama-3.1-8b-rtx4090"], "one profile"),
        ("", ["--schedule", "--rate", "1e6"], "504,000,000 requests in 10 min; 5,000,000 is the most"),
        ("", ["--schedule", "--rate", "1e-9"], "nobody arrives in 10 min"),
        ("workload = ", ["--schedule"], "neither a [[workload.schedule]] nor a trace"),
    ],
)
def test_what_cannot_be_simulated_is_said(
    run: Run, shop: str, changed: str, arguments: list[str], said: str
) -> None:
    if changed:
        Path(shop).write_text(PROFILE.replace(changed, "# "))
    code, text, error = run(shop, "--requests", "50", "--seeds", "2", *arguments)
    assert (code, text) == (2, "")
    assert said in error
    assert error.count("\n") == 1


def test_where_nothing_is_enough_nothing_is_simulated(run: Run, shop: str) -> None:
    found = document(run, shop, "--schedule", "--slo", "ttft_s.p95 <= 1 us", *SMALL)
    assert found["profiles"][0]["replicas"] is None
    assert "autoscaling" not in found
