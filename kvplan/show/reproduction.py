"""Published results beside kvplan's: an overview, the figures of each experiment, and the JSON document."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from kvplan.reproduction.experiment import Experiment, Figure, Item, Verdict
from kvplan.reproduction.judge import Compared, Reproduction
from kvplan.show import page
from kvplan.show.view import Json, View, fields, header
from kvplan.units import ABSENT, format_number, format_percent

_DIGITS = 5


def view(reproductions: Sequence[Reproduction], *, detailed: bool) -> View:
    """Show reproductions, a line each or with all their figures."""
    sections = [_section(each) for each in reproductions] if detailed else [_overview(reproductions)]
    return View(lambda: document(reproductions), lambda full: page.document(sections))


def coverage_view(items: Sequence[Item]) -> View:
    """Show which experiments cover what the papers contain."""
    rows = [(item.paper, item.name, ", ".join(item.experiments) or item.reason) for item in items]
    columns = (page.Column("Paper"), page.Column("Item"), page.words("Experiments, or why there is none"))
    covered = sum(1 for item in items if item.experiments)
    caption = f"{covered} of {len(items)} figures, tables, theorems, examples and remarks are covered."
    section = page.section(
        "coverage", "What the papers contain", page.Paragraph(caption), page.table(columns, rows)
    )
    return View(
        lambda: {**header(), "items": [item._asdict() for item in items]},
        lambda full: page.document([section]),
    )


def document(reproductions: Sequence[Reproduction]) -> Json:
    """Return the JSON: experiments, what papers print, and what kvplan gets."""
    return {**header(), "experiments": [_experiment(each) for each in reproductions]}


def _experiment(judged: Reproduction) -> Json:
    experiment = judged.experiment
    return {
        **fields(experiment, "name", "source", "title", "claim"),
        "assumed": experiment.assumed or None,
        "solved": experiment.solved or None,
        "given": experiment.given,
        "covers": experiment.covers,
        "verdict": judged.verdict,
        "workloads": experiment.workloads,
        "runs": [{**asdict(run), "chosen": judged.chosen.get(run.name)} for run in experiment.runs],
        "figures": [_compared(each) for each in judged.compared],
    }


def _compared(compared: Compared) -> Json:
    figure, measured = compared.figure, compared.measured
    exact = measured is None or measured.low == measured.high
    return {
        "what": figure.what,
        "relative": bool(figure.over),
        "printed": figure.target,
        **fields(figure, "derived", "at_least", "at_most"),
        "allowed": None if figure.printed is None else figure.allowed,
        "width": figure.width or None,
        "value": measured and measured.value,
        "ci95": None if exact or measured is None else [measured.low, measured.high],
        "verdict": compared.verdict,
        "recorded": figure.verdict,
        "reason": figure.reason or None,
    }


def _overview(reproductions: Sequence[Reproduction]) -> page.Section:
    rows = [(each.experiment.name, each.experiment.source, _tally(each.compared)) for each in reproductions]
    groups: dict[str, list[Compared]] = {}
    for each in reproductions:
        groups.setdefault(_footing(each.experiment), []).extend(each.compared)
    rows += [(name, "", _tally(groups[name])) for name in sorted(groups)]
    columns = (page.Column("Experiment"), page.words("Source"), page.words("Verdicts on figures"))
    caption = "What the papers print against what kvplan gets; `kvplan reproduce NAME` shows the figures."
    return page.section(
        "reproduction", "Published results", page.Paragraph(caption), page.table(columns, rows)
    )


def _footing(experiment: Experiment) -> str:
    """Say how much agreement proves."""
    if experiment.solved:
        return "with parameters solved from the print"
    return "all" if experiment.given else "with sizes that were chosen"


def _tally(compared: Sequence[Compared]) -> str:
    verdicts = [each.verdict for each in compared]
    return ", ".join(
        f"{verdicts.count(verdict)} {verdict.value}" for verdict in Verdict if verdict in verdicts
    )


def _section(judged: Reproduction) -> page.Section:
    experiment = judged.experiment
    said = (("Assumed", experiment.assumed), ("Solved from the print", experiment.solved))
    assumed = [page.Paragraph(f"{word}: {text}") for word, text in said if text]
    return page.section(
        experiment.name,
        f"{experiment.title} ({experiment.name})",
        page.Paragraph(f"{experiment.source}. {experiment.claim}"),
        *assumed,
        page.tabulate(_COLUMNS, judged.compared),
        notes=(*_reasons(judged.compared), *_choices(judged)),
    )


def _verdict(compared: Compared) -> str:
    recorded = "" if compared.as_recorded else f" (on record: {compared.figure.verdict.value})"
    return f"{compared.verdict.value}{recorded}"


def _printed(compared: Compared) -> str:
    figure = compared.figure
    if figure.printed is not None:
        return f"{figure.printed}{' derived' if figure.derived else ''}"
    bounds = ((figure.at_least, "at least"), (figure.at_most, "at most"))
    return " and ".join(f"{words} {_number(figure, bound)}" for bound, words in bounds if bound is not None)


def _measured(compared: Compared) -> str:
    if compared.measured is None:
        return ABSENT
    value, low, high = compared.measured
    written = _number(compared.figure, value)
    if low == high:
        return written
    return f"{written} ± {_number(compared.figure, max(value - low, high - value), signed=False)}"


_COLUMNS: page.Columns[Compared] = {
    page.words("Figure"): lambda compared: compared.figure.what,
    page.number("Paper"): _printed,
    page.number("kvplan"): _measured,
    page.Column("Verdict"): _verdict,
}


def _number(figure: Figure, value: float, *, signed: bool = True) -> str:
    if figure.over:
        return format_percent(value, signed=signed)
    return format_number(value, _DIGITS if signed else 2)


def _reasons(compared: Sequence[Compared]) -> Iterator[str]:
    """Give each reason once, with the names of all figures that share it."""
    by_reason: dict[str, list[str]] = {}
    for each in compared:
        for reason in filter(
            None, (each.figure.reason, each.figure.width and f"tolerance: {each.figure.width}")
        ):
            by_reason.setdefault(reason, []).append(each.figure.what)
    for reason, names in by_reason.items():
        yield f"{'; '.join(names)}: {reason}"


def _choices(judged: Reproduction) -> Iterator[str]:
    for name, choice in judged.chosen.items():
        yield f"Best of a grid, {name}: {choice}."
