"""A concurrency sweep: CSV or JSON lines with concurrency, lengths, and TPOT, TTFT, E2E or requests/s.

Columns model, gpu, backend, precision, tp and ep tell replicas apart; versions of a backend are taken together.
InferenceMAX draws lengths from 0.8 to 1 times those it names; so are rows whose `source` says inferencemax read.
"""

from kvplan.ingest.timing.collector import Collector
from kvplan.ingest.timing.format import Row, TableFormat, names
from kvplan.ingest.timing.sweep import Deployment, Point, Range

CONCURRENCY = names("concurrency maxconcurrency concurrentrequests")
TPOT = {**names("tpot tpots meantpots"), **names("tpotms meantpotms", 1e-3)}
TTFT = {**names("ttft ttfts meanttfts"), **names("ttftms meanttftms", 1e-3)}
E2E = {
    **names("e2e e2es meane2es latencys"),
    **names("e2ems e2elms meane2ems meane2elms meane2elatencyms latencyms", 1e-3),
}
THROUGHPUT = names("requestthroughput requestspersecond rps throughputrps")
INPUT = names("input inputtokens inputlen inputlength isl randominputlen")
OUTPUT = names("output outputtokens outputlen outputlength osl randomoutputlen")
_REQUESTS = names("requests numrequests numprompts completed")
_INFERENCEMAX = 0.8  # shortest length it draws, over the longest


def deployment(row: Row) -> Deployment:
    """What the row says was measured."""
    parallel = row.text("tp") or row.text("tensorparallel")
    return Deployment(
        model=row.text("model"),
        gpu=row.text("gpu") or row.text("hardware"),
        engine=row.text("backend"),
        tensor_parallel=int(parallel) if parallel.isdigit() else 1,
        weight_dtype=row.text("precision"),
        other=f"EP{row.text('ep')}" if row.text("ep") else "",
    )


def _add(row: Row, collector: Collector) -> None:
    shortest = _INFERENCEMAX if row.text("source").lower() == "inferencemax" else 1.0
    point = Point(
        line=row.line,
        inputs=_range(row.number(INPUT), shortest),
        outputs=_range(row.number(OUTPUT), shortest),
        concurrency=row.whole(CONCURRENCY),
        requests=None if (count := row.optional(_REQUESTS)) is None else round(count),
        ttft_s=row.optional(TTFT),
        tpot_s=row.optional(TPOT),
        e2e_s=row.optional(E2E),
        throughput_rps=row.optional(THROUGHPUT),
    )
    collector.add_point(FORMAT.name, point, deployment(row))


def _range(most: float, shortest: float) -> Range:
    return round(shortest * most), round(most)


FORMAT = TableFormat("concurrency sweep", (CONCURRENCY, INPUT, OUTPUT), _add)
