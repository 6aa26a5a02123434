"""Published results beside kvplan's, for people and for programs."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from kvplan.layout.document import Block, Bullets, Column, Paragraph, Section, Table
from kvplan.reproduction.experiment import Experiment, Figure, Verdict
from kvplan.reproduction.judge import Compared, Reproduction
from kvplan.units import ABSENT, format_number, format_percent

SCHEMA_VERSION = 1
_DIGITS = 5


def overview(found: Sequence[Reproduction]) -> Section:
    """A line an experiment."""
    rows = [(one.experiment.name, one.experiment.source, _tally(one.compared)) for one in found]
    rows.append(("all", "", _tally([each for one in found for each in one.compared])))
    columns = (Column("Experiment"), Column("Source", wraps=True), Column("Verdicts on figures", wraps=True))
    caption = "What the papers print against what kvplan gets; `kvplan reproduce NAME` shows the figures."
    return Section("reproduction", "Published results", (Paragraph(caption), Table(columns, tuple(rows))))


def _tally(compared: Sequence[Compared]) -> str:
    verdicts = [one.verdict for one in compared]
    return ", ".join(
        f"{verdicts.count(verdict)} {verdict.value}" for verdict in Verdict if verdict in verdicts
    )


def section(found: Reproduction) -> Section:
    """All figures of one experiment."""
    experiment = found.experiment
    blocks: list[Block] = [Paragraph(f"{experiment.source}. {experiment.claim}")]
    if experiment.assumed:
        blocks.append(Paragraph(f"Assumed: {experiment.assumed}"))
    columns = (
        Column("Figure", wraps=True),
        Column("Paper", right=True),
        Column("kvplan", right=True),
        Column("Verdict"),
    )
    blocks.append(Table(columns, tuple(_row(one) for one in found.compared)))
    reasons = (*_reasons(found.compared), *_choices(found))
    if reasons:
        blocks.append(Bullets(reasons))
    return Section(experiment.name, f"{experiment.title} ({experiment.name})", tuple(blocks))


def _row(one: Compared) -> tuple[str, str, str, str]:
    recorded = "" if one.as_recorded else f" (on record: {one.figure.verdict.value})"
    return one.figure.what, _printed(one.figure), _got(one), f"{one.verdict.value}{recorded}"


def _printed(figure: Figure) -> str:
    if figure.printed is not None:
        return f"{_number(figure, figure.printed)}{' derived' if figure.derived else ''}"
    bounds = ((figure.at_least, "at least"), (figure.at_most, "at most"))
    return " and ".join(f"{words} {_number(figure, bound)}" for bound, words in bounds if bound is not None)


def _got(one: Compared) -> str:
    if one.measured is None:
        return ABSENT
    value, low, high = one.measured
    written = _number(one.figure, value)
    if low == high:
        return written
    return f"{written} ± {_number(one.figure, max(value - low, high - value), signed=False)}"


def _number(figure: Figure, value: float, *, signed: bool = True) -> str:
    if figure.over:
        return format_percent(value, signed=signed)
    return format_number(value, _DIGITS if signed else 2)


def _reasons(compared: Sequence[Compared]) -> Iterator[str]:
    """A reason that several figures share is said once, with all their names."""
    by_reason: dict[str, list[str]] = {}
    for one in compared:
        if one.figure.reason:
            by_reason.setdefault(one.figure.reason, []).append(one.figure.what)
    for reason, names in by_reason.items():
        yield f"{'; '.join(names)}: {reason}"


def _choices(found: Reproduction) -> Iterator[str]:
    for name, choice in found.chosen.items():
        yield f"Best of a grid, {name}: {choice}."


def to_document(found: Sequence[Reproduction], version: str) -> dict[str, Any]:
    """The JSON document (schema_version 1)."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kvplan_version": version,
        "experiments": [_plain(one.experiment, one) for one in found],
    }


def _plain(experiment: Experiment, found: Reproduction) -> dict[str, Any]:
    return {
        "name": experiment.name,
        "source": experiment.source,
        "title": experiment.title,
        "claim": experiment.claim,
        "assumed": experiment.assumed or None,
        "verdict": found.verdict.value,
        "workloads": experiment.workloads,
        "runs": [{**asdict(run), "chosen": found.chosen.get(run.name)} for run in experiment.runs],
        "figures": [
            {
                "what": one.figure.what,
                "relative": bool(one.figure.over),
                "printed": one.figure.printed,
                "derived": one.figure.derived,
                "at_least": one.figure.at_least,
                "at_most": one.figure.at_most,
                "value": None if one.measured is None else one.measured.value,
                "ci95": None
                if one.measured is None or one.measured.low == one.measured.high
                else [one.measured.low, one.measured.high],
                "verdict": one.verdict.value,
                "recorded": one.figure.verdict.value,
                "reason": one.figure.reason or None,
            }
            for one in found.compared
        ],
    }
