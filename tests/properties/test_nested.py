"""Laws of Nested WAIT: memory at the equilibrium, decay rates, thresholds, δ and horizon, and a simulation."""

import itertools
import math
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvplan.analysis import nested as nested_module
from kvplan.analysis.equilibrium import equilibrium
from kvplan.analysis.nested import NestedWait, nested_wait, requirement
from kvplan.analysis.nested_thresholds import decay_rates
from kvplan.analysis.segments import Segments, candidate_ends, lengths_of, segments_of
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
    """Equal or mixed inputs, every convention, half-filled blocks."""
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
            held = model.mix.read.first[entering] + (model.replica.block_tokens - 1) / 2
            share = model.mix.rate_rps[entering] / model.mix.rate_rps[entering].sum()
            stages = np.arange(0 if first else low + inline, high + inline)
            total = (share @ np.add.outer(held, stages)).sum()
            assert segments.held[k, 0] == pytest.approx(total, rel=1e-9)
            if not first:
                last_weight = float(share @ (held + low + inline - 1))
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
    assert (first.continue_probability, first.theta, first.queue_bound) == (None, None, None)
    for before, here in itertools.pairwise(result.segments):
        assert here.upto_decode > before.upto_decode
        assert here.continue_probability == pytest.approx(here.rate_rps / before.rate_rps)
        assert here.continue_probability is not None
        assert here.queue_bound is not None
        assert here.threshold > here.continue_probability * before.threshold
        assert here.queue_bound >= here.threshold
        assert (here.theta is None) == (here.threshold >= before.threshold)
    assert result.segments[-1].upto_decode == max(c.decode_tokens[-1] for c in model.classes)
    parts = (result.base_kv_tokens, result.boundary_kv_tokens, result.high_probability_kv_tokens)
    assert result.required_kv_tokens == pytest.approx(sum(part or 0.0 for part in parts))
    assert result.base_kv_tokens == pytest.approx(sum(s.kv_tokens for s in result.segments))
    assert result.required_kv_tokens is not None
    assert result.smallest_thresholds_kv_tokens is not None
    assert result.required_kv_tokens <= result.smallest_thresholds_kv_tokens * (1 + 1e-12)
    assert result.fits == (result.required_kv_tokens <= model.replica.memory_tokens)


@given(models, st.sampled_from([1e-300, 1e-6, 0.3, 1.0]), st.sampled_from([1e-6, 10.0, 1e9]))
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
    st.lists(st.integers(1, 200), min_size=2, max_size=4, unique=True).map(sorted),
    st.integers(1, 800),
    st.integers(20, 3_000),
)
def test_thresholds_are_near_the_best_there_are(decode: list[int], input_tokens: int, rate: int) -> None:
    """Against every move of a few requests up or down, from one threshold or from all later ones."""
    model = build([(input_tokens, [d], rate / len(decode)) for d in decode])
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


def test_equal_lengths_of_several_classes_are_merged() -> None:
    apart = build([(10, [20], 100.0), (10, [20, 50], 200.0), (10, [50], 50.0)])
    together = build([(10, [20], 200.0), (10, [50], 150.0)])
    assert required(apart) == pytest.approx(required(together), rel=1e-12)


def test_an_overload_has_no_segments() -> None:
    result = nested_wait(build([(10, [20, 40], 500.0)], load=1.0), delta=0.01, horizon_s=1.0, segments=None)
    assert (result.feasible, result.fits, result.segments) == (False, False, ())
    assert result.required_kv_tokens is None


@pytest.mark.parametrize("gap", [1e-2, 1e-4, 1e-6, 1e-9])
def test_thresholds_keep_up_near_the_limit(gap: float) -> None:
    model = build([(10, [20, 33, 47], 500.0), (70, [12, 20, 90], 20.0)], load=1 - gap, memory_tokens=10**9)
    check(model, nested_wait(model, delta=0.01, horizon_s=3600.0, segments=None))
    check(model, nested_wait(model, delta=0.01, horizon_s=3600.0, segments=5))


def test_a_horizon_within_one_iteration_counts_one() -> None:
    result = nested_wait(four(), delta=1.0, horizon_s=1e-9, segments=2)
    check(four(), result)
    assert result.iterations == 1
    assert result.high_probability_kv_tokens == 0  # one boundary, one iteration, δ = 1: ln 1


def test_an_extreme_horizon_stays_finite() -> None:
    assert finite(nested_wait(four(), delta=5e-324, horizon_s=1.7e308, segments=None))


def test_long_and_many_lengths_are_fine() -> None:
    decode = np.unique(np.geomspace(3_000, 100_000, 2_000).astype(int)).tolist()
    model = build([(100, decode, 300.0)], memory_tokens=10**9)
    for segments in (None, 3, len(decode)):
        result = nested_wait(model, delta=0.01, horizon_s=3600.0, segments=segments)
        check(model, result)


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
