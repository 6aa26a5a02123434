"""The searches along a line find what is there, wherever it is."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.solve import boundary, falling_root, first_of_steps, least_whole, peak

places = st.floats(1e-9, 1e9)


@given(places)
def test_a_boundary_is_found_to_the_last_bit(at: float) -> None:
    low, high = boundary(lambda x: x >= at, 0.0, 2e9)
    assert low < at <= high
    assert math.nextafter(low, math.inf) == high


@given(places, st.floats(1e-6, 0.5), st.booleans())
def test_a_boundary_is_as_near_as_asked(at: float, close: float, geometric: bool) -> None:
    low, high = boundary(lambda x: x >= at, 1e-10, 2e9, close=close, geometric=geometric)
    assert low <= at <= high <= (1 + close) * low


@given(st.integers(-50, 50), st.integers(1, 100), st.data())
def test_the_least_whole_number(low: int, width: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(low + 1, low + width))
    assert least_whole(lambda n: n >= at, low, low + width) == at


@given(places, st.floats(1.01, 10.0))
def test_steps_end_at_the_first_that_holds(at: float, factor: float) -> None:
    found = first_of_steps(lambda x: x >= at, 1e-9, factor, 1e10)
    assert found >= at
    assert found == 1e-9 or found / factor < at * (1 + 1e-9)


@given(st.floats(-100, 100), st.floats(0.1, 5))
def test_a_peak_is_found(at: float, power: float) -> None:
    found = peak(lambda x: -(abs(x - at) ** power), -200.0, 300.0, close=1e-9)
    assert found == pytest.approx(at, abs=1e-6)


@given(st.lists(st.floats(0.01, 99.0), min_size=1, max_size=5))
def test_many_roots_at_once(at: list[float]) -> None:
    wanted = np.array(at)
    found = falling_root(lambda x: wanted**3 - x**3, np.zeros(wanted.size), np.full(wanted.size, 100.0))
    assert found == pytest.approx(wanted, rel=1e-10)
