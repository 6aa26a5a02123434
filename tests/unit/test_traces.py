"""Recorded requests: both formats, and what is said where a file is damaged."""

from pathlib import Path

import pytest

from kvplan.errors import UsageError
from kvplan.simulation.traces import read_trace

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n"
    "2023-11-16 18:15:48.0000000,10,1"
)
RUN = (
    '{"request_id": "a", "input_toks": 5, "output_toks": 7, "arrival_time": 1787267980.5, "queued_ts": 1.0}\n'
    '{"request_id": "b", "input_toks": 6, "output_toks": 0, "arrival_time": 1787267981.0}\n'
    "\n"
    '{"request_id": "c", "input_toks": 0, "output_toks": 8, "arrival_time": 1787267979.5}\n'
)


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "trace"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(
    "text",
    [AZURE, AZURE.replace("\n", "\r\n"), "\ufeff" + AZURE, AZURE + "\n"],
    ids=["plain", "CRLF", "BOM", "last line ended"],
)
def test_azure_csv_is_read_with_all_digits_and_sorted(tmp_path: Path, text: str) -> None:
    found = read_trace(written(tmp_path, text))
    assert found.requests.arrival_s == pytest.approx([0, 1.31941, 4.314579], abs=1e-6)
    assert found.requests.input_tokens.tolist() == [374, 10, 396]
    assert found.requests.decode_tokens.tolist() == [44, 1, 109]
    assert found.dropped == 0


def test_other_columns_do_not_matter(tmp_path: Path) -> None:
    text = "x,GeneratedTokens,TIMESTAMP,ContextTokens\n?,3,2023-01-01 00:00:00,4\n"
    assert read_trace(written(tmp_path, text)).requests.decode_tokens.tolist() == [3]


def test_json_lines_of_a_run_are_read_and_empty_answers_counted(tmp_path: Path) -> None:
    found = read_trace(written(tmp_path, RUN))
    assert found.requests.arrival_s.tolist() == [0.0, 1.0]
    assert found.requests.input_tokens.tolist() == [0, 5]
    assert found.requests.decode_tokens.tolist() == [8, 7]
    assert found.dropped == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1: not a trace"),
        ("a,b\n1,2\n", ":1: not a trace: neither a CSV with TIMESTAMP"),
        (b"\xff\xfe\x00", "UTF-8"),
        (AZURE + "\n2023-11-16 18:15", ":5: ContextTokens: missing; must be a whole number of tokens"),
        (AZURE.replace("396", "-1"), ":3: ContextTokens: '-1'; must be a whole number of tokens"),
        (AZURE.replace("396", "1.5"), ":3: ContextTokens: '1.5'"),
        (AZURE.replace("109", "nan"), ":3: GeneratedTokens: 'nan'"),
        (AZURE.replace("2023-11-16 18:15:50.9951690", "soon"), ":3: TIMESTAMP: 'soon'; must be a time"),
        (RUN + '{"request_id": "d", "inp', ":5: not a JSON object"),
        (RUN + "[1, 2]\n", ":5: not a JSON object"),
        (RUN.replace("1787267981.0", "Infinity"), ":2: arrival_time"),
        (RUN.replace('"input_toks": 6, ', ""), ":2: input_toks: missing"),
        (RUN.replace('"output_toks": 7', '"output_toks": true'), ":1: output_toks: 'true'"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests with tokens to generate"),
    ],
)
def test_damage_is_named_by_line_and_key(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_trace(written(tmp_path, text))
    assert message in str(refused.value)
    assert "trace" in str(refused.value)


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(UsageError, match="cannot be read"):
            read_trace(path)
