"""A run is the same however few requests have a row of its state at a time."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import Case, bytes_of, cases, run

from kvplan.model import Plan, Replica, RequestClass, ServingModel, Timing
from kvplan.simulation import engine
from kvplan.simulation.experiments.load import Load
from kvplan.simulation.experiments.options import chosen
from kvplan.simulation.experiments.study import study
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import poisson
from kvplan.simulation.row_pool import RowPool
from kvplan.simulation.state import State

RUNS = [(name, {}) for name in POLICIES] + [(name, {"prefix_caching": (1.0,)}) for name in ("vllm", "sglang")]
RUNS += [("vllm", {"shed_after": (3.0,), "prefix_caching": (caching,)}) for caching in (0.0, 1.0)]


def in_rows(monkeypatch: pytest.MonkeyPatch, rows: int, name: str, case: Case) -> list[object]:
    with monkeypatch.context() as context:
        context.setattr(engine, "ROWS", rows)
        return bytes_of(run(name, case))


@pytest.mark.parametrize(("name", "given_"), RUNS, ids=lambda x: x if isinstance(x, str) else ",".join(x))
def test_a_run_is_the_same_to_the_last_bit_in_few_rows_and_in_many(
    name: str, given_: dict[str, tuple[float, ...]]
) -> None:
    @given(cases(name), st.integers(1, 6))
    def same(case: Case, rows: int) -> None:
        case = replace(case, parameters=case.parameters | given_)
        with pytest.MonkeyPatch.context() as monkeypatch:
            assert in_rows(monkeypatch, rows, name, case) == in_rows(monkeypatch, 1000, name, case)

    same()


@pytest.mark.parametrize("policy", ["greedy", "vllm"])
def test_no_more_rows_are_held_than_requests_are_under_way(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the streams of those that a cache keeps; about 13 at a time and 64 blocks here, of 2,000 requests."""
    held = []

    class Counted(RowPool):
        def refilled(self, states: Sequence[State], further: int) -> tuple[tuple[State, ...], int, int]:
            found = super().refilled(states, further)
            [s] = found[0]
            held.append((s.time.shape[0], s.request.shape[0], s.stream.shape[0]))
            return found

    monkeypatch.setattr(engine, "RowPool", Counted)
    monkeypatch.setattr(engine, "ROWS", 50)
    replica = Replica(1024, block_tokens=16)
    model = ServingModel((RequestClass("a", 8, (8,), (1.0,), 1.5),), Timing(1.0), replica)
    requests = poisson(model, np.random.default_rng(1), requests=2000, horizon_s=None)
    setup, _ = POLICIES[policy].prepare(Scenario(model, Plan(), requests, ("a",)), Settings(policy, {}))
    outcome = engine.run(POLICIES[policy].form_batch, requests, model.timing, replica, setup, compile=False)
    assert outcome.finished
    assert len(held) > 10
    assert max(map(max, held)) <= 2 * (64 + 50)


def test_seeds_side_by_side_are_the_same_as_one_by_one() -> None:
    model = ServingModel((RequestClass("a", 30, (5, 20), (1.0, 1.0), 9.0),), Timing(0.01), Replica(3000))
    given = Load(requests=400), chosen(["vllm", "greedy"], []), range(5)
    one, several = (study(model, Plan(), *given, compile=True, threads=threads) for threads in (1, 3))
    assert several.results == one.results
    for mine, theirs in zip(several.runs, one.runs, strict=True):
        assert [bytes_of(run) for _, run in mine] == [bytes_of(run) for _, run in theirs]
