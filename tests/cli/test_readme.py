"""Every block of the README is executed: shell blocks run, profiles parse, reports are what the command prints."""

import doctest
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from kvplan.profile.reading import parse_profile
from kvplan.reproduction.experiment import Verdict, load_experiment, shipped_experiments

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
NOT_IN_A_CHECKOUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist")


def blocks(language: str) -> list[str]:
    return [text for name, text in BLOCKS if name == language]


def test_every_block_is_of_a_kind_that_is_executed_here() -> None:
    assert {name for name, _ in BLOCKS} == {"sh", "text", "toml", "yaml", "python"}
    assert len(blocks("sh")) == 4


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, as a newcomer has it."""
    copy = tmp_path_factory.mktemp("readme") / "kvplan"
    shutil.copytree(ROOT, copy, ignore=NOT_IN_A_CHECKOUT)
    return copy


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A python3 whose virtual environments have what this one has: dependencies need not be fetched and unpacked."""
    folder = tmp_path_factory.mktemp("tools")
    script = folder / "python3"
    packages = sysconfig.get_path("purelib")
    script.write_text(
        f"""#!/bin/sh
"{sys.executable}" "$@" || exit
test "$1 $2" = "-m venv" || exit 0
for folder in "$3"/lib/python*/site-packages; do echo "{packages}" > "$folder/these.pth"; done
printf '#!/bin/sh\\nexec "$(dirname "$0")/python" -m pytest "$@"\\n' > "$3/bin/pytest"
chmod +x "$3/bin/pytest"
"""
    )
    script.chmod(0o755)
    return folder


def shell(command: str, folder: Path, tools: Path) -> subprocess.CompletedProcess[str]:
    # collecting is enough to see that the test commands work; running them here would run this test again
    env = os.environ | {
        "PYTEST_ADDOPTS": "--collect-only -q -n 0 -o testpaths=tests/cli",
        "PIP_NO_COMPILE": "1",
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
    }
    return subprocess.run(
        ["bash", "-e", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=280
    )


def test_shell_blocks_run_in_order_in_a_fresh_checkout(checkout: Path, tools: Path) -> None:
    install, tests, to_file, benchmarks = (shell(command, checkout, tools) for command in blocks("sh"))
    assert install.returncode == 0, install.stderr
    assert install.stdout.startswith("Llama-3.1-8B on one RTX 4090")
    assert tests.returncode == 0, tests.stdout + tests.stderr
    assert "tests/cli/test_readme.py" in tests.stdout
    assert "benchmarks" not in tests.stdout
    assert to_file.returncode == 0, to_file.stderr
    assert (checkout / "report.json").read_text().startswith('{\n  "schema_version": 1,')
    assert benchmarks.returncode == 0, benchmarks.stdout + benchmarks.stderr
    assert "tests/benchmarks/test_ratios.py" in benchmarks.stdout


def test_report_is_how_the_command_begins() -> None:
    report, _ = blocks("text")
    command = [sys.executable, "-m", "kvplan", "analyze", "tool-calls-h100"]
    env = os.environ | {"COLUMNS": "80"}
    printed = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    assert len(report.splitlines()) > 15
    assert printed.startswith(report)


def test_the_excerpt_of_a_design_document_is_what_the_command_prints() -> None:
    section = README.split("\n## In a design document\n")[1].split("\n## ")[0]
    _, shown, _ = section.split("\n---\n")
    command = ["analyze", "tool-calls-h100", "--format", "markdown"]
    assert "`kvplan " + " ".join(command) + "`" in " ".join(section.split())
    done = subprocess.run(
        [sys.executable, "-m", "kvplan", *command], capture_output=True, text=True, check=True
    )
    assert shown.startswith("\n**NEEDS CAP**")
    assert shown.count("\n| Offered load |") == shown.count("</details>") == 1
    title, printed = done.stdout.split("\n", 1)
    assert title.startswith("## ")
    assert printed.startswith(shown)


def test_a_gate_that_fails_prints_what_is_shown() -> None:
    _, shown = blocks("text")
    command = ["check", "tool-calls-h100", "--require", "load.headroom >= 30%"]
    assert "`kvplan " + " ".join([*command[:3], f"'{command[3]}'"]) + "`" in " ".join(README.split())
    env = os.environ | {"COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-m", "kvplan", *command], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, shown)


@pytest.mark.parametrize("workflow", blocks("yaml"))
@pytest.mark.parametrize(("rate", "code"), [(8.0, 0), (13.0, 1)])
def test_the_gate_of_a_pipeline_passes_and_fails(
    workflow: str, rate: float, code: int, tmp_path: Path
) -> None:
    """Its own command, in a checkout with profiles that sustain 60/5 = 12 requests/s."""
    (command,) = re.findall(r"^ *- (?:run: )?(kvplan check .*)$", workflow, flags=re.MULTILINE)
    assert re.search(r"^ *- (?:run: )?pip install \./tools/kvplan$", workflow, flags=re.MULTILINE)
    (tmp_path / "capacity").mkdir()
    for name in ("one", "two"):
        (tmp_path / "capacity" / f"{name}.toml").write_text(
            f"""schema = 1
name = "{name}"
gpu = {{ memory_tokens = 60, prefill = "disaggregated" }}
timing = {{ d0 = 1 }}
classes = [{{ name = "a", input = 1, decode = 2, rate = {rate} }}]
"""
        )
    command = f'kvplan() {{ "{sys.executable}" -m kvplan "$@"; }}; {command}'
    env = os.environ | {"PYTHONPATH": str(ROOT), "GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": ""}
    done = subprocess.run(
        ["bash", "-e", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    assert done.stderr.count("::error file=capacity/") == 2 * code
    for report in re.findall(r"^ *junit: (.*)$", workflow, flags=re.MULTILINE):
        assert (tmp_path / report).read_text().count("<failure") == 2 * code


def test_what_a_notebook_does_is_what_is_shown() -> None:
    (example,) = blocks("python")
    test = doctest.DocTestParser().get_doctest(example, {}, "README.md", "README.md", 0)
    said: list[str] = []
    found = doctest.DocTestRunner().run(test, out=said.append)
    assert found.attempted > 5
    assert found.failed == 0, "".join(said)


@pytest.mark.parametrize("profile", blocks("toml"))
def test_profiles_are_good(profile: str) -> None:
    assert parse_profile(profile.encode(), "README.md").model.classes


def test_names_of_shipped_profiles_are_all_there() -> None:
    assert all(f"`{path.stem}`" in README for path in (ROOT / "profiles").glob("*.toml"))


def test_verdicts_on_published_results_are_those_on_record() -> None:
    for name in shipped_experiments():
        found = load_experiment(name)
        verdicts = [figure.verdict for figure in found.figures]
        tally = ", ".join(f"{verdicts.count(v)} {v.value}" for v in Verdict if v in verdicts)
        assert f"| `{name}` | {found.source} | {tally} |" in README
