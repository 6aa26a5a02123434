"""The commit's tier leaves out what it says, and nothing that is not there."""

from pathlib import Path

from tiers import KEPT, SLOW

TESTS = Path(__file__).parents[1]


def test_what_is_left_for_the_night_exists() -> None:
    for test in KEPT:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (TESTS / f"{file}.py").read_text("utf-8"), test


def test_what_is_too_slow_for_every_save_exists() -> None:
    files = (TESTS / f"{folder}/test_{name}.py" for folder, name in (file.split("/") for file in SLOW))
    assert [file for file in files if not file.exists()] == []
