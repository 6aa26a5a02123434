"""`kvplan sweep --plot`: what is in them is what the results say, or it is refused."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import kvplan
from kvplan.cli.app import main
from kvplan.plots import charts, drawing, planning
from kvplan.report.assembly import Analyses
from kvplan.study.replicas import scaled
from kvplan.sweeps.definition import Runs, define
from kvplan.sweeps.results import read

Run = Callable[..., tuple[int, str]]
NAME = "tool-calls-h100"
GRID = ["--vary", "gpu.memory_tokens=400k,50k,10", "--vary", "classes[0].rate=2:54:3"]
COLUMNS = ["--columns", "verdict.status,load.headroom", "--executor", "serial"]
PNG, SVG = b"\x89PNG", b"<?xml"


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: object) -> tuple[int, str]:
        code = main(list(map(str, arguments)))
        return code, capfd.readouterr().err

    return command


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_map_has_the_rows_of_the_file_in_their_places(run: Run, tmp_path: Path, suffix: str) -> None:
    """Ten tokens of memory are no profile: a row without figures, at the bottom."""
    results, picture = tmp_path / f"rows.{suffix}", tmp_path / "map.png"
    assert run("sweep", NAME, *GRID, *COLUMNS, "-o", results, "--plot", picture) == (0, "")
    assert picture.read_bytes().startswith(PNG)
    profile = kvplan.load(NAME)
    sweep = define(profile, GRID[1::2], columns=["verdict.status", "load.headroom"])
    found = planning.sweep_plot(sweep, read(sweep, results, planning.columns_of(sweep)))
    assert isinstance(found, planning.SweepMap)
    assert found.column == "load.headroom"
    assert found.y.values.tolist() == [10, 50_000, 400_000]
    assert found.x.values.tolist() == [2, 28, 54]
    assert found.status is not None
    for row, memory in enumerate(found.y.values.tolist()):
        for column, rate in enumerate(found.x.values.tolist()):
            if memory == 10:
                assert math.isnan(found.figure[row, column])
                assert math.isnan(found.status[row, column])
                continue
            model = scaled(profile.model, rate)  # of its only class
            model = replace(model, replica=replace(model.replica, memory_tokens=int(memory)))
            analyses = Analyses(model, profile.plan)
            assert found.figure[row, column] == analyses.load.headroom
            assert planning.STATUSES[int(found.status[row, column])] is analyses.status
    assert set(np.unique(found.status[1:]).tolist()) == {0, 1, 2}


def test_a_line_has_one_key(run: Run, tmp_path: Path) -> None:
    vary = "gpu.memory_tokens=1k:400k:log5"
    picture = tmp_path / "line.svg"
    assert run("sweep", NAME, "--vary", vary, *COLUMNS, "-o", tmp_path / "a.csv", "--plot", picture) == (
        0,
        "",
    )
    assert picture.read_bytes().startswith(SVG)
    sweep = define(kvplan.load(NAME), [vary], columns=["verdict.status", "load.headroom"])
    found = planning.sweep_plot(sweep, read(sweep, tmp_path / "a.csv", planning.columns_of(sweep)))
    assert isinstance(found, planning.SweepLine)
    assert found.x.log
    assert np.all(np.diff(found.figure) > 0)


def names(content: planning.SweepLine) -> list[str]:
    """What the legend says."""
    axes = Figure().add_subplot()
    charts.sweep_line(axes, content)
    return [str(label) for label in axes.get_legend_handles_labels()[1]]


@pytest.mark.parametrize(
    ("columns", "drawn", "line"),
    [
        ("load.headroom,simulation.vllm.ttft_s.p95", "simulation.vllm.ttft_s.p95", "simulated"),
        (None, "simulation.greedy.throughput_rps", "simulated"),
        ("load.sustainable_rps,load.headroom", "load.headroom", "formula"),
    ],
)
def test_the_simulated_figure_asked_for_is_drawn(
    columns: str | None, drawn: str, line: str, run: Run, tmp_path: Path
) -> None:
    simulated = drawn.startswith("simulation.")
    vary, out = "classes[0].rate=2,4", tmp_path / "rows.csv"
    arguments = ["--simulate", "--requests", "20"] * simulated + ["--columns", columns] * (
        columns is not None
    )
    code, _ = run(
        "sweep",
        NAME,
        "--vary",
        vary,
        *arguments,
        "--executor",
        "serial",
        "-o",
        out,
        "--plot",
        tmp_path / "a.svg",
    )
    assert code == 0
    runs = Runs(("greedy", "vllm"), 20, 1) if simulated else None
    keys = None if columns is None else columns.split(",")
    sweep = define(kvplan.load(NAME), [vary], columns=keys, runs=runs)
    found = planning.sweep_plot(sweep, read(sweep, out, planning.columns_of(sweep)))
    assert isinstance(found, planning.SweepLine)
    assert found.column == drawn
    assert np.all(np.isfinite(found.figure))
    assert names(found) == [line]


def test_a_finished_sweep_is_drawn_by_resuming_it(run: Run, tmp_path: Path) -> None:
    """The first number is drawn where there is no headroom; without the verdict there is no boundary."""
    results, picture = tmp_path / "rows.csv", tmp_path / "a.svg"
    columns = ["--columns", "verdict.binding,load.sustainable_rps", "--executor", "serial"]
    assert run("sweep", NAME, *GRID, *columns, "-o", results)[0] == 0
    code, said = run("sweep", NAME, *GRID, *columns, "-o", results, "--plot", picture, "--resume")
    assert code == 0
    assert "no boundary, since verdict.status is not among --columns" in said
    text = picture.read_bytes()
    assert run("sweep", NAME, *GRID, *columns, "-o", results, "--plot", picture, "--resume")[0] == 0
    assert picture.read_bytes() == text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--vary", "gpu.memory_tokens=1k,2k", "--plot", "a.pdf"], "must end in .svg or .png"),
        (["--vary", "gpu.memory_tokens=1k", "--plot", "a.svg"], "has a single value"),
        (["--vary", "gpu.memory_tokens=1k:2k", "--sample", "lhs:5", "--plot", "a.svg"], "draws grids"),
        ([*GRID, "--vary", "timing.d0=1,2", "--plot", "a.svg"], "one or two keys, not the 3"),
        ([*GRID, "--columns", "verdict.status", "--plot", "a.svg"], "a number is wanted among --columns"),
        ([*GRID, "--plot", "no/such/folder/a.svg"], "no/such/folder/a.svg: cannot be written"),
        (
            ["--vary", "plan.delta=1e-6:0.01:1001", "--vary", "timing.d0=1:2:1000", "--plot", "a.svg"],
            "1,001,000",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_the_work(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, message = run("sweep", NAME, *arguments, "-o", "rows.csv")
    assert code == 2
    assert said in message
    assert message.count("\n") == 1
    assert not (tmp_path / "rows.csv").exists()


def test_without_matplotlib_both_say_what_is_wanted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "find_spec", lambda name: None)
    for arguments in (["sweep", NAME, *GRID, "-o", tmp_path / "rows.csv"], ["plan", NAME]):
        code, message = run(*arguments, "--plot", tmp_path / "a.svg")
        assert code == 2
        assert "pip install '.[plot]'" in message
    assert list(tmp_path.iterdir()) == []
