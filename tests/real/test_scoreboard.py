"""The scoreboard: nothing gets worse, and what is foretold does not depend on what was measured of it."""

import csv
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sampled import read_samples
from scoreboard import cached, rates, replays, sweeps, tables
from scoreboard.catalogue import RUNS
from scoreboard.hidden import Hidden
from scoreboard.record import Bound, Off, RealRun, Row
from scoreboard.score import Scoreboard, foretell, scored, standings
from tiers import at_night

from kvplan.api.results import Sweep
from kvplan.ingest.model.config import read_model
from kvplan.ingest.timing.samples import Samples
from kvplan.units import format_number, format_percent

SOME = slice(4, None, 18)  # five configurations, of five models and three engines

DATA = Path(__file__).resolve().parents[3] / "shared/data"
QUICK = ("rates-h100", "prefix-cache-h100", "vllm-rtx4090", "vllm-rtxpro6000", "vllm-watermark")
LONG = tuple(name for name in RUNS if name not in QUICK)

needs_sweeps = pytest.mark.skipif(not (DATA / sweeps.FILE).is_file(), reason="the sweeps are not here")


@pytest.mark.parametrize("name", [*QUICK, *at_night(*LONG)])
def test_no_error_is_larger_than_on_record(name: str) -> None:
    if not RUNS[name].has_data(DATA):
        pytest.skip("its data is not here")
    board = foretell(RUNS[name], DATA)
    assert [one for one in board.scored if not one.as_recorded] == []


def test_what_is_asked_for_is_met_but_for_what_the_page_names() -> None:
    """A bound on record above what is asked for is one that is missed."""
    missed = {
        (run.name, bound.quantity)
        for run in RUNS.values()
        for bound in run.bounds
        if bound.must is not None and bound.recorded > bound.must
    }
    assert missed == {
        ("rates-h100", "TTFT at a low load"),
        ("splitwise-iterations", "iteration"),
        ("runs", "E2E"),
        ("runs", "TTFT"),
        ("sweeps-high", "TPOT"),
        ("sweeps-high", "TTFT"),
        ("sweeps-shape", "TTFT"),
    }


# -- what the page says -----------------------------------------------------------------------------------------------

PAGE = Path(__file__).resolve().parents[2] / "docs/accuracy.md"
TABLE = re.compile(r"(?<=^### By model and engine\n)(.*?)((?:^\|[^\n]*\n)+)", flags=re.MULTILINE | re.DOTALL)
BY_MODEL = {  # columns of the table: run and quantity
    "high: TPOT": ("sweeps-high", "TPOT"),
    "TTFT": ("sweeps-high", "TTFT"),
    "requests/s": ("sweeps-high", "requests/s"),
    "shape: TPOT": ("sweeps-shape", "TPOT"),
    "TTFT ": ("sweeps-shape", "TTFT"),
    "no measurement: TPOT": ("sweeps-unmeasured", "TPOT"),
    "TTFT  ": ("sweeps-unmeasured", "TTFT"),
}


def by_model(boards: dict[str, Scoreboard]) -> str:
    """The table of errors by model and engine, in Markdown."""
    cells: dict[tuple[str, str, str], dict[tuple[str, str], str]] = {}
    sizes: dict[tuple[str, str, str], int] = {}
    for name, board in boards.items():
        for one in standings(
            board._replace(rows=tuple(row for row in board.rows if row.configuration.model))
        ):
            group = (one.kind, one.model.rsplit("/", 1)[-1], one.engine)
            factor = one.off is Off.FACTOR
            text = format_number(one.middle, 3) if factor else format_percent(one.middle, 2)
            cells.setdefault(group, {})[name, one.quantity] = text
            sizes[group] = max(sizes.get(group, 0), one.configurations)
    header = ["kind", "model", "engine", "configurations", *(name.strip() for name in BY_MODEL)]
    ordered = sorted(cells, key=lambda group: (group[0] != "dense", group[1].lower(), group[2]))
    rows = [
        [*group, str(sizes[group]), *(cells[group].get(of, "–") for of in BY_MODEL.values())]
        for group in ordered
    ]
    rule = ["---"] * 3 + ["---:"] * (len(header) - 3)
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, rule, *rows))


@pytest.mark.nightly
@needs_sweeps
def test_the_page_has_the_errors_by_model() -> None:
    """With ``KVPLAN_REGENERATE=1`` they are written instead."""
    page = PAGE.read_text("utf-8")
    names = dict.fromkeys(name for name, _ in BY_MODEL.values())
    table = by_model({name: foretell(RUNS[name], DATA) for name in names})
    if os.environ.get("KVPLAN_REGENERATE"):
        PAGE.write_text(TABLE.sub(lambda found: found[1] + table, page), encoding="utf-8")
    else:
        assert TABLE.findall(page)[0][1] == table


SETTLED = re.compile(r"(?<=^### What to measure\n)(.*?)((?:^\|[^\n]*\n)+)", flags=re.MULTILINE | re.DOTALL)


def settled(board: Scoreboard) -> str:
    """The table of what proposed runs settle, in Markdown."""
    lines = ["| what | error | configurations | asked for |", "| --- | ---: | ---: | ---: |"]
    for one in board.scored:
        must = "–" if one.bound.must is None else format_percent(one.bound.must)
        value = format_percent(one.value, 2)
        lines.append(f"| {one.bound.quantity} | {value} | {one.configurations} | {must} |")
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.nightly
@needs_sweeps
def test_the_page_has_what_proposed_runs_settle() -> None:
    """With ``KVPLAN_REGENERATE=1`` it is written instead."""
    page, table = PAGE.read_text("utf-8"), settled(foretell(RUNS["measure"], DATA))
    if os.environ.get("KVPLAN_REGENERATE"):
        PAGE.write_text(SETTLED.sub(lambda found: found[1] + table, page), encoding="utf-8")
    else:
        assert SETTLED.findall(page)[0][1] == table


# -- nothing is fitted to what it is judged by ------------------------------------------------------------------------


def foretold(rows: Iterable[Row]) -> list[float]:
    return [row.foretold for row in rows]


@pytest.mark.skipif(not rates.RATES.has_data(DATA), reason="the rate sweeps are not here")
@pytest.mark.parametrize(
    ("run", "foretold_stages"),
    [
        pytest.param(cached.CACHED, f"{cached.WITH}/stage_[456]_lifecycle.json", id="with a prefix cache"),
        pytest.param(
            rates.RATES, "*/stage_[456]_lifecycle.json", id="beyond the knee", marks=pytest.mark.nightly
        ),
    ],
)
def test_stages_that_are_foretold_do_not_matter(run: RealRun, foretold_stages: str, tmp_path: Path) -> None:
    folder = tmp_path / rates.FOLDER
    shutil.copytree(DATA / rates.FOLDER, folder)
    for path in folder.glob(foretold_stages):
        report = json.loads(path.read_text("utf-8"))
        for part in report["successes"]["latency"].values():
            for name, value in part.items():
                part[name] = value and 3 * value
        report["successes"]["throughput"]["requests_per_sec"] /= 2
        path.write_text(json.dumps(report), "utf-8")
    rows, others = (run.rows(of) for of in (DATA, tmp_path))
    assert foretold(rows) == foretold(others) != []
    assert [row.measured for row in rows] != [row.measured for row in others]


@pytest.mark.parametrize("run", [replays.RTX4090, replays.RTXPRO6000], ids=lambda run: run.name)
def test_the_second_half_of_a_run_does_not_matter(run: Any, tmp_path: Path) -> None:
    if not run.has_data(DATA):
        pytest.skip("the run is not here")
    folder = tmp_path / run.name
    shutil.copytree(DATA / run.name, folder)
    series = folder / replays.SERIES
    header, *lines = series.read_text("utf-8").splitlines(keepends=True)
    half = len(lines) // 2
    later = [f"{line.split(',')[0]},1.0,1.0,1,1,1.0\r\n" for line in lines[half:]]
    series.write_text("".join([header, *lines[:half], *later]), "utf-8")
    log = folder / replays.REQUESTS
    requests = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    cut = min(row["queued_ts"] for row in requests) + float(lines[half - 1].split(",")[0])
    for row in requests:
        for name in ("scheduled_ts", "first_token_ts", "last_token_ts"):
            row[name] = cut + 5 * (row[name] - cut) if row[name] > cut else row[name]
    log.write_text("".join(f"{json.dumps(row)}\n" for row in requests), "utf-8")
    rows, others = (run.rows(of) for of in (DATA, tmp_path))
    makespan, slower = rows[-1], others[-1]
    assert makespan.foretold == slower.foretold
    assert slower.measured > 2 * makespan.measured


@pytest.mark.nightly
@needs_sweeps
def test_a_few_sweeps_are_foretold() -> None:
    """High concurrencies from low ones, so that a change for the worse is seen at once; all of them run at night."""
    every = sweeps.read(DATA)
    rows = sweeps.rows_of(every._replace(every=every.every[SOME]), sweeps.high_from_low)
    rows = [row for row in rows if row.configuration.model]
    for quantity, most in (("TPOT", 0.08), ("TTFT", 0.45)):
        found = scored(Bound(quantity=quantity, recorded=most), rows)
        assert found.configurations == 5
        assert found.as_recorded, found


def with_slower(folder: Path, slow: Iterable[dict[str, str]], factor: float, *times: str) -> Path:
    """Data in which some points take longer, wherever they stand: under another source or model, and in settings."""
    points = {sweeps.point_of(row) for row in slow}
    for name in (sweeps.FILE, sweeps.SETTINGS):
        rows = [
            row
            | ({time: factor * float(row[time]) for time in times} if sweeps.point_of(row) in points else {})
            for row in sweeps.rows_in(DATA / name)
        ]
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    (folder / "runs").symlink_to(DATA / "runs")  # from which is learnt, too
    return folder


@needs_sweeps
@pytest.mark.parametrize("splits", [sweeps.high_from_low, *at_night(sweeps.each_shape)])
def test_points_of_a_sweep_that_are_held_out_do_not_matter(splits: sweeps.Splits, tmp_path: Path) -> None:
    """They are a thousand times as slow, which changes nothing but what is measured."""
    lines = sweeps.rows_in(DATA / sweeps.FILE)
    before = sweeps.read(DATA)
    index = next(i for i, sweep in enumerate(before.every) if sweep.deployment.model == "Qwen/Qwen3-32B")
    number, (_, hidden) = list(enumerate(splits(before.every[index])))[-1]
    out = {point.line for point in hidden.loads.points}
    hidden_rows = (row for line, row in enumerate(lines, 2) if line in out)
    after = sweeps.read(with_slower(tmp_path, hidden_rows, 1e3, "ttft_ms", "tpot_ms"))

    def only(sweep: Sweep) -> Iterator[tuple[Sweep, Hidden]]:
        yield list(splits(sweep))[number]

    rows, others = (
        list(sweeps.rows(some.every[index], some.prior(some.every[index].deployment), only, ""))
        for some in (before, after)
    )
    assert foretold(rows) == foretold(others) != []
    assert all(other.measured != row.measured for row, other in zip(rows, others, strict=True))


@pytest.mark.nightly
@needs_sweeps
def test_a_prior_is_not_learnt_from_its_own_model(tmp_path: Path) -> None:
    lines = sweeps.rows_in(DATA / sweeps.FILE)
    before = sweeps.read(DATA)
    of = next(s.deployment for s in before.every if s.deployment.model.startswith("deepseek-ai/DeepSeek-V3"))
    other = next(s.deployment for s in before.every if s.deployment.model == "openai/gpt-oss-120b")
    mine = {read_model(of.model).name}
    slow = (row for row in lines if read_model(row["model"]).name in mine)
    known = before.prior(of), before.prior(other)
    after = sweeps.read(with_slower(tmp_path, slow, 3.0, "tpot_ms"))
    assert after.prior(of) == known[0]
    assert after.prior(other) != known[1]


@pytest.mark.nightly
@pytest.mark.skipif(not tables.SPLITWISE.has_data(DATA), reason="the table is not here")
def test_settings_of_a_fold_do_not_matter() -> None:
    samples = next(some for some in read_samples(DATA / tables.FILE) if isinstance(some, Samples))
    rows = {row.load: row for row in tables.rows(samples)}
    of = list(rows)[len(rows) // 2]
    kv, prefill, sequences = (float(part.split()[0]) for part in of.split(", "))
    alike = (samples.kv_tokens == kv) & (samples.prefill_tokens == prefill) & (samples.sequences == sequences)
    assert alike.any()
    slower = replace(samples, seconds=np.where(alike, 1.03 * samples.seconds, samples.seconds))
    others = {row.load: row for row in tables.rows(slower)}
    assert others[of].foretold == rows[of].foretold
    assert others[of].measured == pytest.approx(1.03 * rows[of].measured)
