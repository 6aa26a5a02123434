"""A profile at its own rates: tables, CSV, and the JSON document."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from kvplan.profile.reading import Profile
from kvplan.report.keys import SCREENS, SIMULATION
from kvplan.report.ledger import plain
from kvplan.report.words import Basis
from kvplan.show import page
from kvplan.show.chart import Chart
from kvplan.show.simulation import arrivals, interval_of, written_as
from kvplan.show.view import Json, View, csv_text, header
from kvplan.simulation.estimates import FIGURES
from kvplan.simulation.experiments.load import Load
from kvplan.simulation.experiments.runner import Job, scenarios
from kvplan.simulation.policies import engine_settings
from kvplan.study.operating_point import OperatingPoint, as_run
from kvplan.study.windows import LATENCIES
from kvplan.units import format_number, format_seconds

Interval = tuple[float, float | None] | None
Figures = Mapping[str, tuple[float, Interval]]

_OF_FLEET = {"running": " in all", "waiting": " in all", "kv_tokens.mean": " a replica"}
_WIDE = 0.1  # half an interval that is shown, as a share of the value


def view(point: OperatingPoint, profile: Profile) -> View:
    """Show a profile at its own rates."""

    def draw() -> Sequence[Chart]:
        from kvplan.show.charts import of_profile

        return of_profile(profile.model, profile.plan)

    return View(
        lambda: document(point, profile),
        lambda full: page.document([_section(point, profile, full)], profile.sha256),
        draw,
        csv=lambda: _csv(point),
    )


def document(point: OperatingPoint, profile: Profile) -> Json:
    """Return the JSON, the one policy as in that of a study; `runs` were made in all."""
    latency = plain(point.latency)
    del latency["kv_tokens_mean"]
    values = {key: value for key, value, _ in point.figures()}
    intervals = {key: list(interval) for key, _, interval in point.figures() if interval is not None}
    policy = {
        "policy": point.policy,
        "parameters": _parameters(profile) if point.runs else {},
        "throughput_rps": point.served and point.served.value,
        "iteration_time_s": point.iteration_s and point.iteration_s.value,
        **latency,
        "kv_tokens": {"mean": values.get("kv_tokens.mean")},
        "ci95": intervals,
    }
    return {
        **header(profile),
        "arrivals": {"kind": point.arrivals, "requests": point.requests, "horizon_s": None},
        "runs": point.runs,
        "policies": [policy],
    }


def _parameters(profile: Profile) -> dict[str, object]:
    """Return the engine's parameters as run, defaults filled in."""
    model = as_run(profile.model)
    (scenario,) = scenarios(model, profile.plan, Load(requests=1), [0])
    return Job(engine_settings(model), scenario).parameters()


def _csv(point: OperatingPoint) -> str:
    rows = (
        (point.policy, key, value, *(interval or (None, None))) for key, value, interval in point.figures()
    )
    return csv_text(("policy", "figure", "value", "ci95_low", "ci95_high"), rows)


def _section(point: OperatingPoint, profile: Profile, full: bool) -> page.Section:
    """Build the figures, intervals where they are wide; `full`: every figure with its 95 % interval."""
    blocks = _blocks(point, Load().on(profile.model), full)
    return page.Section(
        "operating_point", f"{profile.name}: at its own rates", tuple(blocks), Basis.SIMULATED
    )


def _blocks(point: OperatingPoint, load: Load, full: bool) -> Iterator[page.Block]:
    latency = point.latency
    if point.runs == 0:
        yield page.Paragraph(f"Nothing was run: {latency.reason}.")
        return
    queue = "steady, but some figures are not settled" if latency.unsettled else latency.status
    yield page.Paragraph(
        f"Policy {point.policy}, {arrivals(load)}, {format_number(point.requests)} requests in {point.runs} "
        f"run{'s' * (point.runs != 1)} after a warm-up; the queue is {queue}."
    )
    if latency.reason is not None:
        yield page.Paragraph(f"No latencies: {latency.reason}.")
    figures = {key: (value, interval) for key, value, interval in point.figures() if value is not None}
    if full:
        named = {key: key + " (not settled)" * (key in latency.unsettled) for key in figures}
        rows = [
            (named[k], written_as(k, value), interval_of(k, ends)) for k, (value, ends) in figures.items()
        ]
        yield page.table((page.words("Figure"), page.number("Value"), page.number("95 % interval")), rows)
    else:
        yield from _first(figures, latency.unsettled, fleet=point.replicas > 1)
    if latency.cliffs:
        cliffs = (f"{c.key} {format_seconds(c.low_s)} to {format_seconds(c.high_s)}" for c in latency.cliffs)
        yield page.Paragraph(f"On a cliff: {', '.join(cliffs)}.")


def _first(figures: Figures, unsettled: Collection[str], *, fleet: bool) -> Iterator[page.Block]:
    times = [
        (
            time.removesuffix("_s").upper(),
            *(format_seconds(figures[f"{time}.{figure}"][0]) for figure in FIGURES),
        )
        for time in LATENCIES
        if f"{time}.mean" in figures
    ]
    if times:
        yield page.table((page.Column(""), *map(page.number, FIGURES)), times)
    keys = [key for key in SCREENS["own_rates"].split() if key in figures]
    means = {
        SIMULATION[key][0] + _OF_FLEET.get(key, "") * fleet: written_as(key, figures[key][0], 3)
        for key in keys
    }
    if means:
        yield page.table(map(page.number, means), [tuple(means.values())])
    wide = [
        f"{key} {interval_of(key, interval)}{' (not settled)' * (key in unsettled)}"
        for key, (value, interval) in figures.items()
        if interval is not None
        and "_s." in key
        and (interval[1] is None or interval[1] - interval[0] > 2 * _WIDE * value)
    ]
    if wide:
        yield page.Paragraph(f"Wide 95% intervals: {', '.join(wide)}.")
