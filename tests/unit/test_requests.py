"""Arrival processes: rates, shares, clumps, and that chance depends on the seed alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.model import Replica, RequestClass, ServingModel, Timing
from kvplan.simulation.requests import Requests, burst, closed, poisson, renewal, saturated
from kvplan.simulation.study import Arrivals, Load, generate

MODEL = ServingModel(
    (RequestClass("a", 100, (20, 40), (1.0, 3.0), 6.0), RequestClass("b", 10, (2,), (1.0,), 2.0)),
    Timing(0.01),
    Replica(9000),
)
SIZE = 40_000


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


KINDS = {
    "poisson": lambda seed: poisson(MODEL, rng(seed), requests=SIZE, horizon_s=None),
    "gamma": lambda seed: renewal(MODEL, rng(seed), cv=3.0, requests=SIZE, horizon_s=None),
    "burst": lambda seed: burst(
        MODEL, rng(seed), high=1.5, low=0.5, on_s=3, off_s=3, requests=SIZE, horizon_s=None
    ),
    "saturated": lambda seed: saturated(MODEL, requests=SIZE),
    "closed": lambda seed: closed(MODEL, rng(seed), clients=7, requests=SIZE),
}


def equal(a: Requests, b: Requests) -> bool:
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for name in ("arrival_s", "input_tokens", "decode_tokens", "class_index")
    )


@pytest.mark.parametrize("kind", KINDS)
def test_requests_are_as_many_as_asked_for_in_order_and_in_the_shares_of_the_model(kind: str) -> None:
    found = KINDS[kind](1)
    assert found.arrival_s.size == SIZE
    assert (np.diff(found.arrival_s) >= 0).all()
    assert found.arrival_s[0] >= 0
    assert np.mean(found.class_index == 0) == pytest.approx(0.75, abs=0.03)
    assert set(found.input_tokens[found.class_index == 0]) == {100}
    assert set(found.decode_tokens[found.class_index == 1]) == {2}
    assert np.mean(found.decode_tokens[found.class_index == 0] == 40) == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_requests_again(kind: str) -> None:
    assert equal(KINDS[kind](1), KINDS[kind](1))
    assert equal(KINDS[kind](1), KINDS[kind](2)) is (kind == "saturated")


@pytest.mark.parametrize(("kind", "cv"), [("poisson", 1.0), ("gamma", 3.0)])
def test_gaps_have_the_mean_and_variation_asked_for(kind: str, cv: float) -> None:
    found = KINDS[kind](3)
    gaps = np.diff(found.arrival_s[found.class_index == 0])
    assert gaps.mean() == pytest.approx(1 / 6, rel=0.1)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)


def test_bursts_come_while_they_are_on() -> None:
    found = burst(MODEL, rng(), high=2.0, low=0.25, on_s=1.0, off_s=3.0, requests=None, horizon_s=4000.0)
    phase = found.arrival_s % 4.0
    on, off = np.count_nonzero(phase < 1), np.count_nonzero(phase >= 1)
    assert on == pytest.approx(2.0 * 8 * 1000, rel=0.05)
    assert off == pytest.approx(0.25 * 8 * 3000, rel=0.05)


def test_silence_between_bursts_is_complete() -> None:
    found = burst(MODEL, rng(), high=2.0, low=0.0, on_s=1.0, off_s=3.0, requests=2000, horizon_s=None)
    assert (found.arrival_s % 4.0 <= 1.0 + 1e-9).all()


@pytest.mark.parametrize("kind", [Arrivals.POISSON, Arrivals.GAMMA, Arrivals.BURST])
def test_a_horizon_ends_arrivals(kind: Arrivals) -> None:
    found = generate(MODEL, Load(kind, requests=None, horizon_s=600.0), 4)
    assert found.arrival_s[-1] < 600
    assert found.arrival_s.size == pytest.approx(8 * 600, rel=0.3)
    both = generate(MODEL, Load(kind, requests=50, horizon_s=600.0), 4)
    assert both.arrival_s.size == 50


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 300))
def test_every_beginning_of_saturated_requests_has_its_shares_within_one(rates: list[int], size: int) -> None:
    classes = tuple(RequestClass(f"{i}", 1, (1,), (1.0,), float(r)) for i, r in enumerate(rates))
    found = saturated(ServingModel(classes, Timing(1.0), Replica(10)), requests=size)
    so_far = np.cumsum(found.class_index[:, None] == np.arange(len(rates)), axis=0)
    wanted = np.arange(1, size + 1)[:, None] * np.array(rates) / sum(rates)
    assert (np.abs(so_far - wanted) <= max(1.0, len(rates) / 2)).all()


def test_a_closed_loop_says_how_many_clients_it_has() -> None:
    found = closed(MODEL, rng(), clients=7, requests=20)
    assert found.clients == 7
    assert not found.arrival_s.any()
