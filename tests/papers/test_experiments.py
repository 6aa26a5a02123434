"""Published results: every experiment comes out as it is on record, and says why where the paper does not hold."""

import pytest
from every import every
from tiers import at_night

from kvplan.reproduction.experiment import (
    Experiment,
    Figure,
    Verdict,
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
        "sic-figure-4",
        "sic-table-3",
        "sic-table-d2-partial",
        "sic-table-d4",
    ),
    *("fleet-split", "sic-d5-bursts", "sic-table-1-coprime", "sic-table-d2-coprime", "wait-figures-16-18"),
    *("prefix-collapse", "wait-6-known", "wait-6-nested", "wait-6-ten-bins", "wait-equation-13"),
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


def figure(**given: object) -> Figure:
    return Figure(what="", of=("a.x",), verdict=Verdict.REPRODUCED, **given)  # type: ignore[arg-type]


@every(
    ("given", "found", "verdict"),
    [
        ({"printed": 100, "tolerance": 0.05}, (104, 90, 120), Verdict.REPRODUCED),
        ({"printed": 100, "tolerance": 0.05}, (106, 90, 120), Verdict.REFUTED),
        ({"printed": 0, "tolerance": 0.1}, (0.09, 0.09, 0.09), Verdict.REPRODUCED),
        ({"printed": 0, "tolerance": 0.1}, (0.11, 0.11, 0.11), Verdict.REFUTED),
        ({"printed": -0.5, "over": ("b.x",)}, (-0.1, -0.15, -0.05), Verdict.SAME_DIRECTION),
        ({"printed": -0.5, "over": ("b.x",)}, (-0.1, -0.25, 0.05), Verdict.REFUTED),
        ({"printed": -0.5, "over": ("b.x",)}, (0.1, 0.05, 0.15), Verdict.REFUTED),
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
        HEAD + 'extra = 1\n[[figures]]\nwhat = "x"\nof = "a.x"\nprinted = 1\nverdict = "reproduced"\n',
        HEAD + '[[figures]]\nwhat = "x"\nof = "a.x"\nverdict = "reproduced"\n',
        HEAD + '[[figures]]\nwhat = "x"\nprinted = 1\nverdict = "reproduced"\n',
        HEAD + '[[figures]]\nwhat = "x"\nof = "a.x"\nprinted = 1\nverdict = "refuted"\n',
        HEAD + '[[figures]]\nwhat = "x"\nof = "a.x"\nprinted = 1\nverdict = "perhaps"\n',
        HEAD + '[[figures]]\nwhat = "x"\nof = "a.x"\nprintd = 1\nverdict = "reproduced"\n',
    ],
)
def test_an_experiment_that_says_too_little_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_experiment("x", text)


def test_every_result_that_is_to_be_reproduced_is_there() -> None:
    """SIC Examples 1 to 12, Figures 1 to 5, Tables 1 to 3, D; FC 4.1, 4.2; WAIT 6, 7.2, Example 2, Proposition 3."""
    sources = " | ".join(experiment.source for experiment in ALL)
    wanted = [
        "Example 1",
        "Example 2",
        "Example 3",
        "Examples 4, 10 and 11",
        "Example 5",
        "Example 6",
        "Example 7",
    ]
    wanted += [
        "Examples 8 and 9",
        "Example 12",
        "Figure 1",
        "Figure 2(a)",
        "Figure 3",
        "Figure 4",
        "Figure 5",
    ]
    wanted += [
        "Table 1",
        "Table 2",
        "Table 3",
        "D.1",
        "D.2",
        "D.3",
        "D.4",
        "D.5",
        "FC 4.1",
        "FC 4.2",
        "WAIT Example 2",
    ]
    wanted += [
        "WAIT-s eq. 13",
        "WAIT Proposition 3",
        "WAIT 6.1",
        "Figures 11 and 14",
        "Figures 12 and 13",
        "Figures 16 to 18",
    ]
    assert [name for name in wanted if name not in sources] == []


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
