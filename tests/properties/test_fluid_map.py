"""The saturated fluid map against a slow, obvious one, and its cycles against closed forms (theory §3)."""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from oracles import SlowMap
from tiers import examples

from kvplan.analysis import fluid_map as module
from kvplan.analysis.fluid_map import (
    FluidMap,
    Run,
    collapsed_starts,
    find_attractor,
    fluid_map,
    run,
)
from kvplan.model import FloatArray, Weights
from kvplan.solve import find_period

PLAIN, COMPILED = 10**12, 0  # rows and iterations above which the compiled loop is used


class Mixture(NamedTuple):
    """Rows as (stages n, tokens a at stage 0, prompt, parts of the admissions), the memory, the page and the seats."""

    rows: tuple[tuple[int, int, int, int], ...]
    capacity: float
    page: int = 1
    seats: float = math.inf

    @property
    def shares(self) -> list[float]:
        return [parts / sum(row[3] for row in self.rows) for *_, parts in self.rows]

    @property
    def weights(self) -> list[list[float]]:
        return [[float(self.page * -(-(a + k) // self.page)) for k in range(n)] for n, a, _, _ in self.rows]

    @property
    def size(self) -> int:
        return max(n for n, *_ in self.rows)

    @property
    def footprint(self) -> float:
        return sum(p * sum(w) for p, w in zip(self.shares, self.weights, strict=True))

    def fast(self) -> FluidMap:
        n, a, prompt, _ = (np.array(column) for column in zip(*self.rows, strict=True))
        weights = Weights(a.astype(float), n, self.page)
        return fluid_map(weights, np.array(self.shares), prompt.astype(float), self.capacity, self.seats)

    def slow(self, masses: FloatArray) -> SlowMap:
        return SlowMap.of_cohorts(
            self.weights,
            self.shares,
            self.capacity,
            masses.tolist(),
            seats=None if math.isinf(self.seats) else self.seats,
            nothing=1e-12 * self.capacity,
        )

    def filling(self, raw: list[float], fill: float) -> FloatArray:
        """Cohort masses that fill a part of memory, or of the seats, with empty cohorts where `raw` has zeros."""
        masses = np.array(raw)
        slow = self.slow(masses)
        if not slow.layers:
            return masses
        part = min(self.capacity / slow.memory(), self.seats / slow.in_flight())
        return masses * fill * part


@st.composite
def mixtures(draw: st.DrawFn, *, max_stages: int = 12, common: int = 1) -> Mixture:
    """Up to five rows, often short prompts of different lengths: many evictions; stages are multiples of `common`."""
    row = st.tuples(
        st.integers(1, max_stages // common).map(lambda n: common * n),
        st.integers(1, 5) | st.integers(1, 60),
        st.integers(0, 60),
        st.integers(1, 20),
    )
    mixed = st.lists(row, min_size=2, max_size=5, unique_by=lambda one: one[0])
    rows = draw(st.lists(row, min_size=1, max_size=5) | mixed | mixed)
    mixture = Mixture(
        tuple(rows), draw(st.sampled_from([1.0, 37.0, 1e4, 1e9])), draw(st.sampled_from([1, 1, 3, 16]))
    )
    limited = draw(st.sampled_from([None, None, None, 0.7, 1.1, 1.6]))  # of the requests that memory holds
    if limited is None:
        return mixture
    stages = sum(p * n for p, (n, *_) in zip(mixture.shares, mixture.rows, strict=True))
    return mixture._replace(seats=limited * mixture.capacity / mixture.footprint * stages)


def cohorts(size: int) -> st.SearchStrategy[list[float]]:
    """A flood, or some at any stages."""
    some = st.lists(st.sampled_from([0.0, 0.0, 0.1, 1.0, 3.0]), min_size=size, max_size=size)
    return st.just([1.0] + [0.0] * (size - 1)) | some


def agree(mixture: Mixture, masses: FloatArray, iterations: int) -> None:
    """All that a run says about every iteration."""
    history, slow = run(mixture.fast(), masses, iterations), mixture.slow(masses)
    footprints = [sum(w) / mixture.footprint for w in mixture.weights]
    prompts = [prompt for _, _, prompt, _ in mixture.rows]
    for t in range(iterations):
        step = slow.step()
        expected = Run(
            throughput=sum(n * s for n, s in zip(step.completed, footprints, strict=True)),
            completed=sum(step.completed),
            evicted=sum(step.evicted),
            evicted_prompts=sum(n * s for n, s in zip(step.evicted, prompts, strict=True)),
            evicted_pairs=sum(n * sum(range(s + 1)) for n, s in zip(step.evicted, prompts, strict=True)),
            in_flight=slow.in_flight(),
            held_tokens=slow.memory(),
            read_tokens=sum(
                n * (row[1] + k)
                for row, held in zip(mixture.rows, slow.by_stage(), strict=True)
                for k, n in enumerate(held)
            ),
        )
        requests = 1e-7 * mixture.capacity / min(w[0] for w in mixture.weights)
        tolerances = Run(
            *[requests] * 3, requests * 60, requests * 1830, requests, *[1e-7 * mixture.capacity] * 2
        )
        for name, found, value, tolerance in zip(Run._fields, history, expected, tolerances, strict=True):
            assert found[t] == pytest.approx(value, abs=tolerance), (t, name)


@given(mixtures(), st.data(), st.sampled_from([0.5, 1.0, 1.0]))
@examples(60)
def test_the_map_does_what_explicit_layers_do(mixture: Mixture, data: st.DataObject, fill: float) -> None:
    """From any state, empty cohorts included."""
    agree(mixture, mixture.filling(data.draw(cohorts(mixture.size)), fill), 8 * mixture.size)


@given(mixtures(max_stages=8), st.data())
@examples(8)
def test_every_row_completes_in_proportion_in_the_long_run(mixture: Mixture, data: st.DataObject) -> None:
    """The mix as offered: by rows in the slow map, by footprint in the fast one, the same number.

    A row can be ahead only by what is in flight and what waits, which does not grow without bound.
    """
    size, iterations = mixture.size, 60 * mixture.size
    masses = mixture.filling(data.draw(cohorts(size)), 1.0)
    slow = mixture.slow(masses)
    completed, waiting = np.zeros(len(mixture.rows)), []
    for _ in range(iterations):
        completed += slow.step().completed
        waiting.append(sum(slow.pooled()))
    full = mixture.capacity / min(w[0] for w in mixture.weights)
    assert max(waiting[iterations // 2 :]) <= max(waiting[: iterations // 2]) + full
    rates = completed / mixture.shares / iterations
    history = run(mixture.fast(), masses, iterations)
    ahead = (full + max(waiting)) / iterations
    for p, rate in zip(mixture.shares, rates, strict=True):
        assert p * rate == pytest.approx(p * history.throughput.mean(), abs=ahead)
    assert history.completed.mean() == pytest.approx(history.throughput.mean(), abs=len(rates) * ahead)


def compositions(total: int) -> Iterator[tuple[int, ...]]:
    """Every ordered way to write `total` as a sum of positive integers."""
    if total == 0:
        yield ()
    for first in range(1, total + 1):
        for rest in compositions(total - first):
            yield (first, *rest)


def rotation_period(gaps: tuple[int, ...]) -> int:
    """Iterations after which a circular pattern of gaps looks the same."""
    return next(sum(gaps[:shift]) for shift in range(1, len(gaps) + 1) if gaps[shift:] + gaps[:shift] == gaps)


def lone(stages: int, first: float, capacity: float) -> FluidMap:
    """One length."""
    return fluid_map(Weights(np.array([first]), np.array([stages])), np.ones(1), np.zeros(1), capacity)


@pytest.mark.parametrize("decode", range(1, 9))
@pytest.mark.parametrize("input_tokens", [0, 2, 37])
def test_every_gap_vector_gives_the_cycle_of_sic_equation_25(decode: int, input_tokens: int) -> None:
    """x = M/(s·d + (d² + Σg²)/2), e = x(d - l)/(s + 1) and the period, for all gap vectors (`disaggregated`).

    The cycle itself is checked in exact fractions on the slow map; the program's map follows it.
    """
    memory = Fraction(1000)
    weights = [[Fraction(input_tokens + k + 1) for k in range(decode)]]
    system = lone(decode, input_tokens + 1.0, float(memory))
    for gaps in compositions(decode):
        x = memory / (input_tokens * decode + Fraction(decode**2 + sum(g * g for g in gaps), 2))
        masses = [Fraction(0)] * decode
        for j, g in enumerate(gaps):
            masses[sum(gaps[: j + 1]) - 1] = x * g
        slow = SlowMap.of_cohorts(weights, [Fraction(1)], memory, masses)
        start = slow.by_stage()
        steps = [slow.step() for _ in range(decode)]
        assert slow.by_stage() == start
        assert sum(step.completed[0] for step in steps) == x * decode
        assert sum(step.evicted[0] for step in steps) == x * (decode - len(gaps)) * decode / (
            input_tokens + 1
        )
        history = run(system, np.array([float(m) for m in masses]), 4 * decode)
        assert history.completed == pytest.approx([float(step.completed[0]) for step in steps * 4], abs=1e-8)
        assert history.evicted == pytest.approx([float(step.evicted[0]) for step in steps * 4], abs=1e-8)
        assert find_period(history.completed, 1e-7) == rotation_period(gaps)


@given(mixtures(), st.data())
def test_compiled_and_plain_loop_agree_to_the_last_bit(mixture: Mixture, data: st.DataObject) -> None:
    """One function, once in Python on lists, once compiled on arrays."""
    system = mixture.fast()
    masses = mixture.filling(data.draw(cohorts(mixture.size)), 1.0)
    plain = run(system, masses, 8 * mixture.size, compile_above=PLAIN)
    fast = run(system, masses, 8 * mixture.size, compile_above=COMPILED)
    for a, b in zip(plain, fast, strict=True):
        assert a.tolist() == b.tolist()


@given(mixtures(common=3, max_stages=12), st.integers(0, 2**32 - 1))
def test_a_run_settles_on_the_mean_of_a_whole_period(mixture: Mixture, seed: int) -> None:
    """Near a pulse that attracts: its period, and the means of a run that is longer."""
    g = math.gcd(*(n for n, *_ in mixture.rows))
    mixture = mixture._replace(seats=math.inf)
    survival = np.zeros(mixture.size)
    for p, w in zip(mixture.shares, mixture.weights, strict=True):
        survival[: len(w)] += p * np.array(w)
    sampled = survival[g - 1 :: g]
    assume(float(np.abs(np.roots(sampled)).max(initial=0.0)) < 0.95)
    masses = np.zeros(mixture.size)
    masses[g - 1 :: g] = np.random.default_rng(seed).uniform(0.99, 1.01, sampled.size)
    masses = mixture.filling(masses.tolist(), 1.0)
    system, scale = mixture.fast(), mixture.capacity / mixture.footprint
    found = find_attractor(system, masses)
    assert found.settled
    assert found.period % g == 0  # a mode that has nearly died out can make it a multiple
    history = run(system, masses, found.iterations + 600 * g)
    tail = slice(-60 * g, None)
    assert found.throughput == pytest.approx(history.throughput[tail].mean(), abs=1e-6 * scale)
    assert found.evictions == pytest.approx(history.evicted[tail].mean(), abs=1e-5 * scale)
    assert found.evicted_prompts == pytest.approx(history.evicted_prompts[tail].mean(), abs=1e-3 * scale)
    assert found.in_flight == pytest.approx(history.in_flight[tail].mean(), rel=1e-6)
    assert found.read_tokens == pytest.approx(history.read_tokens[tail].mean(), rel=1e-6)


def test_the_budget_of_a_run_is_kept_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a budget cuts short has not settled, however it looks; without one, 40 L iterations or more are enough."""
    system = Mixture(((5, 2, 1, 3), (7, 2, 1, 3), (8, 2, 1, 4)), 1000.0).fast()
    start = next(collapsed_starts(system))
    longer = find_attractor(system, start)
    assert longer.iterations in (4_000, 8_000, 16_000, 32_000)
    assert longer.settled
    assert 0 < longer.throughput < system.eviction_free_throughput
    monkeypatch.setattr(module, "MAX_STEPS", 300 * 3)
    found = find_attractor(system, start)
    assert (found.iterations, found.settled) == (300 // 4, False)
