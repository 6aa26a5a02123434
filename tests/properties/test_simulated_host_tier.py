"""The host tier of `vllm` against a dictionary of blocks, and what holds whatever arrives."""

from dataclasses import replace

import numpy as np
import slow_host_tier
from cached_cases import CASES
from hypothesis import given
from hypothesis import strategies as st
from small_runs import Case, run
from tiers import examples

from kvplan.model.offload import Offload
from kvplan.simulation.outcome import Ending, Outcome

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
    given = {key: values[0] for key, values in case.parameters.items()}
    expected, pool = slow_host_tier.simulate(
        case.requests, case.timing, case.replica, given, horizon_s=case.horizon_s
    )
    assert (fast.ending is Ending.LIVELOCK) == expected.livelock
    assert fast.found is not None
    assert fast.found.loaded_tokens is not None
    assert fast.found.hit_tokens.tolist() == pool.hits
    assert fast.found.loaded_tokens.tolist() == pool.loaded
    assert fast.found.recovered_tokens.tolist() == pool.recovered
    assert fast.iterations == expected.iterations
    assert fast.series.kv_tokens.tolist() == expected.kv_per_iteration
    assert fast.series.waiting.tolist() == expected.waiting_per_iteration
    assert fast.evictions.tolist() == expected.evictions
    assert fast.recomputed_tokens == expected.recomputed_tokens
    np.testing.assert_allclose(fast.found.link_busy_s, pool.link_busy_s, rtol=1e-9)
    for times, wanted in (
        (fast.arrival_s, expected.arrival_s),
        (fast.first_token_s, expected.first_token_s),
        (fast.finish_s, expected.finish_s),
    ):
        np.testing.assert_allclose(times, np.array(wanted, dtype=np.float64), rtol=1e-9)
    assert fast.found.cached_tokens.tolist() == pool.cached_per_iteration[: fast.iterations]


@examples(400)
@given(case=CASES, tier=TIERS)
def test_every_request_finds_what_two_pools_of_blocks_have_for_it(case: Case, tier: Offload) -> None:
    case = hosted(case, tier)
    agree(case, run("vllm", case))
