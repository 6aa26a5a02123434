"""A concurrency sweep: CSV or JSON lines with concurrency, TPOT, input and output lengths."""

from kvplan.ingest.timing.format import Row, TableFormat, names
from kvplan.ingest.timing.samples import Collector

CONCURRENCY = names("concurrency maxconcurrency concurrentrequests")
TPOT = {**names("tpot tpots meantpots"), **names("tpotms meantpotms", 1e-3)}
_INPUT = names("input inputtokens inputlen inputlength isl randominputlen")
_OUTPUT = names("output outputtokens outputlen outputlength osl randomoutputlen")


_COLUMNS = (CONCURRENCY, TPOT, _INPUT, _OUTPUT)


def add_steady_state(
    collector: Collector, line: int, batch: float, tpot_s: float, inputs: float, outputs: float
) -> None:
    """The mean iteration of a batch of requests with these mean lengths.

    In a steady state every sequence is at a random place of its decode, and one in `outputs` begins.
    """
    prefill = batch * inputs / outputs if outputs > 0 else 0.0
    running = batch if outputs > 0 else 0.0
    kv_tokens = batch * (inputs + (outputs + 1) / 2)
    collector.add(FORMAT.name, (kv_tokens, prefill, running, tpot_s), line)


def _add(row: Row, collector: Collector) -> None:
    add_steady_state(collector, row.line, *map(row.number, _COLUMNS))


FORMAT = TableFormat("concurrency sweep", _COLUMNS, _add)
