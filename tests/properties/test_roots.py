"""Certified root counts and spectral radii against exact counts in integers, and against eigenvalues (theory §3)."""

import math
from fractions import Fraction

import numpy as np
import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st
from oracles import count_roots

from kvplan.analysis.roots import Arcs, all_inside_exact, count_outside, largest_root
from kvplan.analysis.roots import _on_radius as on_radius
from kvplan.model import FloatArray

coefficients = st.lists(st.integers(1, 60), min_size=1, max_size=14)


@st.composite
def with_roots_on_the_circle(draw: st.DrawFn) -> list[int]:
    """A polynomial times a palindrome whose roots are on the circle, or come in mirrored pairs."""
    base = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    factor = draw(st.sampled_from([[1, 1], [1, 2, 1], [1, 1, 1], [2, 3, 2], [1, 3, 1], [1, 1, 2, 1, 1]]))
    return [int(c) for c in np.polymul(base, factor)]


def eigenvalue_moduli(w: list[int] | FloatArray) -> FloatArray:
    return np.abs(np.roots(w))


@every(
    ("w", "inside", "on", "outside"),
    [
        ([1], 0, 0, 0),
        ([1, 1], 0, 1, 0),
        ([1, 2, 1], 0, 2, 0),
        ([2, 5, 2], 1, 0, 1),  # -2 and -1/2
        ([2, 7, 7, 2], 1, 1, 1),  # the same and -1
        ([1, 1, 1, 1, 1], 0, 4, 0),  # fifth roots of unity
        ([4, 20, 33, 20, 4], 2, 0, 2),  # -2 and -1/2, twice each
        ([1, 2, 3, 4], 0, 0, 3),
        ([4, 3, 2, 1], 3, 0, 0),
    ],
)
def test_the_exact_oracle_counts_known_roots(w: list[int], inside: int, on: int, outside: int) -> None:
    found = count_roots(w)
    assert (found.inside, found.on, found.outside) == (inside, on, outside)


@given(coefficients)
def test_the_root_count_is_exact_or_refused(w: list[int]) -> None:
    """Never a guess: None with a root on the circle, else the exact number outside."""
    exact, found = count_roots(w), count_outside(np.array(w, dtype=float))
    assert found in ((None,) if exact.on else (exact.outside, None))
    if exact.on == 0 and np.abs(eigenvalue_moduli(w) - 1).min(initial=1) > 1e-6:
        assert found == exact.outside


@given(with_roots_on_the_circle())
def test_a_root_on_the_circle_is_never_counted(w: list[int]) -> None:
    """The count is refused on the circle, exact a little further out, and nothing is called stable."""
    exact, floats = count_roots(w), np.array(w, dtype=float)
    if exact.on:
        assert count_outside(floats) is None
        assert not all_inside_exact(tuple(w))
    moduli = eigenvalue_moduli(w)
    if np.abs(moduli - 1.02).min() > 5e-3:
        assert count_outside(floats, 1.02) == np.count_nonzero(moduli > 1.02)


@given(coefficients)
def test_the_largest_root_is_where_exact_counts_enclose_it(w: list[int]) -> None:
    """No root beyond ρ(1 + 1e-9), one beyond ρ(1 - 1e-9): checked by exact counts at these rational radii."""
    root = largest_root(np.array(w, dtype=float))
    if len(w) == 1:
        assert (root.modulus, root.certified) == (0.0, True)
        return
    if not root.certified:
        assert root.modulus == pytest.approx(float(eigenvalue_moduli(w).max()), rel=1e-3)
        return
    degree = len(w) - 1
    counts = []
    for factor in (Fraction(10**9 + 1, 10**9), Fraction(10**9 - 1, 10**9)):
        radius = Fraction(root.modulus) * factor
        scaled = [c * radius ** (degree - k) for k, c in enumerate(w)]
        denominator = math.lcm(*(c.denominator for c in scaled))
        counts.append(count_roots([int(c * denominator) for c in scaled]).outside)
    assert counts[0] == 0
    assert counts[1] > 0


@every("size", [2, 3, 50, 180])
@every("shape", ["growing", "falling", "noisy", "tiny last", "steep"])
def test_the_spectral_radius_agrees_with_eigenvalues(size: int, shape: str) -> None:
    k = np.arange(size, dtype=float)
    w = {
        "growing": 100 + k,
        "falling": (100 + k) * (1 - k / size),
        "noisy": np.random.default_rng(5).uniform(0.5, 1.5, size),
        "tiny last": np.append(np.ones(size - 1), 1e-9),
        "steep": np.exp(-20 * k / size),
    }[shape]
    root = largest_root(w)
    assert root.certified
    assert root.modulus == pytest.approx(float(eigenvalue_moduli(w).max()), rel=1e-8)


@given(st.lists(st.integers(1, 60), min_size=2, max_size=10), st.integers(0, 9), st.booleans())
def test_a_count_holds_for_every_polynomial_within_the_stated_error(
    w: list[int], position: int, up: bool
) -> None:
    """With relative error 5 % granted, a count that is given is the exact one of a perturbed polynomial too."""
    found = count_outside(np.array(w, dtype=float), relative_error=0.05)
    if found is None:
        return
    perturbed = [20 * c for c in w]
    k = position % len(w)
    perturbed[k] = perturbed[k] + (w[k] if up else -w[k])
    assert count_roots(perturbed).outside == count_roots(w).outside == found


def test_beyond_the_budget_the_radius_is_estimated_and_nothing_is_certified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A polynomial of a thousand coefficients, estimated from sums of four and solved as a whole."""
    stages = np.arange(1000)
    w = sum((stages < length) * (stages + 101.0) for length in (600, 1000))
    whole = largest_root(w)
    monkeypatch.setattr("kvplan.analysis.roots.MOST", 300)
    estimate = largest_root(w)
    assert whole.certified
    assert not estimate.certified
    assert estimate.modulus == pytest.approx(whole.modulus, abs=1e-5)
    assert count_outside(w) is None


def test_in_a_long_polynomial_few_circles_lead_to_the_largest_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of stages from 5,000 to 20,000, in pages of 16 tokens: the root is far from the real axis."""
    stages = np.arange(20_000)
    w = np.minimum((20_000 - stages) / 15_000, 1.0) * (-(-(149 + stages) // 16) * 16.0)
    radii = []

    def counted(w: FloatArray, radius: float, relative_error: float) -> tuple[Arcs, float]:
        radii.append(radius)
        return on_radius(w, radius, relative_error)

    monkeypatch.setattr("kvplan.analysis.roots._on_radius", counted)
    found = largest_root(w, relative_error=1e-12)
    assert found.certified
    assert len(radii) <= 4
    monkeypatch.setattr("kvplan.analysis.roots._LONG", w.size)
    assert found.modulus == pytest.approx(largest_root(w, relative_error=1e-12).modulus, abs=1e-10)
