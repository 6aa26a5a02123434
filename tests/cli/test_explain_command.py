"""`explain` as a command."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from every import every

from kvplan.cli import app as cli
from kvplan.cli import completion
from kvplan.profile.reading import DEFAULT_PROFILE
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
  Source   SIC 3: (d − 1)/(2(s + d)) for one length (computed)

kvplan """


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


def test_entries_without_a_name_are_called_what_they_are(run: Run) -> None:
    code, out, _ = run("explain", "kv_layout.groups[].layers", "gemma-3-27b-h100")
    assert code == 0
    assert "group 2: 52" in " ".join(out.split())


def test_without_a_profile_the_default_is_used_and_named(run: Run) -> None:
    code, out, error = run("explain", "load.headroom")
    assert (code, error) == (0, f"note: no profile given; using the shipped {DEFAULT_PROFILE}\n")
    assert run("explain", "load.headroom", DEFAULT_PROFILE) == (0, out, "")


@every(
    ("arguments", "says"),
    [
        (("loss", "tool-calls-h100"), "did you mean worst_cycle.loss or worst_cycle.classes[].loss?"),
        (("load.headrooms",), "did you mean load.headroom"),
        (("load", "no-such-profile"), "no-such-profile"),
        (("wait.classes[7].name", "tool-calls-h100"), "has 1 entries here"),
        ((), "Missing argument 'KEY'"),
        (("load", "--format", "json"), "json"),
    ],
)
def test_bad_usage_is_one_line(arguments: tuple[str, ...], says: str, run: Run) -> None:
    code, out, error = run("explain", *arguments)
    assert (code, out) == (2, "")
    assert says in error
    assert error.splitlines()[-1].startswith("error: ")


def test_keys_and_blocks_are_completed() -> None:
    assert completion.keys_to_explain("stability.min") == [
        f"stability.min_stable_input_tokens.{k}" for k in ("asymptotic", "exact")
    ]
    assert completion.keys_to_explain("nested") == [
        "nested_wait",
        *sorted(k for k in CONTRACT if k.startswith("nested_wait.")),
    ]
    assert set(completion.keys_to_explain("")) == {*BLOCKS, *CONTRACT}
