"""A per-second series of averages: CSV with prompt_throughput, gen_throughput, running, kv_cache_pct; t where known."""

from kvplan.ingest.timing.collector import Collector, Second
from kvplan.ingest.timing.format import Row, TableFormat, names

_COLUMNS = tuple(map(names, ("promptthroughput", "genthroughput", "running", "kvcachepct")))
_TIME = names("t time times timestamp elapsed elapseds second seconds")


def _add(row: Row, collector: Collector) -> None:
    end = row.optional(_TIME)
    prompt, generated, running, usage = map(row.number, _COLUMNS)
    collector.add_second(
        FORMAT.name,
        Second(float(row.line) if end is None else end, prompt, generated, running, usage, row.line),
    )


FORMAT = TableFormat("per-second series", _COLUMNS, _add)
