"""What a profile does at its own rates, as a table."""

from collections.abc import Collection, Iterator, Mapping

from kvplan.report.words import Basis
from kvplan.show.elements import Block, Column, Paragraph, Section, number, table, words
from kvplan.show.simulation import replayed
from kvplan.simulation.experiments.load import Load
from kvplan.study.operating_point import OperatingPoint
from kvplan.study.sample import FIGURES
from kvplan.study.windows import LATENCIES
from kvplan.units import ABSENT, format_number, format_seconds

Interval = tuple[float, float | None] | None
Figures = Mapping[str, tuple[float, Interval]]

_MEANS = {
    "throughput_rps": "Requests/s",
    "iteration_time_s": "Iteration",
    "running": "Running",
    "waiting": "Waiting",
    "kv_tokens_mean": "KV tokens",
    "preemptions_per_request": "Preemptions/request",
}
_WIDE = 0.1  # half an interval that is shown, as a share of the value


def build(point: OperatingPoint, load: Load, name: str, *, full: bool = False) -> Section:
    """The figures, intervals where they are wide; `full`: every figure with its 95 % interval. `load` is what came."""
    return Section(
        "operating_point", f"{name}: at its own rates", tuple(_blocks(point, load, full)), Basis.SIMULATED
    )


def _blocks(point: OperatingPoint, load: Load, full: bool) -> Iterator[Block]:
    latency = point.latency
    came = f"{point.arrivals} arrivals" if load.trace is None else replayed(load)
    if point.runs == 0:
        yield Paragraph(f"Nothing was run: {latency.reason}.")
        return
    queue = "steady, but some figures are not settled" if latency.unsettled else latency.status
    yield Paragraph(
        f"Policy {point.policy}, {came}, {format_number(point.requests)} requests in {point.runs} "
        f"run{'s' * (point.runs != 1)} after a warm-up; the queue is {queue}."
    )
    if latency.reason is not None:
        yield Paragraph(f"No latencies: {latency.reason}.")
    figures = {key: (value, interval) for key, value, interval in point.figures() if value is not None}
    if full:
        rows = [
            (
                key + " (not settled)" * (key in latency.unsettled),
                _written(key, value),
                _interval(key, interval),
            )
            for key, (value, interval) in figures.items()
        ]
        yield table((words("Figure"), number("Value"), number("95 % interval")), rows)
    else:
        yield from _first(figures, latency.unsettled)
    if latency.cliffs:
        cliffs = (f"{c.key} {format_seconds(c.low_s)} to {format_seconds(c.high_s)}" for c in latency.cliffs)
        yield Paragraph(f"On a cliff: {', '.join(cliffs)}.")


def _first(figures: Figures, unsettled: Collection[str]) -> Iterator[Block]:
    times = [
        (time.removesuffix("_s").upper(), *(format_seconds(figures[f"{time}.{one}"][0]) for one in FIGURES))
        for time in LATENCIES
        if f"{time}.mean" in figures
    ]
    if times:
        yield table((Column(""), *map(number, FIGURES)), times)
    means = {name: _written(key, figures[key][0], 3) for key, name in _MEANS.items() if key in figures}
    if means:
        yield table(map(number, means), [tuple(means.values())])
    wide = [
        f"{key} {_interval(key, interval)}{' (not settled)' * (key in unsettled)}"
        for key, (value, interval) in figures.items()
        if interval is not None
        and "_s." in key
        and (interval[1] is None or interval[1] - interval[0] > 2 * _WIDE * value)
    ]
    if wide:
        yield Paragraph(f"Wide 95% intervals: {', '.join(wide)}.")


def _written(key: str, value: float, digits: int = 4) -> str:
    is_time = "_s." in key or key.endswith("_s")
    return format_seconds(value) if is_time else format_number(value, digits)


def _interval(key: str, interval: Interval) -> str:
    if interval is None:
        return ABSENT
    low, high = interval
    return f"{_written(key, low)} to {ABSENT if high is None else _written(key, high)}"
