"""Published results: every experiment comes out as it is on record, and says why where the paper does not hold."""

import re
from pathlib import Path

import pytest
from every import every
from tiers import at_night

from kvplan.reproduction.experiment import (
    Experiment,
    Figure,
    Verdict,
    coverage,
    load_experiment,
    parse_experiment,
    shipped_experiments,
)
from kvplan.reproduction.judge import Measured, judged, measured, reproduction
from kvplan.reproduction.runs import run_all

ALL = [load_experiment(name) for name in shipped_experiments()]
LONG = {
    *(
        "fc-4-1-in-total",
        "fc-4-1-per-class",
        "fc-4-2",
        "fc-hindsight",
        "fc-theorem-3-6",
        "fleet-split",
        "prefix-collapse",
        "sic-table-2",
    ),
    *(
        "sic-table-3",
        "wait-6-known",
        "wait-6-nested",
        "wait-6-nested-unlimited",
        "wait-6-ten-bins",
        "wait-equation-13",
        "wait-proposition-1",
    ),
    *(
        "wait-proposition-2",
        "wait-proposition-4",
        "wait-theorem-1",
        "wait-theorem-2",
        "wait-theorem-3",
        "sic-d5-bursts",
    ),
}


@pytest.mark.parametrize(
    "experiment",
    [*(e for e in ALL if e.name not in LONG), *at_night(*(e for e in ALL if e.name in LONG))],
    ids=lambda e: e.name,
)
def test_an_experiment_comes_out_as_recorded(experiment: Experiment) -> None:
    found = reproduction(experiment, run_all(experiment))
    got = {one.figure.what: (one.verdict.value, one.measured) for one in found.compared}
    assert {what: verdict for what, (verdict, _) in got.items()} == {
        one.what: one.verdict.value for one in experiment.figures
    }, got


def test_a_choice_of_ours_refutes_no_paper() -> None:
    text = """
source = ""
title = ""
claim = ""
given = false
[[figures]]
what = "x"
of = "a.x"
printed = "1"
verdict = "refuted under our choice"
reason = "-"
"""
    one = reproduction(parse_experiment("x", text), {"a": {"x": 2.0}})
    assert one.verdict is Verdict.REFUTED_AS_CHOSEN
    given = reproduction(parse_experiment("x", text.replace("false", "true")), {"a": {"x": 2.0}})
    assert given.verdict is Verdict.REFUTED


def figure(**given: object) -> Figure:
    return Figure(what="", of=("a.x",), verdict=Verdict.REPRODUCED, **given)  # type: ignore[arg-type]


@every(
    ("given", "found", "verdict"),
    [
        ({"printed": "100", "tolerance": 0.05, "width": "-"}, (104, 103.5, 104.5), Verdict.REPRODUCED),
        ({"printed": "100", "tolerance": 0.05, "width": "-"}, (104, 90, 120), Verdict.NOT_DETERMINABLE),
        ({"printed": "100", "tolerance": 0.05, "width": "-"}, (107, 106, 108), Verdict.REFUTED),
        ({"printed": "1.3"}, (1.349, 1.349, 1.349), Verdict.REPRODUCED),
        ({"printed": "1.3"}, (1.351, 1.351, 1.351), Verdict.REFUTED),
        ({"printed": "0", "tolerance": 0.1, "width": "-"}, (0.09, 0.09, 0.09), Verdict.REPRODUCED),
        ({"printed": "0", "tolerance": 0.1, "width": "-"}, (0.11, 0.11, 0.11), Verdict.REFUTED),
        ({"printed": "-50%", "over": ("b.x",)}, (-0.2, -0.25, -0.15), Verdict.SAME_DIRECTION),
        ({"printed": "-50%", "over": ("b.x",)}, (-0.1, -0.15, -0.05), Verdict.REFUTED),
        ({"printed": "-50%", "over": ("b.x",)}, (-0.2, -0.45, 0.05), Verdict.REFUTED),
        ({"printed": "-50%", "over": ("b.x",)}, (0.2, 0.15, 0.25), Verdict.REFUTED),
        ({"at_least": 1, "at_most": 2}, (1.5, 1.4, 1.6), Verdict.REPRODUCED),
        ({"at_least": 1, "at_most": 2}, (1.9, 1.7, 2.1), Verdict.NOT_DETERMINABLE),
        ({"at_least": 1, "at_most": 2}, (2.2, 2.1, 2.3), Verdict.REFUTED),
    ],
)
def test_verdicts(given: dict[str, object], found: tuple[float, float, float], verdict: Verdict) -> None:
    assert judged(figure(**given), Measured(*found)) is verdict


HEAD = 'source = ""\ntitle = ""\nclaim = ""\n'


@every(
    "text",
    [
        HEAD + 'extra = 1\n[[figures]]\nwhat = "x"\nof = "a.x"\nprinted = "1"\nverdict = "reproduced"\n',
        HEAD + '[[figures]]\nwhat = "x"\nof = "a.x"\nverdict = "reproduced"\n',
        HEAD
        + '[[figures]]\nwhat = "x"\nof = "a.x"\nprinted = "1"\ntolerance = 0.1\nverdict = "reproduced"\n',
        HEAD + '[[figures]]\nwhat = "x"\nprinted = "1"\nverdict = "reproduced"\n',
        HEAD + '[[figures]]\nwhat = "x"\nof = "a.x"\nprinted = "1"\nverdict = "refuted"\n',
        HEAD + '[[figures]]\nwhat = "x"\nof = "a.x"\nprinted = "1"\nverdict = "perhaps"\n',
        HEAD + '[[figures]]\nwhat = "x"\nof = "a.x"\nprintd = "1"\nverdict = "reproduced"\n',
    ],
)
def test_an_experiment_that_says_too_little_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_experiment("x", text)


SHARED = Path(__file__).resolve().parents[3] / "shared/papers"
PAPERS = {
    "SIC": "service-induced-congestion",
    "FC": "flow-control",
    "WAIT": "wait-long",
    "WAIT-s": "wait-short",
}
KINDS = "Figure|Table|Theorem|Proposition|Lemma|Corollary|Example|Algorithm|Remark|Definition|Assumption"


def mentioned(text: str) -> set[str]:
    """Everything with a number that a paper speaks of; "Lemmas 20–21" are two."""
    items = set()
    number = r"(?:[A-E]\.)?\d+(?:\.\d+)?"
    for found in re.finditer(rf"\b({KINDS})(s?)[\s˜]+({number}(?:(?:, | and |[–-]){number})*)", text):
        kind, several, numbers = found.groups()
        each = re.findall(number, numbers)
        items.add(f"{kind} {each[0]}")
        if several:
            items.update(f"{kind} {other}" for other in each[1:])
        if several and re.fullmatch(r"\d+[–-]\d+", numbers):
            items.update(f"{kind} {n}" for n in range(int(each[0]), int(each[-1]) + 1))
    return items


@pytest.mark.skipif(not SHARED.is_dir(), reason="the texts of the papers are not there")
def test_everything_that_the_papers_contain_is_covered_or_has_a_reason() -> None:
    listed = coverage()
    assert len({(item.paper, item.name) for item in listed}) == len(listed)
    assert all(bool(item.experiments) != bool(item.reason) for item in listed)
    for paper, file in PAPERS.items():
        text = (SHARED / f"{file}.txt").read_text("utf-8")
        names = {item.name for item in listed if item.paper == paper}
        assert {name for name in names if re.match(KINDS, name)} == mentioned(text), paper


def test_what_the_papers_have_without_a_number_and_kvplan_does_not_has_a_reason() -> None:
    without = [item for item in coverage() if not re.match(KINDS, item.name)]
    assert len(without) == 3
    assert all(item.reason and not item.experiments for item in without)


def test_there_are_as_many_experiments_as_promised() -> None:
    assert len(ALL) >= 45
    assert not [figure for e in ALL for figure in e.figures if any(".gcd" in path for path in figure.of)]


def test_a_change_is_measured_seed_by_seed() -> None:
    """Differences 10 %, 20 %, 30 %: mean 0.2, standard error 0.1/√3, t = 4.303 with two degrees of freedom."""
    seeds = [(10.0, 11.0), (100.0, 120.0), (1.0, 1.3)]
    before, after = ({"seeds": [{"x": {"mean": pair[i]}} for pair in seeds]} for i in (0, 1))
    found = measured([(after, "x.mean")], [(before, "x.mean")])
    assert found.value == pytest.approx(0.2)
    assert found.high - found.value == pytest.approx(4.303 * 0.1 / 3**0.5, rel=1e-3)
    # what is not simulated stands beside every seed
    half = measured([(after, "x.mean")], [({"x": {"mean": 1.0}}, "x.mean")])
    assert half.value == pytest.approx((11 + 120 + 1.3) / 3 - 1)
