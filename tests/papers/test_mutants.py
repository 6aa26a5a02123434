"""Formulas and policies that are wrong on purpose: what is reproduced with the right ones no longer is."""

import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import NamedTuple

import numpy as np
import pytest
import tomli
from tiers import at_night

from kvplan.reproduction.experiment import Verdict, load_experiment
from kvplan.reproduction.judge import reproduction
from kvplan.reproduction.runs import run_all
from kvplan.simulation.actions import admit_in_order, advance, evict, overflows
from kvplan.simulation.initial_state import Setup
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.parameters import UNLIMITED
from kvplan.simulation.policies.protocol import Policy, Scenario, Settings
from kvplan.simulation.state import Counter, List, State, group_list, kernel


@kernel
def evict_the_furthest(s: State) -> None:
    """Form batches as greedy does, but evict the most progressed first.

    Who came last is no wrong choice: requests are admitted in order of arrival, so that it is the least progressed.
    """
    advance(s, 0)
    while overflows(s):
        evict(s, s.list[group_list(s, 0), List.HEAD])
    admit_in_order(s, 0, 0, s.counter[Counter.WAITING])


def with_knobs(policy: Policy, value: float) -> Policy:
    """The policy with the same number for all its thresholds or budgets."""

    def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
        setup, parameters = policy.prepare(scenario, settings)
        return setup._replace(knobs=np.full_like(setup.knobs, value)), parameters

    return policy._replace(prepare=prepare)


class Mutant(NamedTuple):
    policy: Policy
    experiment: str


MUTANTS = {
    "wait that waits for nobody": Mutant(with_knobs(POLICIES["wait"], 1), "wait-theorem-1"),
    "flow without budgets": Mutant(with_knobs(POLICIES["flow"], UNLIMITED), "fc-4-1-per-class"),
    "greedy that evicts the most progressed": Mutant(
        POLICIES["greedy"]._replace(form_batch=evict_the_furthest), "sic-example-01"
    ),
}


@pytest.mark.parametrize("name", [*at_night(*MUTANTS)])
def test_a_wrong_policy_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, experiment = MUTANTS[name]
    monkeypatch.setitem(POLICIES, policy.name, policy)
    judged = reproduction(load_experiment(experiment), run_all(load_experiment(experiment)))
    lost = [
        each.figure.what
        for each in judged.compared
        if each.figure.verdict is Verdict.REPRODUCED and each.verdict is not Verdict.REPRODUCED
    ]
    assert lost


HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "kvplan"
WRONG = tomli.loads((HERE / "mutants.toml").read_text("utf-8"))["mutants"]


def test_mutants_are_many_and_differ_from_the_package() -> None:
    assert len({each["what"] for each in WRONG}) == len(WRONG) >= 40
    assert sum("experiment" in each for each in WRONG) >= 14
    for each in WRONG:
        assert (PACKAGE / each["file"]).read_text("utf-8").count(each["right"]) == 1, each["what"]


@pytest.mark.parametrize(
    "mutant", [*at_night(*WRONG[:1]), WRONG[1], *at_night(*WRONG[2:])], ids=lambda each: each["what"]
)
def test_reproduce_alone_notices_or_a_test(mutant: dict[str, str], tmp_path: Path) -> None:
    copytree(PACKAGE, tmp_path / "kvplan", ignore=ignore_patterns("__pycache__"))
    for beside in ("tests", "tools", "pyproject.toml"):
        (tmp_path / beside).symlink_to(HERE.parents[1] / beside)
    file = tmp_path / "kvplan" / mutant["file"]
    file.write_text(file.read_text("utf-8").replace(mutant["right"], mutant["wrong"]), "utf-8")
    command = ["kvplan", "reproduce", mutant.get("experiment", "")]
    if "test" in mutant:
        command = ["pytest", "-q", "-x", "-n0", "-pno:cacheprovider", f"tests/{mutant['test']}"]
    found = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    said = "1 failed" if "test" in mutant else "other verdicts than on record"
    assert said in found.stdout + found.stderr, found.stdout + found.stderr
