"""Requests of any model: in order, as many as asked for, of lengths that their class has, by share."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import models

from kvplan.model import Replica, RequestClass, ServingModel, Timing
from kvplan.simulation import requests as requests_module
from kvplan.simulation.requests import Requests, _after, burst, interleaved, poisson, renewal

Generate = Callable[[ServingModel, np.random.Generator, int | None, float | None], Requests]


@st.composite
def arrivals(draw: st.DrawFn) -> Generate:
    """One of the open arrivals with any parameters."""
    kind = draw(st.sampled_from(["poisson", "renewal", "burst"]))
    if kind == "poisson":
        return lambda model, rng, n, end: poisson(model, rng, requests=n, horizon_s=end)
    if kind == "renewal":
        cv = draw(st.floats(0.01, 100.0))
        return lambda model, rng, n, end: renewal(model, rng, cv=cv, requests=n, horizon_s=end)
    high, low = draw(st.floats(0.01, 1e3)), draw(st.just(0.0) | st.floats(0.01, 1e3))
    if draw(st.booleans()):
        high, low = low, high
    on_s, off_s = draw(st.floats(1e-6, 1e6)), draw(st.floats(1e-6, 1e6))
    return lambda model, rng, n, end: burst(
        model, rng, high=high, low=low, on_s=on_s, off_s=off_s, requests=n, horizon_s=end
    )


def assert_of_the_model(some: Requests, model: ServingModel) -> None:
    """Arrays of one size; every request has the prompt of its class and one of its lengths."""
    sizes = {a.shape for a in (some.arrival_s, some.input_tokens, some.decode_tokens, some.class_index)}
    assert len(sizes) == 1
    assert {a.dtype for a in (some.input_tokens, some.decode_tokens, some.class_index)} <= {np.dtype("int64")}
    for kind, prompt, decode in zip(some.class_index, some.input_tokens, some.decode_tokens, strict=True):
        assert prompt == model.classes[kind].input_tokens
        assert decode in model.classes[kind].decode_tokens


@given(models(), arrivals(), st.integers(0, 300), st.integers(0, 2**32))
def test_open_arrivals_are_in_order_and_as_many_as_asked_for(
    model: ServingModel, generate: Generate, requests: int, seed: int
) -> None:
    some = generate(model, np.random.default_rng(seed), requests, None)
    assert_of_the_model(some, model)
    assert some.arrival_s.size == requests
    assert (some.arrival_s >= 0).all()
    assert np.isfinite(some.arrival_s).all()
    assert (np.diff(some.arrival_s) >= 0).all()
    again = generate(model, np.random.default_rng(seed), requests, None)
    assert again.arrival_s.tobytes() == some.arrival_s.tobytes()
    assert again.decode_tokens.tobytes() == some.decode_tokens.tobytes()


@given(models(), st.integers(0, 500))
def test_interleaved_requests_keep_to_their_shares_all_along(model: ServingModel, requests: int) -> None:
    """Classes to within 2 of their share, and the lengths of a class to within 2 of their weight."""
    some = interleaved(model, requests=requests)
    assert_of_the_model(some, model)
    rates = np.array([c.rate_rps for c in model.classes])
    assert_kept(some.class_index, np.arange(rates.size), rates)
    for index, c in enumerate(model.classes):
        assert_kept(
            some.decode_tokens[some.class_index == index],
            np.array(c.decode_tokens),
            np.array(c.decode_weights),
        )


def assert_kept(seen: np.ndarray, values: np.ndarray, amounts: np.ndarray) -> None:
    so_far = np.cumsum(seen[:, None] == values, axis=0)
    shares = np.arange(1, seen.size + 1)[:, None] * (amounts / amounts.sum())
    assert np.abs(so_far - shares).max(initial=0.0) <= 2 + 1e-9


@given(
    laws=st.lists(
        st.lists(st.sampled_from([1e-9, 0.1, 1.0, 7.0]), min_size=1, max_size=40), min_size=1, max_size=5
    ),
    seed=st.integers(0, 99),
)
def test_positions_by_a_guide_are_those_of_a_search(laws: list[list[float]], seed: int) -> None:
    """Chances among them that are an end, the next ones below, and the end of the line itself."""
    ends = np.concatenate([i + np.cumsum(law) / np.cumsum(law)[-1] for i, law in enumerate(laws)])
    chance = np.random.default_rng(seed).random(100 * ends.size) * len(laws)
    chance = np.concatenate((chance, ends, np.nextafter(ends, 0), np.arange(len(laws) + 1)))
    chance = chance[chance <= len(laws)]
    assert _after(ends, chance).tolist() == np.searchsorted(ends, chance, side="right").tolist()


def test_what_is_drawn_in_pieces_and_held_in_half_the_memory_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    classes = (
        RequestClass("a", 100, (5, 9, 30), (1.0, 2.0, 1.0), 2.0),
        RequestClass("b", 7, (4, 50), (1.0, 1.0), 1.0),
    )
    model = ServingModel(classes, Timing(0.01), Replica(9000))
    whole = poisson(model, np.random.default_rng(5), requests=1000, horizon_s=None)
    monkeypatch.setattr(requests_module, "_PIECE", 77)
    monkeypatch.setattr(requests_module, "_MANY", 10)
    pieces = poisson(model, np.random.default_rng(5), requests=1000, horizon_s=None)
    assert pieces.arrival_s.tobytes() == whole.arrival_s.tobytes()
    for name in ("input_tokens", "decode_tokens", "class_index"):
        held, before = getattr(pieces, name), getattr(whole, name)
        assert held.dtype == (np.int16 if name == "class_index" else np.int32)
        assert before.dtype == np.int64
        assert held.tolist() == before.tolist()
