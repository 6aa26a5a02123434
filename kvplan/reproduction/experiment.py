"""Experiments: a published table, figure or example, as a TOML file that is shipped with kvplan.

.. code-block:: toml

    source = "SIC Example 2"
    covers = ["SIC Example 2"]           # items of the papers; what no experiment covers is in `coverage.toml`
    title = "Three equilibria of one class"
    claim = "What the paper says, in a sentence."
    assumed = "What it does not say and had to be chosen."
    given = false                        # where that decides
    solved = "Which parameters were solved from which printed result."  # so that agreement proves little

    [workloads.node]                     # a profile, without schema and name; `like` takes over the tables of another
                                         # one of the file, `shipped` those of a profile that comes with kvplan
    gpu = { memory_tokens = 360, prefill = "disaggregated" }
    timing = { d0 = "1 s" }
    classes = [{ name = "a", input = 2, decode = 3, rate = 1.0 }]

    [[runs]]                             # without `policy`, `fluid` or `gaps`: the report of the workload
    name = "greedy"
    workload = "node"
    policy = "greedy"
    arrivals = "interleaved"
    horizon = "400 s"

    [[figures]]
    what = "Throughput"
    of = "greedy.throughput_per_iteration"
    printed = "24"                       # as printed; half a unit of its last digit is allowed for rounding
    verdict = "reproduced"
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import tomli

from kvplan.errors import UsageError, did_you_mean
from kvplan.profile.reading import shipped_profiles


class Verdict(StrEnum):
    """How a computed value stands to the printed one, best first."""

    REPRODUCED = "reproduced"
    SAME_DIRECTION = "same direction"
    REFUTED = "refuted"
    REFUTED_AS_CHOSEN = "refuted under our choice"
    NOT_DETERMINABLE = "not determinable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Something to compute on a workload; the options of a simulation are those of `kvplan simulate`.

    Attributes
    ----------
    policy
        Simulated; None: the report of the workload, unless `fluid` or `gaps` is given.
    set, grid, best
        ``POLICY.KEY=VALUE``; ``POLICY.KEY`` to values to try, of which the one is kept that is best by this figure.
    arrive
        Arrival times of requests of the only class, instead of `arrivals`; the document then has `series` too.
    horizons
        Instead of `horizon`: the document has the slopes of its figures over these, on logarithmic scales, and that of
        `unserved_rps`, what came and was not completed, over time.
    hindsight
        The best that any schedule can do, of each seed, as far as it is solved (`kvplan simulate --hindsight`).
    fluid, gaps
        Masses by stage, stage 0 first, from which the fluid map runs for `iterations`; gaps between cohorts, whose
        cycle keeps them (SIC eq. 25).
    """

    name: str
    workload: str
    policy: str | None = None
    set: tuple[str, ...] = ()
    grid: Mapping[str, tuple[float, ...]] | None = None
    best: str = "throughput_rps"
    arrive: tuple[float, ...] | None = None
    arrivals: str = "poisson"
    requests: int | None = None
    horizon: str | None = None
    horizons: tuple[str, ...] = ()
    burst: str | None = None
    burst_sessions: str | None = None
    concurrency: int | None = None
    cv: float | None = None
    seeds: int = 1
    hindsight: bool = False
    fluid: tuple[float, ...] | None = None
    iterations: int = 0
    gaps: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number to compare.

    Attributes
    ----------
    of, over
        ``RUN.KEY``, keys as in the JSON of the report or of a simulated policy, the mean where there are several; or
        the relative change over such others.
    printed, derived
        Value of the paper, as it is written there; whether it is not in print but follows from the paper's formula, for
        sizes that were chosen.
    tolerance, width
        Largest error that counts as reproduced, relative, absolute where 0 is printed, and why it is as wide as that;
        without them half a unit of the last digit printed.
    at_least, at_most
        Where the paper states an inequality instead.
    verdict, reason
        On record, which a test compares with what comes out; why it is not reproduced.
    """

    what: str
    verdict: Verdict
    of: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    printed: str | None = None
    derived: bool = False
    tolerance: float | None = None
    width: str = ""
    at_least: float | None = None
    at_most: float | None = None
    reason: str = ""

    @property
    def target(self) -> float | None:
        """The printed value as a number: `28.3%` is 0.283."""
        return None if self.printed is None else _number(self.printed)[0]

    @property
    def allowed(self) -> float:
        """Largest distance from the printed value that counts as reproduced."""
        value, unit = _number(self.printed or "0")
        return unit / 2 if self.tolerance is None else self.tolerance * (abs(value) or 1)


def _number(printed: str) -> tuple[float, float]:
    """Read a printed number and its last digit's unit.

    >>> _number("-18.9%"), _number("1.33")
    ((-0.189, 0.001), (1.33, 0.01))
    """
    value = Decimal(printed.removesuffix("%")).scaleb(-2 if printed.endswith("%") else 0)
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    return float(value), float(Decimal(1).scaleb(exponent))


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A published result.

    `assumed` is what the text does not give and had to be chosen. Where not all that decides is `given`, a figure that
    disagrees is refuted under our choice, not the paper's. `solved`: parameters that were solved from a printed result.
    """

    name: str
    source: str
    covers: tuple[str, ...]
    title: str
    claim: str
    assumed: str
    solved: str
    given: bool
    workloads: Mapping[str, Mapping[str, Any]]
    runs: tuple[Run, ...]
    figures: tuple[Figure, ...]


def shipped_experiments() -> dict[str, Path]:
    """Files of the experiments by name: among the tests in a checkout, inside the package once installed."""
    package = Path(__file__).parent.parent
    folders = (package / "experiments", package.parent / "tests" / "papers" / "experiments")
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*-*.toml"))}


class Item(NamedTuple):
    """A figure, table, theorem, example or remark of a paper: the experiments that cover it, or why none does."""

    paper: str
    name: str
    experiments: tuple[str, ...] = ()
    reason: str = ""


def coverage() -> list[Item]:
    """Return what the papers contain, item by item, in the order of the papers.

    >>> [item.experiments for item in coverage() if (item.paper, item.name) == ("SIC", "Example 2")]
    [('sic-example-02',)]
    """
    shipped = shipped_experiments()
    covered: dict[tuple[str, str], list[str]] = {}
    for name in shipped:
        for place in load_experiment(name).covers:
            paper, _, item = place.partition(" ")
            covered.setdefault((paper, item), []).append(name)
    tables = tomli.loads((next(iter(shipped.values())).parent / "coverage.toml").read_text("utf-8"))
    items = [Item(paper, item, tuple(names)) for (paper, item), names in covered.items()]
    items += [
        Item(table["paper"], item, reason=table["reason"])
        for table in tables["uncovered"]
        for item in table["items"]
    ]
    papers = list(tables["titles"])
    return sorted(items, key=lambda item: (papers.index(item.paper), _in_order(item.name)))


def _in_order(name: str) -> tuple[str, list[tuple[bool, int, str]]]:
    """Sort "Lemma 9" before "Lemma 10" before "Lemma A.1"."""
    kind, _, number = name.partition(" ")
    parts = number.split(".")
    return kind, [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def load_experiment(name: str) -> Experiment:
    """Return a shipped experiment.

    >>> load_experiment("sic-example-02").source
    'SIC Example 2'
    """
    shipped = shipped_experiments()
    if name not in shipped:
        raise UsageError(f"no experiment {name!r}; {did_you_mean(name, shipped, 'there are')}")
    return parse_experiment(name, shipped[name].read_text("utf-8"))


def parse_experiment(name: str, text: str) -> Experiment:
    """Read an experiment from TOML; the files are ours, and a TypeError or ValueError tells of a wrong key or value."""
    tables = tomli.loads(text)
    experiment = Experiment(
        name=name,
        source=tables.pop("source"),
        covers=tuple(tables.pop("covers", ())),
        title=tables.pop("title"),
        claim=tables.pop("claim"),
        assumed=tables.pop("assumed", ""),
        solved=tables.pop("solved", ""),
        given=tables.pop("given", True),
        workloads=_inherited(tables.pop("workloads", {})),
        runs=tuple(Run(**_tuples(run)) for run in tables.pop("runs", [])),
        figures=tuple(_figure(figure) for figure in tables.pop("figures")),
    )
    if tables:
        raise ValueError(f"{name}: unknown keys {sorted(tables)}")
    used = {path.partition(".")[0] for figure in experiment.figures for path in (*figure.of, *figure.over)}
    if unused := {run.name for run in experiment.runs} - used:
        raise ValueError(f"{name}: no figure is of the runs {sorted(unused)}")
    return experiment


def _figure(table: dict[str, Any]) -> Figure:
    for key in ("of", "over"):
        if isinstance(table.get(key), str):
            table[key] = [table[key]]
    figure = Figure(**_tuples({**table, "verdict": Verdict(table["verdict"])}))
    compared = [figure.printed, figure.at_least, figure.at_most]
    if figure.of and all(bound is None for bound in compared):
        raise ValueError(f"{figure.what}: nothing to compare with")
    if not figure.of and figure.verdict is not Verdict.NOT_DETERMINABLE:
        raise ValueError(f"{figure.what}: {figure.verdict.value}, but nothing is computed")
    if (figure.tolerance is None) != (not figure.width):
        raise ValueError(f"{figure.what}: a tolerance and the reason for its width go together")
    if not figure.reason and figure.verdict is not Verdict.REPRODUCED:
        raise ValueError(f"{figure.what}: {figure.verdict.value}, without a reason")
    return figure


def _inherited(workloads: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Add the tables that workloads take over; one that is given again is merged, a list replaced."""
    complete: dict[str, dict[str, Any]] = {}
    for name, tables in workloads.items():
        own = {key: value for key, value in tables.items() if key not in ("like", "shipped")}
        base = complete[tables["like"]] if "like" in tables else {}
        if "shipped" in tables:
            text = shipped_profiles()[tables["shipped"]].read_text("utf-8")
            base = {key: value for key, value in tomli.loads(text).items() if key not in ("schema", "name")}
        complete[name] = _merged(base, own)
    return complete


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    both = {key: _merged(old[key], new[key]) for key in old if key in new and isinstance(new[key], dict)}
    return {**old, **new, **both}


def _tuples(table: dict[str, Any]) -> dict[str, Any]:
    """Lists as tuples, for frozen data."""
    known = {field.name for kind in (Run, Figure) for field in fields(kind)}
    if unknown := set(table) - known:
        raise ValueError(f"unknown keys {sorted(unknown)}")
    return {
        key: tuple(value)
        if isinstance(value, list)
        else {inner: tuple(each) for inner, each in value.items()}
        if isinstance(value, dict)
        else value
        for key, value in table.items()
    }
