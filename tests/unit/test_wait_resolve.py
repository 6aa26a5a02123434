"""Thresholds of WAIT that follow the rates: solved for what came, and over a day sooner done than those of its peak."""

from dataclasses import replace

import numpy as np
import pytest
from small_runs import bytes_of
from strategies import mix_model
from tiers import at_night

from kvplan.model import Plan, ServingModel, Timing
from kvplan.model.schedule import Sinusoid
from kvplan.simulation.engine import run
from kvplan.simulation.experiments.load import Load, generate
from kvplan.simulation.experiments.options import chosen
from kvplan.simulation.outcome import Outcome
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Requests

DAY_S = 86_400.0
DAYS = {
    "two lengths": mix_model(
        (100, 20, 1.0), (100, 60, 0.5), memory=400_000, prefill="inline", timing=Timing(6.0, 1e-6, 1e-5)
    ),
    "rates that all but vanish": mix_model(
        (100, 20, 2.0), (300, 60, 2.0), memory=10**6, prefill="inline", timing=Timing(2.0, 2e-6, 1e-4)
    ),
    "one of many, one of few": mix_model(
        (50, 10, 8.0), (50, 30, 1.0), memory=10**6, timing=Timing(1.0, 2e-6, 2e-3)
    ),
}
AMPLITUDE = {"two lengths": 0.7, "rates that all but vanish": 0.9, "one of many, one of few": 0.5}


def served(model: ServingModel, requests: Requests, window_s: float | None) -> Outcome:
    scenario = Scenario(model, Plan(), requests, tuple(c.name for c in model.classes))
    given = {} if window_s is None else {"resolve": (window_s,)}
    setup, _ = POLICIES["wait"].prepare(scenario, Settings("wait", given))
    return run(POLICIES["wait"].form_batch, requests, model.timing, model.replica, setup, horizon_s=DAY_S)


@pytest.mark.parametrize("name", ["two lengths", *at_night(*list(DAYS)[1:])])
@pytest.mark.parametrize("minutes", [10, *at_night(60)])
def test_over_a_day_they_are_faster_than_those_of_the_worst_window_and_serve_as_much(
    name: str, minutes: int
) -> None:
    model = replace(DAYS[name], schedule=Sinusoid(DAY_S, AMPLITUDE[name], DAY_S / 2))
    requests = generate(model, Load(requests=None, horizon_s=DAY_S), 0)
    fixed, followed = (served(model, requests, window_s) for window_s in (None, 60.0 * minutes))
    done = [int(np.isfinite(each.finish_s).sum()) for each in (fixed, followed)]
    assert done[1] >= done[0] > 0.99 * requests.arrival_s.size
    assert np.nanmean(followed.e2e_s) < 0.85 * np.nanmean(fixed.e2e_s)
    assert np.nanpercentile(followed.e2e_s, 95) < np.nanpercentile(fixed.e2e_s, 95)
    assert followed.evictions.sum() == 0


def test_a_window_takes_the_least_thresholds_that_keep_up_with_what_came_in_the_one_before() -> None:
    """Of 90 and 10 in 10 s as many as may come by chance, 90 + 2·√90 and 10 + 2·√10, by trying all pairs."""
    model = mix_model((5, 3, 1.0), (5, 6, 1.0), memory=10**6, timing=Timing(0.2, 1e-4))
    arrival_s = np.concatenate([np.linspace(0, 9.9, 100), np.linspace(10, 19.9, 20)])
    kind = np.concatenate([np.arange(100) % 10 == 0, np.arange(20) % 2 == 0]).astype(np.int64)
    requests = Requests(arrival_s, np.full(120, 5), np.array([3, 6])[kind], kind)
    scenario = Scenario(model, Plan(), requests, tuple(c.name for c in model.classes))
    setup, parameters = POLICIES["wait"].prepare(scenario, Settings("wait", {"resolve": (10.0,)}))
    held = 3 * 5 + 1 + 2 + 3, 6 * 5 + 21
    rates = [(n + 2 * n**0.5) / 10 for n in (90, 10)]
    least = min(
        (n, m)
        for n in range(1, 60)
        for m in range(1, 60)
        if rates[0] * (time := 0.2 + 1e-4 * (n * held[0] + m * held[1])) < n and rates[1] * time < m
    )
    assert setup.knobs.tolist() == [1, 1, 10.0, *parameters["thresholds"], *least]  # type: ignore[misc]


def test_until_there_is_a_window_they_are_those_of_the_plan() -> None:
    model = DAYS["two lengths"]
    requests = generate(model, Load(requests=300, horizon_s=None), 0)
    assert bytes_of(served(model, requests, None)) == bytes_of(served(model, requests, 1e4))


def test_a_window_is_written_as_a_time() -> None:
    assert chosen(["wait"], ["wait.resolve=10 min"])["wait"].given == {"resolve": (600.0,)}
