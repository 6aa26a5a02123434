"""How large each room may be, so that none grows back unnoticed: lower a number when its room has shrunk."""

from collections.abc import Iterator
from pathlib import Path

from every import every

ROOT = Path(__file__).resolve().parents[2]
BUDGET = {  # lines at most: Python with blank lines and docstrings, Markdown of docs, all text of goldens
    "kvplan": 65_050,  # to become 50,000
    "kvplan/analysis": 7_160,  # to become 6,300
    "kvplan/ingest": 14_360,  # to become 9,300
    "kvplan/simulation": 11_940,  # to become 8,800
    "kvplan/study": 4_220,  # to become 2,800
    "kvplan/report": 2_850,  # to become 2,000
    "kvplan/show": 4_600,  # to become 2,900
    "kvplan/planning": 3_540,  # to become 2,400
    "kvplan/gate": 1_810,  # to become 1,400
    "kvplan/emit": 1_180,
    "kvplan/sweeps": 1_150,
    "kvplan/compiling": 840,
    "kvplan/reproduction": 700,
    "kvplan/cli": 1_630,  # to become 1,500
    "kvplan/api": 510,
    "kvplan/profile": 3_020,  # to become 2,100
    "kvplan/model": 3_420,  # to become 2,600
    "tests": 47_060,  # to become 38,000
    "tools": 6_170,
    "tests/golden": 3_290,
    "docs": 3_640,
}
MODULES, LONGEST = 316, 600  # of the package, to become 260; and lines of one


def lines(path: Path) -> int:
    return path.read_text("utf-8").count("\n")


def files(room: str) -> Iterator[Path]:
    suffixes = {"docs": ("*.md",), "tests/golden": ("*.txt", "*.json", "*.md")}.get(room, ("*.py",))
    return (path for suffix in suffixes for path in (ROOT / room).rglob(suffix))


@every("room", BUDGET)
def test_a_room_is_no_larger_than_it_may_be(room: str) -> None:
    assert sum(map(lines, files(room))) <= BUDGET[room]


def test_every_room_of_the_package_has_a_budget() -> None:
    rooms = {f"kvplan/{path.parent.name}" for path in (ROOT / "kvplan").glob("*/__init__.py")}
    assert rooms <= BUDGET.keys()


def test_modules_are_few_and_none_is_long() -> None:
    modules = list(files("kvplan"))
    assert len(modules) <= MODULES
    assert [path.name for path in modules if lines(path) > LONGEST] == []
