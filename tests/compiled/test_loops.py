"""Compiled loops do what the plain ones do. They come first: what they leave on disk all other tests use."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import PAIRS, bytes_of, cases
from tiers import at_night

from kvplan.simulation.policies import POLICIES

SOON = (
    "greedy",
    "vllm",
    "sglang",
    "nested-wait",
    "mc-sf",
)  # between them they use all that loops are made of


@pytest.mark.parametrize(
    "name", [*SOON, *at_night(*(name for name in [*POLICIES, "pairs"] if name not in SOON))]
)
@given(data=st.data())
def test_compiled_and_plain_runs_leave_the_same_bytes(name: str, data: st.DataObject) -> None:
    case = data.draw(cases(name))
    policy = POLICIES.get(name, PAIRS)
    assert bytes_of(case.kernel(policy, name, compile=True)) == bytes_of(case.kernel(policy, name))
