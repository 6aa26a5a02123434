"""Traces in every format, whole and damaged."""

import hashlib
import json
from pathlib import Path

import pytest
from every import every

from kvplan.errors import UsageError
from kvplan.ingest.trace.rows import TraceFile
from kvplan.ingest.trace.traffic import measure

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
PLAIN = "time,input,output\n"


def rows_of(tmp_path: Path, content: str | bytes) -> tuple[TraceFile, list[tuple[float, int, int]]]:
    path = tmp_path / "trace"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    trace = TraceFile(path)
    *columns, counts = (column.tolist() for column in trace.read())
    assert set(counts) <= {1}  # no row is a sum
    return trace, list(zip(*columns, strict=True))


def refusal(tmp_path: Path, content: str | bytes) -> str:
    with pytest.raises(UsageError) as caught:
        rows_of(tmp_path, content)
    return str(caught.value).removeprefix(str(tmp_path / "trace"))


@every(
    ("name", "content"),
    [
        (
            "Azure LLM inference CSV",
            AZURE + "1970-01-01 00:00:01.5000000,374,44\n1970-01-01 00:00:02.7500000,396,109",
        ),
        (
            "Azure LLM inference CSV",  # as of 2024
            AZURE + "1970-01-01 00:00:01.5+00:00,374,44\n1970-01-01 00:00:02.75+00:00,396,109\n",
        ),
        (
            "BurstGPT CSV",
            "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
            "1.5,,3,ChatGPT,374,44,418,Conversation log\n2.75,,3,GPT-4,396.0,109,505,API log\n",
        ),
        (
            "Mooncake JSON lines",
            '{"timestamp": 1500, "input_length": 374, "output_length": 44, "hash_ids": [0, 1]}\n'
            '{"timestamp": 2750, "input_length": 396, "output_length": 109, "hash_ids": [0, 2]}\n',
        ),
        (
            "Qwen-Bailian JSON lines",
            '{"chat_id": 1, "timestamp": 1.5, "input_length": 374, "output_length": 44, "hash_ids": [7]}\n'
            '{"chat_id": 2, "timestamp": 2.75, "input_length": 396, "output_length": 109, "hash_ids": [7]}\n',
        ),
        (
            "JSON lines",
            '{"request_id": "a", "input_toks": 374, "output_toks": 44, "arrival_time": 1.5}\n\n'
            '{"request_id": "b", "input_toks": 396, "output_toks": 109, "arrival_time": 2.75}\n',
        ),
        ("CSV", PLAIN + "1.5,374,44\n2.75,396,109\n"),
        ("CSV", 'Arrival_ms,"Prompt Tokens",completion_tokens\n1500,374,44\n2750,"396",109\n'),
        (
            "vLLM bench JSON",
            '{"duration": 9.0, "input_lens": [374, 396], "output_lens": [44, 109], "start_times": [1.5, 2.75]}',
        ),
        (
            "vLLM bench JSON",
            '{\n "input_lens": [374, 396],\n "output_lens": [44, 109],\n "start_times": [1.5, 2.75]\n}\n',
        ),
    ],
)
def test_every_format_is_recognised_by_content(tmp_path: Path, name: str, content: str) -> None:
    trace, rows = rows_of(tmp_path, content)
    assert rows == [(1.5, 374, 44), (2.75, 396, 109)]
    assert trace.format == name
    assert trace.sha256 == hashlib.sha256(content.encode()).hexdigest()
    assert trace.cut_off == 0


def test_chats_are_none_of_mooncakes_though_their_seconds_are_whole(tmp_path: Path) -> None:
    row = '{"chat_id": 1, "timestamp": %d, "input_length": 374, "output_length": 44, "hash_ids": [7]}\n'
    trace, rows = rows_of(tmp_path, row % 1 + row % 3)
    assert (trace.format, [arrival for arrival, _, _ in rows]) == ("Qwen-Bailian JSON lines", [1, 3])


def test_bom_mixed_line_ends_blank_lines_and_a_missing_last_one_change_nothing(tmp_path: Path) -> None:
    _, rows = rows_of(tmp_path, "\ufeff" + PLAIN[:-1] + "\r\n1.5,374,44\n\n2.75,396,109\r\n3,1,2\r4,5,6")
    assert rows == [(1.5, 374, 44), (2.75, 396, 109), (3, 1, 2), (4, 5, 6)]


def test_whole_timestamps_of_mooncake_are_milliseconds_and_fractions_what_the_unit_says(
    tmp_path: Path,
) -> None:
    row = '{"timestamp": %s, "input_length": 100, "output_length": 5}\n'
    assert rows_of(tmp_path, row % "10" + row % "2500")[1] == [(0.01, 100, 5), (2.5, 100, 5)]
    for unit, at in (("s", 0.5), ("ms", 0.0005)):
        (tmp_path / "trace").write_text(row % "0.5" + row % "2.0")
        assert TraceFile(tmp_path / "trace", unit).read().time_s[0] == at


@every("last", ["3.5,4", "3.5", '3.5,"4', "3.5,4,"])
def test_a_csv_cut_off_in_its_last_row_loses_that_row_and_says_so(tmp_path: Path, last: str) -> None:
    trace, rows = rows_of(tmp_path, PLAIN + "1.5,374,44\n" + last)
    assert rows == [(1.5, 374, 44)]
    assert trace.cut_off == 1
    assert ":3" in refusal(tmp_path, PLAIN + "1.5,374,44\n" + last.replace('"', "") + "\n4,5,6")


def test_json_lines_cut_off_in_the_last_row_lose_that_row_and_say_so(tmp_path: Path) -> None:
    line = '{"time": 1.5, "input": 374, "output": 44}\n'
    trace, rows = rows_of(tmp_path, line + line[:-7])
    assert rows == [(1.5, 374, 44)]
    assert trace.cut_off == 1
    assert refusal(tmp_path, line + line[:-7] + "\n" + line).startswith(":2: not a JSON object: ")


@every(
    ("row", "message"),
    [
        ("1.5,12.5,44", ": input: '12.5'; must be a whole number of tokens, at most 10,000,000"),
        ("1.5,-3,44", ": input: '-3'; must be a whole"),
        ("1.5,,44", ": input: ''; must be a whole"),
        ("1.5,3,x", ": output: 'x'; must be a whole"),
        ("1.5,3,2000000", ": output: '2000000'; must be a whole number of tokens, at most 1,000,000"),
        ("1.5,3", ": output: missing"),
        ("noon,3,4", ": time: 'noon'; must be a time"),
        ("nan,3,4", ": time: 'nan'; must be a time"),
        ("1e999,3,4", ": time: '1e999'; must be a time"),
        (f"1,{'9' * 5000},4", ": input: '99"),
    ],
)
def test_a_malformed_row_is_refused_with_its_line(tmp_path: Path, row: str, message: str) -> None:
    assert refusal(tmp_path, f"{PLAIN}1,2,3\n{row}\n4,5,6\n").startswith(f":3{message}")


@every(
    ("content", "message"),
    [
        ("", ": empty"),
        ("\n \n", ": empty"),
        ("a,b\n1,2\n", ":1: not a trace: no column for time, input, output"),
        ("time,input\n1,2\n", ":1: not a trace: no column for output"),
        ('{"time": 1}\n', ":1: not a trace: no column for input, output"),
        ('[{"time": 1}]\n', ":1: not a trace"),
        ('{"a": 1,\n', ":2: not JSON: "),
        ('{"input_lens": [1], "output_lens": []}', ":1: not a trace: needs the lists"),
        ('{"input_lens": [1], "output_lens": [2]}', ":1: duration: missing; must be a number"),
        (
            '{"input_lens": [], "output_lens": [], "duration": 1}\n{"input_lens": []}',
            ":2: several benchmark results",
        ),
        ('{"time": true, "input": 1, "output": 1}\n', ":1: time: true; must be a time"),
        (b"time,input,output\n\xff\xfe,1,2\n", ": must be text in UTF-8"),
        ('time,input,output\n"' + "x" * 200_000, ":2: not CSV: field larger"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: str | bytes, message: str) -> None:
    assert refusal(tmp_path, content).startswith(message)


def measured(tmp_path: Path, content: str) -> tuple[float, float | None, tuple[str, ...]]:
    path = tmp_path / "trace"
    path.write_text(content)
    traffic = measure(path)
    return traffic.rate_rps, traffic.gap_cv, traffic.notes


def test_a_benchmark_without_arrivals_has_the_rate_of_its_completions(tmp_path: Path) -> None:
    rate, cv, notes = measured(
        tmp_path, '{"duration": 4.0, "input_lens": [1, 2, 3], "output_lens": [4, 5, 0]}'
    )
    assert (rate, cv) == (0.5, None)
    assert any("no arrival times" in note for note in notes)


@every(
    ("rows", "message"),
    [
        ("", "no requests with tokens; 0 rows"),
        ("1,0,0\n", "no requests with tokens; 1 rows"),
        ("1,2,3\n", "1 request; a rate needs"),
        ("1,2,3\n1,2,3\n", "2 requests, all at one time; a rate needs"),
    ],
)
def test_too_few_requests_for_a_rate_are_refused(tmp_path: Path, rows: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        measured(tmp_path, PLAIN + rows)


def servegen(folder: Path) -> Path:
    (folder / "c-trace.csv").write_text(
        "0,2.0,1.5,Gamma,0.4,0.1\n600,1.0,3.0,Weibull,1.0,1.0\n1200,0.0,,,,\n"
    )
    (folder / "c-dataset.json").write_text(
        json.dumps(
            {
                "0": {"input_tokens": "{10: 0.5, 20: 0.5}", "output_tokens": "{4: 1.0}"},
                "600": {"input_tokens": "{10: 1.0}", "output_tokens": "{4: 0.25, 8: 0.75, 9: 0}"},
                "1200": {"input_tokens": "{}", "output_tokens": "{}"},
            }
        )
    )
    return folder / "c-trace.csv"


def test_a_servegen_client_is_what_its_two_files_expect(tmp_path: Path) -> None:
    for path in (servegen(tmp_path), tmp_path / "c-dataset.json"):
        traffic = measure(path)
        assert traffic.rate_rps == pytest.approx((2 + 1 + 0) / 3)
        assert traffic.gap_cv == pytest.approx((2 * 1.5 + 3) / 3)
        pairs = zip(traffic.input_tokens, traffic.decode_tokens, traffic.count, strict=True)
        assert [tuple(map(float, pair)) for pair in pairs] == [(10, 4, 750), (10, 8, 450), (20, 4, 600)]
        assert any("1 windows have no coefficient" in note for note in traffic.notes)


def test_half_a_servegen_client_is_refused(tmp_path: Path) -> None:
    path = servegen(tmp_path)
    (tmp_path / "c-dataset.json").unlink()
    with pytest.raises(UsageError, match=r"the other, c-dataset\.json, is not beside it"):
        measure(path)
    with pytest.raises(UsageError, match="to find its other file"):
        measure(path.rename(tmp_path / "other.csv"))
