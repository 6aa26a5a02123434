"""FC 4.1: its policies and their rivals on its synthetic load, and the kernel against the slow simulator on it."""

import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import slow_simulator
from strategies import mix_model
from tiers import at_night

from kvplan.model import Plan, ServingModel
from kvplan.simulation.engine import run
from kvplan.simulation.outcome import Ending, Outcome
from kvplan.simulation.policies import POLICIES
from kvplan.simulation.policies.protocol import Scenario, Settings
from kvplan.simulation.requests import Requests, poisson

RIVALS: dict[str, list[dict[str, tuple[float, ...]]]] = {
    "greedy": [{}],
    "alpha-protection": [{"alpha": (alpha,)} for alpha in (0.1, 0.3, 0.5, 0.7)],
    "mc": [{"assume": (1.0,)}],
}

PRINTED = tomllib.loads((Path(__file__).parent / "flow_control.toml").read_text("utf-8"))
SLOTS, SEEDS = PRINTED["slots"], 4
Given = dict[str, tuple[float, ...]]


def model_at(scale: float, rate: float = PRINTED["rate"]) -> ServingModel:
    """The experiment, or a smaller one at the same load."""
    rows = [(s, d, scale * rate) for s, d in PRINTED["classes"]]
    return mix_model(*rows, memory=int(scale * PRINTED["memory"]))


def slotted(model: ServingModel, seed: int, slots: int) -> Requests:
    """Poisson arrivals, each at the start of its slot."""
    requests = poisson(model, np.random.default_rng(seed), requests=None, horizon_s=slots)
    return replace(requests, arrival_s=np.floor(requests.arrival_s))


def outcome_of(
    model: ServingModel, name: str, given: Given, requests: Requests, slots: int, compile: bool | None
) -> Outcome:
    scenario = Scenario(model, Plan(), requests, tuple(c.name for c in model.classes))
    setup, _ = POLICIES[name].prepare(scenario, Settings(name, given))
    return run(
        POLICIES[name].form_batch,
        requests,
        model.timing,
        model.replica,
        setup,
        horizon_s=slots,
        compile=compile,
    )


@cache
def measured(name: str, given: tuple[tuple[str, tuple[float, ...]], ...], seed: int) -> tuple[float, ...]:
    """Requests and tokens done per slot, their mean latency in slots, and the share of arrivals that was done."""
    model = model_at(1.0)
    requests = slotted(model, seed, SLOTS)
    outcome = outcome_of(model, name, dict(given), requests, SLOTS, True)
    done = np.isfinite(outcome.finish_s)
    latency = (outcome.finish_s - requests.arrival_s)[done].mean()
    tokens = requests.decode_tokens[done].sum() / SLOTS
    return float(done.sum() / SLOTS), float(tokens), float(latency), float(done.mean())


def settings_of(name: str) -> tuple[tuple[str, tuple[float, ...]], ...]:
    return tuple((k, tuple(v)) for k, v in PRINTED["policies"][name]["settings"].items())


@pytest.mark.parametrize("name", ["flow", *at_night("flow-unknown", "mc", "mc-sf")])
def test_requests_and_tokens_per_slot(name: str) -> None:
    """15 arrive in a slot; what was printed comes from a run of its own and is rounded: 1.2% are allowed."""
    runs = np.array([measured(name, settings_of(name), seed)[:2] for seed in range(SEEDS)])
    error = runs.std(axis=0, ddof=1) / np.sqrt(SEEDS)
    printed = np.array([PRINTED["policies"][name][key] for key in ("requests", "tokens")])
    assert (error < 0.005 * printed).all()
    assert (abs(runs.mean(axis=0) - printed) <= 3 * error + 0.012 * printed).all()


def test_in_all_5_arrive_and_every_policy_serves_them() -> None:
    """The load that fits: nobody waits for more than the slots of its own decode length."""
    model = model_at(1.0, PRINTED["rate"] / 3)
    requests = slotted(model, 0, 400)
    for name in (*PRINTED["policies"], "a-min", "alpha-protection"):
        given = dict(settings_of(name)) if name in PRINTED["policies"] else {}
        outcome = outcome_of(model, name, given, requests, 10**6, None)
        assert outcome.ending is Ending.FINISHED
        assert outcome.evictions.sum() == 0
        waited = outcome.finish_s - requests.arrival_s - requests.decode_tokens
        assert waited.mean() < (0.1 if name == "flow" else 0.01)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("flow", {"budgets": (1.0, 1.0, 1.0)}),
        ("flow-unknown", {"budget": (3.0,)}),
        ("flow-unknown", {"budget": (4.0,)}),
        ("mc", {}),
        ("mc", {"assume": (1.0,)}),
        ("mc-sf", {}),
        ("a-min", {}),
        ("alpha-protection", {"alpha": (0.1,)}),
        ("alpha-protection", {"alpha": (0.6,)}),
    ],
)
def test_the_kernel_agrees_with_the_slow_simulator_on_a_quarter_of_it(name: str, given: Given) -> None:
    model, slots = model_at(0.25), 130
    requests = slotted(model, 1, slots)
    fast = outcome_of(model, name, given, requests, slots, False)
    params: dict[str, object] = {key: value if key == "budgets" else value[0] for key, value in given.items()}
    if "assume" in given:
        params["assume"] = "max"
    if name == "a-min":
        params["shortest"] = 20
    slow = slow_simulator.simulate(name, requests, model.timing, model.replica, params, horizon_s=slots)
    assert fast.evictions.tolist() == slow.evictions
    assert fast.series.kv_tokens.tolist() == slow.kv_per_iteration
    expected = np.array(slow.finish_s, dtype=np.float64)
    np.testing.assert_array_equal(fast.finish_s, expected)
    assert slow.waiting_per_iteration[-1] > 50 or sum(slow.evictions) > 50  # it is put to the test


@pytest.mark.nightly
def test_the_shortest_first_have_the_lowest_latency_of_those_that_serve_half() -> None:
    """Of all here only alpha-protection serves less: who was cleared together begins together and overflows again."""
    others = [(name, settings_of(name)) for name in PRINTED["policies"] if name != "mc-sf"]
    others += [(name, tuple(given.items())) for name, grid in RIVALS.items() for given in grid]
    *_, best, share = measured("mc-sf", (), 0)
    assert share > 0.5
    serving = {key: measured(*key, 0) for key in others}
    assert all(latency > 1.5 * best for *_, latency, half in serving.values() if half > 0.5)
    assert {name for (name, _), (*_, half) in serving.items() if half <= 0.5} == {"alpha-protection"}
