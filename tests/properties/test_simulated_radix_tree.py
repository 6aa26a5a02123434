"""The radix tree of `sglang` against one of nodes and dictionaries, and what holds whatever arrives."""

from dataclasses import replace

import numpy as np
import pytest
import slow_radix_cache
from hypothesis import given
from hypothesis import strategies as st
from session_shapes import SHAPES, Shape, same
from small_runs import CLASSES, TIMINGS, Case, bytes_of, run
from tiers import examples

from kvplan.model import Replica, Timing

REPLICAS = st.builds(
    Replica,
    memory_tokens=st.integers(1, 8) | st.integers(1, 60),  # beside the longest request
    block_tokens=st.integers(1, 5) | st.sampled_from([1, 16]),
    max_num_seqs=st.none() | st.integers(1, 6),
    max_num_batched_tokens=st.none() | st.integers(1, 30),
)


def case_of(
    shape: Shape,
    timing: Timing,
    replica: Replica,
    conservativeness: float,
    interval: int,
    shed_after: float | None,
    horizon_s: float | None,
) -> Case:
    requests = shape.requests()
    longest = int((requests.input_tokens + requests.decode_tokens).max())
    block = replica.block_tokens
    memory = -(-longest // block) * block + replica.memory_tokens
    parameters = {
        "prefix_caching": (1.0,),
        "conservativeness": (conservativeness,),
        "prefill_interval": (interval,),
        "max_new": (9.0, 12.0, 30.0)[:CLASSES],
    }
    if shed_after is not None:
        parameters["shed_after"] = (shed_after,)
    return Case(requests, timing, replace(replica, memory_tokens=memory), parameters, horizon_s)


CASES = st.builds(
    case_of,
    SHAPES,
    TIMINGS,
    REPLICAS,
    st.sampled_from([0.0, 0.0, 0.3, 1.0]),
    st.sampled_from([1, 1, 2, 5]),
    st.none() | st.sampled_from([0.0, 1.0, 5.0, 20.0]),
    st.none() | st.floats(0.0, 60.0),
)


@examples(150)
@given(case=CASES)
def test_every_request_finds_what_a_tree_of_nodes_has_for_it(case: Case) -> None:
    same(run("sglang", case), slow_radix_cache.Radix, case)


@pytest.mark.parametrize("block", [1, 3, 16])
@pytest.mark.parametrize("batched", [None, 20])
def test_the_retracted_find_what_had_come_into_the_tree(block: int, batched: int | None) -> None:
    """Answers are long beside what is kept for them; prompts begin alike, and are partly or wholly the same."""
    retracted = recovered = 0
    for seed in range(3):
        rng = np.random.default_rng(seed)
        new, decode = rng.integers(0, 9, (40, 2)).tolist(), rng.integers(20, 60, (40, 2)).tolist()
        sessions = [
            (s % 4, [(n, d, 3.0) for n, d in zip(new[s], decode[s], strict=True)], 2.0) for s in range(40)
        ]
        requests = Shape([(-1, 12), (1, 20), (1, 4)], sessions, None).requests()
        parameters = {"conservativeness": (0.0,), "prefix_caching": (1.0,), "max_new": (60.0,) * CLASSES}
        replica = Replica(400, block_tokens=block, max_num_batched_tokens=batched)
        case = Case(requests, Timing(1.0, d2=0.02), replica, parameters)
        outcome = run("sglang", case)
        retracted += int(outcome.evictions.sum())
        recovered += int(outcome.found.recovered_tokens.sum())
        same(outcome, slow_radix_cache.Radix, case)
    assert retracted >= 10
    assert recovered >= 7 * block


@pytest.mark.parametrize("turns", [True, False])
def test_compiled_runs_leave_the_same_bytes(turns: bool) -> None:
    shape = Shape(
        [(-1, 7), (1, 3)], [(s % 3, [(3, 35, 2.0), (0, 24, 0.5), (6, 37, 0.0)], 1.5) for s in range(40)], 9
    )
    requests = shape.requests()
    if not turns:
        arrival = np.arange(requests.arrival_s.size, dtype=np.float64) / 4
        requests = replace(requests, arrival_s=arrival, turns=None, prefixes=None)
    parameters = {"prefix_caching": (1.0,), "conservativeness": (0.0,), "max_new": (40.0,) * CLASSES}
    case = Case(requests, Timing(0.3, d1=0.01), Replica(240, block_tokens=4), parameters)
    outcome = run("sglang", case)
    assert outcome.evictions.any()
    assert bytes_of(run("sglang", case, compile=True)) == bytes_of(outcome)
