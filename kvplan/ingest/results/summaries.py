"""Results with a line for each figure, printed or in JSON, by summaries.toml.

evalscope: ``evalscope perf``'s table and its benchmark_summary.json. MLPerf: mlperf_log_summary.txt and
mlperf_log_detail.txt of the scenario Server. TensorRT-LLM: what ``trtllm-bench throughput`` prints. LLMPerf: its
``…_summary.json``. GenAI-Perf: its CSV and what it prints, a table with the mean of each metric.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kvplan.errors import UsageError
from kvplan.ingest.cells import UPRIGHT, Names, Record, names, plain_name
from kvplan.ingest.model.hardware import tables
from kvplan.ingest.reader import FileKind, Reader
from kvplan.ingest.results import Adds, Load, add_load, at_rate, in_flight, spread, table, tpot
from kvplan.ingest.timing.collector import Collector
from kvplan.ingest.timing.samples import Deployment, Point
from kvplan.units import format_number, format_seconds

# a label and one value: of a row with several nothing says which is the mean
_LINE = re.compile(r"\W*(\w[^|:]*?(?:\([^)|]*\))?)\s*[:|]\s*([^|\s]\S*)(?![^|]*\|\s*[^|\s])")
_MLLOG = re.compile(r':::MLLOG \{"key": "(\w+)", "value": "?([^\s",}]+)')  # of MLPerf's detail log
_LONGEST = 300  # characters of a line
_UNITS = {"_s": 1.0, "_ms": 1e-3, "_us": 1e-6, "_ns": 1e-9, "_per_min": 1 / 60}
_SUMMARIES = tables(Path(__file__).with_suffix(".toml"))["summaries"]
_FIGURES = frozenset(  # MLPerf states tokens per second twice
    name
    for summary in _SUMMARIES
    for figure, text in summary.items()
    if isinstance(text, str) and figure != "output_rate"
    for name in re.split("[ |]", text)
)


def _names(summary: Mapping[str, Any], figure: str) -> Names:
    """Return a figure's names, each with its unit; empty where the format lacks it."""
    seconds_by_name: dict[str, float] = dict(names(summary.get(figure, "")))
    for unit, seconds in _UNITS.items():
        seconds_by_name |= names(summary.get(figure + unit, ""), seconds)
    return seconds_by_name


def _add(summary: Mapping[str, Any], row: Record, collector: Collector) -> None:
    def read(figure: str) -> float | None:
        known = _names(summary, figure)
        unset = not known or row.text(row.name(known)).startswith("-")
        return None if unset else row.optional(known)

    ttft, e2e, between = read("ttft"), read("e2e"), read("tpot")
    throughput, rate, users, count = map(read, ("throughput", "rate", "concurrency", "requests"))
    inputs, output, tokens, sent = map(read, ("input", "output", "output_rate", "output_sent"))
    if output is None and tokens and throughput:
        output = tokens / throughput
    elif output is None and sent and rate:
        output = sent / rate
    if inputs is None and throughput and output and (total := read("total_rate")):
        inputs = max(total / throughput - output, 0.0)
    if output is None or throughput is None or e2e is None:
        collector.skip("states neither lengths, requests per second nor E2E", row.line)
        return
    if inputs is None:
        times = ", ".join(
            f"{name} {format_seconds(t)}" for name, t in (("TTFT", ttft), ("TPOT", between)) if t
        )
        raise UsageError(
            f"{row.source}: {summary['name']}: {format_number(throughput)} requests/s, {times}, "
            f"{format_number(output)} tokens out, but no length of prompts: write it beside these into a table with "
            "requested_rps, done_rps, input_tokens, output_tokens, ttft_ms and tpot_ms"
        )
    if summary.get("derived") and (derived := tpot(e2e, ttft, output)) is not None:
        between = derived
    if said := summary.get("note"):
        collector.note(said)
    requests = None if count is None else round(count)
    load: Load = {"concurrency": max(1, round(users))} if users else in_flight(throughput, e2e)
    if rate:
        load = at_rate(rate, throughput, e2e, requests=requests)
    point = Point(
        line=row.line,
        inputs=spread(inputs, deviation=read("input_deviation")),
        outputs=spread(output, deviation=read("output_deviation")),
        requests=requests,
        ttft_s=ttft,
        tpot_s=between,
        e2e_s=e2e,
        throughput_rps=throughput,
        **load,
    )
    add_load(row, point, Deployment(model=row.text("model"), engine=row.text("backend")), collector)


SUMMARIES: tuple[Reader[Adds], ...] = tuple(
    table(
        summary["name"],
        [names(each.replace("|", " ")) for each in summary["tells"].split()],
        partial(_add, summary),
    )
    for summary in _SUMMARIES
)
_METRIC, _MEAN = names("metric statistic"), "avg"  # with which the name of a column ends
METRICS: Reader[Adds] = Reader(
    "GenAI-Perf CSV",
    FileKind.TIMING,
    lambda start: bool(start.plain_names & _METRIC.keys() and _means(start.plain_names)),
    SUMMARIES[-1].read,
    2,
)
READERS = (*SUMMARIES, METRICS)


def _means(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.endswith(_MEAN)]


def metrics_as_columns(source: str, rows: Iterable[Record]) -> Iterator[Record]:
    """Turn tables with a row for each metric into rows with the means of each run."""
    known = list(rows)
    for mean in _means(known[0].values) if known else ():
        yield from runs_in(
            source, ((row.line, f"{row.text(row.name(_METRIC))}: {row.text(mean)}") for row in known)
        )


def runs_in(source: str, numbered: Iterable[tuple[int, str]]) -> Iterator[Record]:
    """Yield runs from lines of a label and a value; a figure that recurs with another value begins a run."""
    values: dict[str, str] = {}
    again: dict[str, str] = {}
    written: dict[str, str] = {}
    first = began = 0
    for number, drawn in numbered:
        text = drawn.translate(UPRIGHT)
        match = _MLLOG.match(text) or (_LINE.match(text) if len(text) <= _LONGEST else None)
        if match is None:
            continue
        label = plain_name(match[1])
        written[label] = match[1]
        if label not in values or label not in _FIGURES:
            first = first if values else number
            values.setdefault(label, match[2])
            continue
        began = began if again else number
        again[label] = match[2]
        if values[label] != match[2]:
            yield Record(source, first, values, written)
            values, again, first = again, {}, began
    if values:
        yield Record(source, first, values, written)
