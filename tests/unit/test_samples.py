"""Samples of iterations out of logs, series and tables; what gives none is counted, or refused with its line."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import timed_files
from every import every
from sampled import parse_samples

from kvplan.errors import UsageError
from kvplan.ingest.engines import vllm
from kvplan.ingest.timing import collector
from kvplan.ingest.timing.samples import LeftOut, Point, Samples, Sweep

STATS = (
    "INFO 07-28 06:40:59 [loggers.py:118] Engine 000: Avg prompt throughput: 100.0 tokens/s, Avg generation "
    "throughput: 400.0 tokens/s, Running: 8 reqs, Waiting: 0 reqs, GPU KV cache usage: 50.0%, Prefix cache hit rate: "
    "0.0%\n"
)
CAPACITY = "INFO 02-19 23:56:55 kv_cache_utils.py:524] GPU KV cache size: 40,000 tokens\n"
ITERATION = (
    "(EngineCore_DP0 pid=1) INFO 07-08 00:00:02 [core.py:359] Iteration(7): 2 context requests, 1957 context tokens, "
    "43 generation requests, 43 generation tokens, iteration elapsed time: 125.94 ms"
)
DECODE = (
    "[2026-04-08 14:05:21 TP0] Decode batch, #running-req: 5, #token: 20800, token usage: 0.29, cuda graph: True, "
    "gen throughput (token/s): 200.00, #queue-req: 0\n"
)
PREFILL = "[2026-04-08 14:05:20 TP0] Prefill batch, #new-seq: 1, #new-token: 1000, #cached-token: 0, token usage: 0.1\n"
SERIES = "t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct\n"


def one(*lines: str, capacity: int | None = None) -> Samples:
    (found,) = parse_samples(lines, "file", capacity_tokens=capacity)
    assert isinstance(found, Samples)
    return found


def rows(samples: Samples) -> list[tuple[float, ...]]:
    """(K, P, B, τ) of each, rounded."""
    columns = (samples.kv_tokens, samples.prefill_tokens, samples.sequences, samples.seconds)
    return [tuple(round(float(v), 9) for v in row) for row in zip(*columns, strict=True)]


@pytest.mark.parametrize("line", [STATS, STATS.replace("Engine 000: ", ""), STATS.replace("\n", "\r\n")])
def test_vllm_stats_lines_give_an_average_iteration(line: str) -> None:
    found = one(CAPACITY, "something else\n", line)
    assert rows(found) == [(20_000, 2, 8, 0.02)]
    assert found.line.tolist() == [3]
    assert found.hidden_prefill
    assert found.format == "vLLM stats log"


HITS = STATS.replace("hit rate: 0.0%", "hit rate: 40.0%")
VERSION = "(APIServer pid=1) INFO 02-19 23:50:00 [api_server.py:1839] vLLM API server version {}\n"


@every(
    ("version", "prefill"),
    [
        (VERSION.format("0.11.0"), 1.2),
        (VERSION.format("v0.15.1"), 1.2),
        (VERSION.format("0.16.0rc1"), 2),
        ("INFO [core.py:58] Initializing a V1 LLM engine (v0.19.0) with config: model='m'\n", 2),
        (VERSION.format("1.0.0"), 2),
    ],
)
def test_hits_are_no_prefill_where_the_prompt_throughput_counts_them(version: str, prefill: float) -> None:
    """100 tokens/s for 20 ms are 2, of which 4 in 10 were found; from 0.16 on those are not among the 100."""
    found = one(version, CAPACITY, HITS)
    assert rows(found) == [(20_000, prefill, 8, 0.02)]
    assert [note.startswith("40% of the prompt throughput was found") for note in found.notes] == [True] * (
        prefill < 2
    )


@every(
    ("version", "hits", "loaded", "prefill", "said"),
    [
        ("0.11.2", 0, 70, 0.6, "tokens that a KV connector loaded count as found"),
        ("0.11.2", 0, 100, 0.0, "tokens that a KV connector loaded"),
        ("0.11.2", 40, 30, 0.6, "tokens that a KV connector loaded .* all prompt tokens, as before 0.14"),
        ("0.15.1", 40, 30, 0.84, "tokens that a KV connector loaded .* what the local cache missed"),
        ("0.16.0", 40, 30, 2.0, ""),
        ("0.10.2", 40, 0, 1.2, "requests wait while hit rates are stated: before vLLM 0.11"),
        ("0.11.0", 40, 0, 1.2, "40% of the prompt throughput was found"),
    ],
)
def test_loaded_and_recomputed_tokens_are_no_prefill_by_version(
    version: str, hits: int, loaded: int, prefill: float, said: str
) -> None:
    """Of 2 tokens in 20 ms; of 10 with a local hit 4, a connector loads 3 in 10 of all, or of the other 6."""
    stats = STATS.replace("Waiting: 0", "Waiting: 5").replace(
        "hit rate: 0.0%", f"hit rate: {hits}.0%, External prefix cache hit rate: {loaded}.0%"
    )
    found = one(VERSION.format(version), CAPACITY, stats)
    assert rows(found)[0][1] == pytest.approx(prefill)
    assert bool(said) == any(re.match(said, note) for note in found.notes)
    assert said or found.notes == ()


def test_engines_aggregated_are_the_mean_of_one() -> None:
    """Sums over 2 engines of 8 requests and 100 prompt tokens a second each; usage is their mean."""
    stats = STATS.replace("Engine 000", "2 Engines Aggregated").replace("100.0 tok", "200.0 tok")
    stats = stats.replace("Running: 8", "Running: 16").replace("400.0 tok", "800.0 tok")
    assert rows(one(CAPACITY, stats)) == rows(one(CAPACITY, STATS))


def test_a_log_without_a_version_is_corrected_and_that_is_said() -> None:
    found = one(CAPACITY, HITS, STATS)
    assert [row[1] for row in rows(found)] == [1.2, 2]
    assert [note[:30] for note in found.notes] == [
        "the log states no version of vLLM"[:30],
        "20% of the prompt throughput was"[:30],
    ]
    assert one(CAPACITY, STATS).notes == ()


def test_iteration_details_and_sglang_count_what_is_computed() -> None:
    assert rows(one(CAPACITY, HITS, ITERATION + "\n"))[0][1] == 1957
    hits = PREFILL.replace("#cached-token: 0", "#cached-token: 5000")
    assert rows(one(hits, DECODE)) == rows(one(PREFILL, DECODE))


def test_a_given_capacity_wins_over_what_a_log_states_and_that_over_an_assumed_one() -> None:
    """Half of 40,000, of what was given, of what was assumed."""
    assert rows(one(CAPACITY, STATS, capacity=1000))[0][0] == 500
    for first, kv_tokens in ((CAPACITY, 20_000), ("", 500)):
        (found,) = parse_samples([first, STATS], "log", assumed_tokens=1000)
        assert rows(found)[0][0] == kv_tokens


def test_idle_and_truncated_lines_are_counted() -> None:
    idle = STATS.replace("400.0", "0.0").replace("Running: 8", "Running: 0")
    found = one(CAPACITY, STATS, idle, STATS[:120], "\n", idle)
    assert len(rows(found)) == 1
    assert set(found.left_out) == {
        LeftOut("nothing was generated", 2, 3),
        LeftOut("cut off or in an unknown form", 1, 4),
    }


def test_iteration_details_are_exact_and_take_the_place_of_averages() -> None:
    found = one(CAPACITY, STATS, ITERATION + ", GPU KV cache usage: 75.0%\n", ITERATION + "\n", STATS)
    assert rows(found) == [(30_000, 1957, 45, 0.12594)] * 2
    assert not found.hidden_prefill
    assert found.left_out == (LeftOut("an average, where iterations are logged one by one", 2, 2),)


def test_iterations_without_kv_usage_and_dummies_are_counted() -> None:
    dummy = ITERATION + " (dummy), GPU KV cache usage: 75.0%\n"
    found = one(CAPACITY, ITERATION + "\n", dummy, ITERATION + "\n")
    assert found.line.tolist() == [4]
    assert found.left_out == (
        LeftOut("before the first line that states KV usage", 1, 2),
        LeftOut("a dummy iteration", 1, 3),
    )


def test_iterations_whose_result_was_there_before_the_engine_waited_are_counted() -> None:
    """The line is vLLM 0.27's, of its asynchronous scheduler, logged by the front end."""
    there = ITERATION.replace("125.94 ms", "0.03 ms") + ", GPU KV cache usage: 75.0%\n"
    found = one(CAPACITY, ITERATION + ", GPU KV cache usage: 75.0%\n", there)
    assert found.seconds.tolist() == [0.12594]
    assert found.left_out == (LeftOut("a result that was there before the engine waited for it", 1, 3),)


@pytest.mark.parametrize(
    "line", [DECODE, DECODE.replace("batch,", "batch."), DECODE.replace("cuda graph: True, ", "")]
)
def test_sglang_decode_lines_of_all_versions_are_read(line: str) -> None:
    found = one(line)
    assert rows(found) == [(20_800, 0, 5, 0.025)]
    assert found.format == "SGLang log"


def test_prefill_batches_between_two_sglang_lines_are_spread_over_the_iterations() -> None:
    """40 decode batches from line to line, or what the server says, and those that prefill."""
    assert rows(one(PREFILL, PREFILL, DECODE, DECODE))[0] == (20_800, 47.619047619, 5, 0.023809524)
    assert rows(one(PREFILL, PREFILL, DECODE, DECODE))[1] == (20_800, 0, 5, 0.025)
    assert rows(one("server_args=ServerArgs(decode_log_interval=8)\n", PREFILL, PREFILL, DECODE)) == [
        (20_800, 200, 5, 0.02)
    ]


def test_drafts_of_sglang_are_tokens_of_one_iteration() -> None:
    """40 × 3.2 tokens a sequence between the lines; a line cut off in the number says nothing."""
    drafts = DECODE.replace("cuda graph", "accept len: 3.20, accept rate: 0.77, cuda graph")
    found = one(drafts, drafts.replace("3.20", "3.2.0").replace("200.00", "100.00"))
    assert rows(found) == [(20_800, 0, 5, 0.08), (20_800, 0, 5, 0.05)]
    assert found.notes[0].startswith("with drafts an iteration emits 3.2 tokens a sequence")


def test_data_parallel_ranks_of_sglang_have_prefills_of_their_own() -> None:
    """Other ranks of one data-parallel rank repeat its lines; a service's name may look like a rank."""

    def by(ranks: str, line: str) -> str:
        return "tp1-0 | " + line.replace("TP0", ranks)

    lines = by("DP1 TP1", PREFILL), by("DP0 TP0", DECODE), by("DP1 TP1", DECODE), by("DP1 TP3", DECODE)
    found = one(*lines)
    assert rows(found) == [(20_800, 0, 5, 0.025), (20_800, 24.390243902, 5, 0.024390244)]
    assert found.left_out == (LeftOut("a rank that repeats another's lines", 1, 4),)
    assert found.group == "tp1-0"
    mixed = parse_samples([*lines, "b-1 | " + DECODE], "log")
    assert [some.group for some in mixed] == ["tp1-0", "b-1"]


def test_splitwise_measurements_give_a_prompt_and_a_token_sample_for_each_row() -> None:
    header = "model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,tensor_parallel\n"
    first, second = parse_samples(
        [header, "llama,a100,512,2,127,400.0,50.0,2\n", "llama,h100,512,2,127,200.0,25.0,2\n"], "file"
    )
    assert (first.group, second.group) == ("llama, a100, TP2", "llama, h100, TP2")
    assert rows(first) == [(1026, 1024, 2, 0.4), (1152, 0, 2, 0.05)]


@every(
    ("lines", "given"),
    [
        (("Concurrency,TPOT (ms),input_tokens,output tokens\n", "32,20,1000,199\n"), {}),
        (('{"concurrency": 32, "tpot_s": 0.02, "isl": 1000, "osl": 199}\n',), {}),
        (("concurrency,isl,osl,ttft_ms,tpot_ms\n", "32,1000,199,,20\n"), {}),
        (
            ("concurrency,isl,osl,ttft_ms,tpot_ms,rps\n", "32,1000,199,150,20,8\n"),
            {"ttft_s": 0.15, "throughput_rps": 8},
        ),
    ],
)
def test_rows_of_a_concurrency_sweep_are_points_of_a_closed_loop(
    lines: tuple[str, ...], given: dict[str, float]
) -> None:
    (found,) = parse_samples(lines, "file")
    assert isinstance(found, Sweep)
    line = len(lines)
    one = Point(line=line, inputs=(1000, 1000), outputs=(199, 199), concurrency=32, tpot_s=0.02)
    assert found.points == (replace(one, **given),)


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("kv_tokens,prefill_tokens,sequences,iteration_ms\n", "1000,20,3,12.5\n"),
        ("K,P,B,tau_s\n", "1000,20,3,0.0125\n"),
        ("seconds,running,KV tokens,P,comment\n", "0.0125,3,1000,20,x\n"),
    ],
)
def test_plain_tables_are_read_by_the_names_of_their_columns(header: str, row: str) -> None:
    assert rows(one(header, row)) == [(1000, 20, 3, 0.0125)]


def test_a_row_that_cannot_be_used_is_refused_with_line_and_column() -> None:
    with pytest.raises(
        UsageError, match=r"^file:3: iteration_ms: 'fast'; must be a number, from 0 to 1e\+12$"
    ):
        one("kv_tokens,iteration_ms\n", "1000,12\n", "1000,fast\n", "1000,12\n")
    with pytest.raises(UsageError, match=r"^file:2: iteration_ms: missing; must be a number"):
        one("kv_tokens,iteration_ms\n", "1000\n")
    for bad in ("-1", "nan", "inf", ""):
        with pytest.raises(UsageError, match=r"^file:2: kv_tokens: "):
            one("kv_tokens,iteration_ms\n", f"{bad},12\n")


@every(
    ("lines", "message"),
    [
        ((), "file: empty"),
        (("\n", " \n"), "file: empty"),
        (("hello\n", "world\n"), "file:1: no samples of iterations: neither lines that LMDeploy or SGLang"),
        (("a,b\n", "1,2\n"), "file:1: no samples of iterations"),
        (('{"a": 1}\n',), "file:1: no samples of iterations"),
        (("kv_tokens,iteration_ms\n",), "file:1: no samples of iterations"),
        ((SERIES, "1,1,1,1,1,50\n"), "file:2: KV usage is a share of a capacity that is not stated here"),
        ((CAPACITY, STATS.replace("50.0%", "500.0%")), "file:2: KV usage of 500 %; at most 100"),
        ((CAPACITY, STATS[:90]), r"file: no samples of iterations; 1 rows: cut off.* \(first: line 2\)"),
    ],
)
def test_what_holds_no_samples_is_refused(lines: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        one(*lines)


@pytest.mark.parametrize("form", timed_files.ITERATIONS, ids=lambda form: form.__name__)
def test_of_samples_without_end_some_are_read_evenly_and_as_all_are(
    form: Callable[[list[timed_files.Row]], Iterator[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = list(form([(400 * n, 10 * n % 70, n % 9 + 1, 0.01 + n / 1e5) for n in range(1, 901)]))
    every = one(*lines, capacity=timed_files.CAPACITY)
    known = dict(zip(every.line.tolist(), rows(every), strict=True))
    monkeypatch.setattr(collector, "_MOST_ROWS", 100)
    monkeypatch.setattr(vllm, "_MOST_AVERAGES", 100)
    few = one(*lines, capacity=timed_files.CAPACITY)
    assert 45 <= few.line.size <= 101
    assert [known[line] for line in few.line.tolist()] == rows(few)
    gaps = np.diff(few.line)
    assert gaps.max() <= 1.1 * np.median(gaps)  # lines of prefill batches stand between
