"""Worst cycles: closed forms against exact runs of the slow map, and which of them is reported when (theory §3)."""

import math
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st
from oracles import SlowMap, count_roots
from strategies import mix_model, request_rows

from kvplan.analysis.equilibrium import saturation
from kvplan.analysis.fluid_map import Run, collapsed_starts, fluid_map, run
from kvplan.analysis.stability import stability
from kvplan.analysis.worst_cycle import (
    Cycle,
    CycleKind,
    cycle_throughput_rps,
    gap_cycle_throughput,
    pulse_cycle,
    pulse_is_stable,
    simulate_collapsed,
    worst_cycle,
)
from kvplan.model import Timing, Weights


class Pulses(NamedTuple):
    """Rows (a, n, parts) whose iteration counts share the divisor g > 1, in pages."""

    rows: tuple[tuple[int, int, int], ...]
    page: int = 1
    memory: Fraction = Fraction(1008)  # whole pages of 1, 3 and 16

    @property
    def g(self) -> int:
        return math.gcd(*(n for _, n, _ in self.rows))

    @property
    def shares(self) -> list[Fraction]:
        total = sum(parts for _, _, parts in self.rows)
        return [Fraction(parts, total) for _, _, parts in self.rows]

    @property
    def weights(self) -> list[list[Fraction]]:
        return [[Fraction(self.page * -(-(a + k) // self.page)) for k in range(n)] for a, n, _ in self.rows]

    @property
    def longest(self) -> int:
        return max(n for _, n, _ in self.rows)

    def survival(self) -> list[Fraction]:
        """W_k = Σ p_i w_i(k)."""
        return [
            sum((p * w[k] for w, p in zip(self.weights, self.shares, strict=True) if k < len(w)), Fraction(0))
            for k in range(self.longest)
        ]

    def sampled(self) -> list[Fraction]:
        """W_(g-1), W_(2g-1), …: what the pulses weigh when they have just been trimmed."""
        return self.survival()[self.g - 1 :: self.g]

    @property
    def throughput(self) -> Fraction:
        """x = M/(g·Σ_j W_(g-1+jg))."""
        return self.memory / (self.g * sum(self.sampled()))

    def arrays(self) -> tuple[Weights, Weights, np.ndarray, np.ndarray]:
        """What is held, what is read, shares and prompts (`disaggregated`)."""
        first = np.array([float(a) for a, _, _ in self.rows])
        stages = np.array([n for _, n, _ in self.rows])
        share = np.array([float(p) for p in self.shares])
        return Weights(first, stages, self.page), Weights(first, stages), share, first - 1

    def seats(self, part: Fraction) -> Fraction:
        """Those who fill memory with a pulse about to leave, and a part of those who are evicted meanwhile."""
        pulse, w = self.throughput * self.g, self.survival()
        first = (self.memory - pulse * sum(w[self.g :: self.g])) / w[0]
        lasting = [
            sum(p for p, (_, n, _) in zip(self.shares, self.rows, strict=True) if n > k)
            for k in range(self.longest)
        ]
        return pulse * sum(lasting[self.g - 1 :: self.g]) + part * (first - pulse)

    def cycle(self, seats: float = math.inf) -> Cycle:
        return pulse_cycle(*self.arrays(), float(self.memory), seats)

    def run(self, masses: list[float], iterations: int, seats: float = math.inf) -> Run:
        held, _, share, prompt = self.arrays()
        return run(fluid_map(held, share, prompt, float(self.memory), seats), np.array(masses), iterations)

    def slow(self, seats: Fraction | None = None) -> SlowMap:
        """On the cycle, memory full, the youngest pulse about to be out of danger."""
        state = self.state(self.throughput)
        return SlowMap.of_cohorts(self.weights, self.shares, self.memory, state, seats=seats)

    def state(self, x: Fraction) -> list[Fraction]:
        """Cohorts of x·g requests at stages g-1, 2g-1, …, none between."""
        return [x * self.g if k % self.g == self.g - 1 else Fraction(0) for k in range(self.longest)]


@st.composite
def pulses(draw: st.DrawFn) -> Pulses:
    g = draw(st.integers(2, 4))
    rows = draw(
        st.lists(
            st.tuples(st.integers(1, 40), st.integers(1, 4).map(lambda n: g * n), st.integers(1, 9)),
            min_size=1,
            max_size=4,
        )
    )
    return Pulses(tuple(rows), draw(st.sampled_from([1, 1, 3, 16])))


@given(pulses(), st.sampled_from([None, Fraction(0), Fraction(1, 3), Fraction(3, 2)]))
def test_the_pulse_cycle_is_exactly_a_cycle_of_the_map(case: Pulses, part: Fraction | None) -> None:
    """In exact fractions and whole pages: period g, and all means of an iteration (any classes, inputs and seats)."""
    g, x = case.g, case.throughput
    seats = None if part is None else case.seats(part)
    if case.page == 1:  # as theory §3 writes it without pages
        assert x == case.memory / sum(
            p * ((a - 1) * n + Fraction(n * (n + g), 2))
            for (a, n, _), p in zip(case.rows, case.shares, strict=True)
        )
    slow = case.slow(seats)
    start = slow.by_stage()
    assert slow.memory() == case.memory
    steps, phases = [], []
    for _ in range(g):
        steps.append(slow.step())
        read = sum(
            amount * (a + k)
            for (a, _, _), held in zip(case.rows, slow.by_stage(), strict=True)
            for k, amount in enumerate(held)
        )
        phases.append((slow.in_flight(), read))
    assert slow.by_stage() == start
    limit = math.inf if seats is None else float(seats)
    found = case.cycle(limit)
    assert found.period == g
    assert found.throughput == pytest.approx(float(x), rel=1e-12)
    assert sum(sum(step.completed) for step in steps) == x * g
    evicted = [sum(step.evicted[i] for step in steps) / g for i in range(len(case.rows))]
    assert found.evictions == pytest.approx(float(sum(evicted)), rel=1e-10, abs=1e-10)
    prompts = sum(n * (a - 1) for n, (a, _, _) in zip(evicted, case.rows, strict=True))
    assert found.evicted_prompts == pytest.approx(float(prompts), rel=1e-10, abs=1e-8)
    assert found.in_flight == pytest.approx(float(sum(n for n, _ in phases) / g), rel=1e-12)
    assert found.read_tokens == pytest.approx(float(sum(k for _, k in phases) / g), rel=1e-12)
    for mine, theirs in zip(found.phases.T, phases, strict=True):
        assert mine == pytest.approx([float(n) for n in theirs], rel=1e-12)
    history = case.run([float(m) for m in case.state(x)], 2 * g, limit)
    assert history.throughput.mean() == pytest.approx(float(x), rel=1e-9)
    assert history.evicted.mean() == pytest.approx(found.evictions, rel=1e-7, abs=1e-9)


@given(pulses())
def test_the_pulse_is_called_stable_iff_an_exact_count_says_so(case: Pulses) -> None:
    sampled = case.sampled()
    denominator = math.lcm(*(w.denominator for w in sampled))
    exact = count_roots([int(w * denominator) for w in sampled])
    w = np.array([float(x) for x in case.survival()])
    moduli = np.abs(np.roots([float(x) for x in sampled]))
    if np.abs(moduli - 1).min(initial=1) > 1e-7 or exact.on:
        assert pulse_is_stable(w, case.g) == (exact.on == exact.outside == 0)


@every("p", [Fraction(1, 10), Fraction(1, 4), Fraction(2, 5), Fraction(1, 2), Fraction(4, 5)])
@every("input_tokens", range(0, 20, 2))
def test_pulses_of_lengths_2_and_4_are_stable_iff_p_times_s_plus_4_exceeds_2(
    input_tokens: int, p: Fraction
) -> None:
    """Theory §3, `disaggregated`; where it is stable it is the cycle reported, else the map is run."""
    model = mix_model(
        (input_tokens, 2, float(p.numerator)),
        (input_tokens, 4, float(p.denominator - p.numerator)),
        memory=10_000,
    )
    cycle = worst_cycle(model, stability(model), None)
    stable = p * (input_tokens + 4) > 2
    assert cycle.kind is (CycleKind.PULSE if stable else CycleKind.SIMULATED)
    if stable:
        s = input_tokens
        x = 10_000 / (p * (2 * s + 4) + (1 - p) * (4 * s + 12))
        assert cycle.throughput_per_iteration == pytest.approx(float(x), rel=1e-12)
        assert cycle.evictions_per_iteration == pytest.approx(
            float(x * (4 - 2 * p) / (2 * (s + 1))), rel=1e-12
        )


@given(st.integers(1, 8), st.integers(0, 50), st.data())
def test_gap_vectors_lie_between_the_block_and_the_even_cycle(
    decode: int, s: int, data: st.DataObject
) -> None:
    """SIC's envelopes: a contiguous block is the least, gaps as even as possible the most, for as many cohorts."""
    cuts = data.draw(st.sets(st.integers(1, decode - 1)) if decode > 1 else st.just(set()))
    edges = [0, *sorted(cuts), decode]
    gaps = [b - a for a, b in pairwise(edges)]
    cohorts = len(gaps)
    block = [decode - cohorts + 1] + [1] * (cohorts - 1)
    even = [decode // cohorts + (j < decode % cohorts) for j in range(cohorts)]
    x, least, most = (gap_cycle_throughput(decode, s + 1.0, 1000.0, g) for g in (gaps, block, even))
    assert least <= x * (1 + 1e-12)
    assert x <= most * (1 + 1e-12)
    with pytest.raises(ValueError, match="gaps sum to"):
        gap_cycle_throughput(decode, s + 1.0, 1000.0, [*gaps, 1])


@pytest.mark.parametrize(
    ("rows", "limits"),
    [
        (((3, 4, 1.0), (3, 5, 1.0)), {}),
        (((13, 4, 1.0), (12, 6, 1.0)), {"block_tokens": 16}),
        (((0, 2, 1.0), (5, 11, 2.0), (2, 16, 1.0)), {"max_num_seqs": 900}),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in (
                (((1, 4, 1.0), (1, 6, 1.0)), {}),
                (((1, 9, 1.0), (1, 13, 1.0)), {}),
                (((0, 2, 1.0), (5, 11, 2.0), (2, 16, 1.0)), {}),
                (((0, 2, 1.0), (5, 14, 2.0), (2, 20, 1.0)), {"block_tokens": 16}),
                (((10, (15, 17), 1.0), (0, 16, 1.0)), {}),
            )
        ),
    ],
)
def test_a_simulated_worst_cycle_is_where_the_slow_map_goes(
    rows: tuple[tuple[int, int, float], ...], limits: dict[str, int]
) -> None:
    """From each collapsed state, made again layer by layer; the lowest is reported."""
    model = mix_model(*rows, memory=9600, **limits)
    local, n_star = stability(model), saturation(model).admissions_per_iteration
    seats = limits.get("max_num_seqs", math.inf)
    mix = model.mix
    system = fluid_map(mix.held, mix.share, mix.input_tokens.astype(float), 9600.0, seats)
    page = model.replica.block_tokens
    weights = [[page * -(-w // page) for w in held] for _, _, held, _ in request_rows(model)]
    shares = [float(p) for *_, p in request_rows(model)]
    mean = sum(p * sum(w) for p, w in zip(shares, weights, strict=True))
    means = []
    found = simulate_collapsed(model)
    for one, start in zip(found, collapsed_starts(system), strict=True):
        slow = SlowMap.of_cohorts(
            weights, shares, 9600.0, start.tolist(), seats=limits.get("max_num_seqs"), nothing=1e-8
        )
        steps = [slow.step() for _ in range(3000)][1000:]
        completed = sum(np.array(step.completed) for step in steps) / len(steps)
        x = float(completed @ [sum(w) / mean for w in weights])
        evicted = sum(sum(step.evicted) for step in steps) / len(steps)
        assert one.settled
        assert one.throughput == pytest.approx(x, abs=5e-3 * n_star)
        assert one.evictions == pytest.approx(evicted, abs=3e-2 * n_star)
        means.append(x)
    cycle = worst_cycle(model, local, None)
    assert not local.stable
    assert cycle.kind is CycleKind.SIMULATED
    assert cycle.throughput_per_iteration == pytest.approx(min(means), abs=5e-3 * n_star)
    assert cycle.loss == pytest.approx(max(0, 1 - cycle.throughput_per_iteration / n_star), abs=1e-12)
    assert cycle.iterations in {one.iterations for one in found}


LAWS = [
    Timing(0.5, 2e-4, 3e-3, 4e-3),
    Timing(0.5, 2e-4, 3e-3, 4e-3, 5e-2, 2e-2, knee_tokens=200.0, experts=0.3, chosen=0.02),
]


@given(pulses(), st.sampled_from(["disaggregated", "inline", "fused"]), st.sampled_from(LAWS))
def test_wall_clock_is_completions_over_the_times_of_the_iterations(
    case: Pulses, prefill: str, timing: Timing
) -> None:
    """Each iteration of an exact pulse timed by its definition: context, prefill and sequences as in the slow map."""
    inline = prefill == "inline"
    rows = tuple((a if inline else a - 1, n - inline, float(parts)) for a, n, parts in case.rows)
    model = mix_model(*rows, memory=int(case.memory), prefill=prefill, timing=timing, block_tokens=case.page)
    slow = case.slow()
    for _ in range(case.g):  # until those evicted return
        slow.step()
    seconds = completed = 0.0
    for _ in range(case.g):
        step = slow.step()
        prefilled = step.returned if prefill == "disaggregated" else step.admitted
        tokens = sum(float(n) * s for n, (s, _, _) in zip(prefilled, rows, strict=True))
        sequences = float(slow.in_flight())
        read = sum(
            float(amount) * (a + k)
            for (a, _, _), held in zip(case.rows, slow.by_stage(), strict=True)
            for k, amount in enumerate(held)
        )
        seconds += timing.d0 + timing.d1 * read + timing.d2 * tokens + timing.d3 * sequences
        seconds += timing.d4 * math.sqrt(sequences)
        seconds += timing.d5 * max(0.0, tokens + sequences - timing.knee_tokens)
        seconds += timing.experts * (1 - (1 - timing.chosen) ** (tokens + sequences))
        completed += float(sum(step.completed))
    held, read_weights, share, _ = case.arrays()
    cycle = pulse_cycle(
        held, read_weights, share, np.array([float(s) for s, _, _ in rows]), float(case.memory)
    )
    assert cycle_throughput_rps(model, cycle) == pytest.approx(completed / seconds, rel=1e-9)
