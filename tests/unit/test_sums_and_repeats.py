"""Rows that are sums of requests, and rows that repeat one: neither is a request more."""

import csv
import io
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from every import every

from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.reader import FileKind
from kvplan.ingest.recognition import kind_of
from kvplan.ingest.trace.replay import read_trace
from kvplan.ingest.trace.traffic import Traffic, measure

HOUR, DAY = 1_764_201_600, 1_764_201_600 - 1_764_201_600 % 86_400  # the first is a whole hour
Read = Callable[[str], Traffic]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


@pytest.fixture
def read(path: Path) -> Read:
    def of_text(text: str) -> Traffic:
        path.write_text(text)
        assert kind_of(path) is FileKind.REQUESTS
        return measure(path)

    return of_text


def table(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


# --------------------------------------------------------------------------------------------------- sums

MINUTES = [  # 10 + 20 + 0 + 30 requests in four minutes, of 100 tokens in and 7 out
    {"start_ms": (HOUR + 60 * at) * 1000, "invocations": n, "input_tokens": 100 * n, "output_tokens": 7 * n}
    for at, n in ((0, 10), (1, 20), (3, 30))
]


@every("written", [table(MINUTES), lines(MINUTES), lines(MINUTES[::-1]), json.dumps({"rows": MINUTES})])
def test_rows_that_count_requests_give_a_rate_by_step_and_mean_lengths(written: str) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder, "file")
        path.write_text(written)
        found = measure(path)
    assert found.rate_rps == pytest.approx(60 / 240)
    assert (found.mean_input, found.mean_decode) == pytest.approx((100, 7), rel=1e-3)
    assert found.counts is not None
    assert found.counts.tolist() == [10, 20, 0, 30]
    assert found.assumed


def test_a_step_without_requests_is_none_and_means_are_not_taken_for_sums(read: Read) -> None:
    """10 requests in the first of four minutes, 30 in the last, of 100 tokens in and 7 out; two rows say 0."""
    rows = [
        {
            "start_ms": (HOUR + 60 * at) * 1000,
            "invocations": n,
            "input_tokens": 100 * n,
            "output_tokens": 7 * n,
        }
        for at, n in enumerate((10, 0, 0, 30))
    ]
    found = read(table(rows))
    assert found.rate_rps == pytest.approx(40 / 240)
    assert (found.mean_input, found.mean_decode) == pytest.approx((100, 7), rel=1e-3)
    assert found.counts is not None
    assert found.counts.tolist() == [10, 0, 0, 30]
    means = [row | {"invocations": 1_000, "input_tokens": 100} for row in rows]
    with pytest.raises(UsageError, match="less than one each; are they means of a request"):
        read(table(means))


def test_several_rows_of_a_step_are_of_one_step(read: Read) -> None:
    """Two keys, an hour each: 3 + 5 and 4 + 0 requests."""
    rows = [
        {"start_time": HOUR + 3600 * hour, "api_key_id": key, "num_model_requests": n, "input_tokens": 8 * n,
         "output_tokens": 2 * n}
        for hour, key, n in ((0, "a", 3), (0, "b", 5), (1, "a", 4))
    ]  # fmt: skip
    found = read(table(rows))
    assert found.counts is not None
    assert found.counts.tolist() == [8, 4]
    assert found.mean_input == pytest.approx(8)


def test_tokens_of_a_sum_may_be_more_than_any_request_has(read: Read) -> None:
    """A day of 10⁶ requests has 2 · 10⁹ tokens."""
    rows = [
        {"date": f"2026-11-0{day}", "requests": 10**6, "prompt_tokens": 2 * 10**9, "completion_tokens": 10**8}
        for day in (1, 2, 3)
    ]
    found = read(lines(rows))
    assert (found.rate_rps, found.mean_input) == pytest.approx((1e6 / 86_400, 2000), rel=1e-4)


def test_a_count_of_one_is_a_request(read: Read) -> None:
    rows = [{"created": HOUR + 7 * at, "n": 1, "prompt_tokens": 9, "completion_tokens": 2} for at in range(3)]
    found = read(lines(rows))
    assert (found.rate_rps, found.assumed, found.count.sum()) == (1 / 7, False, 3)


def test_hours_with_a_request_or_none_are_sums(read: Read) -> None:
    """Three requests in five hours; an hour's own request is at no time of its own."""
    rows = [
        {"hour": HOUR + 3600 * at, "requests": n, "input_tokens": 800 * n, "output_tokens": 60 * n}
        for at, n in enumerate((1, 0, 1, 0, 1))
    ]
    found = read(table(rows))
    assert found.counts is not None
    assert found.counts.tolist() == [1, 0, 1, 0, 1]
    assert found.rate_rps == pytest.approx(3 / (5 * 3600))
    assert found.mean_input == pytest.approx(800, rel=1e-3)


def test_hours_whose_requests_are_no_number_are_no_requests(path: Path) -> None:
    rows = [{"hour": HOUR + 3600 * at, "requests": "n/a", **tokens(at + 1)} for at in range(4)]
    path.write_text(table(rows))
    with pytest.raises(UsageError, match="sums over time and not requests"):
        measure(path)


@every("named", ["avg_prompt_tokens", "Mean input tokens", "prompt_tokens_avg", "p50 input length"])
def test_a_column_of_means_is_named_and_no_renaming_advised(path: Path, named: str) -> None:
    rows = [{"hour": HOUR + 3600 * at, "requests": 100, named: 800, "output_tokens": 6000} for at in range(4)]
    path.write_text(table(rows))
    for reading in (kind_of, measure):
        with pytest.raises((UsageError, ProfileError)) as refused:
            reading(path)
        assert f"{named}: a mean of requests" in str(refused.value)
        assert "rename" not in str(refused.value)


def test_counts_at_odd_times_are_refused(path: Path) -> None:
    """The messages of a conversation, say: nothing of that can be divided."""
    rows = [{"time_s": at, "count": 3, "input": 90, "output": 9} for at in (0, 1.7, 9.1, 11)]
    path.write_text(table(rows))
    with pytest.raises(UsageError, match="no sums over steps of time"):
        measure(path)


def test_sums_are_not_replayed(path: Path) -> None:
    path.write_text(table(MINUTES))
    with pytest.raises(UsageError, match="sums of several requests"):
        read_trace(path)


def tokens(n: int) -> dict[str, int]:
    return {"input_tokens": 1000 * n, "output_tokens": 300 * n}


UNCOUNTED = {
    "the end of each is the beginning of the next": [
        {"start_time": HOUR + 7 + 90 * at, "end_time": HOUR + 97 + 90 * at, **tokens(at + 1)}
        for at in range(4)
    ],
    "a time each 86,400 s": [{"timestamp": f"2026-11-0{day}", **tokens(day)} for day in (1, 2, 3, 4)],
    "more than any context": [{"timestamp": HOUR + 7.5 * at**2, **tokens(2000)} for at in range(4)],
}


@pytest.mark.parametrize("reason", UNCOUNTED)
def test_sums_that_do_not_say_of_how_many_are_refused(path: Path, reason: str) -> None:
    path.write_text(lines(UNCOUNTED[reason]))
    for reads in (measure, read_trace):
        with pytest.raises(UsageError, match=f"sums over time and not requests .*{reason}"):
            reads(path)


def test_a_client_that_waits_for_each_answer_sends_requests(read: Read) -> None:
    """Each begins where the one before it ended, but they do not take equally long in whole steps."""
    ends = (HOUR + 1.2, HOUR + 3.5, HOUR + 4.9, HOUR + 9.0)
    rows = [
        {"start_time": start, "end_time": end - 0.01, **tokens(1)}
        for start, end in zip((HOUR, *ends), ends, strict=False)
    ]
    assert read(lines(rows)).count.sum() == 4


def test_requests_in_a_list_have_the_time_of_the_list(read: Read) -> None:
    batches = [
        {"timestamp": HOUR + at, "requests": [{"input_tokens": 5, "output_tokens": 2 + n} for n in range(3)]}
        for at in (0, 10)
    ]
    found = read(lines(batches))
    assert found.count.sum() == 6
    assert found.rate_rps == pytest.approx(5 / 10)  # from the first on
    assert found.mean_decode == pytest.approx(3)


# ------------------------------------------------------------------------------------------------- repeats


def chunk(at: float, name: Any, inputs: int, outputs: int, **more: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": inputs, "completion_tokens": outputs}
    return {"id": name, "created": HOUR + at, "usage": usage, **more}


def test_chunks_of_a_stream_are_one_request_whose_last_counts(read: Read) -> None:
    rows = [
        chunk(0, "cmpl-a", 50, 1), chunk(1, "cmpl-b", 70, 1), chunk(2, "cmpl-a", 50, 9), chunk(4, "cmpl-b", 70, 5),
        chunk(5, "cmpl-c", 60, 4),
    ]  # fmt: skip
    found = read(lines(rows))
    assert sorted(zip(found.input_tokens.tolist(), found.decode_tokens.tolist(), strict=True)) == [
        (50, 9), (60, 4), (70, 5),
    ]  # fmt: skip
    assert found.rate_rps == pytest.approx(2 / 5)
    assert "2 rows repeat a response of an earlier one; the last row of each counts" in found.notes


@every("name", [7, "7", "", None, "-"])
def test_a_number_is_no_name_of_a_response(name: Any) -> None:
    """Runs that begin to count anew have each number again."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder, "file")
        path.write_text(lines([chunk(at, name, 50, 9) for at in range(4)]))
        assert measure(path).count.sum() == 4


def test_another_prompt_is_another_request(read: Read) -> None:
    assert read(lines([chunk(at, "session", 50 + at, 9) for at in range(4)])).count.sum() == 4


def test_what_a_cache_had_counts_before_what_is_guessed(read: Read) -> None:
    """Three turns whose prompts go on from one another; the file says that 60 of the 600 tokens were cached."""
    rows = [
        {"timestamp": HOUR + 9 * turn, "session_id": "s", "prompt_tokens": 100 + 100 * turn, "completion_tokens": 16,
         "prompt_tokens_details": {"cached_tokens": 20}}
        for turn in range(3)
    ]  # fmt: skip
    found = read(lines(rows))
    assert found.prefixes is not None
    assert found.prefixes.reusable == pytest.approx(60 / 600)
    assert any("found 10% of the prompt tokens (stated by the rows)" in note for note in found.notes)


def test_what_names_no_response_is_refused(path: Path) -> None:
    """A client's name: its prompts are alike, and answers, which only grow as they are told of, get shorter."""
    rows = [
        {
            "id": f"bot-{at % 3}",
            "timestamp_s": 3 * at,
            "input_tokens": 1000,
            "output_tokens": 100 + 37 * at % 60,
        }
        for at in range(30)
    ]
    path.write_text(table(rows))
    with pytest.raises(UsageError, match=r"id names no response, for .* get shorter in \d+ of 27 rows"):
        measure(path)


def test_a_client_without_pauses_can_say_that_rows_are_requests(path: Path) -> None:
    """Each begins as the one before ends, as windows of time do; those are all as long."""
    ends = [0.0, 1.25, 4.5, 6.0, 9.75]
    rows = [
        {"start": HOUR + a, "end": HOUR + b, "input_tokens": 100, "output_tokens": 7}
        for a, b in pairwise(ends)
    ]
    path.write_text(table(rows))
    with pytest.raises(UsageError, match="requests has their number, 1 where each is a request"):
        measure(path)
    path.write_text(table([row | {"requests": 1} for row in rows]))
    assert measure(path).rate_rps == pytest.approx(3 / 6)


def test_requests_of_several_models_are_not_pooled_in_a_table_of_no_known_format(path: Path) -> None:
    rows = [
        {"timestamp_s": at, "model": "ab"[at % 2], "input_tokens": 100, "output_tokens": 7}
        for at in range(10)
    ]
    path.write_text(table(rows))
    with pytest.raises(UsageError, match="several models; choose one with --group: a, b"):
        measure(path)
    assert measure(path, model="b").rate_rps == pytest.approx(0.5)
    sums = [row | {"timestamp_s": HOUR + 60 * at, "requests": 5} for at, row in enumerate(rows)]
    path.write_text(table(sums))
    assert "5 of 10 rows left out: of other models" in measure(path, model="a").notes


def test_days_of_a_spreadsheet_are_no_seconds(path: Path) -> None:
    rows = [
        {"timestamp": 46_329.375 + at / 86_400, "input_tokens": 100, "output_tokens": 7} for at in range(10)
    ]
    path.write_text(table(rows))
    with pytest.raises(UsageError, match="timestamp: days as spreadsheets count them"):
        measure(path)
    assert measure(path, "s").rate_rps == pytest.approx(86_400, rel=1e-4)
