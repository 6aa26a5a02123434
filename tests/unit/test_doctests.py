"""Every example in a docstring of the installed package runs as written."""

import doctest
import importlib
import pkgutil

import pytest

import kvplan

MODULES = [
    "kvplan",
    *sorted(
        module.name
        for module in pkgutil.walk_packages(kvplan.__path__, "kvplan.")
        if not module.name.endswith("__main__")
    ),
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_there_are_examples_to_run() -> None:
    """A finder that finds nothing would pass silently."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = {
        name: sum(len(test.examples) for test in finder.find(importlib.import_module(name), name))
        for name in MODULES
    }
    assert sum(found.values()) > 50
    for name in (
        "model.serving",
        "report.assembly",
        "analysis.equilibrium",
        "analysis.fluid_map",
        "analysis.stability",
    ):
        assert found[f"kvplan.{name}"] > 0
