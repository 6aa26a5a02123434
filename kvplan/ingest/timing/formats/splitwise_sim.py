"""splitwise-sim's measurements: CSV with prompt_size, batch_size, token_size, prompt_time, token_time (ms).

Samples for each model, hardware and tensor_parallel.
"""

from kvplan.ingest.timing.collector import Collector
from kvplan.ingest.timing.format import Row, TableFormat, names

_COLUMNS = (
    *map(names, ("promptsize", "batchsize", "tokensize")),
    *(names(name, 1e-3) for name in ("prompttime", "tokentime")),
)


def _add(row: Row, collector: Collector) -> None:
    size, batch, generated, prompt_s, token_s = map(row.number, _COLUMNS)
    group = f"{row.text('model')}, {row.text('hardware')}, TP{row.text('tensorparallel')}"
    tokens = size * batch
    # A prompt's iteration also emits the first token; then the context grows by half of what follows.
    for values in (
        (tokens + batch, tokens, batch, prompt_s),
        (tokens + batch * (generated + 1) / 2, 0.0, batch, token_s),
    ):
        collector.add(FORMAT.name, values, row.line, group=group)


FORMAT = TableFormat("splitwise-sim", _COLUMNS, _add)
