"""How much of a test runs: little on every commit, much at night (`pytest --nightly`)."""

from typing import Any

import pytest
from hypothesis import settings

COMMIT, NIGHTLY = 10, 400  # examples of a property that asks for no number of its own


def examples(count: int) -> settings:
    """So many examples of a property on a commit, and at night as many times more as of any other."""
    return settings(max_examples=count * settings().max_examples // COMMIT)


def at_night(*values: Any) -> list[Any]:
    """Parameters of a test that are for the night alone."""
    return [pytest.param(value, marks=pytest.mark.nightly) for value in values]
