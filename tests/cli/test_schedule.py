"""A profile whose rates vary: what reaches the model, what the report says about it, and a day simulated."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import documents
import pytest
from measured import brief_report

from kvplan.cli.app import main
from kvplan.model import Plan, ServingModel
from kvplan.model.schedule import Sinusoid, Steps
from kvplan.profile.reading import parse_profile
from kvplan.report.assembly import Analyses, Report
from kvplan.report.explain import find, page
from kvplan.report.words import Status
from kvplan.show.report import build
from kvplan.simulation.experiments.load import generate

GOOD = """\
schema = 1
name = "a day"
gpu = { memory_tokens = 40_000 }
timing = { d0 = "10 ms", d1 = "0.5 us", d2 = "20 us" }

[[classes]]
name = "chat"
input = 200
decode = { 50 = 1, 100 = 1 }
rate = 6

[[classes]]
name = "tools"
input = 300
decode = 20
rate = 4
"""
STEPS = """\
[workload]
period = "24 h"
schedule = [{ at = "8 h", factor = 2 }, { at = "20 h", factors = { chat = 0.5 } }]
"""
WAVE = """\
[workload]
period = "24 h"
schedule = [{ amplitude = 0.5 }]
"""


def model_of(text: str) -> ServingModel:
    return parse_profile(text.encode(), "day.toml").model


report_of = brief_report


def test_steps_hold_until_the_next_and_the_last_into_the_next_period() -> None:
    found = model_of(GOOD + STEPS)
    assert found.schedule == Steps(86_400.0, (0.0, 28_800.0, 72_000.0), ((0.5, 1.0), (2.0, 2.0), (0.5, 1.0)))
    assert found.classes == model_of(GOOD).classes


def test_a_sinusoid_is_highest_in_the_middle_unless_it_says_when() -> None:
    assert model_of(GOOD + WAVE).schedule == Sinusoid(86_400.0, 0.5, 43_200.0)
    assert model_of(GOOD + WAVE.replace("0.5", '0.5, peak = "15 h"')).schedule == Sinusoid(
        86_400.0, 0.5, 54_000.0
    )


def at_rate(factor: float) -> Report:
    """`GOOD` for some mean rate, twice of that from 8 h to 20 h."""
    varying = model_of(GOOD + STEPS.replace("factors = { chat = 0.5 }", "factor = 0.5"))
    classes = tuple(replace(c, rate_rps=c.rate_rps * factor) for c in varying.classes)
    return report_of(replace(varying, classes=classes))


def first_screen(report: Report) -> str:
    return " ".join(build(report).actions)


def test_a_peak_beyond_what_is_sustainable_is_the_first_thing_to_do() -> None:
    sustainable = Analyses(model_of(GOOD), Plan()).load.sustainable_rps
    found = at_rate(0.6 * sustainable / 10)
    assert found.verdict.status is not Status.OVERLOADED
    first = build(found).actions[0]
    assert f"offers {2 * 0.6 * sustainable:.4g} requests/s where {sustainable:.4g} are sustainable" in first
    assert "for 12 h of every 24 h a backlog grows" in first
    assert "at least 2 replicas" in first
    assert "Nothing" not in first_screen(found)
    assert any("too much for 12 h of every 24 h" in note for note in found.notes)


def test_a_peak_in_the_danger_zone_is_said() -> None:
    text = GOOD.replace("{ 50 = 1, 100 = 1 }", "20").replace("200", "300")  # one length: never stable
    plain = report_of(model_of(text))
    worst, limit = plain.verdict.recovers_up_to_rps, plain.load.sustainable_rps
    assert worst < limit
    base = (worst + limit) / 4  # twice that lies between
    varying = model_of(text + STEPS.replace("factors = { chat = 0.5 }", "factor = 0.5"))
    classes = tuple(replace(c, rate_rps=c.rate_rps * base / 10) for c in varying.classes)
    found = report_of(replace(varying, classes=classes))
    assert found.verdict.status is Status.STABLE
    first = build(found).actions[0]
    assert f"for 12 h of every 24 h more than the {worst:.4g} up to which a backlog is sure to drain" in first
    assert "Nothing" not in first_screen(found)


def test_thresholds_their_sources_and_explanations_are_those_of_the_worst_window() -> None:
    busy = GOOD.replace("rate = 6", "rate = 18").replace("rate = 4", "rate = 12")
    model = model_of(busy + STEPS)
    varying, plain = report_of(model), Analyses(model_of(busy), Plan())
    assert varying.wait.thresholds > plain.wait.thresholds
    for block in ("wait", "nested_wait"):
        assert "worst window" in varying.sources[block].source
        assert "worst window" not in plain.sources[block].source
    assert any("for the worst window of the schedule" in note for note in varying.notes)
    assert "Rates vary here" in page(find("wait.thresholds"), varying, model, Plan()).meaning
    assert "Rates vary" not in page(find("load.offered_rps"), varying, model, Plan()).meaning


def simulated(tmp_path: Path, text: str, *options: str) -> Any:
    path, out = tmp_path / "day.toml", tmp_path / "out.json"
    path.write_text(text)
    command = ["simulate", str(path), "--policy", "greedy", *options]
    assert main([*command, "--format", "json", "-o", str(out)]) == 0
    return documents.read("simulate", out.read_text())


def test_a_day_is_simulated_as_it_is_scheduled(tmp_path: Path) -> None:
    """A short one: 240 s. As many requests as the steps bring, all served, at the mean rate."""
    text = GOOD + STEPS.replace(" h", " s").replace('"24 s"', '"240 s"').replace('"8 s"', "80").replace(
        '"20 s"', "200"
    )
    found = simulated(tmp_path, text, "--horizon", "240")
    expected = 120 * (3 + 4) + 120 * 20
    assert found["arrivals"]["scheduled"] is True
    assert (
        found["arrivals"]["requests"]
        == generate_count(text)
        == pytest.approx(expected, abs=6 * expected**0.5)
    )
    (greedy,) = found["policies"]
    assert greedy["completed"] + greedy["unfinished"] == found["arrivals"]["requests"]
    assert greedy["throughput_rps"] == pytest.approx(expected / 240, rel=0.15)


def generate_count(text: str) -> int:
    from kvplan.simulation.experiments.load import Load

    return generate(model_of(text), Load(requests=None, horizon_s=240.0), 0).arrival_s.size
