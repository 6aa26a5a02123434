"""Compiled loops do what the plain ones do. They come first: what they leave on disk all other tests use."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import PAIRS, bytes_of, cases
from tiers import at_night

from kvplan.model import Plan, Replica, RequestClass, ServingModel, Timing
from kvplan.simulation import engine
from kvplan.simulation.experiments.load import Arrivals, Load
from kvplan.simulation.experiments.runner import Job, scenarios
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Settings

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


def test_a_loop_that_is_loaded_is_used_from_the_first_iteration_on(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ServingModel((RequestClass("a", 7, (2,), (1.0,), 0.1),), Timing(1.0), Replica(9))
    [scenario] = scenarios(model, Plan(), Load(Arrivals.INTERLEAVED, 3), [0])
    job = Job(Settings("greedy", {}), scenario)
    loaded = job.run(lambda done: True, None, compile=True)
    monkeypatch.setattr(engine, "bound", None)  # the plain loop
    assert bytes_of(job.run(lambda done: True, None)) == bytes_of(loaded)
