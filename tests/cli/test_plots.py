"""`--plot FILE.svg` and `--format html`: one way for all commands; what cannot be drawn is refused before the work."""

import re
import struct
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import kvplan
from kvplan.cli.app import main
from kvplan.report.assembly import Analyses
from kvplan.show import png
from kvplan.show.sweeps import columns_of, of_sweep
from kvplan.study.replicas import scaled
from kvplan.sweeps.definition import define
from kvplan.sweeps.store import read

Run = Callable[..., tuple[int, str]]
NAME, QUICK = "tool-calls-h100", "paper-fc-budgets"
COLUMNS = ["--columns", "verdict.status,load.headroom", "--executor", "serial"]
SMALL = """\
schema = 1
name = "small"
gpu = { memory_tokens = 2_000, prefill = "disaggregated" }
timing = { d0 = "10 ms" }
classes = [{ name = "a", input = 20, decode = 20, rate = 10 }]
"""
LATENCIES = ["TTFT against load", "ITL against load"]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: object) -> tuple[int, str]:
        code = main(list(map(str, arguments)))
        return code, capfd.readouterr().err

    return command


@pytest.mark.parametrize(
    ("arguments", "titles"),
    [
        (["analyze", QUICK], ["Throughput against load", *LATENCIES]),
        (["simulate", QUICK, "--slo", "e2e-p90=900s"], [*LATENCIES, "E2E against load"]),
        (
            ["simulate", NAME, "--policy", "vllm,greedy", "--requests", "200"],
            ["Waiting requests", "KV tokens in use"],
        ),
        (["check", NAME, "--accept", "workload", "--require", "load.headroom > 0"], []),
        (["diff", QUICK, "llama-3.1-8b-rtx4090"], []),
    ],
)
def test_a_page_has_its_plots_and_the_same_bytes(
    arguments: list[str], titles: list[str], run: Run, tmp_path: Path
) -> None:
    page, other, picture = tmp_path / "page.html", tmp_path / "other.html", tmp_path / "a.svg"
    given = ["--plot", picture] if titles else []
    assert run(*arguments, "--format", "html", "-o", page, *given) == (0, "")
    assert run(*arguments, "--format", "html", "-o", other) == (0, "")
    text = page.read_text("utf-8")
    assert text == other.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert re.findall("<figcaption><b>(.*?)</b>", text) == titles
    assert text.count('<svg role="img" aria-label="') == len(titles)
    assert len(text.encode()) < 500_000
    if titles:
        assert re.findall('font-weight="bold">(.*?)<', picture.read_text("utf-8")) == titles


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_map_has_the_rows_of_the_file_in_their_places(
    run: Run, tmp_path: Path, small: Path, suffix: str
) -> None:
    """Ten tokens of memory are no profile: a row without figures, at the bottom."""
    results, picture = tmp_path / f"rows.{suffix}", tmp_path / "map.svg"
    grid = ["gpu.memory_tokens=400,300,10", "classes[0].rate=2:54:3"]
    vary = ["--vary", grid[0], "--vary", grid[1]]
    assert run("sweep", small, *vary, *COLUMNS, "-o", results, "--plot", picture) == (0, "")
    assert picture.read_text().startswith("<svg ")
    profile = kvplan.load(small)
    sweep = define(profile, grid, columns=["verdict.status", "load.headroom"])
    (found,) = of_sweep(sweep, read(sweep, results, columns_of(sweep)))
    assert (found.title, found.x.label, found.y.label) == (
        "load.headroom",
        "classes[0].rate",
        "gpu.memory_tokens",
    )
    at = {}
    for patch in found.patches:
        low, high = (float(end.replace(",", "")) for end in patch.label.split(" to "))
        for box in patch.boxes.tolist():
            at[box[2], box[3]] = low, high
    rates, memories = {15.0: 2.0, 41.0: 28.0, 54.0: 54.0}, {350.0: 300, 400.0: 400}
    assert set(at) == {(rate, memory) for rate in rates for memory in memories}
    worst = []
    for (right, top), (low, high) in at.items():
        model = scaled(profile.model, rates[right])  # of its only class
        model = replace(model, replica=replace(model.replica, memory_tokens=memories[top]))
        analyses = Analyses(model, profile.plan)
        assert low - 0.01 * abs(low) <= analyses.load.headroom <= high + 0.01 * abs(high)
        worst.append(analyses.status.value)
    assert {*worst} == {"stable", "needs_cap", "overloaded"}
    assert {line.label.removeprefix("beyond: ") for line in found.lines} == {
        status.replace("_", " ") for status in worst if status != "stable"
    }


class NoFonts:
    """A library that finds no font: all pictures are alike."""

    @staticmethod
    def svg_to_bytes(**_: object) -> bytes:
        return b""


@pytest.mark.parametrize(
    ("library", "says"), [(None, r"pip install 'kvplan\[png\]'"), (NoFonts, "a PNG needs a font")]
)
def test_a_png_is_refused_before_the_work_without_its_library_or_a_font(
    library: object, says: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", library)
    png._family.cache_clear()
    code, error = run("analyze", QUICK, "--plot", tmp_path / "a.png")
    png._family.cache_clear()
    assert code == 2
    assert re.search(says, error)
    assert list(tmp_path.iterdir()) == []


def test_a_png_is_the_svg_in_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two for each unit, and a rectangle's colour in it; where no font is installed, too."""
    monkeypatch.setattr(png, "_family", lambda: "Arial")
    red = '<rect width="3" height="2" fill="#f00"/>'
    data = png.drawn(f'<svg xmlns="http://www.w3.org/2000/svg" width="3" height="2">{red}</svg>')
    size, pixels = struct.unpack(">II", data[16:24]), zlib.decompress(data.split(b"IDAT")[1][:-4])
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert size == (6, 4)
    assert b"\xff\x00\x00" in pixels
