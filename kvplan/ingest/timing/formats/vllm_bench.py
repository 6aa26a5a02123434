"""Results of ``vllm bench`` as a concurrency sweep: JSON lines with totals of tokens over completed requests."""

from kvplan.ingest.timing.format import Row, TableFormat, names
from kvplan.ingest.timing.formats.concurrency_sweep import CONCURRENCY, TPOT, add_steady_state
from kvplan.ingest.timing.samples import Collector

_COLUMNS = (CONCURRENCY, TPOT, *map(names, ("completed", "totalinputtokens", "totaloutputtokens")))


def _add(row: Row, collector: Collector) -> None:
    batch, tpot_s, requests, inputs, outputs = map(row.number, _COLUMNS)
    if requests == 0:
        collector.skip("nothing was generated", row.line)
    else:
        add_steady_state(collector, row.line, batch, tpot_s, inputs / requests, outputs / requests)


FORMAT = TableFormat("bench result", _COLUMNS, _add)
