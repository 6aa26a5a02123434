"""Compiled loops do what the plain ones do. They come first: what they leave on disk all other tests use."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import PAIRS, bytes_of, cases
from tiers import at_night

from kvplan.simulation import engine
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
    loop: Any = engine.compiled(policy.form_batch)
    assert len(loop.signatures) == 1, "compiled anew for arrays of other types"
