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

from kvplan.analysis.fluid_map import (
    FluidMap,
    compiled,
    eviction_free_state,
    find_attractor,
    find_period,
    fluid_map,
    iterate,
    run,
    state_by_stage,
)
from kvplan.model import FloatArray, IntArray


class Mixture(NamedTuple):
    """Classes as (stages n, weight a at stage 0, parts of the admissions), and the memory."""

    stages: tuple[int, ...]
    first_weight: tuple[int, ...]
    parts: tuple[int, ...]
    capacity: float

    @property
    def shares(self) -> list[float]:
        return [p / sum(self.parts) for p in self.parts]

    @property
    def weights(self) -> list[list[float]]:
        return [[float(a + k) for k in range(n)] for n, a in zip(self.stages, self.first_weight, strict=True)]

    def fast(self) -> FluidMap:
        arrays = np.array(self.stages), np.array(self.first_weight, dtype=float), np.array(self.shares)
        return fluid_map(*arrays, self.capacity)

    def slow(self, masses: FloatArray) -> SlowMap:
        return SlowMap.of_cohorts(self.weights, self.shares, self.capacity, masses.tolist())


@st.composite
def mixtures(draw: st.DrawFn, *, max_stages: int = 12, common: int = 1) -> Mixture:
    """Up to five classes, some with equal lengths; stage counts are multiples of `common`."""
    size = draw(st.integers(1, 5))
    many = {"min_size": size, "max_size": size}
    return Mixture(
        stages=tuple(common * n for n in draw(st.lists(st.integers(1, max_stages // common), **many))),
        first_weight=tuple(draw(st.lists(st.integers(1, 60), **many))),
        parts=tuple(draw(st.lists(st.integers(1, 20), **many))),
        capacity=draw(st.sampled_from([1.0, 37.0, 1e4, 1e9])),
    )


def masses_of(system: FluidMap, raw: list[float], fill: float) -> FloatArray:
    """Cohort masses that fill a part of memory, with empty cohorts where `raw` has zeros."""
    masses = np.array(raw)
    held = float(masses @ system.weight)
    return masses * (fill * system.capacity / held) if held > 0 else masses


@given(mixtures(), st.data(), st.sampled_from([0.0, 0.5, 1.0]))
def test_the_cohort_map_does_what_explicit_stages_do(
    mixture: Mixture, data: st.DataObject, fill: float
) -> None:
    """Completions, evictions and requests in flight of every iteration, from any state, empty cohorts included."""
    system = mixture.fast()
    size = system.weight.size
    amounts = st.sampled_from([0.0, 0.0, 0.1, 1.0, 3.0])
    masses = masses_of(system, data.draw(st.lists(amounts, min_size=size, max_size=size)), fill)
    iterations = 6 * size + 10
    history, slow = run(system, state_by_stage(masses), iterations), mixture.slow(masses)
    tolerance = 1e-7 * system.eviction_free_throughput * size
    for t in range(iterations):
        completed, evicted, _ = slow.step()
        assert history.completed[t] == pytest.approx(sum(completed), rel=1e-7, abs=tolerance)
        assert history.evicted[t] == pytest.approx(sum(evicted), rel=1e-7, abs=tolerance)
        assert history.in_flight[t] == pytest.approx(slow.in_flight(), rel=1e-7, abs=tolerance)
        assert slow.memory() <= system.capacity * (1 + 1e-12)
    # the state it leaves: what each stage holds, class by class
    for age in range(size):
        mass = history.state.mass[(history.state.clock - 1 - age) % size]
        for row, share in zip(slow.amount, mixture.shares, strict=True):
            if age < len(row):
                assert share * mass == pytest.approx(row[age], rel=1e-7, abs=tolerance)


@given(mixtures(), st.data())
def test_memory_never_exceeds_capacity_and_no_request_is_lost(mixture: Mixture, data: st.DataObject) -> None:
    """K <= M after every iteration; in flight grows by what is admitted less what completes or is evicted."""
    system = mixture.fast()
    size = system.weight.size
    raw = data.draw(st.lists(st.integers(0, 9).map(float), min_size=size, max_size=size))
    state = state_by_stage(masses_of(system, raw, 1.0))
    held = sum(state.mass[(state.clock - 1 - k) % size] * system.present[k] for k in range(size))
    for _ in range(4 * size):
        step = run(system, state, 1)
        state = step.state
        by_stage = np.array([state.mass[(state.clock - 1 - k) % size] for k in range(size)])
        assert by_stage.min() >= 0
        assert float(by_stage @ system.weight) <= system.capacity * (1 + 1e-12)
        admitted = by_stage[0]
        scale = system.capacity / system.weight.min()
        assert step.in_flight[0] == pytest.approx(float(by_stage @ system.present), abs=1e-12 * scale)
        assert held + admitted - step.completed[0] - step.evicted[0] == pytest.approx(
            step.in_flight[0], abs=1e-11 * scale
        )
        # an iteration that evicts admits nothing (rounding apart)
        assert min(admitted, step.evicted[0]) <= 1e-12 * scale
        held = step.in_flight[0]


@given(mixtures())
def test_the_fixed_point_stays(mixture: Mixture) -> None:
    """n* at every stage: every iteration completes n* and evicts nothing, for as long as rounding allows."""
    system = mixture.fast()
    size = system.weight.size
    total = sum(p * sum(w) for p, w in zip(mixture.shares, mixture.weights, strict=True))
    assert system.eviction_free_throughput == pytest.approx(mixture.capacity / total, rel=1e-12)
    state = eviction_free_state(system)
    assert state.mass == pytest.approx(np.full(size, mixture.capacity / total), rel=1e-12)
    history = run(system, state, size)
    assert history.completed == pytest.approx(np.full(size, mixture.capacity / total), rel=1e-7)
    assert history.evicted == pytest.approx(np.zeros(size), abs=1e-7 * mixture.capacity / total)


@given(mixtures(), st.floats(0.01, 0.9))
def test_a_disturbed_state_fills_memory_exactly(mixture: Mixture, disturbance: float) -> None:
    system = mixture.fast()
    state = eviction_free_state(system, disturbance=disturbance)
    assert float(state.mass[::-1] @ system.weight) == pytest.approx(mixture.capacity, rel=1e-12)
    assert state.mass.min() > 0
    if system.weight.size > 2:
        assert np.ptp(state.mass) > 0.1 * disturbance * state.mass.mean()


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


@pytest.mark.parametrize("decode", range(1, 9))
@pytest.mark.parametrize("input_tokens", [0, 2, 37])
def test_every_gap_vector_gives_the_cycle_of_sic_equation_25(decode: int, input_tokens: int) -> None:
    """x = M/(s·d + (d² + Σg²)/2), e = x(d - l)/(s + 1) and the period, for all gap vectors (`disaggregated`).

    The cycle itself is checked in exact fractions on the slow map; the program's map follows it.
    """
    memory = Fraction(1000)
    weights = [[Fraction(input_tokens + k + 1) for k in range(decode)]]
    floats = [np.array([decode]), np.array([input_tokens + 1.0]), np.array([1.0])]
    system = fluid_map(*floats, float(memory))
    for gaps in compositions(decode):
        x = memory / (input_tokens * decode + Fraction(decode**2 + sum(g * g for g in gaps), 2))
        masses = [Fraction(0)] * decode
        for j, g in enumerate(gaps):
            masses[sum(gaps[: j + 1]) - 1] = x * g
        slow = SlowMap.of_cohorts(weights, [Fraction(1)], memory, masses)
        start = [list(row) for row in slow.amount]
        steps = [slow.step() for _ in range(decode)]
        assert slow.amount == start
        assert sum(completed[0] for completed, _, _ in steps) == x * decode
        assert sum(evicted[0] for _, evicted, _ in steps) == x * (decode - len(gaps)) * decode / (
            input_tokens + 1
        )
        history = run(system, state_by_stage(np.array([float(m) for m in masses])), 4 * decode)
        exact_completed = np.array([float(completed[0]) for completed, _, _ in steps] * 4)
        exact_evicted = np.array([float(evicted[0]) for _, evicted, _ in steps] * 4)
        assert history.completed == pytest.approx(exact_completed, abs=1e-8)
        assert history.evicted == pytest.approx(exact_evicted, abs=1e-8)
        assert find_period(history.completed, 1e-7) == rotation_period(gaps)


@pytest.mark.parametrize(("decode", "input_tokens"), [(2, 0), (3, 2), (5, 1), (8, 40), (13, 7)])
def test_from_empty_one_class_falls_into_its_worst_cycle(decode: int, input_tokens: int) -> None:
    """One cohort, x_w = M/(d(s + d)), once every d iterations."""
    system = fluid_map(np.array([decode]), np.array([input_tokens + 1.0]), np.array([1.0]), 840.0)
    found = find_attractor(system, state_by_stage(np.zeros(decode)))
    x = 840 / (decode * (input_tokens + decode))
    assert found.throughput == pytest.approx(x, rel=1e-9)
    assert found.evictions == pytest.approx(x * (decode - 1) / (input_tokens + 1), rel=1e-9)
    assert (found.period, found.settled) == (decode, True)


@given(mixtures(), st.floats(0.05, 0.5))
def test_compiled_and_plain_kernel_agree_to_the_last_bit(mixture: Mixture, disturbance: float) -> None:
    """One function, once in Python on lists, once compiled by numba on arrays."""
    system = mixture.fast()
    size, iterations = system.weight.size, 8 * system.weight.size
    state = eviction_free_state(system, disturbance=disturbance)
    fixed = (system.weight, system.present, system.leave_after, system.leave_share, system.leave_weight)

    def work() -> list[FloatArray | IntArray]:
        ages = [np.zeros(size, dtype=np.int64) for _ in range(2)]
        by_length = np.zeros(system.leave_after.size)
        return [state.mass.copy(), *ages, by_length, *(np.zeros(iterations) for _ in range(3))]

    fast, plain = work(), [a.tolist() for a in work()]
    compiled()(state.clock, system.capacity, *fixed, *fast)
    iterate(state.clock, system.capacity, *(a.tolist() for a in fixed), *plain)
    for a, b in zip(fast, plain, strict=True):
        assert a.tolist() == b


def test_long_runs_are_compiled_and_continue_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where compiling pays the compiled kernel is used, with the same result; a run may be cut anywhere."""
    system = fluid_map(np.array([4, 6]), np.array([9.0, 3.0]), np.array([0.5, 0.5]), 1000.0)
    state = eviction_free_state(system, disturbance=0.2)
    whole = run(system, state, 500)
    before = state.mass.copy()
    first = run(system, state, 123)
    second = run(system, first.state, 377)
    assert (state.mass == before).all()
    joined = np.concatenate([first.completed, second.completed])
    assert joined == pytest.approx(whole.completed, rel=1e-6, abs=1e-6)
    monkeypatch.setattr("kvplan.analysis.fluid_map._COMPILE_ABOVE", 0)
    assert run(system, state, 500).completed.tolist() == whole.completed.tolist()


@given(
    st.lists(st.sampled_from([0.0, 1.0, 2.5, 4.0]), min_size=1, max_size=12),
    st.integers(0, 11),
    st.integers(40, 90),
)
def test_the_period_found_is_the_smallest(pattern: list[float], lead: int, length: int) -> None:
    """Against the obvious search over every shift, with a start that does not repeat."""
    series = np.concatenate([np.arange(lead) + 10.0, np.tile(pattern, length)[:length]])
    half = series.size // 2
    expected = next(
        (
            shift
            for shift in range(1, half + 1)
            if all(series[i] == series[i - shift] for i in range(half, series.size))
        ),
        None,
    )
    assert find_period(series, 1e-9) == expected


@given(mixtures(common=3, max_stages=12), st.integers(0, 2**32 - 1))
def test_a_run_settles_on_the_mean_of_a_whole_period(mixture: Mixture, seed: int) -> None:
    """Near a pulse that attracts: its period, and completions, evictions and in flight of a run ten times as long."""
    g = math.gcd(*mixture.stages)
    system = mixture.fast()
    sampled = system.weight[g - 1 :: g]
    assume(float(np.abs(np.roots(sampled)).max(initial=0.0)) < 0.95)
    masses = np.zeros(system.weight.size)
    masses[g - 1 :: g] = np.random.default_rng(seed).uniform(0.99, 1.01, sampled.size)
    masses *= system.capacity / float(masses @ system.weight)
    found = find_attractor(system, state_by_stage(masses))
    assert found.settled
    assert found.period % g == 0  # a mode that has nearly died out can make it a multiple
    history = run(system, state_by_stage(masses), 10 * found.iterations)
    tail = slice(-60 * g, None)
    scale = system.eviction_free_throughput
    assert found.throughput == pytest.approx(history.completed[tail].mean(), abs=1e-6 * scale)
    assert found.evictions == pytest.approx(history.evicted[tail].mean(), abs=1e-5 * scale)
    assert found.in_flight == pytest.approx(history.in_flight[tail].mean(), rel=1e-6)
    assert (
        run(system, state_by_stage(masses), found.iterations).state.clock
        == found.iterations + system.weight.size
    )


def test_the_budget_of_a_run_is_kept_and_said() -> None:
    """A mix without a short period stops where it is told to, and says that it has not settled."""
    system = fluid_map(np.array([5, 7, 8]), np.array([2.0, 2.0, 2.0]), np.array([0.3, 0.3, 0.4]), 1000.0)
    found = find_attractor(system, eviction_free_state(system, disturbance=0.1), 300)
    assert (found.iterations, found.period, found.settled) == (300, None, False)
    longer = find_attractor(system, eviction_free_state(system, disturbance=0.1))
    assert longer.iterations <= 400_000
    assert 0 < longer.throughput < system.eviction_free_throughput
