"""Laws of Nested WAIT: memory at the equilibrium, decay rates, thresholds, δ and horizon, and a simulation."""

import itertools
import math
from collections import deque
from typing import Any

import numpy as np
import pytest
from every import every
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from kvplan.analysis import nested as nested_module
from kvplan.analysis.equilibrium import equilibrium
from kvplan.analysis.nested import NestedWait, nested_wait, requirement
from kvplan.analysis.segments import (
    Segments,
    candidate_ends,
    decay_rates,
    lengths_of,
    segments_of,
    thresholds_of,
)
from kvplan.model import Prefill, Replica, RequestClass, ServingModel, Timing

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


def four(rates: float = 1.0, **replica: int) -> ServingModel:
    """Four lengths of one input."""
    mix = ((20, 400.0), (40, 300.0), (80, 200.0), (160, 100.0))
    return build([(10, [d], rate * rates) for d, rate in mix], Prefill.INLINE, **replica)


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
    assert at_rest.iteration_time_s is not None
    assert at_rest.kv_tokens is not None
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
def test_merging_lengths_keeps_the_iteration_time_and_rounds_memory_up(model: ServingModel) -> None:
    lengths = lengths_of(model)
    memory, time = at_the_equilibrium(model, segments_of(lengths, candidate_ends(lengths, None)))
    assert time == pytest.approx(1, rel=1e-9)
    assert (memory >= 1 - 1e-9).all()


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


def test_a_queue_that_cannot_grow_has_no_decay_rate() -> None:
    never = decay_rates(np.array([3.0, 3.0]), np.array([3.0, 4.0]), np.array([0.5, 0.5]))
    assert np.isinf(never).all()


def check(model: ServingModel, result: NestedWait) -> None:
    """What holds of any result."""
    assert finite(result)
    assert result.iteration_time_s is not None
    first = result.segments[0]
    assert first.rate_rps * result.iteration_time_s < first.threshold
    assert (first.continue_probability, first.theta, first.parked_bound, first.queue_bound) == (None,) * 4
    for before, here in itertools.pairwise(result.segments):
        assert here.upto_decode > before.upto_decode
        assert here.continue_probability == pytest.approx(here.rate_rps / before.rate_rps)
        assert here.continue_probability is not None
        assert here.parked_bound is not None
        assert here.threshold > here.continue_probability * before.threshold
        assert here.parked_bound >= here.threshold
        assert here.queue_bound == here.parked_bound + here.threshold - 1
        assert (here.theta is None) == (here.threshold >= before.threshold)
    assert result.segments[-1].upto_decode == max(c.decode_tokens[-1] for c in model.classes)
    queues = (result.boundary_kv_tokens or 0.0) + (result.high_probability_kv_tokens or 0.0)
    parked = [s.parked_kv_tokens * s.parked_bound for s in result.segments if s.parked_bound is not None]
    assert queues == pytest.approx(sum(parked))
    inputs = result.input_spread_kv_tokens
    assert result.base_kv_tokens is not None
    assert inputs is not None
    assert (inputs > 0) <= (len({c.input_tokens for c in model.classes}) > 1)
    assert result.required_kv_tokens == pytest.approx(result.base_kv_tokens + queues + inputs)
    assert result.base_kv_tokens == pytest.approx(sum(s.kv_tokens for s in result.segments))
    assert result.required_kv_tokens is not None
    assert result.smallest_thresholds_kv_tokens is not None
    assert result.required_kv_tokens <= result.smallest_thresholds_kv_tokens * (1 + 1e-12)
    page = model.replica.block_tokens
    assert result.fits == (result.required_kv_tokens <= model.replica.memory_tokens // page * page)


@given(models, st.sampled_from([1e-12, 1e-6, 0.3, 1.0]), st.sampled_from([1e-6, 10.0, 1e9]))
def test_results_are_finite_consistent_and_add_up(
    model: ServingModel, delta: float, horizon_s: float
) -> None:
    check(model, nested_wait(model, delta=delta, horizon_s=horizon_s, segments=None))


@given(models, st.integers(1, 12))
def test_a_given_number_of_segments_is_kept_and_never_beats_the_chosen_one(
    model: ServingModel, segments: int
) -> None:
    most = lengths_of(model).decode.size
    result = nested_wait(model, delta=0.01, horizon_s=3600.0, segments=segments)
    check(model, result)
    assert len(result.segments) == min(segments, most)
    assert required(model, segments=segments) >= required(model) * (1 - 1e-12)


@given(
    models,
    st.tuples(st.floats(-700, 0), st.floats(-700, 0)),
    st.tuples(st.floats(-7, 12), st.floats(-7, 12)),
)
def test_requirements_fall_with_delta_and_grow_with_the_horizon(
    model: ServingModel, log_delta: tuple[float, float], log_horizon: tuple[float, float]
) -> None:
    stricter, laxer = (math.exp(x) for x in sorted(log_delta))
    shorter, longer = (10**x for x in sorted(log_horizon))
    slack = 1 + 1e-12
    assert required(model, delta=laxer) <= required(model, delta=stricter) * slack
    assert required(model, horizon_s=shorter) <= required(model, horizon_s=longer) * slack


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
    assert result.required_kv_tokens is not None
    assert result.required_kv_tokens <= total(best) * 1.01


@given(
    st.lists(st.tuples(st.integers(1, 800), st.integers(1, 200)), min_size=2, max_size=4),
    st.sampled_from([1, 16]),
    st.floats(1.0, 3_000.0),
)
def test_no_candidate_with_the_smallest_thresholds_needs_less(
    pairs: list[tuple[int, int]], block_tokens: int, rate: float
) -> None:
    model = build([(s, [d], rate) for s, d in pairs], block_tokens=block_tokens)
    lengths, found = lengths_of(model), required(model)
    for ends in candidate_ends(lengths, None):
        segments = segments_of(lengths, [ends])
        least = thresholds_of(segments, np.zeros(segments.rate.shape), np.ones(1))
        needs = requirement(segments, least, delta=0.01, horizon_s=3600.0)
        assert found <= float(needs.total[0]) * (1 + 1e-12)


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
    assert result.iterations is not None
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


def test_queues_stay_below_their_bounds_while_a_batch_runs_and_before_it_takes_some() -> None:
    """A boundary alone: Binomial(20, .6) come, 13 are taken once they are there; 4,000 horizons of 300 batches."""
    before, here, p, batches, runs, delta = 20, 13, 0.6, 300, 4_000, 0.2
    theta = float(decay_rates(np.array([20.0]), np.array([13.0]), np.array([p]))[0])
    parked_bound = here + math.log(batches / delta) / theta
    rng, waiting = np.random.default_rng(3), np.zeros(runs, dtype=np.int64)
    most_before, most_parked = np.zeros((2, runs), dtype=np.int64)
    for _ in range(batches):
        waiting += rng.binomial(before, p, runs)
        most_before = np.maximum(most_before, waiting)
        waiting -= here * (waiting >= here)
        most_parked = np.maximum(most_parked, waiting)
    assert np.mean(most_parked > parked_bound) <= delta
    assert np.mean(most_before > parked_bound + here - 1) <= delta
    assert np.mean(most_before > parked_bound) > delta  # which only bounds what is parked while a batch runs


def test_slack_pays_where_queues_are_long() -> None:
    """Hundreds of long prompts, half of which continue: one request of slack would let hundreds wait."""
    model = build([(500, [5], 50_000.0), (500, [10], 50_000.0)])
    result = nested_wait(model, delta=0.01, horizon_s=3600.0, segments=2)
    assert result.required_kv_tokens is not None
    assert result.smallest_thresholds_kv_tokens is not None
    assert result.required_kv_tokens < 0.9 * result.smallest_thresholds_kv_tokens


def test_one_length_has_one_segment_and_no_buffer() -> None:
    for model in (build([(10, [20], 500.0)]), build([(10, [20], 300.0), (40, [20], 200.0)])):
        result = nested_wait(model, delta=0.01, horizon_s=3600.0, segments=None)
        check(model, result)
        assert len(result.segments) == 1
        assert (result.boundary_kv_tokens, result.high_probability_kv_tokens) == (0, 0)
        assert (result.input_spread_kv_tokens == 0) == (len(model.classes) == 1)


def test_equal_lengths_of_several_classes_are_merged() -> None:
    apart = build([(10, [20], 100.0), (10, [20, 50], 200.0), (10, [50], 50.0)])
    together = build([(10, [20], 200.0), (10, [50], 150.0)])
    assert required(apart) == pytest.approx(required(together), rel=1e-12)


def test_an_overload_has_no_segments() -> None:
    result = nested_wait(build([(10, [20, 40], 500.0)], load=1.0), delta=0.01, horizon_s=1.0, segments=None)
    assert (result.feasible, result.fits, result.segments) == (False, False, ())
    assert result.required_kv_tokens is None


@every("gap", [1e-2, 1e-4, 1e-6, 1e-9])
def test_thresholds_keep_up_near_the_limit(gap: float) -> None:
    model = build([(10, [20, 33, 47], 500.0), (70, [12, 20, 90], 20.0)], load=1 - gap, memory_tokens=10**9)
    check(model, nested_wait(model, delta=0.01, horizon_s=3600.0, segments=None))
    check(model, nested_wait(model, delta=0.01, horizon_s=3600.0, segments=5))


def test_a_horizon_within_one_iteration_counts_one() -> None:
    result = nested_wait(four(), delta=1.0, horizon_s=1e-9, segments=2)
    check(four(), result)
    assert result.iterations == 1
    assert result.high_probability_kv_tokens == 0  # one boundary, one iteration, δ = 1: ln 1


def test_candidates_that_cannot_win_are_left_out_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searching everything finds the same requirement."""
    model = build([(300, list(range(5, 400, 7)), 4_000.0)])
    found = required(model)
    monkeypatch.setattr(nested_module, "requirement_floor", lambda segments, _: np.zeros(segments.count.size))
    assert required(model) == found


def simulated_peak(
    lengths: tuple[int, ...],
    share: tuple[float, ...],
    ends: tuple[int, ...],
    thresholds: tuple[int, ...],
    iterations: int,
    rng: np.random.Generator,
) -> int:
    """Most tokens held in a run of Nested WAIT with arrivals in plenty, `disaggregated`, input 2.

    Every request is followed by its own length; segment k takes part when all before it do and n_k wait for it.
    """
    spans = [b - a for a, b in itertools.pairwise((0, *ends))]
    stages: list[deque[list[int]]] = [deque([[]] * span) for span in spans]
    waiting: list[deque[int]] = [deque() for _ in ends]
    peak = 0
    for _ in range(iterations):
        waiting[0] = deque(rng.choice(lengths, thresholds[0], p=share).tolist())
        running = 0
        while running < len(ends) and len(waiting[running]) >= thresholds[running]:
            stages[running].pop()
            stages[running].appendleft([waiting[running].popleft() for _ in range(thresholds[running])])
            running += 1
        held, low = 0, 0
        for cohorts, queue, span in zip(stages, waiting, spans, strict=True):
            held += sum(len(cohort) * (2 + low + j + 1) for j, cohort in enumerate(cohorts))
            held += len(queue) * (2 + low) if low else 0
            low += span
        peak, low = max(peak, held), 0
        for k in range(len(ends)):
            if k < running:
                for j, cohort in enumerate(stages[k]):
                    cohort[:] = [d for d in cohort if d > low + j + 1 or j + 1 == spans[k]]
                through = [d for d in stages[k][-1] if d > ends[k]]
                stages[k][-1] = []
                if k + 1 < len(ends):
                    waiting[k + 1].extend(through)
            low += spans[k]
    return peak


@pytest.mark.parametrize(
    ("ends", "thresholds"), [((2, 4, 6), (20, 13, 8)), ((4, 6), (20, 7)), ((2, 4, 6), (10, 7, 4))]
)
def test_simulated_memory_passes_the_requirement_no_oftener_than_promised(
    ends: tuple[int, ...], thresholds: tuple[int, ...]
) -> None:
    delta, runs, iterations = 0.3, 40, 300
    lengths, share = (2, 4, 6), (0.4, 0.3, 0.3)
    classes = tuple(
        RequestClass(f"{d}", 2, (d,), (1.0,), 10 * p) for d, p in zip(lengths, share, strict=True)
    )
    merged = lengths_of(ServingModel(classes, Timing(1.0), Replica(10_000, prefill=Prefill.DISAGGREGATED)))
    segments = segments_of(merged, [np.searchsorted(merged.decode, ends)])
    needs = requirement(
        segments, np.array(thresholds, dtype=float)[:, None], delta=delta, horizon_s=iterations
    )
    rng = np.random.default_rng(11)
    peaks = [simulated_peak(lengths, share, ends, thresholds, iterations, rng) for _ in range(runs)]
    exceeded = sum(peak > needs.total[0] for peak in peaks)
    assert exceeded <= delta * runs + 3 * math.sqrt(runs * delta * (1 - delta))
    assert max(peaks) > needs.base[0]  # and the buffer is needed: filled segments alone are not enough
