"""Policies side by side, a column each: tables, CSV, and the JSON document."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from kvplan.model import FloatArray
from kvplan.profile.reading import Profile
from kvplan.report.keys import SCREENS, SIMULATION
from kvplan.report.ledger import Ledger
from kvplan.report.study_notes import needed, notes
from kvplan.report.wording import interval, sentence
from kvplan.show import page
from kvplan.show.chart import COLOURS, Axis, Chart, Line, peaks, time_axis
from kvplan.show.view import Json, View, csv_text, fields, header
from kvplan.simulation.experiments import grid
from kvplan.simulation.experiments.hindsight_bound import StudyBound, as_engines
from kvplan.simulation.experiments.load import Load
from kvplan.simulation.experiments.options import written
from kvplan.simulation.experiments.study import Study, plain, record
from kvplan.simulation.metrics import MORE_IS_BETTER, PolicyResult, RunStatus
from kvplan.simulation.outcome import Ending
from kvplan.simulation.policies import POLICIES
from kvplan.units import ABSENT, format_number, format_percent, format_seconds, format_tokens

_MOST_VARIANTS, _NAMED, _FAR = 20, 5, 50.0  # of a first screen, of livelocks; ends of a logarithmic axis
_STYLES = ("solid", "dashed", "dotted")
_SERIES = ("time_s", "kv_tokens", "waiting", "running", "evictions", "completions")
_MOST_ROWS, _MOST_NOTES = 10, 5
_ALIKE, _WIDE = 0.01, 0.1  # relative: what makes no difference, and half an interval that is shown


def view(study: Study, profile: Profile, bounds: Sequence[StudyBound] = ()) -> View:
    """Show a study of a profile; `bounds` are on all policies."""
    search = grid.search(study) if study.is_grid else None
    return View(
        lambda: document(study, profile, bounds, search),
        lambda full: page.document([build(study, profile.name, bounds, search, full=full)], profile.sha256),
        lambda: charts(study, profile.model.replica.capacity_tokens, search),
        lambda written: [{key: each[key] for key in each if key != "ci95"} for each in written["policies"]],
        lambda: figures_csv(study),
    )


def document(
    study: Study, profile: Profile, bounds: Sequence[StudyBound] = (), search: grid.Search | None = None
) -> Json:
    """Return the JSON."""
    load = study.load
    arrivals: Json = {"kind": load.name, "requests": study.requests, "horizon_s": load.horizon_s}
    if study.scheduled is not None:
        arrivals["scheduled"] = study.scheduled
    if load.at_start:
        arrivals["backlog"] = True
    if arrivals["kind"] == "gamma":
        arrivals["cv"] = load.cv
    if load.trace is not None:
        arrivals["stretch"] = load.stretch
    written = {**header(profile), "arrivals": arrivals, "seeds": list(study.seeds)}
    if study.interrupted:
        written["interrupted"] = True
    if search is not None:
        written["grid"] = plain(search._asdict())
    commented = study if search is None else grid.leading(study, search.figure)
    written |= {
        "policies": [plain(record(result)) for result in study.results],
        "notes": list(notes(commented)),
    }
    if bounds:
        written["hindsight"] = {bound.figure: fields(bound, "bound", "proven", "gap") for bound in bounds}
    return written


def figures_csv(study: Study) -> str:
    """Write a line for each policy and figure: value and 95 % confidence interval, empty where there is none."""
    rows = (
        (result.policy, key, result.figures[key], *(interval or (None, None)))
        for result in study.results
        for key, interval in result.ci95.items()
    )
    return csv_text(("policy", "figure", "value", "ci95_low", "ci95_high"), rows)


def series_csv(study: Study) -> str:
    """Write the state over time of the first seed; with cached tokens where a policy keeps prefixes."""
    caches = any(run.found is not None for run in study.first)
    rows: list[tuple[object, ...]] = []
    for result, run in zip(study.results, study.first, strict=True):
        columns = [getattr(run.series, name).tolist() for name in _SERIES]
        if caches:
            cached = [None] * len(columns[0]) if run.found is None else run.found.cached_tokens.tolist()
            columns.append(cached)
        rows += ((result.policy, *row) for row in zip(*columns, strict=True))
    return csv_text(("policy", *_SERIES, *(["cached_tokens"] if caches else [])), rows)


def build(
    study: Study,
    name: str,
    bounds: Sequence[StudyBound] = (),
    search: grid.Search | None = None,
    *,
    full: bool = False,
) -> page.Section:
    """Build figures that tell policies apart; `full`: all, then latencies by class. `bounds` are on all policies.

    Of a grid there is a row for each variant, and then only the best of each policy.
    """
    blocks: list[page.Block] = [page.Paragraph(_what(study))]
    if search is not None:
        blocks += _grid(study, search, None if full else _MOST_VARIANTS)
        study = grid.leading(study, search.figure)
    if search is None or full:
        blocks += [_promises(study)] if study.promised else []
        blocks += _figures(study) if full else _first(study)
    remarks = notes(study) if full else needed(study)[:_MOST_NOTES]
    of_bounds = (*map(_bound, bounds), *(_loosened(study) if bounds else ()))
    return page.section("simulation", name, *blocks, notes=(*of_bounds, *remarks), basis="simulated")


def _first(study: Study) -> Iterator[page.Block]:
    """Yield the rows that differ, the best of each marked; of a single policy the first that there are."""
    results, alike = study.results, []
    rows, wide = [("Status", *(result.status.value for result in results))], False
    if len(results) > 1 and len({result.status for result in results}) == 1:
        alike.append(rows.pop()[1])
    for key in SCREENS["simulate"].split():
        label, values = SIMULATION[key][0], [result.figures[key] for result in results]
        if not any(values):
            continue  # says nothing
        if len(results) > 1 and all(_close(value, values[0]) for value in values):
            alike.append(f"{label} {written_as(key, values[0], 3)}")
            continue
        best = _best(study, key, values)
        intervals = [
            _half(result.ci95.get(key), value) for result, value in zip(results, values, strict=True)
        ]
        wide = wide or any(intervals)
        cells = (
            f"{'* ' * (best is not None and _close(value, best))}{written_as(key, value, 3)}{interval}"
            for value, interval in zip(values, intervals, strict=True)
        )
        rows.append((label, *cells))
    columns = (page.Column(""), *(page.number(result.policy)._replace(outcome=True) for result in results))
    if rows:
        yield page.table(columns, rows[:_MOST_ROWS])
    said = ["* best of its row, or within 1% of it."] if len(results) > 1 and rows else []
    said += ["±: half of the 95% confidence interval, where it is wide."] if wide else []
    said += [f"Alike: {', '.join(alike)}."] if alike else []
    yield page.Paragraph(" ".join([*said, "--full shows all figures."]))


def _grid(study: Study, search: grid.Search, most: int | None) -> Iterator[page.Block]:
    """Yield the best of a grid, and a row for each policy and variant, or for so many of the best."""
    yield page.Paragraph(_verdict(study, search))
    if search.best is None:
        return
    marks = {search.best: "* ", **dict.fromkeys(search.alike, "~ ")}
    others = [
        key
        for key in SCREENS["grid"].split()
        if key != search.figure and any(r.figures[key] for r in study.results)
    ]
    keys = dict.fromkeys(key for settings in study.settings.values() for key in settings.varied)
    columns: page.Columns[PolicyResult] = {
        page.Column("Policy"): lambda r: f"{marks.get(r.policy, '')}{study.settings[r.policy].policy}",
        **{page.number(key): partial(_parameter, study, key) for key in keys},
        **{
            page.number(SIMULATION[key][0]): partial(_of_variant, key, search.figure)
            for key in (search.figure, *others)
        },
    }
    rows = study.results
    if most is not None and len(rows) > most:
        best = grid.ranked(study, search.figure)[:most]
        rows = tuple(result for result in rows if result.policy in best)
    yield page.tabulate(columns, rows)
    if len(rows) < len(study.results):
        yield page.Paragraph(f"The {len(rows)} best of {len(study.results):,}; --full shows all.")


def _verdict(study: Study, search: grid.Search) -> str:
    """Say which variant is best, and whether that is sure."""
    label = SIMULATION[search.figure][0]
    halted = f" Livelock: {_some(search.livelocks)}." if search.livelocks else ""
    if search.best is None:
        return f"No best: none has {label}.{halted}"
    (result,) = study.only([search.best]).results
    best = f"{label}: {search.best}, {written_as(search.figure, result.figures[search.figure], 3)}"
    if search.figure == "e2e_s.mean":
        halted = f" All serve as many requests.{halted}"
    if not search.alike:
        return f"Best (*) by {best}.{halted}"
    if not study.by_chance:
        return f"Best (*) by {best}, and alike (~).{halted}"
    how = (
        "of their differences"
        if len(study.seeds) > 1
        else "of one seed; --seeds 5 gives those of differences"
    )
    return f"No single best by {best}, leads (*), but 95% intervals ({how}) do not tell it from ~.{halted}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def _parameter(study: Study, key: str, result: PolicyResult) -> str:
    settings = study.settings[result.policy]
    return written(settings, key) if key in settings.varied else ABSENT


def _of_variant(key: str, first: str, result: PolicyResult) -> str:
    if result.status is RunStatus.LIVELOCK:
        return result.status.value
    value = result.figures[key]
    half = _half(result.ci95.get(key), value, least=0.001) if key == first else ""
    return f"{written_as(key, value, 3)}{half}"


def _close(value: float | None, other: float | None) -> bool:
    if value is None or other is None:
        return value is other
    return abs(value - other) <= _ALIKE * max(abs(value), abs(other))


def _best(study: Study, key: str, values: Sequence[float | None]) -> float | None:
    """Choose the best of policies that go on; None where there is nothing to compare."""
    ran = [
        value
        for value, run in zip(values, study.first, strict=True)
        if value is not None and run.ending is not Ending.LIVELOCK
    ]
    if len(values) == 1 or not ran:
        return None
    return max(ran) if key in MORE_IS_BETTER else min(ran)


def _half(interval: tuple[float, float] | None, value: float | None, least: float = _WIDE) -> str:
    """Write half of an interval that is wide, as a share of the value."""
    if interval is None or not value or (half := (interval[1] - interval[0]) / 2 / abs(value)) < least:
        return ""
    return f" ± {format_percent(half, 2)}"


def _what(study: Study) -> str:
    seeds = f"seed {study.seeds[0]}" if len(study.seeds) == 1 else f"means over {len(study.seeds)} seeds"
    about = {"about.arrivals": arrivals(study.load)}
    about |= {} if study.load.trace is not None else {"about.seeds": seeds}
    return sentence(SCREENS["study"], Ledger(study, about)) or ""


def arrivals(load: Load) -> str:
    """Say how requests arrive."""
    return (
        sentence(SCREENS["arrivals"], Ledger({"load": load, "about": {"stretched": load.stretch != 1}})) or ""
    )


_BOUNDED = {
    "throughput_rps": "at most {} requests/s",
    "decode_tokens_per_s": "at most {} decode tokens/s",
    "e2e_s.mean": "at least {} mean time end to end",
}


def _bound(bound: StudyBound) -> str:
    most = _BOUNDED[bound.figure].format(written_as(bound.figure, bound.bound))
    about = {"about.bound": most, "about.gap": sentence(SCREENS["hindsight_gap"], Ledger(bound))}
    return sentence(SCREENS["hindsight"], Ledger(bound, about)) or ""


def _loosened(study: Study) -> tuple[str, ...]:
    """Say for whom the bound is loose: where policies count KV differently, it is by the mildest way to count."""
    missing = (study.settings[name].policy for name in study.missing)
    names = list(dict.fromkeys((*(policy.name for policy in study.policies), *missing)))
    engines = as_engines(names)
    if not engines or len(engines) == len(names):
        return ()
    said = sentence(SCREENS["hindsight_loose"], Ledger({"about": {"engines": ", ".join(engines)}}))
    return () if said is None else (said,)


def _figures(study: Study) -> Iterator[page.Block]:
    yield _side_by_side(study)
    if len(study.results[0].classes) > 1:
        yield page.Paragraph("Mean time to first token and end to end, by class:")
        yield _classes(study)


def _promises(study: Study) -> page.Table:
    """Show what each class was promised, and how it was kept: of a backlog when all of it was done."""
    rows = []
    for slo in study.promised:
        which, label = slo.which or 0, slo.key.replace("_s.", " ")
        values = [result.classes[which].figures[slo.figure] for result in study.results]
        ends_s = [[run.finish_s[asked.class_index == which] for asked, run in runs] for runs in study.runs]
        if slo.deadline and study.load.at_start and (size := ends_s[0][0].size):
            slo = replace(slo, bound=size / study.rates_rps[which])  # of a part of it
            label = f"{size:,} {study.results[0].classes[which].name} done"
            done_s = (float(np.mean([each.max() for each in mine])) for mine in ends_s)  # NaN: not all of it
            values = [math.inf if math.isnan(end_s) else end_s for end_s in done_s]
        cells = (", ".join(filter(None, (slo.written(value), slo.judged(value)))) for value in values)
        rows.append((label, slo.written(slo.bound), *cells))
    columns = ("Limit", *(result.policy for result in study.results))
    return page.table((page.words("By class"), *map(page.number, columns)), rows)


def _side_by_side(study: Study) -> page.Table:
    columns = (page.Column("Figure"), *(page.number(result.policy) for result in study.results))
    rows = [("Status", *(result.status.value for result in study.results))]
    if_any = tuple(SCREENS["simulate_if_any"].split())
    for key, (label, _) in SIMULATION.items():
        if key.startswith(if_any) and not any(result.figures[key] for result in study.results):
            continue
        rows.append((label, *(written_as(key, result.figures[key]) for result in study.results)))
        intervals = [result.ci95.get(key) for result in study.results]
        if key in SCREENS["simulate_with_interval"].split() and any(intervals):
            rows.append(("", *(interval_of(key, interval) for interval in intervals)))
    return page.table(columns, rows)


def _classes(study: Study) -> page.Table:
    def times(result: PolicyResult) -> Callable[[int], str]:
        return lambda i: ", ".join(
            format_seconds(result.classes[i].figures[key]) for key in ("ttft_s.mean", "e2e_s.mean")
        )

    classes = study.results[0].classes
    columns: page.Columns[int] = {
        page.words("Class"): lambda i: classes[i].name,
        **{page.number(result.policy): times(result) for result in study.results},
    }
    return page.tabulate(columns, range(len(classes)))


def written_as(key: str, value: float | None, digits: int = 4) -> str:
    """Write a figure of a policy in its form."""
    match SIMULATION[key][1]:
        case "time":
            return format_seconds(value)
        case "percent":
            return format_percent(value)
        case "count" if value is not None and value.is_integer():
            return f"{value:,.0f}"
        case _:
            return format_number(value, digits)


def interval_of(key: str, ends: tuple[float, float | None] | None) -> str:
    """Write the interval of a figure."""
    return ABSENT if ends is None else interval(*ends, partial(written_as, key))


def charts(study: Study, capacity_tokens: int, search: grid.Search | None = None) -> tuple[Chart, ...]:
    """Draw KV tokens and waiting requests of each policy over time, of the first seed; above them a grid's result."""
    if search is not None:
        best_of_each = grid.leading(study, search.figure)
        return (*_along_grid(study, search), *charts(best_of_each, capacity_tokens))
    seen = [(result.policy, run.series) for result, run in zip(study.results, study.first, strict=True)]
    end = max((float(series.time_s[-1]) for _, series in seen if series.time_s.size), default=0.0)
    if not end:
        return ()
    x = time_axis(end)
    waiting = [(name, peaks(series.time_s, series.waiting)) for name, series in seen]
    held = [(name, peaks(series.time_s, series.kv_tokens)) for name, series in seen]
    tokens = _over_time("KV tokens in use", "KV tokens", x, held, capacity_tokens)
    capacity = tokens.level(f"capacity {format_tokens(capacity_tokens)}", capacity_tokens, "ink", "dotted")
    return (
        _over_time("Waiting requests", "requests", x, waiting, 4),
        tokens._replace(lines=[*tokens.lines, capacity]),
    )


def _along_grid(study: Study, search: grid.Search) -> Iterator[Chart]:
    """Draw the figure of a grid against the parameter of each policy that has a single one varied."""
    caption = _verdict(study, search)
    for policy, results in grid.by_policy(study).items():
        varied = study.settings[results[0].policy].varied
        results = [
            r for r in results if r.status is not RunStatus.LIVELOCK and r.figures[search.figure] is not None
        ]
        if len(varied) == 1 and len(results) > 1 and varied[0] not in POLICIES[policy].words:
            values = [study.settings[result.policy].given[varied[0]][0] for result in results]
            yield _along(f"{policy}.{varied[0]}", np.array(values), results, search, caption)


def _along(
    key: str, values: FloatArray, results: Sequence[PolicyResult], search: grid.Search, caption: str
) -> Chart:
    label, form = SIMULATION[search.figure]
    figures = np.array([result.figures[search.figure] for result in results], dtype=float)
    pairs = [result.ci95.get(search.figure) or (math.nan, math.nan) for result in results]
    bars = np.column_stack([np.array(pairs), np.full(len(pairs), np.nan)]).ravel()
    order = np.argsort(values)
    low, high = (float(pick(np.append(figures, bars))) for pick in (np.nanmin, np.nanmax))
    room = 0.1 * (high - low) or 0.1 * high or 1.0
    lines = [Line(label, values[order], figures[order])]
    if not np.isnan(bars).all():
        lines.append(Line("95% interval", np.repeat(values, 3), bars, "soft"))
    if at := [index for index, result in enumerate(results) if result.policy == search.best]:
        lines.append(Line("best", values[at], figures[at], "orange", "dots"))
    x = Axis(key, float(values.min()), float(values.max()), log=bool(0 < _FAR * values.min() < values.max()))
    y = Axis(
        label, max(low - room, 0.0), high + room, shown=format_seconds if form == "time" else format_number
    )
    return Chart(f"{label} against {key}", caption, x, y, lines)


def _over_time(
    title: str, unit: str, x: Axis, seen: Sequence[tuple[str, tuple[FloatArray, FloatArray]]], least: float
) -> Chart:
    most = {name: float(value.max()) for name, (_, value) in seen}
    caption = (
        f"At most: {', '.join(f'{name} {value:,.0f}' for name, value in most.items())}. The first seed; of many "
        "records the largest."
    )
    lines = [
        Line(name, *points, colour, style)  # where they are the same, all are seen
        for colour, style, (name, points) in zip(COLOURS * 3, _STYLES * 6, seen, strict=False)
    ]
    return Chart(title, caption, x, Axis(unit, 0.0, 1.1 * max(least, *most.values())), lines)
