"""`explain` as a command."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kvplan.cli import app as cli
from kvplan.report.keys import BLOCKS, CONTRACT

Run = Callable[..., tuple[int, str, str]]
pytestmark = pytest.mark.usefixtures("brief")


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "80")

    def command(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(list(arguments))
        return code, *capfd.readouterr()

    return command


LOSS = """\
worst_cycle.loss
  Share of completions per iteration that a collapsed replica loses.

  Formula  1 − x/n*
  Value    0.2875
  Inputs   x = 1.81667 requests: worst_cycle.throughput_per_iteration
           n* = 2.54971 requests: saturation.admissions_per_iteration
  Source   SIC 3.2, Lemma 1: (d − 1)/(2(s + d)) for one length (computed)

kvplan """


@pytest.mark.usefixtures("brief")
def test_a_key_is_explained_with_the_numbers_of_the_profile(run: Run) -> None:
    code, out, error = run("explain", "worst_cycle.loss", "tool-calls-h100")
    assert (code, out[: len(LOSS)], error) == (0, LOSS, "")


def test_a_key_is_explained_in_markdown_and_to_a_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "loss.md"
    arguments = ("explain", "worst_cycle.loss", "tool-calls-h100", "--format", "markdown")
    assert run(*arguments, "-o", str(path)) == (0, "", "")
    text = path.read_text("utf-8")
    assert run(*arguments) == (0, text, "")
    assert text.startswith("## worst_cycle.loss\n\nShare of completions")
    assert "| Value | 0.2875 |\n| Inputs | x = 1.81667 requests: " in text


def test_a_block_is_listed_and_in_full_explained(run: Run) -> None:
    code, out, error = run("explain", "saturation", "tool-calls-h100")
    assert (code, error) == (0, "")
    assert out.startswith(f"saturation\n  {BLOCKS['saturation'].meaning}\n")
    assert re.search(r"^  saturation\.admissions_per_iteration  2\.54971 ", out, re.MULTILINE)
    assert out.count("\n  saturation.") == 3
    full = run("explain", "saturation", "tool-calls-h100", "--full")[1]
    assert all(word in full for word in CONTRACT["saturation.throughput_rps"].meaning.split())
