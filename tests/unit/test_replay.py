"""Traces are told apart by content; what cannot be used is refused with file, line, column, and what is allowed."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import UsageError
from kvplan.ingest.trace.replay import Trace, read_trace
from kvplan.options import SimulateOptions
from kvplan.simulation.experiments import options

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
ROW = "2023-11-16 18:15:46.6805900,374,44"
RUN = {"request_id": "a", "input_toks": 3, "output_toks": 4, "arrival_time": 1787267980.25, "queued_ts": 1.0}
TOKENS = "must be a whole number of tokens, at most 10,000,000"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace"


def csv_lines(*rows: str) -> str:
    return "\n".join((HEADER, *rows))


def run(**changes: object) -> str:
    """A JSON line with some values changed; None leaves a key out."""
    return json.dumps({key: value for key, value in (RUN | changes).items() if value is not None})


def columns(trace: Trace) -> list[tuple[float, int, int]]:
    requests = trace.requests
    return list(
        zip(
            requests.arrival_s.tolist(),
            requests.input_tokens.tolist(),
            requests.decode_tokens.tolist(),
            strict=True,
        )
    )


def test_azure_rows_are_read_to_the_microsecond(file: Path) -> None:
    file.write_text(csv_lines(ROW, "2023-11-16 18:15:50.9951690,396,109"))
    trace = read_trace(file)
    assert columns(trace) == [(0.0, 374, 44), (4.314579, 396, 109)]
    assert trace.requests.class_index.tolist() == [0, 0]
    assert trace.requests.clients is None
    assert trace.notes == ()


@pytest.mark.parametrize(
    "text",
    [
        csv_lines(ROW) + "\n",
        csv_lines(ROW).replace("\n", "\r\n"),
        "\ufeff" + csv_lines(ROW, "", "  "),
        "\n" + csv_lines(ROW),
        "id, GeneratedTokens ,TIMESTAMP,ContextTokens\n7,44,2023-11-16 18:15:46,374",
        csv_lines("2023-11-16T18:15:46.68Z, 374.0 ,44"),
        run(input_toks=374, output_toks=44.0),
        "\n  " + run(input_toks=374, output_toks=44, arrival_time=-5) + "\r\n\r\n",
    ],
)
def test_one_request_however_it_is_written(file: Path, text: str) -> None:
    file.write_bytes(text.encode())
    assert columns(read_trace(file)) == [(0.0, 374, 44)]


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(1, 10**6)), min_size=1, max_size=30))
def test_rows_are_sorted_by_arrival_and_ties_stay_in_order(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int]]
) -> None:
    """Written in eighths of a second, which are exact."""
    path = tmp_path_factory.mktemp("traces") / "trace"
    path.write_text(
        "\n".join(run(request_id=f"r{i}", arrival_time=t / 8, input_toks=n) for i, (t, n) in enumerate(rows))
    )
    first = min(t for t, _ in rows)
    in_order = sorted(rows, key=lambda row: row[0])
    assert columns(read_trace(path)) == [((t - first) / 8, n, 4) for t, n in in_order]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (csv_lines(ROW.replace("374", "-3")), f":2: ContextTokens: '-3'; {TOKENS}"),
        (csv_lines(ROW, ROW.replace("44", "nan"), ROW), ":3: GeneratedTokens: 'nan'; must be"),
        (csv_lines('"' + "a" * 200_000 + '",1,2'), ":2: not CSV: field larger than field limit"),
        ("time,in,out\n1,2,3", ":1: not a trace: no column for input, output"),
        ("[1, 2]", ":1: not a trace: no column for time, input, output"),
        ("\0" * 99, ":1: not a trace: no column"),
        (run() + "\n[]\n", ":2: not a JSON object: '[]'"),
        (run().replace("3", "3" * 5000), ":1: JSON too deep, or a number too long"),
        (run(arrival_time=float("inf")), ":1: arrival_time: Infinity; must be a time"),
        ("", ": empty; a trace has a row for every request"),
        (csv_lines(), ": no request that generates tokens; 0 rows"),
        (run(output_toks=0), ": no request that generates tokens; 1 rows"),
        (
            '{"input_lens": [3], "output_lens": [4], "duration": 5.0}',
            " without arrival times, which a replay needs",
        ),
    ],
    ids=lambda text: repr(text[:60]),
)
def test_what_is_not_a_trace_is_refused(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(UsageError) as refusal:
        read_trace(file)
    assert str(refusal.value).startswith(str(file))
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < len(str(file)) + 400


def test_arrivals_out_of_order_and_a_row_cut_off_are_told(file: Path) -> None:
    file.write_text(run(arrival_time=7) + "\n" + run(request_id="b", arrival_time=5) + "\n" + run()[:30])
    trace = read_trace(file)
    assert columns(trace) == [(0.0, 3, 4), (2.0, 3, 4)]
    assert trace.notes == (
        "1 arrivals are earlier than one before them in the file; put in order",
        "the file ends within its last row, which is left out",
    )


def test_hashes_of_blocks_say_which_prompts_begin_alike(tmp_path: Path) -> None:
    """The second has two blocks of 512 in common with the first, the third none; an empty prompt has no hashes."""
    rows = [(0, 1300, [7, 8, 9]), (1000, 1500, [7, 8, 5]), (2000, 0, []), (3000, 600, [3, 4])]
    path = tmp_path / "trace.jsonl"
    path.write_text(
        "".join(
            json.dumps({"timestamp": t, "input_length": n, "output_length": 5, "hash_ids": hashes}) + "\n"
            for t, n, hashes in rows
        ),
        "utf-8",
    )
    found = read_trace(path).requests
    assert found.prefixes is not None
    assert found.prefixes.begin_tokens[found.prefixes.stream].tolist() == [1024, 1024, 0, 0]
    shared = found.prefixes.parent[found.prefixes.stream]
    assert shared[0] == shared[1] >= 0
    assert shared[2] == shared[3] == -1
    first = options.load(SimulateOptions(requests=2), lambda: found).trace
    assert first is not None
    assert first.prefixes is not None
    assert first.prefixes.stream.tolist() == found.prefixes.stream[:2].tolist()
