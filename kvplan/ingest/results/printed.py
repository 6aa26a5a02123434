"""What ``vllm bench serve``, ``sglang.bench_serving`` and ``benchmark_serving.py`` print: a block for each run.

Lines of other programs may stand around it. What is printed before a block, the rate and the arguments, belongs to it.
"""

import re

from kvplan.ingest.cells import Record
from kvplan.ingest.results.vllm_bench import add_run
from kvplan.ingest.timing.collector import Collector

TITLE = "Serving Benchmark Result"
_COLUMNS = {  # as `vllm_bench` calls what is printed under these labels
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
    "Mean E2E Latency (ms)": "meane2elatencyms",
    "Mean E2EL (ms)": "meane2elms",
    "Mean TTFT (ms)": "meanttftms",
    "Mean TPOT (ms)": "meantpotms",
}
_BEFORE = ("maxconcurrency", "requestrate", "burstiness", "backend")
_LINE = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, _COLUMNS))}):[\s|*]*([^\s|*]+)")
_END = re.compile(r"={20,}\s*$")
_ARGUMENTS = {
    "modelid": re.compile(r"Namespace\(.*?\bmodel=['\"]([^'\"]+)"),
    "backend": re.compile(r"Namespace\(.*?\bbackend=['\"]([^'\"]+)"),
}
_NEEDED = {"completed", "totalinputtokens", "totaloutputtokens"}
_MEASURED = {"meantpotms", "meane2elatencyms", "meane2elms"}


class PrintedRuns:
    """Reads blocks line by line, and adds each to a collector when it ends."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._before: dict[str, tuple[str, str]] = {}  # labels and values, by column
        self._block: dict[str, tuple[str, str]] = {}
        self._begin = 0

    def line(self, number: int, text: str) -> None:
        """Take a line."""
        if TITLE in text:
            self.end()
            self._begin, self._block, self._before = number, self._before, {}
        elif self._begin and _END.search(text):
            self.end()
        elif match := _LINE.search(text):
            column, value = _COLUMNS[match[1]], match[2].rstrip(".,;")
            if self._begin:
                self._block[column] = match[1], value
            elif column in _BEFORE:
                self._before[column] = match[1], value
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
            self._collector.skip("cut off", line)
