"""Two requests, 1.25 s apart, in the forms of gateways, of observability and of clients.

Keys as the projects document them; see `kvplan.ingest.trace.formats`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from every import every
from sampled import parse_samples

from kvplan.errors import UsageError
from kvplan.ingest.reader import FileKind
from kvplan.ingest.recognition import kind_of
from kvplan.ingest.timing.samples import Samples
from kvplan.ingest.trace.traffic import Traffic, measure

EPOCH = 1_716_000_000
ROWS = ((0.0, 374, 44), (1.25, 396, 109))
Make = Callable[[float, int, int], dict[str, Any]]


def iso(seconds: float) -> str:
    return f"2024-05-18T02:40:{seconds:06.3f}Z"  # EPOCH, and so many seconds


def aiperf(at: float, inputs: int, outputs: int, phase: str = "profiling", **more: Any) -> dict[str, Any]:
    metrics = {
        "input_sequence_length": {"value": inputs, "unit": "tokens"},
        "output_sequence_length": {"value": outputs, "unit": "tokens"},
        "time_to_first_token": {"value": 250.0, "unit": "ms"},
        "request_latency": {"value": 0.25 + 0.01 * (outputs - 1), "unit": "sec"},
    }
    start = (EPOCH * 10**9) + round(at * 1e9)
    return {
        "metadata": {"request_start_ns": start, "benchmark_phase": phase},
        "metrics": metrics,
        "error": None,
    } | more


def litellm(at: float, inputs: int, outputs: int, **more: Any) -> dict[str, Any]:
    return {
        "call_type": "acompletion",
        "status": "success",
        "cache_hit": "False",
        "startTime": iso(at),
        "completionStartTime": iso(at + 0.25),
        "endTime": iso(at + 0.25 + 0.01 * (outputs - 1)),
        "model": "m",
        "prompt_tokens": inputs,
        "completion_tokens": outputs,
        "metadata": {"usage_object": {"prompt_tokens": inputs, "completion_tokens": outputs}},
        "messages": [{"role": "user", "content": "Hi"}],
        **more,
    }


def langfuse(at: float, inputs: int, outputs: int, **more: Any) -> dict[str, Any]:
    usage = {"input": inputs - 100, "input_cached_tokens": 100, "output": outputs, "total": inputs + outputs}
    return {
        "id": "o",
        "traceId": "t",
        "type": "GENERATION",
        "level": "DEFAULT",
        "startTime": iso(at),
        "endTime": iso(at + 2),
        "input": {"messages": []},
        "output": "Hello",
        "usageDetails": usage,
        **more,
    }


def openrouter(at: float, inputs: int, outputs: int) -> dict[str, Any]:
    tokens = {"tokens_prompt": 1, "tokens_completion": 1}
    native = {"native_tokens_prompt": inputs, "native_tokens_completion": outputs, "native_tokens_cached": 3}
    return {
        "data": {
            "created_at": iso(at).replace("Z", "+00:00"),
            "latency": 1250,
            "model": "m",
            **tokens,
            **native,
        }
    }


def response(at: float, inputs: int, outputs: int, **more: Any) -> dict[str, Any]:
    usage = {
        "prompt_tokens": inputs,
        "completion_tokens": outputs,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    return {
        "object": "chat.completion",
        "created": EPOCH + at,
        "model": "m",
        "choices": [{}],
        "usage": usage,
    } | more


def batch(at: float, inputs: int, outputs: int) -> dict[str, Any]:
    body = {"created_at": EPOCH + at, "usage": {"input_tokens": inputs, "output_tokens": outputs}}
    return {"custom_id": "1", "response": {"status_code": 200, "body": body}, "error": None}


def anthropic(at: float, inputs: int, outputs: int) -> dict[str, Any]:
    """What the cache has is not among its input tokens."""
    usage = {"input_tokens": inputs - 70, "cache_read_input_tokens": 50, "cache_creation_input_tokens": 20}
    return {"timestamp": iso(at), "response": {"model": "m", "usage": usage | {"output_tokens": outputs}}}


def anthropic_flat(at: float, inputs: int, outputs: int) -> dict[str, Any]:
    usage = {"input_tokens": inputs - 70, "cache_read_input_tokens": 50, "cache_creation_input_tokens": 20}
    return {"timestamp": iso(at), "output_tokens": outputs, **usage}


def langfuse_anthropic(at: float, inputs: int, outputs: int) -> dict[str, Any]:
    usage = {"input": inputs - 70, "cache_read_input_tokens": 50, "cache_creation_input_tokens": 20}
    return langfuse(at, 0, 0, usageDetails=usage | {"output": outputs - 5, "output_reasoning_tokens": 5})


def dynamo(at: float, inputs: int, outputs: int) -> dict[str, Any]:
    """What a cache had is among the input."""
    tokens = {"input_tokens": inputs, "output_tokens": outputs, "cached_tokens": 50}
    received = 1000 * EPOCH + round(1000 * at)
    times = {"request_received_ms": received, "ttft_ms": 250.0, "total_time_ms": 250.0 + 10 * (outputs - 1)}
    return {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": times | tokens}


def otel_cached(at: float, inputs: int, outputs: int) -> dict[str, Any]:
    """The conventions count what a cache had among the input."""
    tokens = {"gen_ai.usage.input_tokens": inputs, "gen_ai.usage.output_tokens": outputs}
    return {"start_time": iso(at), "attributes": tokens | {"gen_ai.usage.cache_read.input_tokens": 50}}


def attribute(key: str, value: int | str) -> dict[str, Any]:
    return {
        "key": key,
        "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value},
    }


def otlp(at: float, inputs: int, outputs: int) -> dict[str, Any]:
    attributes = [
        attribute("gen_ai.usage.input_tokens", inputs),
        attribute("gen_ai.usage.output_tokens", outputs),
    ]
    start = EPOCH * 10**9 + round(at * 1e9)
    span = {
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + 10**9),
        "attributes": attributes,
        "status": {},
    }
    other = {"startTimeUnixNano": "1", "name": "GET", "attributes": [attribute("http.method", "GET")]}
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": [other, span]}]}]}


def vllm_span(at: float, inputs: int, outputs: int) -> dict[str, Any]:
    return {
        "name": "llm_request",
        "start_time": iso(at),
        "status": {"status_code": "UNSET"},
        "attributes": {
            "gen_ai.usage.prompt_tokens": inputs,
            "gen_ai.usage.completion_tokens": outputs,
            "gen_ai.latency.time_to_first_token": 0.25,
            "gen_ai.latency.e2e": 0.25 + 0.01 * (outputs - 1),
        },
    }


def bedrock(at: float, inputs: int, outputs: int, **more: Any) -> dict[str, Any]:
    return {
        "schemaType": "ModelInvocationLog",
        "timestamp": iso(at),
        "modelId": "m",
        "input": {
            "inputTokenCount": inputs - 50,
            "cacheReadInputTokenCount": 50,
            "inputBodyJson": {"messages": []},
        },
        "output": {"outputTokenCount": outputs, "outputBodyJson": {"metrics": {"latencyMs": 900}}},
        **more,
    }


def nginx(at: float, inputs: int, outputs: int) -> dict[str, Any]:
    """Its log is written when the request has ended."""
    tokens = {"prompt_tokens": f"{inputs}", "completion_tokens": f"{outputs}"}
    return {"msec": f"{EPOCH + at + 2:.3f}", "request_time": "2.000", "status": "200", **tokens}


def envoy(at: float, inputs: int, outputs: int) -> dict[str, Any]:
    tokens = {"gen_ai.usage.input_tokens": inputs, "gen_ai.usage.output_tokens": outputs}
    return {"start_time": iso(at), "duration": 900, "response_code": 200, **tokens}


def ollama(at: float, inputs: int, outputs: int) -> dict[str, Any]:
    """Created when it has ended."""
    counts = {"prompt_eval_count": inputs, "eval_count": outputs, "total_duration": 2 * 10**9}
    return {"model": "m", "created_at": iso(at + 2).replace("Z", "123456Z"), "done": True, **counts}


def nanoseconds(at: float, inputs: int, outputs: int) -> dict[str, Any]:
    return {"timestamp": EPOCH * 10**9 + round(at * 1e9), "input_tokens": inputs, "output_tokens": outputs}


def read(tmp_path: Path, text: str, **options: Any) -> Traffic:
    path = tmp_path / "requests"
    path.write_text(text, "utf-8")
    return measure(path, **options)


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@every(
    ("make", "name"),
    [
        (aiperf, "AIPerf requests"),
        (litellm, "LiteLLM log"),
        (langfuse, "Langfuse observations"),
        (openrouter, "OpenRouter generations"),
        (response, "responses of an API"),
        (batch, "responses of an API"),
        (anthropic, "responses of an API"),
        (anthropic_flat, "JSON lines"),
        (langfuse_anthropic, "Langfuse observations"),
        (dynamo, "JSON lines"),
        (otel_cached, "OpenTelemetry gen_ai"),
        (otlp, "OpenTelemetry gen_ai"),
        (vllm_span, "OpenTelemetry gen_ai"),
        (bedrock, "Bedrock invocation log"),
        (nginx, "nginx access log"),
        (envoy, "OpenTelemetry gen_ai"),
        (ollama, "Ollama responses"),
        (nanoseconds, "JSON lines"),
    ],
)
def test_every_format_is_read_from_lines_lists_and_answers(tmp_path: Path, make: Make, name: str) -> None:
    rows = [make(*row) for row in ROWS]
    for text in (lines(*rows), json.dumps(rows, indent=1), json.dumps({"data": rows, "meta": {"page": 1}})):
        traffic = read(tmp_path, text)
        assert (traffic.format, traffic.rate_rps) == (name, pytest.approx(1 / 1.25, rel=1e-6))
        assert traffic.start_s == pytest.approx(EPOCH, abs=1e-3)
        pairs = zip(traffic.input_tokens.tolist(), traffic.decode_tokens.tolist(), strict=True)
        assert list(pairs) == [row[1:] for row in ROWS]


@every("separator", [",", " | "])
def test_a_table_in_markdown_is_traffic_too(tmp_path: Path, separator: str) -> None:
    rows = [
        ("timestamp_s", "input_tokens", "output_tokens"),
        ("---",) * 3,
        ("0", "1,374", "44"),
        ("2", "96", "9"),
    ]
    if separator == ",":
        text = "\n".join(";".join(row) for row in rows if row[0] != "---")
    else:
        text = "\n".join(["# Traffic", *(f"| {separator.join(row)} |" for row in rows)])
    traffic = read(tmp_path, text + "\n")
    assert (traffic.rate_rps, traffic.input_tokens.tolist(), traffic.decode_tokens.tolist()) == (
        0.5,
        [96, 1374],
        [9, 44],
    )


def test_a_request_that_its_client_and_its_server_tell_of_counts_once(tmp_path: Path) -> None:
    """Two requests of 1 s each; of the first there is a span within the span, and one beside it."""

    def span(at: float, seconds: float, trace: str, parent: str) -> dict[str, Any]:
        times = {"start_time": iso(at), "end_time": iso(at + seconds)}
        tokens = {"gen_ai.usage.input_tokens": 374, "gen_ai.usage.output_tokens": 44}
        return times | {"trace_id": trace, "parent_id": parent, "attributes": tokens}

    spans = [
        span(0.1, 0.8, "a", "http"),
        span(0, 1, "a", "root"),
        span(2, 1, "b", "root"),
        span(4, 1, "b", "root"),
    ]
    traffic = read(tmp_path, lines(*spans))
    assert traffic.notes[0] == "1 of 4 rows left out: spans within or around another span of the same request"
    assert traffic.count.sum() == 3


def test_a_time_without_a_unit_is_left_out_by_name() -> None:
    text = "arrival_s,prompt_tokens,completion_tokens,ttft,latency\n0,374,44,250,680\n"
    with pytest.raises(UsageError, match="1 rows: ttft names no unit, as ttft_ms does"):
        parse_samples(text.splitlines(keepends=True), "file")


@every(
    ("row", "reason"),
    [
        (aiperf(3, 9, 9, phase="warmup"), "of the warm-up"),
        (aiperf(3, 9, 9, error={"code": 500, "message": "x"}), "failed or cancelled"),
        (litellm(3, 9, 9, status="failure"), "failed or cancelled"),
        (litellm(3, 9, 9, cache_hit="True"), "answered by the cache of the gateway"),
        (langfuse(3, 9, 9, usageDetails={}), "no requests"),
        (langfuse(3, 9, 9, usageDetails={}, input="Hi"), "without time or tokens"),
        (vllm_span(3, 9, 9) | {"gen_ai.operation.name": "invoke_agent"}, "no completions"),
        (langfuse(3, 9, 9, level="ERROR"), "failed or cancelled"),
        (response(3, 9, 9, usage=None, object="chat.completion.chunk"), "no requests"),
        (bedrock(3, 9, 9, errorCode="ThrottlingException"), "failed or cancelled"),
        ({"level": "info", "msg": "health check"}, "no requests"),
    ],
)
def test_what_is_no_request_that_was_served_is_left_out_with_the_reason(
    tmp_path: Path, row: dict[str, Any], reason: str
) -> None:
    make = next(
        (
            make
            for make in (aiperf, litellm, langfuse, response, bedrock, vllm_span)
            if make(*ROWS[0]).keys() <= row.keys()
        ),
        litellm,
    )
    traffic = read(tmp_path, lines(*(make(*some) for some in ROWS), row))
    assert traffic.rows == 3
    assert traffic.notes[0] == f"1 of 3 rows left out: {reason}"
    assert traffic.count.sum() == 2


@pytest.mark.parametrize("make", [aiperf, litellm, vllm_span])
def test_times_of_tokens_are_read_where_they_are(make: Make) -> None:
    """109 tokens in 1.08 s after the first; alone."""
    (found,) = parse_samples([lines(make(0, 396, 109))], "file")
    assert isinstance(found, Samples)
    assert found.seconds.tolist() == pytest.approx([0.01], rel=1e-3)
    assert found.kv_tokens.tolist() == pytest.approx([397 + 54])


@every(
    ("rows", "message"),
    [
        (
            [nanoseconds(0, 1, 1), nanoseconds(0, 1, 1) | {"timestamp": EPOCH}],
            ":2: timestamp: 1716000000; those before",
        ),
        (
            [{"timestamp_ms": EPOCH, "input": 1, "output": 1}],
            ":1: timestamp_ms: 1716000000; its size is an epoch's",
        ),
        (
            [litellm(0, 1, 1), litellm(1, 1, 1, model="n")],
            ": requests of several models; choose one with --group: m, n",
        ),
        (
            [{"timestamp": 1, "input_tokens": 3, "n_out": 4}],
            "rename what has it to output_tokens .there are n_out.",
        ),
    ],
)
def test_what_is_open_is_refused(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(tmp_path, lines(*rows))


def test_one_of_several_models_is_chosen(tmp_path: Path) -> None:
    rows = [litellm(*row, model=model) for row in ROWS for model in ("m", "n")]
    traffic = read(tmp_path, lines(*rows), model="n")
    assert (traffic.count.sum(), traffic.notes[0]) == (2, "2 of 4 rows left out: of other models")


def test_a_unit_that_names_do_not_say_is_seconds_with_a_note(tmp_path: Path) -> None:
    text = "time,input,output\n0,374,44\n1250,396,109\n"
    traffic = read(tmp_path, text)
    assert traffic.rate_rps == 1 / 1250
    assert traffic.notes[0].startswith("time names no unit and is taken as seconds")
    assert read(tmp_path, text, unit="ms").rate_rps == 1 / 1.25


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        ("timestamp,concurrency,isl,osl,ttft_ms,tpot_ms,e2e_ms", FileKind.TIMING),
        ("timestamp,requested_rps,input_tokens,output_tokens,ttft_ms,e2e_ms", FileKind.TIMING),
        ("timestamp,input_tokens,output_tokens,ttft_ms,e2e_ms", FileKind.REQUESTS),
    ],
)
def test_runs_at_a_load_with_a_time_are_no_requests(tmp_path: Path, header: str, kind: FileKind) -> None:
    path = tmp_path / "file"
    path.write_text(f"{header}\n{','.join('9' for _ in header.split(','))}\n")
    assert kind_of(path) is kind


def test_a_file_that_begins_with_a_failure_is_told_by_the_rows_below(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(lines({"error": {"code": 500}, "id": "x"}, *(response(*row) for row in ROWS)))
    assert kind_of(path) is FileKind.REQUESTS
    assert measure(path).notes[0] == "1 of 3 rows left out: no requests"
