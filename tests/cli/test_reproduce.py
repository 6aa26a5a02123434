"""`kvplan reproduce`: names, formats, and what comes out when a verdict is not the one on record."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvplan.cli.app import main
from kvplan.reproduction import experiment
from kvplan.reproduction.experiment import shipped_experiments
from kvplan.reproduction.real import catalogue
from kvplan.reproduction.real.record import Bound


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


def test_markdown_has_a_table(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "sic-example-07", "--format", "markdown"]) == 0
    assert "| Five spread over a block of six |" in capfd.readouterr().out


def test_an_unknown_name_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "sic-exampel-02"]) == 2
    out, err = capfd.readouterr()
    assert (out, err) == ("", "error: no experiment 'sic-exampel-02'; did you mean sic-example-02?\n")


def test_another_verdict_than_on_record_is_a_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text = shipped_experiments()["sic-example-02"].read_text("utf-8")
    path = tmp_path / "changed.toml"
    path.write_text(text.replace("printed = 2\n", "printed = 3\n"), "utf-8")
    monkeypatch.setattr(experiment, "shipped_experiments", lambda: {"changed": path})
    assert main(["reproduce", "changed"]) == 3
    out, err = capfd.readouterr()
    assert "refuted (on record: reproduced)" in out
    assert err == "error: other verdicts than on record, please report: changed\n"


def test_a_real_run_without_its_data_neither_passes_nor_fails(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "vllm-rtx4090", "--data", str(tmp_path)]) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert (
        "Not compared: data not here. Give the folder that has vllm-rtx4090/timeseries.csv with --data."
        in out
    )


def test_a_real_run_is_shown_with_its_protocol_and_in_json(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "vllm-watermark"]) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert "Nothing is fitted: the iteration time is estimated from model and GPU" in out
    assert main(["reproduce", "vllm-watermark", "--format", "json"]) == 0
    (run,) = json.loads(capfd.readouterr().out)["real_runs"]
    assert [row["measured"] for row in run["rows"] if row["quantity"] == "preemptions"] == [
        1065,
        400,
        187,
        168,
        168,
    ]


def test_papers_and_real_are_overviews_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(catalogue, "RUNS", {"vllm-rtx4090": catalogue.RUNS["vllm-rtx4090"]})
    assert main(["reproduce", "real", "--data", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert "data not here" in out
    assert "Published results" not in out


def test_an_error_larger_than_on_record_is_a_defect(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    bound = Bound(quantity="preemptions", must=0.5, recorded=0.001)
    changed = replace(catalogue.RUNS["vllm-watermark"], bounds=(bound,))
    monkeypatch.setattr(catalogue, "RUNS", {"vllm-watermark": changed})
    assert main(["reproduce", "vllm-watermark"]) == 3
    out, err = capfd.readouterr()
    assert "PASS (on record: 0.1%)" in " ".join(out.split())
    assert err == "error: further off than on record, please report: vllm-watermark\n"


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "real", "--data", str(tmp_path / "none")]) == 2
    assert capfd.readouterr() == ("", f"error: --data {tmp_path / 'none'}: no such folder\n")
