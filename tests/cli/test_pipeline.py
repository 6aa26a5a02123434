"""What other programs start kvplan by: the GitHub Action, the hook of pre-commit, the image.

Their files are valid to the programs that read them; the Action's scripts run as a runner does, in a checkout.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli
import yaml
from command import ENVIRONMENT
from every import every

ROOT = Path(__file__).resolve().parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
OPERATE = (ROOT / "docs" / "operate.md").read_text("utf-8")
WORKFLOW, PRE_COMMIT = re.findall(r"^```yaml\n(.*?)^```$", OPERATE, flags=re.MULTILINE | re.DOTALL)
# what the workflow of that page gives the Action
GIVEN: dict[str, str] = yaml.safe_load(WORKFLOW)["jobs"]["check"]["steps"][-1]["with"]
TOOLS = Path(sys.executable).parent

# One class, input 1, decode 2, disaggregated: 60 tokens and iterations of 1 s sustain 60/5 = 12 requests/s.
PROFILE = """schema = 1
name = "{name}"
gpu = {{ memory_tokens = {memory}, prefill = "disaggregated" }}
timing = {{ d0 = "1 s" }}
classes = [{{ name = "a", input = 1, decode = 2, rate = {rate} }}]
"""
# In place of a download: a Python whose virtual environments have the kvplan under test.
FAKE_PYTHON = """#!/bin/bash
[[ "$1 $2" == "-m venv" ]] || exit 99
mkdir -p "$3/bin"
printf '#!/bin/bash\\necho "$@" > "%s/installed"\\n' "$3" > "$3/bin/pip"
printf '#!/bin/bash\\nexec "{python}" -P -m kvplan "$@"\\n' > "$3/bin/kvplan"
chmod +x "$3"/bin/*
"""


class Checkout:
    """A repository with profiles, and the runner that runs the Action there."""

    def __init__(self, folder: Path, python: str | None = None) -> None:
        self.folder, self.temp = folder / "checkout", folder / "temp"
        self.summary, self.output = folder / "summary.md", folder / "output"
        for made in (self.folder / "capacity", self.temp):
            made.mkdir(parents=True)
        self.python = python or str(folder / "python")
        if python is None:
            (folder / "python").write_text(FAKE_PYTHON.format(python=sys.executable))
            (folder / "python").chmod(0o755)

    def profile(self, name: str, rate: float = 2.0, memory: int = 60) -> None:
        text = PROFILE.format(name=name, rate=rate, memory=memory)
        (self.folder / "capacity" / f"{name}.toml").write_text(text)

    def run(self, **inputs: str) -> tuple[int, str]:
        """Run the scripts of the Action one after the other; the exit code of the last, and what all wrote."""
        log = ""
        for step in ACTION["runs"]["steps"]:
            if "run" not in step:
                continue
            env = {key: self._filled(value, inputs) for key, value in step["env"].items()}
            done = subprocess.run(
                [step["shell"], "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=self.folder,
                env=ENVIRONMENT | self._runner() | env,
                capture_output=True,
                text=True,
            )
            log += done.stdout + done.stderr
            if done.returncode:
                break
        return done.returncode, log

    def reports(self) -> dict[str, Any]:
        folder = self.temp / "kvplan-reports"
        return {path.name: json.loads(path.read_text()) for path in folder.iterdir()}

    def _runner(self) -> dict[str, str]:
        return {
            "GITHUB_ACTIONS": "true",
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_OUTPUT": str(self.output),
            "RUNNER_TEMP": str(self.temp),
        }

    def _filled(self, text: str, inputs: dict[str, str]) -> str:
        values = {"steps.python.outputs.python-path": self.python} | {
            f"inputs.{name}": inputs.get(name, about.get("default", ""))
            for name, about in ACTION["inputs"].items()
        }
        return re.sub(r"\$\{\{ *(.*?) *\}\}", lambda found: values[found[1]], text)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def tool(name: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(TOOLS / name), *map(str, arguments)], capture_output=True, text=True, **{"cwd": ROOT, **options}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


# -- the Action -------------------------------------------------------------------------------------------------------


def test_the_action_is_one_to_github() -> None:
    tool("check-jsonschema", "--builtin-schema", "vendor.github-actions", "action.yml")
    scripts = [step for step in ACTION["runs"]["steps"] if "run" in step]
    used = {name for step in scripts for name in re.findall(r"inputs\.([\w-]+)", str(step["env"]))}
    assert used == ACTION["inputs"].keys()
    assert not [step for step in scripts if "${{" in step["run"]]  # the text of an input would be run


def test_the_workflow_of_the_docs_is_one_to_github_and_calls_the_action(tmp_path: Path) -> None:
    (tmp_path / "workflow.yml").write_text(WORKFLOW)
    tool("check-jsonschema", "--builtin-schema", "vendor.github-workflows", tmp_path / "workflow.yml")
    needed = {name for name, about in ACTION["inputs"].items() if about.get("required")}
    assert needed <= GIVEN.keys() <= ACTION["inputs"].keys()
    assert all(f"| `{name}` |" in OPERATE for name in ACTION["inputs"])


def test_a_change_passes_or_fails_also_against_its_reports_of_an_earlier_run(checkout: Checkout) -> None:
    checkout.profile("same")
    require = {"requirements": f"\n  {GIVEN['requirements']}\n"}
    code, log = checkout.run(paths="capacity/s*.toml\n", **require)
    assert (code, log.count("::")) == (0, 0), log
    assert (checkout.temp / "kvplan" / "installed").read_text() == f"install --quiet {ROOT}\n"
    assert checkout.output.read_text() == f"reports={checkout.temp}/kvplan-reports\n"
    assert checkout.summary.read_text().count("PASSED") == 1

    baseline = (checkout.temp / "kvplan-reports").rename(checkout.folder / "baseline")
    (report,) = baseline.iterdir()
    assert report.name == "capacity--same.toml.json"
    (baseline / "capacity--less.toml.json").write_bytes(report.read_bytes())
    checkout.profile("less", memory=58)  # 58/60 is 3.3 % less
    checkout.profile("too much", rate=13.0)
    against = {"baseline": "baseline", "tolerances": "load.sustainable_rps=2%\nload.work_rate=5%"}
    code, log = checkout.run(paths="capacity/t*.toml\ncapacity/[ls]*.toml", **require, **against)
    assert code == 1  # the last one passes
    assert log.count("::error file=capacity/less.toml,") == 1
    assert log.count("::error file=capacity/too much.toml,line=1,") == 2
    assert log.count("::notice title=kvplan::capacity/too\\ much.toml has no report in the baseline") == 1
    assert log.count("::error") + log.count("::notice") == 4
    rows = re.findall(r"\| (\w+) \| load.sustainable_rps \|", checkout.summary.read_text())
    assert rows == ["FAIL", "PASS"]
    sustained = [round(report["load"]["sustainable_rps"], 6) for report in checkout.reports().values()]
    assert sorted(sustained) == [11.6, 12, 12]


@every(
    ("inputs", "says"),
    [
        ({"paths": " \n"}, "::error title=kvplan::paths names no profile\n"),
        (
            {"paths": "tool-calls-h100", "baseline": "nowhere"},
            "::error title=kvplan::there is no folder that baseline names\n",
        ),
        ({"paths": "$(touch run)", "requirements": "load.headroom >= `touch run`"}, "`touch run`"),
        ({"paths": "-torn.toml", "requirements": "load.headroom >= 0"}, "::error file=-torn.toml,line=1,"),
    ],
)
def test_what_cannot_be_judged_is_an_error(inputs: dict[str, str], says: str, tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    (checkout.folder / "-torn.toml").write_text("schema = ")
    code, log = checkout.run(**inputs)
    assert code == 2
    assert not (checkout.temp / "kvplan-reports").exists() or not checkout.reports()
    assert says in log
    assert not (checkout.folder / "run").exists()


# -- pre-commit -------------------------------------------------------------------------------------------------------


def test_the_hook_checks_the_profiles_of_a_commit(checkout: Checkout) -> None:
    """As a local hook, that takes the kvplan under test in place of an environment of its own."""
    tool("pre-commit", "validate-manifest")
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    (checkout.folder / ".pre-commit-config.yaml").write_text(PRE_COMMIT)
    tool("pre-commit", "validate-config", cwd=checkout.folder)
    (documented,) = yaml.safe_load(PRE_COMMIT)["repos"][0]["hooks"]
    assert documented["id"] == hook["id"]
    assert hook["language"] == "python"
    command = hook["entry"].split()
    assert command[0] in tomli.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    entry = " ".join([sys.executable, "-P", "-m", *command])
    hook |= {"language": "system", "entry": entry, "args": documented["args"]}
    config = {"repos": [{"repo": "local", "hooks": [hook]}]}
    (checkout.folder / ".pre-commit-config.yaml").write_text(json.dumps(config))
    (checkout.folder / "pyproject.toml").write_text("[project]\n")
    checkout.profile("good")
    checkout.profile("bad", rate=13.0)
    env = ENVIRONMENT | {"PRE_COMMIT_HOME": str(checkout.temp)}
    options: dict[str, Any] = {"cwd": checkout.folder, "env": env, "capture_output": True, "text": True}
    for arguments in (("init", "--quiet"), ("add", ".")):
        subprocess.run(["git", *arguments], check=True, **options)
    for name, code, says in (("good", 0, ""), ("bad", 1, "FAILED  bad (capacity/bad.toml)")):
        files = ["--files", f"capacity/{name}.toml", "pyproject.toml"]
        done = subprocess.run([str(TOOLS / "pre-commit"), "run", "kvplan-check", *files], **options)
        assert done.returncode == code, done.stdout
        assert says in done.stdout
        assert "pyproject" not in done.stdout


# -- the image --------------------------------------------------------------------------------------------------------


def test_the_image_has_what_the_package_is_built_from_and_no_root() -> None:
    tool("hadolint", "--failure-threshold", "style", "Dockerfile")
    text = (ROOT / "Dockerfile").read_text("utf-8")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    copied = {
        name for words in lines if words[0] == "COPY" and "--from=build" not in words for name in words[1:-1]
    }
    project = tomli.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", project["project"]["readme"], *wheel["packages"], *wheel["force-include"]}
    assert copied == needed
    assert all((ROOT / name).exists() for name in copied)
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert {line[1:] for line in ignored if line.startswith("!")} == copied
    (user,) = [words[1] for words in lines if words[0] == "USER"]
    assert int(user) > 0
    assert "kvplan" in project["project"]["scripts"]
    assert lines[-1] == ["ENTRYPOINT", '["/opt/kvplan/bin/kvplan"]']


# -- all of them, from the package index ------------------------------------------------------------------------------


@pytest.mark.nightly
def test_the_action_installs_what_it_runs(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, python=sys.executable)
    checkout.profile("chat")
    code, log = checkout.run(paths="capacity/*.toml", requirements="load.headroom >= 20%")
    assert code == 0, log
    assert (checkout.temp / "kvplan" / "bin" / "kvplan").exists()
    assert checkout.reports().keys() == {"capacity--chat.toml.json"}


@pytest.mark.nightly
def test_pre_commit_installs_what_it_runs(checkout: Checkout) -> None:
    checkout.profile("tool-calls")
    text = (ROOT / "profiles" / "tool-calls-h100.toml").read_text("utf-8")
    gate = '\n[gate]\naccept = ["workload"]\nrequire = ["load.headroom >= 20%"]\n'
    (checkout.folder / "capacity" / "tool-calls.toml").write_text(text + gate)
    env = {**ENVIRONMENT, "PRE_COMMIT_HOME": str(checkout.temp), "PATH": os.environ["PATH"]}
    del env["PYTHONPATH"]
    for arguments in (("init", "--quiet"), ("add", ".")):
        subprocess.run(["git", *arguments], cwd=checkout.folder, env=env, check=True)
    done = tool(
        "pre-commit",
        "try-repo",
        ROOT,
        "kvplan-check",
        "--all-files",
        "--verbose",
        cwd=checkout.folder,
        env=env,
    )
    assert "PASSED" in done.stdout
