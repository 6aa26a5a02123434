"""`analyze --format html` and `--plot`: files, refusals, and what happens without matplotlib."""

import os
from pathlib import Path

import pytest

from kvplan.cli.app import main
from kvplan.plots import drawing

NAME = "tool-calls-h100"
FILES = ["equilibrium-kv", "kv-density", "rate-throughput", "roots"]


@pytest.fixture
def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "find_spec", lambda _: None)


def test_a_page_has_its_plots_and_the_same_bytes(tmp_path: Path) -> None:
    one, other = tmp_path / "one.html", tmp_path / "other.html"
    for path in (one, other):
        assert main(["analyze", NAME, "--format", "html", "-o", str(path)]) == 0
    text = one.read_text("utf-8")
    assert text == other.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert text.count("<figure>") == text.count('<svg role="img" aria-label="') == len(FILES)
    assert "Nested WAIT memory against number of segments</b>: no plot. All requests have one" in text
    assert len(text.encode()) < 500_000


def test_only_the_plots_of_chosen_sections(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["analyze", NAME, "--format", "html", "--section", "stability", "-o", str(page)]) == 0
    assert page.read_text("utf-8").count("<figure>") == 2  # the first screen keeps its own


@pytest.mark.parametrize(("kind", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_plots_are_written_beside_the_report(
    kind: str, start: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "plots"
    assert main(["analyze", NAME, "--plot", str(folder), "--plot-format", kind, "-o", os.devnull]) == 0
    assert sorted(os.listdir(folder)) == [f"{name}.{kind}" for name in FILES]
    assert all((folder / name).read_bytes().startswith(start) for name in os.listdir(folder))
    out, err = capsys.readouterr()
    assert out == ""
    assert (
        err
        == "note: no plot nested-segments: All requests have one decode length, so there is one segment.\n"
    )


def test_plots_of_an_earlier_run_do_not_stay_unnoticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = {"notes.svg": "mine", "roots.svg.bak": "mine", "kv-density.png": "old"}
    for name, content in {**mine, "nested-segments.svg": "old", "fleet-rates.svg": "old"}.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "cache-hits.svg").mkdir()
    assert main(["analyze", NAME, "--plot", str(tmp_path), "-o", os.devnull]) == 0
    expected = {*mine, *(f"{name}.svg" for name in FILES), "cache-hits.svg"}
    assert set(os.listdir(tmp_path)) == expected
    assert {name: (tmp_path / name).read_text() for name in mine} == mine
    _, removed, left = capsys.readouterr().err.splitlines()
    assert removed.endswith(": removed what an earlier run had plotted: fleet-rates.svg, nested-segments.svg")
    assert left.endswith(": left there, from an earlier run: kv-density.png")


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "file"
    place.write_text("mine")
    report = tmp_path / "report.txt"
    assert main(["analyze", NAME, "--plot", str(place), "-o", str(report)]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"error: {place}: cannot be written: File exists\n")
    assert place.read_text() == "mine"
    assert not report.exists()


@pytest.mark.usefixtures("without_matplotlib")
def test_without_matplotlib_the_page_says_how_to_get_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main(["analyze", NAME, "--format", "html", "-o", str(page)]) == 0
    said = f"note: plots are left out: {drawing.HOW_TO_INSTALL}\n"
    assert capsys.readouterr() == ("", said)
    text = page.read_text("utf-8")
    assert "<svg" not in text
    assert "pip install &#x27;.[plot]&#x27;" in text
    assert text.count("<table>") > 10


@pytest.mark.usefixtures("without_matplotlib")
def test_without_matplotlib_plots_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "plots"
    assert main(["analyze", NAME, "--plot", str(folder)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "pip install '.[plot]'" in err
    assert "pip install kvplan" not in err
    assert not folder.exists()
