"""Results of InferenceMAX, now InferenceX: JSON or CSV with hw, conc, isl, osl, tp, ep, mean_ttft, mean_tpot and so on.

Keys as its utils/process_result.py writes them: times in seconds, tokens per second of each GPU. It draws lengths from
0.8 to 1 times isl and osl.
"""

from kvplan.ingest.cells import Record, names
from kvplan.ingest.results import INFERENCEMAX_PROTOCOL, add_load, parallelism, spread, table
from kvplan.ingest.timing.collector import Collector
from kvplan.ingest.timing.samples import Deployment, Point

_MEDIANS = "medians are taken for means, which are not there"
_NO = ("", "none", "false", "0")
_ENGINES = {"trt": "trtllm"}


def _add(row: Record, collector: Collector) -> None:
    if row.text("disagg").lower() not in _NO or row.text("ismultinode").lower() not in _NO:
        collector.skip("prefill and decode on machines of their own", row.line)
        return
    collector.note(INFERENCEMAX_PROTOCOL)
    inputs, outputs = (spread(0.9 * row.number(most), 0.1 * row.number(most)) for most in ("isl", "osl"))
    gpus, tokens_each = row.optional("tp"), row.optional("outputtputpergpu")
    throughput = None
    if gpus is not None and tokens_each is not None and outputs[1] > 0:
        throughput = tokens_each * gpus / (0.9 * row.number("osl"))
    point = Point(
        line=row.line,
        inputs=inputs,
        outputs=outputs,
        concurrency=row.whole("conc"),
        ttft_s=_time(row, "ttft", collector),
        tpot_s=_time(row, "tpot", collector),
        e2e_s=_time(row, "e2el", collector),
        throughput_rps=throughput,
    )
    speculative = row.text("specdecoding")
    other = (
        "DP attention" if row.text("dpattention").lower() not in _NO else "",
        speculative if speculative.lower() not in _NO else "",
    )
    deployment = Deployment(
        model=row.text("model"),
        gpu=row.text("hw"),
        engine=_ENGINES.get(row.text("framework"), row.text("framework")),
        parallelism=parallelism(row),
        weight_dtype=row.text("precision"),
        other=", ".join(filter(None, other)),
    )
    add_load(row, point, deployment, collector)


def _time(row: Record, what: str, collector: Collector) -> float | None:
    for kind in ("mean", "median"):
        time = row.optional({f"{kind}{what}": 1.0, f"{kind}{what}ms": 1e-3})
        if time is not None:
            if kind == "median":
                collector.note(_MEDIANS)
            return time
    return None


READERS = (table("InferenceMAX", [names(name) for name in ("hw", "conc", "isl", "osl")], _add),)
