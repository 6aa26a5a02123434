"""A service beside its plan: a small table and what to do next, the JSON document, and results for pipelines."""

from collections.abc import Iterator

from kvplan.gate.check import Checked, Origin, Outcome, Problem, Result
from kvplan.gate.drift import DRIFT, Compared, Drift, Verdict
from kvplan.gate.judgement import Judgement
from kvplan.gate.requirement import Key
from kvplan.profile.reading import Profile
from kvplan.report.keys import Record
from kvplan.show import page
from kvplan.show.view import Json, View, fields, header
from kvplan.units import ABSENT, format_number, format_percent, format_seconds, format_tokens

_WORDS = {Verdict.INSIDE: "PASS", Verdict.OUTSIDE: "FAIL", Verdict.OPEN: str(Verdict.OPEN)}
_OF_TRAFFIC = ("input_tokens", "output_tokens", "hit_ratio")
_NEXT = {
    "traffic": "The traffic is not the plan's: kvplan import with the same metrics and --base {profile} writes a "
    "profile of today's, kvplan diff shows what it changes.",
    "itl_s": "Requests get tokens at another pace than planned at this rate.",
    "itl_at_batch_s": "Iterations take another time than the timing says of such batches: kvplan import of a log or a "
    "benchmark measures it anew.",
    "rate_rps": "A replica gets more than it can serve as planned: kvplan plan {profile} --rate finds how many "
    "replicas that takes.",
    "preemptions": "Memory is short: kvplan analyze shows what keeps preemptions rare.",
}


def view(drift: Drift, profile: Profile) -> View:
    """Show a comparison."""
    return View(
        lambda: document(drift, profile),
        lambda _: page.document([_section(drift, profile)], profile.sha256),
        rows=lambda written: written["figures"],
    )


def document(drift: Drift, profile: Profile) -> Json:
    """Return the JSON."""
    return {
        **header(profile),
        "outcome": drift.outcome,
        "metrics": {
            **fields(drift.metrics, "source", "engine", "requests", "seconds"),
            **fields(drift, "replicas", "rate_rps"),
        },
        "needed": {"requests": drift.needed, "seconds": drift.needed_s},
        "figures": [
            {
                **fields(figure, "key", "unit", "planned", "measured", "low", "high", "needed", "verdict"),
                "reason": figure.why or None,
            }
            for figure in drift.figures
        ],
        "notes": list(_notes(drift, profile)),
    }


_COLUMNS: page.Columns[Compared] = {
    page.Column("Result", outcome=True): lambda figure: _WORDS[figure.verdict],
    page.words("Figure"): lambda figure: figure.label,
    page.number("Plan"): lambda figure: _written(figure, figure.planned),
    page.number("Measured"): lambda figure: _written(figure, figure.measured),
    page.Column("Allowed", wraps=True, least=10): lambda figure: _allowed(figure),
}


def _section(drift: Drift, profile: Profile) -> page.Section:
    heading = f"{drift.outcome.value.upper()}  {profile.name} ({profile.source})"
    table = page.tabulate(_COLUMNS, drift.figures)
    return page.section("check", heading, page.Paragraph(_window(drift)), table, notes=_notes(drift, profile))


def _window(drift: Drift) -> str:
    metrics = drift.metrics
    time = "" if metrics.seconds is None else f" in {format_seconds(metrics.seconds)}"
    of = "" if drift.replicas == 1 else f" of {format_number(drift.replicas)} replicas, in the mean"
    return f"{format_tokens(metrics.requests)} requests{time}{of}, by counters of {metrics.engine} in {metrics.source}."


def _notes(drift: Drift, profile: Profile) -> Iterator[str]:
    if drift.is_short:
        time = "" if drift.needed_s is None else f", {format_seconds(drift.needed_s)} at this rate"
        yield f"A drift of {format_percent(DRIFT)} shows in {drift.needed:,} requests{time}."
    open_: dict[str, list[str]] = {}
    for figure in drift.figures:
        if figure.verdict is Verdict.OPEN:
            open_.setdefault(figure.why, []).append(figure.label.lower())
    for why, labels in open_.items():
        yield f"Not judged, {why}: {', '.join(labels)}."
    if drift.metrics.seconds is None:
        yield f"{drift.metrics.rate_from} (--since, --interval)."
    outside = [figure.key for figure in drift.figures if figure.verdict is Verdict.OUTSIDE]
    for key in dict.fromkeys("traffic" if key in _OF_TRAFFIC else key for key in outside):
        yield _NEXT[key].format(profile=profile.source)


def _written(figure: Compared, value: float | None) -> str:
    if value is None:
        return ABSENT
    match figure.unit:
        case "tokens":
            return format_number(value)
        case "%":
            return format_percent(value)
        case unit:
            return page.in_unit(value, "/s" if unit.endswith("/s") else unit, 3)


def _allowed(figure: Compared) -> str:
    ends = [None if end is None else _written(figure, end) for end in (figure.low, figure.high)]
    match ends:
        case [None, None]:
            return ABSENT
        case [None, high]:
            return f"<= {high}"
        case [low, None]:
            return f">= {low}"
    return f"{ends[0]} to {ends[1]}"


def checked(drift: Drift, profile: Profile, file: str | None) -> Checked:
    """Turn it into results for pipelines: one for each judged figure, a problem if the window is too short."""
    judged = [figure for figure in drift.figures if figure.verdict is not Verdict.OPEN]
    problems = _notes(drift, profile) if drift.outcome is Outcome.UNUSABLE else ()
    return Checked(
        profile.source,
        file,
        profile.name,
        profile.sha256,
        tuple(_result(figure) for figure in judged),
        tuple(Problem(note) for note in problems),
    )


def _result(figure: Compared) -> Result:
    return Result(
        Origin.METRICS,
        None,
        figure.label,
        Key(figure.label, ("metrics", figure.key), Record(figure.key, "")),
        _allowed(figure),
        _written(figure, figure.planned),
        None,
        Judgement(_written(figure, figure.measured), None, figure.verdict is Verdict.INSIDE),
    )
