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
from kvplan.errors import UsageError
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


@examples(7)
@given(case=small(3, whole=True).filter(lambda case: sum(d for _, _, d in case.rows) <= 6))
def test_where_evictions_lose_no_stages_the_bound_holds_for_any_slots_of_the_stages(case: Small) -> None:
    end = int(max(a for a, _, _ in case.rows)) + sum(d for _, _, d in case.rows)
    slots = [itertools.combinations(range(int(a), end), d) for a, _, d in case.rows]
    least = min(
        sum(run[-1] + 1 - a for run, (a, _, _) in zip(runs, case.rows, strict=True))
        for runs in itertools.product(*slots)
        if all(
            sum(s + 1 + run.index(t) for run, (_, s, _) in zip(runs, case.rows, strict=True) if t in run)
            <= case.memory
            for t in range(end)
        )
    )
    found = hindsight(case.instance()._replace(evicted_go_on=True), Metric.LATENCY)
    assert found.bound <= least / len(case.rows) + 1e-9
    assert found.value is not None
    assert found.value >= least / len(case.rows) - 1e-9
    assert found.proven == (found.bound == pytest.approx(found.value))


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


def test_an_engine_that_goes_on_after_an_eviction_is_faster_than_any_run_without() -> None:
    """Three of four run together in memory for 12 tokens; the fourth is evicted with 3, and done an iteration later."""
    case = Small([(0.0, 0, 4)] * 4, memory=4)
    requests, replica, outcome = ran("sarathi", case, Prefill.FUSED, None)
    known = instance(requests, Timing(1.0), replica, as_engine=True)
    mean = float(np.mean(outcome.finish_s))
    assert mean == 4.25
    assert hindsight(known._replace(evicted_go_on=False), Metric.LATENCY).bound == 5.0
    assert hindsight(known, Metric.LATENCY).bound == pytest.approx(mean)


def test_hindsight_is_better_than_greedy_where_it_pays_to_wait() -> None:
    """The long request first blocks ten short ones; hindsight lets them go before."""
    case = Small([(0.0, 9, 5), *[(0.0, 4, 1)] * 6], memory=15)
    requests, replica, outcome = ran("greedy", case, Prefill.DISAGGREGATED, None)
    found = hindsight(instance(requests, Timing(1.0), replica), Metric.LATENCY)
    assert found.bound < float(np.mean(outcome.finish_s - outcome.arrival_s))


@pytest.mark.parametrize(("metric", "horizon"), [(Metric.LATENCY, None), (Metric.COMPLETED, 40)])
def test_a_bound_that_is_not_proven_optimal_is_still_one(metric: Metric, horizon: int | None) -> None:
    rng = np.random.default_rng(3)
    inputs, decode = rng.integers(0, 20, 30), rng.integers(1, 9, 30)
    many = Instance(np.zeros(30), decode, inputs + 1, decode, capacity=60)
    hurried = hindsight(many, metric, horizon=horizon, nodes=0)
    assert not hurried.proven
    some = hindsight(many, metric, horizon=horizon, nodes=100)
    assert some.value is not None
    if metric is Metric.LATENCY:
        assert float(decode.mean()) - 1e-9 <= hurried.bound <= some.value
    else:
        assert some.value <= hurried.bound <= 30


def test_what_cannot_be_bounded_is_refused() -> None:
    one = Instance(np.zeros(1), np.array([3]), np.array([4]), np.array([3]), capacity=5)
    with pytest.raises(UsageError, match="can never fit"):
        hindsight(one, Metric.LATENCY)
    long = Instance(np.zeros(9), np.full(9, 3000), np.full(9, 4), np.full(9, 3000), capacity=10**6)
    with pytest.raises(UsageError, match="at most 20,000"):
        hindsight(long, Metric.LATENCY)
    none_done = hindsight(one._replace(capacity=9), Metric.COMPLETED, horizon=2)
    assert (none_done.bound, none_done.starts) == (0.0, (None,))
    model = ServingModel((one_class(3, 2),), Timing(1.0), Replica(10))
    with pytest.raises(UsageError, match="closed loop"):
        study_bounds(model, Load(Arrivals.CLOSED, 4, concurrency=2), ["greedy"], [0])
    slower = ServingModel(model.classes, Timing(1.0, d1=1e-3), model.replica)
    with pytest.raises(UsageError, match="equally long"):
        study_bounds(slower, Load(Arrivals.SATURATED, 4), ["greedy"], [0])


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
