"""Results of ``vllm bench serve --save-result`` and of SGLang's ``bench_serving``: a JSON object for each run.

Keys as vllm/benchmarks/serve.py (0.19) and sglang/benchmark/serving.py (0.5) write them. vLLM does not say what lengths
it was to draw: with ``--save-detailed`` lists say what it drew. SGLang says: from r·L to L evenly, where r is
``random_range_ratio``. ``total_cached_tokens`` of the prompts are counted where the server was asked to tell (vLLM pull
request 51155, SGLang pull request 7954; neither merged). The ``backend`` of a client can be a protocol, such as openai,
which names no engine. Runs with drafts (``spec_decode_acceptance_length`` of vLLM, ``accept_length`` of SGLang) are
left out: their times are per token, not per iteration.

Both, and ``benchmark_serving.py``, print a block for each run. Lines of other programs may stand around it. What is
printed before a block, the rate and the arguments, belongs to it.
"""

import re

import numpy as np

from kvplan.ingest.cells import Record, names
from kvplan.ingest.results import Load, add_load, at_rate, in_flight, parallelism, spread, table
from kvplan.ingest.results.tables import E2E, THROUGHPUT, TPOT, TTFT
from kvplan.ingest.timing.collector import Collector
from kvplan.ingest.timing.samples import Deployment, Point, Range
from kvplan.model import FloatArray

_ENGINES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm", "trt": "trtllm", "trtllm": "trtllm"}
_UNBOUNDED = ("", "inf", "infinity", "none", "not")  # "not set"
_ACCEPTED = names("specdecodeacceptancelength acceptlength")


def add_run(row: Record, collector: Collector) -> None:
    """Add a run, unless it is no steady load of an engine without drafts."""
    requests, outputs = row.number("completed"), row.number("totaloutputtokens")
    reason = ""
    if requests == 0 or outputs == 0:
        reason = "nothing was generated"
    elif row.text("rampupstrategy").lower() not in _UNBOUNDED:
        reason = "a rate that rose while it was measured"
    elif (row.optional("burstiness") or 1.0) != 1 and row.text("requestrate").lower() not in _UNBOUNDED:
        reason = "arrivals of a burstiness other than 1, which are no steady load"
    elif row.text("requestrate") == "trace":
        reason = "arrivals of a trace, which are no steady load"
    elif (row.optional(_ACCEPTED) or 0.0) > 1:
        reason = "a run with drafts, which emit several tokens an iteration"
    if reason:
        collector.skip(reason, row.line)
        return
    load = _load(row, round(requests), outputs / requests, collector)
    if failed := row.optional("failed"):
        collector.note(f"{failed:,.0f} requests of a run failed; it is of those that did not")
    inputs, drawn = _lengths(row, requests)
    point = Point(
        line=row.line,
        inputs=inputs,
        outputs=drawn,
        cached_tokens=round((row.optional("totalcachedtokens") or 0.0) / requests),
        requests=round(requests),
        ttft_s=row.optional(TTFT),
        tpot_s=row.optional(TPOT),
        e2e_s=row.optional(E2E),
        throughput_rps=row.optional(THROUGHPUT),
        **load,
    )
    deployment = Deployment(
        model=row.text("modelid"),
        engine=_ENGINES.get(row.text("backend").lower().removesuffix("-chat"), ""),
        parallelism=parallelism(row),  # of --metadata
        arguments=frozenset(filter(None, [row.text("arguments")])),
    )
    add_load(row, point, deployment, collector)


def _load(row: Record, requests: int, output: float, collector: Collector) -> Load:
    most = None if row.text("maxconcurrency").lower() in _UNBOUNDED else row.whole("maxconcurrency")
    rate = row.text("requestrate").lower()
    if most is not None and rate in _UNBOUNDED:
        return {"concurrency": min(most, requests)}
    if rate in _UNBOUNDED and rate:
        return {"concurrency": requests}  # all at once where nothing holds them back
    if not rate and (row.optional("peakconcurrentrequests") or 0.0) >= requests:
        return {"concurrency": requests if most is None else min(most, requests)}
    e2e, throughput = row.optional(E2E), row.optional(THROUGHPUT)
    if e2e is None:
        e2e = row.number(TTFT) + (row.optional(TPOT) or 0.0) * (output - 1)
    if throughput is None:
        throughput = requests / max(row.number("duration"), 1e-9)
    if not rate:
        collector.note(
            "a run states neither rate nor concurrency; in flight are its requests/s times their mean E2E"
        )
        return in_flight(throughput, e2e)
    return at_rate(row.positive("requestrate"), throughput, e2e, requests=requests, most=most)


def _lengths(row: Record, requests: float) -> tuple[Range, Range]:
    means = [row.number(total) / requests for total in ("totalinputtokens", "totaloutputtokens")]
    if row.text("datasetname").startswith("random") and row.optional("randomrangeratio") is not None:
        share = (1 - min(row.number("randomrangeratio"), 1.0)) / 2
        halves = [row.number(longest) * share for longest in ("randominputlen", "randomoutputlen")]
        return spread(means[0], halves[0]), spread(means[1], halves[1])
    if row.at("inputlens") is None or row.at("outputlens") is None:
        return spread(means[0]), spread(means[1])
    inputs, outputs = _list(row, "inputlens"), _list(row, "outputlens")
    if inputs.size != outputs.size:
        raise row.error("outputlens", f"{outputs.size:,} lengths, and input_lens has {inputs.size:,}")
    done = outputs > 0
    deviations = [float(lengths[done].std()) if done.any() else None for lengths in (inputs, outputs)]
    return spread(means[0], deviation=deviations[0]), spread(means[1], deviation=deviations[1])


def _list(row: Record, name: str) -> FloatArray:
    seen = row.at(name)
    if not (isinstance(seen, list) and all(type(value) is int and 0 <= value <= 1e9 for value in seen)):
        raise row.error(name, "must be a list of whole numbers of tokens")
    return np.array(seen, dtype=np.float64)


_COLUMNS = ("completed", "totalinputtokens", "totaloutputtokens", "maxconcurrency requestrate")

READERS = (table("bench result", [names(column) for column in _COLUMNS], add_run),)

# -- what it prints ----------------------------------------------------------------------------------------------------

TITLE = "Serving Benchmark Result"
_LABELS = {  # columns by what is printed for them
    "Successful requests": "completed",
    "Failed requests": "failed",
    "Maximum request concurrency": "maxconcurrency",
    "Max request concurrency": "maxconcurrency",
    "Traffic request rate": "requestrate",
    "Request rate configured (RPS)": "requestrate",
    "Burstiness factor": "burstiness",
    "Backend": "backend",
    "Benchmark duration (s)": "duration",
    "Total input tokens": "totalinputtokens",
    "Total generated tokens": "totaloutputtokens",
    "Request throughput (req/s)": "requestthroughput",
    "Acceptance length": "acceptlength",
    "Accept length": "acceptlength",
    "Peak concurrent requests": "peakconcurrentrequests",
    "Mean Latency(s)": "meanlatencys",
    "Mean E2E Latency (ms)": "meane2elatencyms",
    "Mean E2EL (ms)": "meane2elms",
    "Mean TTFT (ms)": "meanttftms",
    "Mean TPOT (ms)": "meantpotms",
}
_DEPLOYED = ("backend", "modelid", "arguments")
_BEFORE = ("maxconcurrency", "requestrate", "burstiness", "backend")
_LINE = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, _LABELS))}):[\s|*]*([^\s|*]+)")
_END = re.compile(r"={20,}\s*$")
_ARGUMENTS = {
    "modelid": re.compile(r"Namespace\(.*?\bmodel=['\"]([^'\"]+)"),
    "backend": re.compile(r"Namespace\(.*?\bbackend=['\"]([^'\"]+)"),
}
# what was served: the engine by its command, the model, the other arguments
_SERVED = re.compile(
    r"(?P<engine>vllm serve|trtllm-serve|sglang(?:\.launch_server| serve))"
    r"(?: serve)?(?: --model(?:-path)?[ =])? *(?P<model>[^\s`-][^\s`]*)(?P<rest>[^`\n]*)"
)
# of lines that say something
PRINTED = (
    TITLE,
    "=" * 20,
    "Namespace(",
    "vllm serve",
    "trtllm-serve",
    "sglang",
    *(f"{label}:" for label in _LABELS),
)
_NEEDED = {"completed", "totalinputtokens", "totaloutputtokens"}
_MEASURED = {"meantpotms", "meanlatencys", "meane2elatencyms", "meane2elms"}


class PrintedRuns:
    """Reads blocks line by line, and adds each to a collector when it ends."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._before: dict[str, tuple[str, str]] = {}  # labels and values, by column
        self._served: dict[str, tuple[str, str]] = {}  # which the blocks that follow are of
        self._block: dict[str, tuple[str, str]] = {}
        self._begin = 0

    def line(self, number: int, text: str) -> None:
        """Take a line."""
        if TITLE in text:
            self.end()
            self._begin, self._block, self._before = number, self._before | self._served, {}
        elif self._begin and _END.search(text):
            self.end()
        elif match := _LINE.search(text):
            column, value = _LABELS[match[1]], match[2].rstrip(".,;")
            if self._begin:
                self._block[column] = match[1], value
            elif column in _BEFORE:
                self._before[column] = match[1], value
        elif "serve" in text and (served := _SERVED.search(text)):
            engine = served["engine"].partition(" ")[0].partition(".")[0].partition("-")[0]
            for column, value in zip(
                _DEPLOYED, (engine, served["model"], served["rest"].strip()), strict=True
            ):
                self._served[column] = column, value
        elif "Namespace(" in text:
            for column, form in _ARGUMENTS.items():
                if match := form.search(text):
                    self._before[column] = column, match[1]

    def end(self) -> None:
        """Add the block that was begun."""
        if not self._begin:
            return
        line, self._begin = self._begin, 0
        if self._block.keys() >= _NEEDED and self._block.keys() & _MEASURED:
            self._collector.format = "printed benchmark"
            labels, values = ({column: cell[i] for column, cell in self._block.items()} for i in (0, 1))
            add_run(Record(self._collector.source, line, values, labels), self._collector)
        else:
            self._collector.skip("cut off, or without totals of tokens and mean times", line)
