"""Every example in a docstring of the installed package runs as written."""

import doctest
import importlib
import pkgutil

from every import check_every
from tiers import is_night

import kvplan

MODULES = [
    "kvplan",
    *sorted(
        module.name
        for module in pkgutil.walk_packages(kvplan.__path__, "kvplan.")
        if not module.name.endswith("__main__")
    ),
]
# their examples are whole reports, plans and searches, of functions that other tests call on a commit
LONG = ("kvplan.api", "kvplan.report.assembly", "kvplan.study.batch")


def test_the_examples_of_every_module_run() -> None:
    """A finder that finds nothing would pass silently, so examples are counted too."""
    examples = {}

    def check(name: str) -> None:
        failed, examples[name] = doctest.testmod(importlib.import_module(name))
        assert failed == 0

    check_every([name for name in MODULES if is_night() or name not in LONG], check)
    assert sum(examples.values()) > 50
    for name in ("gate.requirement", "units", "analysis.stability"):
        assert examples[f"kvplan.{name}"] > 0
