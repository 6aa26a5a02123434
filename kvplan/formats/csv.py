"""A study as CSV: a line for each figure of each policy, or for each moment of a run."""

import csv
from io import StringIO

from kvplan.layout.simulation import figure
from kvplan.simulation.experiments.study import Study

_SERIES = ("time_s", "kv_tokens", "waiting", "running", "evictions", "completions", "cached_tokens")


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


def series(found: Study) -> str:
    """The state over time of the first seed, a line for each record."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("policy", *_SERIES))
    for result, outcome in zip(found.results, found.first, strict=True):
        columns = (getattr(outcome.series, name) for name in _SERIES)
        for row in zip(*(column.tolist() for column in columns), strict=True):
            writer.writerow((result.policy, *row))
    return out.getvalue()
