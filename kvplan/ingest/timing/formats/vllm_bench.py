"""Results of ``vllm bench serve --save-result`` and of SGLang's ``bench_serving``: a JSON object for each run.

Keys as vllm/benchmarks/serve.py (0.19) and sglang/benchmark/serving.py (0.5) write them. vLLM does not say what lengths
it was to draw: with ``--save-detailed`` lists say what it drew. SGLang says: from r·L to L evenly, where r is
``random_range_ratio``. ``total_cached_tokens`` of the prompts are counted where the server was asked to tell (vLLM pull
request 51155, SGLang pull request 7954; neither merged). The ``backend`` of a client can be a protocol, such as openai,
which names no engine.
"""

import numpy as np

from kvplan.errors import ProfileError
from kvplan.ingest.timing.collector import Collector
from kvplan.ingest.timing.format import Row, TableFormat, names
from kvplan.ingest.timing.formats.concurrency_sweep import E2E, THROUGHPUT, TPOT, TTFT
from kvplan.ingest.timing.load import Load, at_rate, half_width, spread
from kvplan.ingest.timing.sweep import Deployment, Point, Range
from kvplan.model import FloatArray

_CONCURRENCY, _RATE = names("maxconcurrency"), names("requestrate")
_COMPLETED, _INPUTS, _OUTPUTS = map(names, ("completed", "totalinputtokens", "totaloutputtokens"))
_DURATION, _ACCEPTED = names("duration"), names("acceptlength")
_CACHED = names("totalcachedtokens")
_DRAWN_RATIO = names("randomrangeratio")
_DRAWN_INPUT, _DRAWN_OUTPUT = names("randominputlen"), names("randomoutputlen")
_INPUT_LENS, _OUTPUT_LENS = "inputlens", "outputlens"
_ENGINES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm", "trt": "trtllm"}
_UNBOUNDED = ("", "inf", "none")


def _add(row: Row, collector: Collector) -> None:
    requests, outputs = row.number(_COMPLETED), row.number(_OUTPUTS)
    if requests == 0 or outputs == 0:
        collector.skip("nothing was generated", row.line)
        return
    if row.text("rampupstrategy"):
        collector.skip("a rate that rose while it was measured", row.line)
        return
    if row.text("requestrate") == "trace":
        collector.skip("arrivals of a trace, which are no steady load", row.line)
        return
    load = _load(row, round(requests), outputs / requests)
    inputs, drawn = _lengths(row, requests)
    point = Point(
        line=row.line,
        inputs=inputs,
        outputs=drawn,
        cached_tokens=round((row.optional(_CACHED) or 0.0) / requests),
        requests=round(requests),
        ttft_s=row.optional(TTFT),
        tpot_s=row.optional(TPOT),
        e2e_s=row.optional(E2E),
        throughput_rps=row.optional(THROUGHPUT),
        **load._asdict(),
    )
    collector.add_point(FORMAT.name, point, _deployment(row))


def _load(row: Row, requests: int, output: float) -> Load:
    most = None if row.text("maxconcurrency").lower() in _UNBOUNDED else row.whole(_CONCURRENCY)
    if row.text("requestrate").lower() in _UNBOUNDED:
        return Load(concurrency=most or requests)  # all at once where nothing holds them back
    e2e, tpot = row.optional(E2E), row.optional(TPOT)
    if e2e is None:
        e2e = row.number(TTFT) + (0.0 if tpot is None else tpot) * (output - 1)
    rate = row.number(_RATE)
    if rate == 0:
        raise ProfileError(row.source, "0; must be above 0", key=row.written["requestrate"], line=row.line)
    throughput = row.optional(THROUGHPUT)
    if throughput is None:
        throughput = requests / max(row.number(_DURATION), 1e-9)
    return at_rate(rate, throughput, e2e, requests=requests, most=most)


def _lengths(row: Row, requests: float) -> tuple[Range, Range]:
    totals = row.number(_INPUTS), row.number(_OUTPUTS)
    means = [total / requests for total in totals]
    halves = [0.0, 0.0]
    if row.text("datasetname").startswith("random") and row.optional(_DRAWN_RATIO) is not None:
        share = (1 - min(row.number(_DRAWN_RATIO), 1.0)) / 2
        halves = [row.number(_DRAWN_INPUT) * share, row.number(_DRAWN_OUTPUT) * share]
    elif _INPUT_LENS in row.values and _OUTPUT_LENS in row.values:
        lists = [_list(row, name) for name in (_INPUT_LENS, _OUTPUT_LENS)]
        if len(lists[0]) != len(lists[1]):
            message = f"{len(lists[1]):,} lengths, and input_lens has {len(lists[0]):,}"
            raise ProfileError(row.source, message, key=row.written[_OUTPUT_LENS], line=row.line)
        done = lists[1] > 0
        if done.any():
            halves = [half_width(float(found[done].std())) for found in lists]
    inputs, outputs = (spread(mean, half) for mean, half in zip(means, halves, strict=True))
    return inputs, outputs


def _list(row: Row, name: str) -> FloatArray:
    seen = row.values[name]
    if not (isinstance(seen, list) and all(type(value) is int and 0 <= value <= 1e9 for value in seen)):
        message = "must be a list of whole numbers of tokens"
        raise ProfileError(row.source, message, key=row.written[name], line=row.line)
    return np.array(seen, dtype=np.float64)


def _deployment(row: Row) -> Deployment:
    parallel = row.text("tensorparallelsize") or row.text("tp")  # of --metadata
    accepted = row.optional(_ACCEPTED)
    return Deployment(
        model=row.text("modelid"),
        engine=_ENGINES.get(row.text("backend").lower().removesuffix("-chat"), ""),
        tensor_parallel=int(parallel) if parallel.isdigit() else 1,
        other="speculative decoding" if accepted is not None and accepted > 1 else "",
    )


FORMAT = TableFormat("bench result", (_COMPLETED, _INPUTS, _OUTPUTS, {**_CONCURRENCY, **_RATE}), _add)
