"""What imports what: arrows point one way, the core stays free of the outer layers, and starting up stays cheap."""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from command import python
from every import check_every

import kvplan

ROOT = Path(kvplan.__file__).parent
# from the lowest up: a room may import what stands before it, and nothing that stands beside or behind it
LAYERS = (
    {"engine", "errors", "ranges", "solve", "version"},
    {"units", "compiling", "executors"},
    {"axes"},
    {"model"},
    {"analysis"},
    {"profile"},
    {"arguments"},
    {"options"},
    {"simulation"},
    {"study"},
    {"report"},
    {"ingest"},
    {"planning"},
    {"gate"},
    {"emit"},
    {"sweeps"},
    {"reproduction"},
    {"show"},
    {"api"},
    {"kvplan"},
    {"cli"},
    {"__main__"},
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
CORE = ("model", "analysis", "simulation", "study")
NOT_IN_THE_CORE = {"pydantic", "typer", "rich", "pathlib"}


def room(module: str) -> str:
    """The package or loose module right below `kvplan` that a module is in; `kvplan` itself is its own room."""
    return module.split(".")[1] if "." in module else module


MODULES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}


@cache
def imports() -> dict[str, frozenset[str]]:
    """What each module of kvplan names in any import statement, inside functions and for annotations too."""
    return {module: frozenset(_imports_of(path)) for module, path in MODULES.items()}


def _imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            assert node.module is not None
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            modules = {name for name in names if _is_module(name)}
            yield from modules
            if len(modules) < len(names):
                yield node.module


def _is_module(name: str) -> bool:
    path = ROOT.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def own_imports(module: str) -> set[str]:
    return {other for other in imports()[module] if other.split(".")[0] == "kvplan"}


def test_every_room_has_its_layer() -> None:
    assert {room(module) for module in imports()} == set(LEVEL)


def test_modules_import_only_what_is_below_their_room_or_in_it() -> None:
    def check(module: str) -> None:
        mine = room(module)
        up = {
            other
            for other in own_imports(module)
            if room(other) != mine and LEVEL[room(other)] >= LEVEL[mine]
        }
        assert not up

    check_every([*MODULES], check)


def test_no_modules_import_each_other_in_a_circle() -> None:
    """A package counts as its `__init__`, and that is no import of it from inside."""
    TopologicalSorter({module: own_imports(module) - {module} for module in imports()}).prepare()


def test_the_core_imports_nothing_of_the_outer_world() -> None:
    def check(module: str) -> None:
        assert not {other.split(".")[0] for other in imports()[module]} & NOT_IN_THE_CORE

    check_every([module for module in MODULES if room(module) in CORE], check)


# What is done one after the other in a process, and what must not have been loaded until then
STEPS = [
    ("import kvplan; kvplan.load", {"numpy", "pydantic", "typer"}),
    ("import kvplan.report.keys", {"numpy", "pydantic", "typer"}),
    ("from kvplan.cli import completion; completion.keys_to_explain('load')", {"numpy", "pydantic"}),
    ("from kvplan.cli.app import main; main(['--version'])", {"numpy", "pydantic"}),
    ("main(['--help'])", {"numpy", "pydantic"}),
    ("import kvplan.ingest.trace.replay", {"pydantic", "pandas"}),
    ("import kvplan.ingest.model.roofline, kvplan.simulation.metrics", {"pydantic"}),
    ("import kvplan.report.assembly", {"pydantic", "llvmlite"}),
    *((f"main({call.split()})", set[str]()) for call in ("profiles", "init", "schema", "schema --of report")),
    ("main(['analyze', QUICK, '--format', 'json', '-o', os.devnull])", set()),
    ("main(['explain', 'load', QUICK])", {"jinja2"}),
    ("main(['analyze', QUICK, '-o', os.devnull])", {"jinja2"}),
]
NEVER = {"numba", "scipy"}


def test_nothing_is_loaded_before_it_is_needed(tmp_path: Path) -> None:
    program = "import os, sys; from contextlib import redirect_stdout; QUICK = 'paper-fc-budgets'\n"
    for code, late in STEPS:
        unwanted = late | NEVER | ({"rich", "jinja2"} if "jinja2" not in late else set())
        program += f"with redirect_stdout(sys.stderr):\n    {code}\n"
        program += f"print({code!r}, *{unwanted} & sys.modules.keys(), sep='\\t')\n"
    loaded = [line.split("\t") for line in python(program, cwd=tmp_path).stdout.splitlines()]
    assert [line for line in loaded if len(line) > 1] == []
    assert len(loaded) == len(STEPS)
