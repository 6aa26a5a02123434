"""Lines are taken out of what a collector of logs wrapped them in, and read as if they stood alone."""

import json
from pathlib import Path
from time import process_time

import pytest
from every import every
from sampled import read_samples

from kvplan.errors import UsageError
from kvplan.ingest.engine_log import read_log
from kvplan.ingest.reader import FileKind
from kvplan.ingest.recognition import kind_of
from kvplan.ingest.text_file import lines_of
from kvplan.ingest.trace.traffic import measure

START = "2026-07-28T06:40:"
LOG = [
    "(EngineCore_DP0 pid=7) INFO 07-28 06:40:49 [kv_cache_utils.py:1148] GPU KV cache size: 41,408 tokens",
    *(
        f"\x1b[1;36m(APIServer pid=1)\x1b[0;0m INFO 07-28 06:40:5{i} [loggers.py:118] Engine 000: "
        f"Avg prompt throughput: {100.0 * i} tokens/s, Avg generation throughput: 300.0 tokens/s, "
        f"Running: {5 + i} reqs, Waiting: 0 reqs, GPU KV cache usage: {10.0 * (i + 1)}%, "
        "Prefix cache hit rate: 0.0%"
        for i in range(5)
    ),
]
TIMED = [(f"{START}{49 + i}.123456789Z", line) for i, line in enumerate(LOG)]


def objects(*values: object) -> str:
    return "".join(f"{json.dumps(value)}\n" for value in values)


def document(value: object) -> str:
    return json.dumps(value, indent=2)


def docker(time: str, line: str) -> dict[str, str]:
    return {"log": line + "\n", "stream": "stderr", "time": time}


def cri(time: str, line: str, flag: str = "F") -> str:
    return f"{time} stderr {flag} {line}\n"


CLOUDWATCH = [
    {"timestamp": 1785220849000 + i, "message": line, "eventId": str(i)} for i, line in enumerate(LOG)
]
LOKI = [[f"178522084900000000{i}", line] for i, line in enumerate(LOG)]
GRAFANA = [
    {"line": line, "timestamp": ns, "date": time} for (ns, line), (time, _) in zip(LOKI, TIMED, strict=True)
]
WRAPPED = {
    "docker": objects(*(docker(*entry) for entry in TIMED)),
    "docker with lines of another form": "Attaching to vllm\n"
    + objects(*(docker(*entry) for entry in TIMED))
    + '{"log": "cut',
    "docker in Loki's JSON lines": objects(
        *({"line": json.dumps(docker(*entry)), "timestamp": entry[0]} for entry in TIMED)
    ),
    "CRI": "".join(cri(*entry) for entry in TIMED),
    "CRI in Fluent Bit": objects(*({"date": 1.5, "log": cri(*entry)} for entry in TIMED)),
    "CRI with lines in parts": "".join(cri(t, line[:60], "P") + cri(t, line[60:]) for t, line in TIMED),
    "python-json-logger": objects(
        *({"asctime": t, "levelname": "INFO", "message": line} for t, line in TIMED)
    ),
    "tracing": objects(
        *({"timestamp": t, "level": "INFO", "fields": {"message": line}} for t, line in TIMED)
    ),
    "journald": objects(*({"__REALTIME_TIMESTAMP": t, "MESSAGE": line, "_PID": "7"} for t, line in TIMED)),
    "Loki, the newest first": objects(*reversed(GRAFANA)),
    "Loki's export": document(list(reversed(GRAFANA))),
    "Loki's answer": document(
        {
            "status": "success",
            "data": {
                "resultType": "streams",
                "result": [
                    {"stream": {"pod": "a", "level": "info"}, "values": LOKI[1::2]},
                    {"stream": {"pod": "a"}, "values": LOKI[::2]},
                ],
            },
        }
    ),
    "CloudWatch": document({"events": CLOUDWATCH, "searchedLogStreams": []}),
    "CloudWatch, a subscription": objects(
        {"messageType": "DATA_MESSAGE", "logGroup": "g", "logEvents": CLOUDWATCH}
    ),
    "CloudWatch Insights": document(
        {
            "results": [
                [{"field": "@timestamp", "value": t}, {"field": "@message", "value": line}]
                for t, line in reversed(TIMED)
            ]
        }
    ),
    "Cloud Logging": document([{"textPayload": line, "timestamp": t} for t, line in TIMED]),
    "Elasticsearch": document(
        {"hits": {"hits": [{"_source": {"message": line, "@timestamp": t}} for t, line in TIMED]}}
    ),
    "OpenTelemetry": objects(
        {
            "resourceLogs": [
                {
                    "scopeLogs": [
                        {
                            "logRecords": [
                                {"timeUnixNano": t, "body": {"stringValue": line}} for t, line in TIMED
                            ]
                        }
                    ]
                }
            ]
        }
    ),
    "docker compose": "".join(f"vllm-1  | {json.dumps({'message': line})}\n" for line in LOG),
    "another logger": objects(
        *({"severity": "INFO", "said": line.replace("\x1b[1;36m", "")} for line in LOG)
    ),
}


@every("name", WRAPPED)
def test_a_wrapped_log_says_what_the_log_says(name: str, tmp_path: Path) -> None:
    path = tmp_path / "anything"
    for encoding in ("utf-8", "utf-16"):
        path.write_text(WRAPPED[name], encoding=encoding)
        assert kind_of(path) is FileKind.LOG
        limits, (samples,) = read_log(path).limits(), read_samples(path)
        assert limits.memory_tokens == 41_408
        assert samples.kv_tokens == pytest.approx([4140.8 * (i + 1) for i in range(5)])
        assert samples.prefill_tokens == pytest.approx([100 * i * (5 + i) / 300 for i in range(5)])
        said = any(note.startswith("lines are taken out of") for note in limits.notes)
        assert (
            said
            == any("lines are taken out of" in note for note in samples.notes)
            == (name != "another logger")
        )


def test_lines_are_counted_as_stored_where_each_is_an_entry(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_text(WRAPPED["CRI with lines in parts"])
    assert read_log(path).limits().line == 2  # whose first part is line 1
    part = {"log": "x" * 16_384, "stream": "stdout"}  # Docker cuts lines there
    path.write_text(objects(part, docker(START, "of another stream"), {"log": "y\n", "stream": "stdout"}))
    with lines_of(path) as lines:
        assert list(lines) == ["\n", "of another stream\n", "x" * 16_384 + "y\n"]


def test_origins_of_several_services_are_kept(tmp_path: Path) -> None:
    """As `kubectl logs --prefix` has them, so that one can be chosen."""
    path = tmp_path / "two"
    for text in (
        objects(*({"line": line, "labels": {"pod": pod}} for line in LOG for pod in ("a-0", "b-0"))),
        "".join(f"{pod}  | {json.dumps({'message': line})}\n" for line in LOG for pod in ("a-0", "b-0")),
        objects(*({"log": line, "kubernetes": {"pod_name": pod}} for line in LOG for pod in ("a-0", "b-0"))),
        document({"events": [e | {"logStreamName": pod} for e in CLOUDWATCH for pod in ("a-0", "b-0")]}),
        document(
            {"data": {"result": [{"stream": {"pod": pod}, "values": LOKI} for pod in ("a-0", "b-0")]}},
        ),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=r"--group: 'pod/a-0', 'pod/b-0'"):
            read_log(path).limits()
        assert read_log(path).limits(service="pod/b-0").memory_tokens == 41_408


def test_requests_and_tables_are_taken_out_too(tmp_path: Path) -> None:
    path = tmp_path / "requests"
    rows = [{"time": 1.5 * i, "input_tokens": 300 + i, "output_tokens": 40} for i in range(4)]
    wrapped = {
        "docker": objects(*(docker(START, json.dumps(row)) for row in rows)),
        "prefix": "".join(f"(APIServer pid=12) {json.dumps(row)}\n" for row in rows),
        "alone": objects(*({**row, "message": "request done"} for row in rows)),
        "alone, under short names": objects(
            *({"log": "done", "time": r["time"], "input": r["input_tokens"], "output": 40} for r in rows)
        ),
        "CSV": objects(
            *(
                docker(START, line)
                for line in ["time,input,output", "0,300,40", "1.5,301,40", "3,302,40", "4.5,303,40"]
            )
        ),
    }
    for name, text in wrapped.items():
        path.write_text(text)
        traffic = measure(path)
        assert (traffic.rows, traffic.mean_input, traffic.mean_decode) == (4, 301.5, 40.0), name


@every(
    "text",
    [
        objects({"log": "nothing of use\n", "stream": "stdout"}),
        document({"events": [{"message": "nothing", "id": "1"}]}),
        document({"status": "success", "data": {"result": [{"stream": {}, "values": [["1"], [2, 3], "x"]}]}}),
        objects({"log": 3}, {"message": None}, {"events": "x", "results": [1, [2]]}),
        '{"events": [{"message": "GPU KV cache size: 41,4',
        "[" * 30_000,
        objects(
            {
                "log": json.dumps(
                    {"log": json.dumps({"log": json.dumps({"log": json.dumps({"log": "deep"})})})}
                )
            }
        ),
    ],
)
def test_what_says_nothing_wrapped_says_nothing(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(UsageError):
        kind_of(path)


def test_what_follows_the_beginning_of_a_report_is_not_taken_line_by_line(tmp_path: Path) -> None:
    """Two million blank lines took 20 s, for each was a piece of its own."""
    path = tmp_path / "report.yaml"
    path.write_text("metrics:\n  time_to_first_token:\n    mean: 210.0\n" + "\n" * 2_000_000)
    begun = process_time()
    with pytest.raises(UsageError, match="not recognized"):
        kind_of(path)
    assert process_time() - begun < 3
