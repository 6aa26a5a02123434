"""The slow prefix cache on runs small enough to follow block by block."""

from typing import Any

import numpy as np
import slow_prefix_cache
from slow_simulator import SlowResult

from kvplan.model import Replica, Timing
from kvplan.simulation.prefixes import Prefixes, Turns
from kvplan.simulation.requests import Requests


def served(
    arrival: list[float],
    inputs: list[int],
    decode: list[int],
    *,
    blocks: int,
    shared: tuple[list[int], int] = ([], 0),
    turns: Turns | None = None,
    **params: Any,
) -> tuple[SlowResult, slow_prefix_cache.Cached]:
    """In iterations of a second on so many blocks of two tokens; `shared` says who begins with how many tokens."""
    size = len(arrival)
    members, tokens = shared
    prefixes = Prefixes(
        1 + np.arange(size),
        np.array([-1, *(0 if i in members else -1 for i in range(size))]),
        np.array([tokens, *[0] * size]),
    )
    requests = Requests(
        np.array(arrival),
        np.array(inputs),
        np.array(decode),
        np.zeros(size, dtype=np.int64),
        prefixes=prefixes,
        turns=turns,
    )
    return slow_prefix_cache.simulate(requests, Timing(1.0), Replica(2 * blocks + 2, block_tokens=2), params)


def test_the_last_token_is_always_computed() -> None:
    """The same prompt of four again: its second block is full too, and yet only the first is found."""
    _, pool = served([0, 5], [4, 4], [1, 1], blocks=10, shared=([0, 1], 4))
    assert pool.hits == [0, 2]


def test_requests_admitted_together_share_and_the_blocks_shared_are_held_once() -> None:
    result, pool = served([0, 0], [5, 5], [1, 1], blocks=10, shared=([0, 1], 4))
    assert pool.hits == [0, 4]
    assert result.kv_per_iteration == [2 * 4]
    assert pool.cached_per_iteration == [0]


def test_of_a_request_the_last_block_goes_first() -> None:
    """Four blocks, three of them known: what comes between takes the blank one and the last of the three."""
    arrival, inputs, decode = [0.0, 5.0, 10.0], [6, 4, 8], [1, 1, 1]
    _, pool = served(arrival, inputs, decode, blocks=4, shared=([0, 2], 6))
    assert pool.hits == [0, 0, 4]


def test_a_block_that_is_not_full_is_taken_first() -> None:
    """Five tokens leave two blocks known, and the third goes before the one that nobody had."""
    _, pool = served([0.0, 5.0, 10.0], [5, 3, 5], [1, 1, 1], blocks=4, shared=([0, 2], 4))
    assert pool.hits == [0, 0, 4]


def test_hits_that_nobody_holds_take_room() -> None:
    """Two of four blocks are held; the next needs three, of which two are there, but free: it waits for all."""
    result, pool = served([0, 3, 3], [4, 3, 5], [1, 5, 1], blocks=4, shared=([0, 2], 4))
    assert result.finish_s == [1.0, 8.0, 9.0]
    assert pool.hits == [0, 0, 0]  # the one that runs has taken them by then


def test_the_evicted_find_what_was_theirs() -> None:
    """Both grow to a third block where five are there: the second goes, and its two full blocks remain but one."""
    result, pool = served([0, 0], [4, 4], [4, 4], blocks=5)
    assert result.evictions == [0, 1]
    assert pool.hits == [0, 0]
    assert pool.recovered == [0, 2]


def test_a_second_copy_is_found_when_the_first_is_gone() -> None:
    """The prompt of one block is computed twice: both copies are known until the older is taken."""
    result, pool = served([0, 0, 4, 8], [2, 2, 3, 5], [1, 1, 1, 1], blocks=3, shared=([0, 1, 3], 2))
    assert pool.hits == [0, 0, 0, 2]
    assert result.kv_per_iteration[0] == 4


def test_whoever_has_waited_too_long_is_given_up_and_takes_the_following_along() -> None:
    turns = Turns(np.array([-1, 2, -1]), np.zeros(3), np.full(3, -1))
    requests = Requests(
        np.array([0.0, 1.0, np.nan]),
        np.array([2, 2, 4]),
        np.array([9, 1, 1]),
        np.zeros(3, dtype=np.int64),
        turns=turns,
    )
    replica = Replica(40, block_tokens=2, max_num_seqs=1)
    result, _ = slow_prefix_cache.simulate(requests, Timing(1.0), replica, {"shed_after": 3.0})
    assert result.finish_s == [9.0, None, None]
    assert result.arrival_s == [0.0, 1.0, None]
