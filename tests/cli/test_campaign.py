"""A hundred cases of the campaign; `docs/developing.md` says how to run as many as one likes."""

from pathlib import Path

import pytest
from campaign.runner import Case, judged
from hypothesis import settings
from tiers import COMMIT

CASES = {"profiles": 60, "files": 50, "invariants": 10, "faults": 4}


@pytest.mark.parametrize("kind", CASES)
def test_nothing_breaks(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    for number in range(CASES[kind] * settings().max_examples // COMMIT):
        folder: Path = tmp_path_factory.mktemp("case")
        assert judged(Case(kind, 1, number), folder) is None
