"""What judges plans, on a demand that is planned quickly."""

from pathlib import Path

import pytest
from validation import plan, product, search
from validation.truths import Truths

NAME = "measured 8B"


def test_so_many_replicas_are_enough_and_one_less_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product, "DEMANDS", {NAME: product.DEMANDS[NAME]})
    monkeypatch.setattr(plan, "REQUESTS", 40_000)
    judged = list(plan.rows((), Truths(tmp_path / "truths.json")))
    assert not plan.broken(judged), plan.table(judged)


def test_the_search_takes_what_trying_everything_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "DEMANDS", {NAME: product.DEMANDS[NAME]})
    judged = list(search.rows((), Truths(tmp_path / "truths.json")))
    assert [row.too_many for row in judged] == [0], search.table(judged)
    assert judged[0].judged >= 1
