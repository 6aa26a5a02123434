"""Predicted lengths: policies go by them, requests turn out as they are, and nobody gains by worse predictions."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st
from small_runs import bytes_of
from tiers import at_night, examples

from kvplan.analysis.nested import nested_wait
from kvplan.model import FloatArray, Plan, Prefill, Replica, RequestClass, ServingModel, Timing
from kvplan.simulation.engine import run
from kvplan.simulation.estimates import t_quantile
from kvplan.simulation.outcome import Ending, Outcome
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.predictions import predicted
from kvplan.simulation.requests import Requests, poisson
from kvplan.study.predicted import beats_nested

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
    """Of WAIT, in memory of two long requests, those who pause can keep the rest from ever ending: that is told."""
    given = model(accuracy, memory, (60, 30))
    found = outcome(name, given, seed, horizon_s=None)
    stuck = name == "wait" and memory < 1000 and found.ending is Ending.LIVELOCK
    assert stuck or found.ending is Ending.FINISHED
    assert found.kv_peak <= memory
    assert stuck or np.isfinite(found.finish_s).all()


@every(("name", "left"), [("wait", 0.8), ("mc-sf", 0.8), ("flow", 0.8), ("mc", 0.95)])
def test_worse_predictions_serve_less(name: str, left: float) -> None:
    by_accuracy = [
        [served(outcome(name, model(a), seed, 40.0)) for seed in range(4)] for a in (1.0, 0.75, 0.5, 0.25)
    ]
    for better, worse in pairwise(by_accuracy):
        assert_no_more(np.subtract(worse, better))
    assert sum(by_accuracy[-1]) < left * sum(by_accuracy[0])  # else this could not fail


def assert_no_more(change: FloatArray) -> None:
    assert change.mean() <= t_quantile(change.size - 1) * change.std(ddof=1) / change.size**0.5


def test_by_a_min_wrong_predictions_can_serve_more() -> None:
    """Of lengths 4, 4, 4 and 1, all there at first, memory holds two long ones to their end: 6 + 6 tokens.

    With right predictions the third waits for them, and the short one behind it: done at 4, 4, 8 and 5. Where the third
    is taken for a short one, all begin, 4 · 3 tokens, then 3 · 4; then it is evicted, and done at 8 as before; but the
    short one at 1. In overload that goes on: some 12 % more are served at .5 than at 1.
    """
    replica, zeros = Replica(12, prefill=Prefill.DISAGGREGATED), np.zeros(4, dtype=np.int64)
    requests = Requests(zeros.astype(float), zeros + 2, np.array([4, 4, 4, 1]), zeros)
    classes = (RequestClass("a", 2, (1, 4), (1.0, 3.0), 1.0),)
    scenario = Scenario(ServingModel(classes, Timing(1.0), replica), Plan(), requests, ("a",))
    setup, _ = POLICIES["a-min"].prepare(scenario, Settings("a-min", {}))
    for expected, finish_s in (([4, 4, 4, 1], [4, 4, 8, 5]), ([4, 4, 1, 1], [4, 4, 8, 1])):
        taken = setup._replace(expected=np.array(expected))
        found = run(POLICIES["a-min"].form_batch, requests, Timing(1.0), replica, taken, compile=False)
        assert found.finish_s.tolist() == finish_s


@pytest.mark.parametrize("name", ["wait", *at_night(*GO_BY[1:])])
def test_a_coin_does_not_beat_nested_wait(name: str) -> None:
    """In memory that holds what Nested WAIT needs with certainty, by the plans of both.

    In the long run: those that a horizon leaves to Nested WAIT are no more than its gap, however long it is, and
    nobody serves more than come.
    """
    of_nested = nested_wait(model(None, rates=(90, 45)), delta=0.01, horizon_s=60.0, segments=2)
    assert of_nested.throughput_gap is not None
    done = {
        of: np.array(
            [finished(outcome(f"planned {of}", model(a, rates=(90, 45)), s, 60.0)) for s in range(4)]
        )
        for of, a in ((name, 0.5), ("nested-wait", None))
    }
    change = done[name] - done["nested-wait"]
    assert_no_more(change[:, 1])
    assert change[:, 0].max() <= of_nested.throughput_gap * of_nested.iterations
    assert done["nested-wait"].min(axis=0)[0] > 0.9 * 60 * 135


def finished(found: Outcome) -> list[int]:
    """Requests done in a minute, and in its second half."""
    return [int((found.finish_s > since).sum()) for since in (0, 30)]


def test_the_accuracy_from_which_predicted_lengths_beat_nested_ones_is_that_of_runs() -> None:
    """Of two lengths in memory that holds what neither needs; on other seeds, twice as long."""
    given = model(0.8, 11_000, (60, 90))
    found = beats_nested(given, Plan())
    assert found.at_best
    assert found.from_accuracy is not None

    def in_system(name: str, accuracy: float) -> FloatArray:
        runs = (
            outcome(f"planned {name}", model(accuracy, 11_000, (60, 90)), s, 130.0) for s in range(20, 24)
        )
        return np.array([(np.fmin(each.finish_s, 130.0) - each.arrival_s).sum() / 130.0 for each in runs])

    nested = in_system("nested-wait", 1.0)
    assert (in_system("wait", found.from_accuracy + 0.1) < nested).all()
    assert (in_system("wait", found.from_accuracy - 0.15) > nested).all()
    assert beats_nested(model(None, 11_000, (60, 90)), Plan()) == (None, None)  # where nobody asks
    assert beats_nested(model(0.8, 60_000, (60, 90)), Plan()) == (False, None)


def test_who_is_taken_for_whom_may_be_said() -> None:
    """A fifth of the short requests is taken for long ones, and no other; then two fifths for those of a law."""
    given = model(None, rates=(300, 150))
    short, long = given.classes
    scenario = scenario_of(
        replace(given, classes=(replace(short, accuracy=0.8, taken_for=(("160", 0.2),)), long)), 0, 100.0
    )
    true, taken = scenario.requests.class_index, predicted(scenario).class_index
    assert (taken[true == 1] == 1).all()
    assert taken[true == 0].mean() == pytest.approx(0.2, abs=4 * (0.16 / (true == 0).sum()) ** 0.5)
    assert (predicted(scenario).decode_tokens == np.array([20, 160])[taken]).all()
    law = RequestClass("law", 10, (5, 6), (1.0, 3.0), 100.0)
    mixed = replace(short, accuracy=0.5, taken_for=(("160", 0.1), ("law", 0.4)))
    scenario = scenario_of(replace(given, classes=(mixed, long, law)), 0, 100.0)
    mine = scenario.requests.class_index == 0
    kind, decode = predicted(scenario).class_index[mine], predicted(scenario).decode_tokens[mine]
    for share, is_so in ((0.5, kind == 0), (0.1, kind == 1), (0.1, decode == 5), (0.3, decode == 6)):
        assert is_so.mean() == pytest.approx(share, abs=4 * (0.25 / mine.sum()) ** 0.5)
    assert ((kind == 2) == (decode < 20)).all()
