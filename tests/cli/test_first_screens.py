"""What each command prints without options for more: it fits a screen of 40 lines and 80 columns, and says something.

`plan` has its own test. Profiles are those of `shipped.LOOKED_AT`.
"""

import re
from typing import Any

import pytest
import shipped
from command import Done, run
from rich.cells import cell_len
from shipped import LOOKED_AT, argument
from tiers import is_night

from kvplan.profile.reading import shipped_profiles
from kvplan.report import assembly
from kvplan.report.assembly import Report

NOTHING = {"", "–", "null", "none"}
ACCEPT = ("--accept", "gpu", "--accept", "timing", "--accept", "workload")
REQUIREMENTS = (
    "load.headroom >= 20%",
    "verdict.status == stable",
    "worst_cycle.loss <= 1%",
    "rate_cap.engine_max_num_seqs >= 10_000",
    "stability.stable == true",
)
NO_ENGINE_COMPUTES_SO = "engines compute prompts with prefill"
NOT_PLACED = ("mix places classes of requests", "mix is for requests without prefixes in common")
FEW = LOOKED_AT if is_night() else ("paper-fc-budgets", "eagle-3-h100", "gemma-3-27b-h100")


def flaws(text: str) -> list[str]:
    """What is wrong with a screen: too long, too wide, or a row that says nothing."""
    lines = text.splitlines()
    found = [f"{len(lines)} lines"] if not 1 <= len(lines) <= 40 else []
    found += [f"{cell_len(line)} columns: {line}" for line in lines if cell_len(line) > 80]
    for line in lines:
        label, *cells = re.split(r" {2,}", line.strip())
        if label and cells and NOTHING.issuperset(cells):
            found.append(f"says nothing: {line}")
    return found


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report of a shipped profile is the one of all tests."""
    made = {shipped.profile(name).sha256: shipped.report(name) for name in LOOKED_AT}

    def analyze(*_: Any, sha256: str, **__: Any) -> Report:
        return made[sha256]

    monkeypatch.setattr(assembly, "analyze", analyze)


def screen(*arguments: str) -> Done:
    return run(*arguments, env={"COLUMNS": "80"})


def check_screens(
    *commands: tuple[str, ...], codes: tuple[int, ...] = (0,), refused: tuple[str, ...] = ()
) -> None:
    """Every command is done and its screen has no flaw, or it is refused as some profiles are."""
    bad, shown = [], 0
    for command in commands:
        done = screen(*command)
        if done.returncode == 2 and any(reason in done.stderr for reason in refused):
            continue
        shown += 1
        found = flaws(done.stdout)
        if done.returncode not in codes:
            found.append(f"exit code {done.returncode}: {done.stderr}")
        bad += [f"{' '.join(command)}: {flaw}" for flaw in found]
    assert shown
    assert not bad, "\n".join(bad)


@pytest.mark.usefixtures("reports")
def test_analyze() -> None:
    check_screens(*(("analyze", argument(name)) for name in LOOKED_AT))


def test_check() -> None:
    required = [part for text in REQUIREMENTS for part in ("--require", text)]
    check_screens(*(("check", argument(name), *ACCEPT, *required) for name in LOOKED_AT), codes=(0, 1))


def test_the_operating_point() -> None:
    check_screens(*(("simulate", argument(name)) for name in FEW))


def test_policies_side_by_side() -> None:
    many = "greedy,rate-limited,vllm,sglang,mc,mc-sf,sarathi"
    check_screens(
        *(("simulate", argument(name), "--policy", "vllm", "--requests", "300") for name in FEW),
        *(("simulate", argument(name), "--policy", "greedy,vllm", "--requests", "300") for name in FEW),
        *(("simulate", argument(name), "--policy", many, "--requests", "300") for name in FEW),
        refused=("not modelled beside",),
    )


@pytest.mark.usefixtures("reports")
def test_explain() -> None:
    keys = ("load.headroom", "verdict", "latency", "prefix_cache", "sources", "notes", "wait.thresholds")
    check_screens(*(("explain", key, argument(name)) for name in LOOKED_AT for key in keys))


@pytest.mark.usefixtures("reports")
def test_diff() -> None:
    check_screens(*(("diff", argument(name), "llama-3.1-8b-rtx4090") for name in FEW))


def test_mix() -> None:
    check_screens(*(("mix", argument(name), "--replicas", "2") for name in FEW), refused=NOT_PLACED)


@pytest.mark.usefixtures("reports")
def test_emit() -> None:
    check_screens(*(("emit", argument(name)) for name in LOOKED_AT), refused=(NO_ENGINE_COMPUTES_SO,))


def test_import() -> None:
    """The table is on standard error, beside the profile on standard output."""
    for path in shipped_profiles().values():
        done = screen("import", str(path))
        assert (done.returncode, flaws(done.stderr)) == (0, []), path
