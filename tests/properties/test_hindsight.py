"""Hindsight bounds: the optimum of an enumeration on tiny instances, and never surpassed by a policy on small ones."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import one_class
from tiers import examples

from kvplan.analysis.hindsight import Instance, Metric, hindsight
from kvplan.model import Plan, Prefill, Replica, ServingModel, Timing
from kvplan.simulation import engine
from kvplan.simulation.experiments.hindsight_bound import instance, study_bounds
from kvplan.simulation.experiments.load import Arrivals, Load
from kvplan.simulation.outcome import Ending, Outcome
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Requests

PARAMETERS: dict[str, dict[str, tuple[float, ...]]] = {
    "rate-limited": {"beta": (0.7,)},
    "flow": {"budgets": (2.0,)},
    "trtllm-no-evict": {"max_new": (5.0,)},
    "wait": {"thresholds": (2.0,)},
    "nested-wait": {"boundaries": (2.0, 5.0), "thresholds": (2.0, 1.0)},
}


@dataclass(frozen=True)
class Small:
    """A few requests in slots: (arrival, input, decode), `disaggregated`."""

    rows: list[tuple[float, int, int]]
    memory: int

    def instance(self) -> Instance:
        arrival, inputs, decode = (np.array(c) for c in zip(*self.rows, strict=True))
        return Instance(arrival.astype(float), decode, inputs + 1, decode, self.memory)


def small(most: int, *, whole: bool) -> st.SearchStrategy[Small]:
    arrivals = st.integers(0, 3).map(float) if whole else st.sampled_from([0.0, 0.0, 0.25, 1.0, 2.7, 9.5])
    row = st.tuples(arrivals, st.integers(0, 6), st.integers(1, 5))
    return st.builds(
        lambda rows, spare: Small(rows, max(s + d for _, s, d in rows) + spare),
        st.lists(row, min_size=1, max_size=most),
        st.integers(0, 12),
    )


def schedules(case: Small, end: int) -> Iterator[tuple[int | None, ...]]:
    """Every choice of start times, or of none, that keeps to the memory in every slot."""
    choices = [[None, *range(int(a), end - d + 1)] for a, _, d in case.rows]
    for starts in itertools.product(*choices):
        if all(
            sum(
                s + 1 + (t - u)
                for u, (_, s, d) in zip(starts, case.rows, strict=True)
                if u is not None and u <= t < u + d
            )
            <= case.memory
            for t in range(end)
        ):
            yield starts


@given(case=small(3, whole=True), horizon=st.integers(1, 6))
def test_the_optimum_is_that_of_an_enumeration_of_start_times(case: Small, horizon: int) -> None:
    by_then = list(schedules(case, horizon))
    done = hindsight(case.instance(), Metric.COMPLETED, horizon=horizon)
    assert done.proven
    assert done.bound == done.value == max(sum(u is not None for u in starts) for starts in by_then)
    tokens = hindsight(case.instance(), Metric.DECODE_TOKENS, horizon=horizon)
    assert tokens.bound == max(
        sum(d for u, (_, _, d) in zip(starts, case.rows, strict=True) if u is not None) for starts in by_then
    )
    assert done.starts in by_then
    assert tokens.starts in by_then


@examples(7)
@given(case=small(3, whole=True))
def test_the_least_latency_is_that_of_an_enumeration_of_start_times(case: Small) -> None:
    end = int(max(a for a, _, _ in case.rows)) + sum(d for _, _, d in case.rows)
    found = hindsight(case.instance(), Metric.LATENCY)
    least = min(
        sum(u + d - a for u, (a, _, d) in zip(starts, case.rows, strict=True) if u is not None)
        for starts in schedules(case, end)
        if None not in starts
    )
    assert found.proven
    assert found.gap == 0.0
    assert found.bound == found.value == pytest.approx(least / len(case.rows))


def ran(
    name: str, case: Small, prefill: Prefill, horizon_s: float | None
) -> tuple[Requests, Replica, Outcome]:
    arrival, inputs, decode = (
        np.array(c) for c in zip(*sorted(case.rows, key=lambda row: row[0]), strict=True)
    )
    if prefill is Prefill.INLINE:
        inputs = np.maximum(inputs, 1)
    requests = Requests(arrival.astype(float), inputs, decode, np.zeros(arrival.size, dtype=np.int64))
    replica = Replica(case.memory + 8, prefill=prefill)  # room for the block that an engine reserves
    model = ServingModel((one_class(1, 5, name="a"),), Timing(1.0), replica)
    setup, _ = POLICIES[name].prepare(
        Scenario(model, Plan(), requests, ("a",)), Settings(name, PARAMETERS.get(name, {}))
    )
    policy = POLICIES[name].form_batch
    outcome = engine.run(policy, requests, Timing(1.0), replica, setup, compile=False, horizon_s=horizon_s)
    return requests, replica, outcome


@pytest.mark.parametrize("name", list(POLICIES))
@examples(6)
@given(case=small(8, whole=False), prefill=st.sampled_from(Prefill), horizon=st.integers(2, 12))
def test_no_policy_surpasses_hindsight(name: str, case: Small, prefill: Prefill, horizon: int) -> None:
    requests, replica, outcome = ran(name, case, prefill, None)
    known = instance(requests, Timing(1.0), replica, as_engine=POLICIES[name].engine)
    if outcome.ending is Ending.FINISHED:
        mean = float(np.mean(outcome.finish_s - outcome.arrival_s))
        assert mean >= hindsight(known, Metric.LATENCY).bound - 1e-6
    _, _, cut = ran(name, case, prefill, float(horizon))
    finished = cut.finish_s <= horizon
    assert np.count_nonzero(finished) <= hindsight(known, Metric.COMPLETED, horizon=horizon).bound
    tokens = int(requests.decode_tokens[finished].sum())
    assert tokens <= hindsight(known, Metric.DECODE_TOKENS, horizon=horizon).bound


def test_rates_of_a_study_are_bounded_per_second_and_where_an_engine_runs_by_its_way_to_count() -> None:
    """Two requests of 3 + 2 tokens in 10, slots of half a second: two done in each second."""
    model = ServingModel((one_class(3, 2),), Timing(0.5), Replica(10))
    load = Load(Arrivals.SATURATED, requests=9, horizon_s=3.0)
    rate, tokens = study_bounds(model, load, ["greedy"], [0, 1])
    assert (rate.figure, rate.bound, rate.proven) == ("throughput_rps", 2.0, True)
    assert (tokens.figure, tokens.bound) == ("decode_tokens_per_s", 4.0)
    # in 8 tokens they take turns; as an engine counts, two hold 3 + 1 tokens each at most
    tight = ServingModel(model.classes, Timing(0.5), Replica(8))
    assert study_bounds(tight, load, ["greedy"], [0])[0].bound == 1.0
    assert study_bounds(tight, load, ["greedy", "vllm"], [0])[0].bound == 2.0
