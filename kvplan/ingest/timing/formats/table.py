"""A table of iterations: kv_tokens and iteration_ms (or seconds), prefill_tokens and sequences where known."""

from kvplan.ingest.timing.collector import Collector
from kvplan.ingest.timing.format import Row, TableFormat, names

_KV = names("k kv kvtokens")
_TAU = {
    **names("tau taus seconds iterationseconds iterationtimes durations steptimes"),
    **names("taums ms iterationms iterationtimems durationms stepms steptimems", 1e-3),
    **names("tauus us iterationus", 1e-6),
}
_PROMPT = names("p prefilltokens prompttokens contexttokens")
_BATCH = names("b sequences batch batchsize running numseqs")


def _add(row: Row, collector: Collector) -> None:
    batch = row.number(_BATCH, default=1.0)
    values = row.number(_KV), row.number(_PROMPT, default=0.0), batch, row.number(_TAU)
    collector.add(FORMAT.name, values, row.line)


FORMAT = TableFormat("table", (_KV, _TAU), _add)
