"""Judged profiles for people and programs: a section each, and the JSON document."""

from collections.abc import Sequence

from kvplan.gate.check import Checked, Origin, Outcome, Result
from kvplan.gate.judgement import is_costly, telling_digits
from kvplan.gate.remedy import MAX_FACTOR, Lever, Remedy
from kvplan.gate.requirement import PLAN_HOLDS
from kvplan.show.elements import Block, Bullets, Column, Paragraph, Section, Table, table, words
from kvplan.units import ABSENT, format_number, format_percent, format_rate, format_seconds, format_tokens

_FEW = 8  # profiles; of more, those that pass have a line each
_MOST_ROWS, _MOST_NOTES = 12, 5  # of a first screen
_MAX_CHANGES = 8  # of a remedy that are written out
_DRIFTED = "nothing is offered against a drift; kvplan diff of baseline and profile shows what moved"
_NO_RATE = "no change is tried, for each would take a search; the rate to offer is the goodput itself"
_NOT_KNOWN = (
    "no change of rates, memory or limits makes an input better known; measure it, and say so in [provenance]"
)
_NOT_TRIED = (
    "no change is tried on a warm prefix cache; up to prefix_cache.sustainable_rps.guaranteed none is needed"
)
_ASK_PLAN = "kvplan plan with this profile finds how many replicas are enough"
_ON_DEMAND = "--remedies looks for the smallest changes that would pass"
_NONE = (
    "no change was found that makes it pass: neither less traffic, nor up to "
    f"{format_number(MAX_FACTOR)} times the memory or a binding limit"
)


def build(checked: Sequence[Checked], *, full: bool = False) -> list[Section]:
    """Build a table of requirements, of several profiles one of outcomes; `full`: of those too, all that is known."""
    if len(checked) == 1:
        return [_section(checked[0], full)]
    shown = [one for one in checked if len(checked) <= _FEW or one.outcome is not Outcome.PASSED]
    return [_overview(checked, full), *(_section(one, full) for one in shown if full)]


def _overview(checked: Sequence[Checked], full: bool) -> Section:
    counts = ", ".join(
        f"{sum(one.outcome is outcome for one in checked)} {outcome.value}" for outcome in Outcome
    )
    rows = [
        (one.outcome.value.upper(), one.source, _decides(one))
        for one in sorted(checked, key=lambda one: one.outcome is Outcome.PASSED)
    ]
    columns = (Column("Outcome", outcome=True), words("Profile"), words("What decides"))
    most = None if full else _MOST_ROWS
    blocks = (
        Paragraph(f"{len(checked)} profiles: {counts}."),
        table(columns, rows, most, "and {} more; --full shows them"),
    )
    return Section("check", "Check", blocks)


def _decides(checked: Checked) -> str:
    """In short, why a profile passes or does not."""
    if checked.problems:
        first = checked.problems[0]
        place = f"{checked.source}: " if first.line is None else f"{checked.source}:{first.line}: "
        return first.message.removeprefix(place).partition(";")[0]
    failed = [result for result in checked.results if not result.judgement.passed]
    if not failed:
        return f"all {len(checked.results)} met" if len(checked.results) > 1 else checked.results[0].text
    more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    return f"{failed[0].key.text} {got_text(failed[0])}, not {wanted_text(failed[0])}{more}"


def title(checked: Checked) -> str:
    """What a profile is called: its name, and where it came from."""
    return checked.source if checked.name is None else f"{checked.name} ({checked.source})"


def _section(checked: Checked, full: bool) -> Section:
    heading = f"{checked.outcome.value.upper()}  {title(checked)}"
    if checked.problems:
        said = tuple(problem.message for problem in checked.problems)
        if not full and len(said) > _MOST_NOTES:
            said = (*said[: _MOST_NOTES - 1], f"and {len(said) - _MOST_NOTES + 1} more")
        return Section("check", heading, (Bullets(said),))
    results = sorted(checked.results, key=lambda result: result.judgement.passed)
    failed = [r for r in results if not r.judgement.passed]
    remarks = [line for result in failed for line in _remarks(result)]
    demanded = [r for r in failed if r.requirement is not None]
    if len(demanded) > 1 and all(r.tried for r in demanded):
        remarks.append(f"All of them together: {remedies_text(checked.remedies)}.")
    if any(advice_text(r) is _ON_DEMAND for r in failed):
        remarks.append(f"{_ON_DEMAND[0].upper()}{_ON_DEMAND[1:]}.")
    said = (*remarks, *checked.notes)
    blocks: list[Block] = [_table(results, None if full else _MOST_ROWS)]
    if said:
        blocks.append(Bullets(said if full else said[:_MOST_NOTES]))
    return Section("check", heading, tuple(blocks))


def _table(results: Sequence[Result], most: int | None) -> Table:
    columns = (
        Column("Result", outcome=True),
        key_column("Key"),
        Column("Wanted", wraps=True, least=8),
        Column("Got", wraps=True, least=8, outcome=True),
        Column("Margin", right=True, optional=True),
    )
    return table(columns, map(_row, results), most, "and {} more; --full shows them")


def key_column(name: str) -> Column:
    """A column of keys of the report, which wrap at their dots where space is short."""
    return Column(name, wraps=True, least=12, dotted=True)


def _row(result: Result) -> tuple[str, ...]:
    return (
        "PASS" if result.judgement.passed else "FAIL",
        result.key.text,
        wanted_text(result),
        got_text(result),
        margin_text(result),
    )


def wanted_text(result: Result) -> str:
    """What is wanted, as written; of a drift the value in the baseline too."""
    if result.origin is Origin.BASELINE:
        return f"{_figure(result, result.wanted)} {result.bound}"
    return result.bound


def got_text(result: Result) -> str:
    """What the report has, with as many digits as show on which side of the bound it is."""
    got = result.judgement.got
    if isinstance(got, bool | str) or result.requirement is None:
        return _figure(result, got)
    return _figure(result, got, telling_digits(result.requirement, got))


def margin_text(result: Result) -> str:
    """What is to spare, in the unit of the key and as a share of what is wanted."""
    margin, wanted = result.judgement.margin, result.wanted
    if margin is None:
        return ABSENT
    sign = "+" if margin >= 0 else "-"
    shown = f"{sign}{_figure(result, abs(margin), 3)}"
    if isinstance(wanted, bool | str) or wanted == 0 or result.bound.endswith("%"):
        return shown
    return f"{shown} ({format_percent(margin / abs(wanted), 3, signed=True)})"


def _figure(result: Result, value: float | str | bool, digits: int = 4) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    match result.key.unit:
        case "s":
            return format_seconds(value, digits)
        case "" if result.bound.endswith("%") and result.requirement is not None:
            return format_percent(value, digits)
        case "" | "count" | "per request":
            return format_number(value, digits)
        case unit if unit.endswith("/s"):
            return format_rate(value, unit.removesuffix("/s"), digits)
        case unit:
            return f"{format_number(value, digits)} {unit}"


def _remarks(result: Result) -> list[str]:
    """What stands below the table about a requirement that fails."""
    doubt = result.judgement.doubt
    remarks = [f"{result.key.text}: {doubt}, and doubt never passes."] if doubt else []
    advice = advice_text(result)
    return remarks if advice is _ON_DEMAND else [*remarks, f"{result.text}: {advice}."]


def advice_text(result: Result) -> str:
    """What is said to do about a requirement that fails."""
    if result.key.path[0] == "inputs":
        return _NOT_KNOWN
    if result.key == PLAN_HOLDS:
        return _ASK_PLAN
    if is_costly(result.key):
        return _NO_RATE if result.key.path[0] == "goodput" else _NOT_TRIED
    if result.requirement is None:
        return _DRIFTED
    return remedies_text(result.remedies) if result.tried else _ON_DEMAND


def remedies_text(remedies: Sequence[Remedy]) -> str:
    """The smallest changes that would make it pass, the smallest first."""
    return "; or ".join(map(_remedy_text, remedies)) if remedies else _NONE


def _remedy_text(remedy: Remedy) -> str:
    changes = ", ".join(f"{c.key} = {_toml(c.after)}" for c in remedy.changes[:_MAX_CHANGES])
    more = ", …" if len(remedy.changes) > _MAX_CHANGES else ""
    change = format_percent(remedy.relative)
    match remedy.lever:
        case Lever.RATE:
            return f"rate down {change} to {format_rate(remedy.amount, 'requests')} ({changes}{more})"
        case Lever.MEMORY:
            return f"memory up {change} to {format_tokens(remedy.amount)} tokens ({changes}{more})"
        case Lever.REPLICAS:
            return f"{remedy.amount:.0f} replicas in place of one ({changes}{more} each)"
        case Lever.MAX_NUM_SEQS | Lever.MAX_NUM_BATCHED_TOKENS:
            direction = "up" if all(remedy.amount > float(c.before) for c in remedy.changes) else "down"
            return f"{remedy.lever.value} {direction} {change} to {format_tokens(remedy.amount)} ({changes}{more})"


def _toml(value: float | int | str) -> str:
    return f'"{value}"' if isinstance(value, str) else f"{value}"
