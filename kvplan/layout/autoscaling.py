"""A simulated period of a schedule, for people: replicas that come and go beside a fleet of one size."""

import math
from collections.abc import Callable, Sequence
from functools import partial

from kvplan.decide.autoscaling import AT_ONCE, AUTOSCALED, FIXED, LOOK_S, SCHEDULED, WINDOW_S, Day
from kvplan.decide.fixed_runs import Estimate
from kvplan.decide.sizing import HYSTERESIS
from kvplan.layout.elements import Bullets, Column, Paragraph, Section, Table, number, replicas, table
from kvplan.model.slo import Slo
from kvplan.units import ABSENT, format_number, format_percent, format_rate, format_seconds

_NAMES = {AUTOSCALED: "Autoscaled", AT_ONCE: "Loads at once", SCHEDULED: "Scheduled", FIXED: "Fixed"}
_USUAL = ("ttft_s.p95", "ttft_s.p99")
_LEAST_HALF = 1e-3
_Written = Callable[[Estimate], str]


def build(found: Day, name: str, slos: Sequence[Slo]) -> Section:
    """What it takes and what it serves, each way."""
    return Section(
        "autoscaling",
        f"{format_seconds(found.period_s)} of {name}",
        (Paragraph(_verdict(found)), _side_by_side(found, slos), Bullets(notes(found))),
        "simulated",
    )


def _verdict(found: Day) -> str:
    scaled, fixed = found.ways[AUTOSCALED], found.ways[FIXED]
    hours, of_fixed = scaled["gpu_hours"].mean, fixed["gpu_hours"].mean
    change = format_percent(hours / of_fixed - 1, 2, signed=True)
    said = (
        f"Autoscaled: {format_number(hours)} GPU-hours, {change} against the {format_number(of_fixed)} of "
        f"{replicas(found.replicas, found.gpus)} all the time."
    )
    if found.lost_to_loading is None:
        return f"{said} There are no objectives to compare what is served."
    within = [format_percent(way["within"].mean, 4) for way in (scaled, fixed)]
    lost = found.lost_to_loading
    loading = f"that loading takes {format_seconds(found.load_s)} costs {_share(lost)} of them"
    if lost.low <= 0 <= lost.high:
        loading = (
            f"whether it matters that loading takes {format_seconds(found.load_s)} these runs do not tell"
        )
    return f"{said} Within the objectives are {within[0]} of the requests, {within[1]} with the fixed fleet; {loading}."


def _side_by_side(found: Day, slos: Sequence[Slo]) -> Table:
    keys = dict.fromkeys([*_USUAL, *(slo.key for slo in slos)])
    rows: list[tuple[str, str, _Written]] = [
        ("Within SLOs", "within", _share),
        ("Goodput", "goodput_rps", lambda one: format_rate(one.mean)),
        *((_title(key), key, partial(_bounded, key)) for key in keys),
        ("Most waiting", "waiting", lambda one: format_number(one.mean)),
        ("Mean replicas", "replicas", lambda one: format_number(one.mean)),
        ("Added", "added", lambda one: format_number(one.mean)),
        ("Taken away", "removed", lambda one: format_number(one.mean)),
        ("GPU-hours", "gpu_hours", _with_half),
    ]
    lines = [
        (title, *(written(way[key]) if key in way else ABSENT for way in found.ways.values()))
        for title, key, written in rows
    ]
    if found.price is not None:
        lines.append(("Cost", *(format_number(found.cost(way)) for way in found.ways.values())))
    return table((Column(""), *(number(_NAMES[name]) for name in found.ways)), lines)


def _bounded(key: str, one: Estimate) -> str:
    return Slo("", key, False, 0.0).written(one.mean)


def _share(one: Estimate) -> str:
    """In percent, with half its interval.

    >>> _share(Estimate(0.98213, 0.981, 0.98326)), _share(Estimate(1.0, 1.0, 1.0))
    ('98.2 ± 0.1%', '100%')
    """
    return f"{_with_half(Estimate(*(100 * end for end in one)))}%"


def _with_half(one: Estimate) -> str:
    """With half its interval to one digit, as far as it shows in three decimals.

    >>> _with_half(Estimate(74.9123, 74.9079, 74.9167)), _with_half(Estimate(70.1, 70.09999, 70.10001))
    ('74.912 ± 0.004', '70.1')
    """
    half = one.high - one.mean
    if half < _LEAST_HALF:
        return format_number(one.mean)
    decimals = max(-math.floor(math.log10(half)), 0)
    return f"{one.mean:,.{decimals}f} ± {half:,.{decimals}f}"


def _title(key: str) -> str:
    time, _, figure = key.partition("_s.")
    return f"{time.upper()} {figure}" if figure else key


def notes(found: Day) -> tuple[str, ...]:
    """What was done, and what was assumed."""
    seeds = f"{found.seeds} seeds" if found.seeds > 1 else "one run"
    runs = f"Simulated: {found.requests:,.0f} requests in a period, {seeds}, the same for each way; {found.routing}"
    scheduled = (
        " Scheduled: as many as each part of the schedule needs, started as long before it as they load."
        if SCHEDULED in found.ways
        else ""
    )
    return (
        f"{runs} routing among the replicas that take requests. All are served to the end. Most waiting: at once "
        f"without a first token.{' 95% intervals over seeds.' * (found.seeds > 1)}",
        f"Autoscaled: one replica to {found.replicas:,}, by the thresholds above on requests/s, with "
        f"{format_percent(1 - HYSTERESIS)} between them; of the mean over {format_seconds(WINDOW_S)}, every "
        f"{format_seconds(LOOK_S)} (assumed). The last to start is the first to go.",
        f"A replica takes requests {format_seconds(found.load_s)} after its start (assumed, --load-time), with an "
        f"empty cache; one that is taken away serves what it has. It is paid for from start to end.{scheduled}",
    )
