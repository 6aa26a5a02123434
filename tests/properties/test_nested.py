"""Laws of Nested WAIT: memory at the equilibrium, decay rates, thresholds, δ and horizon, and a simulation."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from strategies import mix_model
from tiers import at_night

from kvplan.analysis.equilibrium import equilibrium
from kvplan.analysis.nested import NestedWait, nested_wait, requirement
from kvplan.analysis.segments import Segments, candidate_ends, decay_rates, lengths_of, segments_of
from kvplan.model import Plan, Prefill, Replica, RequestClass, ServingModel, Timing
from kvplan.simulation.backlog import OpenRun
from kvplan.simulation.experiments.load import Load, generate
from kvplan.simulation.policies.protocol import Scenario, Settings

Rows = list[tuple[int, list[int], float]]


def build(rows: Rows, prefill: Prefill = Prefill.FUSED, load: float = 0.3, **replica: int) -> ServingModel:
    """A model whose work rate is `load`, a third each from d1, d2 and d3."""
    classes = tuple(
        RequestClass(f"{i}", s, tuple(sorted(d)), (1.0,) * len(d), rate)
        for i, (s, d, rate) in enumerate(rows)
    )
    unit = Replica(**({"memory_tokens": 1_000_000} | replica), prefill=prefill)
    mix = ServingModel(classes, Timing(0.01), unit).mix
    parts = [mix.rate_rps @ x for x in (mix.read.footprint, mix.input_tokens, mix.stages)]
    return ServingModel(classes, Timing(0.01, *(load / 3 / float(x) for x in parts)), unit)


rows = st.lists(
    st.tuples(
        st.integers(1, 500),
        st.lists(st.integers(1, 300), min_size=1, max_size=6, unique=True),
        st.floats(0.1, 5_000),
    ),
    min_size=1,
    max_size=4,
)
models = st.builds(
    lambda rows, prefill, load, memory, block: build(
        rows, prefill, load, memory_tokens=memory, block_tokens=block
    ),
    rows,
    st.sampled_from(Prefill),
    st.floats(0.01, 0.97),
    st.sampled_from([1_500, 40_000, 10**9]),
    st.sampled_from([1, 16]),
)


def finite(result: Any) -> bool:
    """Whether every number in a tree of results is finite."""
    if isinstance(result, tuple):
        return all(map(finite, result))
    return not isinstance(result, float) or math.isfinite(result)


def required(model: ServingModel, **given: Any) -> float:
    """Tokens required, with a hundredth and an hour unless said otherwise."""
    result = nested_wait(model, **({"delta": 0.01, "horizon_s": 3600.0, "segments": None} | given))
    assert result.required_kv_tokens is not None
    return result.required_kv_tokens


def at_the_equilibrium(model: ServingModel, segments: Segments) -> tuple[np.ndarray, np.ndarray]:
    """Memory and iteration time of every candidate at n_k = Λ_k τ*, over those of the equilibrium."""
    at_rest = equilibrium(model)
    thresholds = segments.rate * at_rest.iteration_time_s
    time = model.timing.d0 + (thresholds * segments.work).sum(axis=0)
    return (thresholds * segments.held).sum(axis=0) / at_rest.kv_tokens, time / at_rest.iteration_time_s


@given(models)
def test_memory_at_the_equilibrium_thresholds_is_that_of_the_equilibrium(model: ServingModel) -> None:
    """Equal or mixed inputs, every convention, whole pages."""
    lengths = lengths_of(model)
    memory, time = at_the_equilibrium(model, segments_of(lengths, [np.arange(lengths.decode.size)]))
    assert memory[0] == pytest.approx(1, rel=1e-9)
    assert time[0] == pytest.approx(1, rel=1e-9)


@given(models)
def test_segments_count_their_tokens_stage_by_stage(model: ServingModel) -> None:
    """Whoever enters a segment stays to its end, at the weights of its own stages."""
    lengths = lengths_of(model)
    inline = model.replica.prefill is Prefill.INLINE
    for ends in candidate_ends(lengths, None):
        segments = segments_of(lengths, [ends])
        low, first = 0, True
        for k, high in enumerate(lengths.decode[ends].astype(int).tolist()):
            entering = model.mix.decode_tokens > low
            tokens = model.mix.read.first[entering]
            share = model.mix.rate_rps[entering] / model.mix.rate_rps[entering].sum()
            stages = np.arange(0 if first else low + inline, high + inline)
            page = model.replica.block_tokens
            total = (share @ (page * np.ceil(np.add.outer(tokens, stages) / page))).sum()
            assert segments.held[k, 0] == pytest.approx(total, rel=1e-9)
            if not first:
                last_weight = float(share @ (page * np.ceil((tokens + low + inline - 1) / page)))
                assert segments.waiting[k, 0] == pytest.approx(last_weight, rel=1e-9)
            low, first = high, False


@given(st.integers(2, 10**6), st.floats(1e-6, 1 - 1e-6), st.floats(0, 1))
def test_decay_rates_solve_their_equation_and_keep_their_bound(
    before: int, p: float, position: float
) -> None:
    smallest = math.floor(p * before * (1 + 1e-12)) + 1
    assume(smallest < before)
    here = min(before - 1, smallest + int(position * (before - smallest)))
    theta = float(decay_rates(np.array([float(before)]), np.array([float(here)]), np.array([p]))[0])
    assert theta >= 8 * (here - before * p) / before * (1 - 1e-9)
    mean = math.log1p(p * math.expm1(theta)) if theta < 700 else theta + math.log(p)
    drift = (here / before - p) / p  # what the left side grows by near 0, relative to p
    assert mean == pytest.approx(here / before * theta, rel=1e-9 * max(1.0, min(drift, 1.0)))
    # to the left of the root the equation's left side is negative, to the right positive
    for factor, sign in ((0.999, -1), (1.001, 1)):
        t = theta * factor
        value = (math.log1p(p * math.expm1(t)) if t < 700 else t + math.log(p)) - here / before * t
        assert value * sign > 0 or abs(value) < 1e-12 * t


def check(model: ServingModel, result: NestedWait) -> None:
    """What holds of any result."""
    assert finite(result)
    first = result.segments[0]
    assert first.rate_rps * result.iteration_time_s < first.threshold
    assert (first.continue_probability, first.theta, first.parked_bound, first.queue_bound) == (None,) * 4
    for before, here in itertools.pairwise(result.segments):
        assert here.upto_decode > before.upto_decode
        assert here.continue_probability == pytest.approx(here.rate_rps / before.rate_rps)
        assert here.threshold > here.continue_probability * before.threshold
        assert here.parked_bound >= here.threshold
        assert here.queue_bound == here.parked_bound + here.threshold - 1
        assert (here.theta is None) == (here.threshold >= before.threshold)
    assert result.segments[-1].upto_decode == max(c.decode_tokens[-1] for c in model.classes)
    queues = (result.boundary_kv_tokens or 0.0) + (result.high_probability_kv_tokens or 0.0)
    parked = [s.parked_kv_tokens * s.parked_bound for s in result.segments if s.parked_bound is not None]
    assert queues == pytest.approx(sum(parked))
    inputs = result.input_spread_kv_tokens
    assert (inputs > 0) <= (len({c.input_tokens for c in model.classes}) > 1)
    assert result.required_kv_tokens == pytest.approx(result.base_kv_tokens + queues + inputs)
    assert result.base_kv_tokens == pytest.approx(sum(s.kv_tokens for s in result.segments))
    assert result.required_kv_tokens <= result.smallest_thresholds_kv_tokens * (1 + 1e-12)
    page = model.replica.block_tokens
    assert result.fits == (result.required_kv_tokens <= model.replica.memory_tokens // page * page)


@given(models, st.sampled_from([1e-12, 1e-6, 0.3, 1.0]), st.sampled_from([1e-6, 10.0, 1e9]))
def test_results_are_finite_consistent_and_add_up(
    model: ServingModel, delta: float, horizon_s: float
) -> None:
    check(model, nested_wait(model, delta=delta, horizon_s=horizon_s, segments=None))


@given(
    st.lists(
        st.tuples(st.integers(1, 200), st.integers(1, 800)), min_size=2, max_size=4, unique_by=lambda r: r[0]
    ),
    st.booleans(),
    st.integers(20, 3_000),
)
def test_thresholds_are_near_the_best_there_are(
    lengths_given: list[tuple[int, int]], alike: bool, rate: int
) -> None:
    """Against every move of a few requests up or down, from one threshold or from all later ones."""
    alone = lengths_given[0][1]
    model = build([(alone if alike else s, [d], rate / len(lengths_given)) for d, s in sorted(lengths_given)])
    result = nested_wait(model, delta=0.01, horizon_s=3600.0, segments=None)
    lengths = lengths_of(model)
    ends = np.searchsorted(lengths.decode, [s.upto_decode for s in result.segments])
    segments = segments_of(lengths, [ends])

    def total(n: np.ndarray) -> float:
        time = model.timing.d0 + float(n @ segments.work[:, 0])
        later = (n[1:] > segments.continuing[1:, 0] * n[:-1]).all()
        if not (later and segments.rate[0, 0] * time < n[0] and (n >= 1).all()):
            return math.inf
        needs = requirement(segments, n[:, None], delta=0.01, horizon_s=3600.0)
        return float(needs.total[0])

    best = np.array([float(s.threshold) for s in result.segments])
    improved = True
    while improved:
        moves = itertools.product(range(len(best)), (False, True), (-2, -1, 1, 2))
        improved = False
        for start, rest, change in moves:
            moved = best.copy()
            moved[start : None if rest else start + 1] += change
            if total(moved) < total(best) * (1 - 1e-9):
                best, improved = moved, True
    assert result.required_kv_tokens <= total(best) * 1.01


@pytest.mark.parametrize("rate", [60, 200])
def test_queues_of_segments_are_within_their_mean_bounds(rate: int) -> None:
    """By the rule: segments 1 … k run that all have their thresholds, each brings on whom chance lets go on."""
    found = nested_wait(
        build([(40, [d], rate * share) for d, share in ((20, 0.5), (50, 0.3), (90, 0.2))]),
        delta=0.01,
        horizon_s=3600.0,
        segments=3,
    )
    segments, time, rng = found.segments, found.iteration_time_s, np.random.default_rng(rate)
    waiting, now, seen = [0] * 3, 0.0, []
    arrivals = np.cumsum(rng.exponential(1 / segments[0].rate_rps, 200_000))
    taken = 0
    while taken + segments[0].threshold < arrivals.size:
        now = max(now, arrivals[taken + segments[0].threshold - 1])
        waiting[0] = int(np.searchsorted(arrivals, now, side="right")) - taken
        seen.append(tuple(waiting))
        for k, here in enumerate(segments):
            if waiting[k] < here.threshold:
                break
            waiting[k] -= here.threshold
            taken += here.threshold if k == 0 else 0
            if k + 1 < 3:
                waiting[k + 1] += rng.binomial(here.threshold, segments[k + 1].continue_probability)
        now += time
    bounds = np.array([s.mean_queue_bound for s in segments])
    assert (np.mean(seen, axis=0) <= bounds).all()


GAPS: list[tuple[list[tuple[int, int, float]], float, float]] = [  # input, decode length and rate; d0, d1
    ([(10, 20, 400.0), (10, 40, 300.0), (10, 80, 200.0), (10, 160, 100.0)], 0.01, 1e-7),  # WAIT 6.2
    ([(5, 4, 3.0)], 1.0, 0.0),
    ([(5, 3, 2.0), (5, 9, 2.0)], 1.0, 1e-4),
    ([(2, 2, 4.0), (2, 4, 3.0), (2, 6, 3.0)], 1.0, 1e-4),
    ([(30, 10, 5.0), (30, 50, 1.0)], 0.5, 1e-5),
    ([(100, 20, 1.0), (50, 30, 3.0)], 0.2, 1e-5),
    ([(8, 5, 20.0), (8, 6, 20.0), (8, 40, 1.0)], 0.1, 1e-6),
    ([(8, 1, 6.0), (8, 2, 3.0)], 1.0, 1e-4),
    ([(60, 12, 0.4), (60, 90, 0.3)], 1.0, 1e-5),
    ([(20, 7, 9.0), (20, 21, 2.0), (20, 35, 5.0)], 0.3, 1e-6),
]


@pytest.mark.parametrize("iterations", [1_000, *at_night(10_000, 100_000)])
def test_no_more_is_left_than_the_gap_allows(iterations: int) -> None:
    """Unfinished at the end of simulated horizons, begun empty; in the long run a fifth of the bound at least."""
    for place in range(len(GAPS)) if iterations > 1_000 else (0, 2, 4):
        rows, d0, d1 = GAPS[place]
        prefill = ("inline", "disaggregated")[place % 2]
        model = mix_model(*rows, memory=10**9, prefill=prefill, timing=Timing(d0, d1))
        time = nested_wait(model, delta=0.01, horizon_s=1.0, segments=len(rows)).iteration_time_s
        assert time is not None
        horizon_s = iterations * time
        bound = nested_wait(model, delta=0.01, horizon_s=horizon_s, segments=len(rows)).throughput_gap
        assert bound is not None
        plan, names, left = Plan(0.01, horizon_s, len(rows)), tuple(c.name for c in model.classes), []
        for seed in range(12):
            requests = generate(model, Load(requests=None, horizon_s=horizon_s), seed)
            scenario = Scenario(model, plan, requests, names)
            completed = OpenRun(scenario, Settings("nested-wait", {}), horizon_s).on(horizon_s).completed
            left.append((requests.arrival_s.size - completed) / iterations)
        assert np.mean(left) - 3 * np.std(left) / math.sqrt(11) <= bound, place
        if iterations == 100_000:
            assert bound <= 5 * np.mean(left), place


def spread_of_inputs(model: ServingModel, result: NestedWait, delta: float) -> float:
    """The least Chernoff bound, term by term: one for every stage, and one for every boundary."""
    inline, page = model.replica.prefill is Prefill.INLINE, model.replica.block_tokens
    several, terms, low = len(result.segments) > 1, [], 0
    for segment in result.segments:
        law: dict[int, float] = {}
        for c in model.classes:
            for d in c.decode_tokens:
                if d > low:
                    law[c.input_tokens] = law.get(c.input_tokens, 0.0) + c.rate_rps / len(c.decode_tokens)
        inputs, share = np.array([*law]), np.array([*law.values()]) / sum(law.values())
        stages = [
            (segment.threshold, t) for t in range(low + (not inline or low > 0), segment.upto_decode + 1)
        ]
        if segment.parked_bound is not None:
            stages.append((math.ceil(segment.parked_bound), low))
        terms += [(n, page * -(-(inputs + t) // page), share) for n, t in stages]
        low = segment.upto_decode
    exponent = math.log((2 if several else 1) * result.iterations / delta)

    def bound(log_theta: float) -> float:
        theta, total = math.exp(log_theta), exponent
        for n, tokens, share in terms:
            over = tokens - share @ tokens
            total += n * (theta * over.max() + math.log(share @ np.exp(theta * (over - over.max()))))
        return total / theta

    grid = np.linspace(-16, 4, 81)
    near = min(range(81), key=lambda i: bound(grid[i]))
    ends = grid[max(near - 1, 0)], grid[min(near + 1, 80)]
    found = minimize_scalar(bound, bounds=ends, method="bounded", options={"xatol": 1e-9})
    most = sum(n * (tokens.max() - share @ tokens) for n, tokens, share in terms)
    return min(float(found.fun), float(most))


@given(
    st.lists(
        st.tuples(
            st.integers(1, 400),
            st.lists(st.integers(1, 60), min_size=1, max_size=3, unique=True),
            st.floats(0.1, 500),
        ),
        min_size=2,
        max_size=4,
        unique_by=lambda row: row[0],
    ),
    st.sampled_from(Prefill),
    st.sampled_from([1, 4, 16]),
    st.sampled_from([1e-6, 0.01, 0.5]),
)
def test_inputs_that_differ_add_the_least_bound_over_all_that_is_held(
    rows: Rows, prefill: Prefill, block_tokens: int, delta: float
) -> None:
    model = build(rows, prefill, block_tokens=block_tokens)
    result = nested_wait(model, delta=delta, horizon_s=600.0, segments=None)
    assert result.input_spread_kv_tokens == pytest.approx(spread_of_inputs(model, result, delta), rel=1e-7)


def test_half_of_delta_is_for_queues_only_where_inputs_differ() -> None:
    """ln((m - 1)·N/δ) from equal inputs, ln(2(m - 1)·N/δ) from others, with the same lengths and thresholds."""
    exponents = []
    for other in (10, 11):
        model = build([(10, [20, 40], 300.0), (other, [20, 40, 80], 300.0)])
        segments = segments_of(lengths_of(model), [np.arange(3)])
        needs = requirement(segments, np.array([[40.0], [30.0], [12.0]]), delta=0.1, horizon_s=50.0)
        exponents.append(float(needs.exponent[0]) - math.log(2 * float(needs.iterations[0]) / 0.1))
    assert exponents == pytest.approx([0.0, math.log(2)], abs=1e-12)
