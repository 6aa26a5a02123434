"""`kvplan reproduce`: names, formats, and what comes out when a verdict is not the one on record."""

import json
from pathlib import Path

import pytest

from kvplan.cli.app import main
from kvplan.reproduction import experiment
from kvplan.reproduction.experiment import shipped_experiments


def test_figures_of_an_experiment_are_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "sic-example-02"]) == 0
    out = capfd.readouterr().out
    assert "SIC Example 2." in out
    assert "Throughput at level 2 over level 0             -20%    -20%  reproduced" in out


def test_json_says_what_was_printed_and_what_came_out(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "sic-example-02", "sic-example-07", "--format", "json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert [one["name"] for one in document["experiments"]] == ["sic-example-02", "sic-example-07"]
    (level,) = [f for f in document["experiments"][0]["figures"] if f["what"] == "Throughput at level 0"]
    assert (level["printed"], level["value"], level["verdict"]) == (2, pytest.approx(2), "reproduced")


def test_another_verdict_than_on_record_is_a_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text = shipped_experiments()["sic-example-02"].read_text("utf-8")
    path = tmp_path / "changed.toml"
    path.write_text(text.replace('printed = "2"\n', 'printed = "3"\n'), "utf-8")
    monkeypatch.setattr(experiment, "shipped_experiments", lambda: {"changed": path})
    assert main(["reproduce", "changed"]) == 3
    out, err = capfd.readouterr()
    assert "refuted (on record: reproduced)" in out
    assert err == "error: other verdicts than on record, please report: changed\n"
