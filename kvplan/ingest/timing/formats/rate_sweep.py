"""A rate sweep: CSV or JSON lines with requested_rps, lengths, TTFT, and TPOT or E2E.

With achieved_rps and done_rps it is seen which rates the client and the engine kept up with. Columns variant and those
of a concurrency sweep tell replicas apart.
"""

from dataclasses import replace

from kvplan.errors import ProfileError
from kvplan.ingest.timing.collector import Collector
from kvplan.ingest.timing.format import Row, TableFormat, names
from kvplan.ingest.timing.formats.concurrency_sweep import (
    E2E,
    INPUT,
    OUTPUT,
    THROUGHPUT,
    TPOT,
    TTFT,
    deployment,
)
from kvplan.ingest.timing.formats.inference_perf import tpot
from kvplan.ingest.timing.load import Load, at_rate, spread
from kvplan.ingest.timing.sweep import Point

_RATE = names("requestedrps requestedrate requestrate rate rps qps")
_SENT = names("achievedrps achievedrate")
_DONE = {**names("donerps completedrps"), **THROUGHPUT}
_TPOT = {**names("tpotderiveds"), **TPOT}
_REQUESTS = names("requests numrequests numprompts completed")


def _add(row: Row, collector: Collector) -> None:
    rate, output = row.number(_RATE), row.number(OUTPUT)
    if rate == 0:
        message = "0; must be above 0"
        raise ProfileError(row.source, message, key=row.written[next(iter(_RATE))], line=row.line)
    ttft, e2e, between = row.optional(TTFT), row.optional(E2E), row.optional(_TPOT)
    if between is None and e2e is not None:
        between = tpot(e2e, ttft, output)
    if e2e is None and ttft is not None and between is not None:
        e2e = ttft + between * max(output - 1, 0.0)
    done = row.optional(_DONE)
    load = Load(rate_rps=rate)
    requests = None if (count := row.optional(_REQUESTS)) is None else round(count)
    if done is not None and e2e is not None:
        load = at_rate(rate, done, e2e, requests=requests, sent_rps=row.optional(_SENT))
    point = Point(
        line=row.line,
        inputs=spread(row.number(INPUT)),
        outputs=spread(output),
        requests=requests,
        ttft_s=ttft,
        tpot_s=between,
        e2e_s=e2e,
        throughput_rps=done,
        **load._asdict(),
    )
    known = deployment(row)
    other = ", ".join(filter(None, (row.text("variant"), known.other)))
    collector.add_point(FORMAT.name, point, replace(known, other=other))


FORMAT = TableFormat("rate sweep", (_RATE, INPUT, OUTPUT), _add)
