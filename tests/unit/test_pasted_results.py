"""Results as they are pasted: what a benchmark prints, tables in Markdown, and metrics in CSV."""

from typing import Any

import pytest
from every import every
from sampled import parse_samples

from kvplan.errors import UsageError
from kvplan.ingest.timing.samples import LeftOut, Point, Samples, Sweep

VLLM = """INFO 05-18 02:40:00 [serve.py:1] Namespace(backend='vllm', model='org/model', request_rate=inf)
Traffic request rate: inf
Maximum request concurrency: {users}
100%|██████████| 100/100
============ Serving Benchmark Result ============
Successful requests:                     100
Failed requests:                         0
Benchmark duration (s):                  50.00
Total input tokens:                      100,000
Total generated tokens:                  20000
Request throughput (req/s):              2.00
---------------Time to First Token----------------
Mean TTFT (ms):                          250.00
P99 TTFT (ms):                           900.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          20.00
==================================================
"""
SGLANG = """============ Serving Benchmark Result ============
Backend:                                 sglang
Traffic request rate:                    4.0
Max request concurrency:                 not set
Successful requests:                     100
Benchmark duration (s):                  50.00
Total input tokens:                      100000
Total generated tokens:                  20000
Total generated tokens (retokenized):    19990
Request throughput (req/s):              2.00
Concurrency:                             8.46
Accept length:                           {accepted}
Mean E2E Latency (ms):                   4230.00
Mean TTFT (ms):                          250.00
Mean TPOT (ms):                          20.00
==================================================
"""
METRICS = """Metric,avg,min,max
Time to First Token (ms),"{ttft}",100.0,300.0
Inter Token Latency (ms),20.00,18.0,22.0
Request Latency (ms),"4,230.00",4100.0,4300.0
Output Sequence Length (tokens),200.00,200.0,200.0
Input Sequence Length (tokens),"1,000.00",1000.0,1000.0

Metric,Value
Request Throughput (per sec),2.00
Request Count (count),100.00
"""
CONSOLE = """        NVIDIA GenAI-Perf | LLM Metrics
┏━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━┳━━━━━━━━━━┓
┃                      Statistic ┃      avg ┃      min ┃
┡━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━╇━━━━━━━━━━┩
│       Time to first token (ms) │   250.00 │   100.00 │
│       Inter token latency (ms) │    20.00 │    18.00 │
│           Request latency (ms) │ 4,230.00 │ 4,100.00 │
│         Output sequence length │   200.00 │   200.00 │
│          Input sequence length │ 1,000.00 │ 1,000.00 │
│             Request Throughput │     2.00 │      N/A │
│                 (requests/sec) │          │          │
│          Request Count (count) │   100.00 │      N/A │
└────────────────────────────────┴──────────┴──────────┘
"""
MARKDOWN = """# Results

| Setting | Value |
| --- | --- |
| GPU | H100 |

| ISL | OSL | Concurrency | TTFT (ms) | **TPOT (ms)** | E2EL (ms) |
|----:|:---:|-------------|-----------|---------------|-----------|
| 1,000 | 200 | 8  | 250.0 | 20.0 | - |
| 1,000 | 200 | 16 | 500.0 | `25.0` | n/a |

Thanks!
"""


def sweep(text: str) -> Sweep:
    (found,) = parse_samples(text.splitlines(keepends=True), "file")
    assert isinstance(found, Sweep)
    return found


def times(point: Point) -> tuple[Any, ...]:
    return point.inputs, point.outputs, point.concurrency, point.requests, point.ttft_s, point.tpot_s


AS_PRINTED = ((1000, 1000), (200, 200), 8, 100, 0.25, 0.02)


@every(
    ("text", "format"),
    [
        (VLLM.format(users=8), "printed benchmark"),
        (SGLANG.format(accepted=1.0), "printed benchmark"),  # 2 completed of 4 a second, 4.23 s each
        (METRICS.format(ttft="250.00"), "GenAI-Perf CSV"),
        (CONSOLE, "GenAI-Perf CSV"),
    ],
)
def test_a_pasted_result_is_a_run_at_one_load(text: str, format: str) -> None:
    found = sweep(text)
    assert found.format == format
    assert [times(point) for point in found.points] == [AS_PRINTED]


@every("text", [METRICS.format(ttft="250.00"), CONSOLE])
def test_metrics_that_come_again_are_those_of_another_run(text: str) -> None:
    found = sweep(text + text.replace("2.00", "4.00"))
    assert [point.concurrency for point in found.points] == [8, 17]  # 2 and 4 a second, 4.23 s each


@every(
    ("columns", "row", "expected"),
    [
        ("Users, ISL, OSL, TTFT (s), TPOT (us)", "8, 1000, 200, 0.25, 20000", (8, None, 0.25, 0.02)),
        (
            "Concurrency, ISL, OSL, avg TTFT (ms), Mean ITL (ms)",
            "8, 1000, 200, 250, 20",
            (8, None, 0.25, 0.02),
        ),
        (
            "Request rate (req/s), ISL, OSL, TTFT (ms), TPOT (ms)",
            "2, 1000, 200, 250, 20",
            (None, 2, 0.25, 0.02),
        ),
    ],
)
def test_columns_have_the_names_that_people_give_them(
    columns: str, row: str, expected: tuple[float | None, ...]
) -> None:
    lines = (columns, row)
    rule = "+".join("-" * 4 for _ in row.split(","))
    cells = [f"| {' | '.join(line.split(', '))} |" for line in lines]
    for text in (f"{columns}\n{row}\n", f"+{rule}+\n{cells[0]}\n+{rule}+\n{cells[1]}\n+{rule}+\n"):
        (point,) = sweep(text).points
        assert (point.concurrency, point.rate_rps, point.ttft_s, point.tpot_s) == pytest.approx(expected)


def test_tokens_per_second_make_requests_per_second() -> None:
    (point,) = sweep("Concurrency,ISL,OSL,Output throughput (tok/s)\n8,1000,200,400\n").points
    assert point.throughput_rps == 2


def test_no_more_requests_are_in_flight_than_a_run_has() -> None:
    (point,) = sweep(VLLM.format(users=256)).points
    assert point.concurrency == 100


def test_a_table_of_other_things_does_not_hide_a_printed_result() -> None:
    table = MARKDOWN[: MARKDOWN.index("| ISL")]
    assert [times(point) for point in sweep(table + VLLM.format(users=8)).points] == [AS_PRINTED]


def test_several_blocks_are_several_loads_and_one_that_is_cut_off_is_left_out() -> None:
    found = sweep(
        VLLM.format(users=8) + "some other line: 7\n" + VLLM.format(users=16) + VLLM.format(users=32)[:600]
    )
    assert [point.concurrency for point in found.points] == [8, 16]
    assert found.deployment.name == "org/model, vllm"
    assert found.left_out == (LeftOut("cut off, or without totals of tokens and mean times", 1, 40),)


def test_a_block_without_a_load_has_what_littles_law_says() -> None:
    """4.23 s each, 2 a second."""
    found = sweep("\n".join(VLLM.format(users=8).splitlines()[4:]))
    assert [point.concurrency for point in found.points] == [8]
    assert found.notes[0].startswith("a run states neither rate nor concurrency")


def test_where_as_many_were_in_flight_as_there_were_all_came_at_once() -> None:
    """By Little's law 8 would be; a limit that is stated is none the less one."""
    unsaid = "\n".join(VLLM.format(users=8).splitlines()[4:])
    for peak, users in ((100, 100), (99, 8)):
        (point,) = sweep(
            unsaid.replace("Total input", f"Peak concurrent requests: {peak}.00\nTotal input")
        ).points
        assert point.concurrency == users
    limited = VLLM.format(users=8).replace("Total input", "Peak concurrent requests: 100.00\nTotal input")
    assert sweep(limited).points[0].concurrency == 8


def test_mean_latency_is_that_of_whole_requests() -> None:
    """A client that gets tokens in bursts: 4.23 s less .25 s are 199 gaps, whatever it says of them."""
    text = VLLM.format(users=8).replace(
        "Mean TPOT (ms):                          20.00", "Mean TPOT (ms): 0.11"
    )
    (point,) = sweep(
        text.replace("---------------Time to", "Mean Latency(s): 4.23\n---------------Time to")
    ).points
    assert (point.e2e_s, point.tpot_s) == (4.23, pytest.approx((4.23 - 0.25) / 199))


SERVED = (
    "vllm serve org/m", "vllm serve org/m --quantization awq", "python -m sglang.launch_server --model-path org/m",
          "trtllm-serve serve org/m")  # fmt: skip


def test_the_command_before_a_block_says_what_was_served() -> None:
    """Blocks of one are pooled; those of others never are."""
    block = "\n".join(VLLM.format(users=8).splitlines()[1:]) + "\n"
    other = block.replace("20.00", "20.10")
    page = "".join(f"$ `{command}`\n\n{block}{other}" for command in SERVED)
    found = parse_samples(page.splitlines(keepends=True), "file")
    assert [(some.group, len(some.points)) for some in found if isinstance(some, Sweep)] == [
        ("org/m, vllm", 2), ("org/m, vllm, --quantization awq", 2), ("org/m, sglang", 2), ("org/m, trtllm", 2),
    ]  # fmt: skip


def test_words_about_serving_are_no_command() -> None:
    found = sweep("Here vllm serve - as ever - was fast; we serve 8 users.\n" + VLLM.format(users=8))
    assert found.deployment.name == "org/model, vllm"


def test_a_column_named_as_an_argument_of_the_engine_tells_replicas_apart() -> None:
    """Where all rows have the same it says nothing."""
    row = "8,1000,200,250,20,{},128\n"
    header = "Concurrency,ISL,OSL,TTFT (ms),TPOT (ms),quantization,max_num_seqs\n"
    found = parse_samples([header, row.format("awq"), row.format("fp8")], "file")
    assert [some.group for some in found] == ["quantization awq", "quantization fp8"]
    assert sweep(header + 2 * row.format("awq")).group == ""


def test_runs_with_drafts_are_left_out() -> None:
    with pytest.raises(
        UsageError, match=r"1 rows: a run with drafts, which emit several tokens an iteration"
    ):
        sweep(SGLANG.format(accepted=3.13))


def test_a_table_in_markdown_is_read_as_csv_wherever_it_stands() -> None:
    found = sweep(MARKDOWN)
    assert [(point.line, *times(point)) for point in found.points] == [
        (9, (1000, 1000), (200, 200), 8, None, 0.25, 0.02),
        (10, (1000, 1000), (200, 200), 16, None, 0.5, 0.025),
    ]


@every(
    ("text", "message"),
    [
        (VLLM.format(users="many"), "file:5: Maximum request concurrency: 'many'; must be a number"),
        (VLLM.format(users=8)[:500], "no samples of iterations; 1 rows: cut off"),
        (METRICS.format(ttft="fast"), r"Time to First Token \(ms\): 'fast'; must be a number"),
        (METRICS[:120].format(ttft="250.0"), "no samples of iterations"),
        (MARKDOWN[:60], "no samples of iterations"),
        (MARKDOWN.replace("TTFT (ms)", "TTFT"), "TTFT: names no unit; call it TTFT_ms or TTFT_s"),
        (
            VLLM.format(users=8).replace("rate: inf\n", "rate: 2.0\nBurstiness factor: 0.2 (Gamma)\n"),
            "1 rows: arrivals of a burstiness other than 1",
        ),
        (MARKDOWN.replace("20.0", "fast"), r"file:9: TPOT \(ms\): 'fast'; must be a number"),
    ],
)
def test_what_cannot_be_used_is_refused_with_line_and_label(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sweep(text)


SUMMARIES = {
    "evalscope perf": """
| Number of concurrency             | {users}  |
| Succeed requests                  | 100      |
| Request throughput (req/s)        | 2.0      |
| Average latency (s)               | 4.23     |
| Average time to first token (s)   | 0.25     |
| Average time per output token (s) | 0.02     |
| Average input tokens per request  | 1000.0   |
| Average output tokens per request | 200.0    |
""",
    "trtllm-bench": """
Number of requests:             100
Number of concurrent requests:  {users}
Average Input Length (tokens):  1000.0000
Average Output Length (tokens): 200.0000
Request Throughput (req/sec):                     2.0000
Average request latency (ms):                     4230.0
Average time-to-first-token [TTFT] (ms):          250.0
Average time-per-output-token [TPOT] (ms):        20.0
""",
    "evalscope perf, as of 1.0": """
┌───────────────────────────┬───────────────┐
│ Metric                    │         Value │
├───────────────────────────┼───────────────┤
│ ── General ──             │               │
│ Concurrency               │ {users}       │
│ Request Rate (req/s)      │         -1.00 │
│ Total / Success / Failed  │ 100 / 100 / 0 │
│ Req Throughput (req/s)    │          2.0  │
│ Avg Latency (s)           │          4.23 │
│ TTFT (ms)                 │        250.00 │
│ TPOT (ms)                 │         19.00 │
│ Avg Input Tokens          │       1000.00 │
│ Avg Output Tokens         │        200.00 │
└───────────────────────────┴───────────────┘
│ TTFT (ms)      │  176.30 │  212.60 │  246.76 │
│ TPOT (ms)      │   16.61 │   16.80 │   17.02 │
""",
}


@pytest.mark.parametrize("name", SUMMARIES)
def test_lines_of_a_figure_each_are_a_run_and_one_that_comes_again_another(name: str) -> None:
    text = f"Benchmarking summary:{SUMMARIES[name].format(users=8)}"
    found = sweep(text)
    assert found.format == name.partition(",")[0]
    assert [(*times(point)[:-1], round(point.tpot_s or 0, 6)) for point in found.points] == [AS_PRINTED]
    other = SUMMARIES[name].format(users=9).replace("2.0 ", "2.1 ").replace("1000.0", "1001.0")
    assert [point.concurrency for point in sweep(text + other).points] == [8, 9]


def test_a_summary_that_lacks_a_figure_is_left_out_or_refused() -> None:
    without = SUMMARIES["evalscope perf"].format(users=8)
    with pytest.raises(UsageError, match="states neither lengths, requests per second nor E2E"):
        sweep(without.replace("Average latency", "Other latency"))
    with pytest.raises(UsageError, match="neither lines that"):
        sweep(without.replace("input tokens", "prompt words"))


def test_lengths_that_trtllm_bench_prints_elsewhere_are_tokens_per_request() -> None:
    """2,400 tokens/s of 2 requests/s are 1,200 each, of which 200 are out; in flight are 2 times 4.23."""
    lines = SUMMARIES["trtllm-bench"].splitlines()[5:]
    totals = "Total Output Throughput (tokens/sec): 400.0\nTotal Token Throughput (tokens/sec): 2400.0\n"
    (point,) = sweep("\n".join(lines) + "\n" + totals).points
    assert (point.inputs, point.outputs, point.concurrency) == ((1000, 1000), (200, 200), 8)


def test_mlperf_may_state_tokens_per_second_twice() -> None:
    """43.45 and 43.08: an end that is cut off is counted otherwise."""
    text = """
Scenario : Server
Completed samples per second    : 0.11
Completed tokens per second: 43.45
Scheduled samples per second : 0.12
Mean latency (ns)               : 4335286743
Completed tokens per second                 : 43.08
Mean First Token latency (ns)               : 169476022
Mean Time to Output Token (ns)              : 36800000
"""
    with pytest.raises(
        UsageError, match=r"0.11 requests/s, TTFT 169 ms, .* 395 tokens out, but no length of prompts"
    ):
        sweep(text)


TABLES = {
    "means behind the names": """
| ISL | OSL | Concur |  N  | TTFT Avg (ms) | TTFT P99 (ms) | TPOT Avg (ms) | E2EL Avg (ms) | Req/s |
|-----|-----|--------|-----|---------------|---------------|---------------|---------------|-------|
| 1000 | 200 |     8 | 100 |         250.0 |         662.0 |          20.0 |        4230.0 |  2.0  |
""",
    "quoted": """
> ┏━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━┳━━━━━━━━┓
> ┃                       Statistic ┃      avg ┃    min ┃
> ┡━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━╇━━━━━━━━┩
> │        Time To First Token (ms) │   250.00 │ 538.11 │
> │            Request Latency (ms) │ 4,230.00 │ 216.85 │
> │        Inter Token Latency (ms) │    20.00 │  16.48 │
> │ Output Sequence Length (tokens) │   200.00 │ 150.00 │
> │  Input Sequence Length (tokens) │ 1,000.00 │ 999.00 │
> │    Request Throughput (per sec) │     2.00 │    N/A │
> │           Request Count (count) │   100.00 │    N/A │
> └─────────────────────────────────┴──────────┴────────┘
""",
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_that_people_have(name: str) -> None:
    (point,) = sweep(TABLES[name]).points
    assert times(point) == AS_PRINTED
    assert point.requests == 100


@every(("per_second", "expected"), [(600.0, 3.0), (79.0, None)])
def test_tokens_per_second_are_of_all_requests_or_by_the_times_of_one(
    per_second: float, expected: float | None
) -> None:
    """8 in flight take .1 + 199 · .0125 = 2.59 s for 200 tokens: 77 a second each, 618 together."""
    header = "concurrency,input_tokens,output_tokens,ttft_ms,tpot_ms,output_tokens_per_second\n"
    found = sweep(f"{header}8,1000,200,100,12.5,{per_second}\n")
    assert found.points[0].throughput_rps == expected
    assert found.points[0].tpot_s == 0.0125
    assert any("is that of one request" in note for note in found.notes) is (expected is None)


def test_medians_alone_are_no_means() -> None:
    with pytest.raises(UsageError, match="no mean of TTFT, TPOT or E2E is stated"):
        sweep("concurrency,input_tokens,output_tokens,median_ttft_ms,median_tpot_ms\n8,1000,200,100,12\n")


def test_a_table_with_the_means_of_two_runs_has_two() -> None:
    lines = TABLES["quoted"].replace("   250.00 │ 538.11", "   250.00 │ 350.00").replace("min", "long avg")
    rows = (
        lines.replace("216.85", "8330.00")
        .replace("16.48", "20.0")
        .replace("150.00", "400.00")
        .replace("999.00", "1000")
    )
    found = sweep(rows.replace("N/A", "2.00", 1).replace("N/A", "100"))
    assert [(point.outputs, point.e2e_s) for point in found.points] == [
        ((200, 200), 4.23),
        ((400, 400), 8.33),
    ]


def test_decoding_of_llama_cpp_is_an_iteration() -> None:
    """8 sequences of 512 and then 128 tokens in 2.56 s; one behind 4,096 others in 1.28 s."""
    batched = "|    PP |     TG |    B |   N_KV |   T_PP s |   T_TG s |\n|---|---|---|---|---|---|\n"
    batched += "|   512 |    128 |    8 |   5120 |    1.000 |    2.560 |\n"
    swept = "|    PP |     TG |   N_KV |   T_PP s |   T_TG s |\n|---|---|---|---|---|\n"
    swept += "|   512 |    128 |   4096 |    1.000 |    1.280 |\n"
    rows = []
    for text in (batched, swept):
        (found,) = parse_samples(text.splitlines(keepends=True), "file")
        assert isinstance(found, Samples)
        rows.append((found.kv_tokens.tolist(), found.sequences.tolist(), found.seconds.tolist()))
    assert rows == [([8 * (512 + 64)], [8], [0.02]), ([4096 + 512 + 64], [1], [0.01])]


def test_figures_of_a_panel_have_their_scale() -> None:
    header = "Time,Prompt Throughput,Gen Throughput,Running,KV Cache Pct\n"
    rows = "2026-11-27 00:00:00,1.2 K,400,8,50%\n2026-11-27 00:01:00,1200,400,8,50\n"
    (found,) = parse_samples((header + rows).splitlines(keepends=True), "file", capacity_tokens=1000)
    assert isinstance(found, Samples)
    assert found.prefill_tokens.tolist() == [pytest.approx(1200 * 0.02)] * 2
    assert found.kv_tokens.tolist() == [500, 500]
