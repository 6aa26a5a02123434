"""Judged profiles: a section each, or an overview of many; and the JSON document."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from kvplan.gate.check import Checked, Origin, Outcome, Result, worst
from kvplan.gate.judgement import is_costly, telling_digits
from kvplan.gate.remedy import MAX_FACTOR, Lever, Remedy
from kvplan.gate.requirement import PLAN_HOLDS
from kvplan.show import page
from kvplan.show.view import Json, View, fields, header
from kvplan.units import ABSENT, format_number, format_percent, format_rate, format_tokens

_FEW = 8  # profiles; of more, those that pass have a line each
_MOST_ROWS, _MOST_NOTES = 12, 5  # of a first screen
_MAX_CHANGES = 8  # of a remedy that are written out
_DRIFTED = "nothing is offered against a drift; kvplan diff of baseline and profile shows what moved"
_SERVED = "measure what has changed with kvplan import, or plan for it with kvplan plan"
_NO_RATE = "no change is tried, for each would take a search; the rate to offer is the goodput itself"
_NOT_KNOWN = (
    "no change of rates, memory or limits makes an input better known; measure it, and say so in [provenance]"
)
_MORE_REPLICAS = (
    "no change is tried; kvplan plan with this profile and --headroom finds how many replicas have it"
)
_NOT_TRIED = (
    "no change is tried on a warm prefix cache; up to prefix_cache.sustainable_rps.guaranteed none is needed"
)
_SEARCHED = {"goodput": _NO_RATE, "headroom": _MORE_REPLICAS}  # by the block of the key
_ASK_PLAN = "kvplan plan with this profile finds how many replicas are enough"
_MORE = "and {} more; --full shows them"
_ON_DEMAND = "--remedies looks for the smallest changes that would pass"
_NONE = (
    "no change was found that makes it pass: neither less traffic, nor up to "
    f"{format_number(MAX_FACTOR)} times the memory or a binding limit"
)


def view(checked: Sequence[Checked]) -> View:
    """Show judged profiles."""
    return View(
        lambda: document(checked),
        lambda full: page.document(build(checked, full=full)),
        rows=lambda written: [row for profile in written["profiles"] for row in profile["requirements"]],
    )


def document(checked: Sequence[Checked]) -> Json:
    """Return the JSON: profiles in order, all requirements of each."""
    return {
        **header(),
        "outcome": worst(checked),
        "profiles": [
            {
                **fields(profile, "name", "source", "sha256", "outcome"),
                "problems": [asdict(problem) for problem in profile.problems],
                "requirements": [_requirement(result) for result in profile.results],
                "mends": [_remedy(remedy) for remedy in profile.remedies],
                "notes": list(profile.notes),
            }
            for profile in checked
        ],
    }


def _requirement(result: Result) -> Json:
    return {
        "requirement": result.text,
        **fields(result, "origin", "line"),
        "key": result.key.text,
        "operator": None if result.requirement is None else result.requirement.symbol,
        "wanted": result.wanted,
        **fields(result.judgement, "got", "margin", "passed"),
        "doubt": result.judgement.doubt or None,
        "mends": [_remedy(remedy) for remedy in result.remedies],
    }


def _remedy(remedy: Remedy) -> Json:
    return {
        **fields(remedy, "lever", "amount"),
        "relative_change": remedy.relative,
        "changes": [fields(change, "key", "before", "after") for change in remedy.changes],
    }


def build(checked: Sequence[Checked], *, full: bool = False) -> list[page.Section]:
    """Build a table of requirements, of several profiles one of outcomes; `full`: of those too, everything."""
    if len(checked) == 1:
        return [_section(checked[0], full)]
    shown = [c for c in checked if len(checked) <= _FEW or c.outcome is not Outcome.PASSED]
    return [_overview(checked, full), *(_section(c, full) for c in shown if full)]


def _overview(checked: Sequence[Checked], full: bool) -> page.Section:
    outcomes = [c.outcome for c in checked]
    counts = ", ".join(f"{outcomes.count(outcome)} {outcome.value}" for outcome in Outcome)
    columns: page.Columns[Checked] = {
        page.Column("Outcome", outcome=True): lambda c: c.outcome.value.upper(),
        page.words("Profile"): lambda c: c.source,
        page.words("What decides"): _decides,
    }
    rows = sorted(checked, key=lambda c: c.outcome is Outcome.PASSED)
    table = page.tabulate(columns, rows, None if full else _MOST_ROWS, _MORE)
    return page.section("check", "Check", page.Paragraph(f"{len(checked)} profiles: {counts}."), table)


def _decides(checked: Checked) -> str:
    """Say in short why a profile passes or does not."""
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
    """Name a profile, and say where it came from."""
    return checked.source if checked.name is None else f"{checked.name} ({checked.source})"


def _section(checked: Checked, full: bool) -> page.Section:
    heading = f"{checked.outcome.value.upper()}  {title(checked)}"
    if checked.problems:
        messages = tuple(problem.message for problem in checked.problems)
        if not full and len(messages) > _MOST_NOTES:
            messages = (*messages[: _MOST_NOTES - 1], f"and {len(messages) - _MOST_NOTES + 1} more")
        return page.section("check", heading, notes=messages)
    results = sorted(checked.results, key=lambda result: result.judgement.passed)
    failed = [r for r in results if not r.judgement.passed]
    remarks = [line for result in failed for line in _remarks(result)]
    demanded = [r for r in failed if r.requirement is not None]
    if len(demanded) > 1 and all(r.tried for r in demanded):
        remarks.append(f"All of them together: {remedies_text(checked.remedies)}.")
    if any(advice_text(r) is _ON_DEMAND for r in failed):
        remarks.append(f"{_ON_DEMAND[0].upper()}{_ON_DEMAND[1:]}.")
    remarks += checked.notes
    table = page.tabulate(_COLUMNS, results, None if full else _MOST_ROWS, _MORE)
    return page.section("check", heading, table, notes=remarks if full else remarks[:_MOST_NOTES])


def failure_text(result: Result) -> str:
    """Say what is wanted, and the value."""
    return f"{result.key.text}: wanted {wanted_text(result)}, got {got_text(result)}"


def wanted_text(result: Result) -> str:
    """Write the requirement, of a drift with the value in the baseline."""
    if result.origin is Origin.BASELINE:
        return f"{_figure(result, result.wanted)} {result.bound}"
    return result.bound


def got_text(result: Result) -> str:
    """Write the report's value, with as many digits as show its side of the bound."""
    got = result.judgement.got
    if isinstance(got, bool | str) or result.requirement is None:
        return _figure(result, got)
    return _figure(result, got, telling_digits(result.requirement, got))


def margin_text(result: Result) -> str:
    """Write the margin, in the unit of the key and as a share of the bound."""
    margin, wanted = result.judgement.margin, result.wanted
    if margin is None:
        return ABSENT
    sign = "+" if margin >= 0 else "-"
    shown = f"{sign}{_figure(result, abs(margin), 3)}"
    if isinstance(wanted, bool | str) or wanted == 0 or result.bound.endswith("%"):
        return shown
    return f"{shown} ({format_percent(margin / abs(wanted), 3, signed=True)})"


_COLUMNS: page.Columns[Result] = {
    page.Column("Result", outcome=True): lambda result: "PASS" if result.judgement.passed else "FAIL",
    page.key_column("Key"): lambda result: result.key.text,
    page.Column("Wanted", wraps=True, least=8): wanted_text,
    page.Column("Got", wraps=True, least=8, outcome=True): got_text,
    page.Column("Margin", right=True, optional=True): margin_text,
}


def _figure(result: Result, value: float | str | bool, digits: int = 4) -> str:
    unit = result.key.unit
    if isinstance(value, bool | str):
        return page.in_unit(value, unit)
    if not unit and result.bound.endswith("%") and result.requirement is not None:
        return format_percent(value, digits)
    shown = page.in_unit(value, unit, digits)
    return shown if unit in ("", "s", "count", "per request") or unit.endswith("/s") else f"{shown} {unit}"


def _remarks(result: Result) -> list[str]:
    """Comment below the table on a requirement that fails."""
    doubt = result.judgement.doubt
    remarks = [f"{result.key.text}: {doubt}, and doubt never passes."] if doubt else []
    advice = advice_text(result)
    return remarks if advice is _ON_DEMAND else [*remarks, f"{result.text}: {advice}."]


def advice_text(result: Result) -> str:
    """Say what to do about a requirement that fails."""
    if result.key.path[0] == "inputs":
        return _NOT_KNOWN
    if result.origin is Origin.METRICS:
        return _SERVED
    if result.key == PLAN_HOLDS:
        return _ASK_PLAN
    if is_costly(result.key):
        return _SEARCHED.get(str(result.key.path[0]), _NOT_TRIED)
    if result.requirement is None:
        return _DRIFTED
    return remedies_text(result.remedies) if result.tried else _ON_DEMAND


def remedies_text(remedies: Sequence[Remedy]) -> str:
    """List the changes that would make it pass, the smallest first."""
    return "; or ".join(map(_remedy_text, remedies)) if remedies else _NONE


def _remedy_text(remedy: Remedy) -> str:
    changes = ", ".join(f"{c.key} = {json.dumps(c.after)}" for c in remedy.changes[:_MAX_CHANGES])
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
