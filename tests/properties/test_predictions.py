"""Predicted lengths: policies go by them, requests turn out as they are, and nobody gains by worse predictions."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st
from small_runs import bytes_of
from tiers import examples

from kvplan.model import Plan, Prefill, Replica, RequestClass, ServingModel, Timing
from kvplan.simulation.engine import run
from kvplan.simulation.estimates import t_quantile
from kvplan.simulation.outcome import Ending, Outcome
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.predictions import predicted
from kvplan.simulation.requests import poisson

GO_BY = ["wait", "flow", "mc", "mc-sf", "a-min"]  # a predicted length, if there is one
SET = {"wait": {"thresholds": (6.0, 3.0)}, "flow": {"budgets": (5.0, 2.0)}}


def model(
    accuracy: float | None, memory: int = 20_000, rates: tuple[float, float] = (300, 150)
) -> ServingModel:
    classes = [
        RequestClass(str(d), 10, (d,), (1.0,), rate, accuracy=accuracy)
        for d, rate in zip((20, 160), rates, strict=True)
    ]
    timing = Timing(d0=0.01, d1=1e-7, d2=2e-5)
    return ServingModel(tuple(classes), timing, Replica(memory, prefill=Prefill.INLINE))


def scenario_of(given: ServingModel, seed: int, horizon_s: float) -> Scenario:
    requests = poisson(given, np.random.default_rng(seed), requests=None, horizon_s=horizon_s)
    return Scenario(given, Plan(), requests, tuple(c.name for c in given.classes), seed)


def outcome(name: str, given: ServingModel, seed: int = 0, horizon_s: float | None = 10.0) -> Outcome:
    scenario = scenario_of(given, seed, horizon_s or 1.0)
    setting, name = SET.get(name, {}), name.removeprefix("planned ")
    setup, _ = POLICIES[name].prepare(scenario, Settings(name, setting))
    return run(
        POLICIES[name].form_batch, scenario.requests, given.timing, given.replica, setup, horizon_s=horizon_s
    )


def served(found: Outcome) -> int:
    return int(np.isfinite(found.finish_s).sum())


@every("name", ["wait", "flow", "mc", "mc-sf"])
def test_right_predictions_are_known_lengths_to_the_unit(name: str) -> None:
    known, right = (outcome(name, model(accuracy), horizon_s=4.0) for accuracy in (None, 1.0))
    assert known.iterations > 100
    assert bytes_of(known) == bytes_of(right)


def test_as_many_are_right_as_the_accuracy_says_and_others_are_taken_for_the_rest() -> None:
    """Of two lengths the wrong one is the other; of three at rates 1:2:1 one of the ends for the middle, evenly."""
    scenario = scenario_of(model(0.7), 0, 100.0)
    wrong = predicted(scenario).decode_tokens != scenario.requests.decode_tokens
    assert wrong.mean() == pytest.approx(0.3, abs=4 * (0.21 / wrong.size) ** 0.5)
    assert (predicted(scenario).class_index != scenario.requests.class_index).tolist() == wrong.tolist()
    law = RequestClass("a", 10, (5, 6, 7), (1.0, 2.0, 1.0), 300.0, accuracy=0.0)
    scenario = scenario_of(replace(model(None), classes=(law,)), 0, 100.0)
    taken, true = predicted(scenario).decode_tokens, scenario.requests.decode_tokens
    assert not (taken == true).any()
    middle = taken[true == 6] == 5
    assert middle.mean() == pytest.approx(1 / 2, abs=4 * (0.25 / middle.size) ** 0.5)
    end = taken[true == 5] == 6
    assert end.mean() == pytest.approx(2 / 3, abs=4 * (2 / 9 / end.size) ** 0.5)


@pytest.mark.parametrize("name", GO_BY)
@examples(15)
@given(accuracy=st.floats(0, 1), memory=st.integers(400, 5000), seed=st.integers(0, 99))
def test_whatever_is_predicted_requests_turn_out_as_they_are(
    name: str, accuracy: float, memory: int, seed: int
) -> None:
    given = model(accuracy, memory, (60, 30))
    found = outcome(name, given, seed, horizon_s=None)
    assert found.ending is Ending.FINISHED
    assert found.kv_peak <= memory
    assert np.isfinite(found.finish_s).all()


@every("name", ["wait", "mc-sf"])
def test_worse_predictions_serve_less(name: str) -> None:
    by_accuracy = [
        [served(outcome(name, model(a), seed)) for seed in range(4)] for a in (1.0, 0.75, 0.5, 0.25)
    ]
    for better, worse in pairwise(by_accuracy):
        change = np.subtract(worse, better)
        assert change.mean() <= t_quantile(3) * change.std(ddof=1) / 2
    assert sum(by_accuracy[-1]) < 0.8 * sum(by_accuracy[0])  # else this could not fail


def test_thresholds_by_a_coin_do_not_beat_nested_ones() -> None:
    """In memory that holds what Nested WAIT needs with certainty, and thresholds of either's plan."""
    coin, nested = (
        [served(outcome(name, model(a, rates=(90, 45)), seed, 60.0)) for seed in range(4)]
        for name, a in (("planned wait", 0.5), ("planned nested-wait", None))
    )
    change = np.subtract(coin, nested)
    assert change.mean() <= t_quantile(3) * change.std(ddof=1) / 2
    assert min(nested) > 0.9 * 60 * 135
