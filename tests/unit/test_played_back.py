"""What every reader imports is played back: rates, lengths and requests in flight make the file's own totals."""

import json
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import timed_files
from sampled import parse_samples
from timed_files import CAPACITY, ITERATIONS, LOADS, Load, Row

from kvplan.ingest.engines import LOGS
from kvplan.ingest.results import READERS
from kvplan.ingest.timing.samples import Measured, Point, Samples, Sweep

WITHIN = 0.2
# 16 clients with 1,000 tokens in and 100 out: .21 s and 99 x .02 s are 2.19 s, 7.306 requests/s, 730.6 tokens/s
LOAD = Load(16, 1000, 100, 500, 0.21, 0.02)
ROWS: list[Row] = [(16_800, 0, 16, 0.02), (8_400, 1_200, 8, 0.08), (4_200, 0, 4, 0.01)] * 10
# what a file has of the same load, in the words of its own
EVALSCOPE = {"Number of concurrency": 16, "Succeed requests": 500, "Request throughput (req/s)": LOAD.rate,
             "Average latency (s)": 2.19, "Average time to first token (s)": 0.21,
             "Average time per output token (s)": 0.02, "Average input tokens per request": 1000.0,
             "Average output tokens per request": 100.0}  # fmt: skip
TRTLLM = {"Number of concurrent requests": 16, "Number of requests": 500,
          "Request Throughput (req/sec)": LOAD.rate, "Average request latency (ms)": 2190,
          "Average time-to-first-token [TTFT] (ms)": 210, "Average time-per-output-token [TPOT] (ms)": 20,
          "Average Input Length (tokens)": 1000, "Average Output Length (tokens)": 100}  # fmt: skip
LLMD = {
    "requests": {"total": 500, "input_length": {"mean": 1000}, "output_length": {"mean": 100}},
    "latency": {
        "request_latency": {"units": "s", "mean": 2.19},
        "time_to_first_token": {"units": "ms", "mean": 210},
    },
    "throughput": {"requests_per_sec": LOAD.rate},
}


def evalscope(some: Sequence[Load]) -> list[str]:
    return ["".join(f"| {label} | {value} |\n" for label, value in EVALSCOPE.items())]


def trtllm_bench(some: Sequence[Load]) -> list[str]:
    return ["".join(f"{label}: {value}\n" for label, value in TRTLLM.items())]


def llm_d(some: Sequence[Load]) -> list[str]:
    return [json.dumps({"metrics": LLMD, "scenario": {"load": {"args": {"max_concurrency": 16}}}}) + "\n"]


def rate_table(some: Sequence[Load]) -> list[str]:
    header = "requested_rps,done_rps,input_tokens,output_tokens,ttft_ms,tpot_ms"
    return [f"{header}\n{LOAD.rate},{LOAD.rate},1000,100,210,20\n"]


def one_batch(rows: list[Row]) -> Iterator[str]:
    """In the midst of 200 answers the middle row; its prompts of before."""
    for kv, _, size, seconds in rows:
        inputs = kv // size - 100
        yield json.dumps({"batch_size": size, "input_len": inputs, "output_len": 200, "prefill_latency": 1e-3 * size,
                          "median_decode_latency": seconds})  # fmt: skip


def llama_bench(rows: list[Row]) -> Iterator[str]:
    yield "| PP | TG | B | N_KV | T_PP s | T_TG s |"
    yield "|----|----|---|------|--------|--------|"
    yield from (
        f"| {kv // size - 100} | 200 | {size} | {kv} | 1.0 | {200 * tau} |" for kv, _, size, tau in rows
    )


def splitwise(rows: list[Row]) -> Iterator[str]:
    yield "model,hardware,tensor_parallel,prompt_size,batch_size,token_size,prompt_time,token_time"
    for kv, _, size, tau in rows:
        yield f"m,g,1,{kv // size - 100},{size},199,{size},{1e3 * tau}"


def read(text: str) -> tuple[Measured, ...]:
    return parse_samples(text.splitlines(keepends=True), "file", capacity_tokens=CAPACITY)


def near(found: float | None, true: float) -> bool:
    return found is not None and abs(found / true - 1) <= WITHIN


@pytest.mark.parametrize(
    "write", [*LOADS, evalscope, trtllm_bench, llm_d, rate_table], ids=lambda one: one.__name__
)
def test_loads_make_the_totals_of_their_files(write: Callable[[Sequence[Load]], list[str]]) -> None:
    """Tokens/s in and out, requests in flight by Little's law, and what a request takes."""
    for text in write([LOAD]):
        for found in read(text):
            assert isinstance(found, Sweep)
            SEEN.add(found.format)
            for point in found.points:
                assert wrong(point) == [], found.format


def wrong(point: Point) -> list[str]:
    """Say which figures of a point are not those of the load."""
    rate = point.throughput_rps or LOAD.rate
    flight = point.concurrency or (point.rate_rps or 0.0) * LOAD.e2e
    played = {
        "tokens in": (rate * np.mean(point.inputs), LOAD.rate * LOAD.inputs),
        "tokens out": (rate * np.mean(point.outputs), LOAD.rate * LOAD.outputs),
        "in flight": (flight, LOAD.rate * LOAD.e2e),
        "TTFT": (point.ttft_s, LOAD.ttft),
        "TPOT": (point.tpot_s, LOAD.tpot),
        "E2E": (point.e2e_s or LOAD.e2e, LOAD.e2e),
    }
    return [what for what, (found, true) in played.items() if not near(found, true)]


@pytest.mark.parametrize(
    "write", [*ITERATIONS, one_batch, llama_bench, splitwise], ids=lambda one: one.__name__
)
def test_iterations_make_the_tokens_of_their_files(write: Callable[[list[Row]], Iterator[str]]) -> None:
    """Of those that decode: tokens/s generated, KV tokens, and requests that run."""
    for found in read("".join(f"{line}\n" for line in write(ROWS))):
        assert isinstance(found, Samples)
        SEEN.add(found.format)
        for kv, prompt, size, tau in {row for row in ROWS if write in ITERATIONS or not row[1]}:
            like = (found.sequences == size) & ((found.prefill_tokens > 0) == (prompt > 0))
            assert like.any(), (found.format, size)
            assert near(float(np.median(found.kv_tokens[like])), kv), found.format
            assert near(float(np.median(size / found.seconds[like])), size / tau), found.format
            if prompt:
                assert near(float(np.median((found.prefill_tokens / found.seconds)[like])), prompt / tau)


SEEN: set[str] = set()
ELSEWHERE = {
    "MLPerf loadgen",
    "MLPerf loadgen detail",
    "request log",
}  # without prompts; test_request_formats


def test_no_reader_is_left_out() -> None:
    """After those above, in the same process."""
    known = {reader.name for reader in READERS} - ELSEWHERE
    if not SEEN:
        pytest.skip("alone")
    assert known - SEEN == set()
    assert len([log for log in LOGS if log.statistics]) == 4


def test_a_figure_in_another_unit_is_found() -> None:
    """A TTFT in seconds under the name of milliseconds."""
    (text,) = timed_files.sweep_table([LOAD._replace(ttft=0.21e-3)])
    ((point,),) = (found.points for found in read(text) if isinstance(found, Sweep))
    assert wrong(point) == ["TTFT"]
