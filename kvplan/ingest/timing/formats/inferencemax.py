"""Results of InferenceMAX, now InferenceX: JSON or CSV with hw, conc, isl, osl, tp, ep, mean_ttft, mean_tpot and so on.

Keys as its utils/process_result.py writes them: times in seconds, tokens per second of each GPU. It draws lengths from
0.8 to 1 times isl and osl.
"""

from kvplan.ingest.timing.collector import Collector
from kvplan.ingest.timing.format import Names, Row, TableFormat, names
from kvplan.ingest.timing.load import spread
from kvplan.ingest.timing.sweep import Deployment, Point

_GPU, _CONCURRENCY, _INPUT, _OUTPUT = map(names, ("hw", "conc", "isl", "osl"))
_TENSOR_PARALLEL = names("tp")
_OUTPUT_RATE = names("outputtputpergpu")
_MEDIANS = "medians are taken for means, which are not there"
_NO = ("", "none", "false", "0")
_ENGINES = {"trt": "trtllm"}


def _add(row: Row, collector: Collector) -> None:
    if row.text("disagg").lower() not in _NO or row.text("ismultinode").lower() not in _NO:
        collector.skip("prefill and decode on machines of their own", row.line)
        return
    inputs, outputs = (spread(0.9 * row.number(most), 0.1 * row.number(most)) for most in (_INPUT, _OUTPUT))
    parallel, tokens_each = row.optional(_TENSOR_PARALLEL), row.optional(_OUTPUT_RATE)
    throughput = None
    if parallel is not None and tokens_each is not None and outputs[1] > 0:
        throughput = tokens_each * parallel / (0.9 * row.number(_OUTPUT))
    point = Point(
        line=row.line,
        inputs=inputs,
        outputs=outputs,
        concurrency=row.whole(_CONCURRENCY),
        ttft_s=_time(row, "ttft", collector),
        tpot_s=_time(row, "tpot", collector),
        e2e_s=_time(row, "e2el", collector),
        throughput_rps=throughput,
    )
    collector.add_point(FORMAT.name, point, _deployment(row))


def _time(row: Row, what: str, collector: Collector) -> float | None:
    mean, median = (row.optional(_column(f"{kind}{what}")) for kind in ("mean", "median"))
    if mean is None and median is not None:
        collector.note(_MEDIANS)
        return median
    return mean


def _column(name: str) -> Names:
    return {**names(name), **names(f"{name}ms", 1e-3)}


def _deployment(row: Row) -> Deployment:
    parallel, speculative = row.text("tp"), row.text("specdecoding")
    other = (
        f"EP{row.text('ep')}" if row.text("ep") not in ("", "1") else "",
        "DP attention" if row.text("dpattention").lower() not in _NO else "",
        speculative if speculative.lower() not in _NO else "",
    )
    engine = row.text("framework")
    return Deployment(
        model=row.text("model"),
        gpu=row.text("hw"),
        engine=_ENGINES.get(engine, engine),
        tensor_parallel=int(parallel) if parallel.isdigit() else 1,
        weight_dtype=row.text("precision"),
        other=", ".join(filter(None, other)),
    )


FORMAT = TableFormat("InferenceMAX", (_GPU, _CONCURRENCY, _INPUT, _OUTPUT), _add)
