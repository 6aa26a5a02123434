"""vLLM's log: averages over some seconds, and from 0.14 on iterations one by one.

Stats, of V0 and V1: ``Avg prompt throughput: …, Running: 8 reqs, … GPU KV cache usage: 91.2%``. Iteration details, with
``--enable-logging-iteration-details``: ``Iteration(7): 2 context requests, …, iteration elapsed time: 31.25 ms``. Being
exact, they take the place of the averages around them. The time is how long the engine waited for a result; with
asynchronous scheduling (the default since 0.16) one that is there already was waited for in no time, whatever it took
(vLLM pull request 35072, not merged).

Up to 0.15 the prompt throughput counts tokens that the prefix cache had, and the hit rate beside it says how many: of
the last 1,000 requests, in V0 of all. From 0.16 on (vLLM pull request 33290) it counts only what was computed.
Iteration details have always done so.
"""

import re
from typing import NamedTuple

from kvplan.ingest.log import vllm
from kvplan.ingest.log.forms import whole
from kvplan.ingest.timing.collector import Collector
from kvplan.ingest.timing.format import LogFormat, floats

_ITERATION = re.compile(
    r"Iteration\(\d+\): (\d+) context requests, (\d+) context tokens, (\d+) generation requests, "
    r"(\d+) generation tokens, iteration elapsed time: ([\d.]+) ms"
)
_STATS = re.compile(
    r"Avg prompt throughput: ([\d.]+) tokens/s, Avg generation throughput: ([\d.]+) tokens/s, "
    r"Running: (\d+) reqs,(?:(?!Avg prompt).)*?KV cache usage: ([\d.]+)%"
)
_USAGE = re.compile(r"KV cache usage: ([\d.]+)%")
_LEAST_MS = 0.1  # of any forward pass
_DUMMY = "ms (dummy)"  # an idle rank keeping step with the others
_COUNTS_COMPUTED = (0, 16)  # the version from which on the prompt throughput is without hits


class _Average(NamedTuple):
    """A line of statistics, and what held when it was logged: the engine may have been started anew."""

    values: list[float]
    line: int
    capacity_tokens: int | None
    version: tuple[int, int] | None
    hit_percent: float

    @property
    def counts_hits(self) -> bool:
        """Whether its prompt throughput does."""
        return self.hit_percent > 0 and (self.version is None or self.version < _COUNTS_COMPUTED)


class _Reader:
    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._block_tokens = vllm.BLOCK_TOKENS
        self._usage: float | None = None
        self._averages: list[_Average] = []
        self._version: tuple[int, int] | None = None
        self._details = False
        self._drafts = False

    def line(self, number: int, text: str) -> None:
        if self._collector.given_tokens is None:
            self._state(text)
        if values := floats(_USAGE.search(text)):
            self._usage = values[0]
        if found := vllm.VERSION.search(text):
            self._version = int(found[1]), int(found[2])
        self._drafts |= "SpecDecoding metrics" in text
        if "Iteration(" in text:
            self._details = True
            self._iteration(number, text)
        elif "Avg prompt throughput" in text:
            if values := floats(_STATS.search(text)):
                capacity = self._collector.capacity_tokens
                self._averages.append(_Average(values, number, capacity, self._version, _hits(text)))
            else:
                self._collector.skip("cut off or in an unknown form", number)
        elif self._averages and "Prefix cache hit rate: GPU" in text:
            self._averages[-1] = self._averages[-1]._replace(hit_percent=_hits(text))

    def end(self) -> None:
        for one in self._averages:
            if self._drafts:
                self._collector.skip(
                    "an average of iterations with drafts, which emit several tokens", one.line
                )
                continue
            if self._details:
                self._collector.skip("an average, where iterations are logged one by one", one.line)
                continue
            self._collector.capacity_tokens = one.capacity_tokens
            hit_percent = one.hit_percent if one.counts_hits else 0.0
            self._collector.add_average("vLLM stats log", one.line, *one.values, hit_percent=hit_percent)
        corrected = [one for one in self._averages if one.counts_hits and not self._details]
        if corrected and any(one.version is None for one in corrected):
            self._collector.note(
                "the log states no version of vLLM; its prompt throughput is taken to count tokens found in the prefix "
                "cache, as it does up to 0.15; from 0.16 on it does not: then keep the line with the version"
            )

    def _state(self, text: str) -> None:
        """Take the capacity of a line that states one."""
        if "block" in text and (found := vllm.BLOCK_SIZE.search(text)):
            self._block_tokens = whole(found[1])
        if found := vllm.TOKENS.form.search(text):
            self._collector.capacity_tokens = whole(found[1])
        elif found := vllm.BLOCKS.form.search(text):
            self._collector.capacity_tokens = whole(found[1]) * self._block_tokens

    def _iteration(self, number: int, text: str) -> None:
        values = floats(_ITERATION.search(text))
        if values is None:
            self._collector.skip("cut off or in an unknown form", number)
        elif _DUMMY in text:
            self._collector.skip("a dummy iteration", number)
        elif values[-1] < _LEAST_MS:
            self._collector.skip("a result that was there before the engine waited for it", number)
        elif self._usage is None:
            self._collector.skip("before the first line that states KV usage", number)
        else:
            contexts, context_tokens, generating, generated, elapsed_ms = values
            # A request that is computed again after a preemption counts as generating, all its tokens too.
            prefill = context_tokens + max(0.0, generated - generating)
            kv_tokens = self._collector.kv_tokens(self._usage, number)
            sample = kv_tokens, prefill, contexts + generating, elapsed_ms * 1e-3
            self._collector.add("vLLM iteration details", sample, number)


def _hits(text: str) -> float:
    """The hit rate that a line states, percent."""
    found = floats(vllm.HIT_RATE.search(text))
    return found[0] if found else 0.0


FORMAT = LogFormat(_Reader)
