"""Requests of a run as iterations, alone and beside a series whose KV usage was not recorded."""

from pathlib import Path

import numpy as np
import pytest
from every import every
from result_files import HEADER, SERIES, run
from sampled import parse_samples

from kvplan.errors import UsageError
from kvplan.ingest.timing.reading import read_groups
from kvplan.ingest.timing.samples import Samples

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
    cached, of_one_replica = found.notes
    assert cached == "20% of the prompt tokens were found in the prefix cache, and are no prefill"
    assert of_one_replica == "the requests are taken to be all that one replica served"


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
        ("isl,osl,arrival_ms,scheduled_ms,first_token_ms,last_token_ms\n", "100,101,0,0,100,1100\n"),
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


@every(
    ("row", "message"),
    [
        (
            "100,101,0,0.2,0.1,1.1\n",
            "file:2: must be queued, scheduled, have a first and a last token one after the other",
        ),
        ("100,101,0,0,2.1,1.1\n", "file:2: must be queued, scheduled"),
        ("100,101,0,0,1.1,1.1\n", "file:2: 101 tokens at one time, the first and the last"),
        ("100,101,0,0,0.1,\n", "file:2: last_token_time: missing"),
        ("1.5,101,0,0,0.1,1.1\n", "file:2: input_tokens: '1.5'; must be a whole number of tokens"),
        ("100,1e10,0,0,0.1,1.1\n", "file:2: output_tokens: '1e10'; must be a whole number of tokens"),
        ("100,101,nan,0,0.1,1.1\n", "file:2: arrival_time: 'nan'; must be a time"),
        (
            "100,101,2026-01-01T25:00:00,0,0.1,1.1\n",
            "file:2: arrival_time: '2026-01-01T25:00:00'; must be a time",
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


def test_requests_that_were_preempted_held_nothing(tmp_path: Path) -> None:
    """Of two that began only one ran all the time."""
    log = "100,241,0,0,0.1,2.5\n" * 2
    all_ran = both(tmp_path, "1,200,182,2,0,0\n2,0,200,2,0,0\n", log)
    one_ran = both(tmp_path, "1,200,91,1,0,0\n2,0,100,1,0,0\n", log)
    assert one_ran.sequences[1] == pytest.approx(all_ran.sequences[1] / 2)
    assert one_ran.kv_tokens[1] == pytest.approx(all_ran.kv_tokens[1] / 2)
    assert one_ran.seconds[1] == pytest.approx(all_ran.seconds[1])
