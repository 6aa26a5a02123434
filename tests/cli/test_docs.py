"""Blocks of README.md and docs/ hold: consoles show what is printed, profiles parse; `.ci/run` installs as shells do.

A `console` block shows commands after `$ ` and exactly what they print to standard output, or before that what they
say on standard error; a line `...` stands for any lines. In blocks marked `loose` numbers and their units may differ,
and lines may break elsewhere. A page's consoles run in order, in a folder with the files of docs/example and the page's
profiles whose first line names a file. Blocks marked `slow` run with the nightly tests.
"""

import doctest
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from command import ENVIRONMENT
from every import every

from kvplan.cli.app import app, main
from kvplan.profile.reading import parse_profile
from kvplan.reproduction.experiment import Verdict, load_experiment, shipped_experiments
from kvplan.simulation.policies import POLICIES

pytestmark = pytest.mark.usefixtures("days")

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
README = PAGES["README.md"]
PROSE = " ".join(" ".join(PAGES.values()).split())
QUICK, SLOW = ("console", "console loose"), ("console slow", "console slow loose")
KINDS = {"sh", *QUICK, *SLOW, "toml", "yaml", "python"}


def marked(page: str, *kinds: str) -> list[tuple[str, str]]:
    """Blocks with their kind."""
    found = re.findall(r"^```([\w ]*)\n(.*?)^```$", PAGES[page], flags=re.MULTILINE | re.DOTALL)
    return [(kind, text) for kind, text in found if kind in kinds]


def blocks(page: str, *kinds: str) -> list[str]:
    return [text for _, text in marked(page, *kinds)]


def pages_with(*kinds: str) -> list[str]:
    return [page for page in PAGES if blocks(page, *kinds)]


def everywhere(kind: str) -> list[str]:
    return [text for page in PAGES for text in blocks(page, kind)]


@every("page", PAGES)
def test_every_block_is_of_a_kind_that_is_executed_here(page: str) -> None:
    assert len(blocks(page, *KINDS)) * 2 == len(re.findall("^```", PAGES[page], flags=re.MULTILINE))


# -- consoles ---------------------------------------------------------------------------------------------------------


def commands(block: str) -> list[tuple[str, str]]:
    """Pairs of a command and what it prints."""
    assert block.startswith("$ ")
    parts = re.split(r"^\$ ((?:.*\\\n)*.*)\n", block, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def is_plain(command: str) -> bool:
    """Whether a command needs no shell."""
    words = list(shlex.shlex(command, posix=True, punctuation_chars=True))
    return words[0] == "kvplan" and not any(set(word) <= set("|<>;&()") for word in words)


def printed(command: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """What a command that succeeds writes to standard output, and to standard error.

    Without a shell it runs in this process, which has imported everything.
    """
    command = command.replace("\\\n", " ")
    if is_plain(command):
        code = main(shlex.split(command)[1:])
        out, messages = capfd.readouterr()
    else:
        kvplan = f'kvplan() {{ "{sys.executable}" -m kvplan "$@"; }}; '
        env = ENVIRONMENT | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"}
        done = subprocess.run(
            ["bash", "-c", kvplan + command], cwd=folder, env=env, capture_output=True, text=True
        )
        code, out, messages = done.returncode, done.stdout, done.stderr
    assert code == 0, f"{command}: {messages}"
    return out, messages


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def exactly(shown: str) -> str:
    """A pattern of what is shown."""
    return "\n".join("(?s:.*)" if line == "..." else re.escape(line) for line in lines(shown))


def loosely(shown: str) -> str:
    """The same with any numbers, in any unit, and any white space."""
    number, unit = r"[+-]?\d+(?:[.,]\d+)*", "(?:us|ms|s|min|h)"

    def pattern(word: str) -> str:
        if word == "...":
            return "(?s:.*)"
        if found := re.fullmatch(f"{unit}([,.;:]?)", word):
            return unit + found[1]
        return number.join(map(re.escape, re.split(rf"(?<![\w-]){number}", word)))

    return r"\s*" + r"\s+".join(map(pattern, shown.split())) + r"\s*"


def run_consoles(page: str, kinds: tuple[str, ...], folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(ROOT / "docs" / "example", folder, dirs_exist_ok=True)
    for profile in blocks(page, "toml"):
        if name := re.match(r"# ([\w-]+\.toml)\n", profile):
            (folder / name[1]).write_text(profile)
    for kind, (command, shown) in (
        (kind, pair) for kind, text in marked(page, *kinds) for pair in commands(text)
    ):
        pattern = loosely(shown) if kind.endswith("loose") else exactly(shown)
        out, messages = printed(command, folder, capfd)
        messages = re.sub(r"^simulating: \d+%\n", "", messages, flags=re.MULTILINE)  # where it takes long
        found = ["\n".join(lines(text)) for text in (out, messages + out)]
        assert any(re.fullmatch(pattern, text) for text in found), f"{page}: {command}\n{found[1]}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@pytest.mark.parametrize("page", pages_with(*QUICK))
def test_consoles_show_what_is_printed(page: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_consoles(page, QUICK, folder, capfd)


@pytest.mark.nightly
@pytest.mark.parametrize("page", pages_with(*SLOW))
def test_slow_consoles_show_what_is_printed(
    page: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_consoles(page, QUICK + SLOW, folder, capfd)


# -- the rest ---------------------------------------------------------------------------------------------------------


@every(("rate", "code"), [(8.0, 0), (13.0, 1)])
def test_the_gate_of_a_pipeline_passes_and_fails(rate: float, code: int, tmp_path: Path) -> None:
    """Its own command, in a checkout with profiles that sustain 60/5 = 12 requests/s."""
    (workflow,) = (text for text in everywhere("yaml") if "script:" in text)  # the others: test_pipeline.py
    (command,) = re.findall(r"^ *- (?:run: )?(kvplan check .*)$", workflow, flags=re.MULTILINE)
    assert re.search(r"^ *- (?:run: )?pip install \./tools/kvplan$", workflow, flags=re.MULTILINE)
    (tmp_path / "capacity").mkdir()
    for name in ("one", "two"):
        (tmp_path / "capacity" / f"{name}.toml").write_text(
            f"""schema = 1
name = "{name}"
gpu = {{ memory_tokens = 60, prefill = "disaggregated" }}
timing = {{ d0 = "1 s" }}
classes = [{{ name = "a", input = 1, decode = 2, rate = {rate} }}]
"""
        )
    command = f'kvplan() {{ "{sys.executable}" -m kvplan "$@"; }}; {command}'
    env = ENVIRONMENT | {"PYTHONPATH": str(ROOT), "GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": ""}
    done = subprocess.run(
        ["bash", "-e", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    assert done.stderr.count("::error file=capacity/") == 2 * code
    for report in re.findall(r"^ *junit: (.*)$", workflow, flags=re.MULTILINE):
        assert (tmp_path / report).read_text().count("<failure") == 2 * code


@pytest.mark.parametrize("page", pages_with("python"))
def test_what_a_notebook_does_is_what_is_shown(page: str) -> None:
    example = "\n".join(blocks(page, "python"))
    test = doctest.DocTestParser().get_doctest(example, {}, page, page, 0)
    said: list[str] = []
    found = doctest.DocTestRunner().run(test, out=said.append)
    assert found.attempted > 5
    assert found.failed == 0, "".join(said)


@every("profile", everywhere("toml"))
def test_profiles_are_good(profile: str) -> None:
    assert parse_profile(profile.encode(), "docs").model.classes


def test_commands_and_options_in_the_prose_exist() -> None:
    """And every command is spoken of somewhere."""
    root = typer.main.get_command(app)
    context = typer.Context(root)
    seen = set()
    for text in re.findall(r"`kvplan ([a-z][^`]*)`", PROSE):
        command, words = root, shlex.split(text)
        while words and hasattr(command, "commands"):
            command = command.get_command(context, words.pop(0))
            assert command is not None, text
        seen.add(command.name)
        options = {
            option for parameter in command.params for option in parameter.opts + parameter.secondary_opts
        }
        used = {word for word in words if re.match("--?[a-z]", word)} - {"--help"}
        assert not (used - options), text
    assert seen >= set(root.list_commands(context))


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_lead_somewhere() -> None:
    for page, text in PAGES.items():
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text):
            path = (ROOT / page).parent.joinpath(target).resolve() if target else ROOT / page
            assert path.exists(), f"{page}: {target}"
            assert not anchor or anchor in anchors(path), f"{page}: {target}#{anchor}"
    assert all(f"({page})" in README for page in PAGES if page != "README.md")


def test_every_alert_says_where_to_read_what_to_do() -> None:
    rules = (ROOT / "kvplan" / "emit" / "prometheus.yaml.j2").read_text(encoding="utf-8")
    alerts = {alert.lower() for alert in re.findall(r"- alert: (Kvplan\w+)", rules)}
    assert alerts == set(re.findall(r"docs/operate\.md#(\w+)", rules))
    assert alerts == {
        anchor for anchor in anchors(ROOT / "docs" / "operate.md") if anchor.startswith("kvplan")
    }


def test_the_readme_is_short_and_installs_from_the_checkout() -> None:
    assert len(README.splitlines()) <= 190
    assert "pip install kvplan" not in PROSE  # that name on the package index belongs to somebody else


def test_names_of_shipped_profiles_are_all_there() -> None:
    assert all(f"`{path.stem}`" in PAGES["docs/profiles.md"] for path in (ROOT / "profiles").glob("*.toml"))


def test_policies_and_their_parameters_are_all_there() -> None:
    rows = {
        cells[1].strip(" `"): cells[3]
        for cells in (line.split("|") for line in PAGES["docs/simulate.md"].splitlines())
        if len(cells) == 5
    }
    for name, policy in POLICIES.items():
        assert set(re.findall("`([a-z_]+)`", rows[name])) - {"exact", "max"} == set(policy.parameters), name


def test_verdicts_on_published_results_are_those_on_record() -> None:
    for name in shipped_experiments():
        found = load_experiment(name)
        verdicts = [figure.verdict for figure in found.figures]
        tally = ", ".join(f"{verdicts.count(v)} {v.value}" for v in Verdict if v in verdicts)
        assert f"| `{name}` | {found.source} | {tally} |" in PAGES["docs/papers.md"]
