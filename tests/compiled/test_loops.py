"""Compiled loops do what the plain ones do. They come first: what they leave on disk all other tests use."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import PAIRS, bytes_of, cases
from tiers import at_night

from kvplan.compiling import native, translate
from kvplan.model import Plan, Replica, RequestClass, ServingModel, Timing
from kvplan.simulation import engine
from kvplan.simulation.experiments.load import Arrivals, Load
from kvplan.simulation.experiments.runner import Job, scenarios
from kvplan.simulation.initial_state import new_state
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Settings
from kvplan.simulation.state import KNOWN_WHEN_COMPILED, State

SOON = (
    "greedy",
    "vllm",
    "sglang",
    "nested-wait",
    "mc-sf",
    "trtllm-max-utilization",
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


def test_a_processor_with_fused_multiply_add_leaves_the_same_bytes() -> None:
    """Nothing is contracted: the newest features that this processor has change no digit."""
    import llvmlite.binding as llvm

    model = ServingModel(
        (RequestClass("a", 90, (20, 70), (1.0, 2.0), 3.0),),
        Timing(0.0131, 1.7e-6, 3.3e-5, 7.7e-6, 1e-4, 1e-5, 50.0),
        Replica(2_000, 16, max_num_batched_tokens=64),
    )
    [scenario] = scenarios(model, Plan(), Load(requests=500), [0])
    policy = POLICIES["vllm"].form_batch
    known = dict.fromkeys(KNOWN_WHEN_COMPILED, False)
    text = translate.translated(engine.bound(policy), State, known)
    features = llvm.get_host_cpu_features().flatten()
    codes = (
        native._object_code(text),
        native._object_code(text, cpu=llvm.get_host_cpu_name(), features=features),
    )
    assert codes[0] != codes[1]
    left = []
    for code in codes:
        setup, _ = Job(Settings("vllm", {}), scenario).prepare()
        state = new_state(scenario.requests, model.timing, model.replica, setup, None)
        assert native.Loop(code, 3)((state,), 0, 10**6, 10**5) == engine.FINISHED
        left.append(b"".join(array.tobytes() for array in state))
    assert left[0] == left[1]
