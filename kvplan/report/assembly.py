"""The report: results of every analysis → the schema_version 2 document that other programs read.

`analyze` collects the frozen results, `to_document` turns them into the JSON contract, key for key. Some results
carry more than the contract names, for text and Markdown only: the blocks of `kvplan.report.keys` say so.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from kvplan.analysis.admission import RateCap
from kvplan.analysis.equilibrium import backlog_growth
from kvplan.analysis.nested import NestedWait
from kvplan.analysis.overflow import SafetyBuffer
from kvplan.analysis.records import Equilibrium, Lever, Load, Saturation
from kvplan.analysis.speculative import Speculative
from kvplan.analysis.stability import Stability
from kvplan.analysis.wait import Wait
from kvplan.analysis.worst_cycle import CycleKind, WorstCycle
from kvplan.model import Plan, ServingModel
from kvplan.model.slo import Slo, promises
from kvplan.report.blocks import CacheBlock, Context, Cost, FleetBlock, LayoutBlock
from kvplan.report.figures import Figures
from kvplan.report.inputs import Inputs, caveat, headroom_range
from kvplan.report.keys import WORDS
from kvplan.report.ledger import Ledger, plain
from kvplan.report.notes import Source, Sources, notes, room
from kvplan.report.verdict import actions, headroom_ends, summary
from kvplan.report.wording import interval
from kvplan.report.words import Basis, Status
from kvplan.simulation.experiments.runner import Progress
from kvplan.study.advice import Advice
from kvplan.study.drain import Drain
from kvplan.study.goodput import Goodput
from kvplan.study.headroom import Headroom
from kvplan.study.operating_point import Latency
from kvplan.units import format_percent, format_seconds
from kvplan.version import __version__

SCHEMA_VERSION = 2
_MUCH_MORE = 1.02  # times the goodput


class ProfileIdentity(NamedTuple):
    """Which profile the report is about."""

    name: str
    sha256: str


class Verdict(NamedTuple):
    """The answer in a word, the limit that binds, a sentence with the numbers, and up to which rate backlogs drain.

    `recovers_settled` is False where the runs that measured that rate were cut short.
    """

    status: Status
    binding: str
    summary: str
    recovers_up_to_rps: float | None
    recovers_settled: bool
    drain: Drain
    backlog_growth_rps: float | None


class Report(NamedTuple):
    """Everything `kvplan analyze` says about a profile; fields in the order of the contract."""

    schema_version: int
    kvplan_version: str
    profile: ProfileIdentity
    verdict: Verdict
    load: Load
    headroom: Headroom | None
    levers: tuple[Lever, Lever]
    equilibrium: Equilibrium
    saturation: Saturation
    worst_cycle: WorstCycle
    stability: Stability
    rate_cap: RateCap
    wait: Wait
    nested_wait: NestedWait
    safety_buffer: SafetyBuffer
    inputs: Inputs
    latency: Latency
    goodput: Goodput | None
    cost: Cost | None
    prefix_cache: CacheBlock | None
    speculative: Speculative | None
    kv_layout: LayoutBlock | None
    context: Context
    fleet: FleetBlock | None
    advice: tuple[Advice, ...]
    sources: dict[str, Source]
    notes: tuple[str, ...]
    actions: tuple[str, ...]
    caveat: str
    room: str
    promised: tuple[Slo, ...]


def analyze(
    model: ServingModel,
    *,
    name: str,
    sha256: str,
    plan: Plan | None = None,
    trial: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Run every analysis on a model; `name` and `sha256` are those of the profile that it was read from.

    `plan` says what Nested WAIT and the safety buffer should guarantee; None takes the defaults of a profile. `trial`
    asks for runs of a warm prefix cache, or of work behind the first class, which take seconds; `progress` is told how
    far they are.

    Examples
    --------
    >>> from kvplan.model import Prefill, Replica, RequestClass, Timing
    >>> requests = RequestClass("tools", 2, (3,), (1.0,), 0.9)
    >>> model = ServingModel((requests,), Timing(1.0), Replica(12, prefill=Prefill.DISAGGREGATED))
    >>> report = analyze(model, name="three tokens", sha256="")
    >>> report.verdict.status, report.verdict.binding, round(report.worst_cycle.loss, 3)
    (<Status.NEEDS_CAP: 'needs_cap'>, 'kv_memory', 0.2)
    """
    known = {"profile": ProfileIdentity(name, sha256)}
    return report_of(Analyses(model, plan or Plan(), known, progress=progress), trial=trial)


class Analyses(Figures):
    """The figures of a model and what is to be said of them: the blocks of a report by their names."""

    schema_version, kvplan_version = SCHEMA_VERSION, __version__
    profile = ProfileIdentity("", "")

    @cached_property
    def verdict(self) -> Verdict:
        rate, settled = self.recovery.rate_rps, self.recovery.settled
        growth = backlog_growth(self.model)
        return Verdict(self.status, self.binding, summary(self), rate, settled, self.drain, growth)

    @cached_property
    def sources(self) -> Mapping[str, Source]:
        """Where the numbers of each block come from."""
        return Sources(self)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Assumptions, and what is not modelled."""
        return notes(self, self.room)

    @cached_property
    def room(self) -> str:
        """How much of the last class fits behind the others."""
        return room(self)

    @cached_property
    def promised(self) -> tuple[Slo, ...]:
        """What classes are promised, where that differs."""
        return promises({c.name: c.priority for c in self.model.classes}, self.plan.slos)

    @cached_property
    def actions(self) -> tuple[str, ...]:
        """Advice, most important first."""
        return actions(self)

    @cached_property
    def caveat(self) -> str:
        """Doubts about inputs, for the first screen; empty where there are none."""
        return caveat(self.model)


def report_of(analyses: Analyses, *, trial: bool = False) -> Report:
    """Collect all blocks of a model's analyses; `trial`: with runs of a warm prefix cache and beside it among them."""
    own: dict[str, Any] = {"sources": dict(analyses.sources)}
    if trial:
        own |= {"prefix_cache": analyses.tried_prefix_cache, "room": (said := room(analyses, tried=True))}
        own |= {"notes": notes(analyses, said, tried=True), "actions": actions(analyses, trial=True)}
    return Report(**{name: own[name] if name in own else getattr(analyses, name) for name in Report._fields})


def to_document(report: Report) -> dict[str, Any]:
    """Write the report as the contract has it: plain dicts, lists, strings, and finite numbers or None.

    Examples
    --------
    >>> import json
    >>> from kvplan.model import Replica, RequestClass, Timing
    >>> requests = RequestClass("a", 5, (1,), (1.0,), 1.0)
    >>> document = to_document(analyze(ServingModel((requests,), Timing(1.0), Replica(60)), name="n", sha256=""))
    >>> document["stability"]["gcd"], document["wait"]["thresholds"]
    (1, [2])
    """
    document = plain(report)
    assert isinstance(document, dict)
    return document


def ledger_of(report: Report) -> Ledger:
    """Return the figures of a report by key, with those that only people are shown."""
    return Ledger(report, dict(_beside(report)))


def _beside(report: Report) -> Iterator[tuple[str, Any]]:
    """Yield what follows from figures of several blocks, or is written for people."""
    lever, latency, buffer = report.levers[0], report.latency, report.safety_buffer
    yield "load.headroom_range", headroom_range(report.load)
    yield "headroom.ends", headroom_ends(report.headroom)
    yield (
        "load.strongest_lever",
        f"{WORDS['lever'][lever.name]} serves {format_percent(lever.gain, signed=True)}",
    )
    cost = report.rate_cap.engine_sustainable_rps / report.load.sustainable_rps - 1
    yield "rate_cap.engine_cost", cost
    wide = (f"{key} {interval(*latency.ci95[key], format_seconds)}" for key in latency.unsettled)
    yield "latency.not_settled", "; ".join(wide) or None
    good = report.goodput
    if good is not None and good.users is None and good.crossing_rps >= _MUCH_MORE * good.rate_rps > 0:
        yield "goodput.for_minutes_rps", good.crossing_rps
    free, used = buffer.watermark_fraction, report.equilibrium.kv_utilization or 0.0
    yield "safety_buffer.fits", free is not None and free + used <= 1
    if report.fleet is not None and report.fleet.split.prefill is not None:
        yield "fleet.split.replicas", f"{report.fleet.split.prefill} + {report.fleet.split.decode}"
    for i, cycle in enumerate(report.worst_cycle.classes):
        if cycle.kind is not None:
            known = Basis.COMPUTED if cycle.kind is CycleKind.PULSE else report.sources["saturation"].kind
            yield f"worst_cycle.classes[{i}].basis", str(known)
