"""Judge whether a report meets a requirement. It is refused, never passed, if it cannot be judged, or null.

A limit of a simulated figure is decided by runs: by the share of requests beyond it, a mean by its interval, with more
runs until there is an answer (`kvplan.study.objectives`).
"""

import operator
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kvplan.analysis.stability import UNCERTIFIED
from kvplan.errors import UsageError
from kvplan.gate.requirement import PLAN_HOLDS, Key, Requirement, Value, quoted
from kvplan.model import ServingModel
from kvplan.model.slo import FIGURES, TIMES
from kvplan.report.assembly import Analyses
from kvplan.report.keys import BLOCKS, Kind
from kvplan.report.ledger import KeyPath, Named, at, parsed, plain
from kvplan.report.words import Status
from kvplan.simulation.estimates import QUANTILES
from kvplan.simulation.policies import engine_settings
from kvplan.study.objectives import Decision, State, decide
from kvplan.study.operating_point import Status as Growth
from kvplan.study.sample import OVER_TIME
from kvplan.units import format_number, format_percent, format_seconds, rounded

_MEANS = (*OVER_TIME, "preemptions_per_request")


class Limit(NamedTuple):
    """An upper bound of a figure."""

    key: str
    bound: float


class Standing(NamedTuple):
    """Verdict on an upper limit of a figure; `value` by the runs that decided, None where the queue grows."""

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
    if latency.status is Growth.GROWING:
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
    """Say how wide the interval is: of a percentile's share beyond the limit, or of a mean."""
    share, width = decision.share, decision.width
    time, _, figure = decision.key.partition(".")
    if figure in QUANTILES:
        ends = f"{format_percent(max(share - width, 0))} to {format_percent(min(share + width, 1))}"
        of = "gaps" if time == "itl_s" else "requests"
        return f"still open, {ends} of {of} exceed the limit where {format_percent(decision.allowed)} may"
    written = format_seconds if figure else format_number
    low, high = (written(decision.limit * max(share + sign * width, 0)) for sign in (-1, 1))
    return f"still open, from {low} to {high}"


_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_LIMITS = ("<", "<=", ">", ">=")
_LEAST_DIGITS = 4  # that are shown


@dataclass(frozen=True, slots=True)
class Judgement:
    """A requirement against a report.

    `margin` is what is to spare, negative where it fails, in the unit of the key; None except for numbers. `doubt` says
    why the number proves nothing, if so; such a requirement never passes.
    """

    got: Value
    margin: float | None
    passed: bool
    doubt: str = ""


class Subject:
    """Report that requirements are about, block by block as asked for.

    With `tries`, trials of the prefix cache are made where asked for, and limits of simulated figures are decided by
    runs that are long enough to tell; without, a trial has no value, and the intervals of the report decide.
    """

    def __init__(self, analyses: Analyses, *, tries: bool = False) -> None:
        self.analyses = analyses
        self.tries = tries
        self._blocks: dict[str, Any] = {}
        self._standings: dict[tuple[KeyPath, float], Standing | None] = {}

    def block(self, name: str) -> Any:
        """Return a block of the report as the contract has it."""
        if name not in self._blocks:
            self._blocks[name] = plain(getattr(self.analyses, name), name)
        return self._blocks[name]

    def value(self, key: Key) -> Value:
        """Return the value of a key, with no more computed than that takes; a UsageError where it has none."""
        if key.record.alone:
            *_, name = key.path
            written = plain(at(self.analyses, parsed(key.record.alone)))
            return value_of(key, lambda _: {name: written})
        if key.path[:2] == ("prefix_cache", "trial") and self.tries:
            return value_of(key, lambda name: plain(self.analyses.tried_prefix_cache, name))
        return value_of(key, self.block)

    def standing(self, key: Key, limit: float) -> Standing | None:
        """Return a simulated figure's verdict on a limit; None if the key is about none."""
        if (key.path, limit) not in self._standings:
            self._standings[key.path, limit] = standing(key, limit, self.analyses, tries=self.tries)
        return self._standings[key.path, limit]

    def doubt(self, key: Key) -> str:
        """Say why the value of a key proves nothing; empty where it does."""
        if not key.record.proof:
            return ""
        if not self.analyses.stability.certified:
            return f"stability is {UNCERTIFIED}"
        proved = at(self.analyses, parsed(key.record.proof))
        return "" if proved else "the value of the spectral radius is not certified"


def is_costly(key: Key) -> bool:
    """Tell whether a key takes so many runs that they are made for itself alone, and not for every remedy."""
    return key.path[:2] == ("prefix_cache", "trial") or key.path in (
        ("goodput", "rate_rps"),
        ("goodput", "users"),
        ("headroom", "ratio"),
        PLAN_HOLDS.path,
    )


def value_of(key: Key, block: Callable[[str], Any]) -> Value:
    """Return the value of a key; `block` gives a block of the report by its name.

    A UsageError where the list has no such entry, the value is null, or not what the contract says.
    """
    first, *rest = key.path
    assert isinstance(first, str)
    value = block(first)
    for part in rest:
        if value is None:
            break
        value = _entry(key, value, part)
    if value is None:
        absent = BLOCKS[first].absent if block(first) is None and first in BLOCKS else key.record.absent
        why = f" ({absent.rstrip('.')})" if absent else ""
        raise UsageError(f"{key.text} is null in this report{why}; nothing can be compared with it")
    if not _is(value, key.kind):
        raise UsageError(f"{key.text} is not {key.kind} in this report")
    return value  # type: ignore[no-any-return]


def _entry(key: Key, value: Any, part: str | int | Named) -> Any:
    if isinstance(part, str):
        if not isinstance(value, dict) or part not in value:
            raise UsageError(f"{key.text} is not in this report")
        return value[part]
    if not isinstance(value, list):
        raise UsageError(f"{key.text} is not a list in this report")
    if isinstance(part, int):
        if part >= len(value):
            raise UsageError(f"{key.text}: the list has {len(value)} entries, counted from 0")
        return value[part]
    names = [item.get("name") if isinstance(item, dict) else None for item in value]
    if part.name not in names:
        there = (
            ", ".join(quoted(str(name)) for name in names[:10] if name is not None) or "entries without names"
        )
        raise UsageError(f"{key.text}: no entry is called {quoted(part.name)}; there are {there}")
    return value[names.index(part.name)]


def _is(value: Any, kind: Kind) -> bool:
    if kind is Kind.TRUTH:
        return isinstance(value, bool)
    if kind is Kind.TEXT:
        return isinstance(value, str)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and -sys.float_info.max <= value <= sys.float_info.max


def judge(requirement: Requirement, subject: Subject) -> Judgement:
    """Judge a report by a requirement; a UsageError where the key has no value in it.

    Examples
    --------
    >>> from kvplan.gate.requirement import parse
    >>> from kvplan.model import Plan, Replica, RequestClass, ServingModel, Timing
    >>> chat = RequestClass("a", 5, (1,), (1.0,), 1.0)
    >>> model = ServingModel((chat,), Timing(1.0), Replica(60))
    >>> subject = Subject(Analyses(model, Plan()))
    >>> judge(parse("load.sustainable_rps >= 12"), subject)
    Judgement(got=10.0, margin=-2.0, passed=False, doubt='')
    """
    wanted = requirement.wanted
    if requirement.key.path == ("verdict", "status") and wanted == Status.OVERLOADED:
        # the load alone tells; which of the other two words it is can take a simulation
        overloaded = subject.analyses.overloaded
        said = str(Status.OVERLOADED) if overloaded else f"not {Status.OVERLOADED}"
        return Judgement(said, None, overloaded == (requirement.symbol == "=="))
    if requirement.key is PLAN_HOLDS:
        return _of_plan(subject.analyses)
    doubt = subject.doubt(requirement.key)
    if doubt and subject.block("stability")[requirement.key.path[-1]] is None:
        return Judgement("uncertified", None, False, doubt)  # null because nothing is proved
    if requirement.symbol in _LIMITS and isinstance(wanted, int | float):
        stands = subject.standing(requirement.key, float(wanted))
        if stands is not None:
            return _by_runs(requirement, stands, float(wanted), subject)
    got = subject.value(requirement.key)
    passed = _COMPARE[requirement.symbol](got, wanted) and not doubt
    if isinstance(got, bool | str) or isinstance(wanted, bool | str):
        return Judgement(got, None, passed, doubt)
    return Judgement(got, _margin(requirement.symbol, got, wanted), passed, doubt)


def _of_plan(analyses: Analyses) -> Judgement:
    """Judge whether the replicas are enough, slower and with headroom, and recover from a burst, by long runs."""
    size, judged = analyses.size, analyses.judged
    replicas = f"{size.replicas} replica{'s' * (size.replicas != 1)}"
    said = f"{judged.state}, {replicas}"
    if judged.missed:
        said = f"misses {', '.join(judged.missed)} with {replicas}"
    doubt = "long runs leave it open" if judged.state is State.OPEN else ""
    return Judgement(said, None, judged.state is State.HOLDS, doubt)


def _by_runs(requirement: Requirement, stands: Standing, wanted: float, subject: Subject) -> Judgement:
    state, symbol = stands.state, requirement.symbol
    passed = state is (State.HOLDS if symbol in ("<", "<=") else State.MISSES)
    if requirement.key.path[0] == "latency" and subject.analyses.latency.status is Growth.GROWING:
        return Judgement(str(Growth.GROWING), None, passed)
    got = subject.value(requirement.key)
    assert not isinstance(got, bool | str)
    margin = _margin(symbol, got, wanted)
    if stands.value is not None and state is not State.OPEN and (margin >= 0) != passed:
        margin = _margin(symbol, stands.value, wanted)  # longer runs than those of the report
    return Judgement(got, margin, passed, stands.doubt)


def _margin(symbol: str, got: float, wanted: float) -> float:
    if symbol in ("<", "<="):
        return wanted - got
    if symbol in (">", ">="):
        return got - wanted
    return -abs(got - wanted) if symbol == "==" else abs(got - wanted)


def holds(requirement: Requirement, subject: Subject) -> bool:
    """Tell whether a requirement is met; not if it cannot be judged."""
    try:
        return judge(requirement, subject).passed
    except UsageError:
        return False


def telling_digits(requirement: Requirement, got: float) -> int:
    """Return the significant digits at which a number, as shown, is on the side of the bound where it is.

    >>> from kvplan.gate.requirement import parse
    >>> telling_digits(parse("worst_cycle.loss >= 0.2"), 0.1999999)
    7
    """
    compare, wanted = _COMPARE[requirement.symbol], requirement.wanted
    verdict = compare(got, wanted)
    return next((d for d in range(_LEAST_DIGITS, 17) if compare(rounded(got, d), wanted) == verdict), 17)
