"""Limits of simulated figures, decided by runs: within, beyond, or open, and how wide that is.

A limit is decided by the share of requests beyond it, a mean by its interval, with more runs until there is an answer
(`kvplan.study.objectives`).
"""

from typing import NamedTuple

from kvplan.gate.requirement import Key
from kvplan.model import ServingModel
from kvplan.model.slo import FIGURES, TIMES
from kvplan.report.assembly import Analyses
from kvplan.report.ledger import Named
from kvplan.simulation.estimates import QUANTILES
from kvplan.simulation.policies import engine_settings
from kvplan.study.objectives import Decision, State, decide
from kvplan.study.operating_point import Status
from kvplan.study.sample import OVER_TIME
from kvplan.units import format_number, format_percent, format_seconds

_MEANS = (*OVER_TIME, "preemptions_per_request")


class Limit(NamedTuple):
    """An upper bound of a figure."""

    key: str
    bound: float


class Standing(NamedTuple):
    """How a figure stands to an upper limit; `value` by the runs that decided, None where the queue grows."""

    state: State
    value: float | None
    doubt: str = ""


def standing(key: Key, limit: float, analyses: Analyses, *, tries: bool) -> Standing | None:
    """Decide a limit of a simulated figure; None where the key is not about one, or it has no value.

    With `tries` by as many runs as it takes, within the budget; without, by the interval of the report.
    """
    figure = _figure_of(key, analyses.whole)
    latency = analyses.latency if figure is not None else None
    if figure is None or latency is None:
        return None
    if latency.status is Status.GROWING:
        return Standing(State.MISSES, None)
    if latency.reason is not None:
        return None
    name, which = figure
    if tries:
        settings = engine_settings(analyses.model)
        [decision] = decide(analyses.whole, analyses.plan, settings, [Limit(name, limit)], which=which)
        doubt = _open_text(decision) if decision.state is State.OPEN else ""
        return None if decision.value is None else Standing(decision.state, decision.value, doubt)
    if which is not None or name not in latency.ci95:
        return None
    low, high = latency.ci95[name]
    state = State.HOLDS if high is not None and high <= limit else State.OPEN
    return Standing(State.MISSES if low > limit else state, None)


def _figure_of(key: Key, model: ServingModel) -> tuple[str, int | None] | None:
    """Return the figure that a key is about, and the class; None where limits are not decided by runs."""
    match key.path:
        case ("latency", str(time), str(figure)) if time in TIMES and figure in FIGURES:
            return f"{time}.{figure}", None
        case ("latency", str(name)) if name in _MEANS:
            return name, None
        case ("latency", "classes", Named(name), str(time), str(figure)) if time in TIMES:
            names = [c.name for c in model.classes]
            return (f"{time}.{figure}", names.index(name)) if name in names else None
        case ("latency", "classes", int(which), str(time), str(figure)) if time in TIMES:
            return (f"{time}.{figure}", which) if which < len(model.classes) else None
    return None


def _open_text(decision: Decision) -> str:
    """Say how wide it is: of a percentile the share beyond the limit, of a mean the mean."""
    share, width = decision.share, decision.width
    time, _, figure = decision.key.partition(".")
    if figure in QUANTILES:
        ends = f"{format_percent(max(share - width, 0))} to {format_percent(min(share + width, 1))}"
        of = "gaps" if time == "itl_s" else "requests"
        return f"still open, {ends} of {of} exceed the limit where {format_percent(decision.allowed)} may"
    written = format_seconds if figure else format_number
    low, high = (written(decision.limit * max(share + sign * width, 0)) for sign in (-1, 1))
    return f"still open, from {low} to {high}"
