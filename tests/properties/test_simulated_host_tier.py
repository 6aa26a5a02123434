"""The host tier of `vllm` against a dictionary of blocks, and what holds whatever arrives."""

import random
from dataclasses import replace

import numpy as np
import pytest
import slow_host_tier
from cached_cases import CASES, case_of
from every import every
from hypothesis import given
from hypothesis import strategies as st
from session_shapes import Shape, same
from small_runs import Case, bytes_of, run
from tiers import at_night, examples

from kvplan.model import Replica, Timing
from kvplan.model.replica import Offload
from kvplan.simulation.outcome import Outcome


def busy_case(seed: int) -> Case:
    """The same for a seed: sessions of up to four turns behind a tree of prompts, and little memory of both kinds."""
    r = random.Random(seed)
    branches = [(r.randint(-1, 9), r.randint(1, 9)) for _ in range(r.randint(1, 4))]

    def turn() -> tuple[int, int, float]:
        return (
            r.choice([0, 0, r.randint(0, 9)]),
            r.choice([1, 1, r.randint(1, 9)]),
            r.choice([0.0, 0.5, 3.0, 11.0]),
        )

    sessions = [
        (r.randint(0, 9), [turn() for _ in range(r.randint(1, 4))], r.choice([0.0, 0.25, 1.0, 2.7, 30.0]))
        for _ in range(r.randint(2, 14))
    ]
    replica = Replica(
        r.choice([r.randint(1, 8), r.randint(1, 40)]),
        r.choice([1, 1, 2, 3, 5]),
        max_num_seqs=r.choice([None, r.randint(1, 6)]),
        max_num_batched_tokens=r.choice([None, r.randint(6, 30)]),
    )
    shape = Shape(branches, sessions, r.choice([None, None, 1, 2, 4]))
    timing = Timing(r.choice([1.0, 0.3]), r.choice([0.0, 0.01]), r.choice([0.0, 0.02]))
    watermark, shed_after = r.choice([0.0, 0.05]), r.choice([None, None, 5.0])
    tier = Offload(
        r.choice([r.randint(5, 40), r.randint(20, 120)]),
        r.choice([0.001, 0.05, 0.3, 2.0]),
        inclusive=r.random() < 0.5,
        overlap=r.random() < 0.5,
    )
    case = case_of(shape, timing, replica, watermark, r.choice([0.0, 1.0]), shed_after, None)
    return replace(case, replica=replace(case.replica, offload=tier))


TIERS = st.builds(
    Offload,
    memory_tokens=st.integers(5, 60) | st.integers(5, 300),
    load_s=st.sampled_from([0.001, 0.05, 0.3, 2.0]),
    inclusive=st.booleans(),
    overlap=st.booleans(),
)


def hosted(case: Case, tier: Offload) -> Case:
    return replace(case, replica=replace(case.replica, offload=tier))


def agree(case: Case, fast: Outcome) -> None:
    pool = same(fast, slow_host_tier.WithHost, case)
    assert fast.found.loaded_tokens.tolist() == pool.loaded
    np.testing.assert_allclose(fast.found.link_busy_s, pool.link_busy_s, rtol=1e-9)


@examples(100)
@given(case=CASES, tier=TIERS)
def test_every_request_finds_what_two_pools_of_blocks_have_for_it(case: Case, tier: Offload) -> None:
    case = hosted(case, tier)
    agree(case, run("vllm", case))


@pytest.mark.parametrize("seeds", [range(250), *at_night(range(250, 20_000))])
def test_so_it_does_where_both_memories_are_full(seeds: range) -> None:
    for seed in seeds:
        case = busy_case(seed)
        agree(case, run("vllm", case))


def test_a_first_part_may_fit_once_the_host_has_forgotten_what_was_to_be_loaded() -> None:
    """So that iterations are not run in a stretch while somebody waits; a seed where it comes to that."""
    case = busy_case(1570)
    case = replace(case, parameters=case.parameters | {"admission": (1.0,)})
    agree(case, run("vllm", case))


@every("inclusive", [True, False])
@every("overlap", [True, False])
def test_compiled_runs_leave_the_same_bytes(inclusive: bool, overlap: bool) -> None:
    shape = Shape(
        [(-1, 7), (1, 3)], [(s % 3, [(3, 5, 2.0), (0, 4, 0.5), (6, 7, 0.0)], 1.5) for s in range(40)], 9
    )
    case = Case(
        shape.requests(),
        Timing(0.3, d1=0.01),
        Replica(90, block_tokens=4, offload=Offload(200, 0.05, inclusive, overlap)),
        {"prefix_caching": (1.0,), "shed_after": (30.0,)},
    )
    outcome = run("vllm", case)
    assert outcome.found.loaded_tokens.any()
    assert outcome.evictions.any()
    assert bytes_of(run("vllm", case, compile=True)) == bytes_of(outcome)
    agree(case, outcome)
