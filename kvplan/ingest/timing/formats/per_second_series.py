"""A per-second series of averages: CSV with prompt_throughput, gen_throughput, running, kv_cache_pct."""

from kvplan.ingest.timing.collector import Collector
from kvplan.ingest.timing.format import Row, TableFormat, names

_COLUMNS = tuple(map(names, ("promptthroughput", "genthroughput", "running", "kvcachepct")))


def _add(row: Row, collector: Collector) -> None:
    collector.add_average(FORMAT.name, row.line, *map(row.number, _COLUMNS))


FORMAT = TableFormat("per-second series", _COLUMNS, _add)
