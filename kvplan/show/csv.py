"""A study as CSV: a line for each figure of each policy, or for each moment of a run."""

import csv
from io import StringIO

from kvplan.show.simulation import figure
from kvplan.simulation.experiments.study import Study
from kvplan.study.operating_point import OperatingPoint

_SERIES = ("time_s", "kv_tokens", "waiting", "running", "evictions", "completions")


def study(found: Study) -> str:
    """A line for each policy and figure: value and 95 % confidence interval, empty where there is none."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("policy", "figure", "value", "ci95_low", "ci95_high"))
    for result in found.results:
        for key, interval in result.ci95.items():
            value = figure(result, key)
            writer.writerow(
                (result.policy, key, "" if value is None else repr(value), *(interval or ("", "")))
            )
    return out.getvalue()


def operating_point(point: OperatingPoint) -> str:
    """The figures of a profile at its own rates, with their intervals."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("policy", "figure", "value", "ci95_low", "ci95_high"))
    for key, value, interval in point.figures():
        ends = ("", "") if interval is None else interval
        writer.writerow((point.policy, key, "" if value is None else repr(value), *ends))
    return out.getvalue()


def series(found: Study) -> str:
    """The state over time of the first seed, a line for each record; cached tokens where a policy keeps prefixes."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    caches = any(outcome.found is not None for outcome in found.first)
    writer.writerow(("policy", *_SERIES, *(["cached_tokens"] if caches else [])))
    for result, outcome in zip(found.results, found.first, strict=True):
        columns = [getattr(outcome.series, name).tolist() for name in _SERIES]
        if caches:
            size = len(columns[0])
            columns.append([""] * size if outcome.found is None else outcome.found.cached_tokens.tolist())
        for row in zip(*columns, strict=True):
            writer.writerow((result.policy, *row))
    return out.getvalue()
