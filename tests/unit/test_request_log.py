"""Requests of a run as iterations, alone and beside a series whose KV usage was not recorded."""

from pathlib import Path

import numpy as np
import pytest
from every import every
from result_files import HEADER, SERIES, run

from kvplan.errors import UsageError
from kvplan.ingest.timing.reading import parse_samples, read_groups
from kvplan.ingest.timing.samples import LeftOut, Samples

ONE = "100,101,0,0,0.1,1.1\n"
ANOTHER = "50,26,0.3,0.5,0.6,1.1\n"


def read(*lines: str) -> Samples:
    (found,) = parse_samples(lines, "file")
    assert isinstance(found, Samples)
    return found


def both(tmp_path: Path, series: str, requests: str) -> Samples:
    paths = tmp_path / "series.csv", tmp_path / "requests.csv"
    for path, text in zip(paths, (SERIES + series, HEADER + requests), strict=True):
        path.write_text(text)
    ((found,),) = read_groups(paths)
    assert isinstance(found, Samples)
    return found


def rows(samples: Samples) -> list[tuple[float, ...]]:
    """(K, P, B, τ) of each, rounded."""
    columns = (samples.kv_tokens, samples.prefill_tokens, samples.sequences, samples.seconds)
    return [tuple(round(float(v), 9) for v in row) for row in zip(*columns, strict=True)]


def test_a_request_lives_through_an_iteration_for_every_token_after_the_first() -> None:
    """100 in 1 s; its KV grows from 101 to 201."""
    found = read(HEADER, ONE)
    assert rows(found) == [(151, 0, 1, 0.01)]
    assert found.format == "request log"
    assert found.hidden_prefill


def test_what_ran_beside_a_request_counts_for_as_long_as_it_did() -> None:
    """The other held 50 tokens for 0.6 s, then 1 … 26 more for 0.5 s; its prompt is half a token an iteration."""
    first, second = rows(read(HEADER, ONE, ANOTHER))
    assert first == pytest.approx((151 + 50 * 0.6 + 13.5 * 0.5, 0.5, 1.6, 0.01))
    assert second == pytest.approx((50 + 13.5 + 176, 0, 2, 0.02))


def test_a_prompt_is_computed_between_its_schedule_and_its_first_token() -> None:
    """Half of that time, and so half of its 50 tokens, fall into the life of the first."""
    late = ANOTHER.replace("0.5,0.6,1.1", "1.05,1.15,1.65")
    assert rows(read(HEADER, ONE, late))[0] == pytest.approx((151 + 50 * 0.05, 0.25, 1.05, 0.01))


@pytest.mark.parametrize("name", ["cached_tokens", "num_cached_tokens"])
def test_what_the_cache_had_of_a_prompt_is_held_but_not_computed(name: str) -> None:
    """As above, but for 30 of the 50 tokens that come beside the first request."""
    header = HEADER.replace("\n", f",{name}\n")
    first, second = rows(read(header, ONE.replace("\n", ",\n"), ANOTHER.replace("\n", ",30\n")))
    assert first == pytest.approx((151 + 50 * 0.6 + 13.5 * 0.5, 0.2, 1.6, 0.01))
    assert second == pytest.approx((50 + 13.5 + 176, 0, 2, 0.02))
    found = read(header, ONE.replace("\n", ",0\n"), ANOTHER.replace("\n", ",30\n"))
    assert found.notes == ("20% of the prompt tokens were found in the prefix cache, and are no prefill",)


def test_more_tokens_cached_than_a_prompt_has_are_refused() -> None:
    with pytest.raises(UsageError, match=r"file:2: 101 tokens cached of a prompt of 100"):
        read(HEADER.replace("\n", ",cached_tokens\n"), ONE.replace("\n", ",101\n"))


def test_requests_that_generated_little_give_no_sample_but_are_in_the_batch() -> None:
    found = read(HEADER, ONE, ANOTHER.replace("50,26", "50,10"))
    assert found.sequences.tolist() == pytest.approx([1.6])
    assert found.left_out == (LeftOut("10 tokens or fewer", 1, 3),)


def test_the_requests_are_at_hand_as_they_were_served() -> None:
    log = read(HEADER, ONE, ANOTHER).requests
    assert log is not None
    assert log.input_tokens.tolist() == [100, 50]
    assert log.output_tokens.tolist() == [101, 26]
    assert log.arrival_s.tolist() == [0, 0.3]
    assert log.scheduled_s.tolist() == [0, 0.5]
    assert log.first_token_s.tolist() == [0.1, 0.6]
    assert log.last_token_s.tolist() == [1.1, 1.1]
    assert log.line.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("input_toks,output_toks,arrival_time,scheduled_ts,first_token_ts,last_token_ts\n", ONE),
        (
            "Prompt tokens,Completion tokens,arrived_at,first_scheduled_time,first_token_time,finished_time\n",
            ONE,
        ),
        (
            "isl,osl,arrival_ms,scheduled_ms,first_token_ms,last_token_ms\n",
            "100,101,0,0,100,1100\n",
        ),
    ],
)
def test_lengths_and_times_go_by_the_usual_names(header: str, row: str) -> None:
    assert rows(read(header, row)) == [(151, 0, 1, 0.01)]


def test_arrivals_on_another_clock_are_those_of_the_request_that_the_engine_saw_soonest() -> None:
    """Of 0.2 and 0.1 s that the two waited at least 0.1 s are a difference of clocks."""
    header = HEADER.replace("scheduled", "queued")
    log = read(header, "100,101,1000,5.2,5.3,6.3\n", "100,101,1001,6.1,6.2,7.2\n").requests
    assert log is not None
    assert log.arrival_s.tolist() == pytest.approx([0, 1])
    assert log.scheduled_s.tolist() == pytest.approx([0.1, 1])


def test_without_a_schedule_a_request_ran_from_its_arrival() -> None:
    found = read(HEADER.replace("scheduled_time,", ""), "100,101,7,7.1,8.1\n")
    assert found.requests is not None
    assert found.requests.scheduled_s.tolist() == [0]


def test_requests_that_were_not_served_are_counted() -> None:
    found = read(HEADER, ONE, "100,0,0,0,0,0\n", "100,5,0,,,\n")
    assert found.left_out == (LeftOut("nothing was generated", 2, 3),)


@every(
    ("row", "message"),
    [
        (
            "100,101,0,0.2,0.1,1.1\n",
            "file:2: must be queued, scheduled, have a first and a last token one after the other",
        ),
        ("100,101,0,0,2.1,1.1\n", "file:2: must be queued, scheduled"),
        ("100,101,0,0,1.1,1.1\n", "file:2: 101 tokens at one time, the first and the last"),
        ("100,101,0,0,0.1,\n", "file:2: last_token_time: missing; must be a number"),
        ("1.5,101,0,0,0.1,1.1\n", "file:2: input_tokens: 1.5; must be a whole number of tokens"),
        ("100,1e10,0,0,0.1,1.1\n", r"file:2: output_tokens: 1e\+10; must be a whole number of tokens"),
        ("100,101,nan,0,0.1,1.1\n", "file:2: arrival_time: 'nan'; must be a number"),
        (
            "100,101,2026-01-01T00:00:00,0,0.1,1.1\n",
            "file:2: arrival_time: '2026-01-01T00:00:00'; must be a number",
        ),
        ("100,2,0,0,0.1,1.1\n", "file: no request generated more than 10 tokens"),
        (
            "100,0,0,0,0.1,1.1\n",
            r"file: no samples of iterations; 1 rows: nothing was generated \(first: line 2\)",
        ),
        ("100,101,9,,0.1,1.1\n", "file:2: a first token before the request arrived, or hours later"),
    ],
)
def test_requests_that_contradict_themselves_are_refused(row: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        read(HEADER, row)


def test_usage_of_zero_while_requests_run_is_unknown_and_not_empty() -> None:
    with pytest.raises(
        UsageError, match=r"^file: KV usage is 0 throughout while requests run: it was not recorded"
    ):
        read(SERIES, "1,100,50,1,0,0\n", "2,0,50,1,0,0.0\n")


def test_an_idle_second_does_not_make_usage_unknown() -> None:
    found = parse_samples([SERIES, "1,100,50,1,0,0\n", "2,0,50,1,0,10\n"], "file", capacity_tokens=1000)
    assert [some.kv_tokens.tolist() for some in found if isinstance(some, Samples)] == [[0, 100]]


def test_the_kv_of_a_series_is_rebuilt_from_its_requests(tmp_path: Path) -> None:
    """In the second second 100 iterations of 10 ms: the request has 1.9 s of life, of which 0.9 in the first."""
    found = both(tmp_path, "1,100,91,1,0,0\n2,0,100,1,0,0\n", "100,191,0,0,0.1,2.0\n")
    first, second = rows(found)
    assert first == pytest.approx((100 + (1 + 91) / 2 * 0.9, 1, 1, 0.01), rel=0.01)
    assert second == pytest.approx((100 + (91 + 191) / 2, 0, 1, 0.01), rel=0.01)
    assert found.line.tolist() == [2, 3]
    assert "rebuilt from the requests of" in found.notes[0]
    assert found.requests is not None


def test_samples_of_a_run_obey_the_law_it_was_made_by(tmp_path: Path) -> None:
    log, table = run()
    for found in (read(HEADER, *log), both(tmp_path, "".join(table), "".join(log))):
        law = 0.008 + 0.0002 * found.sequences + 5e-5 * found.prefill_tokens
        off = np.abs(law / found.seconds - 1)
        assert np.median(off) < 0.02
        assert off.size > 15


@pytest.mark.parametrize("counted", ["whole prompts", "what is computed"])
def test_what_the_cache_had_is_no_prefill_whichever_an_engine_counts(tmp_path: Path, counted: str) -> None:
    """The same run, but each prompt is 300 tokens longer, and the cache had them."""
    log, table = run()
    longer = []
    for row in log:
        prompt, rest = row.strip().split(",", 1)
        longer.append(f"{int(prompt) + 300},{rest},300\n")
    if counted == "whole prompts":
        firsts = np.array([float(row.split(",")[4]) for row in log])
        for i, row in enumerate(table):
            second, prompts, rest = row.split(",", 2)
            begun = ((firsts > int(second) - 1) & (firsts <= int(second))).sum()
            table[i] = f"{second},{int(prompts) + 300 * begun},{rest}"
    paths = tmp_path / "series.csv", tmp_path / "requests.csv"
    paths[0].write_text(SERIES + "".join(table))
    paths[1].write_text(HEADER.replace("\n", ",cached_tokens\n") + "".join(longer))
    ((found,),) = read_groups(paths)
    assert isinstance(found, Samples)
    law = 0.008 + 0.0002 * found.sequences + 5e-5 * found.prefill_tokens
    assert np.abs(np.median(law / found.seconds) - 1) < 0.02
    before = both(tmp_path, "".join(run()[1]), "".join(run()[0]))
    # each running request holds 300 tokens more
    assert (found.kv_tokens - before.kv_tokens)[5:-5] == pytest.approx(300 * found.sequences[5:-5], rel=0.02)


@pytest.mark.parametrize("origin", [-37.25, 0.4, 1e6])
def test_the_origin_of_a_series_times_does_not_matter(tmp_path: Path, origin: float) -> None:
    log, table = run()
    moved = [
        f"{float(second) + origin + 100},{rest}" for second, rest in (row.split(",", 1) for row in table)
    ]
    there, moved_there = (both(tmp_path, "".join(rows), "".join(log)) for rows in (table, moved))
    assert moved_there.kv_tokens == pytest.approx(there.kv_tokens, rel=1e-6)
    assert moved_there.seconds == pytest.approx(there.seconds, rel=1e-6)


def test_requests_of_another_run_are_refused(tmp_path: Path) -> None:
    log, _ = run(0)
    _, table = run(1)
    with pytest.raises(
        UsageError, match=r"requests.csv are of another run: prompt_throughput is theirs in \d+ of \d+"
    ):
        both(tmp_path, "".join(table), "".join(log))


def test_requests_that_were_preempted_held_nothing(tmp_path: Path) -> None:
    """Of two that began only one ran all the time."""
    log = "100,241,0,0,0.1,2.5\n" * 2
    all_ran = both(tmp_path, "1,200,182,2,0,0\n2,0,200,2,0,0\n", log)
    one_ran = both(tmp_path, "1,200,91,1,0,0\n2,0,100,1,0,0\n", log)
    assert one_ran.sequences[1] == pytest.approx(all_ran.sequences[1] / 2)
    assert one_ran.kv_tokens[1] == pytest.approx(all_ran.kv_tokens[1] / 2)
    assert one_ran.seconds[1] == pytest.approx(all_ran.seconds[1])


def test_requests_beside_a_series_with_usage_add_no_samples(tmp_path: Path) -> None:
    paths = tmp_path / "series.csv", tmp_path / "requests.csv"
    paths[0].write_text(SERIES + "1,100,91,1,0,20\n2,0,100,1,0,30\n")
    paths[1].write_text(HEADER + "100,191,0,0,0.1,2.0\n")
    ((found,),) = read_groups(paths, capacity_tokens=1000)
    assert isinstance(found, Samples)
    assert found.kv_tokens.tolist() == [200, 300]


def test_times_of_a_series_must_increase() -> None:
    with pytest.raises(UsageError, match=r"^file:3: a time of 1 s after one of 1 s; must increase$"):
        read(SERIES, "1,100,50,1,0,10\n", "1,0,50,1,0,10\n")
