"""What runs when: some on every save (`pytest -m quick`), all on a commit, more at night (`pytest --nightly`)."""

from pathlib import Path
from typing import Any

import pytest
import tomli
from hypothesis import settings

COMMIT, NIGHTLY = 4, 400  # examples of a property that asks for no number of its own
_USUAL = 2 * COMMIT  # as many as those who ask for a number compare theirs with
QUICK = ("cli", "golden", "properties", "unit")  # folders
_TABLES = tomli.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
SLOW: list[str] = _TABLES["slow"]
KEPT: dict[str, int] = _TABLES["kept"]


def examples(count: int) -> settings:
    """Half as many examples of a property on a commit, and at night as many times more as of any other."""
    return settings(max_examples=max(count * settings().max_examples // _USUAL, 1))


def is_night() -> bool:
    """Tell whether `--nightly` was given."""
    return settings().max_examples > COMMIT


def at_night(*values: Any) -> list[Any]:
    """Parameters of a test that are for the night alone."""
    return [pytest.param(value, marks=pytest.mark.nightly) for value in values]


def is_quick(file: Path) -> bool:
    """Tell whether the tests of a file are for every save."""
    name = f"{file.parent.name}/{file.stem.removeprefix('test_')}"
    return file.parent.name in QUICK and name not in SLOW


def is_kept(item: pytest.Item, seen: dict[str, int]) -> bool:
    """Whether a test is run on a commit, where so many cases of each have been `seen`."""
    if item.get_closest_marker("nightly"):
        return False
    file, _, name = item.nodeid.partition("::")
    test = f"{file.removeprefix('tests/').removesuffix('.py')}::{name.partition('[')[0]}"
    seen[test] = seen.get(test, 0) + 1
    return seen[test] <= KEPT.get(test, seen[test])
