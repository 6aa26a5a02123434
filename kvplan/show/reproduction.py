"""Published results beside kvplan's, for people and for programs."""

from collections.abc import Iterator, Sequence

from kvplan.reproduction.experiment import Figure, Verdict
from kvplan.reproduction.judge import Compared, Reproduction
from kvplan.show.elements import Block, Bullets, Column, Paragraph, Section, number, table, words
from kvplan.units import ABSENT, format_number, format_percent

_DIGITS = 5


def overview(found: Sequence[Reproduction]) -> list[Section]:
    """A line an experiment."""
    rows = [(one.experiment.name, one.experiment.source, _tally(one.compared)) for one in found]
    rows.append(("all", "", _tally([each for one in found for each in one.compared])))
    columns = (Column("Experiment"), words("Source"), words("Verdicts on figures"))
    caption = "What the papers print against what kvplan gets; `kvplan reproduce NAME` shows the figures."
    return [Section("reproduction", "Published results", (Paragraph(caption), table(columns, rows)))]


def _tally(compared: Sequence[Compared]) -> str:
    verdicts = [one.verdict for one in compared]
    return ", ".join(
        f"{verdicts.count(verdict)} {verdict.value}" for verdict in Verdict if verdict in verdicts
    )


def build(found: Sequence[Reproduction]) -> list[Section]:
    """All figures of each experiment."""
    return [_section(one) for one in found]


def _section(found: Reproduction) -> Section:
    experiment = found.experiment
    blocks: list[Block] = [Paragraph(f"{experiment.source}. {experiment.claim}")]
    if experiment.assumed:
        blocks.append(Paragraph(f"Assumed: {experiment.assumed}"))
    columns = (
        words("Figure"),
        number("Paper"),
        number("kvplan"),
        Column("Verdict"),
    )
    blocks.append(table(columns, map(_row, found.compared)))
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
