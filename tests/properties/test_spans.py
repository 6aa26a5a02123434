"""Sums by span of time, against a slow simulator that notes every iteration."""

import math
from typing import Any

import numpy as np
import pytest
import slow_simulator
from hypothesis import given
from hypothesis import strategies as st
from small_runs import CLASSES, Case, cases
from strategies import one_class
from tiers import examples

from kvplan.model import FloatArray, Plan, ServingModel
from kvplan.simulation import engine
from kvplan.simulation.initial_state import Spans
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.state import Span

SPANS = st.builds(
    Spans, st.sampled_from([0.0, 2.71828]), st.sampled_from([0.731, 3.14159, 17.3]), st.integers(1, 9)
)


def fast(name: str, case: Case, spans: Spans, *, compile: bool) -> Outcome:
    names = tuple(f"class {i}" for i in range(CLASSES))
    model = ServingModel(tuple(one_class(1, 1, name=n) for n in names), case.timing, case.replica)
    apart = {"prefix_caching": (0.0,)} if "prefix_caching" in POLICIES[name].parameters else {}
    scenario = Scenario(model, Plan(), case.requests, names)
    setup, _ = POLICIES[name].prepare(scenario, Settings(name, apart | case.parameters))
    return engine.run(
        POLICIES[name].form_batch,
        case.requests,
        case.timing,
        case.replica,
        setup,
        request_overhead_s=case.request_overhead_s,
        horizon_s=case.horizon_s,
        spans=spans,
        compile=compile,
    )


def expected(name: str, case: Case, spans: Spans, monkeypatch: pytest.MonkeyPatch) -> FloatArray:
    """From the state of every iteration of the slow simulator, each in the span in which it began.

    The least queue is that of any iteration, or while nothing runs.
    """
    noted, idle = list[list[float]](), list[tuple[float, int]]()
    kind: Any = slow_simulator.POLICIES[name]

    class Noting(kind):  # type: ignore[misc]
        def form(self, drain: bool) -> list[Any]:
            batch: list[Any] = super().form(drain)
            if not batch and (drain or self.next_event() is not None):
                idle.append((self.now, len(self.queue)))
            return batch

        def execute(self, batch: list[Any]) -> Any:
            before = [self.now, self.kv_held(batch), len(self.resident), len(self.queue)]
            work = super().execute(batch)
            noted.append([*before, work.kv_tokens, work.prefill_tokens, work.prefill_pairs, work.sequences])
            return work

    with monkeypatch.context() as patched:
        patched.setitem(slow_simulator.POLICIES, name, Noting)
        executed = case.slow(name).iterations
    law, sums = case.timing, np.zeros((spans.number, Span.WIDTH))
    sums[:, Span.LEAST_WAITING] = math.inf
    for begin, waiting in idle:
        if 0 <= (span := math.floor((begin - spans.begin_s) / spans.width_s)) < spans.number:
            sums[span, Span.LEAST_WAITING] = min(sums[span, Span.LEAST_WAITING], waiting)
    for begin, held, running, waiting, context, prompts, pairs, sequences in noted[:executed]:
        span = math.floor((begin - spans.begin_s) / spans.width_s)
        if not 0 <= span < spans.number:
            continue
        tau = law.d0 + law.d1 * context + law.d2 * prompts + law.d3 * sequences + law.d6 * pairs
        row = sums[span]
        row[[Span.KV_S, Span.RUNNING_S, Span.WAITING_S, Span.BUSY_S]] += (
            tau * held,
            tau * running,
            tau * waiting,
            tau,
        )
        row[[Span.STEPS, Span.CONTEXT, Span.PREFILLED, Span.PAIRS, Span.SEQUENCES, Span.ROOTS]] += (
            1,
            context,
            prompts,
            pairs,
            sequences,
            math.sqrt(sequences),
        )
        row[Span.BEYOND_KNEE] += max(prompts + sequences - law.knee_tokens, 0.0)
        row[Span.WOKEN] += 1 - (1 - law.chosen) ** (prompts + sequences)
        row[Span.LEAST_WAITING] = min(row[Span.LEAST_WAITING], waiting)
    sums[np.isinf(sums[:, Span.LEAST_WAITING]), Span.LEAST_WAITING] = 0  # nothing happened
    return sums


@pytest.mark.parametrize(
    "name", ["greedy", "wait", "vllm", "sglang", "trtllm-no-evict", "trtllm-max-utilization"]
)
@given(data=st.data())
@examples(20)
def test_spans_hold_what_their_iterations_were(
    name: str, data: st.DataObject, monkeypatch_once: pytest.MonkeyPatch
) -> None:
    case, spans = data.draw(cases(name)), data.draw(SPANS)
    run = fast(name, case, spans, compile=False)
    known = expected(name, case, spans, monkeypatch_once)
    np.testing.assert_allclose(run.spans.sums, known, rtol=1e-9, atol=1e-12)


@given(cases("vllm"), SPANS)
@examples(10)
def test_compiled_loops_leave_the_same_sums(case: Case, spans: Spans) -> None:
    plain, compiled = (fast("vllm", case, spans, compile=compile).spans for compile in (False, True))
    assert plain.sums.tobytes() == compiled.sums.tobytes()
    assert plain.gaps.tobytes() == compiled.gaps.tobytes()


@pytest.fixture(scope="module")
def monkeypatch_once() -> Any:
    """One for all examples of a test."""
    with pytest.MonkeyPatch.context() as patched:
        yield patched
