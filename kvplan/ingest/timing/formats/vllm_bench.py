"""Results of ``vllm bench`` as a concurrency sweep: JSON lines with totals of tokens over completed requests."""

from kvplan.ingest.timing.collector import Collector
from kvplan.ingest.timing.format import Row, TableFormat, names
from kvplan.ingest.timing.formats.concurrency_sweep import CONCURRENCY, E2E, THROUGHPUT, TPOT, TTFT
from kvplan.ingest.timing.sweep import Deployment, Point

_COMPLETED, _INPUTS, _OUTPUTS = map(names, ("completed", "totalinputtokens", "totaloutputtokens"))


def _add(row: Row, collector: Collector) -> None:
    requests, inputs, outputs = row.number(_COMPLETED), row.number(_INPUTS), row.number(_OUTPUTS)
    if requests == 0:
        collector.skip("nothing was generated", row.line)
        return
    prompt, output = round(inputs / requests), round(outputs / requests)
    point = Point(
        line=row.line,
        inputs=(prompt, prompt),
        outputs=(output, output),
        concurrency=row.whole(CONCURRENCY),
        requests=round(requests),
        ttft_s=row.optional(TTFT),
        tpot_s=row.optional(TPOT),
        e2e_s=row.optional(E2E),
        throughput_rps=row.optional(THROUGHPUT),
    )
    collector.add_point(FORMAT.name, point, Deployment(model=row.text("modelid")))


FORMAT = TableFormat("bench result", (CONCURRENCY, _COMPLETED, _INPUTS, _OUTPUTS), _add)
