"""The commit's tier leaves out what it says, and nothing that is not there."""

from pathlib import Path

from tiers import KEPT, SLOW

TESTS = Path(__file__).parents[1]


def test_what_is_left_for_the_night_exists() -> None:
    for test in KEPT:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (TESTS / f"{file}.py").read_text("utf-8"), test


def test_what_is_too_slow_for_every_save_exists() -> None:
    assert [
        name for folder in SLOW for name in SLOW[folder] if not (TESTS / folder / f"test_{name}.py").exists()
    ] == []
