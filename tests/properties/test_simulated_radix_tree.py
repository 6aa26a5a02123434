"""The radix tree of `sglang` against one of nodes and dictionaries, and what holds whatever arrives."""

from dataclasses import replace

import numpy as np
import slow_radix_cache
from hypothesis import given
from hypothesis import strategies as st
from session_shapes import SHAPES, Shape
from small_runs import CLASSES, TIMINGS, Case, run
from tiers import examples

from kvplan.model import Replica, Timing
from kvplan.simulation.outcome import Ending, Outcome

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
    st.none() | st.sampled_from([0.0, 1.0, 5.0, 20.0]),
    st.none() | st.floats(0.0, 60.0),
)


def agree(case: Case, fast: Outcome) -> None:
    given = {key: values if key == "max_new" else values[0] for key, values in case.parameters.items()}
    expected, tree = slow_radix_cache.simulate(
        case.requests, case.timing, case.replica, given, horizon_s=case.horizon_s
    )
    assert (fast.ending is Ending.LIVELOCK) == expected.livelock
    assert fast.iterations == expected.iterations
    assert fast.series.kv_tokens.tolist() == expected.kv_per_iteration
    assert fast.series.waiting.tolist() == expected.waiting_per_iteration
    assert fast.evictions.tolist() == expected.evictions
    assert fast.recomputed_tokens == expected.recomputed_tokens
    for times, wanted in (
        (fast.arrival_s, expected.arrival_s),
        (fast.first_token_s, expected.first_token_s),
        (fast.finish_s, expected.finish_s),
    ):
        np.testing.assert_allclose(times, np.array(wanted, dtype=np.float64), rtol=1e-9)
    assert fast.found is not None
    assert fast.found.hit_tokens.tolist() == tree.hits
    assert fast.found.recovered_tokens.tolist() == tree.recovered
    assert fast.found.cached_tokens.tolist() == tree.cached_per_iteration[: fast.iterations]


@examples(400)
@given(case=CASES)
def test_every_request_finds_what_a_tree_of_nodes_has_for_it(case: Case) -> None:
    agree(case, run("sglang", case))
