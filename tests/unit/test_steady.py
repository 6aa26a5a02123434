"""The steady part of a run: where it begins and ends, and what it is worth."""

import numpy as np
import pytest
from runs import a_run, a_series

from kvplan.simulation.outcome import Outcome
from kvplan.simulation.requests import Requests
from kvplan.simulation.steady import steady

ITERATIONS = 400  # of half a second each


def a_day(waiting_until: int, arrivals_until: int) -> tuple[Requests, Outcome]:
    """Three done in each iteration between a slow first quarter and an empty end; memory as long as they wait."""
    at = np.arange(1, ITERATIONS + 1)
    done = np.where((at > 90) & (at <= 350), 3, 1)
    finish = np.repeat(at / 2, done)
    waiting, busy = (at <= waiting_until).astype(int), at <= max(waiting_until, arrivals_until)
    series = a_series(
        at / 2, waiting=waiting, kv_tokens=np.where(busy, 70, 10), completions=np.cumsum(done) - done
    )
    arrival = np.linspace(0, arrivals_until / 2, finish.size)
    decode = np.where(np.arange(finish.size) % 2 == 0, 4, 6)
    return a_run(arrival, finish, finish, decode=decode, series=series)


@pytest.mark.parametrize(
    ("saturated", "waiting", "arriving"),
    [(True, 350, 0), (True, 350, 400), (False, 400, 350), (False, 0, 350)],
)
def test_the_beginning_and_the_end_are_left_out(saturated: bool, waiting: int, arriving: int) -> None:
    """A quarter of 350 iterations is 87, the longest stay 100: from there three are done in each."""
    found = steady(*a_day(waiting, arriving), saturated=saturated, longest_stay=100)
    assert found is not None
    assert found.throughput_per_iteration == pytest.approx(3)
    assert found.throughput_rps == pytest.approx(6)
    assert found.decode_tokens_per_s == pytest.approx(30, rel=0.01)  # four and six tokens in turns
    assert found.kv_tokens == 70


def test_the_beginning_is_a_quarter_at_least() -> None:
    """With a stay of ten it would reach back into the slow part: 87 is where the quarter ends."""
    found = steady(*a_day(350, 0), saturated=True, longest_stay=10)
    assert found is not None
    assert 2.95 < found.throughput_per_iteration < 3


@pytest.mark.parametrize("stay", [117, 400])
def test_a_part_of_less_than_two_stays_is_none(stay: int) -> None:
    """Of 350 iterations, 349 are behind the first record: 349 - 116 makes two stays of 116 and no more."""
    day = a_day(350, 0)
    assert steady(*day, saturated=True, longest_stay=stay) is None
    assert steady(*day, saturated=True, longest_stay=116) is not None


def test_a_queue_that_was_never_there_leaves_nothing() -> None:
    assert steady(*a_day(0, 0), saturated=True, longest_stay=1) is None
