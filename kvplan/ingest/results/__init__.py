"""Results of load generators and tables of iterations: a module each with `READERS`, found here.

`read(record, collector)` of a reader adds what stands in a row of a table or in a JSON object. Functions here tell what
a load generator's report says as a point of a sweep: its load, and lengths of requests.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Any, TypedDict

from kvplan.ingest.cells import Names, Record
from kvplan.ingest.reader import Beginning, FileKind, Reader, collected
from kvplan.ingest.timing.collector import Collector
from kvplan.ingest.timing.samples import Deployment, Point, Range
from kvplan.model import Parallelism
from kvplan.units import format_number

Adds = Callable[[Record, Collector], None]
_KEPT_UP = 0.97  # of what was offered
_FASTER, _FEW = 1.1, 30  # than offered, beside chance among so many requests, where their number is not known
_WHOLE = 0.98  # of E2E
_DEEP = 6  # objects within each other
_PERCENTILE = re.compile(r"(?:^|[^a-z])p\d\d|percentile")
_TO_HALF_WIDTH = math.sqrt(3)  # of a uniform distribution, from its standard deviation


def table(name: str, columns: Sequence[Names], read: Adds, kind: FileKind = FileKind.TIMING) -> Reader[Adds]:
    """Make the reader of a table, in CSV or JSON lines, that has each of these columns."""

    def recognises(start: Beginning) -> bool:
        plain = start.plain_names
        return all(plain & column.keys() for column in columns)

    return Reader(name, kind, recognises, read, len(columns))


def document(name: str, recognises: Callable[[Record], bool], read: Adds) -> Reader[Adds]:
    """Make the reader of JSON objects of a certain form."""
    return Reader(
        name,
        FileKind.TIMING,
        lambda start: start.in_json and recognises(Record("", 0, start.values or {})),
        read,
    )


class Load(TypedDict, total=False):
    """Requests in flight, or offered per second at random or at equal gaps: as `Point` has them."""

    concurrency: int
    rate_rps: float
    evenly: bool


def at_rate(
    rate_rps: float,
    throughput_rps: float,
    e2e_s: float,
    *,
    requests: int | None = None,
    sent_rps: float | None = None,
    most: int | None = None,
    evenly: bool = False,
) -> Load:
    """Tell the load of requests that were to arrive at a rate, of which `throughput_rps` were completed.

    Where the client did not send as many (`sent_rps`) or the engine did not keep up, requests in flight are what held
    them back: by Little's law, completed per second times their mean E2E, and `most` where the client had a limit. The
    last of a known number of requests is completed one E2E after it was sent.

    Examples
    --------
    >>> at_rate(10, 9.8, 2.0), at_rate(10, 8, 5.0), at_rate(10, 8, 5.0, most=32)
    ({'rate_rps': 10, 'evenly': False}, {'concurrency': 40}, {'concurrency': 32})
    >>> at_rate(10, 8, 5.0, requests=200)["rate_rps"]
    10
    """
    sent = rate_rps if sent_rps is None else sent_rps
    possible = sent if requests is None else requests / (requests / sent + e2e_s)
    if sent >= _KEPT_UP * rate_rps and throughput_rps >= _KEPT_UP * possible:
        return {"rate_rps": sent, "evenly": evenly}
    return in_flight(throughput_rps, e2e_s, most)


def in_flight(throughput_rps: float, e2e_s: float, most: int | None = None) -> Load:
    """Tell the load of a closed loop by Little's law, at most its limit."""
    mean = max(1, round(throughput_rps * e2e_s))
    return {"concurrency": mean if most is None else min(mean, most)}


def spread(mean: float, half: float = 0.0, *, deviation: float | None = None) -> Range:
    """Spread lengths evenly about a mean, by half a width or by their standard deviation; none below 1.

    Examples
    --------
    >>> spread(1000.0), spread(62.4), spread(1000.0, 250.0), spread(100.0, 150.0)
    ((1000, 1000), (62, 63), (750, 1250), (1, 199))
    """
    if deviation is not None:
        half = _TO_HALF_WIDTH * deviation
    low = round(mean - max(0.0, min(half, mean - 1)))
    return low, max(low, round(2 * mean) - low)


def tpot(e2e_s: float, ttft_s: float | None, output: float) -> float | None:
    """Tell the time between tokens, seconds; None of answers of one token, or where TTFT is not known."""
    return None if ttft_s is None or output <= 1 or e2e_s <= ttft_s else (e2e_s - ttft_s) / (output - 1)


def add_load(row: Record, point: Point, deployment: Deployment, collector: Collector) -> None:
    """Add a run, and say what its figures are not: times of tokens, the rate that was served, percentiles."""
    output, e2e, line = sum(point.outputs) / 2, point.e2e_s, f"line {point.line}"
    waited = point.ttft_s if point.ttft_s is not None or point.tpot_s is not None else e2e
    if output > 1 and e2e and waited and _WHOLE <= waited / e2e <= 1 / _WHOLE:
        collector.note(f"{line}: not streamed, for the first token comes with the last: E2E alone is taken")
        point = replace(point, ttft_s=None, tpot_s=None)
    rate, served = point.rate_rps, point.throughput_rps
    chance = 3 / math.sqrt(point.requests or _FEW)
    if rate and served and served > (_FASTER + chance) * rate:
        stated = f"{format_number(served)} requests/s of {format_number(rate)}"
        collector.note(f"{line}: served faster than offered, {stated}: what was served counts")
        point = replace(point, rate_rps=served)
    if _has_percentiles(row.values):
        collector.note("percentiles of times are left out: their means count")
    collector.add_point(point, deployment)


def _has_percentiles(values: Mapping[str, Any], deep: int = _DEEP) -> bool:
    return any(
        _is_percentile(key) or (deep and isinstance(value, dict) and _has_percentiles(value, deep - 1))
        for key, value in values.items()
    )


@lru_cache(256)  # every row of a table has the same
def _is_percentile(key: str) -> bool:
    return _PERCENTILE.search(key) is not None


def parallelism(row: Record) -> Parallelism:
    """Read how GPUs share a model, from columns such as tp, dp and ep; 1 of each that none says."""

    def ranks(*columns: str) -> int:
        first = next(filter(None, map(row.text, columns)), "")
        return max(int(first), 1) if first.isdigit() else 1

    return Parallelism(ranks("tp", "tensorparallel", "tensorparallelsize"), ranks("dp"), ranks("ep"))


INFERENCEMAX_PROTOCOL = (
    "assumed of the benchmark, as InferenceMAX runs: lengths drawn from 0.8 to 1 times those stated, 10 requests of "
    "each client, all clients at once"
)
READERS: tuple[Reader[Adds], ...] = tuple(chain(*collected(__name__, __path__, "READERS")))


def reader_of(start: Beginning) -> Reader[Adds] | None:
    """Choose the reader of a file that begins like this."""
    fitting = (reader for reader in READERS if reader.recognises(start))
    return max(fitting, key=lambda reader: reader.columns, default=None)
