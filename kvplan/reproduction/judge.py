"""Judge what is printed by what kvplan gets."""

import math
from collections.abc import Mapping, Sequence
from statistics import stdev
from typing import Any, NamedTuple

from kvplan.reproduction.experiment import Experiment, Figure, Verdict
from kvplan.simulation.estimates import t_quantile

_FLOOR = 0.25  # of a printed change: what is less is another effect
_ROUNDING = 1e-9  # of floating-point sums
_ORDER = (
    Verdict.REPRODUCED,
    Verdict.SAME_DIRECTION,
    Verdict.NOT_DETERMINABLE,
    Verdict.REFUTED_AS_CHOSEN,
    Verdict.REFUTED,
)


class Measured(NamedTuple):
    """A value with its 95 % confidence interval, which has no width where nothing is simulated."""

    value: float
    low: float
    high: float


class Compared(NamedTuple):
    """A figure, what came out for it (None where it is not determinable), and the verdict."""

    figure: Figure
    measured: Measured | None
    verdict: Verdict

    @property
    def as_recorded(self) -> bool:
        """True where the verdict is the one on record."""
        return self.verdict is self.figure.verdict


class Reproduction(NamedTuple):
    """An experiment and all its figures; `chosen` has the best values of the grids that were searched, by run."""

    experiment: Experiment
    compared: tuple[Compared, ...]
    chosen: Mapping[str, str]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of its figures."""
        return max((figure.verdict for figure in self.compared), key=_ORDER.index)


def reproduction(experiment: Experiment, documents: Mapping[str, Mapping[str, Any]]) -> Reproduction:
    """Judge all figures of an experiment by the documents of its runs."""
    compared = tuple(_compared(figure, documents, experiment.given) for figure in experiment.figures)
    searched = {run.name: documents[run.name] for run in experiment.runs if run.grid}
    return Reproduction(experiment, compared, {name: _choice(result) for name, result in searched.items()})


def _choice(result: Mapping[str, Any]) -> str:
    hung = f" (livelock at {'; '.join(result['livelock'])})" if result["livelock"] else ""
    return f"{result['chosen']}{hung}"


def _compared(figure: Figure, documents: Mapping[str, Mapping[str, Any]], given: bool) -> Compared:
    if not figure.of:
        return Compared(figure, None, Verdict.NOT_DETERMINABLE)
    of, over = ([_at(path, documents) for path in paths] for paths in (figure.of, figure.over))
    measurement = measured(of, over)
    verdict = judged(figure, measurement)
    if verdict is Verdict.REFUTED and not given:
        verdict = Verdict.REFUTED_AS_CHOSEN
    return Compared(figure, measurement, verdict)


def judged(figure: Figure, measurement: Measured) -> Verdict:
    """Return the verdict on a measured value, which its whole interval decides.

    A printed value is reproduced if no value of the interval is further from it than is allowed, refuted if all are;
    a change that is refuted or left open is of the same direction if the whole interval has the printed sign and the
    value is a quarter of the printed one at least. Where chance decides, nothing is determinable.

    >>> gain = Figure(what="", verdict=Verdict.REPRODUCED, of=("a.x",), over=("b.x",), printed="20%")
    >>> [judged(gain, Measured(v, v - 0.002, v + 0.002)).value for v in (0.201, 0.1, 0.03)]
    ['reproduced', 'same direction', 'refuted']
    >>> more = Figure(what="", verdict=Verdict.REPRODUCED, of=("a.x",), over=("b.x",), at_least=0.0)
    >>> [judged(more, Measured(v, v - 0.01, v + 0.01)).value for v in (0.02, 0.005, -0.02)]
    ['reproduced', 'not determinable', 'refuted']
    """
    least = -math.inf if figure.at_least is None else figure.at_least
    most = math.inf if figure.at_most is None else figure.at_most
    target = figure.target
    if target is not None:
        width = figure.allowed + _ROUNDING * (1 + abs(target))
        least, most = target - width, target + width
    if least <= measurement.low and measurement.high <= most:
        return Verdict.REPRODUCED
    if figure.over and target is not None:
        signed = sorted(math.copysign(1, target) * part for part in measurement)
        if signed[0] > 0 and math.copysign(1, target) * measurement.value >= _FLOOR * abs(target):
            return Verdict.SAME_DIRECTION
    apart = measurement.high < least or measurement.low > most
    return Verdict.REFUTED if apart else Verdict.NOT_DETERMINABLE


Place = tuple[Mapping[str, Any], str]  # a document, and a key of it


def measured(of: Sequence[Place], over: Sequence[Place] = ()) -> Measured:
    """Return the mean of figures, or its relative change over that of others.

    Simulations of several seeds are compared seed by seed, with Student's interval; of one seed, its own interval
    counts, and for a change any two values of both intervals.

    >>> one, two = ({"seeds": [{"x": a}, {"x": b}]} for a, b in ((11.0, 22.0), (10.0, 20.0)))
    >>> measured([(one, "x")], [(two, "x")]).value
    0.1
    """
    seeds = max(len(document.get("seeds", ())) for document, _ in (*of, *over))
    if seeds > 1:
        each = [_mean(of, seed).value for seed in range(seeds)]
        if over:
            each = [value / _mean(over, seed).value - 1 for seed, value in enumerate(each)]
        mean, half = math.fsum(each) / seeds, t_quantile(seeds - 1) * stdev(each) / math.sqrt(seeds)
        return Measured(*(round(part, 12) for part in (mean, mean - half, mean + half)))
    return relative_change(_mean(of, 0), _mean(over, 0)) if over else _mean(of, 0)


def relative_change(of: Measured, over: Measured) -> Measured:
    """Return by how much one exceeds the other, of positive values; the interval allows for any two values of theirs.

    >>> relative_change(Measured(12.0, 11.0, 13.0), Measured(10.0, 10.0, 10.0)).low
    0.1
    """
    low = of.low / over.high - 1 if over.high > 0 else -1.0
    high = of.high / over.low - 1 if over.low > 0 else math.inf
    return Measured(round(of.value / over.value - 1, 12), round(low, 12), round(high, 12))


def _at(path: str, documents: Mapping[str, Mapping[str, Any]]) -> Place:
    run, _, key = path.partition(".")
    return documents[run], key


def _mean(places: Sequence[Place], seed: int) -> Measured:
    values = [_of_seed(document, key, seed) for document, key in places]
    return Measured(*(sum(part) / len(values) for part in zip(*values, strict=True)))


def _of_seed(document: Mapping[str, Any], key: str, seed: int) -> Measured:
    """Return a figure of one seed; without chance it is the same for all."""
    if "seeds" in document:
        document = document["seeds"][seed if len(document["seeds"]) > 1 else 0]
    value = value_at(document, key)
    if value is None:
        raise ValueError(f"{key}: there is no such figure")
    interval = document.get("ci95", {}).get(key)
    return Measured(value, *(interval or (value, value)))


def value_at(document: Any, key: str) -> float | None:
    """Return the number at a key of a document, or at names and positions with dots between; None where it is null.

    >>> value_at({"wait": {"thresholds": [3, 5]}}, "wait.thresholds.-1")
    5.0
    """
    whole = isinstance(document, Mapping) and key in document
    for part in [key] if whole else key.split("."):
        if isinstance(document, Mapping):
            document = document[part]
        else:
            document = document[int(part)] if part.lstrip("-").isdigit() else getattr(document, part)
    return None if document is None else float(document)
