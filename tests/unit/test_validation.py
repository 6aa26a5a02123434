"""What judges plans, on a demand that is planned quickly."""

from pathlib import Path

import pytest
from validation import plans
from validation.truths import Truths

pytestmark = pytest.mark.usefixtures("days")

NAME = "measured 8B"


def test_so_many_replicas_are_enough_and_one_less_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "DEMANDS", {NAME: plans.DEMANDS[NAME]})
    judged = list(plans.Size.rows((), Truths(tmp_path / "truths.json")))
    assert not plans.Size.broken(judged), judged


def test_the_search_takes_what_trying_everything_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "SEARCHED", {NAME: plans.DEMANDS[NAME]})
    [row] = plans.Search.rows((), Truths(tmp_path / "truths.json"))
    assert row.too_many == 0, row
    assert row.judged >= 1
