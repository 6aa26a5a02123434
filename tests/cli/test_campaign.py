"""Some cases of the campaign; `docs/developing.md` says how to run as many as one likes."""

from pathlib import Path
from typing import Any

import campaign
import numpy as np
import pytest
import tomli
from campaign import files, invariants
from campaign.calls import Call, answer, broken, broken_by
from campaign.profiles import toml
from campaign.runner import Case, judged
from command import run
from every import check_every, every
from tiers import examples, is_night

CASES = {"profiles": 8, "files": 12, "invariants": 2, "faults": 1}


@pytest.mark.parametrize("kind", CASES)
def test_nothing_breaks(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    for number in range(examples(CASES[kind]).max_examples):
        folder: Path = tmp_path_factory.mktemp("case")
        assert judged(Case(kind, 1, number), folder) is None


VARIANTS = 200  # of each input at night


@pytest.mark.parametrize("name", files.inputs() or ["none is there"])
def test_what_was_once_misread_is_read_or_refused_in_one_line(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if name not in files.inputs():
        pytest.skip("shared cases are not there")
    for number in range(VARIANTS if is_night() else 1):
        call = files.damaged(
            files.inputs()[name],
            np.random.default_rng([*name.encode(), number]),
            tmp_path_factory.mktemp("input"),
        )
        assert broken(call) == [], f"{number}: {call.arguments}"


KEPT = tomli.loads(Path(campaign.__file__).with_name("kept.toml").read_text("utf-8"))["case"]


def test_what_once_broke_a_promise_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"

    def check(case: dict[str, Any]) -> None:
        path.write_text(case["profile"])
        for words in case["calls"]:
            call = Call(tuple(word.replace("FILE", str(path)) for word in words.split()))
            said = answer(call)
            assert list(broken_by(call, said)) == []
            assert (said.code == 2) == ("says" in case), said.err
            assert case.get("says", "") in said.err

    check_every({case["name"]: case for case in KEPT if is_night() or "night" not in case}, check)


TWO_CLASSES = {
    "schema": 1,
    "name": "two classes",
    "gpu": {"memory_tokens": 48_000, "block_tokens": 16},
    "timing": {"d0": 0.01, "d1": 1e-7, "d2": 2e-5},
    "classes": [
        {"name": "a", "input": 300, "decode": 40, "rate": 2.0},
        {"name": "b", "input": 800, "decode": {"uniform": [20, 90]}, "rate": 1.0},
    ],
    "plan": {"horizon": 600.0},
}


OF_FLEETS = ("fleet of one", "conserved")


@pytest.mark.parametrize("law", OF_FLEETS)
def test_a_request_that_is_lost_breaks_a_law(law: str, tmp_path: Path) -> None:
    pair = invariants.LAWS[law](np.random.default_rng(3), TWO_CLASSES)
    before, after = (_figures(profile, tmp_path, *pair.command) for profile in (pair.one, pair.other))
    assert list(pair.broken(before, after)) == []
    for key in ("completed", "shed", "classes[0].completed"):
        assert list(pair.broken(before, after | {f"policies[0].{key}": after[f"policies[0].{key}"] + 1}))


@pytest.mark.usefixtures("brief")
@every("law", [law for law in invariants.LAWS if law not in OF_FLEETS])
def test_a_figure_that_is_one_percent_off_breaks_a_law(law: str, tmp_path: Path) -> None:
    pair = invariants.LAWS[law](np.random.default_rng(3), TWO_CLASSES)
    before, after = (_figures(profile, tmp_path, "analyze") for profile in (pair.one, pair.other))
    assert list(pair.broken(before, after)) == []
    for key in ("load.sustainable_rps", "load.load_factor_max"):
        was = (before if law == "more memory" else after)[key]  # more memory may raise it by more
        off = after | {key: 0.99 * was}
        assert any(key in line for line in pair.broken(before, off))


@pytest.mark.parametrize("law", ["split class", "other order"])
def test_a_latency_that_is_half_as_long_breaks_a_law(law: str, tmp_path: Path) -> None:
    """Where draws differ, intervals must not be far from each other."""
    pair = invariants.LAWS[law](np.random.default_rng(3), TWO_CLASSES)
    before, after = (_figures(profile, tmp_path, "analyze") for profile in (pair.one, pair.other))
    for key in ("ttft_s.mean", "ttft_s.p95", "running"):
        ends = [f"latency.ci95.{key}[{end}]" for end in (0, 1)]
        off = after | {end: after[end] / 2 for end in ends}
        assert any(key in line for line in pair.broken(before, off))


def _figures(profile: invariants.Table, folder: Path, command: str, *options: str) -> invariants.Figures:
    path = folder / "profile.toml"
    path.write_text(toml(profile), encoding="utf-8")
    return invariants.figures(run(command, path, *options, "--format", "json").stdout)
