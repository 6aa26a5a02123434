"""A sweep as Parquet: typed columns, the header in the metadata, and resumed like any other."""

import json
from pathlib import Path

import pytest

from kvplan.cli.app import main

parquet = pytest.importorskip("pyarrow.parquet", reason="the extra parquet is not installed")

OPTIONS = ["--vary", "gpu.memory_tokens=2k:900k:12", "--vary", "timing.d1=0,1e-6"]
SWEEP = [
    "sweep",
    "tool-calls-h100",
    *OPTIONS,
    "--columns",
    "load.headroom,profile.name,wait.fits",
]


def test_the_rows_are_those_of_the_lines_and_columns_have_types(tmp_path: Path) -> None:
    lines, table = tmp_path / "out.jsonl", tmp_path / "out.parquet"
    for path in (lines, table):
        assert main([*SWEEP, "-o", str(path)]) == 0
    header, *rows = map(json.loads, lines.read_text().splitlines())
    found = parquet.read_table(table)
    assert found.to_pylist() == rows
    assert json.loads(found.schema.metadata[b"kvplan_sweep"]) == header
    types = {field.name: str(field.type) for field in found.schema}
    assert types["point"] == types["gpu.memory_tokens"] == "int64"
    assert types["timing.d1"] == types["load.headroom"] == "double"
    assert types["profile.name"] == types["error"] == "string"
    assert types["wait.fits"] == "bool"
    assert set(tmp_path.iterdir()) == {lines, table}


def test_what_was_stopped_goes_on_to_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, part, lines = (tmp_path / name for name in ("whole.parquet", "part.parquet", "lines.jsonl"))
    for path in (whole, lines):
        assert main([*SWEEP, "-o", str(path)]) == 0
    begun = tmp_path / "part.parquet.partial.jsonl"
    begun.write_bytes(lines.read_bytes()[:1900])
    assert main([*SWEEP, "-o", str(part)]) == 2
    assert f"-o {begun}: is there already" in capsys.readouterr().err
    assert main([*SWEEP, "-o", str(part), "--resume"]) == 0
    assert part.read_bytes() == whole.read_bytes()
    assert not begun.exists()
    capsys.readouterr()
    assert main([*SWEEP, "-o", str(part), "--resume"]) == 0
    assert capsys.readouterr().err == "note: 24 of 24 points were there already\n"
    assert main([*SWEEP, "-o", str(part)]) == 2
    assert main([*SWEEP, "--seed", "1", "-o", str(part), "--resume"]) == 2
    part.write_bytes(b"something else")
    assert main([*SWEEP, "-o", str(part), "--resume"]) == 2
    assert part.read_bytes() == b"something else"


def test_without_the_extra_it_says_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main([*SWEEP, "-o", str(tmp_path / "out.parquet")]) == 2
    assert "needs the extra parquet: pip install '.[parquet]'" in capsys.readouterr().err
    assert main([*SWEEP, "--executor", "dask", "-o", str(tmp_path / "out.csv")]) == 2
    assert "is the extra dask: pip install '.[dask]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
