"""Result files of load generators as points of a sweep, in the forms their projects write."""

import json
from typing import Any

import numpy as np
import pytest
from every import every
from result_files import (
    FORWARD_PASS,
    INFERENCEMAX,
    PHASE,
    SGLANG,
    VLLM,
    aiperf,
    guidellm,
    metric,
    report,
    stage,
)
from sampled import parse_samples

from kvplan.errors import UsageError
from kvplan.ingest.results import INFERENCEMAX_PROTOCOL
from kvplan.ingest.timing.samples import Deployment, LeftOut, Measured, Point, Samples, Sweep, Waits


def read(*documents: Any, indent: int | None = None) -> tuple[Measured, ...]:
    """What documents say that are written one after the other."""
    text = "".join(json.dumps(document, indent=indent) + "\n" for document in documents)
    return parse_samples(text.splitlines(keepends=True), "file")


def sweep(*documents: Any, indent: int | None = None) -> Sweep:
    (found,) = read(*documents, indent=indent)
    assert isinstance(found, Sweep)
    return found


def point(*documents: Any) -> Point:
    (found,) = sweep(*documents).points
    return found


def samples(*documents: Any) -> Samples:
    (found,) = read(*documents)
    assert isinstance(found, Samples)
    return found


def test_a_result_of_vllm_bench_is_a_point_of_a_closed_loop() -> None:
    found = sweep(VLLM)
    assert found.points == (
        Point(
            line=1,
            inputs=(1000, 1000),
            outputs=(200, 200),
            concurrency=32,
            requests=100,
            ttft_s=0.25,
            tpot_s=0.02,
            throughput_rps=7.0,
        ),
    )
    assert found.deployment == Deployment(model="meta-llama/Llama-3.1-8B", engine="vllm")
    assert found.format == "bench result"


def test_results_are_read_from_lines_from_documents_and_from_lists() -> None:
    other = VLLM | {"max_concurrency": 64}
    for documents, indent, lines in (
        ((VLLM, other), None, [1, 2]),
        ((VLLM, other), 2, [1, len(VLLM) + 3]),
        (([VLLM, other],), 2, [2, len(VLLM) + 4]),
    ):
        points = sweep(*documents, indent=indent).points
        assert [point.concurrency for point in points] == [32, 64]
        assert [point.line for point in points] == lines


def test_the_backend_of_a_client_is_an_engine_only_by_an_engines_name() -> None:
    for backend, engine in (
        ("openai-chat", ""),
        ("openai", ""),
        ("vllm-chat", "vllm"),
        ("tensorrt-llm", "trtllm"),
    ):
        assert sweep(VLLM | {"backend": backend}).deployment.engine == engine


def test_beyond_what_the_engine_keeps_up_with_requests_in_flight_follow_from_littles_law() -> None:
    """7 completed per second, 4.23 s each, are 29.6 in flight."""
    late = VLLM | {"request_rate": 14.0, "max_concurrency": None}
    assert (point(late).rate_rps, point(late).concurrency) == (None, 30)
    assert point(late | {"max_concurrency": 25}).concurrency == 25


def test_tokens_that_the_cache_had_are_counted_for_each_prompt() -> None:
    assert point(VLLM | {"total_cached_tokens": 38_000}).cached_tokens == 380
    assert sweep(SGLANG | {"total_cached_tokens": None}).points[0].cached_tokens == 0
    with pytest.raises(UsageError, match=r":1: 1,010 tokens cached of a prompt of 1,000"):
        point(VLLM | {"total_cached_tokens": 101_000})


@every(
    ("change", "reason"),
    [
        ({"completed": 0}, "nothing was generated"),
        ({"total_output_tokens": 0}, "nothing was generated"),
        ({"ramp_up_strategy": "linear"}, "a rate that rose while it was measured"),
        ({"request_rate": "trace"}, "arrivals of a trace, which are no steady load"),
    ],
)
def test_runs_that_are_no_steady_load_are_left_out(change: dict[str, Any], reason: str) -> None:
    found = sweep(VLLM, VLLM | change)
    assert len(found.points) == 1
    assert found.left_out == (LeftOut(reason, 1, 2),)


def test_inferencemax_draws_lengths_and_counts_tokens_of_each_gpu() -> None:
    """900 tokens/s on each of 4 GPUs, 1,800 tokens a request: 2 requests/s."""
    found = sweep([INFERENCEMAX], indent=2)
    assert found.points == (
        Point(
            line=2,
            inputs=(800, 1000),
            outputs=(1600, 2000),
            concurrency=64,
            ttft_s=0.12,
            tpot_s=0.011,
            e2e_s=20.0,
            throughput_rps=2.0,
        ),
    )
    assert found.group == "openai/gpt-oss-120b, b200, vllm, TP4, fp4"
    assert found.notes == (INFERENCEMAX_PROTOCOL,)


def test_deployments_of_inferencemax_are_told_apart_and_split_ones_left_out() -> None:
    spread_out = {"ep": 4, "dp_attention": "true", "spec_decoding": "mtp", "framework": "trt"}
    found = read(INFERENCEMAX, INFERENCEMAX | spread_out, INFERENCEMAX | {"disagg": True})
    assert [some.group for some in found] == [
        "openai/gpt-oss-120b, b200, vllm, TP4, fp4",
        "openai/gpt-oss-120b, b200, trtllm, TP4 EP4, fp4, DP attention, mtp",
    ]
    assert found[0].left_out == (LeftOut("prefill and decode on machines of their own", 1, 3),)


@every(
    ("strategy", "load"),
    [
        ({"type_": "synchronous"}, (1, None, False)),
        ({"type_": "concurrent", "streams": 8}, (8, None, False)),
        ({"type_": "throughput", "max_concurrency": None}, (8, None, False)),  # 4 per second, 2 s each
        ({"type_": "throughput", "max_concurrency": 6}, (6, None, False)),
        ({"type_": "constant", "rate": 4.1}, (None, 4.1, True)),
        ({"type_": "poisson", "rate": 4.1}, (None, 4.1, False)),
        ({"type_": "poisson", "rate": 9.0}, (8, None, False)),
        ({"type_": "poisson", "rate": 9.0, "max_concurrency": 7}, (7, None, False)),
    ],
)
def test_every_strategy_of_guidellm_is_a_load(strategy: dict[str, Any], load: tuple[Any, ...]) -> None:
    found = point(report(guidellm(strategy)))
    assert (found.concurrency, found.rate_rps, found.evenly) == load


def test_guidellm_before_0_4_has_its_strategy_among_the_arguments_and_totals_beside_the_metrics() -> None:
    older = guidellm({})
    older["args"] = older.pop("config") | {"strategy": {"type_": "concurrent", "streams": 8}}
    older["worker"] = {"backend_model": "org/older"}
    older["request_totals"] = older["metrics"].pop("request_totals")
    found = sweep(report(older))
    assert (found.points[0].concurrency, found.group) == (8, "org/older")


def test_loads_of_guidellm_that_are_not_steady_are_left_out() -> None:
    found = sweep(report(guidellm({"type_": "synchronous"}), guidellm({"type_": "trace"})))
    assert found.left_out == (LeftOut("arrivals that are no steady load", 1, 1),)


@every(
    ("config", "load"),
    [
        ({"loadgen": {"concurrency": 8}}, (8, None, False)),
        ({"loadgen": {}}, (8, None, False)),  # 4 per second, 2 s each
        ({"loadgen": {"request_rate": 4.1, "request_rate_mode": "constant"}}, (None, 4.1, True)),
        (
            {"loadgen": {"request_rate": 9.0, "request_rate_mode": "poisson", "concurrency": 7}},
            (7, None, False),
        ),
        ({"phases": [PHASE]}, (8, None, False)),
        ({"phases": [PHASE | {"exclude_from_results": True, "concurrency": 2}, PHASE]}, (8, None, False)),
        ({"phases": [{"name": "p", "type": "poisson", "rate": 4.1}]}, (None, 4.1, False)),
        ({"perf_analyzer": {"stimulus": {"concurrency": 8}}}, (8, None, False)),
        ({"perf_analyzer": {"stimulus": {"request_rate": 4.1}}}, (None, 4.1, False)),
    ],
)
def test_loads_of_aiperf_and_genai_perf_stand_in_their_configuration(
    config: dict[str, Any], load: tuple[Any, ...]
) -> None:
    found = point(aiperf(config))
    assert (found.concurrency, found.rate_rps, found.evenly) == load


def test_aiperfs_times_have_the_unit_that_it_names() -> None:
    found = sweep(aiperf({"endpoint": {"model_names": ["org/model"]}}, request_latency=metric(2.0, "s")))
    (one,) = found.points
    assert (one.ttft_s, one.tpot_s, one.e2e_s, one.throughput_rps) == pytest.approx((0.2, 0.018, 2.0, 4.0))
    assert (one.inputs, one.outputs, one.requests) == ((512, 512), (101, 101), 80)
    assert found.group == "org/model"
    with pytest.raises(
        UsageError, match=r"^file:1: time_to_first_token.unit: 'weeks'; must be one of ns, us, ms, s, sec$"
    ):
        read(aiperf({}, time_to_first_token=metric(1.0, "weeks")))


@every(
    ("document", "reason"),
    [
        (aiperf({}, is_complete=False), "a run that was cut short"),
        (aiperf({}, was_cancelled=True), "a run that was cut short"),
        (aiperf({}, request_count=metric(0.0, "requests")), "nothing was generated"),
        (aiperf({"phases": [{"type": "fixed_schedule"}]}), "arrivals that are no steady load"),
    ],
)
def test_runs_of_aiperf_that_are_no_steady_load_are_left_out(document: dict[str, Any], reason: str) -> None:
    assert sweep(aiperf({}), document).left_out == (LeftOut(reason, 1, 2),)


def test_inference_perfs_time_between_tokens_is_taken_from_e2e_and_ttft() -> None:
    found = sweep(stage(10.0, 10.02, 9.9, 0.73))
    (one,) = found.points
    assert one.tpot_s == pytest.approx(0.63 / 63)
    assert (one.ttft_s, one.e2e_s, one.throughput_rps) == (0.1, 0.73, 9.9)
    assert (one.concurrency, one.rate_rps, one.evenly) == (None, 10.02, False)
    assert (one.inputs, one.outputs, one.requests) == ((195, 205), (64, 64), 600)
    assert found.notes == (
        "inference-perf's time per output token counts empty chunks; TPOT is (E2E - TTFT) / (output tokens - 1)",
        "percentiles of times are left out: their means count",
    )


def test_a_stage_of_fixed_concurrency_is_a_closed_loop() -> None:
    fixed = stage(10.0, 10.0, 9.9, 0.73)
    fixed["load_summary"]["concurrency"] = 6
    assert point(fixed).concurrency == 6


def test_what_a_table_says_of_its_runs_is_played_left_out_or_noted() -> None:
    header = "backend,concurrency,input,output,tpot_ms,speculative,warmed_up,receive_every_steps,batch_wait_tokens\n"
    (found,) = parse_samples(
        [
            header,
            "sglang,8,100,50,9,no,yes,30,\n",
            "sglang,16,100,50,11,unclear,no,1,0\n",
            "sglang,32,100,50,7,yes,yes,1,0\n",
        ],
        "file",
    )
    assert isinstance(found, Sweep)
    assert [(point.concurrency, point.waits) for point in found.points] == [(8, Waits(30)), (16, Waits())]
    assert [(left.count, left.line) for left in found.left_out] == [(1, 4)]
    said = (
        "all requests of the lengths stated",
        "receive_every_steps = 30",
        "had drafts is unclear",
        "not warmed up",
    )
    assert len(found.notes) == len(said)
    assert all(any(words in note for note in found.notes) for words in said)


def test_rate_sweeps_in_tables_say_what_was_asked_for_sent_and_done() -> None:
    header = "variant,max_num_seqs,requested_rps,achieved_rps,done_rps,input,output,ttft_s,e2e_s\n"
    (found,) = parse_samples(
        [header, "a,128,10,10.02,9.9,200.2,64,0.1,0.73\n", "a,128,20,12,11.9,200,64,2.1,4.0\n"], "file"
    )
    assert isinstance(found, Sweep)
    assert [(point.rate_rps, point.concurrency) for point in found.points] == [(10.02, None), (None, 48)]
    assert found.points[0].tpot_s == pytest.approx(0.01)
    assert found.group == "a"


def test_an_answer_takes_its_first_token_and_the_times_between_the_others() -> None:
    header = "requested_rps,done_rps,input,output,ttft_s,tpot_s\n"
    (found,) = parse_samples([header, "10,9.9,200,64,0.1,0.01\n", "20,19.8,200,64,0.1,0.01\n"], "file")
    assert isinstance(found, Sweep)
    assert found.points[0].e2e_s == pytest.approx(0.1 + 63 * 0.01)


ENVELOPE = {"timestamp": 1250, "event": {"schema": "dynamo.fpm.trace.v1", "fpm": FORWARD_PASS}}


@pytest.mark.parametrize("document", [FORWARD_PASS, {"fpm": FORWARD_PASS}, ENVELOPE])
def test_forward_passes_are_iterations(document: dict[str, Any]) -> None:
    """KV that is read, and that of the prompts computed; two prompts and three requests that decode."""
    found = samples(document)
    assert found.kv_tokens.tolist() == [1024 + 64 + 256]
    assert found.prefill_tokens.tolist() == [256]
    assert found.sequences.tolist() == [5]
    assert found.seconds.tolist() == [0.025]
    assert not found.hidden_prefill
    assert found.notes == ()


def without(document: dict[str, Any], path: str) -> dict[str, Any]:
    """The document less what stands there."""
    changed = json.loads(json.dumps(document))
    *within, last = path.split(".")
    place = changed
    for key in within:
        place = place[int(key)] if key.isdigit() else place[key]
    del place[last]
    return changed


@every(
    ("document", "message"),
    [
        (VLLM | {"mean_tpot_ms": float("nan")}, "file:1: mean_tpot_ms: NaN; must be a number"),
        (VLLM | {"mean_tpot_ms": -1}, "file:1: mean_tpot_ms: -1; must be a number, from 0"),
        (VLLM | {"mean_tpot_ms": 0}, "file:1: a time of 0 s; must be from"),
        (VLLM | {"mean_ttft_ms": "fast"}, "file:1: mean_ttft_ms: 'fast'; must be a number"),
        (VLLM | {"max_concurrency": 0}, "file:1: max_concurrency: 0; must be a whole number of at least 1"),
        (VLLM | {"max_concurrency": 2.5}, "file:1: max_concurrency: 2.5; must be a whole number"),
        (VLLM | {"completed": True}, "file:1: completed: true; must be a number"),
        (VLLM | {"request_rate": 0}, "file:1: request_rate: 0; must be above 0"),
        (VLLM | {"request_rate": [1]}, r"file:1: request_rate: \[1\]; must be a number"),
        (
            VLLM | {"input_lens": [1], "output_lens": [1, 2]},
            "file:1: output_lens: 2 lengths, and input_lens has 1",
        ),
        (
            VLLM | {"input_lens": "x", "output_lens": [1]},
            "file:1: input_lens: must be a list of whole numbers",
        ),
        (INFERENCEMAX | {"conc": 0}, "file:1: conc: 0; must be a whole number of at least 1"),
        (
            report(guidellm({"type_": "concurrent"})),
            r"file:1: benchmarks\[0\].config.strategy.streams: missing",
        ),
        (
            report(guidellm({"type_": "poisson", "rate": 0})),
            r"file:1: benchmarks\[0\].config.strategy.rate: 0",
        ),
        (
            without(report(guidellm({"type_": "synchronous"})), "benchmarks.0.metrics.request_latency"),
            r"file:1: benchmarks\[0\].metrics.request_latency.successful.mean: missing; must be a number",
        ),
        (report(), "file:1: no samples of iterations"),
        (
            aiperf({"phases": [PHASE, PHASE]}),
            "file:1: input_config.phases: 2 phases are measured; must be one",
        ),
        (aiperf({"phases": 3}), "file:1: input_config.phases: must be a list of objects"),
        (without(aiperf({}), "output_sequence_length"), "file:1: output_sequence_length.avg: missing"),
        (
            without(stage(1, 1, 1, 1), "successes.latency"),
            "file:1: successes.latency: missing: what the server",
        ),
        (
            without(stage(1, 1, 1, 1), "load_summary.requested_rate"),
            "file:1: load_summary.requested_rate: missing: several stages in one",
        ),
        (FORWARD_PASS | {"version": 2}, "file:1: version: 2; must be 1"),
        (FORWARD_PASS | {"wall_time": 1e9}, r"file:1: an iteration of 1e\+09 s; must be from"),
        (FORWARD_PASS | {"wall_time": "long"}, "file:1: wall_time: 'long'; must be a number"),
    ],
)
def test_results_that_cannot_be_used_are_refused_with_line_and_key(document: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        read(document)


@every(
    ("text", "message"),
    [
        ('{\n"completed": 1,\n', "file:3: not JSON: .*; is the file cut off?"),
        ('[\n{"kv_tokens": 1, "iteration_ms": 9},\n{"kv"', "file:3: not JSON: .*; is the file cut off?"),
        (
            '[\n{"kv_tokens": 1, "iteration_ms": 9}\n',
            "file:2: not JSON: the list has no end; is the file cut off?",
        ),
        ("[\n]\n", "file:1: no samples of iterations"),
        ("[\n3]\n", "file:2: not a JSON object: '3'"),
        ('{"a":\n' * 100_000, "file:1: JSON too deep, or a number too long"),
        ('{"a":\n' + "9" * 5000 + "}", "file:1: JSON too deep, or a number too long"),
    ],
)
def test_documents_that_are_no_json_are_refused_with_the_line(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        parse_samples(text.splitlines(keepends=True), "file")


# ------------------------------------------------------------------------------------------ contradictions


def test_times_of_a_client_that_gets_tokens_in_bursts_give_way_to_e2e() -> None:
    """.25 s and 199 gaps of 1 ms are .449 s; the requests took 4.25 s, so gaps take 4 / 199 s."""
    found = sweep(VLLM | {"mean_tpot_ms": 1.0, "mean_e2el_ms": 4250.0})
    assert found.points[0].tpot_s == pytest.approx(4 / 199)
    assert found.notes == (
        "line 1: TTFT and TPOT make a request of 0.449 s, and E2E is 4.25 s; TPOT is taken from E2E",
    )


def test_where_e2e_is_not_stated_requests_in_flight_and_per_second_tell_it() -> None:
    """32 clients, 7/s: 4.57 s a request; at both ends fewer are in flight, 100/132 of that, 3.463 s."""
    found = sweep(VLLM | {"mean_tpot_ms": 1.0})
    assert found.points[0].tpot_s == pytest.approx((32 / 7 * 100 / 132 - 0.25) / 199)
    assert "32 in flight and 7 requests/s one of 4.57 s" in found.notes[0]


def test_what_contradicts_itself_whatever_is_taken_is_left_out() -> None:
    """The first token alone takes longer than the whole request."""
    found = sweep(VLLM, VLLM | {"mean_ttft_ms": 9000.0, "mean_e2el_ms": 4250.0})
    assert len(found.points) == 1
    assert found.left_out[0].reason == "TTFT and TPOT make a request of 13 s, and E2E is 4.25 s"


def test_a_mean_within_a_third_is_none() -> None:
    assert sweep(VLLM | {"mean_tpot_ms": 25.0, "mean_e2el_ms": 4250.0}).notes == ()


# ----------------------------------------------------------------------------------------------- many rows


def test_equal_loads_count_once() -> None:
    found = sweep(VLLM, VLLM, VLLM | {"max_concurrency": 28}, VLLM)
    assert [(point.line, point.concurrency) for point in found.points] == [(1, 32), (3, 28)]
    assert found.notes == ("2 rows are equal to one before them, and count once",)


def test_of_many_loads_some_are_fitted_to_from_the_lowest_to_the_highest() -> None:
    rows = "".join(f"{n},1000,200,250,{10 + n / 10}\n" for n in range(100, 0, -1))
    text = f"concurrency,isl,osl,ttft_ms,tpot_ms\n{rows}"
    (found,) = parse_samples(text.splitlines(keepends=True), "file")
    assert isinstance(found, Sweep)
    users = [point.concurrency for point in found.points]
    assert (len(users), users[0], users[-1]) == (64, 100, 1)
    assert "64 of 100 loads are fitted to, from the lowest to the highest" in found.notes


def test_of_many_iterations_some_are_fitted_to_evenly_over_the_file() -> None:
    text = "kv_tokens,prefill_tokens,iteration_ms\n" + "".join(
        f"{n},0,{10 + n / 1e4}\n" for n in range(20_000)
    )
    (found,) = parse_samples(text.splitlines(keepends=True), "file")
    assert isinstance(found, Samples)
    assert found.kv_tokens.size == 5000
    assert (found.kv_tokens[0], found.kv_tokens[-1]) == (0, 19_999)
    assert abs(np.diff(found.kv_tokens) - 4).max() <= 1
    assert found.notes == ("5,000 of 20,000 samples are fitted to, evenly over the file",)
