"""What a profile does at its own rates, as a table."""

from collections.abc import Iterator

from kvplan.layout.elements import Block, Paragraph, Section, number, table, words
from kvplan.layout.simulation import replayed
from kvplan.report.words import Basis
from kvplan.simulation.experiments.load import Load
from kvplan.study.operating_point import OperatingPoint
from kvplan.units import ABSENT, format_number, format_seconds


def build(point: OperatingPoint, load: Load, name: str) -> Section:
    """A section with every figure and its 95 % interval; `load` is what came."""
    return Section(
        "operating_point", f"{name}: at its own rates", tuple(_blocks(point, load)), Basis.SIMULATED
    )


def _blocks(point: OperatingPoint, load: Load) -> Iterator[Block]:
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
    rows = [
        (key + " (not settled)" * (key in latency.unsettled), _written(key, value), _interval(key, interval))
        for key, value, interval in point.figures()
        if value is not None
    ]
    yield table((words("Figure"), number("Value"), number("95 % interval")), rows)
    for cliff in latency.cliffs:
        low, high = format_seconds(cliff.low_s), format_seconds(cliff.high_s)
        yield Paragraph(f"{cliff.key} sits on a cliff: {low} to {high}.")


def _written(key: str, value: float) -> str:
    return format_seconds(value) if "_s." in key or key.endswith("_s") else format_number(value)


def _interval(key: str, interval: tuple[float, float | None] | None) -> str:
    if interval is None:
        return ABSENT
    low, high = interval
    return f"{_written(key, low)} to {ABSENT if high is None else _written(key, high)}"
