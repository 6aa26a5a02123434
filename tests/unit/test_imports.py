"""What imports what: the formulas stay free of the outer layers, and starting up stays cheap."""

import ast
import importlib.util
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvplan.analysis

CORE = [
    "kvplan.model",
    *sorted(module.name for module in pkgutil.walk_packages(kvplan.analysis.__path__, "kvplan.analysis.")),
]


def imports_of(name: str) -> Iterator[str]:
    """Modules named in any import statement of a module, inside functions too."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    for node in ast.walk(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            assert node.module is not None
            yield node.module


def reach(name: str) -> dict[str, list[str]]:
    """Everything of kvplan that a module leads to, with what each of them imports."""
    seen: dict[str, list[str]] = {}
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen[current] = list(imports_of(current))
            waiting.extend(module for module in seen[current] if module.split(".")[0] == "kvplan")
    return seen


@pytest.mark.parametrize("name", CORE)
def test_the_formulas_import_no_outer_layer(name: str) -> None:
    """Neither directly nor through another module of kvplan: pydantic, typer, rich, pathlib, or profile and CLI."""
    for module, imported in reach(name).items():
        roots = {other.split(".")[0] for other in imported}
        assert not roots & {"pydantic", "typer", "rich", "pathlib"}, module
        assert module not in {
            "kvplan.profile.reading",
            "kvplan.profile.schema",
            "kvplan.cli.app",
            "kvplan.report.assembly",
        }
        assert not module.startswith(("kvplan.layout", "kvplan.cli", "kvplan.ingest"))


def test_the_core_is_not_empty() -> None:
    assert {"kvplan.model", "kvplan.analysis.equilibrium", "kvplan.analysis.stability"} <= set(CORE)


def test_a_report_is_made_without_loading_what_is_slow_to_load() -> None:
    """`import kvplan.report.assembly` in a fresh process loads neither scipy nor numba, nor the layers around it."""
    code = "import sys, kvplan.report.assembly; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "numpy" in loaded
    assert not loaded & {"scipy", "numba", "llvmlite", "pydantic", "typer", "rich"}
